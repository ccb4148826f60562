"""What every head's attention looks like, in one pass over its logits, a tile at a time."""

from torch import Tensor

from armillary.errors import ArmillaryError
from armillary.streams.by_place import Places
from armillary.streams.causal import CausalBlock, LayerKeys
from armillary.streams.causal_geometry import plain_keys
from armillary.streams.masked import MaskedBlock
from armillary.streams.power_sums import MOMENT_STATE, MOMENTS, combine_moments, finish_moments
from armillary.streams.stream import State
from armillary.streams.tiles import row_blocks
from armillary.view import AttentionView


class AttentionStatistics:
    """Per head, over rows t >= skip: entropy, masses, distance; and of the logits: moments, by lag, mean matrix.

    Rows see all their visible keys, the first ones too. Logit moments count pairs of kept tokens only (the first
    `skip` take no part, as queries or as keys), before the soft-cap. Entropy counts a sink as one more outcome. rho:
    how often each of PLACES parts of the keys passes a signal (streams/localization.py), rho_keys keys on average.
    channel_share, bias_share: shares of the logits, as in MEASURES 'Constituents', of each channel of q and k; they
    add to 1. Sums along a row of logits, and by lag over a block's rows, are float32 (float64 if the
    model is), sums of these float64.
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
        places, layer = Places(batch.heads, self.length, batch.q.device), LayerKeys(batch)
        total: State = {}
        for block in row_blocks(batch, self.skip):
            plain = plain_keys(block, self.skip)
            if plain is None:
                found = MaskedBlock(block, self.skip, places).state()
            else:
                found = CausalBlock(block, plain, self.skip, layer, places).state()
            total = self._add(total, found) if total else found
        return total | places.state

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
