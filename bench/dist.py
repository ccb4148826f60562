"""`make dist`: what is in the wheel and the source archive, and whether the wheel runs where nothing else is.

python bench/dist.py review DIST          contents and size of both; exit code 1 if something does not belong there
python bench/dist.py try DIST [CONSTRAINTS]  installs the wheel into an empty environment and runs the demo from it
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LARGEST = {".whl": 10_000_000, ".gz": 10_000_000}
"""Bytes that a package may have: the two bundled models (7 MB) and the code."""
KINDS = {".py", ".json", ".safetensors", ".js", ".css", ".html", ".svg", ".typed"}
"""What files of the package are."""
BESIDE = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "PKG-INFO", "README.md", ".gitignore", "constraints.txt"} | {
    "pyproject.toml"
}
"""What may stand beside the code in the source archive."""
STORE = "bundled/timeline/timeline.zarr/"
"""A Zarr store, whose chunks have names without endings."""

NEEDED = {
    "py.typed",
    "cli.py",
    "__main__.py",
    "bundled/llama/model.safetensors",
    "bundled/timeline/timeline.zarr/zarr.json",
    "report/report.html",
    "viewer/static/app.js",
}
"""Files of the package without which it would install and not run."""


def names(package: Path) -> list[str]:
    """The files of a wheel or a source archive."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            return [name for name in wheel.namelist() if not name.endswith("/")]
    with tarfile.open(package) as archive:
        return [member.name.partition("/")[2] for member in archive if member.isfile()]


def review(package: Path) -> list[str]:
    """What is wrong with the contents of a package: nothing, if it holds the code, all of it, and nothing else."""
    files, wrong = names(package), []
    top = "armillary/" if package.suffix == ".whl" else "src/armillary/"
    code = {name.removeprefix(top) for name in files if name.startswith(top)}
    beside = [name for name in files if not name.startswith(top) and ".dist-info/" not in name and name not in BESIDE]
    wrong += [f"{name} does not belong into {package.name}" for name in beside]
    foreign = (name for name in sorted(code) if Path(name).suffix not in KINDS and not name.startswith(STORE))
    wrong += [f"{name} is not code of the package" for name in foreign]
    wrong += [f"{name} is missing from {package.name}" for name in sorted(NEEDED - code)]
    size, largest = package.stat().st_size, LARGEST[package.suffix]
    if size > largest:
        wrong.append(f"{package.name} has {size:,} bytes, more than {largest:,}")
    return wrong


def packages(folder: Path) -> list[Path]:
    """The one wheel and the one source archive of a folder."""
    found = [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]
    if [package.suffix for package in found] != [".whl", ".gz"]:
        raise SystemExit(f"{folder} should hold one wheel and one source archive, not {[p.name for p in found]}")
    return found


def try_wheel(wheel: Path, constraints: Path) -> None:
    """Install the wheel into an empty environment and run it from a folder that knows nothing of the sources."""
    with tempfile.TemporaryDirectory() as empty:
        home = Path(empty)
        venv.create(home / "venv", with_pip=True)
        python = str(home / "venv/bin/python")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"  # --show-completion takes the shell's name

        def run(*command: str) -> None:
            print("$", " ".join(command).replace(empty, ""), flush=True)
            subprocess.run([python, "-m", *command], cwd=home, env=environment, check=True)

        run("pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(constraints), str(wheel))
        run("armillary", "--version")
        run("armillary", "--show-completion", "bash")
        run("armillary", "demo", "--out", str(home / "demo"))
        if not (home / "demo/report.html").is_file():
            raise SystemExit("the demo wrote no report")


def main(verb: str, folder: str, constraints: str = "constraints.txt") -> int:
    found = packages(Path(folder))
    if verb == "try":
        try_wheel(found[0].resolve(), Path(constraints).resolve())
        return 0
    for package in found:
        files = names(package)
        print(f"{package.name}: {package.stat().st_size / 1e6:.1f} MB, {len(files)} files")
    wrong = [line for package in found for line in review(package)]
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
