"""Checks the files of an atlas, a timeline, a part of a scan or an unfinished scan against their checksums."""

from dataclasses import dataclass, replace
from pathlib import Path

from armillary.atlas.atlas import open_atlas
from armillary.atlas.manifest import PLACE, array_of, names_in, read_manifest
from armillary.atlas.timelines.timeline import store_in
from armillary.errors import ArmillaryError
from armillary.files.atomic import checksum_path, read_checked


@dataclass(frozen=True)
class Damage:
    """A damaged or missing file, and the array that it belongs to."""

    array: str
    file: str
    what: str


@dataclass(frozen=True)
class Check:
    """The result; `whole` is None if there are no checksums to compare with."""

    path: str
    kind: str
    files: int
    damage: list[Damage]
    whole: bool | None
    notes: list[str]


def check(path: str | Path) -> Check:
    """Compare every file of an atlas, of a timeline, of an unfinished scan or of a part of one with its checksum."""
    folder = Path(path)
    if not folder.is_dir():
        raise ArmillaryError(
            f"there is no folder {path}", advice="check takes what `armillary scan` or `weights` wrote"
        )
    timeline = store_in(folder)
    if timeline is not None:
        return replace(_check_atlas(timeline, timeline), kind="timeline")
    for store in (folder, folder / "atlas.zarr"):
        if (store / "zarr.json").is_file() or (store / PLACE).is_file():
            return _check_atlas(folder, store)
    if (folder / "scan.json").is_file():
        return _check_work(folder)
    raise ArmillaryError(
        f"{path} holds neither an atlas nor a scan", advice="check takes what `armillary scan` or `weights` wrote"
    )


def _check_atlas(folder: Path, store: Path) -> Check:
    try:
        manifest = read_manifest(store)
    except ArmillaryError as error:
        return Check(str(folder), "atlas", 0, [Damage("checksums", PLACE, "changed")], False, [str(error)])
    if manifest is None:
        try:
            open_atlas(store)
        except ArmillaryError as error:
            return Check(str(folder), "atlas", 0, [Damage("checksums", PLACE, "missing")], False, [str(error)])
        note = "this atlas was written before atlases had checksums, so damage cannot be detected: scan again"
        return Check(str(folder), "atlas", 0, [], None, [note])
    damage = [
        Damage(array_of(name), name, what) for name in manifest.files if (what := manifest.damage(name)) is not None
    ]
    damage += [
        Damage(array_of(name), name, "not a file of this atlas")
        for name in names_in(store)
        if name not in manifest.files
    ]
    checked_beside = [] if store == folder else [path for path in _files(folder) if checksum_path(path).is_file()]
    damage += _changed(folder, checked_beside) + _lost(folder)
    return Check(str(folder), "atlas", len(manifest.files) + len(checked_beside), damage, not damage, [])


def _check_work(folder: Path) -> Check:
    """Check the record and the finished work; a file without a checksum was being written when the scan ended."""
    files = [*_files(folder), *_files(folder / "work")]
    without_checksum = [path for path in files if not checksum_path(path).is_file()]
    notes = [f"{path.name} has no checksum: it was being written when the scan ended" for path in without_checksum]
    damage = _changed(folder, [path for path in files if path not in without_checksum])
    damage += _lost(folder) + _lost(folder / "work")
    notes += ["`resume=True` continues the scan and computes damaged work again"] if damage else []
    return Check(str(folder), "unfinished scan, or a part of one", len(files), damage, not damage, notes)


def _files(folder: Path) -> list[Path]:
    """The files that have a checksum beside them, or will get one."""
    paths = (path for path in sorted(folder.glob("*")) if path.is_file() or path.is_symlink())
    return [path for path in paths if path.suffix != ".sha256" and path.name != "lock" and path.name[0] != "."]


def _changed(folder: Path, paths: list[Path]) -> list[Damage]:
    return [
        Damage(path.stem.partition("-")[0], path.relative_to(folder).as_posix(), "changed")
        for path in paths
        if read_checked(path) is None
    ]


def _lost(folder: Path) -> list[Damage]:
    """Files that are missing although their checksum exists."""
    alone = [path.with_suffix("") for path in sorted(folder.glob("*.sha256")) if not path.with_suffix("").exists()]
    return [Damage(path.stem.partition("-")[0], path.name, "missing") for path in alone]
