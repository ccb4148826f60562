"""Writing an atlas: the finished streams as labelled arrays, group by group, then the tables made from them."""

import datetime
import math
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Num

from armillary.atlas import FORMAT, FORMAT_VERSION, Atlas
from armillary.errors import ArmillaryError
from armillary.manifest import write_manifest
from armillary.naming import title

if TYPE_CHECKING:
    import xarray as xr
    from torch import Tensor

    from armillary.anatomy.description import Anatomy
    from armillary.corpus import Blocks
    from armillary.shards import ScanFolder, Shard
    from armillary.streams import Stream

LARGE = 1 << 22
"""Arrays of so many bytes are written layer by layer. Groups without any stay in memory until the tables are made."""

WITH_SERIES = ("residual", "input")
"""Groups that get a row for every sequence too, which are never all in memory."""


def write_atlas(
    place: "ScanFolder",
    shards: "Sequence[Shard]",
    streams: "dict[str, Stream]",
    anatomy: "Anatomy",
    blocks: "Blocks",
    description: dict[str, Any],
    versions: dict[str, str],
) -> None:
    """Write the finished streams, the series and the tables; the store appears under its name when it is whole."""
    import zarr

    from armillary.lenses.tables import write_tables

    part = place.work / "atlas.zarr"
    shutil.rmtree(part, ignore_errors=True)
    skipped = [int(block) for series in place.series(shards) for block in series["skipped"]]
    kept = np.setdiff1d(np.arange(len(blocks.tokens)), skipped)
    attributes = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **description,
        "model": {**description["model"], "title": title(description["model"]["name"])},
        "anatomy": anatomy.as_dict(),
        "versions": versions,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "skipped_blocks": skipped,
    }
    zarr.create_group(part, attributes=attributes)
    at_hand: dict[str, xr.Dataset] = {}

    for group, kinds in _by_group({name: stream for name, stream in streams.items() if stream.states}).items():
        arrays = _write_streams(part, group, kinds, len(anatomy.layers) + (group == "residual"))
        if arrays is not None and group not in WITH_SERIES:
            at_hand[group] = labelled(arrays)
    if "constituents.share" in streams:
        write_group(part, "geometry", _geometry(streams, anatomy))
    if not anatomy.missing:
        try:
            write_group(part, "spectral", _spectral(anatomy))
        except ArmillaryError as error:  # weights that are wrapped or quantised: the rest of the scan is good
            zarr.open_group(part, mode="a").attrs["notes"] = [*attributes["notes"], f"no spectra: {error}"]
    corpus = {
        "tokens": (("sequence", "position"), blocks.tokens[kept]),
        "document": (("sequence",), blocks.document[kept]),
    }
    about = {"documents": list(blocks.documents), "by_document": blocks.by_document, "token_names": blocks.token_names}
    write_group(part, "corpus", corpus, about)
    _write_series(part, place.series(shards), len(kept))
    _write_samples(part, place.series(shards), description["settings"])
    write_tables(Atlas(part, at_hand))
    write_manifest(part)
    part.replace(place.atlas)


Arrays = dict[str, tuple[tuple[str, ...], Num[np.ndarray, "..."]]]


def _spectral(anatomy: "Anatomy") -> Arrays:
    """The spectra of the heads' weights (lenses/spectral.py), while the weights are at hand."""
    from armillary.weighing import of_anatomy

    return of_anatomy(anatomy)


def _by_group(streams: "dict[str, Stream]") -> "dict[str, dict[str, Stream]]":
    """The streams, named group.kind, as groups of kinds."""
    groups: dict[str, dict[str, Stream]] = {}
    for name, stream in streams.items():
        group, _, kind = name.partition(".")
        groups.setdefault(group, {})[kind] = stream
    return groups


def _write_streams(store: Path, group: str, kinds: "dict[str, Stream]", layers: int) -> Arrays | None:
    """Write the results of a group's streams, named kind_result (attention keeps its plain names).

    A layer's state is let go once its results are made. Arrays that are large go to the store layer by layer; without
    any, what was written is returned.
    """
    import zarr

    root = zarr.open_group(store, mode="a")
    small: Arrays = {}
    large: set[str] = set()
    for kind, stream in kinds.items():
        prefix = "" if kind in ("head", "chunk", "share", "tokens", "output") else f"{kind}_"
        for layer in sorted(stream.states):
            for result, tensor in stream.statistic.finish(stream.states.pop(layer)).items():
                name = result if result.startswith(kind) else f"{prefix}{result}"
                dims, values = ("layer", *stream.statistic.dims[result]), tensor.cpu().numpy()
                shape = (layers, *values.shape)
                if values.nbytes * layers >= LARGE and values.ndim > 1:
                    if name not in large:
                        _new_array(root.require_group(group), name, dims, shape, values.dtype)
                        large.add(name)
                    root[f"{group}/{name}"][layer] = values  # type: ignore[index]
                else:
                    if name not in small:  # a layer that was never seen (one without attention) is missing
                        small[name] = (dims, np.full(shape, np.nan if values.dtype.kind == "f" else 0, values.dtype))
                    small[name][1][layer] = values
        small |= _axes(kind, stream)
    write_group(store, group, small)
    return None if large else small


