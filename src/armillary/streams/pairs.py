"""Means and covariances of queries and keys at given lags, from which a Gaussian model predicts the logits."""

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from armillary.anatomy.description import Rotary
from armillary.observe.precision import wide
from armillary.observe.rebuild import placed, rotate
from armillary.observe.view import AttentionView
from armillary.streams.declaration import Context, Declaration, Reads
from armillary.streams.moments import LAGGED
from armillary.streams.power_sums import MOMENTS, central_moments, combine_moments, finish_moments
from armillary.streams.stream import Axes, State


class PairMoments:
    """Of (q_i, k_{i-lag}) over kept tokens, for every head and lag: both means, Cov(q), Cov(k) and Cov(k, q), e x e.

    Rotary q and k are rotated back by the query's position, which leaves q.k unchanged and makes pairs at different
    positions comparable. Also the observed moments of scale * q.k over the same pairs, including hidden ones, without
    position bias and soft-cap; and second moments of the steps from one token to the next.
    """

    def __init__(self, lags: tuple[int, ...], rotary: tuple[Rotary | None, ...], skip: int, length: int) -> None:
        self.lags = lags
        self.rotary = tuple(None if layer is None else replace(layer.at(length), factor=1.0) for layer in rotary)
        self.skip = skip
        self.dims: dict[str, tuple[str, ...]] = {
            "pairs": ("lag",),
            "mean_q": ("lag", "head", "width"),
            "mean_k": ("lag", "kv_head", "width"),
            "covariance_q": ("lag", "head", "width", "width_"),
            "covariance_k": ("lag", "kv_head", "width", "width_"),
            "covariance_kq": ("lag", "head", "width", "width_"),
            "scale": (),
            "step_q": ("head", "width", "width_"),
            "step_k": ("kv_head", "width", "width_"),
            "step_kq": ("head", "width", "width_"),
            **dict.fromkeys(MOMENTS, ("lag", "head")),
        }

    def axes(self) -> Axes:
        """The lags, in tokens."""
        return {"lag": (("lag",), np.array(self.lags))}

    def measure(self, batch: AttentionView) -> State:
        q, k = (wide(part[:, :, self.skip :]).transpose(0, 1) for part in (batch.q, batch.k))  # (head, batch, token, e)
        rotary = self.rotary[batch.layer]
        if rotary is not None:
            places = placed(rotary, torch.arange(self.skip, batch.queries, device=q.device))
            q, k = rotate(rotary, q, -places), rotate(rotary, k, -places)
        steps = _step_products(q.diff(dim=2).flatten(1, 2), k.diff(dim=2).flatten(1, 2))
        states = []
        for lag in self.lags:
            later, earlier = q[:, :, lag:], k[:, :, : k.shape[2] - lag]
            if rotary is not None:  # relative to the query's position
                earlier = rotate(rotary, earlier, places[: len(places) - lag] - places[lag:])
            states.append(_moments(later.flatten(1, 2), earlier.flatten(1, 2), batch.scale))
        by_lag = {name: torch.stack([state[name] for state in states]) for name in states[0]}
        return {**by_lag, **steps, "scale": torch.tensor(batch.scale, dtype=torch.float64)}

    def combine(self, a: State, b: State) -> State:
        n, m = a["logit_pairs"][:, 0], b["logit_pairs"][:, 0]
        weight = n * m / (n + m)
        q, k = b["mean_q"] - a["mean_q"], b["mean_k"] - a["mean_k"]
        group = q.shape[1] // k.shape[1]
        shifts = {"q": (q, q), "k": (k, k), "kq": (k.repeat_interleave(group, 1), q)}
        return {
            "scale": a["scale"],
            **{name: a[name] + b[name] for name in STEPS},
            "mean_q": a["mean_q"] + q * (m / (n + m))[:, None, None],
            "mean_k": a["mean_k"] + k * (m / (n + m))[:, None, None],
            **{
                f"scatter_{name}": a[f"scatter_{name}"]
                + b[f"scatter_{name}"]
                + left[..., :, None] * right[..., None, :] * weight[:, None, None, None]
                for name, (left, right) in shifts.items()
            },
            **combine_moments(a, b),
        }

    def finish(self, state: State) -> dict[str, Tensor]:
        pairs = state["logit_pairs"][:, 0]
        covariances = {
            f"covariance_{name}": state[f"scatter_{name}"] / pairs[:, None, None, None] for name in ("q", "k", "kq")
        }
        means = {name: state[name] for name in ("mean_q", "mean_k", "scale")}
        steps = {name: state[name] / state["steps"] for name in STEPS if name != "steps"}
        return {"pairs": pairs, **means, **steps, **covariances, **finish_moments(state)}


STEPS = ("steps", "step_q", "step_k", "step_kq")


def _step_products(q: Float[Tensor, "head n e"], k: Float[Tensor, "kv_head n e"]) -> State:
    """Sums of products of the steps q_{t+1} - q_t and k_{t+1} - k_t, in which biases cancel."""
    crossed = k.mT[:, None] @ q.unflatten(0, (len(k), -1))
    count = torch.tensor(float(q.shape[1]), dtype=torch.float64, device=q.device)
    return {"steps": count, "step_q": q.mT @ q, "step_k": k.mT @ k, "step_kq": crossed.flatten(0, 1)}


def _moments(q: Float[Tensor, "head n e"], k: Float[Tensor, "kv_head n e"], scale: float) -> State:
    """Means, scatters and the moments of scale * q.k of one lag's pairs."""
    mean_q, mean_k = q.mean(1), k.mean(1)
    grouped = q.unflatten(0, (len(k), -1))  # (kv_head, group, n, e)
    products = scale * (grouped * k[:, None]).sum(-1).flatten(0, 1)
    q, k = q - mean_q[:, None], k - mean_k[:, None]
    crossed = k.mT[:, None] @ q.unflatten(0, (len(k), -1))
    return {
        "mean_q": mean_q,
        "mean_k": mean_k,
        "scatter_q": q.mT @ q,
        "scatter_k": k.mT @ k,
        "scatter_kq": crossed.flatten(0, 1),
        **central_moments(products),
    }


def _pair_moments(context: Context) -> PairMoments | None:
    """None for families without an adapter, whose q and k cannot be rotated back, and where heads differ in width."""
    shapes = {(layer.head_width, layer.kv_heads) for layer in context.anatomy.layers}
    if context.anatomy.missing or len(shapes) > 1:
        return None
    return PairMoments((0, *context.lags), context.rotary, context.skip, context.length)


HEADS = Declaration("pairs.head", LAGGED, Reads.ATTENTION, _pair_moments, lenses=("gaussian",), plain=True)
