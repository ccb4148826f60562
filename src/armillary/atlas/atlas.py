"""The Atlas: labeled arrays on disk that xarray alone can open, tables, provenance."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from armillary.anatomy.description import Anatomy
from armillary.atlas.effects import with_effects
from armillary.atlas.head import Head
from armillary.atlas.manifest import PLACE, Manifest, damage_sentence, read_manifest
from armillary.atlas.record import (
    ArrayRecord,
    TableRecord,
    check_attributes,
    check_table,
    part_of_scan,
    read_anatomy,
    read_attributes,
    whole_columns,
)
from armillary.atlas.verdicts import with_verdicts
from armillary.errors import ArmillaryError, brief
from armillary.files.atomic import make_folder, write_atomically
from armillary.files.records import parse_record, read_bytes

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

# Imports inside functions: a table is read without xarray and zarr, which take half a second to import.

FORMAT = "armillary-atlas"
FORMAT_VERSION = 2
"""2: the store holds a list of its files with their checksums (manifest.py), and a CRC-32C in every chunk."""

AtlasKind = Literal["scan", "weights"]
"""What an atlas was made from: a model that ran on a text, or a model's weights alone."""


@dataclass
class Atlas:
    """A scan's arrays, by group (residual, input, attention, rotary, corpus), and the tables computed from them."""

    path: Path
    _groups: "dict[str, xr.Dataset]" = field(default_factory=dict, repr=False, compare=False)
    _tables: "dict[str, pd.DataFrame]" = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def tree(self) -> "xr.DataTree":
        """All groups as an xarray DataTree: `atlas.tree['attention/entropy']`, dims layer and head."""
        import xarray as xr

        return xr.open_datatree(self._store, engine="zarr", consolidated=False)

    @cached_property
    def manifest(self) -> Manifest | None:
        """The store's files and their checksums; None while it is being written, and for format version 1."""
        return read_manifest(self.path)

    @property
    def _store(self) -> Any:
        """What Zarr reads from."""
        if self.manifest is None:
            return self.path
        # for start-up: the store imports zarr
        from armillary.atlas.store import CheckedStore

        return CheckedStore(self.manifest)

    def read(self, name: str) -> bytes:
        """A file of the store, checked; an error if it is damaged or missing."""
        data = read_bytes(self.path / name, "scan again") if self.manifest is None else self.manifest.read(name)
        if data is None:
            raise ArmillaryError(damage_sentence(self.path, name, "not a file of this atlas"))
        return data

    @cached_property
    def attrs(self) -> dict[str, Any]:
        """Where the numbers come from: model, weights, corpus, settings, versions, time."""
        return read_attributes(self.read("zarr.json"), self.path, dict[str, Any])

    @cached_property
    def anatomy(self) -> Anatomy:
        """What the model is made of, layer by layer; without its weights."""
        return read_anatomy(self.attrs, self.path)

    @property
    def kind(self) -> AtlasKind:
        """What the atlas was made from: 'scan', or 'weights' alone."""
        return "scan" if self.settings["streams"] else "weights"

    def has(self, name: str) -> bool:
        """Whether the atlas has this group."""
        file = f"{name}/zarr.json"
        return (self.path / file).is_file() if self.manifest is None else file in self.manifest.files

    def group(self, name: str) -> "xr.Dataset":
        """The arrays of one group; which groups exist depends on the scan's streams."""
        import xarray as xr

        if name in self._groups:
            return self._groups[name]
        if not self.has(name):
            # for start-up: streams import torch
            from armillary.streams.registry import option_of_group

            computed = {"geometry": "constituents", "vocabulary": "tokens"}  # from the weights, with these streams
            adds = computed.get(name) or option_of_group(name) or name
            if name in ("spectral", "matrices", "power_law", "weight_changes"):
                raise ArmillaryError(f"this atlas has no {name}", advice="`armillary weights` writes them")
            if self.kind == "weights":
                raise ArmillaryError(f"this atlas has no {name!r}: it was made from weights alone; scan the model")
            streams = self.settings["streams"]
            missing = self.anatomy.missing
            why = missing if adds in streams and missing else f"scan with `streams={','.join([*streams, adds])}`"
            raise ArmillaryError(f"this atlas has no {name!r}: {why}")
        # opened once, but without a cache: a row per sequence would add up
        try:
            opened = xr.open_dataset(self._store, group=name, engine="zarr", consolidated=False, cache=False)
        except ArmillaryError:
            raise
        except Exception as error:  # Zarr and xarray raise many kinds of errors on wrong metadata
            raise ArmillaryError(
                f"{self.path / name} cannot be read ({type(error).__name__}: {brief(error)})", advice="scan again"
            ) from error
        self._groups[name] = opened
        return opened

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the scan."""
        return dict(self.attrs["settings"])

    @cached_property
    def layers(self) -> "pd.DataFrame":
        """A row for every point of the residual stream, 0 (after the embeddings) to L."""
        return read_table(self, "layers")

    @cached_property
    def matrices(self) -> "pd.DataFrame":
        """A row for every stored matrix, compared with a random one of its shape (`armillary weights`)."""
        if not self.has("tables/matrices"):
            raise ArmillaryError(
                f"{self.path} has no spectra of whole matrices", advice="`armillary weights` writes them"
            )
        return read_table(self, "matrices")

    @cached_property
    def weight_changes(self) -> "pd.DataFrame":
        """A row for every head's products and every matrix: how they differ from the model compared with."""
        if not self.has("tables/weight_changes"):
            raise ArmillaryError(
                f"{self.path} was not compared with another model",
                advice="`armillary weights MODEL --against OTHER` does it",
            )
        return read_table(self, "weight_changes")

    @cached_property
    def heads(self) -> "pd.DataFrame":
        """A row for every head of every layer; a measure that does not apply is missing.

        `check` is what `armillary verify-heads` found, where it ran; ablation_loss and others are from `armillary
        ablate`.
        """
        table = read_table(self, "heads")
        if "confident" in table:  # the name in older atlases
            table = table.rename(columns={"confident": "significant"}).astype({"significant": "boolean"})
        return with_effects(self, with_verdicts(self, table))

    def table(self, name: str) -> "pd.DataFrame":
        """A stored table by name: tokens, pairs, relations, examples, writes, evidence; empty if not measured."""
        import pandas as pd

        if name not in self._tables:
            self._tables[name] = read_table(self, name) if self.has(f"tables/{name}") else pd.DataFrame()
        return self._tables[name]

    @property
    def tokens(self) -> "pd.DataFrame":
        """The key tokens that heads read more, or less, than distance explains."""
        return self.table("tokens")

    @property
    def examples(self) -> "pd.DataFrame":
        """The places of the text that show best what each head reads."""
        return self.table("examples")

    def head(self, layer: int, head: int) -> Head:
        """One head: `.label`, `.does`, `.reads`, `.writes`, `.examples`, `.evidence`; an error if there is none."""
        chosen = Head(self, layer, head)
        _ = chosen.row
        return chosen

    def to_csv(self, folder: str | Path) -> list[Path]:
        """Write layers.csv and heads.csv."""
        return self._export(folder, "csv")

    def to_parquet(self, folder: str | Path) -> list[Path]:
        """Write layers.parquet and heads.parquet."""
        return self._export(folder, "parquet")

    def _export(self, folder: str | Path, kind: str) -> list[Path]:
        make_folder(Path(folder))
        written = []
        tables = {"layers": self.layers, "heads": self.heads}
        if self.has("tables/matrices"):
            tables["matrices"] = self.matrices
        if self.has("tables/weight_changes"):
            tables["weight_changes"] = self.weight_changes
        for name, table in tables.items():
            path = Path(folder) / f"{name}.{kind}"
            if kind == "csv":
                data = table.to_csv(index=False).encode()
            else:
                try:
                    data = table.to_parquet(index=False)
                except ImportError as error:
                    raise ArmillaryError(
                        "Parquet needs the package pyarrow: pip install 'armillary[parquet]'"
                    ) from error
            write_atomically(path, data)
            written.append(path)
        return written


