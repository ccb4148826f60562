"""Training with and without LocAteR: one layer, width 32 and 128, three seeds. Writes bench/locater.json.

python bench/locater.py [FOLDER]: takes about 15 minutes on one core; runs that are finished in FOLDER are not repeated.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from armillary.training.config import from_dict
from armillary.training.run import train_run
from armillary.training.runs import read_run, side_by_side

PENALTIES = {
    "none": {"kind": "none"},
    "locater, target localize": {"kind": "locater", "scale": 0.1, "mean": 0.01},
    "locater, target 1": {"kind": "locater", "scale": 0.1, "mean": 0.01, "target": 1.0},
    "sigma-reparam": {"kind": "sigma-reparam"},
}
TRAINING = dict(steps=400, batch=16, length=128, warmup=40, learning_rate=2e-3, checkpoint_every=200)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rows = []
    for width in (32, 128):
        for name, penalty in PENALTIES.items():
            for seed in range(3):
                config = from_dict(
                    {
                        "model": dict(family="gpt2", layers=1, heads=1, width=width),
                        "regularizer": penalty,
                        "training": {**TRAINING, "seed": seed},
                        "monitor": dict(every=50),
                    }
                )
                place = folder / f"{width}-{name.replace(', ', '-').replace(' ', '-')}-{seed}"
                train_run(config, place)
                row = side_by_side([read_run(place)]).iloc[0]
                kept = ("held_out_loss", "perplexity", "entropy", "eigen_mean", "eigen_scale", "rho", "largest_logit")
                rows.append({"width": width, "penalty": name, "seed": seed, **{key: float(row[key]) for key in kept}})
                print(rows[-1], flush=True)
    Path(__file__).with_name("locater.json").write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(0 if holds(rows) else 1)


def holds(rows: list[dict[str, Any]]) -> bool:
    """With the printed target, in every pair of runs of one seed: the scale falls, and entropy rises."""
    runs = {(row["width"], row["seed"], row["penalty"]): row for row in rows}
    return all(
        runs[width, seed, "locater, target 1"]["eigen_scale"] < row["eigen_scale"]
        and runs[width, seed, "locater, target 1"]["entropy"] > row["entropy"]
        for (width, seed, penalty), row in runs.items()
        if penalty == "none"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp/locater-runs"))
