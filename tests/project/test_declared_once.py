"""A column that is added in a copy of the package: one declaration and one value, and everything shows it."""

import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

import armillary

ADDED = """
    _attention(
        "answer",
        "The answer to every question, whatever the head.",
        unit="answers",
        sets=("usual", "overview"),
    ),
"""

USED = """
import sys
import armillary as arm
from armillary.cli import app
from armillary.report import report_html
from armillary.viewer.pages import Pages
from typer.testing import CliRunner

atlas = arm.scan(arm.bundled("llama"), "builtin:prose", out="atlas", length=24, sequences=4, streams=("attention",))
shown = lambda *line: CliRunner().invoke(app, list(line), env={"COLUMNS": "400"}).output
html = report_html(atlas)
(measure,) = [measure for measure in Pages(atlas).start()["measures"] if measure["name"] == "answer"]
print("terminal table", "answer" in shown("heads", "atlas").splitlines()[0].split())
print("json", '"answer": 42.0' in shown("heads", "atlas", "--json"))
print("columns", "The answer to every question" in shown("columns", "answer"))
print("python", arm.columns("answer")["unit"].to_list() == ["answers"])
print("report's definitions", 'id="def-heads-answer"><dt>answer</dt><dd>The answer to every question' in html)
print("report's set", '"answer"' in html.split('"overview":', 1)[1].split("]")[0])
print("viewer's menu", measure["means"].startswith("The answer to every question"))
print("reference page", 'id="heads-answer"' in shown("columns", "--markdown"))
"""


def test_one_declaration_and_one_value_make_a_column(tmp_path: Path) -> None:
    copy = tmp_path / "armillary"
    copytree(Path(armillary.__file__).parent, copy, ignore=ignore_patterns("__pycache__"))
    declarations, lens = copy / "atlas" / "columns" / "heads" / "attention.py", copy / "lenses" / "heads.py"
    add(declarations, after="ATTENTION = (", text=ADDED)
    add(lens, after='        table["mixed_tokens"] = np.exp(table["entropy"])', text='\n    table["answer"] = 42.0\n')
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", USED], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    places = dict(line.rsplit(" ", 1) for line in ran.stdout.splitlines())
    assert len(places) == 8
    assert set(places.values()) == {"True"}, places


def add(path: Path, *, after: str, text: str) -> None:
    """Insert a text after a line of a file."""
    before = path.read_text()
    assert before.count(f"{after}\n") == 1
    path.write_text(before.replace(f"{after}\n", f"{after}{text}"))
