"""The HTML files that commands write: each has the content policy, works in a browser, and runs no script of others."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import armillary as arm
from armillary.cli import app
from armillary.figures.policy import content_policy
from browser import Complaints, chromium, window

HOSTILE = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script><a href='javascript:window.hacked=1'>"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in a folder with a hostile name, an atlas of it, and a training run with a hostile name."""
    place = tmp_path_factory.mktemp("pages")
    model = place / HOSTILE.replace("/", " ")
    shutil.copytree(arm.bundled("llama"), model)
    streams = ("positions", "attention", "chunks", "covariance", "constituents", "patterns", "lags")
    arm.scan(model, "builtin:prose", out=place / "atlas", length=96, sequences=12, streams=streams)
    (place / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)
    (place / "small.toml").write_text(
        f"[model]\nfamily = 'gpt2'\nlayers = 1\nheads = 2\nwidth = 16\n[data]\ncorpus = '{place / 'text.txt'}'\n"
        "[training]\nsteps = 4\nbatch = 4\nlength = 32\nwarmup = 2\ncheckpoint_every = 2\n[monitor]\nevery = 2\n"
    )
    return place


COMMANDS = {
    "show": "show ATLAS 1.1 --text TEXT --model MODEL --html PAGE",
    "map": "map MODEL --text TEXT --html PAGE",
    "intervene": "intervene MODEL --scale 2.0 --layers 1 --text TEXT --html PAGE",
    "frequencies": "frequencies ATLAS --html PAGE",
    "frequencies of a head": "frequencies ATLAS --head 1.1 --text TEXT --model MODEL --html PAGE",
    "rope": "rope MODEL --sweep p=1,0.5 --sequences 4 --length 32 --html PAGE",
    "weights": "weights MODEL --out OUT --html PAGE",
    "gaussian": "gaussian ATLAS --html PAGE",
    "localization": "localization ATLAS --html PAGE",
    "theory": "theory l26 --html PAGE",
    "experiment": f"experiment show wertich-slerp --out {ROOT / 'experiments' / 'results'} --html PAGE",
    "train": "train CONFIG --out RUN",
    "runs": "runs RUN --html PAGE",
    "report": "report ATLAS --out PAGE",
    "compare": "report ATLAS ATLAS --out PAGE",
}


def written(place: Path, name: str) -> Path:
    """The file that a command wrote."""
    page, run = place / f"{name}.html", place / "run"
    told = {
        "ATLAS": place / "atlas",
        "MODEL": place / HOSTILE.replace("/", " "),
        "TEXT": f"{HOSTILE} is a text",
        "PAGE": page,
        "OUT": place / "weights",
        "RUN": run,
        "CONFIG": place / "small.toml",
    }
    asked = [str(told.get(word, word)) for word in COMMANDS[name].split()]
    ran = CliRunner().invoke(app, asked)
    assert ran.exit_code == 0, (ran.output, ran.exception)
    return run / "figure.html" if name == "train" else page


ALWAYS = ("report", "show", "map")
"""The pages that `make test` opens; those of the other commands are slow tests."""


@pytest.mark.parametrize(
    "name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS]
)
def test_every_page_has_the_policy_works_and_runs_nothing_hostile(browser: Any, place: Path, name: str) -> None:
    path = written(place, name)
    text = path.read_text(encoding="utf-8")
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    assert policy is not None
    scripts = re.findall(r"<script(?: type=\"module\")?>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 2  # Plotly and our own; what is JSON has another type
    assert policy[1] == content_policy(scripts)
    assert text.index(policy[0]) < text.index("<script")
    context, complaints = window(browser), Complaints()
    try:
        page = context.new_page()
        page.on("dialog", lambda dialog: dialog.dismiss())
        complaints.watch(page)
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=yes]", state="attached")
        page.wait_for_selector(".js-plotly-plot .main-svg", state="attached")
        assert page.evaluate("window.hacked") is None
        assert page.locator("img, a[href^=javascript]").count() == 0
        assert complaints.all == []
        page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.hacked=1>')")
        complaints.wait(page)
        assert page.evaluate("window.hacked") is None  # even if it were HTML, the policy would not run it
        assert all("Content Security Policy" in line for line in complaints.all)
    finally:
        context.close()


def test_no_other_way_to_write_a_page() -> None:
    """Plotly's own HTML has scripts that no policy could name; nothing here writes it."""
    for file in (ROOT / "src").rglob("*.py"):
        assert not re.search(r"\.(to|write)_html\(", file.read_text(encoding="utf-8")), file
