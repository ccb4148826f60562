"""Names of what writes the residual stream: the embedding, every head, every MLP; and of the sides of a head."""

from armillary.anatomy.description import Anatomy

SIDES = ("query", "key", "value")
"""What a head computes from its input: each is split by what wrote that input."""

OTHERS = ("embedding", "biases", "position bias", "rounding")
"""Sources besides heads, MLPs and mixers. rounding: what the parts leave of the logits that the model computed."""


def source_names(anatomy: Anatomy) -> tuple[str, ...]:
    """Every source in order: OTHERS, then block by block its heads (L3H5), its MLP (MLP3) and its mixer (mixer3).

    Heads are named by layer, MLPs and mixers (what a block has besides attention and MLP) by block; the two numbers are
    the same unless some blocks have no attention.
    """
    return (*OTHERS, *(name for _, name in places(anatomy)))


def places(anatomy: Anatomy) -> list[tuple[tuple[str, int, int], str]]:
    """(kind, block, head) and the name of heads, MLPs and mixers, block by block."""
    layers = {_block_number(layer.block): layer for layer in anatomy.layers}
    named: list[tuple[tuple[str, int, int], str]] = []
    for block in range(len(anatomy.layers) + len(anatomy.skipped)):
        if block in layers:
            layer = layers[block]
            named += [(("heads", block, head), f"L{layer.index}H{head}") for head in range(layer.heads)]
        named.append((("mlp", block, 0), f"MLP{block}"))
        named.append((("mixer", block, 0), f"mixer{block}"))
    return named


def _block_number(name: str) -> int:
    last = name.rpartition(".")[2]
    return int(last) if last.isdigit() else 0
