"""Read training runs from their folders, and compare them in a table."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from armillary.errors import ArmillaryError
from armillary.training.config import POSITIONS, from_dict
from armillary.training.run_files import read_log, read_result, read_settings


@dataclass(frozen=True)
class RunHistory:
    """A run's settings, its logs (a row per step, a row per snapshot), and its result if it has finished."""

    name: str
    config: dict[str, Any]
    loss: pd.DataFrame
    attention: pd.DataFrame
    result: dict[str, Any] | None


def read_run(folder: Path) -> RunHistory:
    """The run in a folder that `armillary train` wrote, finished or not."""
    record = folder / "run.json"
    if not record.is_file():
        raise ArmillaryError(f"{folder} is not a training run", advice="`armillary train CONFIG.toml` writes one")
    try:
        config = from_dict(read_settings(folder)).as_dict()
    except ArmillaryError as error:
        raise ArmillaryError(f"the run in {folder} cannot be read: {error}") from error
    return RunHistory(
        name=folder.name,
        config=config,
        loss=pd.DataFrame(list(read_log(folder, "loss.jsonl"))),
        attention=_summaries(folder),
        result=read_result(folder) if (folder / "result.json").is_file() else None,
    )


def _summaries(folder: Path) -> pd.DataFrame:
    """The summaries of the monitor, without the values by head and layer."""
    left_out = ("heads", "layers", "warnings")
    rows = read_log(folder, "attention.jsonl")
    return pd.DataFrame([{name: value for name, value in row.items() if name not in left_out} for row in rows])


def side_by_side(runs: list[RunHistory]) -> pd.DataFrame:
    """A row for every run: settings, steps done, losses, and its last attention summary."""
    rows = []
    for run in runs:
        model, regularizer = run.config["model"], run.config["regularizer"]
        row: dict[str, Any] = {
            "run": run.name,
            "family": model["family"],
            "position": model["position"] or POSITIONS[model["family"]][0],
            "fraction": model["fraction"],
            "layers": model["layers"],
            "heads": model["heads"],
            "width": model["width"],
            "regularizer": regularizer["kind"],
            **(
                {"scale": regularizer["scale"], "mean": regularizer["mean"], "target": str(regularizer["target"])}
                if regularizer["kind"] == "locater"
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
            row |= {name: float("nan" if last[name] is None else last[name]) for name in measures if name in last}
        rows.append(row)
    return pd.DataFrame(rows)
