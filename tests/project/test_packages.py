"""What people install: bounds of versions, the wheel's contents, containers, the conda recipe, completion."""

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from armillary import __version__
from program import process

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RAN_THE_CORE = ("floor", "newest")
CONDA_NAMES = {"torch": "pytorch"}
sys.path.insert(0, str(ROOT / "bench"))

import dist  # noqa: E402
import versions  # noqa: E402
import versions_page  # noqa: E402


def requirements(*extras: str) -> list[Requirement]:
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    return [Requirement(line) for line in lines]


def pinned(file: str) -> dict[str, Version]:
    lines = [line for line in (ROOT / file).read_text(encoding="utf-8").splitlines() if "==" in line]
    pairs = (line.partition("==")[::2] for line in lines)
    return {name.lower().replace("_", "-"): Version(version) for name, version in pairs}


class TestBounds:
    @pytest.mark.parametrize("file", ["constraints.txt", "constraints-floor.txt"])
    def test_the_tested_versions_are_within_them(self, file: str) -> None:
        tested = pinned(file)
        for requirement in requirements("gguf", "hf", "images", "parquet"):
            assert requirement.specifier.contains(tested[requirement.name], prereleases=True), requirement

    def test_the_floor_is_what_is_declared(self) -> None:
        """`make test-floor` runs the lowest version that pyproject.toml allows; torch's cannot be had without CUDA."""
        tested = pinned("constraints-floor.txt")
        for requirement in requirements("gguf", "hf", "images", "parquet"):
            (least,) = [Version(bound.version) for bound in requirement.specifier if bound.operator == ">="]
            if requirement.name != "torch":
                same = tested[requirement.name].release[: len(least.release)] == least.release
                assert same, f"{requirement} is tested with {tested[requirement.name]}"


