"""Whether a head's label names what it uses: take that away, or all else, and see what attention and loss do."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from armillary.anatomy.description import Anatomy, Rotary
from armillary.atlas import Atlas
from armillary.errors import ArmillaryError
from armillary.interventions.attention import attending
from armillary.interventions.trial import predicts
from armillary.layout import entry
from armillary.lenses.constituents import means_of
from armillary.lenses.labels import IN_REPEATS, IN_TEXT
from armillary.modes import evaluating
from armillary.passes import repeated_blocks
from armillary.softmax import softmax, wide_products
from armillary.streams.constituents import LogitParts, Means
from armillary.streams.patterns import TEXT, Relation, repeats
from armillary.streams.stream import wide
from armillary.tap import Tap
from armillary.view import AttentionView, soft_capped

BY_POSITION = ("self", "previous", "next", "local")
BY_CONTENT = ("induction", "duplicate", "content")
REMOVALS = ("position", "content", "fast", "slow", "first", "others")
"""position: the terms of the logits without content, and the bias; content: those with; fast, slow: rotary frequencies
that turn at least once within the text, and the others with all that does not turn; first: what tells the first key
from the mean of the others; others: what tells the others from their mean."""


def uses(label: str) -> tuple[str, str] | None:
    """What a head with this label should need, and what it should not."""
    if label in BY_POSITION:
        return "position", "content"
    if label in BY_CONTENT:
        return "content", "position"
    return ("first", "others") if label == "first-token" else None


def frequencies_used(label: str) -> tuple[str, str] | None:
    """The same of rotary frequencies: fast ones tell places apart, slow ones carry content (Barbero)."""
    return {"position": ("fast", "slow"), "content": ("slow", "fast")}.get((uses(label) or ("", ""))[0])


def sampled_heads(atlas: Atlas, count: int) -> pd.DataFrame:
    """Up to `count` rows of the heads table that have a label to check: labels take turns, confident heads first."""
    if "label" not in atlas.heads or atlas.heads["label"].isna().all():
        raise ArmillaryError("this atlas has no labels: scan with the stream patterns")
    table = atlas.heads[[uses(str(label)) is not None for label in atlas.heads["label"]]]
    table = table.sort_values(["confident", "focus"], ascending=False, kind="stable")
    turn = table.groupby("label").cumcount()
    chosen = table.assign(turn=turn).sort_values("turn", kind="stable").head(count)
    return chosen.sort_values(["layer", "head"])[["layer", "head", "label", "confident"]].reset_index(drop=True)


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


@dataclass(frozen=True)
class _Checked:
    """What the checks run on."""

    model: nn.Module
    anatomy: Anatomy
    means: Means
    batch: int

    def without(self, view: AttentionView, head: int, removal: str) -> Float[Tensor, "batch query key"] | None:
        """The head's attention when this is taken out of its logits; None where there is no such thing."""
        one = view.of_head(head)
        seen = one.visible().expand(one.q.shape[0], -1, -1, -1)
        products = wide_products(one, slice(None))
        bias = wide(one.bias) if one.bias is not None else torch.zeros((), dtype=torch.float64)
        if removal in ("position", "content"):
            terms = LogitParts(self.anatomy, self.means, view).of_head(head)
            content = torch.stack([terms[i] for i in range(9) if i in CONTENT_TERMS]).sum(0)
            products = content if removal == "position" else products - content
            bias = torch.zeros_like(bias) if removal == "position" else bias
        elif removal in ("fast", "slow"):
            fast = fast_channels(self.anatomy, view)
            if fast is None:
                return None
            quick = (wide(one.q[..., fast]) @ wide(one.k[..., fast]).transpose(-1, -2)) * one.scale
            products = products - quick if removal == "fast" else quick
        else:
            others = seen.clone()
            others[..., 0] = False
            mean = (products * others).sum(-1, keepdim=True) / others.sum(-1, keepdim=True).clamp(min=1)
            here = torch.arange(products.shape[-1], device=products.device) == 0
            products = torch.where(here if removal == "first" else ~here, mean, products)
        return softmax(one, soft_capped(products, one.softcap) + bias, seen).attention[:, 0]


CONTENT_TERMS = (2, 5, 6, 7, 8)
"""The places of the products with cvec among the nine of LogitParts."""


