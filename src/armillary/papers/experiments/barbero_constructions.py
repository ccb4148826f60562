"""Barbero's Sections 5 and 6 and Appendix E.1: heads that rotary frequencies can and cannot implement."""

from dataclasses import dataclass
from math import inf, pi, sqrt

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots
from scipy.special import softmax

from armillary.figures.style import styled
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, limited, ordered, sized
from armillary.theory.rotary import Frequencies, product, rope
from armillary.theory.rotary_heads import (
    channel_break,
    channel_length,
    nope_attention,
    norm_needed,
    positional_attention,
    positional_head,
)


@dataclass(frozen=True)
class Constructions:
    """Gemma 7B's heads: width, base, context; eps of Definition 5.1; the number of random heads without positions."""

    width: int = 256
    base: int = 10_000
    context: int = 8192
    eps: float = 0.05
    random_heads: int = 2000
    seed: int = 0


SMALL, PAPER = Constructions(), Constructions(random_heads=100_000)
BAND = 119
"""The frequency (from 1) of the low-frequency band of Gemma 7B's apostrophe head (Appendix E.1)."""
QUERY, OTHER, FIRST = np.array([-4.1, 11.3]), np.array([11.2, -3.5]), np.array([-2.5, 1.3])
"""The query of that band, the key of a token other than BOS, and the key of BOS, printed in Appendix E.1."""


def constructions(settings: Settings) -> Outcome:
    """Positional heads with and without rotary positions, and how far a low frequency can carry meaning."""
    chosen = SMALL if settings.small else PAPER
    g = rope(chosen.width, chosen.base)
    norms = _norms(g, chosen)
    return Outcome(
        tables={"norms_needed": norms, "channel": _channel(g, chosen)},
        figures={"positional": _positional(g, chosen), "channel": _channel_figure(g, chosen)},
        claims=[*_positional_claims(g, chosen), *_channel_claims(g, chosen)],
        learned=_learned(g, chosen, norms),
    )


def least_attention(norm_squared: float, g: Frequencies, length: int, distance: int, scale: float) -> float:
    """The smallest attention to the token `distance` back, over all rows, computed from the head's q and k."""
    q, k = positional_head(norm_squared, g, distance=distance)
    logits = scale * product(q, k, g, np.arange(length))
    # row i has distances 0 .. i; later rows have more keys, so the last row has the least attention
    return float(softmax(logits)[distance])


def most_without_positions(chosen: Constructions) -> float:
    """The largest attention of the last token of [first, x, x] to itself in a head without positions."""
    random = np.random.default_rng(chosen.seed)
    most = 0.0
    for _ in range(chosen.random_heads):
        w, first, token = random.standard_normal((4, 4)) / 4, random.standard_normal(4), random.standard_normal(4)
        most = max(most, float(nope_attention(w, first, token)[-1]))
    return most


