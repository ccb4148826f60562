"""Training runs read back from their folders, and put side by side."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from armillary.errors import ArmillaryError
from armillary.training.config import POSITIONS, from_dict


@dataclass(frozen=True)
class RunHistory:
    """A run's settings, what it logged (a row per step and per look), and its result where it is finished."""

    name: str
    config: dict[str, Any]
    loss: pd.DataFrame
    attention: pd.DataFrame
    result: dict[str, Any] | None


def read_run(folder: Path) -> RunHistory:
    """The run in a folder that `armillary train` wrote, finished or not."""
    record = folder / "run.json"
    if not record.is_file():
        raise ArmillaryError(f"{folder} is not a training run: a run is what `armillary train CONFIG.toml` writes")
    result = folder / "result.json"
    try:
        config = from_dict(json.loads(record.read_text(encoding="utf-8"))).as_dict()
        finished = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else None
    except (ValueError, TypeError, ArmillaryError) as error:
        raise ArmillaryError(f"the run in {folder} cannot be read: {error}") from error
    return RunHistory(
        name=folder.name,
        config=config,
        loss=_lines(folder / "loss.jsonl"),
        attention=_lines(folder / "attention.jsonl").drop(columns=["heads", "layers", "warnings"], errors="ignore"),
        result=finished,
    )


def _lines(path: Path) -> pd.DataFrame:
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            row = json.loads(line)
        except ValueError:  # a run that is being written now
            break
        if isinstance(row, dict):
            rows.append(row)
    return pd.DataFrame(rows)


def side_by_side(runs: list[RunHistory]) -> pd.DataFrame:
    """A row for every run: what it is, how far it came, and where its attention ended."""
    rows = []
    for run in runs:
        model, regulariser = run.config["model"], run.config["regulariser"]
        row: dict[str, Any] = {
            "run": run.name,
            "family": model["family"],
            "position": model["position"] or POSITIONS[model["family"]][0],
            "fraction": model["fraction"],
            "layers": model["layers"],
            "heads": model["heads"],
            "width": model["width"],
            "regulariser": regulariser["kind"],
            **(
                {"scale": regulariser["scale"], "mean": regulariser["mean"], "target": str(regulariser["target"])}
                if regulariser["kind"] == "locater"
                else {}
            ),
            "seed": run.config["training"]["seed"],
            "steps": int(run.loss["step"].iloc[-1]) + 1 if len(run.loss) else 0,
            "finished": run.result is not None,
        }
        if run.result is not None:
            row |= {name: run.result[name] for name in ("held_out_loss", "perplexity")}
            row["warnings"] = len(run.result["warnings"])
        elif "held_out" in run.loss:
            row["held_out_loss"] = float(run.loss["held_out"].dropna().iloc[-1])
        if len(run.attention):
            last = run.attention.iloc[-1]
            measures = ("entropy", "eigen_mean", "eigen_scale", "rho", "largest_logit")
            row |= {name: float(last[name]) for name in measures if name in last}
        rows.append(row)
    return pd.DataFrame(rows)
