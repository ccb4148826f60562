"""Read training runs from their folders, and compare them in a table."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from armillary.errors import ArmillaryError
from armillary.training.config import POSITIONS, from_dict
from armillary.training.run_files import read_log, read_result, read_settings

ATTENTION = ("entropy", "eigen_mean", "eigen_scale", "rho", "largest_logit")
MEASURES = ("held_out_loss", "perplexity", *ATTENTION)
"""The columns of a run's table whose spread over seeds is shown."""


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
        name=folder.name if not folder.name.startswith("seed-") else f"{folder.parent.name}/{folder.name}",
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


def _model_columns(model: dict[str, Any]) -> dict[str, Any]:
    """What the table says about the model: its shape, or the model that it continues from."""
    changed = {name: model[name] for name in ("norm", "kv_heads", "base") if model[name] not in (None, "pre", 10_000.0)}
    if model["from"] is not None:
        return {"from": model["from"], "position": model["position"], "fraction": model["fraction"], **changed}
    shape = {name: model[name] for name in ("layers", "heads", "width")}
    position = model["position"] or POSITIONS[model["family"]][0]
    return {"family": model["family"], "position": position, "fraction": model["fraction"], **shape, **changed}


def spread(table: pd.DataFrame) -> pd.DataFrame:
    """Mean, standard deviation (n - 1) and standard error of the measures over the finished runs of a table."""
    finished = table[table["finished"]] if len(table) else table
    measures = [name for name in MEASURES if name in finished]
    values = finished[measures].astype(float)
    rows = {
        "mean": values.mean(),
        "standard deviation": values.std(ddof=1),
        "standard error": values.sem(ddof=1),
    }
    return pd.DataFrame([{"over seeds": name, "runs": len(finished), **part.to_dict()} for name, part in rows.items()])


def side_by_side(runs: list[RunHistory]) -> pd.DataFrame:
    """A row for every run: settings, steps done, losses, and its last attention summary."""
    rows = []
    for run in runs:
        model, regularizer = run.config["model"], run.config["regularizer"]
        row: dict[str, Any] = {
            "run": run.name,
            **_model_columns(model),
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
            row |= {name: float("nan" if last[name] is None else last[name]) for name in ATTENTION if name in last}
        rows.append(row)
    return pd.DataFrame(rows)
