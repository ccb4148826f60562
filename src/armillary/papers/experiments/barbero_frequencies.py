"""Barbero's Figures 3, 4, 10, 11 and 13: which rotary frequencies layers and heads spend their norm on."""

from dataclasses import dataclass
from math import pi, sqrt
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Bool
from scipy.stats import spearmanr

from armillary.atlas.atlas import Atlas
from armillary.figures.rotary import frequencies_by_layer
from armillary.figures.style import styled
from armillary.lenses.rotary import bands, frequency_table
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, Verdict, limited, ordered
from armillary.papers.experiments.material import atlas_of, corpora, models

STREAMS = ("positions", "attention", "chunks", "constituents", "patterns")
SMALLER_MODEL = "small models of short texts; here 'fast' is a whole turn or more within the text"


@dataclass(frozen=True)
class Scans:
    """Models, text, number and length of sequences; the domains of Figure 19 have fewer."""

    models: tuple[str, ...]
    text: tuple[str, ...]
    domains: tuple[str, ...]
    length: int
    sequences: int
    domain_sequences: int


SMALL = Scans(
    models=("bundled-llama", "stories15M"),
    text=("builtin:prose",),
    domains=(
        *("builtin:code", "additions", "shared:corpora/tinyshakespeare.txt"),
        *("shared:corpora/topics/openwebtext", "shared:corpora/topics/github"),
    ),
    length=128,
    sequences=32,
    domain_sequences=16,
)
PAPER = Scans(
    models=("google/gemma-7b", "meta-llama/Llama-3.1-8B"),
    text=("shared:corpora/tinyshakespeare.txt",),
    domains=("builtin:prose", "builtin:code", "additions"),  # --corpus adds texts in Italian and Chinese
    length=2048,
    sequences=10,
    domain_sequences=10,
)
BANDS_BEGIN = 0.0006
"""Radians per token where the high-norm bands of Gemma 7B begin (Appendix C)."""


def scanned(settings: Settings) -> dict[str, Atlas]:
    """The atlas of every model, shared by the experiments of this paper."""
    chosen = SMALL if settings.small else PAPER
    text = next(iter(corpora(settings, chosen.text, chosen.text).values()))
    options = dict(length=chosen.length, sequences=chosen.sequences, streams=STREAMS)
    paths = models(settings, chosen.models, chosen.models)
    return {name: atlas_of(settings, path, text, **options) for name, path in paths.items()}


def frequencies(settings: Settings) -> Outcome:
    """Norms of the chunks of q, k and v by layer and head, slow frequencies against fast ones."""
    atlases = scanned(settings)
    tables = {name: frequency_table(atlas) for name, atlas in atlases.items()}
    heads = pd.concat([head_norms(tables[name], atlas).assign(model=name) for name, atlas in atlases.items()])
    layers = pd.concat([layer_norms(table).assign(model=name) for name, table in tables.items()])
    claims, learned = [], []
    for name, atlas in atlases.items():
        claims += _claims(name, tables[name], heads[heads["model"] == name], layers[layers["model"] == name], atlas)
        learned += [_band(name, atlas), _against_norms(name, heads[heads["model"] == name])]
    figures = {f"layers_{short(name)}": _by_layer(name, table) for name, table in list(tables.items())[:2]}
    return Outcome(
        tables={"layers": layers.round(4), "heads": heads.round(4)},
        figures={**figures, "heads": _by_head(heads)},
        claims=claims,
        learned=learned,
    )


def head_norms(table: pd.DataFrame, atlas: Atlas) -> pd.DataFrame:
    """A row for every head: mean chunk norms of slow and fast frequencies, the share of the fast ones, its label.

    fast_norm_share: of the sum of |q_f||k_f| over frequencies; fast_logit_share: of the logits themselves.
    """
    table = table[table["q_norm"].notna()]
    table = table.assign(fast=table["turns"] >= 1, product=table["q_norm"] * table["k_norm"])
    rows: list[dict[str, float | int]] = []
    for _, group in table.groupby(["layer", "head"]):
        row: dict[str, float | int] = {name: int(group[name].iloc[0]) for name in ("layer", "head")}
        for word, part in (("slow", group[~group["fast"]]), ("fast", group[group["fast"]])):
            row |= {f"{word}_{one}": float(part[f"{one}_norm"].mean()) for one in ("q", "k", "v")}
        row["fast_norm_share"] = float(group.loc[group["fast"], "product"].sum() / group["product"].sum())
        row["fast_logit_share"] = float(group.loc[group["fast"], "share"].sum())
        rows.append(row)
    columns = ["layer", "head", "label", "self_mass", "prev_mass", "first_mass", "share_mean_mean"]
    return pd.DataFrame(rows).merge(atlas.heads[columns], on=["layer", "head"])