def read_table(atlas: Atlas, name: str) -> "pd.DataFrame":
    """A table as it was written, without importing anything that computes."""
    import pandas as pd

    place = atlas.path / "tables" / name
    record = read_attributes(atlas.read(f"tables/{name}/zarr.json"), place, TableRecord)
    values = _plain_array(atlas, f"tables/{name}/values")
    check_table(record, values.shape, place)
    table = pd.DataFrame(values, columns=record["numbers"])
    for column, words in record["words"].items():
        table[column] = pd.Series(words, dtype="str").replace("", None)
    return whole_columns(table, record, atlas.anatomy, place).reindex(columns=record["columns"])


def _plain_array(atlas: Atlas, name: str) -> Any:
    """A Zarr array of float64; if it is one uncompressed chunk, read without Zarr, whose import takes 0.4 seconds."""
    import numpy as np

    place = atlas.path / name
    record = parse_record(atlas.read(f"{name}/zarr.json"), ArrayRecord, str(place / "zarr.json"), "scan again")
    crc = [{"name": "crc32c"}]
    is_plain = (
        record["data_type"] == "float64"
        and record["codecs"][:1] == [{"name": "bytes", "configuration": {"endian": "little"}}]
        and record["codecs"][1:] in ([], crc)
        and record["chunk_grid"].get("configuration") == {"chunk_shape": record["shape"]}
    )
    try:
        if is_plain and atlas.manifest is not None:
            numbers = atlas.read(f"{name}/c/0/0")  # already checked: the CRC in the last four bytes is not needed
            return np.frombuffer(numbers, "<f8", math.prod(record["shape"])).reshape(record["shape"]).copy()
        import zarr

        return np.asarray(zarr.open_array(atlas._store, path=name, mode="r")[...], dtype=np.float64)
    except ArmillaryError:
        raise
    except Exception as error:  # Zarr raises many kinds of errors on wrong metadata
        raise ArmillaryError(
            f"{place} cannot be read ({type(error).__name__}: {brief(error)})", advice="scan again"
        ) from error


