"""Sources: shares of the embedding, every earlier head and every MLP in each head's logits and output."""

from torch import Tensor

from armillary.anatomy.sources import source_names
from armillary.streams.declaration import Context, Declaration, Option, Pass, Reads
from armillary.streams.stream import State

SEQUENCES = 8
"""The pass runs over this many sequences."""


class SourceShares:
    """share of a source = its product with b (or o) / sum(b b) (or sum(o o)); the shares of each side add to 1.

    A batch is what `observe.sources.Sources.products` gives for a layer on one sequence.
    """

    def __init__(self, sources: int) -> None:
        self.sources = sources
        self.dims: dict[str, tuple[str, ...]] = {"share": ("side", "head", "source")}

    def measure(self, batch: State) -> State:
        return batch

    def combine(self, a: State, b: State) -> State:
        return {name: a[name] + b[name] for name in a}

    def finish(self, state: State) -> dict[str, Tensor]:
        return {"share": state["products"] / state["total"][..., None]}


def _shares(context: Context) -> SourceShares | None:
    """None where what writes the stream is not known."""
    anatomy = context.anatomy
    if anatomy.missing or anatomy.shared_layers or any(layer.clip_qkv is not None for layer in anatomy.layers):
        return None
    return SourceShares(len(source_names(anatomy)))


SHARES = Declaration(
    "sources.share",
    Option(
        "sources",
        f"what wrote each head's query, key and value: embedding, earlier heads, MLPs (a pass over {SEQUENCES} "
        "sequences, each of which runs twice and is split in float64: about ten forward passes each)",
        default=False,
    ),
    Reads.SOURCES,
    _shares,
    lenses=("sources",),
    when=Pass.SOURCES,
    plain=True,
)
