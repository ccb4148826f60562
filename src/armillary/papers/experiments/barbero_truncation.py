"""Barbero's Section 6.1 on trained models: the loss when slow or fast frequencies are frozen, without retraining."""

from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go
import torch

from armillary.anatomy.loading import load
from armillary.figures.rotary import sweep_curves
from armillary.papers.experiments.barbero_frequencies import PAPER as PAPER_SCANS
from armillary.papers.experiments.barbero_frequencies import SMALL as SMALL_SCANS
from armillary.papers.experiments.barbero_frequencies import scanned, short
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, Verdict, ordered
from armillary.papers.experiments.material import models
from armillary.probe.sweep import sweep

HARMLESS = 0.01
"""Freezing frequencies does no harm if the loss rises by at most this share."""


@dataclass(frozen=True)
class Truncation:
    """The fractions p of frequencies that are not frozen."""

    p: tuple[float, ...]


SMALL = Truncation((1.0, 0.75, 0.5, 0.25, 0.0))
PAPER = Truncation((1.0, 0.9, 0.75, 0.5, 0.25, 0.1, 0.0))


def truncation(settings: Settings) -> Outcome:
    """The loss of trained models with the slowest or the fastest frequencies frozen."""
    chosen = SMALL if settings.small else PAPER
    atlases = scanned(settings)
    places = models(settings, SMALL_SCANS.models, PAPER_SCANS.models)
    rows, claims, learned = [], [], []
    figures: dict[str, go.Figure] = {}
    for name, atlas in atlases.items():
        swept = sweep(
            load(places[name], **{"dtype": torch.float32, **settings.loading_for(places[name])}), atlas, "p", chosen.p
        )
        rows.append(swept.table.assign(model=name))
        if len(figures) < 2:
            figures[short(name)] = sweep_curves("p", swept.table).update_layout(
                title_text=f"{name}: frequencies stopped from the slow end, and from the fast end"
            )
        fast = dict(zip(swept.table["p"], swept.table["loss"], strict=True))
        slow = dict(zip(swept.table["p"], swept.table["reversed_loss"], strict=True))
        claims += _claims(name, float(fast[1.0]), float(fast[0.75]), float(slow[0.75]))
        advised = swept.recommended
        learned.append(
            f"Without training again, {name} keeps 99% of its logits with p = {advised.p:.2f} ({advised.kept} of "
            f"{advised.frequencies} frequencies turning); its loss is {fast[1.0]:.3f} with all frequencies, "
            f"{fast[0.5]:.3f} with the fastest half turning, {slow[0.5]:.3f} with "
            f"the slowest half, {fast[0.0]:.3f} with none."
        )
    return Outcome({"losses": pd.concat(rows, ignore_index=True).round(5)}, figures, claims, learned)


def _claims(name: str, unchanged: float, slow: float, fast: float) -> list[Claim]:
    """From the loss with all frequencies, with the slowest quarter frozen, and with the fastest frozen."""
    risen = slow / unchanged - 1
    verdict: Verdict = "same direction" if risen <= HARMLESS else "differs"
    why = "" if risen <= HARMLESS else "the paper trains with them stopped, here they stop after training"
    return [
        Claim(
            f"{name}: stopping the slowest quarter of the frequencies does no harm (the loss rises by less than "
            f"{HARMLESS:.0%})",
            "should not harm performance (Section 6.1)",
            f"{slow:.4g} against {unchanged:.4g} ({risen:+.1%})",
            verdict,
            why,
        ),
        ordered(
            f"{name}: stopping the fastest quarter costs more than stopping the slowest (nats per token)",
            fast,
            slow,
            printed="perplexity 4.4592 against 4.4414, each trained from scratch (Table 2, Wiki)",
            digits=4,
        ),
    ]


EXPERIMENTS = (
    Experiment(
        name="barbero-truncation",
        paper="Barbero",
        of="Section 6.1",
        question="What does a trained model lose when its slow, or its fast, frequencies stop turning?",
        run=truncation,
        minutes=1.0,
        needs="google/gemma-7b and meta-llama/Llama-3.1-8B on lines of Shakespeare",
    ),
)