def _axes(kind: str, stream: "Stream") -> Arrays:
    """Labels that a statistic has for its axes: lags, tokens, and radians per token of each frequency."""
    arrays: Arrays = {}
    if hasattr(stream.statistic, "tokens"):
        arrays["key_token"] = (("key_token",), np.array(stream.statistic.tokens))
    if hasattr(stream.statistic, "lags"):
        arrays["lag"] = (("lag",), np.array(stream.statistic.lags))
    if kind == "chunk" and hasattr(stream.statistic, "plain") and hasattr(stream.statistic, "rotary"):
        count = next(len(rotary.frequencies) for rotary in stream.statistic.rotary if rotary is not None)
        turns = [[np.nan] * count if r is None else r.frequencies for r in stream.statistic.plain]
        arrays["radians_per_token"] = (("layer", "frequency"), np.array(turns))
    return arrays


def _geometry(streams: "dict[str, Stream]", anatomy: "Anatomy") -> Arrays:
    """What the heads' weights do to the positional basis (lenses/geometry.py), while the weights are at hand."""
    from armillary.lenses.geometry import FREQUENCIES, head_geometry

    statistic: Any = streams["constituents.share"].statistic
    found = head_geometry(anatomy, statistic.means, statistic.skip)
    return {
        "argmax_ratio": (("layer", "head"), found.argmax_ratio),
        "pwp_energy": (("layer", "head", "frequencies"), found.pwp_energy),
        "pp_energy": (("layer", "frequencies"), found.pp_energy),
        "frequencies": (("frequencies",), np.array(FREQUENCIES)),
    }


def labelled(arrays: Arrays) -> "xr.Dataset":
    """The arrays as they would be read back."""
    import xarray as xr

    return xr.Dataset({name: (dims, values) for name, (dims, values) in arrays.items()})


def write_group(store: Path, group: str, arrays: Arrays, attributes: dict[str, Any] | None = None) -> None:
    """Add labelled arrays to a group of a store, new or there already.

    A dimension whose labels would be 0, 1, 2, ... has none: xarray counts by itself. Arrays that are not large are
    made in memory and then copied: straight to the disk, Zarr takes twice the time.
    """
    import zarr
    from zarr.storage import MemoryStore

    made = zarr.open_group(store, mode="a").require_group(group)
    if attributes:
        made.attrs.update(attributes)
    for name, (dims, values) in arrays.items():
        held: dict[str, Any] = {}
        large = values.nbytes >= LARGE
        beside = made if large else zarr.create_group(MemoryStore(held))
        _new_array(beside, name, dims, values.shape, values.dtype)[...] = values
        for key, content in held.items():
            if key != "zarr.json":
                path = store / group / key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.to_bytes())


def _new_array(group: Any, name: str, dims: tuple[str, ...], shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """An array with names for its dimensions, in one chunk, or if it is large in chunks of a layer."""
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


def _write_samples(store: Path, series: "Iterable[dict[str, Tensor]]", settings: dict[str, Any]) -> None:
    """Some vectors of the residual stream, to be looked at: (layer, sequence, position, width)."""
    from armillary.collector import Wanted

    parts = [rows["sample"].numpy() for rows in series if "sample" in rows]
    if parts:
        wanted = Wanted(tuple(settings["streams"]), settings["skip"], settings["length"])
        arrays: Arrays = {
            "vector": (("layer", "sequence", "position", "width"), np.concatenate(parts).swapaxes(0, 1)),
            "position": (("position",), np.array(wanted.sampled_positions)),
        }
        write_group(store, "sample", arrays)


def _write_series(store: Path, series: "Iterable[dict[str, Tensor]]", sequences: int) -> None:
    """The mean vector of every sequence, written shard by shard: (layer, sequence, width)."""
    import zarr

    root = zarr.open_group(store, mode="a")
    start = 0
    for rows in series:
        count = 0
        for group, tensor in rows.items():
            if group in ("skipped", "sample"):
                continue
            values = tensor.numpy().swapaxes(0, 1)
            name = f"{group}/sequence_mean"
            if name not in root:
                root.create_array(
                    name,
                    shape=(values.shape[0], sequences, values.shape[2]),
                    dtype=values.dtype,
                    chunks=(1 if values.nbytes >= LARGE else values.shape[0], max(1, values.shape[1]), values.shape[2]),
                    dimension_names=["layer", "sequence", "width"],
                    compressors=codecs(),
                )
            count = values.shape[1]
            root[name][:, start : start + count] = values  # type: ignore[index]
        start += count
