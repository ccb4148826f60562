"""What heads look like on inputs that a scan does not read: cross-attention, image patches, frames of sound.

A row for every head, on the inputs that are given. In cross-attention the keys are the encoder's positions, so 'self',
'previous' and distances do not apply; whether the head walks along the encoder's positions does (`monotone`). In image
encoders positions are patches, and distances are measured in the grid. Labels follow the two rules of a scan: what
gains more than half of a head's focus (the attention that it moves from some keys to others, sum max(a - 1/n, 0)) is
its label, and a head whose focus is less than half is broad. There is no comparison with random heads here.
"""

from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from armillary.anatomy.description import Anatomy
from armillary.anatomy.modes import evaluating
from armillary.errors import ArmillaryError
from armillary.observe.precision import wide
from armillary.observe.tap import Tap
from armillary.observe.view import AttentionView

HALF = 0.5


@torch.no_grad()
def observed_heads(model: nn.Module, *, part: str = "", **inputs: Any) -> pd.DataFrame:
    """A row for every head of the model, or of a part of an encoder-decoder ('decoder', 'cross'), on these inputs.

    `inputs` are the model's own: pixel_values=..., input_features=..., input_ids=..., decoder_input_ids=....
    """
    rows: list[dict[str, Any]] = []
    tap = Tap(model, lambda view: rows.extend(_of_layer(tap.anatomy, view)), part=part)
    with evaluating(model), tap:
        model(**inputs)
    table = pd.DataFrame(rows).sort_values(["layer", "head"]).reset_index(drop=True)
    table.attrs["positions"] = tap.anatomy.positions
    table.attrs["grid"] = tap.anatomy.grid
    return table


def _of_layer(anatomy: Anatomy, view: AttentionView) -> list[dict[str, Any]]:
    cross = view.keys_from is not None
    if not cross and view.queries != view.keys:
        raise ArmillaryError("these heads continue a cached text", advice="run it at once, with use_cache=False")
    attention = wide(view.attention())  # (batch, head, query, key)
    seen = view.visible().expand_as(attention)
    rows = seen.any(-1) & view.valid_queries[:, None].expand(seen.shape[:3])
    keys = seen.sum(-1).clamp(min=1).double()
    gain = (attention - 1 / keys[..., None]).clamp(min=0) * seen
    focus = _mean(gain.sum(-1), rows)
    entropy = -torch.special.xlogy(attention, attention).sum(-1)
    several = rows & (keys > 1)
    measures = {
        "entropy": _mean(entropy, rows),
        "entropy_norm": _mean(entropy / keys.clamp(min=2).log(), several),
        "focus": focus,
    }
    groups = _cross_groups(view) if cross else _groups(anatomy, view)
    shares = {}
    for name, member in groups.items():
        measures[f"{name}_mass"] = _mean((attention * member).sum(-1), rows)
        shares[name] = _mean((gain * member).sum(-1), rows) / focus.clamp(min=1e-30)
    if cross:
        measures |= _along(attention, rows)
    else:
        measures["mean_distance"] = _distance(anatomy, view, attention, rows)
    labels = _labels(focus, shares, measures.get("monotone"))
    kind = "cross" if cross else "self"
    return [
        {
            "layer": view.layer,
            "head": head,
            "kind": kind,
            "positions": anatomy.positions if not cross else "the encoder's",
            "label": labels[head],
            **{name: float(values[head]) for name, values in measures.items()},
        }
        for head in range(view.heads)
    ]


def _mean(values: Float[Tensor, "batch head query"], rows: Bool[Tensor, "batch head query"]) -> Float[Tensor, "head"]:
    """The mean over kept queries of all inputs."""
    return (values.double() * rows).sum((0, 2)) / rows.sum((0, 2)).clamp(min=1)