def layer_norms(table: pd.DataFrame) -> pd.DataFrame:
    """A row for every layer: mean chunk norms of slow and fast frequencies of q, k and v (Figures 3, 10 and 13)."""
    table = table[table["q_norm"].notna()]
    columns: dict[str, "pd.Series[float]"] = {}
    for word, part in (("slow", table[table["turns"] < 1]), ("fast", table[table["turns"] >= 1])):
        means = part.groupby("layer")[["q_norm", "k_norm", "v_norm"]].mean()
        columns |= {f"{word}_{one}": means[f"{one}_norm"] for one in ("q", "k", "v")}
    return pd.DataFrame(columns).reset_index()


def _claims(name: str, table: pd.DataFrame, heads: pd.DataFrame, layers: pd.DataFrame, atlas: Atlas) -> list[Claim]:
    return [
        *_norm_claims(name, table, heads, layers),
        *_place_claims(name, heads),
        *_band_claims(name, table, bands(atlas)),
    ]


def _norm_claims(name: str, table: pd.DataFrame, heads: pd.DataFrame, layers: pd.DataFrame) -> list[Claim]:
    """Where queries and keys, and values, have their norm."""
    claims = []
    for part, word in (("q", "queries"), ("k", "keys")):
        gap = heads[f"slow_{part}"] - heads[f"fast_{part}"]
        claims.append(
            ordered(
                f"{name}: {word} have more norm on slow frequencies than on fast ones, mean chunk length over heads",
                float(heads[f"slow_{part}"].mean()),
                float(heads[f"fast_{part}"].mean()),
                error=float(gap.std(ddof=1) / sqrt(len(gap))),
                printed="much higher norm on the lowest frequencies (Figures 3 and 10)",
                why=SMALLER_MODEL,
            )
        )
    claims += [_slowest(name, table, part) for part in ("q", "k")]
    claims.append(_in_each_layer(name, (layers["slow_q"] > layers["fast_q"]).to_numpy()))
    ratio = {part: np.abs(np.log((heads[f"slow_{part}"] / heads[f"fast_{part}"]).to_numpy())) for part in "qv"}
    lead = ratio["q"] - ratio["v"]
    claims.append(
        ordered(
            f"{name}: values, which are not rotated, prefer no frequency: |log(slow/fast)| of queries above values",
            float(ratio["q"].mean()),
            float(ratio["v"].mean()),
            error=float(lead.std(ddof=1) / sqrt(len(lead))),
            printed="no clear pattern in the values (Figures 10 (c) and 13 (c))",
        )
    )
    return claims


def _place_claims(name: str, heads: pd.DataFrame) -> list[Claim]:
    """Which layers and heads use fast frequencies."""
    by_layer = heads.groupby("layer")["fast_norm_share"].mean()
    ends, middle = by_layer.iloc[[0, -1]], by_layer.iloc[1:-1]
    rank = float(spearmanr(heads["fast_norm_share"], heads["self_mass"] + heads["prev_mass"]).statistic)
    return [
        ordered(
            f"{name}: the first and last layers use fast frequencies most (share of |q||k|, against the other layers)",
            float(ends.mean()),
            float(middle.mean()),
            error=float(sqrt(middle.var(ddof=1) * (1 / len(ends) + 1 / len(middle)))),
            printed="especially at the very first and last layers (Figure 3)",
            why="few layers between the ends; the error is their spread",
        ),
        limited(
            f"{name}: heads with norm on fast frequencies are positional (rank correlation over heads with the "
            "attention on self and previous token)",
            rank,
            0.0,
            above=True,
            error=1 / sqrt(len(heads) - 1),
            printed="remarkably consistent (Section 5, Figures 4 and 11)",
        ),
    ]


def _band_claims(name: str, table: pd.DataFrame, bands: pd.DataFrame) -> list[Claim]:
    """At which frequencies the bands of high norm lie, where there are any."""
    if not len(bands):
        return []
    slow = float((table["turns"] < 1).mean())
    return [
        ordered(
            f"{name}: bands of high norm lie at low frequencies (share of the bands that are slow, against the "
            "share of all frequencies)",
            float((bands["turns"] < 1).mean()),
            slow,
            error=sqrt(slow * (1 - slow) / len(bands)),
            printed="bands especially at the lower frequencies (Figure 4)",
        )
    ]


