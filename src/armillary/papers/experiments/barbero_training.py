"""Barbero's Table 2: position schemes trained from scratch, the same seeds and batches for all of them."""

from dataclasses import dataclass, replace
from math import exp, log, sqrt
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Integer

from armillary.anatomy.loading import load
from armillary.anatomy.modes import one_thread
from armillary.figures.style import styled
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, ordered, sized
from armillary.papers.experiments.material import corpora, trained
from armillary.text.names import folder_names
from armillary.training.config import DataConfig, ModelConfig, MonitorConfig, RunConfig
from armillary.training.data import read_text
from armillary.training.loop import TrainSettings, mean_loss
from armillary.training.runs import read_run


@dataclass(frozen=True)
class Schemes:
    """How the models of Table 2 are trained.

    The base is scaled with the length, so that the slowest frequency rotates as far within a text as with base 10000 on
    the paper's 8192 tokens; otherwise freezing frequencies would have no effect.
    longer: held-out text is also read in windows of this many times the trained length.
    """

    shape: ModelConfig
    training: TrainSettings
    corpora: tuple[str, ...]
    tokenizer: str
    seeds: tuple[int, ...]
    longer: int
    documents: int | None = None


SMALL = Schemes(
    shape=ModelConfig(layers=2, heads=2, width=64),
    training=TrainSettings(steps=500, batch=8, length=128, learning_rate=3e-3, warmup=50, checkpoint_every=100),
    corpora=("shared:corpora/wikitext2-tokenized-valid.txt", "builtin:prose"),
    tokenizer="bundled",
    seeds=(0, 1, 2),
    longer=4,
)
PAPER = Schemes(
    shape=ModelConfig(layers=18, heads=8, kv_heads=1, width=2048, mlp=16384),
    training=TrainSettings(steps=10_000, batch=512, length=8192, learning_rate=3e-4, warmup=1000),
    corpora=("hf:wikimedia/wikipedia:20231101.en:train:text",),
    tokenizer="google/gemma-2b",
    seeds=(0, 1, 2),
    longer=4,
)
CONTEXT = 8192
"""The context of Gemma 2B, for which the bases 10000 and 500000 were chosen."""

PRINTED = {
    "NoPE": (4.8594, 6.6429),
    "RoPE 10k": (4.4627, 6.4429),
    "RoPE 500k": (4.4485, 6.4593),
    "0.75-RoPE reversed": (4.4592, 6.4683),
    "0.75-RoPE partial": (4.4537, 6.4562),
    "0.25-RoPE": (4.5302, 6.5111),
    "0.75-RoPE": (4.4414, 6.4422),
}
"""Table 2: validation perplexity on Wiki and on FlanV2."""

WORSE_BETTER = (
    ("NoPE", "RoPE 10k", "a model without positions is worse than RoPE"),
    ("NoPE", "0.25-RoPE", "a quarter of the frequencies is still better than none"),
    ("0.25-RoPE", "RoPE 10k", "truncating too many frequencies harms"),
    ("RoPE 10k", "0.75-RoPE", "truncating the slowest quarter improves on RoPE"),
    ("RoPE 500k", "0.75-RoPE", "truncating the slowest quarter is better than a larger base"),
    ("0.75-RoPE reversed", "0.75-RoPE", "it is the slow frequencies that should be removed, not the fast ones"),
    ("0.75-RoPE partial", "0.75-RoPE", "p-RoPE is better than partial RoPE"),
    ("RoPE 10k", "RoPE 500k", "a larger base is better on Wiki"),
)
"""Which scheme Table 2 says is worse than which, on Wiki."""


def shapes(schemes: Schemes) -> dict[str, ModelConfig]:
    """The model of every scheme, by its name in the table."""
    scale = schemes.training.length / CONTEXT
    plain = replace(schemes.shape, base=10_000 * scale)
    return {
        "NoPE": replace(schemes.shape, position="none"),
        "RoPE 10k": replace(plain, position="rope"),
        "RoPE 500k": replace(plain, position="rope", base=500_000 * scale),
        "0.75-RoPE reversed": replace(plain, position="reversed", fraction=0.75),
        "0.75-RoPE partial": replace(plain, position="partial", fraction=0.75),
        "0.25-RoPE": replace(plain, position="p-rope", fraction=0.25),
        "0.75-RoPE": replace(plain, position="p-rope", fraction=0.75),
    }