def _norms(g: Frequencies, chosen: Constructions) -> pd.DataFrame:
    """|q|^2 that a diagonal and a previous-token head need, by text length and frequencies used."""
    fastest = np.zeros(len(g))
    fastest[0] = 1.0
    quarter = (np.arange(len(g)) < len(g) // 4).astype(float)
    rows = []
    for length in (64, 512, chosen.context):
        for name, weights in (
            ("the fastest alone", fastest),
            ("the fastest quarter", quarter),
            ("all", np.ones(len(g))),
        ):
            row: dict[str, str | int | float] = {"tokens": length, "frequencies": name}
            for word, distance in (("diagonal", 0), ("previous", 1)):
                row[word] = norm_needed(chosen.eps, g, length, distance=distance, weights=weights)
            rows.append(row)
    return pd.DataFrame(rows)


def _positional_claims(g: Frequencies, chosen: Constructions) -> list[Claim]:
    claims = [
        limited(
            f"no head without positions gives itself half (most of {chosen.random_heads} random heads on [BOS, x, x])",
            most_without_positions(chosen),
            0.5,
            above=False,
            printed="below 1/2 (Proposition 5.2)",
        )
    ]
    scale = 1 / sqrt(chosen.width)
    for word, distance in (("diagonal", 0), ("previous-token", 1)):
        needed = norm_needed(chosen.eps, g, chosen.context, distance=distance) / scale
        chunk = sqrt(needed / len(g))
        claims += [
            sized(
                f"a rotary head can be {word}: its least attention in {chosen.context} tokens, with eps = {chosen.eps}",
                1 - chosen.eps,
                least_attention(needed, g, chosen.context, distance, scale),
                place="Theorem 5.3",
            ),
            limited(
                f"the norm does not have to be large: length of a chunk of the {word} head",
                chunk,
                10.0,
                above=False,
                printed="not above 10 (Figure 6, Appendix A.2)",
            ),
        ]
    return claims


def _channel_claims(g: Frequencies, chosen: Constructions) -> list[Claim]:
    band = float(g[BAND - 1])
    place = "Appendix E.1"
    return [
        sized("the band's product for a key that is not BOS", -85.5, float(QUERY @ OTHER), place=place, signed=True),
        sized("the band's product for the key of BOS", 24.9, float(QUERY @ FIRST), place=place, signed=True),
        sized("how far that band turns within 8000 tokens, in radians", 1.64, 8000 * band, place=place),
        ordered(
            "the band breaks in texts that are long enough, but not within the context (tokens, against the context)",
            channel_break(QUERY, FIRST, OTHER, band),
            float(chosen.context),
            printed="stable within 8k, expected to break beyond (Theorem 6.1, Appendix E.1)",
        ),
        sized(
            "turns of the slowest frequency of base 10000 in 128k tokens (Llama's heads, 128 wide)",
            2.04,
            128_000 * float(rope(128, 10_000)[-1]) / (2 * pi),
            place="Section 6",
            why="the paper takes 1/base for the slowest frequency (LEDGER B12)",
        ),
        _power("where the bands of Llama 3.1 8B begin: 500000^(-40/64)", 1e-4, 500_000.0 ** (-40 / 64)),
    ]


def _power(says: str, printed: float, found: float) -> Claim:
    """A printed value of a power: correct to half a unit of its last digit, or it differs."""
    right = abs(found - printed) <= printed / 2
    why = "" if right else "an error of arithmetic (LEDGER B14)"
    return Claim(says, f"{printed:.4f} (Appendix C)", f"{found:.2g}", "same size" if right else "differs", why)


def _channel(g: Frequencies, chosen: Constructions) -> pd.DataFrame:
    """For every eighth frequency: radians per token, and the longest text in which it finds a target anywhere."""
    rows = [
        {"frequency": f + 1, "radians": float(g[f]), "tokens": channel_length(float(g[f])) if g[f] < pi else inf}
        for f in [*range(0, len(g), 8), BAND - 1, len(g) - 1]
    ]
    return pd.DataFrame(rows).assign(holds_context=lambda table: table["tokens"] >= chosen.context)


def _learned(g: Frequencies, chosen: Constructions, norms: pd.DataFrame) -> list[str]:
    longest = norms[norms["tokens"] == chosen.context].set_index("frequencies")["diagonal"]
    shortest = norms[norms["tokens"] == norms["tokens"].min()].set_index("frequencies")["diagonal"]
    band = float(g[BAND - 1])
    holds = sum(channel_length(float(one)) >= chosen.context for one in g)
    return [
        f"Theorem 5.3 is proved with one frequency, which takes a very long query: in {chosen.context} tokens "
        f"|q|^2 = {longest['the fastest alone']:.2g}, because some distance is nearly a whole number of turns. "
        f"All {len(g)} frequencies together need {longest['all']:.0f} ({shortest['all']:.0f} in "
        f"{norms['tokens'].min()} tokens), the fastest quarter {longest['the fastest quarter']:.0f}.",
        f"Theorem 6.1 in numbers: a frequency finds a target wherever it stands among at most pi/g tokens. "
        f"{holds} of Gemma's {len(g)} frequencies can do so in {chosen.context} tokens; the apostrophe band could up "
        f"to {channel_length(band):.0f}, and with the printed vectors breaks at "
        f"{channel_break(QUERY, FIRST, OTHER, band):.0f}.",
    ]


def _positional(g: Frequencies, chosen: Constructions) -> go.Figure:
    figure = make_subplots(1, 2, subplot_titles=("512 tokens", f"{chosen.context} tokens"), shared_yaxes=True)
    norms = np.logspace(0, 6, 49)
    groups = {"the fastest frequency": 1, "the fastest 8": 8, "the fastest quarter": len(g) // 4, "all": len(g)}
    for col, length in ((1, 512), (2, chosen.context)):
        for color, (name, count) in zip(("#440154", "#31688e", "#35b779", "#d95f02"), groups.items(), strict=True):
            weights = (np.arange(len(g)) < count).astype(float)
            least = [positional_attention(float(norm), g, length, weights=weights) for norm in norms]
            figure.add_scatter(
                x=norms,
                y=np.round(least, 4),
                name=name,
                legendgroup=name,
                showlegend=col == 1,
                line_color=color,
                mode="lines",
                row=1,
                col=col,
            )
    figure.update_xaxes(type="log", title="|q|^2, all tokens alike").update_yaxes(range=[0, 1.02])
    figure.update_yaxes(title="least attention on the token itself", row=1, col=1)
    return styled(figure, "A diagonal head needs many frequencies, not much norm").update_layout(margin_t=80)


def _channel_figure(g: Frequencies, chosen: Constructions) -> go.Figure:
    band = g[BAND - 1 : BAND]
    distances = np.arange(0, 32_001, 100)
    curves: dict[str, Float[np.ndarray, "r"]] = {
        "key of BOS": product(QUERY, FIRST, band, distances),
        "key of another token": product(QUERY, OTHER, band, distances),
    }
    figure = go.Figure()
    for color, (name, values) in zip(("#d95f02", "#31688e"), curves.items(), strict=True):
        figure.add_scatter(x=distances, y=values.round(2), name=name, line_color=color, mode="lines")
    breaks = channel_break(QUERY, FIRST, OTHER, float(band[0]))
    for at, word, side in ((chosen.context, "context", "top left"), (breaks, "breaks", "top right")):
        text = f"{word}: {at:.0f}"
        figure.add_vline(x=at, line_dash="dot", line_color="#666", annotation_text=text, annotation_position=side)
    figure.update_xaxes(title="distance in tokens").update_yaxes(title="what the band adds to q.k")
    return styled(
        figure, "The low band of Gemma 7B's apostrophe head (printed vectors): it finds BOS, up to a distance"
    )


EXPERIMENTS = (
    Experiment(
        name="barbero-constructions",
        paper="Barbero",
        of="Sections 5 and 6, Appendix E.1",
        question="Which heads can be built from rotary frequencies, with which norm, and up to which length?",
        run=constructions,
        minutes=0.1,
        needs="nothing: the printed vectors of Gemma 7B",
        quick=True,
    ),
)
