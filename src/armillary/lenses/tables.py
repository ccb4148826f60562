"""Fills the tables of an atlas from the lenses; atlas/columns declares what each column means."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from armillary.atlas.columns import contract, kind_of
from armillary.lenses import constituents as constituents_lens
from armillary.lenses import gaussian as gaussian_lens
from armillary.lenses import heads as heads_lens
from armillary.lenses import kinds as kinds_lens
from armillary.lenses import labels as labels_lens
from armillary.lenses import localization as localization_lens
from armillary.lenses import positional as positional_lens
from armillary.lenses import power_law as power_law_lens
from armillary.lenses import reading as reading_lens
from armillary.lenses import rotary as rotary_lens
from armillary.lenses import sentences as sentences_lens
from armillary.lenses import spectral as spectral_lens
from armillary.lenses import writing as writing_lens
from armillary.lenses.weight_changes import change_table

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas


def layer_table(atlas: "Atlas") -> pd.DataFrame:
    """A row for every point of the residual stream."""
    return _by_contract("layers", positional_lens.layer_columns(atlas))


def head_table(atlas: "Atlas") -> pd.DataFrame:
    """A row for every head."""
    lenses = (
        *(heads_lens, labels_lens, constituents_lens, spectral_lens, localization_lens, rotary_lens, gaussian_lens),
        *(kinds_lens, reading_lens, writing_lens),
    )
    measures = pd.concat([lens.head_columns(atlas) for lens in lenses], axis=1)
    measures = pd.concat([measures, labels_lens.label_columns(atlas, measures)], axis=1)
    return _by_contract("heads", pd.concat([measures, sentences_lens.head_columns(atlas, measures)], axis=1))


def tables(atlas: "Atlas") -> dict[str, pd.DataFrame]:
    """Every table of an atlas, by name: layers, heads, and those of what was measured or read from the weights."""
    by_name = {"layers": layer_table(atlas), "heads": head_table(atlas)}
    if atlas.has("matrices"):
        fits = power_law_lens.matrix_columns(atlas)
        by_name["matrices"] = pd.concat([spectral_lens.matrix_table(atlas), fits], axis=1)
    if atlas.has("weight_changes"):
        by_name["weight_changes"] = change_table(atlas.group("weight_changes"))
    if atlas.has("patterns"):
        by_name["evidence"] = labels_lens.evidence_table(atlas, by_name["heads"])
    if atlas.has("tokens"):
        by_name |= reading_lens.tables(atlas)
    written = writing_lens.write_table(atlas)
    return by_name if written.empty else {**by_name, "writes": written}


def _by_contract(name: str, filled: pd.DataFrame) -> pd.DataFrame:
    """The contract's columns first, with nulls where nothing was measured, then the other columns."""
    always = contract(name)
    rest = [column for column in filled.columns if column not in always]
    missing = {c: "" if kind_of(name, c) == "word" else np.nan for c in always if c not in filled}
    return filled.assign(**missing)[[*always, *rest]]