def _slowest(name: str, table: pd.DataFrame, part: str) -> Claim:
    """The slowest fifth of the frequencies, where Gemma's bands are, against all others, head by head."""
    norms = table.pivot(index=["layer", "head"], columns="frequency", values=f"{part}_norm").to_numpy(float)
    first = int(norms.shape[1] * 0.8)
    slowest, others = norms[:, first:].mean(1), norms[:, :first].mean(1)
    return ordered(
        f"{name}: the very slowest fifth of the frequencies has more norm than the others ({part}, mean over heads)",
        float(slowest.mean()),
        float(others.mean()),
        error=float((slowest - others).std(ddof=1) / sqrt(len(norms))),
        printed="the lowest frequencies, from the slowest fifth on (Figure 3, Appendix C: 10000^-0.8)",
        why="the slowest fifth turns less within a short text than in Gemma's 8192 tokens; not tested if that is why",
    )


def _in_each_layer(name: str, so: Bool[np.ndarray, "layer"]) -> Claim:
    """Same size if it holds in all layers, same direction if in most, else it differs."""
    verdict: Verdict = "same size" if so.all() else "same direction" if so.mean() > 0.5 else "differs"
    return Claim(
        f"{name}: queries have more norm on slow frequencies in every layer",
        "true at each layer (Figure 3)",
        f"in {int(so.sum())} of {len(so)} layers",
        verdict,
        "" if so.all() else SMALLER_MODEL,
    )


def _against_norms(name: str, heads: pd.DataFrame) -> str:
    """Whether shares of the logits separate positional heads better than shares of the norms that bound them."""
    near = heads["self_mass"] + heads["prev_mass"]
    norm, logit = (float(spearmanr(heads[f"fast_{kind}_share"], near).statistic) for kind in ("norm", "logit"))
    return (
        f"Norms bound what a frequency does, shares of the logits measure it: over the heads of {name}, attention on "
        f"self and previous token has a rank correlation of {norm:.2f} with the fast frequencies' share of the norms, "
        f"and of {logit:.2f} with their share of the logits."
    )


def _band(name: str, atlas: Atlas) -> str:
    """The band with the largest norm in most heads, compared with where the paper's bands begin."""
    head_bands = bands(atlas)
    table = frequency_table(atlas)
    if not len(head_bands):
        return f"{name} has no bands: no head spends three times its median norm on a frequency."
    common = head_bands.groupby("frequency")["times"].sum().idxmax()
    frequency = table[table["frequency"] == common]
    radians, context = float(frequency["radians"].iloc[0]), atlas.anatomy.max_positions
    turns = radians * (context or atlas.settings["length"]) / (2 * pi)
    ours, gemma = radians / BANDS_BEGIN, BANDS_BEGIN * 8192 / (2 * pi)
    alike = max(turns / gemma, gemma / turns) < max(ours, 1 / ours)
    return (
        f"The strongest band of {name} turns {radians:.2g} radians a token, {ours:.3g} times as fast as where the "
        f"bands of Gemma 7B begin ({BANDS_BEGIN}), and {turns:.2f} circles within the trained context "
        f"(Gemma: {gemma:.2f})"
        + (": nearer in parts of a circle within the context than in frequency." if alike else ".")
    )


def _by_layer(name: str, table: pd.DataFrame) -> go.Figure:
    rows = table[table["q_norm"].notna()]
    return frequencies_by_layer(rows).update_layout(title_text=f"{name}: which frequencies the layers use")


def _by_head(heads: pd.DataFrame) -> go.Figure:
    figure = go.Figure()
    for color, (name, group) in zip(
        ("#3b528b", "#5ec962", "#d95f02"), heads.groupby("model", sort=False), strict=False
    ):
        figure.add_scatter(
            x=group["fast_norm_share"].round(4),
            y=(group["self_mass"] + group["prev_mass"]).round(4),
            mode="markers",
            name=str(name),
            marker=dict(color=color, size=8),
            text=[
                f"{layer}.{head}: {label}"
                for layer, head, label in zip(group["layer"], group["head"], group["label"], strict=True)
            ],
            hovertemplate="%{text}<extra></extra>",
        )
    figure.update_xaxes(title="share of |q||k| on fast frequencies (a turn or more within the text)")
    figure.update_yaxes(title="attention on self and previous token")
    return styled(
        figure, "Norm on fast frequencies, and attention on the token itself and the one before, head by head"
    )


def short(name: str) -> str:
    return Path(name).name.replace("-", "_").replace(".", "_")


EXPERIMENTS = (
    Experiment(
        name="barbero-frequencies",
        paper="Barbero",
        of="Figures 3, 4, 10, 11 and 13",
        question="Which rotary frequencies do layers and heads spend their norm on?",
        run=frequencies,
        minutes=1.0,
        needs="google/gemma-7b and meta-llama/Llama-3.1-8B on lines of Shakespeare",
        quick=True,
    ),
)
