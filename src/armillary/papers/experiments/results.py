"""Write and read the folder of a finished experiment: result.json, a CSV per table, a JSON per figure."""

import json
import time
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypedDict

import pandas as pd
import plotly.graph_objects as go

from armillary.errors import ArmillaryError, brief
from armillary.files.atomic import recover, whole_folder, write_atomically
from armillary.files.records import read_bytes, read_record
from armillary.observe.verified import versions
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings
from armillary.papers.experiments.registry import experiments


class ResultRecord(TypedDict):
    """result.json."""

    name: str
    paper: str
    of: str
    question: str
    size: str
    seconds: float
    claims: list[Claim]
    learned: list[str]
    tables: list[str]
    figures: list[str]


class FigureRecord(TypedDict):
    """A Plotly figure as JSON."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]


@dataclass(frozen=True)
class Result:
    """The contents of a result folder; tables and figures are read when asked for."""

    folder: Path
    name: str
    paper: str
    of: str
    question: str
    size: str
    seconds: float
    claims: list[Claim]
    learned: list[str]
    tables: list[str]
    figures: list[str]

    def table(self, name: str) -> pd.DataFrame:
        path = self.folder / f"{name}.csv"
        try:
            return pd.read_csv(BytesIO(read_bytes(path, self.remedy)))
        except ValueError as error:  # pandas' own errors are ValueErrors
            raise ArmillaryError(f"{path} is not a table ({brief(error)})", advice=self.remedy) from error

    def figure(self, name: str) -> go.Figure:
        path = self.folder / f"{name}.json"
        record = read_record(path, FigureRecord, self.remedy)
        try:
            return go.Figure(record)
        except (ValueError, TypeError) as error:
            raise ArmillaryError(f"{path} is not a figure ({brief(error)})", advice=self.remedy) from error

    @property
    def remedy(self) -> str:
        """The advice for files that cannot be read."""
        return f"`armillary experiment run {self.folder.name}` writes them again"


def run(experiment: Experiment, settings: Settings, out: Path) -> Result:
    """Run the experiment and write OUT/NAME; replaces an older folder only when the new one is complete."""
    start = time.perf_counter()
    outcome = experiment.run(settings)
    return write(experiment, settings, outcome, out, time.perf_counter() - start)


def write(experiment: Experiment, settings: Settings, outcome: Outcome, out: Path, seconds: float) -> Result:
    """Write the outcome to OUT/NAME."""
    record = {
        "name": experiment.name,
        "paper": experiment.paper,
        "of": experiment.of,
        "question": experiment.question,
        "size": settings.size,
        "seconds": round(seconds, 1),
        "claims": [asdict(claim) for claim in outcome.claims],
        "learned": outcome.learned,
        "tables": list(outcome.tables),
        "figures": list(outcome.figures),
        "versions": versions(),
    }
    with whole_folder(out / experiment.name) as partial:
        for name, table in outcome.tables.items():
            write_atomically(partial / f"{name}.csv", table.to_csv(index=False).encode())
        for name, figure in outcome.figures.items():
            write_atomically(partial / f"{name}.json", figure.to_json().encode())
        write_atomically(partial / "result.json", (json.dumps(record, indent=1) + "\n").encode())
    return read(out / experiment.name)


def read(folder: Path) -> Result:
    """Read a folder that `write` wrote."""
    recover(folder)
    remedy = f"`armillary experiment run {folder.name}` writes one"
    if not (folder / "result.json").is_file():
        raise ArmillaryError(f"{folder} holds no result", advice=remedy)
    record = read_record(folder / "result.json", ResultRecord, remedy)
    if record["name"] not in experiments():
        raise ArmillaryError(
            f"{folder / 'result.json'} is of {record['name']!r}, which is not an experiment", advice=remedy
        )
    for name in (*record["tables"], *record["figures"]):
        if Path(name).name != name:
            raise ArmillaryError(f"{folder / 'result.json'} names {name!r}, which is outside its folder", advice=remedy)
    claims = [Claim(**claim) for claim in record["claims"]]
    names = ("name", "paper", "of", "question", "size", "seconds", "learned", "tables", "figures")
    return Result(folder=folder, claims=claims, **{name: record[name] for name in names})


def read_all(out: Path) -> list[Result]:
    """Every result in a folder, in the order of the papers."""
    for name in experiments():
        recover(out / name)
    return [read(out / name) for name in experiments() if (out / name / "result.json").is_file()]
