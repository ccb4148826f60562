"""The two tables of an atlas, layers and heads: columns that are a contract, filled by the lenses."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from armillary.lenses import constituents as constituents_lens
from armillary.lenses import gaussian as gaussian_lens
from armillary.lenses import heads as heads_lens
from armillary.lenses import kinds as kinds_lens
from armillary.lenses import labels as labels_lens
from armillary.lenses import localization as localization_lens
from armillary.lenses import positional as positional_lens
from armillary.lenses import rotary as rotary_lens
from armillary.lenses import spectral as spectral_lens

if TYPE_CHECKING:
    from armillary.atlas import Atlas

TERMS = ("mean", "pos", "cvec")

LAYER_COLUMNS = (
    *("layer", "pos_share", "ctx_share", "resid_share", "stable_rank", "screenot_rank", "relative_norm"),
    *("dct_energy_1", "dct_energy_3", "dct_energy_5", "dct_energy_10", "incoherence_mean", "incoherence_max"),
    *("intra_similarity", "inter_similarity", "mean_norm"),
)
HEAD_COLUMNS = (
    *("layer", "head", "kv_head", "label", "entropy", "entropy_norm", "self_mass", "prev_mass", "first_mass"),
    "mean_distance",
    *(f"share_{a}_{b}" for a in TERMS for b in TERMS),
    *("share_bias", "positional_share", "content_share", "mixed_share"),
    *("qk_trace", "qk_fro", "qk_spec", "qk_stable_rank", "qk_align_z", "xi", "eta", "regime"),
    *("high_freq_share", "induction_score"),
)
WORDS = {"label", "also", "first_label", "second_label", "rests_on", "regime", "regime_data", "layer_kind", "matrix"}
WHOLE = {"layer", "head", "kv_head", "screenot_rank", "rows", "columns", "outliers"}
YES_OR_NO = {"significant"}


def layer_table(atlas: "Atlas") -> pd.DataFrame:
    """A row for every point of the residual stream."""
    return _in_order(positional_lens.layer_columns(atlas), LAYER_COLUMNS)


def head_table(atlas: "Atlas") -> pd.DataFrame:
    """A row for every head."""
    lenses = (
        *(heads_lens, labels_lens, constituents_lens, spectral_lens, localization_lens, rotary_lens, gaussian_lens),
        kinds_lens,
    )
    found = pd.concat([lens.head_columns(atlas) for lens in lenses], axis=1)
    return _in_order(pd.concat([found, labels_lens.label_columns(atlas, found)], axis=1), HEAD_COLUMNS)


def _in_order(found: pd.DataFrame, columns: tuple[str, ...]) -> pd.DataFrame:
    """The contract's columns first, missing ones as nulls, then what else there is."""
    rest = [column for column in found.columns if column not in columns]
    missing = {column: "" if column in WORDS else np.nan for column in columns if column not in found}
    return found.assign(**missing)[[*columns, *rest]]


def write_tables(atlas: "Atlas") -> None:
    """Compute both tables and keep them in the store, so that they open at once."""
    import zarr

    from armillary.atlas_writing import codecs

    root = zarr.open_group(atlas.path, mode="a")
    if "tables" in root:
        del root["tables"]
    tables = {"layers": layer_table(atlas), "heads": head_table(atlas)}
    if atlas.has("matrices"):
        tables["matrices"] = spectral_lens.matrix_table(atlas)
    for name, table in tables.items():
        numbers = [column for column in table.columns if column not in WORDS]
        attributes = {
            "columns": list(table.columns),
            "numbers": numbers,
            "whole": [column for column in table.columns if column in WHOLE],
            "yes_or_no": [column for column in table.columns if column in YES_OR_NO],
            "words": {column: table[column].to_list() for column in table.columns if column in WORDS},
        }
        group = root.create_group(f"tables/{name}", attributes=attributes)
        values = table[numbers].astype(np.float64).to_numpy()
        # one plain chunk, even if all is missing: atlas.py reads it without Zarr
        group.create_array(
            "values",
            data=values,
            chunks=tuple(max(1, n) for n in values.shape),
            compressors=codecs(compressed=False),
            dimension_names=["row", "column"],
            config={"write_empty_chunks": True},
        )
