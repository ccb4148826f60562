"""Writing an atlas: the finished streams as labelled arrays, group by group, then the tables made from them."""

import datetime
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Num

from armillary.atlas import FORMAT, FORMAT_VERSION, Atlas
from armillary.errors import ArmillaryError

if TYPE_CHECKING:
    import xarray as xr
    from torch import Tensor

    from armillary.anatomy.description import Anatomy
    from armillary.corpus import Blocks
    from armillary.shards import ScanFolder, Shard
    from armillary.streams import Stream

SMALL = 1 << 25
"""Groups of fewer bytes stay in memory until the tables are made; reading them back would take longer than making."""

WITH_SERIES = ("residual", "input")
"""Groups that get a row for every sequence too, which are never all in memory."""


def write_atlas(
    place: "ScanFolder",
    shards: "list[Shard]",
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
        "anatomy": anatomy.as_dict(),
        "versions": versions,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "skipped_blocks": skipped,
        "notes": list(blocks.notes),
    }
    zarr.create_group(part, attributes=attributes)
    at_hand: dict[str, xr.Dataset] = {}

    def write(group: str, arrays: Arrays) -> None:
        write_group(part, group, arrays)
        if group not in WITH_SERIES and sum(values.nbytes for _, values in arrays.values()) < SMALL:
            at_hand[group] = labelled(arrays)

    for group, arrays in _grouped(streams, len(anatomy.layers)):
        write(group, arrays)
    if "constituents.share" in streams:
        write("geometry", _geometry(streams, anatomy))
    if not anatomy.missing:
        try:
            write("spectral", _spectral(anatomy))
        except ArmillaryError as error:  # weights that are wrapped or quantised: the rest of the scan is good
            zarr.open_group(part, mode="a").attrs["notes"] = [*attributes["notes"], f"no spectra: {error}"]
    corpus = {
        "tokens": (("sequence", "position"), blocks.tokens[kept]),
        "document": (("sequence",), blocks.document[kept]),
    }
    write_group(part, "corpus", corpus, {"documents": list(blocks.documents), "by_document": blocks.by_document})
    _write_series(part, place.series(shards), len(kept))
    _write_samples(part, place.series(shards), description["settings"])
    write_tables(Atlas(part, at_hand))
    part.replace(place.atlas)


Arrays = dict[str, tuple[tuple[str, ...], Num[np.ndarray, "..."]]]


def _spectral(anatomy: "Anatomy") -> Arrays:
    """The spectra of the heads' weights (lenses/spectral.py), while the weights are at hand."""
    from armillary.weighing import of_anatomy

    return of_anatomy(anatomy)


def _grouped(streams: "dict[str, Stream]", layers: int) -> "Iterator[tuple[str, Arrays]]":
    """The streams' results group by group, each as (dims, array), named kind_result (attention keeps its plain names).

    The states of a group are let go once its results are made.
    """
    groups: dict[str, dict[str, Stream]] = {}
    for name, stream in streams.items():
        group, _, kind = name.partition(".")
        groups.setdefault(group, {})[kind] = stream
    for group, kinds in groups.items():
        arrays: Arrays = {}
        for kind, stream in kinds.items():
            arrays |= _results(kind, stream, layers + 1 if group == "residual" else layers)
            stream.states.clear()
        if arrays:
            yield group, arrays


def _results(kind: str, stream: "Stream", layers: int) -> Arrays:
    arrays: Arrays = {}
    prefix = "" if kind in ("head", "chunk", "share", "tokens", "output") else f"{kind}_"
    for result, tensor in stream.finish(layers).items():
        dims = ("layer", *stream.statistic.dims[result])
        arrays[result if result.startswith(kind) else f"{prefix}{result}"] = (dims, tensor.cpu().numpy())
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

    return xr.Dataset({name: (dims, values) for name, (dims, values) in {**_labels(arrays), **arrays}.items()})


def _labels(arrays: Arrays) -> Arrays:
    """0, 1, 2, ... for every dimension that has no labels of its own."""
    sizes = {dim: n for dims, values in arrays.values() for dim, n in zip(dims, values.shape, strict=True)}
    return {dim: ((dim,), np.arange(n)) for dim, n in sizes.items() if dim not in arrays}


def write_group(store: Path, group: str, arrays: Arrays, attributes: dict[str, Any] | None = None) -> None:
    """Add a group of labelled arrays to a store; a dimension without labels of its own gets 0, 1, 2, ..."""
    import zarr

    root = zarr.open_group(store, mode="a")
    made = root.create_group(group, attributes=attributes or {})
    for name, (dims, values) in {**_labels(arrays), **arrays}.items():
        chunks = tuple(
            1 if dim == "layer" and values.ndim > 2 else max(1, n) for dim, n in zip(dims, values.shape, strict=True)
        )
        array = made.create_array(
            name,
            shape=values.shape,
            dtype=values.dtype,
            chunks=chunks,
            dimension_names=list(dims),
            fill_value=np.nan if np.issubdtype(values.dtype, np.floating) else 0,
        )
        array[...] = values


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
                    chunks=(1, max(1, values.shape[1]), values.shape[2]),
                    dimension_names=["layer", "sequence", "width"],
                )
            count = values.shape[1]
            root[name][:, start : start + count] = values  # type: ignore[index]
        start += count
