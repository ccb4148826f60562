"""The folder of a finished experiment: result.json, a CSV per table, a JSON per figure; written whole or not at all."""

import json
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import plotly.io

from armillary.errors import ArmillaryError
from armillary.experiments.experiment import Claim, Experiment, Outcome, Settings
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
    folder, part = out / experiment.name, out / f".{experiment.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name, table in outcome.tables.items():
        table.to_csv(part / f"{name}.csv", index=False)
    for name, figure in outcome.figures.items():
        (part / f"{name}.json").write_text(figure.to_json(), encoding="utf-8")
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
    (part / "result.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    part.replace(folder)
    return read(folder)


def read(folder: Path) -> Result:
    """A folder that `write` wrote."""
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

    return [read(out / name) for name in experiments() if (out / name / "result.json").is_file()]
