"""Heads as options name them: numbers (0,2), or heads of their own layers (L3H5 or 3.5)."""

from armillary.commands.options import numbers
from armillary.errors import ArmillaryError
from armillary.text.numerals import head_name


def chosen_heads(layers: str | None, heads: str | None) -> list[int] | list[tuple[int, int]] | None:
    """--heads as head numbers, or, if they name their layers, as (layer, head) pairs; None where it was not given."""
    if heads is None:
        return None
    named = [head_name(part) for part in heads.split(",")]
    pairs = [pair for pair in named if pair is not None]
    if not pairs:
        return numbers("--heads", heads)
    if len(pairs) < len(named):
        raise ArmillaryError(
            f"--heads {heads} names some heads with their layers and some without",
            advice="write all as in L3H5,L4H0, or all as in 0,2",
        )
    if layers is not None:
        raise ArmillaryError(f"--heads {heads} already names the layers", advice="leave --layers out")
    return pairs


def averaged_heads(layers: str | None, heads: str | None) -> tuple[list[int] | None, list[int] | None]:
    """--layers and --heads where every layer is averaged over the same heads: L3H5 means layer 3 and head 5."""
    chosen = chosen_heads(layers, heads)
    if chosen is None or isinstance(chosen[0], int):
        return numbers("--layers", layers), chosen
    pairs = [pair for pair in chosen if isinstance(pair, tuple)]
    in_layers, in_heads = sorted({layer for layer, _ in pairs}), sorted({head for _, head in pairs})
    if len(pairs) != len(in_layers) * len(in_heads):
        raise ArmillaryError(
            f"--heads {heads} names other heads in other layers, but a map averages the same heads in each",
            advice="ask for one layer at a time",
        )
    return in_layers, in_heads
