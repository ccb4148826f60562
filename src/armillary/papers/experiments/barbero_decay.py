"""Barbero's Figures 2, 8 and 9: do rotary encodings make logits decay with distance?"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from armillary.figures.style import styled
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, ordered
from armillary.theory.rotary import constant_decay, random_constant_decay, rope, simulated_decay


@dataclass(frozen=True)
class Decay:
    """Width of a head, rotary base, tokens in a text, limits from which random positions are drawn, draws, seed.

    The paper gives no numbers for its figures; the width is that of Gemma 7B's heads. Only `draws` depends on the size.
    """

    width: int = 256
    base: int = 10_000
    tokens: int = 512
    limits: tuple[int, ...] = (1024, 4096)
    draws: int = 200
    seed: int = 0


SMALL, PAPER = Decay(), Decay(draws=4000)
SAME = 3.0
"""Two means are the same if they differ by at most this many standard errors."""


def decay(settings: Settings) -> Outcome:
    """Logits over distance: all-ones vectors, fresh Gaussian ones, one Gaussian pair; also with random positions."""
    chosen = SMALL if settings.small else PAPER
    g = rope(chosen.width, chosen.base)
    distances = np.arange(chosen.tokens)
    ones = {"RoPE": constant_decay(g, distances)}
    gaussian = {"RoPE": simulated_decay("gaussian", g, chosen.tokens, draws=chosen.draws, seed=chosen.seed)}
    for limit in chosen.limits:
        ones[f"L = {limit}"] = random_constant_decay(g, distances, chosen.tokens, limit)
        gaussian[f"L = {limit}"] = simulated_decay(
            "gaussian", g, chosen.tokens, limit=limit, draws=chosen.draws, seed=chosen.seed
        )
    pair = simulated_decay("repeated", g, chosen.tokens, draws=chosen.draws, seed=chosen.seed)
    rows = [_row("all-ones", name, values[None]) for name, values in ones.items()]
    rows += [_row("Gaussian", name, values) for name, values in gaussian.items()]
    rows.append(_row("one Gaussian pair", "RoPE", pair))
    return Outcome(
        tables={"halves": pd.DataFrame(rows), "curves": _curves(ones, gaussian, pair)},
        figures={"decay": _decay(ones, gaussian), "one_pair": _one_pair(pair, ones["RoPE"])},
        claims=_claims(ones, gaussian, pair, chosen),
        learned=_learned(ones["RoPE"], pair, chosen),
    )


def half_distance(values: Float[np.ndarray, "r"]) -> int:
    """The first distance at which a curve that starts at 1 is below 1/2; its length if there is none."""
    below = np.flatnonzero(values < 0.5)
    return int(below[0]) if len(below) else len(values)


def near_far(values: Float[np.ndarray, "draw r"]) -> tuple[float, float, float]:
    """Mean over the nearer and the farther half of the distances, and the standard error of the difference."""
    middle = values.shape[1] // 2
    near, far = values[:, :middle].mean(1), values[:, middle:].mean(1)
    error = float((near - far).std(ddof=1) / sqrt(len(values))) if len(values) > 1 else 0.0
    return float(near.mean()), float(far.mean()), error


def _row(vectors: str, positions: str, values: Float[np.ndarray, "draw r"]) -> dict[str, str | int | float]:
    near, far, error = near_far(values)
    spread = values.std(0).mean() if len(values) > 1 else 0.0
    return {
        "vectors": vectors,
        "positions": positions,
        "draws": len(values),
        "near_mean": near,
        "far_mean": far,
        "difference_error": error,
        "standard_deviation": float(spread),
    }


def same(says: str, first: float, second: float, error: float, printed: str) -> Claim:
    """A claim that two means are equal: it holds within SAME standard errors of the difference."""
    verdict = abs(first - second) <= SAME * error
    found = f"{first:.3g} against {second:.3g} (difference ± {error:.2g})"
    return Claim(says, printed, found, "same direction" if verdict else "differs")


def _claims(
    ones: dict[str, Float[np.ndarray, "r"]],
    gaussian: dict[str, Float[np.ndarray, "draw r"]],
    pair: Float[np.ndarray, "draw r"],
    chosen: Decay,
) -> list[Claim]:
    near, far, _ = near_far(ones["RoPE"][None])
    widest = f"L = {chosen.limits[-1]}"
    claims = [
        ordered(
            "all-ones queries and keys: the logit falls with distance (nearer half above the farther half)",
            near,
            far,
            printed="the curve of Figure 2 (a)",
        ),
        same(
            "Gaussian queries and keys: the logit does not fall (nearer half against the farther half)",
            *near_far(gaussian["RoPE"]),
            printed="0 at every distance (Proposition 3.2, Figure 2 (b))",
        ),
        ordered(
            f"random positions up to {chosen.limits[-1]} make all-ones logits fall faster (distance to one half)",
            float(half_distance(ones["RoPE"])),
            float(half_distance(ones[widest])),
            printed="faster for larger L (Figure 8 (a))",
        ),
    ]
    spreads = [values[:, 1:].std(1) for values in (gaussian["RoPE"], gaussian[widest])]
    error = sqrt(sum(float(spread.var(ddof=1)) / len(spread) for spread in spreads))
    claims.append(
        same(
            f"random positions up to {chosen.limits[-1]} do not change Gaussian logits (their spread within a text)",
            float(spreads[0].mean()),
            float(spreads[1].mean()),
            error,
            printed="no effect (Figure 8 (b))",
        )
    )
    claims.append(
        same(
            "one Gaussian query and key for all tokens: no decay (mean over pairs, nearer against farther half)",
            *near_far(pair),
            printed="no clear evidence of decay (Figure 9)",
        )
    )
    return claims


def _learned(ones: Float[np.ndarray, "r"], pair: Float[np.ndarray, "draw r"], chosen: Decay) -> list[str]:
    at = 50
    measured = float(np.corrcoef(pair[:, 0], pair[:, at])[0, 1])
    near, far = np.split(pair, [chosen.tokens // 2], axis=1)
    moved = float(np.abs(near.mean(1) - far.mean(1)).mean())
    rises = int((np.diff(ones) > 0).sum())
    return [
        "Figures 2 (a) and 9 show one curve twice: the all-ones logit at distance r is the correlation between a "
        f"Gaussian pair's logits at two distances r apart ({ones[at]:.2f} and {measured:.2f} at r = {at}). So a fixed "
        f"pair does not decay, but it drifts slowly: its nearer and farther halves differ by {moved:.2f} standard "
        f"deviations on average, and the single pair of Figure 9 may show anything. The all-ones curve itself rises at "
        f"{rises} of {chosen.tokens - 1} steps."
    ]


def _curves(
    ones: dict[str, Float[np.ndarray, "r"]],
    gaussian: dict[str, Float[np.ndarray, "draw r"]],
    pair: Float[np.ndarray, "draw r"],
) -> pd.DataFrame:
    """All curves, at every eighth distance: all-ones logits, the mean and the deviation of the random ones."""
    columns = {f"ones, {name}": values for name, values in ones.items()}
    for name, values in {**{f"Gaussian, {k}": v for k, v in gaussian.items()}, "one pair, RoPE": pair}.items():
        columns |= {f"{name}, mean": values.mean(0), f"{name}, deviation": values.std(0)}
    table = pd.DataFrame(columns).iloc[::8].round(4)
    return table.rename_axis("distance").reset_index()


def _decay(ones: dict[str, Float[np.ndarray, "r"]], gaussian: dict[str, Float[np.ndarray, "draw r"]]) -> go.Figure:
    figure = make_subplots(1, 2, subplot_titles=("all-ones queries and keys", "Gaussian ones, a single draw"))
    colors = ("#440154", "#21918c", "#90d743")
    for color, name in zip(colors, ones, strict=False):
        label = name if name == "RoPE" else f"random positions up to {name.removeprefix('L = ')}"
        both = dict(name=label, legendgroup=name, line=dict(color=color, width=1.5), mode="lines")
        figure.add_scatter(y=ones[name].round(4), **both, row=1, col=1)
        figure.add_scatter(y=gaussian[name][0].round(3), **both, showlegend=False, opacity=0.7, row=1, col=2)
    figure.update_xaxes(title="distance in tokens")
    figure.update_yaxes(title="logit over its value at distance 0", row=1, col=1)
    figure.update_yaxes(title="logit over its standard deviation", row=1, col=2)
    figure = styled(figure, "Logits fall with distance for all-ones vectors, and do not for Gaussian ones")
    return figure.update_layout(legend=dict(orientation="h", y=-0.18), margin_t=80)


def _one_pair(pair: Float[np.ndarray, "draw r"], ones: Float[np.ndarray, "r"]) -> go.Figure:
    figure = go.Figure()
    for draw in range(6):
        line = dict(color="#31688e", width=1)
        figure.add_scatter(
            y=pair[draw].round(3), line=line, opacity=0.6, name="six single pairs", showlegend=draw == 0, mode="lines"
        )
    figure.add_scatter(
        y=pair.mean(0).round(4), name=f"mean of {len(pair)} pairs", line=dict(color="black", width=2), mode="lines"
    )
    figure.add_scatter(y=ones.round(4), name="all-ones vectors", line=dict(color="#d95f02", width=2), mode="lines")
    figure.update_xaxes(title="distance in tokens").update_yaxes(title="logit over its standard deviation")
    return styled(figure, "One Gaussian query and key for all tokens: each pair drifts, their mean does not decay")


EXPERIMENTS = (
    Experiment(
        name="barbero-decay",
        paper="Barbero",
        of="Figures 2, 8 and 9",
        question="Does a rotary encoding make logits fall with distance?",
        run=decay,
        minutes=0.1,
        needs="nothing: vectors of ones and Gaussian ones, 256 wide",
        quick=True,
    ),
)
