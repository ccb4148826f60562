"""The models that Bao's Figures 6 to 12 train: one head a layer, with and without LocAteR, several seeds."""

import hashlib
import json
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

import pandas as pd

from armillary.experiments.experiment import Settings
from armillary.experiments.material import corpora, trained
from armillary.modes import one_thread
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

NONE, SCALE_ONLY, LOCATER, LOCALISING = "none", "kappa2 = 0", "kappa2 = 1", "target 5 lambda"


def _locater(kappa1: float, kappa2: float, target: float | str = 1.0) -> dict[str, Any]:
    return {"kind": "locater", "scale": kappa1, "mean": kappa2, "target": target}


PENALTIES: dict[str, dict[str, Any]] = {
    NONE: {"kind": "none"},
    SCALE_ONLY: _locater(100.0, 0.0),
    "kappa2 = 0.001": _locater(100.0, 0.001),
    "kappa2 = 0.01": _locater(100.0, 0.01),
    "kappa2 = 0.1": _locater(100.0, 0.1),
    LOCATER: _locater(100.0, 1.0),
    LOCALISING: _locater(1.0, 1.0, "localise"),
}
"""The paper's (kappa1 = 100, target 1), and one whose target does localise by the paper's own law (LEDGER L30, L31)."""


@dataclass(frozen=True)
class Plan:
    """What is trained, and how: the paper's settings, or few steps at a higher rate."""

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

    def steps_of(self, shape: Shape) -> int:
        return self.fewer.get(shape, self.steps)


SMALL = Plan(
    corpora=("shared:corpora/wikitext2-tokenized-valid.txt", "builtin:prose"),
    penalties=(NONE, SCALE_ONLY, LOCATER, LOCALISING),
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
)
NEEDS = "WikiText-2 (hf:Salesforce/wikitext), trained from scratch with our tokenizer and norms before attention"


def plan_of(settings: Settings) -> Plan:
    return SMALL if settings.small else PAPER


def run_config(
    settings: Settings, plan: Plan, shape: Shape, penalty: str, seed: int, steps: int | None = None
) -> RunConfig:
    """One run, without schedule or clipping as in the paper: its first n steps are the run of n steps."""
    layers, width = shape
    rate = plan.rates.get(width, min(plan.rates.values()))
    steps = plan.steps_of(shape) if steps is None else steps
    return from_dict(
        {
            "model": dict(family="gpt2", layers=layers, heads=1, width=width, mlp=width),
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
                seed=seed,
                checkpoint_every=max(1, min(steps, 1000)),
            ),
            "regulariser": PENALTIES[penalty],
            "monitor": dict(every=plan.every),
        }
    )


@one_thread()
def train_one(settings: Settings, shape: Shape, penalty: str, seed: int, config: RunConfig) -> Path:
    """Its folder, named by what it is and by all its settings, so that another text or size is another run."""
    key = hashlib.sha256(json.dumps(config.as_dict(), sort_keys=True).encode()).hexdigest()[:8]
    words = penalty.replace(" = ", "").replace(" ", "-")
    return trained(settings, f"bao-{shape[0]}x{shape[1]}-{words}-{seed}-{key}", config)


@dataclass(frozen=True)
class Trained:
    """A finished run and what it is."""

    shape: Shape
    penalty: str
    seed: int
    folder: Path
    history: RunHistory


def train_all(settings: Settings, plan: Plan, shapes: tuple[Shape, ...], penalties: tuple[str, ...]) -> list[Trained]:
    """Every shape with every penalty and seed; those that are finished are read."""
    found = []
    for shape in shapes:
        for penalty in penalties:
            for seed in range(plan.seeds):
                config = run_config(settings, plan, shape, penalty, seed)
                folder = train_one(settings, shape, penalty, seed, config)
                found.append(Trained(shape, penalty, seed, folder, read_run(folder)))
    return found


def ends(runs: list[Trained]) -> pd.DataFrame:
    """A row for every run: where its loss, entropy, eigenspectrum and rho ended; r = tr(W) / lambda of one head."""
    kept = ("steps", "held_out_loss", "perplexity", "entropy", "eigen_mean", "eigen_scale", "rho", "largest_logit")
    rows = []
    for run in runs:
        last = side_by_side([run.history]).iloc[0]
        layers, width = run.shape
        row: dict[str, Any] = {"layers": layers, "width": width, "penalty": run.penalty, "seed": run.seed}
        row |= {name: float(last[name]) for name in kept}
        rows.append(row | {"r": float(last["eigen_mean"]) * sqrt(width)})
    return pd.DataFrame(rows)


def over_time(runs: list[Trained], measure: str) -> pd.DataFrame:
    """step, mean and standard error over the seeds of one measure, for every shape and penalty."""
    parts = []
    for run in runs:
        table = run.history.loss if measure == "held_out" else run.history.attention
        part = table[["step", measure]].dropna()
        parts.append(part.assign(layers=run.shape[0], width=run.shape[1], penalty=run.penalty))
    grouped = pd.concat(parts).groupby(["layers", "width", "penalty", "step"], sort=False)[measure]
    return grouped.agg(["mean", "sem"]).reset_index()
