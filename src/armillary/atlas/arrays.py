"""Writes labeled arrays to a Zarr store: names of dimensions, chunks, compression, checksums."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Num, Shaped

if TYPE_CHECKING:
    import xarray as xr

# Imports inside functions: xarray and zarr take half a second to import.


LARGE = 1 << 22
"""Arrays of this many bytes are written layer by layer. Groups without any stay in memory until tables are made."""

LEVEL = 1
"""Zstandard's level. 3, its default, takes 2.5 times as long and makes an atlas 5 % smaller: most numbers are noise."""


Arrays = dict[str, tuple[tuple[str, ...], Num[np.ndarray, "..."]]]


def labeled(arrays: Arrays) -> "xr.Dataset":
    """The arrays as they would be read back."""
    import xarray as xr

    return xr.Dataset({name: (dims, values) for name, (dims, values) in arrays.items()})


def write_group(store: Path, group: str, arrays: Arrays, attributes: dict[str, Any] | None = None) -> None:
    """Add labeled arrays to a group of a store, which is created if it does not exist.

    Dimensions with labels 0, 1, 2, ... get none: xarray counts by default.
    """
    import zarr

    target = zarr.open_group(store, mode="a").require_group(group)
    if attributes:
        target.attrs.update(attributes)
    for name, (dims, values) in arrays.items():
        new_array(target, name, dims, values.shape, values.dtype)
        chunks = chunk_shape(dims, values.shape, values.dtype)
        for index in np.ndindex(*(-(-n // chunk) for n, chunk in zip(values.shape, chunks, strict=True))):
            place = tuple(slice(i * chunk, (i + 1) * chunk) for i, chunk in zip(index, chunks, strict=True))
            write_chunk(store / group / name, index, np.asarray(values[place]))


def new_array(group: Any, name: str, dims: tuple[str, ...], shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """An array with named dimensions, in one chunk, or in chunks of a layer if it is large."""
    return group.create_array(
        name,
        shape=shape,
        dtype=dtype,
        chunks=chunk_shape(dims, shape, dtype),
        dimension_names=list(dims),
        compressors=codecs(),
        fill_value=np.nan if np.issubdtype(dtype, np.floating) else 0,
    )


def chunk_shape(dims: tuple[str, ...], shape: tuple[int, ...], dtype: np.dtype) -> tuple[int, ...]:
    """The whole array, or one layer of it if it is large."""
    large = math.prod(shape) * dtype.itemsize >= LARGE and len(shape) > 2
    return tuple(1 if dim == "layer" and large else max(1, n) for dim, n in zip(dims, shape, strict=True))


def write_chunk(array: Path, index: tuple[int, ...], values: Shaped[np.ndarray, "..."]) -> None:
    """Write one chunk of an array that `new_array` made, byte for byte as Zarr would; no file if it is all fill value.

    Zarr takes 5 to 8 ms for a chunk, most of it between threads and its event loop; this takes a tenth of that.
    """
    import google_crc32c
    from numcodecs.zstd import compress

    if np.isnan(values).all() if values.dtype.kind == "f" else not values.any():
        return
    encoded = compress(np.ascontiguousarray(values, values.dtype.newbyteorder("<")), LEVEL)
    path = array.joinpath("c", *map(str, index))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded + google_crc32c.value(encoded).to_bytes(4, "little"))


def codecs(*, compressed: bool = True) -> list[Any]:
    """How chunks are stored: Zstandard, then a CRC-32C that every reader of Zarr checks."""
    from zarr.codecs import Crc32cCodec, ZstdCodec

    return [*([ZstdCodec(level=LEVEL)] if compressed else []), Crc32cCodec()]
