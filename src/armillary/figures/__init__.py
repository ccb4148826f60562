"""Lens results as Plotly figures. A figure never computes: what it shows comes from a lens."""

from armillary.figures.constituents import argmax_map, constituents, dissection
from armillary.figures.head_map import measure_map
from armillary.figures.heads import (
    constituent_bars,
    head_frequencies,
    head_lags,
    head_rho,
    head_spectrum,
    mean_logits,
    pattern_bars,
)
from armillary.figures.maps import attention_maps
from armillary.figures.page import write_page
from armillary.figures.positional import context_gram, contexts, dct_map, gram_map, layer_maps, singular_values, spiral

__all__ = [
    "argmax_map",
    "attention_maps",
    "constituent_bars",
    "constituents",
    "context_gram",
    "contexts",
    "dct_map",
    "dissection",
    "gram_map",
    "head_frequencies",
    "head_lags",
    "head_rho",
    "head_spectrum",
    "layer_maps",
    "mean_logits",
    "measure_map",
    "pattern_bars",
    "singular_values",
    "spiral",
    "write_page",
]
