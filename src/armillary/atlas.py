"""The result of a scan: labelled arrays on disk that xarray opens by itself, tables, provenance, comparison."""

import datetime
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Num

from armillary.errors import ArmillaryError

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from torch import Tensor

    from armillary.anatomy.description import Anatomy
    from armillary.corpus import Blocks
    from armillary.shards import ScanFolder, Shard
    from armillary.streams import Stream

FORMAT = "armillary-atlas"
FORMAT_VERSION = 1


@dataclass
class Atlas:
    """A scan's arrays, by group (residual, input, attention, rotary, corpus), and the tables made from them."""

    path: Path
    _groups: "dict[str, xr.Dataset]" = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def tree(self) -> "xr.DataTree":
        """Everything, as xarray reads it: `atlas.tree['attention/entropy']`, dims layer and head."""
        import xarray as xr

        return xr.open_datatree(self.path, engine="zarr", consolidated=False)

    @cached_property
    def attrs(self) -> dict[str, Any]:
        """Where the numbers come from: model, weights, corpus, settings, versions, time."""
        return json.loads((self.path / "zarr.json").read_text(encoding="utf-8"))["attributes"]  # type: ignore[no-any-return]

    def has(self, name: str) -> bool:
        """Whether there is such a group."""
        return (self.path / name / "zarr.json").is_file()

    def group(self, name: str) -> "xr.Dataset":
        """The arrays of one group; which streams are there depends on what the scan was asked to keep."""
        import xarray as xr

        if name in self._groups:
            return self._groups[name]
        if not self.has(name):
            adds = {
                "residual": "positions",
                "input": "positions",
                "rotary": "chunks",
                "geometry": "constituents",
                "pairs": "lags",
            }.get(name, name)
            if name in ("spectral", "matrices"):
                raise ArmillaryError(f"this atlas has no {name}: `armillary weights MODEL --out DIR` writes them")
            if not self.settings["streams"]:
                raise ArmillaryError(f"this atlas has no {name!r}: it was made from weights alone; scan the model")
            kept = self.settings["streams"]
            missing = self.attrs["anatomy"]["missing"]
            why = missing if adds in kept and missing else f"scan with --streams {','.join([*kept, adds])}"
            raise ArmillaryError(f"this atlas has no {name!r}: {why}")
        # opened once, but what is read from it is not kept: a row per sequence would add up
        self._groups[name] = xr.open_dataset(self.path, group=name, engine="zarr", consolidated=False, cache=False)
        return self._groups[name]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the scan."""
        return dict(self.attrs["settings"])

    @cached_property
    def layers(self) -> "pd.DataFrame":
        """A row for every point of the residual stream, 0 (after the embeddings) to L."""
        from armillary.lenses.tables import read_table

        return read_table(self, "layers")

    @cached_property
    def matrices(self) -> "pd.DataFrame":
        """A row for every stored matrix, against a random one of its shape (`armillary weights`)."""
        from armillary.lenses.tables import read_table

        if not self.has("tables/matrices"):
            raise ArmillaryError(
                f"{self.path} has no spectra of whole matrices: `armillary weights MODEL --out DIR` writes them"
            )
        return read_table(self, "matrices")

    @cached_property
    def heads(self) -> "pd.DataFrame":
        """A row for every head of every layer; a measure that does not apply is missing."""
        from armillary.lenses.tables import read_table

        return read_table(self, "heads")

    def to_csv(self, folder: str | Path) -> list[Path]:
        """Write layers.csv and heads.csv."""
        return self._export(folder, "csv")

    def to_parquet(self, folder: str | Path) -> list[Path]:
        """Write layers.parquet and heads.parquet."""
        return self._export(folder, "parquet")

    def _export(self, folder: str | Path, kind: str) -> list[Path]:
        Path(folder).mkdir(parents=True, exist_ok=True)
        written = []
        tables = {"layers": self.layers, "heads": self.heads}
        if self.has("tables/matrices"):
            tables["matrices"] = self.matrices
        for name, table in tables.items():
            path = Path(folder) / f"{name}.{kind}"
            if kind == "csv":
                table.to_csv(path, index=False)
            else:
                try:
                    table.to_parquet(path, index=False)
                except ImportError as error:
                    raise ArmillaryError(
                        "Parquet needs the package pyarrow: pip install 'armillary[parquet]'"
                    ) from error
            written.append(path)
        return written


def open_atlas(path: str | Path) -> Atlas:
    """Open the atlas of a folder that `scan` wrote."""
    folder = Path(path)
    store = folder if (folder / "zarr.json").is_file() else folder / "atlas.zarr"
    if not folder.exists():
        raise ArmillaryError(f"there is no folder {path}: an atlas is what `armillary scan MODEL --out {path}` writes")
    if not (store / "zarr.json").is_file():
        if (folder / "scan.json").is_file():
            raise ArmillaryError(f"the scan in {path} is not finished: armillary scan ... --out {path} --resume")
        raise ArmillaryError(f"{path} is not an atlas: an atlas is what `armillary scan MODEL --out DIR` writes")
    atlas = Atlas(store)
    try:
        kind, version = atlas.attrs.get("format"), atlas.attrs.get("format_version")
    except (ValueError, KeyError, AttributeError) as error:
        raise ArmillaryError(f"{store} cannot be read as an atlas: {error}") from error
    if kind != FORMAT:
        raise ArmillaryError(f"{store} is a Zarr store, but not one that Armillary wrote")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ArmillaryError(
            f"{store} has format version {version}; this Armillary reads up to {FORMAT_VERSION}: update Armillary"
        )
    return atlas


# writing ----------------------------------------------------------------------------------------------------------


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
    for group, arrays in _grouped(streams, len(anatomy.layers)).items():
        write_group(part, group, arrays)
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
    write_group(part, "corpus", corpus, {"documents": list(blocks.documents), "by_document": blocks.by_document})
    _write_series(part, place.series(shards), len(kept))
    _write_samples(part, place.series(shards), description["settings"])
    write_tables(Atlas(part))
    part.replace(place.atlas)


Arrays = dict[str, tuple[tuple[str, ...], Num[np.ndarray, "..."]]]


def _spectral(anatomy: "Anatomy") -> Arrays:
    """The spectra of the heads' weights (lenses/spectral.py), while the weights are at hand."""
    from armillary.weighing import of_anatomy

    return of_anatomy(anatomy)


