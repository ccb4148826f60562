"""What every head's attention looks like, in one pass over its logits, a tile at a time."""

import torch
from jaxtyping import Float
from torch import Tensor

from armillary.errors import ArmillaryError
from armillary.parallel import in_parallel
from armillary.streams.by_place import Places
from armillary.streams.interior import Interior, Shared, interior_keys
from armillary.streams.localization import Propagation, least_entropy
from armillary.streams.power_sums import MOMENT_STATE, MOMENTS, combine_moments, finish_moments
from armillary.streams.rows import (
    HIDDEN,
    CentredRows,
    RowPowers,
    RowSums,
    SoftRows,
    attention_sums,
    centred_rows,
    channel_sums,
    joined,
    logit_moments,
    read,
    row_powers,
    soft_rows,
    spread_of,
    together,
)
from armillary.streams.stream import State, wide
from armillary.streams.tiles import Rows, Tile, of_heads, row_blocks, tiles
from armillary.view import AttentionView, soft_capped


class AttentionStatistics:
    """Per head, over rows t >= skip: entropy, masses, distance; and of the logits: moments, by lag, mean matrix.

    Rows see all their visible keys, the first ones too. Logit moments count pairs of kept tokens only (the first
    `skip` take no part, as queries or as keys), before the soft-cap. Entropy counts a sink as one more outcome. rho:
    how often each of PLACES parts of the keys passes a signal (streams/localization.py), rho_keys keys on average.
    channel_share, bias_share: shares of the logits, as in MEASURES 'Constituents', of each channel of q and k; they
    add to 1. Sums along a row of logits are float32 (float64 if the model is), sums of rows float64.
    """

    def __init__(self, skip: int, length: int) -> None:
        self.skip = skip
        self.length = length
        per_head = (
            "entropy",
            "entropy_norm",
            "least_entropy",
            "self_mass",
            "prev_mass",
            "first_mass",
            "sink_mass",
            "mean_distance",
        )
        self.dims: dict[str, tuple[str, ...]] = {
            **dict.fromkeys((*per_head, *MOMENTS), ("head",)),
            "logit_mean_by_lag": ("head", "lag"),
            "logit_variance_by_lag": ("head", "lag"),
            "logit_matrix": ("head", "query_cell", "key_cell"),
            "rho": ("head", "place"),
            "rho_keys": ("head",),
            "channel_share": ("head", "channel"),
            "bias_share": ("head",),
            "logit_square": ("head",),
        }

    def measure(self, batch: AttentionView) -> State:
        if batch.queries <= self.skip or batch.keys > self.length:
            raise ArmillaryError(
                f"{batch.queries} queries and {batch.keys} keys, without the first {self.skip}: these statistics were "
                f"made for texts of up to {self.length} tokens, and need one after the skipped"
            )
        shared, total = Shared(batch), Places(self.length).nothing(batch.heads, batch.q.device)
        rows: State = {}

        def work(block: Rows) -> tuple[State, Places]:
            places = Places(self.length)
            return _Block(batch, block, self.skip, shared, places).state(), places

        blocks = list(row_blocks(batch, self.skip))
        for found, places in in_parallel(work, blocks) if batch.q.device.type == "cpu" else map(work, blocks):
            rows = self._add(rows, found) if rows else found
            places.add_to(total)
        return {**rows, **total}

    @staticmethod
    def _add(total: State, found: State) -> State:
        """What `combine` gives, in the memory of the first."""
        moments = combine_moments(total, found)
        for name, tensor in total.items():
            if name not in MOMENT_STATE:
                tensor += found[name]
        return total | moments

    def combine(self, a: State, b: State) -> State:
        added = {name: a[name] + b[name] for name in a if name not in MOMENT_STATE}
        return {**added, **combine_moments(a, b)}

    def finish(self, state: State) -> dict[str, Tensor]:
        rows = state["rows"]
        means = {name: state[name] / rows for name in MASSES}
        lags = slice(self.length - 1, None)  # keys at the query's place or before it
        mean_by_lag = state["lag_sum"] / state["lag_count"]
        by_lag = state["lag_square"] / state["lag_count"] - mean_by_lag.square()
        return {
            **means,
            "entropy_norm": state["entropy_norm"] / state["entropy_rows"],
            **finish_moments(state),
            "logit_mean_by_lag": mean_by_lag[:, lags],
            "logit_variance_by_lag": by_lag[:, lags].clamp(min=0),
            "logit_matrix": state["cell_sum"] / state["cell_count"],
            "rho": state["rho_hits"] / state["rho_count"],
            "rho_keys": state["rho_keys"] / state["rho_rows"],
            "channel_share": state["channel_sum"] / state["logit_square"][:, None],
            "bias_share": state["bias_sum"] / state["logit_square"],
            "logit_square": state["logit_square"],
        }


MASSES = ("entropy", "least_entropy", "self_mass", "prev_mass", "first_mass", "sink_mass", "mean_distance")


