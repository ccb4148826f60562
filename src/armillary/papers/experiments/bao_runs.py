"""Train the models of Bao's Figures 6 to 12: one head per layer, with and without LocAteR, several seeds."""

import hashlib
import json
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

import pandas as pd

from armillary.anatomy.modes import one_thread
from armillary.papers.experiments.experiment import Settings
from armillary.papers.experiments.material import corpora, trained
from armillary.training.config import RunConfig, from_dict
from armillary.training.runs import RunHistory, read_run, side_by_side

Shape = tuple[int, int]
"""Layers and width."""
FIGURES: dict[Shape, str] = {
    (1, 128): "Figure 6",
    (1, 32): "Figure 8",
    (3, 32): "Figure 9",
    (6, 32): "Figure 10",
    (3, 128): "Figure 11",
    (6, 128): "Figure 12",
}

NONE, SCALE_ONLY, LOCATER, LOCALIZING = "none", "kappa2 = 0", "kappa2 = 1", "target 5 lambda"


def _locater(kappa1: float, kappa2: float, target: float | str = 1.0) -> dict[str, Any]:
    return {"kind": "locater", "scale": kappa1, "mean": kappa2, "target": target}


PENALTIES: dict[str, dict[str, Any]] = {
    NONE: {"kind": "none"},
    SCALE_ONLY: _locater(100.0, 0.0),
    "kappa2 = 0.001": _locater(100.0, 0.001),
    "kappa2 = 0.01": _locater(100.0, 0.01),
    "kappa2 = 0.1": _locater(100.0, 0.1),
    LOCATER: _locater(100.0, 1.0),
    LOCALIZING: _locater(1.0, 1.0, "localize"),
}
"""The paper's (kappa1 = 100, target 1), and a target that localizes by its law (`armillary theory L30`, L31)."""


@dataclass(frozen=True)
class Plan:
    """Models and training: the paper's settings, or few steps at a higher rate."""

    corpora: tuple[str, ...]
    penalties: tuple[str, ...]
    rates: dict[int, float]
    steps: int
    batch: int
    every: int
    looks: tuple[int, ...]
    fewer: dict[Shape, int] = field(default_factory=dict)
    shapes: tuple[Shape, ...] = tuple(FIGURES)
    seeds: int = 3
    length: int = 64
    held_out: float = 0.05
    beta2: float = 0.95
    layout: dict[str, str] = field(default_factory=lambda: {"family": "gpt2"})

    def steps_of(self, shape: Shape) -> int:
        return self.fewer.get(shape, self.steps)


SMALL = Plan(
    corpora=("shared:corpora/wikitext2-tokenized-valid.txt", "builtin:prose"),
    penalties=(NONE, SCALE_ONLY, LOCATER, LOCALIZING),
    rates={32: 2e-3, 128: 2e-3},
    steps=300,
    batch=8,
    every=25,
    looks=(10, 30, 100),
    fewer={(3, 128): 150, (6, 128): 100},
)
PAPER = Plan(
    corpora=("hf:Salesforce/wikitext:wikitext-2-v1:train:text",),
    penalties=tuple(PENALTIES),
    rates={32: 1e-4, 128: 2.5e-5},
    steps=50_000,
    batch=64,
    every=500,
    looks=(100, 1_000, 5_000, 10_000, 25_000),
    beta2=0.999,
    layout={"family": "opt", "norm": "post", "position": "sinusoidal"},
)
NEEDS = "WikiText-2 (hf:Salesforce/wikitext), trained from scratch with our tokenizer, in float32"


def plan_of(settings: Settings) -> Plan:
    return SMALL if settings.small else PAPER


def run_config(
    settings: Settings, plan: Plan, shape: Shape, penalty: str, seed: int, steps: int | None = None
) -> RunConfig:
    """One run, without schedule or clipping as in the paper, so its first n steps equal a run of n steps."""
    layers, width = shape
    rate = plan.rates.get(width, min(plan.rates.values()))
    steps = plan.steps_of(shape) if steps is None else steps
    return from_dict(
        {
            "model": dict(**plan.layout, layers=layers, heads=1, width=width, mlp=width),
            "data": dict(
                corpus=next(iter(corpora(settings, plan.corpora, plan.corpora).values())), held_out=plan.held_out
            ),
            "training": dict(
                steps=steps,
                batch=plan.batch,
                length=plan.length,
                learning_rate=rate,
                final_rate=rate,
                warmup=0,
                weight_decay=0.01,
                clip=1e9,
                beta2=plan.beta2,
                seed=seed,
                checkpoint_every=max(1, min(steps, 1000)),
            ),
            "regularizer": PENALTIES[penalty],
            "monitor": dict(every=plan.every),
        }
    )


@one_thread()
def train_one(settings: Settings, shape: Shape, penalty: str, seed: int, config: RunConfig) -> Path:
    """The folder of a trained run; its name has a hash of all settings, so other settings are another run."""
    key = hashlib.sha256(json.dumps(config.as_dict(), sort_keys=True).encode()).hexdigest()[:8]
    penalty_name = penalty.replace(" = ", "").replace(" ", "-")
    return trained(settings, f"bao-{shape[0]}x{shape[1]}-{penalty_name}-{seed}-{key}", config)


@dataclass(frozen=True)
class Trained:
    """A finished run with its shape, penalty and seed."""

    shape: Shape
    penalty: str
    seed: int
    folder: Path
    history: RunHistory


def train_all(settings: Settings, plan: Plan, shapes: tuple[Shape, ...], penalties: tuple[str, ...]) -> list[Trained]:
    """Train every shape with every penalty and seed; finished runs are read from disk."""
    runs = []
    for shape in shapes:
        for penalty in penalties:
            for seed in range(plan.seeds):
                config = run_config(settings, plan, shape, penalty, seed)
                folder = train_one(settings, shape, penalty, seed, config)
                runs.append(Trained(shape, penalty, seed, folder, read_run(folder)))
    return runs


def ends(runs: list[Trained]) -> pd.DataFrame:
    """A row for every run: final loss, entropy, eigenspectrum and rho; r = tr(W) / lambda of one head."""
    columns = ("steps", "held_out_loss", "perplexity", "entropy", "eigen_mean", "eigen_scale", "rho", "largest_logit")
    rows = []
    for run in runs:
        last = side_by_side([run.history]).iloc[0]
        layers, width = run.shape
        row: dict[str, Any] = {"layers": layers, "width": width, "penalty": run.penalty, "seed": run.seed}
        row |= {name: float(last[name]) for name in columns}
        rows.append(row | {"r": float(last["eigen_mean"]) * sqrt(width)})
    return pd.DataFrame(rows)


def over_time(runs: list[Trained], measure: str) -> pd.DataFrame:
    """Mean and standard error of one measure over seeds, for every shape, penalty and step."""
    parts = []
    for run in runs:
        table = run.history.loss if measure == "held_out" else run.history.attention
        part = table[["step", measure]].dropna()
        parts.append(part.assign(layers=run.shape[0], width=run.shape[1], penalty=run.penalty))
    grouped = pd.concat(parts).groupby(["layers", "width", "penalty", "step"], sort=False)[measure]
    return grouped.agg(["mean", "sem"]).reset_index()
