"""docs/versions.md: the prose is written there, what stands between its markers comes from bench/versions.json."""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("versions.json")
BEGIN, END = "<!-- versions: written by bench/versions.py -->", "<!-- /versions -->"
TITLES = {
    "floor": "the lowest of everything",
    "pinned": "constraints.txt",
    "newest": "the newest of everything",
    "trixie": "Debian 13's Python and torch",
    "forky": "Debian testing's Python and torch",
}
SHOWN = ("transformers", "huggingface-hub", "tokenizers", "torch", "numpy", "pandas", "xarray", "zarr", "plotly")


def number(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(part) for part in row["installed"]["transformers"].split("."))


def told_demo(row: dict[str, Any], pinned: dict[str, Any]) -> str:
    """How a demo's numbers differ from those with the pinned versions."""
    demo, other = row["demo"], pinned["demo"]
    if "said" in demo:
        return f"fails: {demo['said']}"
    same = sum(a == b for a, b in zip(demo["labels"], other["labels"], strict=True))
    far = max(abs(a - b) / abs(b) for a, b in zip(demo["entropy"], other["entropy"], strict=True))
    words = "the same bits" if far == 0 else f"entropies within {far:.0e}"
    return f"runs; {same} of {len(demo['labels'])} labels the same, {words}"


def told_families(row: dict[str, Any]) -> str:
    found = row["families"]
    if "said" in found:
        return f"fails: {found['said']}"
    parts = [f"{found['verified']} verified"]
    if found["failed"]:
        parts.append(f"not verified: {', '.join(found['failed'])}")
    if found["left_out"]:
        parts.append(f"{len(found['left_out'])} need a newer transformers")
    return ", ".join(parts)


def told_tests(row: dict[str, Any]) -> str:
    counts = row.get("tests")
    if counts is None:
        return "not run"
    words = [
        f"{counts[word]} {word}" for word in ("passed", "skipped", "failed", "error", "errors") if counts.get(word)
    ]
    return ", ".join([*words, *(f"`{name}`" for name in counts["failures"])])


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows]]


def rendered(page: str) -> str:
    """The page with its tables written anew."""
    rows: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))
    ordered = sorted(rows, key=lambda name: (number(rows[name]), name == "newest"))
    ran = [
        [
            TITLES.get(name, f"transformers {name}"),
            rows[name]["python"],
            *(rows[name]["installed"][package].removesuffix("+cpu") for package in SHOWN),
            told_demo(rows[name], rows["pinned"]),
            told_families(rows[name]),
            told_tests(rows[name]),
            rows[name]["date"],
        ]
        for name in ordered
    ]
    head = ["environment", "Python", *SHOWN, "`armillary demo` from the wheel", "families", "core tests", "on"]
    others = [package for package in rows["floor"]["installed"] if package not in SHOWN]
    more = [
        [package, *(rows[name]["installed"].get(package, "not recorded") for name in ordered)] for package in others
    ]
    said = sorted({line for row in rows.values() for line in row["families"].get("left_out", [])})
    lines = [
        *table(head, ran),
        "",
        "The other dependencies in the same environments:",
        "",
        *table(["package", *(TITLES.get(name, f"transformers {name}") for name in ordered)], more),
        "",
        "What `armillary doctor --verify` said of families that a version cannot run with a tap:",
        "",
        *(f"- {line}" for line in said),
    ]
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"docs/versions.md has no place for the tables: they stand between {BEGIN} and {END}")
    return before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after
