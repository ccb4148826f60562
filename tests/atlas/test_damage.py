"""A damaged atlas never reads as other numbers: every file is checked when it is read, and `check` finds each one."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.atlas.manifest import PLACE, array_of
from armillary.cli import app
from armillary.progress import Progress

TOKENS = torch.randint(5, 99, (6, 16), generator=torch.Generator().manual_seed(3))
Values = dict[str, Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An atlas with every kind of array, large ones in chunks of a layer too."""
    out = tmp_path_factory.mktemp("atlas") / "a"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("armillary.atlas.arrays.LARGE", 1 << 13)
        arm.scan(sample_model("llama"), TOKENS, out=out, shard=3)
    return out


@pytest.fixture(scope="module")
def weighed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("weights") / "w"
    arm.weigh(sample_model("llama"), out=out)
    return out


@pytest.fixture
def atlas(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "a"))


def names(folder: Path) -> list[str]:
    store = folder / "atlas.zarr"
    return sorted(path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file())


def everything(folder: Path) -> Values:
    """Everything that can be read from an atlas, by name."""
    opened = arm.open_atlas(folder)
    found: Values = {"attributes": opened.attrs, "heads": opened.heads, "layers": opened.layers}
    if opened.has("tables/matrices"):
        found["matrices"] = opened.matrices
    for node in opened.tree.subtree:
        found[node.path] = dict(node.attrs)
        for name, variable in node.to_dataset().variables.items():
            found[f"{node.path}/{name}"] = variable.to_numpy()
    return found


def same(a: Values, b: Values) -> bool:
    def equal(x: Any, y: Any) -> bool:
        if isinstance(x, pd.DataFrame):
            return bool(x.equals(y))
        if isinstance(x, np.ndarray):
            return bool(x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes())
        return bool(x == y)

    return a.keys() == b.keys() and all(equal(a[name], b[name]) for name in a)


def reads(folder: Path, name: str) -> None:
    """Read what a file belongs to, as a user of the atlas would."""
    opened = arm.open_atlas(folder)
    part, _, rest = array_of(name).partition("/")
    if part == "tables":
        opened.layers, opened.heads  # noqa: B018
        opened.tree.load()
    elif opened.has(part):
        group = opened.group(part)
        (group[rest] if rest else group).load()


def damaged(path: Path, kind: str, place: int = 0) -> None:
    data = path.read_bytes()
    if kind == "delete":
        path.unlink()
    elif kind == "truncate":
        path.write_bytes(data[: place % max(1, len(data))])
    else:
        bit = place % (8 * len(data))
        path.write_bytes(data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :])


def test_damage_to_any_file_is_an_error_when_it_is_read_and_found_by_check(atlas: Path) -> None:
    assert arm.check(atlas).whole
    store = atlas / "atlas.zarr"
    for number, name in enumerate(names(atlas)):
        kept = (store / name).read_bytes()
        damaged(store / name, ("flip", "delete", "truncate")[number % 3], 7919 * number + 4)
        with pytest.raises(arm.ArmillaryError, match="is damaged") as told:
            reads(atlas, name)
        assert array_of(name) in str(told.value)
        assert "`overwrite=True`" in str(told.value)
        found = arm.check(atlas)
        assert found.whole is False
        assert [damage.file for damage in found.damage] == [name]
        assert [damage.array for damage in found.damage] == [array_of(name)]
        (store / name).write_bytes(kept)
    assert arm.check(atlas).whole


