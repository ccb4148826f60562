"""What heads write and match, in tokens, as arrays of an atlas: group 'vocabulary', from the weights."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from armillary.anatomy.description import Anatomy
from armillary.atlas.arrays import Arrays
from armillary.errors import ArmillaryError
from armillary.lenses.vocabulary import VocabularyLens, matches
from armillary.streams.stream import stacked
from armillary.text.vocabulary import Vocabulary

LayerArrays = list[dict[str, Tensor]]

DIMS: dict[str, tuple[str, ...]] = {
    "copying_score": ("head",),
    "copying_random": ("draw",),
    **dict.fromkeys(("write_share", "match_share"), ("head", "direction")),
    **dict.fromkeys(("read_end", "write_end", "query_end", "key_end"), ("head", "direction", "side", "place")),
}


def vocabulary_layers(anatomy: Anatomy, seed: int = 0) -> LayerArrays | str:
    """The arrays of every layer, one layer's weights in memory at a time; or a sentence on why there are none."""
    try:
        lens = VocabularyLens(anatomy.ends(), seed)
    except ArmillaryError as error:
        return str(error)
    return [lens.layer(layer, anatomy.weights(layer.index)) for layer in anatomy.layers]


def add_matches(
    anatomy: Anatomy, layers: LayerArrays, means: dict[int, Float[Tensor, "token d"]], tokens: tuple[int, ...]
) -> None:
    """Add what heads match above layer 0: directions of W_q W_k' and tokens at their ends, by the token means of x.

    means: by layer, the mean attention input at tokens of each type.
    """
    names = torch.tensor([*tokens, -1])
    for layer in anatomy.layers:
        if layer.index not in means or "match_share" in layers[layer.index]:
            continue
        rows = means[layer.index].float()
        usual = rows - rows.mean(0)

        def some(start: int, stop: int, rows: Tensor = usual) -> Tensor:
            return rows[start:stop]

        ends = matches(layer, anatomy.weights(layer.index), some, len(rows))
        for name in ("query_end", "key_end"):
            ends[name] = names[ends[name]]
        layers[layer.index] |= ends


def vocabulary_arrays(layers: LayerArrays, vocabulary: Vocabulary | None) -> Arrays:
    """The arrays of the group, a row per layer; with the texts of all tokens where there is a tokenizer."""
    arrays: Arrays = {}
    for name, dims in DIMS.items():
        shapes = [layer[name] for layer in layers if name in layer]
        if not shapes:
            continue
        missing = torch.full_like(shapes[0], torch.nan if shapes[0].is_floating_point() else -1)
        rows = [layer.get(name, missing) for layer in layers]
        arrays[name] = (("layer", *dims), stacked(rows, dims).numpy())
    return arrays | ({} if vocabulary is None else text_arrays(vocabulary))


def text_arrays(vocabulary: Vocabulary) -> Arrays:
    """The texts of all tokens as bytes, one after the other, where each ends, and the class of each."""
    data = [text.encode("utf-8", errors="backslashreplace") for text in vocabulary.texts]
    return {
        "text": (("byte",), np.frombuffer(b"".join(data), np.uint8)),
        "text_end": (("token",), np.cumsum([len(part) for part in data], dtype=np.int64)),
        "kind": (("token",), vocabulary.kinds),
        "capital": (("token",), vocabulary.capital.astype(np.uint8)),
    }
