"""The house: rooms import from rooms below, functions and files are short, tests stand where the code stands."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from armillary import __version__

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/armillary"
IN_THE_ROOT = {"__init__", "__main__", "cli", "errors", "progress"}
MORE_IN_THE_ROOT = 2
LINES_OF_A_FUNCTION = 60
LINES_OF_A_FILE = 400
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def rooms() -> set[str]:
    """The packages inside the package; `bundled` holds models and no code."""
    return {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def of_papers(path: Path) -> bool:
    return path.relative_to(PACKAGE).parts[0] == "papers"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code and its contract, to be broken."""
    copy = tmp_path_factory.mktemp("house")
    shutil.copytree(PACKAGE, copy / "src/armillary", ignore=shutil.ignore_patterns("__pycache__", "bundled", "static"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def lint_imports(house: Path) -> "subprocess.CompletedProcess[str]":
    """What `make lint` runs, in a copy."""
    program = Path(sys.executable).with_name("lint-imports")
    environment = {**os.environ, "PYTHONPATH": str(house / "src"), "COLUMNS": "200"}
    return subprocess.run([program, "--no-cache"], cwd=house, env=environment, capture_output=True, text=True)


class TestRooms:
    def test_an_import_that_goes_up_fails(self, house: Path) -> None:
        passed = lint_imports(house)
        assert passed.returncode == 0, passed.stdout
        planted = house / "src/armillary/anatomy/planted.py"
        for line in ("from armillary.lenses import tables\n", "def later():\n    import armillary.lenses.tables\n"):
            planted.write_text(line)
            failed = lint_imports(house)
            planted.unlink()
            assert failed.returncode == 1
            assert "armillary.anatomy.planted -> armillary.lenses.tables" in failed.stdout

    def test_lint_checks_it_and_pre_commit_does_the_same_as_lint(self) -> None:
        recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nlint:")[2].partition("\n\n")[0]
        commands = re.findall(r"^\t\$\(BIN\)/(.+)$", recipe, re.MULTILINE)
        assert "lint-imports" in commands
        hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
        assert re.findall(r"entry: \.venv/bin/(.+)", hooks) == commands
        assert re.findall(r"repo: (.+)", hooks) == ["local"]  # nothing is fetched

    def test_every_room_has_its_floor(self) -> None:
        (contract,) = PROJECT["tool"]["importlinter"]["contracts"]
        assert set(contract["layers"]) - IN_THE_ROOT == rooms()
        assert "ignore_imports" not in contract

    def test_few_modules_stand_in_the_root(self) -> None:
        modules = {path.stem for path in PACKAGE.glob("*.py")}
        assert modules >= IN_THE_ROOT
        assert len(modules - IN_THE_ROOT) <= MORE_IN_THE_ROOT, modules

    def test_tests_mirror_the_rooms(self) -> None:
        folders = {path.parent.name for path in (ROOT / "tests").rglob("test_*.py")}
        assert folders <= rooms() | {"project"}
        names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
        assert len(set(names)) == len(names)  # pytest imports them by name


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def test_functions_are_short() -> None:
    long = {
        f"{path.relative_to(PACKAGE)}: {function.name}": lines_of(function)
        for path in sources()
        for function in functions(path)
        if lines_of(function) > LINES_OF_A_FUNCTION
    }
    assert long == {}


def test_files_are_short() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources() if not of_papers(path)}
    assert {str(path): count for path, count in lengths.items() if count > LINES_OF_A_FILE} == {}


def test_the_version_stands_in_one_place() -> None:
    """The package says it, the build reads it there, the citation file repeats it."""
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/armillary/__init__.py"
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited is not None
    assert cited[1] == __version__


def test_the_changelog_has_what_comes_and_what_this_version_holds() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[(.+?)\]", changes, re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert __version__ in headings