def position_schemes(settings: Settings) -> Outcome:
    """Train every scheme with every seed and compare held-out losses, seed by seed."""
    schemes = SMALL if settings.small else PAPER
    texts = corpora(settings, schemes.corpora, schemes.corpora)
    name, text = next(iter(texts.items()))
    with one_thread():
        losses = trained_losses(settings, schemes, text)
    return compared(losses, schemes, name)


def trained_losses(settings: Settings, schemes: Schemes, text: str) -> pd.DataFrame:
    """A row for every run: scheme, seed, base, loss on held-out text at the trained length and at longer windows."""
    rows = []
    short = folder_names([text])[0]
    held_out = None
    for seed in schemes.seeds:
        for scheme, shape in shapes(schemes).items():
            config = RunConfig(
                model=shape,
                data=DataConfig(corpus=text, tokenizer=schemes.tokenizer, documents=schemes.documents),
                training=replace(schemes.training, seed=seed),
                monitor=MonitorConfig(every=max(1, schemes.training.steps // 5)),
            )
            name = f"barbero-{settings.size}-{short}-{scheme.replace(' ', '-')}-{seed}"
            folder = trained(settings, name, config)
            held_out = read_text(config).held_out if held_out is None else held_out
            finished = read_run(folder).result
            assert finished is not None
            longer = schemes.longer * schemes.training.length
            rows.append(
                {
                    "scheme": scheme,
                    "seed": seed,
                    "base": shape.base if scheme != "NoPE" else np.nan,
                    "loss": finished["held_out_loss"],
                    "longer_loss": _longer_loss(settings, folder / "model", held_out, longer),
                }
            )
    return pd.DataFrame(rows)


def _longer_loss(settings: Settings, model: Path, held_out: Integer[np.ndarray, "token"], length: int) -> float:
    """The loss in windows that are longer than those of the training."""
    return mean_loss(load(model, **settings.loading_for(model)), held_out, length, batch=4)


def compared(losses: pd.DataFrame, schemes: Schemes, text: str) -> Outcome:
    """Means with standard errors, and the table's claims as differences within seeds."""
    claims = [_worse(losses, *pair) for pair in WORSE_BETTER]
    gap, error = difference(losses, "NoPE", "RoPE 10k")
    printed_gap = log(PRINTED["NoPE"][0] / PRINTED["RoPE 10k"][0])
    why = "a model of another size, little trained, on little text"
    claims.append(
        sized(
            "what NoPE loses to RoPE, in nats per token",
            printed_gap,
            gap,
            error=error,
            place="Table 2, Wiki",
            why=why,
            signed=True,
        )
    )
    table = summary(losses)
    return Outcome(
        tables={"position_schemes": table, "runs": losses.round(5)},
        figures={"losses": _losses(losses, schemes, text)},
        claims=claims,
        learned=_learned(losses, schemes),
    )


def summary(losses: pd.DataFrame) -> pd.DataFrame:
    """A row for every scheme: mean loss with its standard error, perplexity, and the difference from RoPE."""
    rows = []
    for scheme, group in losses.groupby("scheme", sort=False):
        gap, error = difference(losses, str(scheme), "RoPE 10k")
        longer, longer_error = difference(losses, str(scheme), "RoPE 10k", "longer_loss")
        rows.append(
            {
                "scheme": scheme,
                "base": group["base"].iloc[0],
                "seeds": len(group),
                "loss": group["loss"].mean(),
                "loss_error": group["loss"].std(ddof=1) / sqrt(len(group)),
                "perplexity": exp(group["loss"].mean()),
                "above_rope": gap,
                "above_rope_error": error,
                "longer_loss": group["longer_loss"].mean(),
                "longer_above_rope": longer,
                "longer_above_rope_error": longer_error,
                "printed_wiki": PRINTED[str(scheme)][0],
                "printed_flan": PRINTED[str(scheme)][1],
            }
        )
    return pd.DataFrame(rows)


def difference(losses: pd.DataFrame, one: str, other: str, column: str = "loss") -> tuple[float, float]:
    """Mean over seeds of one scheme's loss minus the other's, and its standard error sqrt(2 s^2 / seeds).

    Runs of a seed share initial weights and batches, so the effect of the seed cancels. s^2 is the remaining variance,
    pooled over all schemes, since a few seeds of two schemes give no reliable error.
    """
    wide = losses.pivot(index="seed", columns="scheme", values=column)
    seeds, schemes = wide.shape
    values = wide.to_numpy()
    residual = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    variance = np.square(residual).sum() / max(1, (seeds - 1) * (schemes - 1))
    gap = float((wide[one] - wide[other]).mean())
    return gap, float(sqrt(2 * variance / seeds)) if one != other and seeds > 1 else 0.0


def _worse(losses: pd.DataFrame, worse: str, better: str, says: str) -> Claim:
    _, error = difference(losses, worse, better)
    means = losses.groupby("scheme")["loss"].mean()
    printed_gap = log(PRINTED[worse][0] / PRINTED[better][0])
    printed = f"perplexity {PRINTED[worse][0]} against {PRINTED[better][0]}, {printed_gap:.4f} nats (Table 2, Wiki)"
    seeds = losses["seed"].nunique()
    return ordered(
        f"{says} ({worse} loses more than {better})",
        float(means[worse]),
        float(means[better]),
        error=error,
        printed=printed,
        why=f"a small model on short texts, {seeds} seeds; the paper prints one run of each and no error",
        digits=5,
    )


def _losses(losses: pd.DataFrame, schemes: Schemes, text: str) -> go.Figure:
    """Each scheme's loss minus RoPE's of the same seed, at the trained length and beyond."""
    table = summary(losses)
    table = table[table["scheme"] != "RoPE 10k"].iloc[::-1]
    figure = go.Figure()
    length = schemes.training.length
    for column, label, color in (
        ("above_rope", f"{length} tokens, as trained", "#3b528b"),
        ("longer_above_rope", f"{schemes.longer * length} tokens", "#5ec962"),
    ):
        figure.add_scatter(
            x=table[column],
            y=table["scheme"],
            error_x=dict(array=2 * table[f"{column}_error"]),
            mode="markers",
            marker=dict(size=9, color=color),
            name=label,
        )
    printed = [log(PRINTED[name][0] / PRINTED["RoPE 10k"][0]) for name in table["scheme"]]
    figure.add_scatter(
        x=printed,
        y=table["scheme"],
        mode="markers",
        name="Table 2, Wiki",
        marker=dict(symbol="x", color="#888", size=9),
    )
    figure.add_vline(x=0, line_width=1, line_color="#888")
    figure.update_xaxes(title="held-out loss above RoPE 10k, nats per token (bars: two standard errors over seeds)")
    figure.update_yaxes(title="scheme")
    return styled(figure, f"Position schemes trained from scratch on {Path(text).name}: right of the line is worse")


def _learned(losses: pd.DataFrame, schemes: Schemes) -> list[str]:
    gap, error = difference(losses, "0.75-RoPE", "RoPE 10k", "longer_loss")
    quarter, quarter_error = difference(losses, "0.25-RoPE", "RoPE 10k", "longer_loss")
    nope, nope_error = difference(losses, "NoPE", "RoPE 10k", "longer_loss")
    bases = losses.groupby("scheme")["base"].first()
    return [
        f"In windows of {schemes.longer} times the trained length, which the paper leaves to later work, the loss "
        f"above RoPE 10k is {gap:+.3f} ± {error:.3f} nats for 0.75-RoPE, {quarter:+.3f} ± {quarter_error:.3f} for "
        f"0.25-RoPE and {nope:+.3f} ± {nope_error:.3f} for NoPE. (Bases are scaled with the trained length of "
        f"{schemes.training.length} tokens: 'RoPE 10k' has base {bases['RoPE 10k']:.0f}, 'RoPE 500k' "
        f"{bases['RoPE 500k']:.0f}.)"
    ]


EXPERIMENTS = (
    Experiment(
        name="barbero-position-schemes",
        paper="Barbero",
        of="Table 2",
        question="Is a model trained with the slowest rotary frequencies stopped better than with all or none of them?",
        run=position_schemes,
        minutes=13.0,
        needs="Gemma 2B's shape from scratch (tokenizer google/gemma-2b) on hf:wikimedia/wikipedia, 10000 steps of "
        "512 x 8192 tokens for each of 7 schemes and 3 seeds",
    ),
)
