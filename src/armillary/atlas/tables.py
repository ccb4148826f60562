"""Writes the tables of an atlas to its store, in a form that opens fast."""

from pathlib import Path

import numpy as np
import pandas as pd

from armillary.atlas.arrays import codecs
from armillary.atlas.columns import kind_of

# Imports inside functions: zarr takes half a second to import.


def write_tables(store: Path, tables: dict[str, pd.DataFrame]) -> None:
    """Write the tables to the store, replacing those that it has."""
    import zarr

    root = zarr.open_group(store, mode="a")
    if "tables" in root:
        del root["tables"]
    for name, table in tables.items():
        kinds = {column: kind_of(name, column) for column in table.columns}
        numbers = [column for column, kind in kinds.items() if kind != "word"]
        attributes = {
            "columns": list(table.columns),
            "numbers": numbers,
            "whole": [column for column, kind in kinds.items() if kind == "whole"],
            "yes_or_no": [column for column, kind in kinds.items() if kind == "yes-no"],
            "words": {column: table[column].to_list() for column, kind in kinds.items() if kind == "word"},
        }
        group = root.create_group(f"tables/{name}", attributes=attributes)
        values = table[numbers].astype(np.float64).to_numpy()
        # one plain chunk, even if all values are NaN: atlas.py reads it without Zarr
        array = group.create_array(  # a group takes `data` since Zarr 3.1 only, so values are assigned
            "values",
            shape=values.shape,
            dtype=values.dtype,
            chunks=tuple(max(1, n) for n in values.shape),
            compressors=codecs(compressed=False),
            dimension_names=["row", "column"],
            config={"write_empty_chunks": True},
        )
        array[...] = values