def fast_channels(anatomy: Anatomy, view: AttentionView) -> Int[Tensor, "channel"] | None:
    """The channels of q and k whose frequency turns at least once within the text; None without rotary encoding."""
    rotary = anatomy.layers[view.layer].position
    if not isinstance(rotary, Rotary):
        return None
    turning = [
        f for f, radians in enumerate(rotary.at(view.queries).frequencies) if abs(radians) * view.queries >= 2 * np.pi
    ]
    half = rotary.width // 2
    pairs = [(f, f + half) if rotary.layout == "half" else (2 * f, 2 * f + 1) for f in turning]
    return torch.tensor([channel for pair in pairs for channel in pair], dtype=torch.long, device=view.q.device)


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
    and after; keys_*: attention that the label's own keys lose (none are named by `content`); loss_*: change of the
    loss in nats per token. Induction and duplicate heads are asked on random tokens said twice (loss on the second
    copy), the others on the atlas's first blocks. holds: without `used` the label's keys lose more than without `rest`
    (for content, attention moves further); loss_holds: the loss rises more. *_frequencies and *_other_frequencies are
    the same for the rotary frequencies that such a head should use and for the others; frequencies_hold. Each is
    missing where the difference is within two standard errors over blocks.
    """
    anatomy = Tap(model).anatomy
    if anatomy.missing:
        raise ArmillaryError(anatomy.missing)
    every = atlas.group("corpus")["tokens"].to_numpy()
    twice, period, begin = repeated_blocks(every, anatomy, atlas.settings["seed"] + 1)
    means, skip = means_of(atlas), int(atlas.settings["skip"])
    checked = _Checked(model, anatomy, means, batch)
    text = every[:blocks].astype(np.int64)
    settings = {False: (text, skip), True: (twice[:blocks], begin + period)}
    before: dict[bool, Float[np.ndarray, "block"]] = {}
    rows = []
    for row in track(list(chosen.itertuples(index=False)), "heads"):
        head = _Head(int(row.layer), int(row.head), str(row.label), _relation(str(row.label), period, begin))
        tokens, first = settings[head.on_repeats]
        if head.on_repeats not in before:
            before[head.on_repeats] = _losses(checked, tokens, first)
        rows.append({**row._asdict(), **_check(checked, head, tokens, first, before[head.on_repeats])})
    return pd.DataFrame(rows)


def _check(
    checked: _Checked,
    head: _Head,
    tokens: Int[np.ndarray, "block token"],
    first: int,
    before: Float[np.ndarray, "block"],
) -> dict[str, Any]:
    parts = uses(head.label)
    assert parts is not None
    names = dict(zip(("used", "rest", "frequencies", "other_frequencies"), _removals(head.label), strict=False))
    moved = _moves(checked, head, tuple(names.values()), tokens, first)
    each: dict[str, Float[np.ndarray, "block"]] = {}
    for name, removal in names.items():
        if removal in moved:
            each[f"attention_{name}"], each[f"keys_{name}"] = moved[removal].T
            each[f"loss_{name}"] = _losses(checked, tokens, first, (head, removal)) - before
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


def _removals(label: str) -> tuple[str, ...]:
    return (*(uses(label) or ()), *(frequencies_used(label) or ()))


@torch.no_grad()
def _moves(
    checked: _Checked, head: _Head, removals: tuple[str, ...], tokens: Int[np.ndarray, "block token"], first: int
) -> dict[str, Float[np.ndarray, "block 2"]]:
    """Total variation, and what the label's keys lose, under each removal: means over a block's late rows."""
    found: dict[str, list[Tensor]] = {}

    def receive(view: AttentionView) -> None:
        if view.layer != head.layer:
            return
        before = view.attention()[:, head.head, first:].double()
        place = torch.arange(view.queries, device=before.device)
        keys = None if head.relation is None else head.relation(place[first:, None], place[None])
        for removal in removals:
            after = checked.without(view, head.head, removal)
            if after is not None:
                change = after[:, first:] - before
                lost = (
                    torch.full_like(change[:, 0, 0], torch.nan) if keys is None else -(change * keys).sum(-1).mean(-1)
                )
                found.setdefault(removal, []).append(torch.stack([change.abs().sum(-1).mean(-1) / 2, lost], 1))

    with evaluating(checked.model), Tap(checked.model, receive):
        for ids in _batches(checked, tokens):
            entry(checked.model)(input_ids=ids)
    return {removal: torch.cat(parts).cpu().numpy() for removal, parts in found.items()}


@torch.no_grad()
def _losses(
    checked: _Checked,
    tokens: Int[np.ndarray, "block token"],
    first: int,
    change: "tuple[_Head, str] | None" = None,
) -> Float[np.ndarray, "block"]:
    """Mean loss of the tokens that follow row `first` and later ones, of every block; NaN where none are predicted."""
    if not predicts(checked.model):
        return np.full(len(tokens), np.nan)

    def told(view: AttentionView) -> dict[int, Tensor]:
        if change is None or view.layer != change[0].layer:
            return {}
        after = checked.without(view, change[0].head, change[1])
        return {} if after is None else {change[0].head: after}

    parts = []
    with evaluating(checked.model), attending(checked.model, told):
        for ids in _batches(checked, tokens):
            logits = checked.model(input_ids=ids).logits[:, first:-1].double()
            parts.append(cross_entropy(logits.transpose(1, 2), ids[:, first + 1 :], reduction="none").mean(-1))
    return torch.cat(parts).cpu().numpy()


def _batches(checked: _Checked, tokens: Int[np.ndarray, "block token"]) -> Iterable[Int[Tensor, "block token"]]:
    device = next(checked.model.parameters()).device
    for start in range(0, len(tokens), checked.batch):
        yield torch.from_numpy(tokens[start : start + checked.batch]).to(device)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """By label: how many heads, and for what share of those that are decided it is as the label says; 0.5 is chance."""
    names = [name for name in ("holds", "loss_holds", "frequencies_hold") if name in table]
    told = table.assign(**{name: table[name].astype("Float64") for name in names})
    by_label = told.groupby("label", sort=False)
    return pd.concat([by_label.size().rename("heads"), by_label[names].mean()], axis=1).reset_index()
