"""Writes labeled arrays to a Zarr store: names of dimensions, chunks, compression, checksums."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Num

if TYPE_CHECKING:
    import xarray as xr

# Imports inside functions: xarray and zarr take half a second to import.


LARGE = 1 << 22
"""Arrays of this many bytes are written layer by layer. Groups without any stay in memory until tables are made."""


Arrays = dict[str, tuple[tuple[str, ...], Num[np.ndarray, "..."]]]


def labeled(arrays: Arrays) -> "xr.Dataset":
    """The arrays as they would be read back."""
    import xarray as xr

    return xr.Dataset({name: (dims, values) for name, (dims, values) in arrays.items()})


def write_group(store: Path, group: str, arrays: Arrays, attributes: dict[str, Any] | None = None) -> None:
    """Add labeled arrays to a group of a store, which is created if it does not exist.

    Dimensions with labels 0, 1, 2, ... get none: xarray counts by default. Arrays that are not large are encoded in
    memory and then copied, since Zarr takes twice as long when it writes to disk.
    """
    import zarr
    from zarr.storage import MemoryStore

    target = zarr.open_group(store, mode="a").require_group(group)
    if attributes:
        target.attrs.update(attributes)
    for name, (dims, values) in arrays.items():
        encoded: dict[str, Any] = {}
        large = values.nbytes >= LARGE
        destination = target if large else zarr.create_group(MemoryStore(encoded))
        new_array(destination, name, dims, values.shape, values.dtype)[...] = values
        for key, content in encoded.items():
            if key != "zarr.json":
                path = store / group / key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.to_bytes())


def new_array(group: Any, name: str, dims: tuple[str, ...], shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """An array with named dimensions, in one chunk, or in chunks of a layer if it is large."""
    large = math.prod(shape) * dtype.itemsize >= LARGE and len(shape) > 2
    return group.create_array(
        name,
        shape=shape,
        dtype=dtype,
        chunks=tuple(1 if dim == "layer" and large else max(1, n) for dim, n in zip(dims, shape, strict=True)),
        dimension_names=list(dims),
        compressors=codecs(),
        fill_value=np.nan if np.issubdtype(dtype, np.floating) else 0,
    )


def codecs(*, compressed: bool = True) -> list[Any]:
    """How chunks are stored: Zstandard, then a CRC-32C that every reader of Zarr checks."""
    from zarr.codecs import Crc32cCodec, ZstdCodec

    return [*([ZstdCodec()] if compressed else []), Crc32cCodec()]
