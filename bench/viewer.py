"""How long the viewer takes to paint a head switch and a new text of 128 tokens, in headless Chromium.

    python bench/viewer.py [ATLAS]

The page itself measures, from the key or the keystroke (the pause before a text is sent included) until every figure
of the tab that is on screen is drawn and the browser has painted the frame; those below the fold follow after that.
Without ATLAS the bundled rotary model is scanned.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

import armillary as arm
from armillary.anatomy.loading import load_tokenizer

ROOT = Path(__file__).resolve().parents[1]
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
SWITCHES, TEXTS, TOKENS = 24, 10, 128
SENTENCE = "The keeper of the small museum wound every clock in the hall before the first visitors came to see them. "
LIMITS = {"head switch, dossier": 200, "head switch, text": 200, "new text": 1000}


def text_of(tokenizer: Any, number: int) -> str:
    """A text of 128 tokens, another one for every number."""
    ids = tokenizer(f"{number} " + SENTENCE * 20)["input_ids"][:TOKENS]
    return str(tokenizer.decode(ids))


def summary(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "runs": len(times),
        "minimum": round(ordered[0]),
        "median": round(statistics.median(ordered)),
        "ninetieth": round(ordered[int(0.9 * (len(ordered) - 1))]),
    }


def measures(page: Any, name: str) -> list[float]:
    found = page.evaluate("performance.getEntriesByType('measure').map(m => [m.name, m.duration])")
    return [duration for label, duration in found if label == name]


def settle(page: Any, name: str, count: int) -> None:
    """Wait until the page has measured `count` paints of this kind."""
    for _ in range(600):
        if len(measures(page, name)) >= count:
            return
        page.wait_for_timeout(15)
    raise SystemExit(f"the page did not paint: {name}")


def run(address: str, tokenizer: Any) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1366, "height": 850})
        for tab in ("dossier", "text"):
            page.goto("about:blank")
            page.goto(address)
            page.wait_for_selector("body[data-state=ready]")
            if tab == "text":
                page.keyboard.press("2")
                for number in range(TEXTS):
                    page.locator("#text").fill(text_of(tokenizer, number))
                    settle(page, "armillary text", number + 1)
                found["new text"] = measures(page, "armillary text")
                page.keyboard.press("Escape")
            for number in range(SWITCHES):
                page.keyboard.press(
                    ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowDown")[number % 4] if number % 12 < 8 else "ArrowUp"
                )
                settle(page, "armillary head", number + 1)
                page.wait_for_selector("body[data-state=ready]")
            found[f"head switch, {tab}"] = measures(page, "armillary head")
        browser.close()
    return found


def main() -> None:
    model = arm.bundled("llama")
    with tempfile.TemporaryDirectory() as temporary:
        atlas = sys.argv[1] if len(sys.argv) > 1 else f"{temporary}/atlas"
        if len(sys.argv) == 1:
            arm.scan(model, out=atlas)
        command = [str(Path(sys.executable).parent / "armillary"), "view", atlas, "--no-browser", "--model", str(model)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            assert server.stdout is not None
            line = next(line for line in server.stdout if "http://" in line)
            try:
                found = run(line.strip(), load_tokenizer(model))
            finally:
                server.send_signal(signal.SIGINT)
    results = {name: {**summary(times), "limit": LIMITS[name]} for name, times in found.items()}
    report = {
        "what": "milliseconds from the key or keystroke to the painted page, bundled llama, 128 tokens",
        "machine": {"cores": os.cpu_count(), "load when it ended": round(os.getloadavg()[0], 1)},
        "results": results,
    }
    print(json.dumps(report, indent=2))
    (ROOT / "bench" / "viewer.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    slow = [name for name, found in results.items() if found["median"] > found["limit"]]
    if slow:
        raise SystemExit(f"slower than promised (median): {', '.join(slow)}")


if __name__ == "__main__":
    main()