class TestContents:
    @staticmethod
    def wheel(folder: Path, *more: str) -> Path:
        path = folder / "armillary-0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name in (*(f"armillary/{needed}" for needed in dist.NEEDED), "armillary-0.dist-info/METADATA", *more):
                archive.writestr(name, "")
        return path

    def test_a_wheel_of_the_package_alone_passes(self, tmp_path: Path) -> None:
        assert dist.review(self.wheel(tmp_path)) == []

    @pytest.mark.parametrize("name", ["tests/test_a.py", "armillary/notes.md", "armillary/a.pyc", "results.json"])
    def test_what_does_not_belong_there_is_named(self, name: str, tmp_path: Path) -> None:
        (wrong,) = dist.review(self.wheel(tmp_path, name))
        assert name.removeprefix("armillary/") in wrong

    def test_a_source_archive_without_models_or_with_tests(self, tmp_path: Path) -> None:
        path = tmp_path / "armillary-0.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for name in ("src/armillary/cli.py", "README.md", "tests/test_a.py"):
                (tmp_path / "empty").touch()
                archive.add(tmp_path / "empty", f"armillary-0/{name}")
        wrong = "\n".join(dist.review(path))
        assert "tests/test_a.py does not belong" in wrong
        assert "bundled/llama/model.safetensors is missing" in wrong
        assert "README.md" not in wrong

    def test_the_size_has_a_bound(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(dist.LARGEST, ".whl", 10)
        assert "more than 10" in dist.review(self.wheel(tmp_path))[0]

    def test_every_file_of_the_package_is_of_a_known_kind(self) -> None:
        files = subprocess.run(
            ["git", "ls-files", "src/armillary"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.split()
        store = f"src/armillary/{dist.STORE}"  # Zarr's chunks have no suffix
        assert {Path(name).suffix for name in files if not name.startswith(store)} <= dist.KINDS


class TestContainers:
    @pytest.mark.parametrize("name", ["cpu", "cuda"])
    def test_they_install_the_package_and_start_it_as_nobody_special(self, name: str) -> None:
        text = (ROOT / f"docker/{name}.Dockerfile").read_text(encoding="utf-8")
        steps = [line.partition(" ")[::2] for line in re.sub(r"\\\n", "", text).splitlines() if line[:1].isupper()]
        said: dict[str, str] = dict(steps)
        assert steps[0][0] == "FROM"
        assert not steps[0][1].endswith(("latest", "python"))  # a version is named
        assert said["ENTRYPOINT"] == '["armillary"]'
        assert said["USER"] == "1000"
        assert "-c constraints.txt" in said["RUN"]
        assert ("whl/cpu" in said["RUN"]) is (name == "cpu")
        for source in [part for word, rest in steps if word == "COPY" for part in rest.split()[:-1]]:
            assert (ROOT / source).exists()


class TestCondaRecipe:
    RECIPE: dict[str, Any] = yaml.safe_load((ROOT / "conda-recipe/recipe.yaml").read_text(encoding="utf-8"))

    def test_it_needs_what_pyproject_says(self) -> None:
        ours = {f"python {PROJECT['requires-python']}"}
        ours |= {
            f"{CONDA_NAMES.get(one.name, one.name)} {','.join(sorted(map(str, one.specifier), reverse=True))}"
            for one in requirements()
        }
        assert set(self.RECIPE["requirements"]["run"]) == ours

    def test_it_is_this_version_with_this_entry_point(self) -> None:
        assert self.RECIPE["context"] == {"name": PROJECT["name"], "version": __version__}
        (entry,) = self.RECIPE["build"]["python"]["entry_points"]
        assert dict([entry.split(" = ")]) == PROJECT["scripts"]
        assert self.RECIPE["about"]["license"] == PROJECT["license"]
        assert self.RECIPE["about"]["summary"] == PROJECT["description"]


def test_one_address_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    home = PROJECT["urls"]["Homepage"]
    assert citation["repository-code"] == TestCondaRecipe.RECIPE["about"]["homepage"] == home
    assert all(address.startswith(home) for address in PROJECT["urls"].values())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script for a shell asks the program, which knows its commands and their options."""
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")  # else it is the shell that called
    assert "_ARMILLARY_COMPLETE" in process("--show-completion", shell).stdout


def test_completion_offers_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"_ARMILLARY_COMPLETE": "complete_bash", "COMP_WORDS": "armillary verify", "COMP_CWORD": "1"}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    assert process().stdout.split() == ["verify-heads"]


def test_it_is_a_module_too() -> None:
    assert process("--version").stdout.strip() == __version__


def test_the_page_of_versions_is_what_was_run() -> None:
    page = ROOT / "docs/versions.md"
    assert versions_page.rendered(page.read_text(encoding="utf-8")) == page.read_text(encoding="utf-8")
    rows = json.loads(versions_page.RESULTS.read_text(encoding="utf-8"))
    assert {"floor", "pinned", "newest"} <= set(rows)
    assert all(len(row["demo"]["labels"]) == 36 and not row["families"]["failed"] for row in rows.values())
    declared = {requirement.name for requirement in requirements()}
    assert all(declared <= set(row["installed"]) for row in rows.values()), "run `make versions` again"
    for name in RAN_THE_CORE:
        tests = rows[name]["tests"]
        assert tests["passed"] > 1000
        assert all(failure in page.read_text(encoding="utf-8") for failure in tests["failures"]), "failures are named"


def test_the_floor_and_the_pinned_rows_are_of_the_constraints() -> None:
    rows = json.loads(versions_page.RESULTS.read_text(encoding="utf-8"))
    for name, file in (("floor", "constraints-floor.txt"), ("pinned", "constraints.txt")):
        constrained = pinned(file)
        for package, version in rows[name]["installed"].items():
            assert Version(version.removesuffix("+cpu")) == constrained[package], (name, package)


def test_the_core_of_the_tests_is_the_same_everywhere() -> None:
    (line,) = re.findall(r"^CORE := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert line.split() == [f"tests/{name}" for name in versions.CORE]