def open_atlas(path: str | Path) -> Atlas:
    """Open the atlas of a folder that `scan` wrote."""
    folder = Path(path)
    store = folder if _holds_store(folder) else folder / "atlas.zarr"
    if not folder.exists():
        raise ArmillaryError(f"there is no folder {path}", advice="an atlas is what `armillary scan` writes")
    if not _holds_store(store):
        if (folder / "scan.json").is_file():
            part = part_of_scan(folder)
            if part:
                raise ArmillaryError(f"{path} holds part {part} of a scan", advice="merge all its parts into an atlas")
            raise ArmillaryError(
                f"the scan in {path} is not finished", advice=f"scan again with `out={path}` and `resume=True`"
            )
        raise ArmillaryError(f"{path} is not an atlas", advice="an atlas is what `armillary scan` writes")
    atlas = Atlas(store)
    kind, version = atlas.attrs.get("format"), atlas.attrs.get("format_version")
    if kind != FORMAT:
        raise ArmillaryError(f"{store} is a Zarr store, but not one that Armillary wrote")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ArmillaryError(
            f"{store} has format version {version}; this Armillary reads up to {FORMAT_VERSION}",
            advice="update Armillary",
        )
    if version > 1 and atlas.manifest is None:
        raise ArmillaryError(damage_sentence(store, PLACE, "missing"))
    check_attributes(atlas.attrs, store)
    _ = atlas.anatomy  # raises an error here if it is damaged
    return atlas


def _holds_store(folder: Path) -> bool:
    """Whether this folder is a store, even if its zarr.json is missing."""
    return (folder / "zarr.json").is_file() or (folder / PLACE).is_file()
