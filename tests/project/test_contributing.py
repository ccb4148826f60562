"""CONTRIBUTING.md is true: its examples, applied to a copy of the package, run; and they keep the order of rooms."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_house import PACKAGE, ROOT, lint_imports

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?P<before>[^\n]*)\n\n```python(?P<check> check)?\n(?P<code>.*?)```", re.DOTALL)
PLACE = re.compile(r"(?P<how>New file|end of|n) `(?P<path>src/[^`]+)`(?: after `(?P<line>[^`]+)`)?:$")


class Example:
    """A section of the page: what it writes into which files, and what must hold then."""

    def __init__(self, section: str) -> None:
        self.title = section.partition("\n")[0].strip()
        self.edits: list[tuple[re.Match[str], str]] = []
        self.check = ""
        for block in BLOCK.finditer(section):
            if block["check"]:
                self.check += block["code"]
            else:
                place = PLACE.search(block["before"])
                assert place is not None, f"where does this go? {block['before']}"
                self.edits.append((place, block["code"]))

    @property
    def files(self) -> set[str]:
        return {place["path"] for place, _ in self.edits}

    def apply(self, copy: Path) -> None:
        for place, code in self.edits:
            path = copy / place["path"]
            if place["how"] == "New file":
                assert not path.exists()
                path.write_text(code)
            elif place["line"] is None:
                path.write_text(f"{path.read_text()}\n{code}")
            else:
                before = path.read_text()
                assert before.count(f"\n{place['line']}\n") == 1, f"{path} has not one line {place['line']!r}"
                path.write_text(before.replace(f"\n{place['line']}\n", f"\n{place['line']}\n{code}"))


EXAMPLES = [example for section in PAGE.split("\n## Add ")[1:] if (example := Example(section))]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with all examples of the page in it."""
    place = tmp_path_factory.mktemp("contributed")
    shutil.copytree(PACKAGE, place / "src/armillary", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", place)
    for example in EXAMPLES:
        example.apply(place)
    return place


def test_there_is_an_example_of_everything() -> None:
    assert [example.title for example in EXAMPLES] == ["a family", "a stream", "a column", "a lens", "a command"]
    assert all(example.check for example in EXAMPLES)


def test_a_stream_with_a_column_is_a_new_file_and_lines_in_two_lists() -> None:
    files = {example.title: example.files for example in EXAMPLES}
    assert len(files["a stream"]) == 2
    assert len(files["a column"]) == 1
    assert len({*files["a stream"], *files["a column"]}) == 3  # one of them new


def test_the_examples_do_what_the_page_says(copy: Path, tmp_path: Path) -> None:
    program = "\n".join(example.check for example in EXAMPLES)
    paths = os.pathsep.join([str(copy / "src"), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths, "ARMILLARY_CACHE": ""}
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_the_examples_keep_the_order_of_rooms(copy: Path) -> None:
    assert lint_imports(copy).returncode == 0
