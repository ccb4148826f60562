"""The folder of a finished experiment: result.json, a CSV per table, a JSON per figure; written whole or not at all."""

import json
import time
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypedDict

import pandas as pd
import plotly.graph_objects as go

from armillary.errors import ArmillaryError, brief
from armillary.experiments.experiment import Claim, Experiment, Outcome, Settings, experiments
from armillary.files import recover, whole_folder, write_atomically
from armillary.records import read_bytes, read_record
from armillary.verified import versions


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
    """What a finished experiment wrote."""

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
            raise ArmillaryError(f"{path} is not a table ({brief(error)}): {self.remedy}") from error

    def figure(self, name: str) -> go.Figure:
        path = self.folder / f"{name}.json"
        kept = read_record(path, FigureRecord, self.remedy)
        try:
            return go.Figure(kept)
        except (ValueError, TypeError) as error:
            raise ArmillaryError(f"{path} is not a figure ({brief(error)}): {self.remedy}") from error

    @property
    def remedy(self) -> str:
        """What to do about files that cannot be read."""
        return f"`armillary experiment run {self.folder.name}` writes them anew"


def run(experiment: Experiment, settings: Settings, out: Path) -> Result:
    """Run it and write OUT/NAME; a folder of that name is replaced when the new one is whole."""
    start = time.perf_counter()
    outcome = experiment.run(settings)
    return write(experiment, settings, outcome, out, time.perf_counter() - start)


def write(experiment: Experiment, settings: Settings, outcome: Outcome, out: Path, seconds: float) -> Result:
    """The outcome as a folder."""
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
    with whole_folder(out / experiment.name) as part:
        for name, table in outcome.tables.items():
            write_atomically(part / f"{name}.csv", table.to_csv(index=False).encode())
        for name, figure in outcome.figures.items():
            write_atomically(part / f"{name}.json", figure.to_json().encode())
        write_atomically(part / "result.json", (json.dumps(record, indent=1) + "\n").encode())
    return read(out / experiment.name)


def read(folder: Path) -> Result:
    """A folder that `write` wrote."""
    recover(folder)
    remedy = f"`armillary experiment run {folder.name}` writes one"
    if not (folder / "result.json").is_file():
        raise ArmillaryError(f"{folder} holds no result: {remedy}")
    kept = read_record(folder / "result.json", ResultRecord, remedy)
    if kept["name"] not in experiments():
        raise ArmillaryError(f"{folder / 'result.json'} is of {kept['name']!r}, which is no experiment: {remedy}")
    for name in (*kept["tables"], *kept["figures"]):
        if Path(name).name != name:
            raise ArmillaryError(f"{folder / 'result.json'} names {name!r}, which lies outside of its folder: {remedy}")
    claims = [Claim(**claim) for claim in kept["claims"]]
    names = ("name", "paper", "of", "question", "size", "seconds", "learned", "tables", "figures")
    return Result(folder=folder, claims=claims, **{name: kept[name] for name in names})


def read_all(out: Path) -> list[Result]:
    """Every result in a folder, in the order of the papers."""
    for name in experiments():
        recover(out / name)
    return [read(out / name) for name in experiments() if (out / name / "result.json").is_file()]
