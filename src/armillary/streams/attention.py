"""Entropy, masses, distances and logit moments of every head, in one pass over its logits, a tile at a time."""

from jaxtyping import Float
from torch import Tensor

from armillary.errors import ArmillaryError
from armillary.machine.compiler import serves as compiler_serves
from armillary.observe.view import AttentionView
from armillary.streams.by_place import Places
from armillary.streams.declaration import Declaration, Option, Reads
from armillary.streams.masked import MaskedBlock
from armillary.streams.power_sums import MOMENT_STATE, MOMENTS, combine_moments, finish_moments
from armillary.streams.stream import State
from armillary.streams.tiles import row_blocks


class AttentionStatistics:
    """Per head, over rows t >= skip: entropy, masses, distance; of the logits: moments, moments by lag, mean matrix.

    Attention counts all visible keys, including the first. Logit moments count only pairs of kept tokens (the first
    `skip` tokens are left out as queries and as keys), before the soft-cap. Entropy counts a sink as one more outcome.
    attention_by_lag: mean attention of the same pairs by lag, what position alone explains.
    rho: how often a key in each of PLACES parts passes a signal (streams/localization.py); rho_keys: mean number of
    keys. channel_share, bias_share: share of the logits of each channel of q and k, and of the bias, defined like the
    share_* columns (docs/reference.md); they add to 1. Sums along a row of logits, and by lag over a block's rows, are
    float32 (float64 if the model is), sums of these float64.
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
            "attention_by_lag": ("head", "lag"),
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
                f"{batch.queries} queries and {batch.keys} keys do not fit these statistics: they are for texts of up "
                f"to {self.length} tokens, with more than the {self.skip} skipped ones"
            )
        if compiler_serves(batch.q):
            # for start-up: it imports numba, which may be missing
            from armillary.streams.fused import FusedLayer

            return FusedLayer(batch, self.skip, self.length).state()
        places = Places(batch.heads, self.length, batch.q.device)
        total: State = {}
        for block in row_blocks(batch, self.skip):
            state = MaskedBlock(block, self.skip, places).state()
            total = self._add(total, state) if total else state
        return total | places.state

    @staticmethod
    def _add(total: State, state: State) -> State:
        """The same as `combine`, in place."""
        moments = combine_moments(total, state)
        for name, tensor in total.items():
            if name not in MOMENT_STATE:
                tensor += state[name]
        return total | moments

    def combine(self, a: State, b: State) -> State:
        added = {name: a[name] + b[name] for name in a if name not in MOMENT_STATE}
        return {**added, **combine_moments(a, b)}

    def finish(self, state: State) -> dict[str, Tensor]:
        rows = state["rows"]
        means = {name: state[name] / rows for name in MASSES}
        lags = slice(self.length - 1, None)  # keys at the query's position or before it
        mean_by_lag = state["lag_sum"] / state["lag_count"]
        by_lag = state["lag_square"] / state["lag_count"] - mean_by_lag.square()
        return {
            **means,
            "entropy_norm": state["entropy_norm"] / state["entropy_rows"],
            **finish_moments(state),
            "logit_mean_by_lag": mean_by_lag[:, lags],
            "logit_variance_by_lag": by_lag[:, lags].clamp(min=0),
            "attention_by_lag": self.attention_by_lag(state)[:, lags],
            "logit_matrix": state["cell_sum"] / state["cell_count"],
            "rho": state["rho_hits"] / state["rho_count"],
            "rho_keys": state["rho_keys"] / state["rho_rows"],
            "channel_share": state["channel_sum"] / state["logit_square"][:, None],
            "bias_share": state["bias_sum"] / state["logit_square"],
            "logit_square": state["logit_square"],
        }

    @staticmethod
    def attention_by_lag(state: State) -> Float[Tensor, "head lag"]:
        """The mean attention of kept pairs at each lag i - j, from -(length - 1) on; 0 where there are none."""
        return state["lag_attention"] / state["lag_count"].clamp(min=1)


MASSES = ("entropy", "least_entropy", "self_mass", "prev_mass", "first_mass", "sink_mass", "mean_distance")


ATTENTION = Option("attention", "entropy, masses, distances and logits of every head")

HEADS = Declaration(
    "attention.head",
    ATTENTION,
    Reads.ATTENTION,
    lambda context: AttentionStatistics(context.skip, context.length),
    lenses=("heads", "labels", "localization", "rotary", "gaussian"),
    plain=True,
)
