"""A real browser for tests: Debian's Chromium, driven by Playwright, with what a page complained about."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)

PATIENCE = 300
"""Seconds that anything may take in a browser on a busy machine."""


@dataclass
class Complaints:
    """What went wrong on a page: errors on the console, errors thrown, and requests that left the machine."""

    console: list[str] = field(default_factory=list)
    thrown: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @property
    def all(self) -> list[str]:
        return [*self.console, *self.thrown, *self.requests]

    def wait(self, page: Any) -> None:
        """Wait until there is one."""
        for _ in range(100 * PATIENCE):
            if self.all:
                return
            page.wait_for_timeout(10)
        raise AssertionError("the page complained about nothing")

    def watch(self, page: Any) -> None:
        """Collect what this page complains about from now on; file:, data:, blob: and this machine are no network."""
        local = ("file:", "data:", "blob:", "about:", "http://127.0.0.1", "http://localhost", "ws://127.0.0.1")
        page.on("console", lambda message: self.console.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.thrown.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(local) else self.requests.append(asked.url))


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser; the test is skipped where Debian's chromium is not installed."""
    if not CHROMIUM.exists():
        pytest.skip("Debian's chromium is not installed here (apt install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=list(ARGUMENTS), timeout=1000 * PATIENCE
        )
        try:
            yield browser
        finally:
            browser.close()


def window(browser: Any, **settings: Any) -> Any:
    """A window of its own, with the patience that a busy machine needs."""
    context = browser.new_context(**settings)
    context.set_default_timeout(1000 * PATIENCE)
    return context


@contextmanager
def opened(browser: Any, address: str, **settings: Any) -> Iterator[tuple[Any, Complaints]]:
    """A page at this address in a window of its own, with what it complains about."""
    context = window(browser, **{"viewport": {"width": 1280, "height": 800}, **settings})
    page, complaints = context.new_page(), Complaints()
    complaints.watch(page)
    try:
        page.goto(address)
        yield page, complaints
    finally:
        context.close()


def violations(page: Any) -> list[str]:
    """Serious and critical findings of axe on the page as it is now."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {one['help']} ({node['html'][:120]})"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]
