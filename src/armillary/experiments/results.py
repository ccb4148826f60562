"""The folder of a finished experiment: result.json, a CSV per table, a JSON per figure; written whole or not at all."""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import plotly.io

from armillary.errors import ArmillaryError
from armillary.experiments.experiment import Claim, Experiment, Outcome, Settings
from armillary.files import recover, whole_folder, write_atomically
from armillary.verified import versions


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
        return pd.read_csv(self.folder / f"{name}.csv")

    def figure(self, name: str) -> go.Figure:
        return plotly.io.from_json((self.folder / f"{name}.json").read_text(encoding="utf-8"))


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
    try:
        kept: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArmillaryError(
            f"{folder} holds no result: `armillary experiment run {folder.name}` writes one"
        ) from error
    claims = [Claim(**claim) for claim in kept.pop("claims")]
    kept.pop("versions")
    return Result(folder=folder, claims=claims, **kept)


def read_all(out: Path) -> list[Result]:
    """Every result in a folder, in the order of the papers."""
    from armillary.experiments.experiment import experiments

    for name in experiments():
        recover(out / name)
    return [read(out / name) for name in experiments() if (out / name / "result.json").is_file()]
