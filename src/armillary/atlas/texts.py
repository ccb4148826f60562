"""The texts of tokens as an atlas stores them."""

from typing import TYPE_CHECKING

import numpy as np

from armillary.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas


def texts_of(atlas: "Atlas") -> Vocabulary:
    """The texts and classes of all tokens; empty where the atlas has none, and tokens are shown as numbers."""
    if not atlas.has("vocabulary") or "text_end" not in atlas.group("vocabulary"):
        return Vocabulary((), np.zeros(0, np.uint8), np.zeros(0, bool))
    arrays = atlas.group("vocabulary")
    data, ends = arrays["text"].to_numpy().tobytes(), arrays["text_end"].to_numpy().tolist()
    texts = tuple(data[start:end].decode() for start, end in zip([0, *ends[:-1]], ends, strict=True))
    return Vocabulary(texts, arrays["kind"].to_numpy(), arrays["capital"].to_numpy().astype(bool))
