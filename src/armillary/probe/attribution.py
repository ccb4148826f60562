"""What heads, MLPs and the embedding do for the next token: their parts of its logit, which add up to the model's."""

from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from armillary.anatomy.modes import evaluating
from armillary.anatomy.source import describe
from armillary.anatomy.sources import OTHERS
from armillary.errors import ArmillaryError
from armillary.observe.sources import Enough, Sources
from armillary.observe.writers import BIASES
from armillary.probe.trial import predicts
from armillary.progress import Progress


def direct_logits(
    model: nn.Module, tokens: Int[np.ndarray, "sequence token"], *, skip: int = 1, progress: Progress | None = None
) -> pd.DataFrame:
    """A row per source: its mean part of the logit of the true next token less the mean over the vocabulary.

    The final norm's observed scale is kept, so the parts add up to the model's own centered logit (`attrs["total"]`;
    before the soft-cap, in a model that has one). Means are over the positions from `skip` on.
    """
    if not predicts(model):
        raise ArmillaryError(f"{type(model).__name__} does not predict the next token")
    sources = Sources(model, describe(model), skip)
    sums, total = torch.zeros(len(sources.names), dtype=torch.float64), 0.0
    with evaluating(model), torch.no_grad():
        for row in (progress or Progress()).each(tokens, "sequences"):
            parts, whole = _of_sequence(model, sources, torch.from_numpy(row)[None], skip)
            sums, total = sums + parts / len(tokens), total + whole / len(tokens)
    sums[OTHERS.index("rounding")] = total - sums.sum()
    table = pd.DataFrame({"source": sources.names, "direct_logit": sums.numpy()})
    unused = table["source"].isin(["position bias"]) | (table["source"].str.startswith("mixer") & (sums.numpy() == 0))
    table = pd.DataFrame(table[~unused]).reset_index(drop=True)
    table.attrs["total"] = total
    return table


def _of_sequence(
    model: Any, sources: Sources, tokens: Int[Tensor, "1 token"], skip: int
) -> tuple[Float[Tensor, "source"], float]:
    """The mean part of every source over the kept positions of a sequence, and the whole."""
    ids = tokens.to(next(model.parameters()).device)
    output = model.get_output_embeddings()
    computed: list[Tensor] = []
    handle = output.register_forward_hook(lambda _, args, logits: computed.append(logits.detach()))
    try:
        recording = sources.stream.record(lambda: computed.append(model(input_ids=ids).logits.detach()))
    finally:
        handle.remove()
    factor = _factor(*computed)
    following = ids[0, skip + 1 :]
    weight = output.weight.detach().double()
    directions = weight[following] - weight.mean(0)
    parts = torch.zeros(len(sources.names), dtype=torch.float64)
    count = len(following)
    at_once = sources.rows_at_once(recording)
    for start in range(0, recording.length, at_once):
        rows = slice(start, min(start + at_once, recording.length))
        parts += _of_rows(model, sources, recording, ids, rows, directions, skip) * (factor / count)
    if output.bias is not None:
        bias = output.bias.detach().double()
        parts[BIASES] += factor * (bias[following] - bias.mean()).mean()
    raw = computed[0][0, skip:-1].double()
    whole = raw.gather(-1, following[:, None].to(raw.device))[:, 0] - raw.mean(-1)
    return parts, factor * float(whole.mean())


def _of_rows(
    model: Any, sources: Sources, recording: Any, ids: Tensor, rows: slice, directions: Tensor, skip: int
) -> Float[Tensor, "source"]:
    products = torch.zeros(len(sources.names), dtype=torch.float64)

    def receive(stream: Float[Tensor, "part token d"]) -> None:
        first = max(rows.start, skip)
        last = min(rows.stop, recording.length - 1)
        if first < last:
            kept = stream[:, first - rows.start : last - rows.start]
            by_part = (kept * directions[first - skip : last - skip].to(kept)).sum((1, 2)).cpu()
            for index, product in zip(sources.indices(recording), by_part, strict=True):
                products[index] += product
        raise Enough

    with sources.stream.replaying(recording, rows, on_output=receive):
        try:
            model(input_ids=ids)
        except Enough:
            pass
        except RuntimeError as error:
            raise ArmillaryError(
                "between this model's last block and its output embedding is more than a norm: it is not attributed"
            ) from error
    return products


def _factor(raw: Float[Tensor, "..."], logits: Float[Tensor, "..."]) -> float:
    """The constant by which the model multiplies the logits of its output embedding; 1 if it does something else."""
    a, b = raw.double().flatten(), logits.double().flatten()
    factor = float((a @ b) / (a @ a).clamp(min=1e-300))
    straight = float((b - factor * a).abs().max()) <= 1e-3 * float(b.abs().max())
    return factor if straight else 1.0
