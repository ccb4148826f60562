"""Check labels by ablation: remove what a label says the head uses, or the rest, and measure attention and loss."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from armillary.anatomy.description import Anatomy
from armillary.anatomy.layout import entry
from armillary.anatomy.modes import evaluating
from armillary.atlas.atlas import Atlas
from armillary.errors import ArmillaryError
from armillary.interventions.attention import attention_times_values, replaced_output
from armillary.lenses.constituents import means_of
from armillary.lenses.labels import IN_REPEATS, IN_TEXT
from armillary.observe.precision import wide
from armillary.observe.tap import Tap
from armillary.observe.view import AttentionView
from armillary.probe.after_attention import AfterAttention
from armillary.probe.losses import sequence_losses
from armillary.probe.removals import Removal
from armillary.probe.resuming import Resumable
from armillary.probe.trial import predicts
from armillary.progress import Progress
from armillary.scanning.passes import repeated_sequences
from armillary.streams.constituents import Means
from armillary.streams.patterns import TEXT, Relation, repeats

USES = {
    **dict.fromkeys(("self", "previous", "next", "local"), ("position", "content")),
    **dict.fromkeys(("induction", "duplicate", "content"), ("content", "position")),
    "matching": ("matching", "all but matching"),
    "preference": ("preference", "all but preference"),
    "first-token": ("first", "others"),
}
"""What a head with this label should need, and what it should not: names of REMOVALS."""


def uses(label: str) -> tuple[str, str] | None:
    """What a head with this label should need, and what it should not; None for labels that say nothing about it."""
    return USES.get(label)


def frequencies_used(label: str) -> tuple[str, str] | None:
    """The same for rotary frequencies: fast ones distinguish positions, slow ones carry content (Barbero)."""
    used = (uses(label) or ("",))[0]
    return {"position": ("fast", "slow"), **dict.fromkeys(("content", "matching", "preference"), ("slow", "fast"))}.get(
        used
    )


def sampled_heads(atlas: Atlas, count: int) -> pd.DataFrame:
    """Up to `count` rows of the heads table, evenly over the labels that can be checked, significant heads first."""
    if "label" not in atlas.heads or atlas.heads["label"].isna().all():
        raise ArmillaryError("this atlas has no labels", advice="scan with the stream patterns")
    table = atlas.heads[[uses(str(label)) is not None for label in atlas.heads["label"]]]
    table = table.sort_values(["significant", "focus"], ascending=False, kind="stable")
    turn = table.groupby("label").cumcount()
    chosen = table.assign(turn=turn).sort_values("turn", kind="stable").head(count)
    return chosen.sort_values(["layer", "head"])[["layer", "head", "label", "significant"]].reset_index(drop=True)


@dataclass(frozen=True)
class _Head:
    """A head, its label, and the keys that the label names."""

    layer: int
    head: int
    label: str
    relation: Relation | None

    @property
    def on_repeats(self) -> bool:
        return self.label in IN_REPEATS


def _relation(label: str, period: int, begin: int) -> Relation | None:
    if label in IN_REPEATS:
        return repeats(period, begin)[IN_REPEATS[label]]
    return TEXT[IN_TEXT[label]] if label in IN_TEXT else None


def check_heads(
    model: nn.Module,
    atlas: Atlas,
    chosen: pd.DataFrame,
    *,
    sequences: int = 8,
    batch: int = 4,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """A row per chosen head: how its attention and the loss change without what it should use, and without the rest.

    used, rest: names of REMOVALS. attention_*: mean over rows of the total variation distance between attention before
    and after; keys_*: attention that the label's own keys lose (matching, preference and content name none); loss_*:
    change of the loss in nats per token. Induction and duplicate heads run on repeated random tokens (loss on the
    second copy), the others on the atlas's first `sequences` sequences. holds: without `used` the label's keys
    lose more than without `rest` (or, if the label names none, attention changes more); loss_holds: the loss rises
    more. *_frequencies, *_other_frequencies and frequencies_hold are the same for the rotary frequencies that such a
    head should use, and the others. Verdicts are missing if the difference is within two standard errors.
    """
    anatomy = Tap(model).anatomy
    if anatomy.missing:
        raise ArmillaryError(anatomy.missing)
    text = atlas.group("corpus")["tokens"].to_numpy()
    repeated, period, begin = repeated_sequences(text, anatomy, atlas.settings["seed"] + 1)
    texts = {
        False: (text[:sequences].astype(np.int64), int(atlas.settings["skip"])),
        True: (repeated[:sequences], begin + period),
    }
    heads = [
        _Head(layer, head, str(label), _relation(str(label), period, begin))
        for layer, head, label in zip(chosen["layer"].tolist(), chosen["head"].tolist(), chosen["label"], strict=True)
    ]
    work = [
        (heads_on_text, tokens[start : start + batch], first)
        for on_repeats, (tokens, first) in texts.items()
        if (heads_on_text := [head for head in heads if head.on_repeats == on_repeats])
        for start in range(0, len(tokens), batch)
    ]
    means, resumable, with_loss = means_of(atlas), Resumable(model, anatomy), predicts(model)
    effects: dict[_Head, list[dict[str, Float[np.ndarray, "block"]]]] = {head: [] for head in heads}
    for heads_on_text, tokens, first in (progress or Progress()).each(work, "batches of texts"):
        text_batch = _Batch(resumable, anatomy, means, heads_on_text, torch.from_numpy(tokens), first, with_loss)
        with evaluating(model):
            measured = text_batch.measure()
        for head, values in measured.items():
            effects[head].append(values)
    rows: list[dict[Any, Any]] = []
    for row, head in zip(chosen.to_dict("records"), heads, strict=True):
        by_sequence = {name: np.concatenate([part[name] for part in effects[head]]) for name in effects[head][0]}
        rows.append({**row, **_verdicts(head, by_sequence)})
    return pd.DataFrame(rows)


@dataclass
class _Batch:
    """Some heads on a batch of sequences: the model runs once, then again from a head's block on, per head and removal.

    The outputs of heads after a removal are computed in the first run, for all heads of a layer.
    """

    resumable: Resumable
    anatomy: Anatomy
    means: Means
    heads: list[_Head]
    tokens: Int[Tensor, "block token"]
    first: int
    predicts: bool
    after: AfterAttention | None = None
    moved: dict[tuple[_Head, str], dict[str, Float[np.ndarray, "block"]]] = field(default_factory=dict)
    outputs: dict[tuple[_Head, str], Float[Tensor, "block token ev"]] = field(default_factory=dict)

    @torch.no_grad()
    def measure(self) -> dict[_Head, dict[str, Float[np.ndarray, "block"]]]:
        """attention_*, keys_* and loss_* of every head, for every sequence."""
        model = self.resumable.model
        ids = self.tokens.to(next(model.parameters()).device)
        self.after = AfterAttention(model, self.anatomy)
        with Tap(model, self._receive), self.after.recording():
            before = self.resumable.run(ids) if self.predicts else entry(model)(input_ids=ids)
        loss = sequence_losses(before.logits, ids, self.first) if self.predicts else np.full(len(ids), np.nan)
        effects: dict[_Head, dict[str, Float[np.ndarray, "block"]]] = {head: {} for head in self.heads}
        for (head, removal), values in self.moved.items():
            for name in (name for name, other in _removals(head.label).items() if other == removal):
                effects[head] |= {f"{measure}_{name}": value for measure, value in values.items()}
                after = (
                    sequence_losses(self._without(head, removal, before).logits, ids, self.first)
                    if self.predicts
                    else loss
                )
                effects[head][f"loss_{name}"] = after - loss
        return effects

    def _receive(self, view: AttentionView) -> None:
        """The change of attention of this layer's heads by each removal, and their outputs after it."""
        removed = Removal(self.anatomy, self.means, view)
        for head in (head for head in self.heads if head.layer == view.layer):
            before = wide(view.of_head(head.head).attention()[:, 0, self.first :])
            place = torch.arange(view.queries, device=before.device)
            keys = None if head.relation is None else head.relation(place[self.first :, None], place[None])
            for removal in _removals(head.label).values():
                after = removed.attention(head.head, removal)
                if after is None:
                    continue
                change = after[:, self.first :] - before
                lost = torch.full_like(change[:, 0, 0], torch.nan)
                if keys is not None:
                    lost = -(change * keys).sum(-1).mean(-1)
                distance = change.abs().sum(-1).mean(-1) / 2
                self.moved[head, removal] = {"attention": distance.cpu().numpy(), "keys": lost.cpu().numpy()}
                self.outputs[head, removal] = attention_times_values(view, head.head, after)

    def _without(self, head: _Head, removal: str, before: Any) -> Any:
        """The model's output with the head's output after the removal."""
        self.resumable.try_block(head.layer, before)
        output = self.outputs.pop((head, removal))
        assert self.after is not None
        if self.after.output(head.layer) is not None:
            with self.after.replaced(head.layer, head.head, output):
                return self.resumable.from_block(head.layer)
        with replaced_output(
            self.resumable.model, lambda view: {head.head: output} if view.layer == head.layer else {}
        ):
            return self.resumable.from_block(head.layer)


