"""The table of all keys of a run's TOML file; python -m armillary.training.reference writes it to docs/training.md."""

import sys
from pathlib import Path

from armillary.files.atomic import write_atomically
from armillary.training.config import SECTIONS, with_defaults
from armillary.training.settings import described

BEGIN, END = "<!-- keys: written by python -m armillary.training.reference -->", "<!-- end of keys -->"


def table() -> str:
    """A table for every section: key, type, default, meaning."""
    lines = []
    for name, section in SECTIONS.items():
        lines += ["", f"### [{name}]", "", (section.__doc__ or "").strip(), "", "| key | type | default | meaning |"]
        lines += ["|---|---|---|---|"]
        defaults = with_defaults({}) if name == "training" else {}
        for key, kind, default, words in described(section, defaults):
            lines.append(f"| `{key}` | {kind} | {default} | {words} |")
    return "\n".join(lines).strip("\n")


def rendered(page: str) -> str:
    """The page with the table of now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/training.md")
    write_atomically(place, rendered(place.read_text(encoding="utf-8")).encode())
