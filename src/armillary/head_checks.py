"""Whether a head's label names what it uses: take that away, or all else, and see what attention and loss do."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from armillary.anatomy.description import Anatomy
from armillary.atlas import Atlas
from armillary.errors import ArmillaryError
from armillary.interventions.attention import giving, mixed
from armillary.interventions.trial import predicts
from armillary.layout import entry
from armillary.lenses.constituents import means_of
from armillary.lenses.labels import IN_REPEATS, IN_TEXT
from armillary.modes import evaluating
from armillary.passes import repeated_blocks
from armillary.removals import Removal
from armillary.resuming import Resumable
from armillary.streams.constituents import Means
from armillary.streams.patterns import TEXT, Relation, repeats
from armillary.tap import Tap
from armillary.view import AttentionView

USES = {
    **dict.fromkeys(("self", "previous", "next", "local"), ("position", "content")),
    **dict.fromkeys(("induction", "duplicate", "content"), ("content", "position")),
    "matching": ("matching", "all but matching"),
    "preference": ("preference", "all but preference"),
    "first-token": ("first", "others"),
}
"""What a head with this label should need, and what it should not: names of REMOVALS."""


AT_ONCE = 1_000_000
"""So many logits are made float64 at once, in memory that is used again: fresh pages cost more than the losses."""


def uses(label: str) -> tuple[str, str] | None:
    """What a head with this label should need, and what it should not; None where a label says nothing of it."""
    return USES.get(label)


def frequencies_used(label: str) -> tuple[str, str] | None:
    """The same of rotary frequencies: fast ones tell places apart, slow ones carry content (Barbero)."""
    used = (uses(label) or ("",))[0]
    return {"position": ("fast", "slow"), **dict.fromkeys(("content", "matching", "preference"), ("slow", "fast"))}.get(
        used
    )


def sampled_heads(atlas: Atlas, count: int) -> pd.DataFrame:
    """Up to `count` rows of the heads table that have a label to check: labels take turns, significant heads first."""
    if "label" not in atlas.heads or atlas.heads["label"].isna().all():
        raise ArmillaryError("this atlas has no labels: scan with the stream patterns")
    table = atlas.heads[[uses(str(label)) is not None for label in atlas.heads["label"]]]
    table = table.sort_values(["significant", "focus"], ascending=False, kind="stable")
    turn = table.groupby("label").cumcount()
    chosen = table.assign(turn=turn).sort_values("turn", kind="stable").head(count)
    return chosen.sort_values(["layer", "head"])[["layer", "head", "label", "significant"]].reset_index(drop=True)


@dataclass(frozen=True)
class _Head:
    """A head, its label, and which keys the label names."""

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
    blocks: int = 8,
    batch: int = 4,
    track: Callable[[Iterable[Any], str], Iterable[Any]] = lambda items, what: items,
) -> pd.DataFrame:
    """A row for every chosen head: what its attention and the loss do without what it uses, and without the rest.

    used, rest: names of REMOVALS. attention_*: mean over rows of the total variation distance between attention before
    and after; keys_*: attention that the label's own keys lose (matching, preference and content name none); loss_*:
    change of the loss in nats per token. Induction and duplicate heads are asked on random tokens said twice (loss on
    the second copy), the others on the atlas's first blocks. holds: without `used` the label's keys lose more than
    without `rest` (where none are named, attention moves further); loss_holds: the loss rises more. *_frequencies and
    *_other_frequencies are the same for the rotary frequencies that such a head should use and for the others;
    frequencies_hold. Each is missing where the difference is within two standard errors over blocks.
    """
    anatomy = Tap(model).anatomy
    if anatomy.missing:
        raise ArmillaryError(anatomy.missing)
    every = atlas.group("corpus")["tokens"].to_numpy()
    twice, period, begin = repeated_blocks(every, anatomy, atlas.settings["seed"] + 1)
    texts = {
        False: (every[:blocks].astype(np.int64), int(atlas.settings["skip"])),
        True: (twice[:blocks], begin + period),
    }
    heads = [
        _Head(layer, head, str(label), _relation(str(label), period, begin))
        for layer, head, label in zip(chosen["layer"].tolist(), chosen["head"].tolist(), chosen["label"], strict=True)
    ]
    work = [
        (heads_there, tokens[start : start + batch], first)
        for on_repeats, (tokens, first) in texts.items()
        if (heads_there := [head for head in heads if head.on_repeats == on_repeats])
        for start in range(0, len(tokens), batch)
    ]
    means, resumable, with_loss = means_of(atlas), Resumable(model, anatomy), predicts(model)
    found: dict[_Head, list[dict[str, Float[np.ndarray, "block"]]]] = {head: [] for head in heads}
    for heads_there, tokens, first in track(work, "batches of texts"):
        asked = _Batch(resumable, anatomy, means, heads_there, torch.from_numpy(tokens), first, with_loss)
        with evaluating(model):
            measured = asked.measure()
        for head, values in measured.items():
            found[head].append(values)
    rows: list[dict[Any, Any]] = []
    for row, head in zip(chosen.to_dict("records"), heads, strict=True):
        each = {name: np.concatenate([part[name] for part in found[head]]) for name in found[head][0]}
        rows.append({**row, **_verdicts(head, each)})
    return pd.DataFrame(rows)


@dataclass
class _Batch:
    """Some heads on a batch of texts: the model runs once, then once more for each head and removal from its block on.

    What a head gives without something is computed while the model runs, for all heads of a layer together.
    """

    resumable: Resumable
    anatomy: Anatomy
    means: Means
    heads: list[_Head]
    tokens: Int[Tensor, "block token"]
    first: int
    predicts: bool
    moved: dict[tuple[_Head, str], dict[str, Float[np.ndarray, "block"]]] = field(default_factory=dict)
    outputs: dict[tuple[_Head, str], Float[Tensor, "block token ev"]] = field(default_factory=dict)

    @torch.no_grad()
    def measure(self) -> dict[_Head, dict[str, Float[np.ndarray, "block"]]]:
        """attention_*, keys_* and loss_* of every head, for every block of text."""
        model = self.resumable.model
        ids = self.tokens.to(next(model.parameters()).device)
        with Tap(model, self._receive):
            before = self.resumable.run(ids) if self.predicts else entry(model)(input_ids=ids)
        loss = self._losses(before, ids) if self.predicts else np.full(len(ids), np.nan)
        found: dict[_Head, dict[str, Float[np.ndarray, "block"]]] = {head: {} for head in self.heads}
        for (head, removal), values in self.moved.items():
            for name in (name for name, other in _removals(head.label).items() if other == removal):
                found[head] |= {f"{measure}_{name}": value for measure, value in values.items()}
                after = self._losses(self._without(head, removal, before), ids) if self.predicts else loss
                found[head][f"loss_{name}"] = after - loss
        return found

    def _receive(self, view: AttentionView) -> None:
        """What the heads of this layer lose by each removal, and what they give after it."""
        removed = Removal(self.anatomy, self.means, view)
        for head in (head for head in self.heads if head.layer == view.layer):
            before = view.of_head(head.head).attention()[:, 0, self.first :].double()
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
                self.outputs[head, removal] = mixed(view, head.head, after)

    def _without(self, head: _Head, removal: str, before: Any) -> Any:
        """What the model gives when the head gives what it does after the removal."""
        self.resumable.try_block(head.layer, before)
        output = self.outputs.pop((head, removal))
        with giving(self.resumable.model, lambda view: {head.head: output} if view.layer == head.layer else {}):
            return self.resumable.from_block(head.layer)

    def _losses(self, computed: Any, ids: Int[Tensor, "block token"]) -> Float[np.ndarray, "block"]:
        """Mean loss of the tokens that follow row `first` and later ones, of every block."""
        rows = max(1, AT_ONCE // computed.logits.shape[-1])
        each = []
        for logits, following in zip(computed.logits[:, self.first : -1], ids[:, self.first + 1 :], strict=True):
            parts = zip(logits.split(rows), following.split(rows), strict=True)
            each.append(torch.cat([cross_entropy(a.double(), b, reduction="none") for a, b in parts]).mean())
        return torch.stack(each).cpu().numpy()


def _verdicts(head: _Head, each: dict[str, Float[np.ndarray, "block"]]) -> dict[str, Any]:
    parts = uses(head.label)
    assert parts is not None
    found: dict[str, Any] = {
        "used": parts[0],
        "rest": parts[1],
        **{name: values.mean() for name, values in each.items()},
    }
    decides = "attention" if head.relation is None else "keys"
    found["holds"] = _larger(each[f"{decides}_used"], each[f"{decides}_rest"])
    found["loss_holds"] = _larger(each["loss_used"], each["loss_rest"])
    if f"{decides}_frequencies" in each:
        found["frequencies_hold"] = _larger(each[f"{decides}_frequencies"], each[f"{decides}_other_frequencies"])
    return found


def _larger(a: Float[np.ndarray, "block"], b: Float[np.ndarray, "block"]) -> bool | None:
    """Whether a is larger than b on average, or None within two standard errors of the difference over blocks."""
    difference = a - b
    error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else np.inf
    return None if not abs(difference.mean()) > 2 * error else bool(difference.mean() > 0)


def _removals(label: str) -> dict[str, str]:
    """What is taken out, by the name of the columns that it fills."""
    names = ("used", "rest", "frequencies", "other_frequencies")
    return dict(zip(names, (*(uses(label) or ()), *(frequencies_used(label) or ())), strict=False))


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """By label: how many heads, and for what share of those that are decided it is as the label says; 0.5 is chance."""
    names = [name for name in ("holds", "loss_holds", "frequencies_hold") if name in table]
    told = table.assign(**{name: table[name].astype("Float64") for name in names})
    by_label = told.groupby("label", sort=False)
    return pd.concat([by_label.size().rename("heads"), by_label[names].mean()], axis=1).reset_index()
