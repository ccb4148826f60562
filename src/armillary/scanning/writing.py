"""Writes an atlas: the finished streams as labeled arrays, group by group, then the tables computed from them."""

import datetime
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from armillary.anatomy.description import Anatomy
from armillary.anatomy.naming import title
from armillary.atlas.atlas import FORMAT, FORMAT_VERSION, Atlas
from armillary.atlas.manifest import write_manifest
from armillary.atlas.tables import write_tables
from armillary.lenses.tables import tables
from armillary.streams.registry import declared
from armillary.streams.stream import HasAxes, fitted
from armillary.streams.wanted import Wanted

if TYPE_CHECKING:
    import xarray as xr
    from torch import Tensor

    from armillary.anatomy.description import Anatomy
    from armillary.scanning.folder import ScanFolder, Shard
    from armillary.streams.stream import Stream
    from armillary.text.sequences import Sequences
from armillary.atlas.arrays import LARGE, Arrays, codecs, labeled, new_array, write_chunk, write_group

# Imports inside functions: zarr takes half a second to import, and errors in the arguments come before any writing.

WITH_SERIES = ("residual", "input")
"""Groups that also have a row for every sequence; these rows are never all in memory."""


def write_atlas(
    place: "ScanFolder",
    shards: "Sequence[Shard]",
    streams: "dict[str, Stream]",
    from_weights: dict[str, Arrays],
    anatomy: "Anatomy",
    sequences: "Sequences",
    description: dict[str, Any],
    versions: dict[str, str],
) -> None:
    """Write the finished streams, the series and the tables; the store is renamed to its final name when complete.

    `from_weights` holds the groups computed from the model's weights.
    """
    import zarr

    part = place.work / "atlas.zarr"
    shutil.rmtree(part, ignore_errors=True)
    skipped = [int(sequence) for series in place.series(shards) for sequence in series["skipped"]]
    scanned = np.setdiff1d(np.arange(len(sequences.tokens)), skipped)
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
    in_memory: dict[str, xr.Dataset] = {}

    for group, members in _by_group({name: stream for name, stream in streams.items() if stream.states}).items():
        written = _write_streams(part, group, members, len(anatomy.layers) + (group == "residual"), widest(anatomy))
        if written is not None and group not in WITH_SERIES:
            in_memory[group] = labeled(written)
    for group, arrays in from_weights.items():
        write_group(part, group, arrays)
    corpus = {
        "tokens": (("sequence", "position"), sequences.tokens[scanned]),
        "document": (("sequence",), sequences.document[scanned]),
    }
    about = {
        "documents": list(sequences.documents),
        "by_document": sequences.by_document,
        "token_names": sequences.token_names,
    }
    write_group(part, "corpus", corpus, about)
    _write_series(part, place.series(shards), len(scanned))
    _write_samples(part, place.series(shards), description["settings"])
    write_tables(part, tables(Atlas(part, in_memory)))
    write_manifest(part)
    part.replace(place.atlas)


def _by_group(streams: "dict[str, Stream]") -> "dict[str, dict[str, Stream]]":
    """The streams by the atlas's group that they belong to."""
    groups: dict[str, dict[str, Stream]] = {}
    for name, stream in streams.items():
        groups.setdefault(declared(name).group, {})[name] = stream
    return groups


def widest(anatomy: Anatomy) -> dict[str, int]:
    """The largest sizes of the dimensions in which the layers of a model may differ."""
    return {
        "kv_head": max(layer.kv_heads for layer in anatomy.layers),
        "channel": max(layer.head_width for layer in anatomy.layers),
    }


def _write_streams(
    store: Path, group: str, streams: "dict[str, Stream]", layers: int, largest: dict[str, int]
) -> Arrays | None:
    """Write the results of a group's streams under their declared names; return them, or None if any array is large.

    A layer's state is freed once its results are computed. Large arrays are written layer by layer.
    """
    import zarr

    root = zarr.open_group(store, mode="a")
    small: Arrays = {}
    large: set[str] = set()
    for stream_name, stream in streams.items():
        for layer in sorted(stream.states):
            for result, tensor in stream.statistic.finish(stream.states.pop(layer)).items():
                name = declared(stream_name).array(result)
                own = stream.statistic.dims[result]
                sizes = tuple(max(n, largest.get(dim, n)) for dim, n in zip(own, tensor.shape, strict=True))
                dims, values = ("layer", *own), fitted(tensor.cpu(), own, sizes).numpy()
                shape = (layers, *values.shape)
                if values.nbytes * layers >= LARGE and values.ndim > 1:
                    if name not in large:
                        new_array(root.require_group(group), name, dims, shape, values.dtype)
                        large.add(name)
                    write_chunk(store / group / name, (layer, *(0 for _ in values.shape)), values[None])
                else:
                    if name not in small:  # layers without attention stay NaN
                        small[name] = (dims, np.full(shape, np.nan if values.dtype.kind == "f" else 0, values.dtype))
                    small[name][1][layer] = values
        small |= stream.statistic.axes() if isinstance(stream.statistic, HasAxes) else {}
    write_group(store, group, small)
    return None if large else small


def _write_samples(store: Path, series: "Iterable[dict[str, Tensor]]", settings: dict[str, Any]) -> None:
    """A few vectors of the residual stream, for figures: (layer, sequence, position, width)."""
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