@pytest.mark.parametrize("which", ["whole", "weighed"])
def test_all_of_a_damaged_atlas_is_as_it_was_or_an_error(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: Path = request.getfixturevalue(which)
    expected, every = everything(source), names(source)
    atlas = Path(shutil.copytree(source, tmp_path / "copy"))
    assert same(everything(atlas), expected)

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(st.sampled_from(every), st.sampled_from(["flip", "delete", "truncate"]), st.integers(0, 10**6))
    def tried(name: str, kind: str, place: int) -> None:
        file = atlas / "atlas.zarr" / name
        kept = file.read_bytes()
        damaged(file, kind, place)
        try:
            assert same(everything(atlas), expected)
        except arm.ArmillaryError:
            pass
        finally:
            assert arm.check(atlas).whole is False
            file.write_bytes(kept)

    tried()


def test_files_that_the_atlas_never_had_change_nothing(atlas: Path, whole: Path) -> None:
    store = atlas / "atlas.zarr"
    chunk = next(path for path in sorted(store.rglob("*")) if path.is_file() and "/c/" in str(path))
    (chunk.parent / "9").write_bytes(chunk.read_bytes())
    shutil.copytree(store / "attention", store / "foreign")
    assert same(everything(atlas), everything(whole))
    found = arm.check(atlas)
    assert found.whole is False
    assert {damage.what for damage in found.damage} == {"not a file of this atlas"}


def test_a_missing_folder(atlas: Path) -> None:
    shutil.rmtree(atlas / "atlas.zarr" / "attention")
    with pytest.raises(arm.ArmillaryError, match=r"attention of .* is damaged"):
        arm.open_atlas(atlas).group("attention")
    shutil.rmtree(atlas / "atlas.zarr" / "checksums")
    with pytest.raises(arm.ArmillaryError, match=r"checksums of .* is damaged"):
        arm.open_atlas(atlas)
    assert arm.check(atlas).whole is False


def test_xarray_alone_opens_the_store_and_notices_a_damaged_chunk(atlas: Path) -> None:
    store = atlas / "atlas.zarr"
    ours = arm.open_atlas(atlas)
    plain = xr.open_datatree(store, engine="zarr", consolidated=False)
    for node in ours.tree.subtree:
        assert node.to_dataset().identical(plain[node.path].to_dataset())
    for name in (name for name in names(atlas) if "/c/" in name and name.startswith(("attention/", "tables/"))):
        kept = (store / name).read_bytes()
        damaged(store / name, "flip", 97)
        with pytest.raises(ValueError, match="checksum"):
            xr.open_dataset(
                store, group=name.split("/c/")[0].rpartition("/")[0], engine="zarr", consolidated=False
            ).load()
        (store / name).write_bytes(kept)


def test_an_atlas_of_the_first_format_opens_as_before(atlas: Path, whole: Path) -> None:
    store = atlas / "atlas.zarr"
    shutil.rmtree(store / "checksums")
    root = json.loads((store / "zarr.json").read_text())
    root["attributes"]["format_version"] = 1
    (store / "zarr.json").write_text(json.dumps(root))
    expected = everything(whole)
    expected["attributes"]["format_version"] = expected["/"]["format_version"] = 1
    assert same(everything(atlas), expected)
    found = arm.check(atlas)
    assert found.whole is None
    assert "before atlases had checksums" in found.notes[0]
    assert CliRunner().invoke(app, ["check", str(atlas)]).exit_code == 2


def test_the_command(atlas: Path, weighed: Path) -> None:
    for folder in (atlas, atlas / "atlas.zarr", weighed):
        ran = CliRunner().invoke(app, ["check", str(folder)])
        assert ran.exit_code == 0, ran.output
        assert "match their checksums" in ran.output
    damaged(atlas / "atlas.zarr" / "attention" / "entropy" / "c" / "0" / "0", "flip", 5)
    ran = CliRunner().invoke(app, ["check", str(atlas)])
    assert ran.exit_code == 1
    assert "attention/entropy" in ran.output
    assert "--overwrite" in ran.output
    ran = CliRunner().invoke(app, ["check", str(atlas), "--json"])
    assert ran.exit_code == 1
    (damage,) = json.loads(ran.stdout)["damage"]
    assert damage == {"array": "attention/entropy", "file": "attention/entropy/c/0/0", "what": "changed"}
    damaged(atlas / "scan.json", "flip", 77)
    ran = CliRunner().invoke(app, ["check", str(atlas)])
    assert "scan.json (changed)" in ran.output
    for wrong in (atlas.parent / "nowhere", atlas.parent):
        assert isinstance(CliRunner().invoke(app, ["check", str(wrong)]).exception, arm.ArmillaryError)


class TestUnfinished:
    @pytest.fixture
    def part(self, tmp_path: Path) -> Path:
        return arm.scan_part(sample_model("llama"), TOKENS, part="1/2", out=tmp_path / "part", shard=2)

    @pytest.mark.parametrize("kind", ["flip", "truncate", "delete"])
    def test_each_file_of_a_part(self, part: Path, kind: str) -> None:
        assert arm.check(part).whole
        paths = [part / "scan.json", *(path for path in (part / "work").iterdir() if path.suffix != ".sha256")]
        for path in paths:
            if path.name == "lock" or (path.name == "scan.json" and kind == "delete"):
                continue
            kept = path.read_bytes()
            damaged(path, kind, 1234)
            found = arm.check(part)
            assert [Path(damage.file).name for damage in found.damage] == [path.name]
            assert found.whole is False
            path.write_bytes(kept)

    def test_a_scan_with_a_damaged_record_is_not_resumed(self, tmp_path: Path, part: Path) -> None:
        class Stop(Progress):
            def piece_merged(self, index: int) -> None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            arm.scan(sample_model("llama"), TOKENS, out=tmp_path / "a", shard=2, progress=Stop())
        assert arm.check(tmp_path / "a").whole
        record = tmp_path / "a" / "scan.json"
        record.write_text(record.read_text().replace('"name": "', '"name": "x', 1))
        with pytest.raises(arm.ArmillaryError, match=r"scan\.json is damaged"):
            arm.scan(sample_model("llama"), TOKENS, out=tmp_path / "a", shard=2, resume=True)
        record = part / "scan.json"
        record.write_text(record.read_text().replace('"seed": 0', '"seed": 1', 1))
        with pytest.raises(arm.ArmillaryError, match=r"scan\.json is damaged"):
            arm.merge([part], out=tmp_path / "m")

    def test_half_written_work_is_not_damage(self, part: Path) -> None:
        (part / "work" / "shard-00000.sha256").unlink()
        found = arm.check(part)
        assert found.whole
        assert "shard-00000 has no checksum" in found.notes[0]


def test_tables_open_without_zarr(whole: Path) -> None:
    script = (
        "import sys; from armillary.atlas.atlas import open_atlas; print(len(open_atlas(sys.argv[1]).heads)); "
        "assert not {'zarr', 'torch', 'xarray'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, str(whole)], check=True)


def test_the_list_of_files_is_exact(atlas: Path) -> None:
    """A change that does not change the list's meaning is detected too."""
    place = atlas / "atlas.zarr" / PLACE
    place.write_bytes(place.read_bytes().replace(b"\n", b" \n", 1))
    with pytest.raises(arm.ArmillaryError, match=r"checksums of .* is damaged"):
        arm.open_atlas(atlas)
    for text in (b"", b"null", b'{"attributes": {"files": {"a": [1]}}}', b"[" * 100_000):
        place.write_bytes(text)
        with pytest.raises(arm.ArmillaryError, match="not a list of checksums"):
            arm.open_atlas(atlas)


def test_of_several_damaged_files_one_error_is_enough(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zarr reads concurrently; asyncio must not print the errors after the first."""
    import asyncio
    import gc

    from armillary.atlas.manifest import Manifest
    from armillary.atlas.store import CheckedStore

    def damaged(manifest: Manifest, key: str) -> bytes:
        raise arm.ArmillaryError(f"{key} is damaged")

    async def reads_and_forgets() -> None:
        task = asyncio.create_task(CheckedStore(Manifest(tmp_path, {})).get("a"))
        await asyncio.wait([task])
        del task
        gc.collect()

    monkeypatch.setattr(Manifest, "read", damaged)
    asyncio.run(reads_and_forgets())
    assert not caplog.records
