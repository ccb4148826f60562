"""Attention probabilities and entropies in float64, a block of rows at a time."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from armillary.observe.precision import wide
from armillary.observe.view import AttentionView, grouped_products


@dataclass(frozen=True)
class _Softmax:
    """Attention probabilities of a block of rows, the probability of the sink, and the entropy."""

    attention: Float[Tensor, "batch head row key"]
    sink: Float[Tensor, "batch head row"]
    entropy: Float[Tensor, "batch head row"]


def wide_products(view: AttentionView, rows: slice) -> Float[Tensor, "batch head row key"]:
    """scale * q.k of these rows, computed in float64."""
    return grouped_products(wide(view.q[:, :, rows]), wide(view.k)) * view.scale


def softmax(
    view: AttentionView, logits: Float[Tensor, "batch head row key"], seen: Bool[Tensor, "batch #head row key"]
) -> _Softmax:
    """Probabilities and entropy of capped logits; entropy is the log normalizer minus the mean logit."""
    visible = logits.masked_fill(~seen, -torch.inf)
    log_sum = visible.logsumexp(-1)
    sink_logit = None if view.sinks is None else wide(view.sinks)[None, :, None].expand_as(log_sum)
    if sink_logit is not None:
        log_sum = torch.logaddexp(log_sum, sink_logit)
    attention = (visible - log_sum[..., None]).exp()
    mean_logit = (attention * logits.masked_fill(~seen, 0.0)).sum(-1)
    sink = torch.zeros_like(log_sum)
    if sink_logit is not None:
        sink = (sink_logit - log_sum).exp()
        mean_logit = mean_logit + sink * sink_logit
    return _Softmax(attention, sink, (log_sum - mean_logit).clamp(min=0))
