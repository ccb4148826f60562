"""Whether a folder still holds what was written: an atlas, a part of a scan, or a scan that is not finished."""

from dataclasses import dataclass
from pathlib import Path

from armillary.errors import ArmillaryError
from armillary.files import checksum_path, read_checked
from armillary.manifest import PLACE, array_of, names_in, read_manifest


@dataclass(frozen=True)
class Damage:
    """A file that is not as it was written, and the array that it belongs to."""

    array: str
    file: str
    what: str


@dataclass(frozen=True)
class Check:
    """What was found: `whole` is None where there is nothing to compare with."""

    path: str
    kind: str
    files: int
    damage: list[Damage]
    whole: bool | None
    notes: list[str]


def check(path: str | Path) -> Check:
    """Compare every file of an atlas, of an unfinished scan or of a part of one with its checksum."""
    folder = Path(path)
    if not folder.is_dir():
        raise ArmillaryError(f"there is no folder {path}: check takes what `armillary scan` or `weights` wrote")
    for store in (folder, folder / "atlas.zarr"):
        if (store / "zarr.json").is_file() or (store / PLACE).is_file():
            return _check_atlas(folder, store)
    if (folder / "scan.json").is_file():
        return _check_work(folder)
    raise ArmillaryError(
        f"{path} holds neither an atlas nor a scan: check takes what `armillary scan` or `weights` wrote"
    )


def _check_atlas(folder: Path, store: Path) -> Check:
    try:
        manifest = read_manifest(store)
    except ArmillaryError as error:
        return Check(str(folder), "atlas", 0, [Damage("checksums", PLACE, "changed")], False, [str(error)])
    if manifest is None:
        from armillary.atlas import open_atlas

        try:
            open_atlas(store)
        except ArmillaryError as error:
            return Check(str(folder), "atlas", 0, [Damage("checksums", PLACE, "missing")], False, [str(error)])
        note = "this atlas was written before there were checksums, so damage cannot be told: scan again to have them"
        return Check(str(folder), "atlas", 0, [], None, [note])
    found = [
        Damage(array_of(name), name, what) for name in manifest.files if (what := manifest.damage(name)) is not None
    ]
    found += [
        Damage(array_of(name), name, "not a file of this atlas")
        for name in names_in(store)
        if name not in manifest.files
    ]
    beside = [] if store == folder else [path for path in _files(folder) if checksum_path(path).is_file()]
    found += _changed(folder, beside) + _lost(folder)
    return Check(str(folder), "atlas", len(manifest.files) + len(beside), found, not found, [])


def _check_work(folder: Path) -> Check:
    """The record and the finished work; a file without a checksum was being written when the scan ended."""
    ours = [*_files(folder), *_files(folder / "work")]
    unsure = [path for path in ours if not checksum_path(path).is_file()]
    notes = [f"{path.name} has no checksum: it was being written when the scan ended" for path in unsure]
    found = _changed(folder, [path for path in ours if path not in unsure])
    found += _lost(folder) + _lost(folder / "work")
    notes += ["the scan goes on with --resume, which computes damaged work again"] if found else []
    return Check(str(folder), "unfinished scan, or a part of one", len(ours), found, not found, notes)


def _files(folder: Path) -> list[Path]:
    """What is kept with a checksum beside it, or will be."""
    found = (path for path in sorted(folder.glob("*")) if path.is_file() or path.is_symlink())
    return [path for path in found if path.suffix != ".sha256" and path.name != "lock" and path.name[0] != "."]


def _changed(folder: Path, paths: list[Path]) -> list[Damage]:
    return [
        Damage(path.stem.partition("-")[0], path.relative_to(folder).as_posix(), "changed")
        for path in paths
        if read_checked(path) is None
    ]


def _lost(folder: Path) -> list[Damage]:
    """Files whose checksum is there, but not they themselves."""
    alone = [path.with_suffix("") for path in sorted(folder.glob("*.sha256")) if not path.with_suffix("").exists()]
    return [Damage(path.stem.partition("-")[0], path.name, "missing") for path in alone]