def _cross_groups(view: AttentionView) -> dict[str, Tensor]:
    """The encoder's first position, and the last that is seen (often the end token)."""
    place = torch.arange(view.keys, device=view.q.device)
    seen = view.visible()
    last = torch.where(seen, place, -1).amax(-1, keepdim=True)
    return {"first": (place == 0).expand(seen.shape), "last": place == last}


def _groups(anatomy: Anatomy, view: AttentionView) -> dict[str, Tensor]:
    query, key = (
        torch.arange(view.queries, device=view.q.device)[:, None],
        torch.arange(view.keys, device=view.q.device),
    )
    if anatomy.positions != "patches":
        near = {"self": key == query, "previous": key == query - 1}
        near |= {} if anatomy.layers[view.layer].causal else {"next": key == query + 1}
        return {"first": (key == 0).expand(view.queries, -1), **near}
    special = (key < anatomy.special_first).expand(view.queries, -1)
    apart = _grid_distance(anatomy, view.keys, view.q.device)
    patches = ~(special | (query < anatomy.special_first))
    return {"special": special, "self": key == query, "neighbor": patches & (apart > 0) & (apart < 1.5)}


def _grid_distance(anatomy: Anatomy, count: int, device: torch.device) -> Float[Tensor, "query key"]:
    """Distances of patches in the grid, in patches; 0 for positions that are none."""
    assert anatomy.grid is not None
    down, across = anatomy.grid
    patches = count - anatomy.special_first
    if patches != down * across:
        raise ArmillaryError(
            f"the image has {patches} patches, not the {down} x {across} of the configuration",
            advice=f"resize it to the model's own size, {down} patches down and {across} across",
        )
    place = torch.arange(patches, device=device)
    at = torch.stack([place // across, place % across], -1).double()
    whole = torch.zeros(count, count, dtype=torch.float64, device=device)
    whole[anatomy.special_first :, anatomy.special_first :] = torch.cdist(at, at)
    return whole


def _distance(anatomy: Anatomy, view: AttentionView, attention: Tensor, rows: Tensor) -> Float[Tensor, "head"]:
    """The mean distance to the attended position: in the grid for patches (of those alone), else in positions."""
    if anatomy.positions != "patches":
        place = torch.arange(view.keys, device=view.q.device).double()
        return _mean((attention * (place[:, None] - place).abs()).sum(-1), rows)
    first = anatomy.special_first
    apart, among = _grid_distance(anatomy, view.keys, view.q.device)[first:, first:], attention[:, :, first:, first:]
    mass = among.sum(-1)
    return _mean((among * apart).sum(-1) / mass.clamp(min=1e-30), rows[:, :, first:] & (mass > 0))


def _along(attention: Float[Tensor, "batch head query key"], rows: Tensor) -> dict[str, Float[Tensor, "head"]]:
    """mean_place: the mean attended position, from 0 to 1; monotone: Kendall's tau of query and mean attended position.

    tau is the share of pairs of queries of which the later one attends farther on, less the share of the others.
    """
    count = attention.shape[-1]
    place = (attention.double() * torch.arange(count, device=attention.device)).sum(-1)
    later = torch.ones(place.shape[-1], place.shape[-1], dtype=torch.bool, device=place.device).triu(1)
    pairs = later & rows[..., :, None] & rows[..., None, :]
    order = (place[..., None, :] - place[..., :, None]).sign()
    tau = (order * pairs).sum((0, 2, 3)) / pairs.sum((0, 2, 3)).clamp(min=1)
    return {"mean_place": _mean(place / max(1, count - 1), rows), "monotone": tau}


def _labels(focus: Tensor, shares: dict[str, Tensor], monotone: Tensor | None) -> list[str]:
    labels = []
    for head, gained in enumerate(focus.tolist()):
        most = max(shares, key=lambda name: float(shares[name][head]))
        if gained < HALF:
            labels.append("broad")
        elif float(shares[most][head]) > HALF:
            labels.append(most)
        else:
            labels.append("monotone" if monotone is not None and float(monotone[head]) > HALF else "mixed")
    return labels
