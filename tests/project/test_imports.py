"""Imports stand at the top of a file, where a reader and import-linter see them; those in functions say why.

A file with imports inside functions has one comment, '# Imports inside functions: why.' Modules of Armillary are
imported inside functions by commands alone, or under a comment '# for start-up: why'.
"""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "armillary"
REASON = re.compile(r"^# Imports inside functions: \w.+\.$", re.MULTILINE)
START_UP = re.compile(r"^ +# for start-up: \w")


def misplaced(text: str, command: bool = False) -> list[str]:
    """Imports inside functions that say no reason, as 'line: what is wrong'."""
    lines, wrong = text.splitlines(), []
    for node, above in inner_imports(ast.parse(text)):
        named = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        ours = any(name.split(".")[0] == "armillary" for name in named) or getattr(node, "level", 0) > 0
        said = START_UP.match(lines[above - 2])
        if ours and not command and not said:
            wrong.append(f"{node.lineno}: {lines[node.lineno - 1].strip()}: move it to the top, or say why above it")
        elif not said and not REASON.search(text):
            wrong.append(f"{node.lineno}: {lines[node.lineno - 1].strip()}: the file does not say why")
    return wrong


def inner_imports(tree: ast.Module) -> list[tuple[ast.Import | ast.ImportFrom, int]]:
    """Every import inside a function, with the first line of the run of imports that it stands in."""
    found: dict[int, tuple[ast.Import | ast.ImportFrom, int]] = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            first, last = 0, -1
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    first = first if node.lineno == last + 1 else node.lineno
                    last = node.end_lineno or node.lineno
                    found.setdefault(node.lineno, (node, first))
    return list(found.values())


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_inside_functions_say_why(path: Path) -> None:
    assert not misplaced(path.read_text(), command=path.parent.name == "commands")


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("    from armillary.atlas.atlas import Atlas", 1),
        ("    import torch", 1),
        ("    import torch\n    import zarr", 2),
        ("    # because\n    import armillary.errors", 1),
        ("    # for start-up: zarr is slow\n    from armillary.atlas.store import CheckedStore", 0),
        ("    # for start-up: zarr is slow\n    import armillary.a\n    import armillary.b", 0),
        ("    pass", 0),
    ],
)
def test_what_counts_as_a_reason(body: str, count: int) -> None:
    text = f"import os\n\n\ndef run():\n{body}\n"
    assert len(misplaced(text)) == count
    told = text.replace("import os\n", "import os\n\n# Imports inside functions: torch is slow to import.\n")
    assert len(misplaced(told, command=True)) == 0
    assert len(misplaced(told)) == (count if "armillary" in body else 0)
