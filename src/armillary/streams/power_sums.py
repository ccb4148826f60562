"""Number, mean and central power sums of values per head, which can be merged; skewness and kurtosis follow."""

import torch
from jaxtyping import Float
from torch import Tensor

from armillary.streams.stream import State

MOMENTS = ("logit_mean", "logit_variance", "logit_skewness", "logit_kurtosis")
MOMENT_STATE = ("logit_pairs", "logit_mean", "logit_m2", "logit_m3", "logit_m4")


def of_rows(
    count: Float[Tensor, "*#dims"],
    mean: Float[Tensor, "*dims"],
    m2: Float[Tensor, "*dims"],
    m3: Float[Tensor, "*dims"],
    m4: Float[Tensor, "*dims"],
    over: tuple[int, ...],
) -> State:
    """The sums over the values of all rows, from the sums of each row about its own mean; `over`: the axes of rows."""
    count = count.expand_as(mean)
    pairs = count.sum(over)
    overall = (count * mean).sum(over, keepdim=True) / count.sum(over, keepdim=True).clamp(min=1)
    off = mean - overall
    return {
        "logit_pairs": pairs,
        "logit_mean": overall.squeeze(over),
        "logit_m2": (m2 + count * off**2).sum(over),
        "logit_m3": (m3 + 3 * off * m2 + count * off**3).sum(over),
        "logit_m4": (m4 + 4 * off * m3 + 6 * off**2 * m2 + count * off**4).sum(over),
    }


def central_moments(values: Float[Tensor, "head n"]) -> State:
    """The same for plain lists of values, one per head."""
    mean = values.mean(-1, keepdim=True)
    off = values - mean
    count = torch.tensor([[float(values.shape[-1])]], dtype=values.dtype, device=values.device)
    m2, m3, m4 = ((off**power).sum(-1, keepdim=True) for power in (2, 3, 4))
    return of_rows(count, mean, m2, m3, m4, (1,))


def finish_moments(state: State) -> dict[str, Tensor]:
    """Mean, variance, skewness and excess kurtosis from the power sums."""
    pairs = state["logit_pairs"]
    variance = state["logit_m2"] / pairs
    return {
        "logit_mean": state["logit_mean"],
        "logit_variance": variance,
        "logit_skewness": state["logit_m3"] / pairs / variance**1.5,
        "logit_kurtosis": state["logit_m4"] / pairs / variance**2 - 3,
    }


def combine_moments(a: State, b: State) -> State:
    """Central power sums of the union of two sets, from those of each."""
    n, m = a["logit_pairs"], b["logit_pairs"]
    total = (n + m).clamp(min=1)
    shift = b["logit_mean"] - a["logit_mean"]
    a2, b2, a3, b3 = a["logit_m2"], b["logit_m2"], a["logit_m3"], b["logit_m3"]
    return {
        "logit_pairs": n + m,
        "logit_mean": a["logit_mean"] + shift * m / total,
        "logit_m2": a2 + b2 + shift**2 * n * m / total,
        "logit_m3": a3 + b3 + shift**3 * n * m * (n - m) / total**2 + 3 * shift * (n * b2 - m * a2) / total,
        "logit_m4": a["logit_m4"]
        + b["logit_m4"]
        + shift**4 * n * m * (n**2 - n * m + m**2) / total**3
        + 6 * shift**2 * (n**2 * b2 + m**2 * a2) / total**2
        + 4 * shift * (n * b3 - m * a3) / total,
    }