def _grouped(streams: "dict[str, Stream]", layers: int) -> dict[str, Arrays]:
    """The streams' results by group, each as (dims, array), named kind_result (attention keeps its plain names)."""
    groups: dict[str, Arrays] = {}
    for name, stream in streams.items():
        group, _, kind = name.partition(".")
        prefix = "" if kind in ("head", "chunk", "share", "tokens", "output") else f"{kind}_"
        for result, tensor in stream.finish(layers + 1 if group == "residual" else layers).items():
            dims = ("layer", *stream.statistic.dims[result])
            label = result if result.startswith(kind) else f"{prefix}{result}"
            groups.setdefault(group, {})[label] = (dims, tensor.cpu().numpy())
        if hasattr(stream.statistic, "lags"):
            groups[group]["lag"] = (("lag",), np.array(stream.statistic.lags))
        if kind == "chunk" and hasattr(stream.statistic, "plain") and hasattr(stream.statistic, "rotary"):
            count = next(len(rotary.frequencies) for rotary in stream.statistic.rotary if rotary is not None)
            turns = [[np.nan] * count if r is None else r.frequencies for r in stream.statistic.plain]
            groups[group]["radians_per_token"] = (("layer", "frequency"), np.array(turns))
    return groups


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


def write_group(store: Path, group: str, arrays: Arrays, attributes: dict[str, Any] | None = None) -> None:
    """Add a group of labelled arrays to a store; a dimension without labels of its own gets 0, 1, 2, ..."""
    import zarr

    root = zarr.open_group(store, mode="a")
    made = root.create_group(group, attributes=attributes or {})
    sizes = {dim: n for dims, values in arrays.values() for dim, n in zip(dims, values.shape, strict=True)}
    labels: Arrays = {dim: ((dim,), np.arange(n)) for dim, n in sizes.items() if dim not in arrays}
    for name, (dims, values) in {**labels, **arrays}.items():
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
