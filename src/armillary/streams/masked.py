"""Attention statistics of a block of rows, for any mask, bias or soft-cap; all pairs are visited."""

import torch
from jaxtyping import Float
from torch import Tensor

from armillary.observe.precision import wide
from armillary.observe.view import soft_capped
from armillary.streams.by_place import Places
from armillary.streams.localization import Propagation, least_entropy
from armillary.streams.rows import (
    HIDDEN,
    CenteredRows,
    attention_rows,
    attention_sums,
    centered_rows,
    channel_sums,
    logit_moments,
    read,
    row_powers,
    soft_rows,
    spread_of,
    together,
)
from armillary.streams.stream import State
from armillary.streams.tiles import Rows, Tile, of_heads, tiles


class MaskedBlock:
    """The masks that all heads share, and the sums of each head."""

    def __init__(self, block: Rows, skip: int, places: Places) -> None:
        self.block, self.places = block, places
        self.view = view = block.view
        self.seen = block.seen()
        kept = self.seen.clone()
        self.skipped = max(0, min(skip, block.keys.stop) - block.keys.start)
        kept[..., : self.skipped] = False
        dtype = torch.promote_types(view.q.dtype, torch.float32)
        self.hidden = torch.zeros(kept.shape, dtype=dtype, device=kept.device).masked_fill_(~self.seen, HIDDEN)
        self.kept = kept.to(dtype)
        self.visible, self.count = wide(self.seen.sum(-1)), wide(kept.sum(-1))
        self.distance = (block.query[:, None] - block.places).abs().to(dtype)
        self.propagation = Propagation.masked(kept, block.query, places.length)

    def state(self) -> State:
        parts = [self._tile(tile) for tile in tiles(self.block)]
        sums = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        batch = self.view.q.shape[0]
        pairs = wide(self.kept[:, :1].expand(batch, -1, -1, -1).sum(0))  # the same in all heads
        self.places.add_pairs_by_lag("lag_count", slice(0, 1), self.block, pairs)
        self.places.add_pairs_by_cell("cell_count", slice(0, 1), self.block, pairs)
        rows = torch.tensor(float(batch * len(self.block.query)), dtype=torch.float64, device=pairs.device)
        return {**sums, "rows": rows}

    def _tile(self, tile: Tile) -> State:
        heads = tile.heads
        hidden, kept, visible, count, seen = (
            of_heads(part, heads) for part in (self.hidden, self.kept, self.visible, self.count, self.seen)
        )
        logits = tile.products if tile.bias is None else tile.products + tile.bias
        capped = logits
        if self.view.softcap is not None:
            capped = soft_capped(tile.products, self.view.softcap) + (0.0 if tile.bias is None else tile.bias)
        soft, weight = soft_rows(capped, hidden, visible, self.distance, self.block)
        sinks = None if self.view.sinks is None else self.view.sinks[heads]
        attention = attention_rows(soft, weight, sinks).mul_(kept)
        self.places.add_pairs_by_lag("lag_attention", heads, self.block, wide(attention).sum(0))
        rows = centered_rows(logits, kept, count)
        powers = row_powers(rows)
        if self.view.softcap is not None:
            square = centered_rows(capped, seen.to(capped.dtype), visible).square
        else:
            others = spread_of(logits[..., : self.skipped], seen[..., : self.skipped])
            square = together(powers, others).square
        biased = torch.zeros_like(powers.mean) if tile.bias is None else wide((rows.off * tile.bias).sum(-1))
        read_keys = read(rows.off, tile.k)
        once, twice = self._over_texts(rows, kept)
        self.places.add_pairs_by_lag("lag_sum", heads, self.block, once)
        self.places.add_pairs_by_lag("lag_square", heads, self.block, twice)
        self.places.add_pairs_by_cell("cell_sum", heads, self.block, once)
        return {
            **attention_sums(soft, visible, sinks),
            **logit_moments(powers),
            **channel_sums(tile.q, read_keys, biased, powers.square),
            **self._hits(rows.off, heads, kept),
            "least_entropy": least_entropy(square, visible).sum((0, 2)),
        }

    def _hits(
        self, off: Float[Tensor, "batch head row key"], heads: slice, kept: Float[Tensor, "#batch #head row key"]
    ) -> State:
        late = self.propagation.late
        passes = self.propagation.passes(off, heads, torch.empty_like(off[:, :, late]))
        return self.propagation.hits(passes.mul_(kept[:, :, late]), heads)

    @staticmethod
    def _over_texts(
        rows: CenteredRows, kept: Float[Tensor, "#batch #head row key"]
    ) -> tuple[Float[Tensor, "head row key"], Float[Tensor, "head row key"]]:
        """Sums over sequences of the logits and of their squares, from sums about their mean for precision.

        Overwrites rows.squares.
        """
        if len(rows.masked) == 1:
            logits = wide(rows.masked[0])
            return logits, logits.square()
        count = kept.expand(rows.masked.shape[0], -1, -1, -1).sum(0)
        near = rows.masked.sum(0) / count.clamp(min=1)
        off = torch.addcmul(rows.masked, near, kept, value=-1)
        left, square = off.sum(0), torch.mul(off, off, out=rows.squares).sum(0)
        middle, number, rest = wide(near), wide(count), wide(left)
        return rest + middle * number, wide(square) + 2 * middle * rest + middle.square() * number