def _verdicts(head: _Head, effects: dict[str, Float[np.ndarray, "block"]]) -> dict[str, Any]:
    parts = uses(head.label)
    assert parts is not None
    row: dict[str, Any] = {
        "used": parts[0],
        "rest": parts[1],
        **{name: values.mean() for name, values in effects.items()},
    }
    decides = "attention" if head.relation is None else "keys"
    row["holds"] = _larger(effects[f"{decides}_used"], effects[f"{decides}_rest"])
    row["loss_holds"] = _larger(effects["loss_used"], effects["loss_rest"])
    if f"{decides}_frequencies" in effects:
        row["frequencies_hold"] = _larger(effects[f"{decides}_frequencies"], effects[f"{decides}_other_frequencies"])
    return row


def _larger(a: Float[np.ndarray, "block"], b: Float[np.ndarray, "block"]) -> bool | None:
    """Whether a is larger than b on average, or None within two standard errors of the difference over sequences."""
    difference = a - b
    error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else np.inf
    return None if not abs(difference.mean()) > 2 * error else bool(difference.mean() > 0)


def _removals(label: str) -> dict[str, str]:
    """The removals of a label, by the suffix of the columns that they fill."""
    names = ("used", "rest", "frequencies", "other_frequencies")
    return dict(zip(names, (*(uses(label) or ()), *(frequencies_used(label) or ())), strict=False))


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """By label: the number of heads, and the share of decided checks that passed; 0.5 is chance."""
    names = [name for name in ("holds", "loss_holds", "frequencies_hold") if name in table]
    numeric = table.assign(**{name: table[name].astype("Float64") for name in names})
    by_label = numeric.groupby("label", sort=False)
    return pd.concat([by_label.size().rename("heads"), by_label[names].mean()], axis=1).reset_index()
