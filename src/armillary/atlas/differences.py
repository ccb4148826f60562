"""Where two descriptions of a scan differ."""

from typing import Any


def essential(description: dict[str, Any]) -> dict[str, Any]:
    """A description without what finished shards do not depend on: the names of model and corpus, and when_nan."""
    return {
        key: {k: v for k, v in value.items() if k not in ("name", "when_nan")} if isinstance(value, dict) else value
        for key, value in description.items()
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The differences as phrases: 'settings skip: was 1, now 2'."""
    return [f"{key}: was {_short(a)}, now {_short(b)}" for key, a, b in disagreements(before, now)]


def _short(value: Any) -> str:
    return text if len(text := str(value)) <= 200 else f"{text[:197]}..."


def disagreements(a: dict[str, Any], b: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """(what, in a, in b) for everything that differs."""
    differing = []
    for key in sorted({*a, *b}):
        ours, theirs = a.get(key), b.get(key)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            differing += [(f"{key} {inner}", x, y) for inner, x, y in disagreements(ours, theirs)]
        elif ours != theirs:
            differing.append((key, ours, theirs))
    return differing