class _Block:
    """A block of rows: what all heads share, and the sums of each.

    Keys that all rows see, away from the diagonal, go their own way if there are many (streams/interior.py); the
    others are masked here.
    """

    def __init__(self, view: AttentionView, block: Rows, skip: int, shared: Shared, places: Places) -> None:
        self.view, self.places = view, places
        kept = block.seen.clone()
        kept[..., : max(0, skip - block.spans[0].start)] = False
        self.all_seen, self.all_kept = wide(block.seen.sum(-1)), wide(kept.sum(-1))
        self.propagation = Propagation(kept, block.query, places.length)
        inner = interior_keys(view, block, skip)
        self.inside = None if inner is None else Interior(view, block, inner, shared)
        size = 0 if self.inside is None else self.inside.size
        self.visible, self.count = self.all_seen - size, self.all_kept - size
        self.block = block = block if inner is None else block.around(inner)
        keys = block.keys
        dtype = torch.promote_types(view.q.dtype, torch.float32)
        self.hidden = torch.zeros(block.seen.shape, dtype=dtype, device=kept.device).masked_fill_(~block.seen, HIDDEN)
        self.skipped = int((keys < skip).sum())
        self.kept = block.seen.to(dtype)
        self.kept[..., : self.skipped] = 0
        self.distance = (block.query[:, None] - keys).abs().to(dtype)

    def state(self) -> State:
        parts = [self._tile(tile) for tile in tiles(self.view, self.block)]
        found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        batch = self.view.q.shape[0]
        pairs = wide(self.kept[:, :1].expand(batch, -1, -1, -1).sum(0))  # alike in all heads
        self.places.add_pairs_by_lag("lag_count", slice(0, 1), self.block, pairs)
        self.places.add_pairs_by_cell("cell_count", slice(0, 1), self.block, pairs)
        if self.inside is not None:
            self.inside.count(self.places, batch)
        rows = torch.tensor(float(batch * len(self.block.query)), dtype=torch.float64, device=pairs.device)
        return {**found, "rows": rows}

    def _tile(self, tile: Tile) -> State:
        heads = tile.heads
        hidden, kept, visible, count, seen, all_seen = (
            of_heads(part, heads)
            for part in (self.hidden, self.kept, self.visible, self.count, self.block.seen, self.all_seen)
        )
        logits = tile.products if tile.bias is None else tile.products + tile.bias
        shown = logits
        if self.view.softcap is not None:
            shown = soft_capped(tile.products, self.view.softcap) + (0.0 if tile.bias is None else tile.bias)
        soft = soft_rows(shown, hidden, visible, self.distance, self.block)
        off = centred_rows(logits, kept, count)
        powers = row_powers(off)
        once, twice = self._over_texts(off, kept)
        self.places.add_pairs_by_lag("lag_sum", heads, self.block, once)
        self.places.add_pairs_by_lag("lag_square", heads, self.block, twice)
        self.places.add_pairs_by_cell("cell_sum", heads, self.block, once)
        rows = self._rows(tile, soft, off, powers)
        if self.view.softcap is not None:
            square = centred_rows(shown, seen.to(shown.dtype), visible).square
        else:
            others = spread_of(logits[..., : self.skipped], seen[..., : self.skipped])
            square = together((*rows.powers, others)).square
        biased = torch.zeros_like(powers.mean) if tile.bias is None else wide((off.off * tile.bias).sum(-1))
        sinks = None if self.view.sinks is None else self.view.sinks[heads]
        return {
            **attention_sums(rows.soft, all_seen, sinks),
            **logit_moments(*rows.powers),
            **channel_sums(tile.q, rows.found, biased, together(rows.powers).square),
            **rows.hits,
            "least_entropy": least_entropy(square, all_seen).sum((0, 2)),
        }

    def _rows(self, tile: Tile, soft: SoftRows, off: CentredRows, powers: RowPowers) -> RowSums:
        """What all keys of these rows say: those that are masked, and those inside."""
        heads, kept, late = tile.heads, of_heads(self.kept, tile.heads), self.propagation.late
        found, passes = wide(read(off.off, tile.k)), torch.empty_like(off.off[:, :, late])
        if self.inside is None:
            self.propagation.passes(off.off, None, heads, passes).mul_(kept[:, :, late])
            return RowSums(soft, (powers,), found, self.propagation.hits(passes, heads))
        means = self.inside.means(tile.q, heads)
        mean = (powers.mean * powers.count + means * self.inside.size) / (powers.count + self.inside.size)
        beside, within = powers.mean - mean, means - mean
        self.propagation.passes(off.off, beside, heads, passes).mul_(kept[:, :, late])
        inner = self.inside.measure(tile.q, heads, means, within, self.propagation, passes, self.places)
        keys = read(kept.expand(len(tile.q), tile.k.shape[1], -1, -1), tile.k).repeat_interleave(self.inside.group, 1)
        found += beside[..., None] * wide(keys) + inner.found
        return RowSums(joined(soft, inner.soft), (powers, *inner.powers), found, inner.hits)

    @staticmethod
    def _over_texts(
        rows: CentredRows, kept: Float[Tensor, "#batch #head row key"]
    ) -> tuple[Float[Tensor, "head row key"], Float[Tensor, "head row key"]]:
        """Sums over texts of the logits and of their squares, from those about their mean: large means keep digits.

        Overwrites rows.squares.
        """
        if len(rows.masked) == 1:
            one = wide(rows.masked[0])
            return one, one.square()
        count = kept.expand(rows.masked.shape[0], -1, -1, -1).sum(0)
        near = rows.masked.sum(0) / count.clamp(min=1)
        off = torch.addcmul(rows.masked, near, kept, value=-1)
        left, square = off.sum(0), torch.mul(off, off, out=rows.squares).sum(0)
        middle, number, rest = wide(near), wide(count), wide(left)
        return rest + middle * number, wide(square) + 2 * middle * rest + middle.square() * number
