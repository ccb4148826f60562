"""The result of a scan: labelled arrays on disk that xarray opens by itself, tables, provenance."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armillary.atlas_record import (
    ArrayRecord,
    TableRecord,
    check_attributes,
    check_table,
    read_attributes,
    whole_columns,
)
from armillary.errors import ArmillaryError, brief
from armillary.files import make_folder, write_atomically
from armillary.manifest import PLACE, Manifest, damage_sentence, read_manifest
from armillary.records import parse_record, read_bytes

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

FORMAT = "armillary-atlas"
FORMAT_VERSION = 2
"""2: the store holds a list of its files with their checksums (manifest.py), and a CRC-32C in every chunk."""


@dataclass
class Atlas:
    """A scan's arrays, by group (residual, input, attention, rotary, corpus), and the tables made from them."""

    path: Path
    _groups: "dict[str, xr.Dataset]" = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def tree(self) -> "xr.DataTree":
        """Everything, as xarray reads it: `atlas.tree['attention/entropy']`, dims layer and head."""
        import xarray as xr

        return xr.open_datatree(self._store, engine="zarr", consolidated=False)

    @cached_property
    def manifest(self) -> Manifest | None:
        """The store's files and their checksums; None of one that is being written, or of format version 1."""
        return read_manifest(self.path)

    @property
    def _store(self) -> Any:
        """What Zarr reads from."""
        if self.manifest is None:
            return self.path
        from armillary.checked_store import CheckedStore

        return CheckedStore(self.manifest)

    def read(self, name: str) -> bytes:
        """A file of the store, checked; an error if it is damaged or gone."""
        data = read_bytes(self.path / name, "scan again") if self.manifest is None else self.manifest.read(name)
        if data is None:
            raise ArmillaryError(damage_sentence(self.path, name, "not a file of this atlas"))
        return data

    @cached_property
    def attrs(self) -> dict[str, Any]:
        """Where the numbers come from: model, weights, corpus, settings, versions, time."""
        return read_attributes(self.read("zarr.json"), self.path, dict[str, Any])

    def has(self, name: str) -> bool:
        """Whether there is such a group."""
        file = f"{name}/zarr.json"
        return (self.path / file).is_file() if self.manifest is None else file in self.manifest.files

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
        try:
            opened = xr.open_dataset(self._store, group=name, engine="zarr", consolidated=False, cache=False)
        except ArmillaryError:
            raise
        except Exception as error:  # whatever Zarr and xarray raise on metadata that is none
            raise ArmillaryError(
                f"{self.path / name} cannot be read ({type(error).__name__}: {brief(error)}): scan again"
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
        """A row for every stored matrix, against a random one of its shape (`armillary weights`)."""
        if not self.has("tables/matrices"):
            raise ArmillaryError(
                f"{self.path} has no spectra of whole matrices: `armillary weights MODEL --out DIR` writes them"
            )
        return read_table(self, "matrices")

    @cached_property
    def heads(self) -> "pd.DataFrame":
        """A row for every head of every layer; a measure that does not apply is missing.

        `check` is what `armillary verify-heads` found, where it ran.
        """
        from armillary.verdicts import with_verdicts

        table = read_table(self, "heads")
        if "confident" in table:  # as atlases of before had it
            table = table.rename(columns={"confident": "significant"}).astype({"significant": "boolean"})
        return with_verdicts(self, table)

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
    """A table as lenses/tables.py kept it; nothing that computes is imported."""
    import pandas as pd

    place = atlas.path / "tables" / name
    kept = read_attributes(atlas.read(f"tables/{name}/zarr.json"), place, TableRecord)
    values = _plain_array(atlas, f"tables/{name}/values")
    check_table(kept, values.shape, place)
    table = pd.DataFrame(values, columns=kept["numbers"])
    for column, words in kept["words"].items():
        table[column] = pd.Series(words, dtype="str").replace("", None)
    return whole_columns(table, kept, atlas.attrs["anatomy"], place).reindex(columns=kept["columns"])


def _plain_array(atlas: Atlas, name: str) -> Any:
    """A Zarr array of float64. If it is one uncompressed chunk, Zarr is not needed: to import it takes 0.4 seconds."""
    import numpy as np

    place = atlas.path / name
    about = parse_record(atlas.read(f"{name}/zarr.json"), ArrayRecord, str(place / "zarr.json"), "scan again")
    crc = [{"name": "crc32c"}]
    is_plain = (
        about["data_type"] == "float64"
        and about["codecs"][:1] == [{"name": "bytes", "configuration": {"endian": "little"}}]
        and about["codecs"][1:] in ([], crc)
        and about["chunk_grid"].get("configuration") == {"chunk_shape": about["shape"]}
    )
    try:
        if is_plain and atlas.manifest is not None:
            numbers = atlas.read(f"{name}/c/0/0")  # checked, so the four bytes of the CRC at its end are not needed
            return np.frombuffer(numbers, "<f8", math.prod(about["shape"])).reshape(about["shape"]).copy()
        import zarr

        return np.asarray(zarr.open_array(atlas._store, path=name, mode="r")[...], dtype=np.float64)
    except ArmillaryError:
        raise
    except Exception as error:  # whatever Zarr raises on metadata that is none
        raise ArmillaryError(f"{place} cannot be read ({type(error).__name__}: {brief(error)}): scan again") from error


def open_atlas(path: str | Path) -> Atlas:
    """Open the atlas of a folder that `scan` wrote."""
    folder = Path(path)
    store = folder if _holds_store(folder) else folder / "atlas.zarr"
    if not folder.exists():
        raise ArmillaryError(f"there is no folder {path}: an atlas is what `armillary scan MODEL --out {path}` writes")
    if not _holds_store(store):
        if (folder / "scan.json").is_file():
            raise ArmillaryError(f"the scan in {path} is not finished: armillary scan ... --out {path} --resume")
        raise ArmillaryError(f"{path} is not an atlas: an atlas is what `armillary scan MODEL --out DIR` writes")
    atlas = Atlas(store)
    kind, version = atlas.attrs.get("format"), atlas.attrs.get("format_version")
    if kind != FORMAT:
        raise ArmillaryError(f"{store} is a Zarr store, but not one that Armillary wrote")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ArmillaryError(
            f"{store} has format version {version}; this Armillary reads up to {FORMAT_VERSION}: update Armillary"
        )
    if version > 1 and atlas.manifest is None:
        raise ArmillaryError(damage_sentence(store, PLACE, "missing"))
    check_attributes(atlas.attrs, store)
    return atlas


def _holds_store(folder: Path) -> bool:
    """Whether an atlas is in this very folder, also if its first file is gone."""
    return (folder / "zarr.json").is_file() or (folder / PLACE).is_file()
