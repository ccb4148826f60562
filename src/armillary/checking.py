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
    return Check(str(folder), "atlas", len(manifest.files), found, not found, [])


def _check_work(folder: Path) -> Check:
    """The record and the finished work; a file without a checksum was being written when the scan ended."""
    work = folder / "work"
    paths = [folder / "scan.json", *(path for path in sorted(work.glob("*")) if path.is_file() or path.is_symlink())]
    ours = [
        path for path in paths if path.name != "lock" and path.suffix != ".sha256" and not path.name.startswith(".")
    ]
    found, notes = [], []
    for path in ours:
        if not checksum_path(path).is_file():
            notes.append(f"{path.name} has no checksum: it was being written when the scan ended")
        elif read_checked(path) is None:
            found.append(Damage(path.name.partition("-")[0], path.relative_to(folder).as_posix(), "changed"))
    for path in paths:
        if path.suffix == ".sha256" and not path.with_suffix("").exists() and path.name != "scan.json.sha256":
            name = path.with_suffix("").relative_to(folder).as_posix()
            found.append(Damage(path.stem.partition("-")[0], name, "missing"))
    notes += ["the scan goes on with --resume, which computes damaged work again"] if found else []
    return Check(str(folder), "unfinished scan, or a part of one", len(ours), found, not found, notes)
