"""Damaged files that Armillary wrote: every reader works or raises an error of one sentence.

One fuzz test per format: a valid file with a value replaced, a key dropped, or other bytes altogether. The checksum
beside it, where there is one, is made to fit.
"""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.atlas.compare import compare
from armillary.atlas.manifest import write_manifest
from armillary.commands.labels import labels
from armillary.errors import ArmillaryError
from armillary.files.atomic import write_with_checksum
from armillary.files.records import mismatch
from armillary.papers.experiments import page, results
from armillary.probe.dossier import dossier
from armillary.report import report_html
from armillary.scanning.folder import ScanFolder, unpack_file
from armillary.scanning.merging import read_parts
from armillary.scanning.parts import read_sequences_of
from armillary.scanning.scan import scan_part
from armillary.text.sources import documents
from armillary.training.config import read_config
from armillary.training.run import _refuse_other, _warnings
from armillary.training.runs import read_run, side_by_side
from conftest import Atlases

ROOT = Path(__file__).resolve().parents[2]
VALUES: list[Any] = [
    None, True, -1, 0, 7, 10**12, 10**400, 0.5, float("nan"), float("inf"), -0.0, "", "x", "../../x", "\ud800", "nan",
    [], [1], ["x"], [[]], {}, {"x": 1}, {"kind": 3}, [None], "²", -(2**63),
]  # fmt: skip
BYTES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"3",
    b'"x"',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"NaN",
    b"9" * 5000,
    b"\0",
]
OFTEN = settings(
    max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
SELDOM = settings(OFTEN, max_examples=40)
Change = tuple[int, int | None]


def changes() -> st.SearchStrategy[list[Change]]:
    """Which places of a record get which of VALUES; None drops the place."""
    one = st.tuples(st.integers(0, 10_000), st.one_of(st.none(), st.integers(0, len(VALUES) - 1)))
    return st.lists(one, min_size=1, max_size=3)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value; of long lists the first items."""
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))[:3]
    found = [(value, key) for key, _ in items]
    for _, inner in items:
        if isinstance(inner, dict | list):
            found += places(inner)
    return found


def changed(record: Any, chosen: list[Change]) -> bytes:
    """The record as JSON, with these changes."""
    record = copy.deepcopy(record)
    for at, value in chosen:
        there = places(record)
        if not there:
            break
        container, key = there[at % len(there)]
        if value is None:
            del container[key]
        else:
            container[key] = copy.deepcopy(VALUES[value])
    return json.dumps(record).encode()


def works_or_tells(use: Callable[[], object]) -> str:
    """What the reader says; anything but a sentence fails the test."""
    try:
        use()
    except ArmillaryError as error:
        said = str(error)
        assert "\n" not in said
        assert len(said) < 2000
        return said
    return ""


def spoil(path: Path, use: Callable[[], object], also: Callable[[Path], None] = lambda path: None) -> None:
    """All of BYTES in the place of a file."""
    whole = path.read_bytes()
    for data in BYTES:
        path.write_bytes(data)
        also(path)
        works_or_tells(use)
    path.write_bytes(whole)
    also(path)
    use()


def sign(path: Path) -> None:
    """Make the checksum fit what the file holds now."""
    write_with_checksum(path, [path.read_bytes()])


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokens = torch.randint(5, 99, (6, 12), generator=torch.Generator().manual_seed(3))
    model = tmp_path_factory.mktemp("model")
    sample_model("llama").save_pretrained(model)
    out = tmp_path_factory.mktemp("part") / "p"
    return scan_part(model, tokens, part="1/1", out=out, shard=3, streams=("attention",))


class TestScan:
    @OFTEN
    @given(chosen=changes())
    def test_scan_json(self, part: Path, chosen: list[Change]) -> None:
        path = part / "scan.json"
        whole = path.read_bytes()
        record = json.loads(whole)
        write_with_checksum(path, [changed(record, chosen)])
        works_or_tells(lambda: read_parts([part]))
        works_or_tells(lambda: ScanFolder(part)._differs(record))
        write_with_checksum(path, [whole])

    def test_damaged_scan_json(self, part: Path) -> None:
        spoil(part / "scan.json", lambda: read_parts([part]), sign)
        spoil(part / "scan.json", lambda: ScanFolder(part)._differs({}), sign)

    def test_a_part_of_more_sequences_than_there_are_atoms_answers_at_once(self, part: Path) -> None:
        path = part / "scan.json"
        whole = path.read_bytes()
        record = json.loads(whole)
        for count in (10**12, 10**18):
            record["settings"]["sequences"] = count
            write_with_checksum(path, [json.dumps(record).encode()])
            said = works_or_tells(lambda: read_parts([part]))
            assert "is not finished, or was damaged: shards 2 to" in said
            record["part"] = {"number": 2, "of": 10**11}
            write_with_checksum(path, [json.dumps(record).encode()])
            assert "are in none of these folders: part 1/100000000000, 3/100000000000" in works_or_tells(
                lambda: read_parts([part])
            )
            record["part"] = {"number": 1, "of": 1}
        write_with_checksum(path, [whole])

    @OFTEN
    @given(chosen=changes())
    def test_the_documents_of_a_part(self, part: Path, chosen: list[Change]) -> None:
        path = part / "work" / "documents"
        whole = path.read_bytes()
        write_with_checksum(path, [changed(json.loads(whole), chosen)])
        works_or_tells(lambda: read_sequences_of([ScanFolder(part)]))
        write_with_checksum(path, [whole])

    @pytest.mark.parametrize("name", ["documents", "blocks", "shard-00000", "series-00000"])
    def test_damaged_files_of_a_part(self, part: Path, name: str) -> None:
        path = part / "work" / name

        def read() -> None:
            read_parts([part])
            read_sequences_of([ScanFolder(part)])
            unpack_file(path, path.read_bytes()) if "-" in name else None

        spoil(path, read, sign)

    @SELDOM
    @given(at=st.integers(0, 400), byte=st.integers(0, 255))
    def test_sequences_with_other_bytes(self, part: Path, at: int, byte: int) -> None:
        path = part / "work" / "blocks"
        whole = path.read_bytes()
        data = bytearray(whole)
        data[at % len(data)] = byte
        write_with_checksum(path, [data])
        works_or_tells(lambda: read_sequences_of([ScanFolder(part)]))
        write_with_checksum(path, [whole])


RUN: dict[str, dict[str, Any]] = {
    "model": {"family": "llama", "layers": 2, "heads": 2, "width": 16, "mlp": None, "position": "p-rope"},
    "data": {"corpus": "builtin:prose", "tokenizer": "bundled", "held_out": 0.1, "documents": 3},
    "training": {"steps": 4, "batch": 2, "length": 16, "learning_rate": 0.001, "warmup": 1, "seed": 0, "clip": 1.0},
    "regularizer": {"kind": "locater", "scale": 0.1, "mean": 0.0, "target": "localize"},
    "monitor": {"every": 2, "sequences": 4},
}
RUN["model"]["fraction"] = 0.5
RESULT = {
    "held_out_loss": 2.5, "perplexity": 12.0, "steps": 4, "seconds": 1.5, "monitor_overhead": 0.1,
    "warnings": ["head 0.0 is dead at step 3"], "versions": {"torch": "2"},
}  # fmt: skip
LINES: dict[str, dict[str, Any]] = {
    "loss.jsonl": {"step": 1, "loss": 3.5, "penalty": 0.1, "held_out": 3.0},
    "attention.jsonl": {"step": 1, "entropy": 1.0, "rho": None, "heads": {"entropy": [[1.0]]}, "warnings": ["w"]},
}


class TestTraining:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "run.json").write_text(json.dumps(RUN))
        (tmp_path / "result.json").write_text(json.dumps(RESULT))
        for name, line in LINES.items():
            (tmp_path / name).write_text(f"{json.dumps(line)}\n{json.dumps({**line, 'step': 2})}\n")
        return tmp_path

    def read(self, folder: Path) -> None:
        side_by_side([read_run(folder)])
        _warnings(folder)

    @OFTEN
    @given(chosen=changes(), name=st.sampled_from(["run.json", "result.json", *LINES]))
    def test_a_run(self, folder: Path, chosen: list[Change], name: str) -> None:
        self.read(folder)
        path = folder / name
        whole = path.read_bytes()
        first, *rest = whole.split(b"\n") if name in LINES else [whole]
        path.write_bytes(b"\n".join([changed(json.loads(first), chosen), *rest]))
        works_or_tells(lambda: self.read(folder))
        works_or_tells(lambda: _refuse_other(read_config_of(RUN, folder), folder))
        path.write_bytes(whole)

    @pytest.mark.parametrize("name", ["run.json", "result.json", *LINES])
    def test_damaged_files_of_a_run(self, folder: Path, name: str) -> None:
        spoil(folder / name, lambda: self.read(folder))

    def test_half_a_line_at_the_end_is_a_run_that_is_being_written(self, folder: Path) -> None:
        with (folder / "loss.jsonl").open("a") as file:
            file.write('{"step": 3, "lo')
        assert list(read_run(folder).loss["step"]) == [1, 2]
        (folder / "loss.jsonl").write_text('{"step": 3, "lo\n{"step": 4, "loss": 1.0}\n')
        with pytest.raises(ArmillaryError, match=r"line 1 of .*loss\.jsonl is not JSON"):
            read_run(folder)

    @OFTEN
    @given(chosen=changes())
    def test_a_configuration(self, tmp_path: Path, chosen: list[Change]) -> None:
        works_or_tells(lambda: read_config_of(json.loads(changed(RUN, chosen)), tmp_path))

    def test_damaged_configurations(self, tmp_path: Path) -> None:
        path = tmp_path / "run.toml"
        for data in (*BYTES, b"a = " + b"[" * 20_000, b"training = 3", b"[training]\nsteps = 2026-01-01"):
            path.write_bytes(data)
            works_or_tells(lambda: read_config(path))


def read_config_of(record: Any, folder: Path) -> Any:
    """The configuration, written as TOML first where TOML can say it."""
    path = folder / "written.toml"
    path.write_text("".join(f"{toml(key)} = {toml(value)}\n" for key, value in record.items()), errors="replace")
    return read_config(path)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        inside = ", ".join(f"{toml(key)} = {toml(item)}" for key, item in value.items() if item is not None)
        return "{" + inside + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(item) for item in value if item is not None) + "]"
    if isinstance(value, float) or value is None:
        return str(value).lower().replace("none", "0")
    return json.dumps(value)


class TestExperiments:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        source = ROOT / "experiments" / "results" / "song-gram"
        folder = tmp_path / "song-gram"
        folder.mkdir()
        for path in source.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        return folder

    def read(self, folder: Path) -> None:
        found = results.read(folder)
        for name in found.tables:
            found.table(name)
        for name in found.figures:
            found.figure(name)
        page.lines([found], Path("figures"))

    @OFTEN
    @given(chosen=changes())
    def test_a_result(self, folder: Path, chosen: list[Change]) -> None:
        path = folder / "result.json"
        whole = path.read_bytes()
        path.write_bytes(changed(json.loads(whole), chosen))
        works_or_tells(lambda: self.read(folder))
        path.write_bytes(whole)

    def test_damaged_files_of_a_result(self, folder: Path) -> None:
        for path in sorted(folder.iterdir()):
            spoil(path, lambda: self.read(folder))

    @SELDOM
    @given(chosen=changes())
    def test_a_figure(self, folder: Path, chosen: list[Change]) -> None:
        path = next(path for path in sorted(folder.glob("*.json")) if path.name != "result.json")
        whole = path.read_bytes()
        path.write_bytes(changed(json.loads(whole), chosen))
        works_or_tells(lambda: self.read(folder))
        path.write_bytes(whole)


class TestCorpus:
    @OFTEN
    @given(chosen=changes())
    def test_json_lines(self, tmp_path: Path, chosen: list[Change]) -> None:
        path = tmp_path / "text.jsonl"
        path.write_bytes(changed([{"text": "one two", "n": 1}, {"text": "three"}, {"text": None}], chosen)[1:-1])
        works_or_tells(lambda: list(documents(str(path))))
        path.write_bytes(changed({"text": "one two", "n": 1}, chosen) + b'\n{"text": "three"}\n')
        works_or_tells(lambda: list(documents(str(path))))

    def test_damaged_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "text.jsonl"
        for data in (*BYTES, b'{"text": 3}', b'{"text": ["x"]}', b'{"text": {"x": 1}}', b"[3]", b'["text"]', b'"text"'):
            path.write_bytes(data)
            works_or_tells(lambda: list(documents(str(path))))

    @pytest.mark.parametrize("value", [3, 0.5, True, ["x"], {"x": "y"}])
    def test_a_field_that_is_not_text(self, tmp_path: Path, value: object) -> None:
        path = tmp_path / "text.jsonl"
        path.write_text(json.dumps({"text": "x"}) + "\n" + json.dumps({"text": value}))
        with pytest.raises(ArmillaryError, match=r"line 2 of .*text\.jsonl: the field 'text' is not text"):
            list(documents(str(path)))


class TestAtlas:
    """zarr.json changed, and the checksums made to fit."""

    @pytest.fixture
    def store(self, atlases: Atlases, tmp_path: Path) -> Path:
        import shutil

        return shutil.copytree(atlases.family("llama").path, tmp_path / "atlas.zarr")

    def read(self, store: Path, report: bool = False) -> None:
        atlas = arm.open_atlas(store)
        _ = atlas.heads, atlas.layers
        dossier(atlas, 0, 0)
        compare(atlas, arm.open_atlas(store))
        labels(store, as_json=True)
        if report:
            report_html(atlas)

    @settings(OFTEN, max_examples=15)
    @given(chosen=changes(), name=st.sampled_from(["", "tables/heads", "tables/layers", "tables/heads/values"]))
    def test_metadata(self, store: Path, chosen: list[Change], name: str) -> None:
        self.change(store, name, chosen, lambda: self.read(store))

    @settings(OFTEN, max_examples=6)
    @given(chosen=changes())
    def test_metadata_in_a_report(self, store: Path, chosen: list[Change]) -> None:
        self.change(store, "", chosen, lambda: self.read(store, report=True))

    def change(self, store: Path, name: str, chosen: list[Change], use: Callable[[], object]) -> None:
        path = store / name / "zarr.json"
        whole = path.read_bytes()
        path.write_bytes(changed(json.loads(whole), chosen))
        write_manifest(store)
        works_or_tells(use)
        path.write_bytes(whole)
        write_manifest(store)

    @pytest.mark.parametrize("name", ["", "tables/heads", "tables/heads/values", "patterns"])
    def test_damaged_metadata(self, store: Path, name: str) -> None:
        spoil(store / name / "zarr.json", lambda: self.read(store), lambda path: write_manifest(store))


@pytest.mark.parametrize(
    ("value", "shape", "said"),
    [
        ({"a": [1, "x"]}, dict[str, list[int]], 'a[1] should be a whole number, not "x"'),
        ([], dict[str, int], "all of it should be an object, not a list"),
        (True, int, "all of it should be a whole number, not true"),
        (10**30, int, "should be a whole number, not 1000"),
        (3, float, None),
        (None, int | None, None),
        ("x", int | None, "should be a whole number, not"),
    ],
)
def test_a_mismatch_names_the_field(value: object, shape: object, said: str | None) -> None:
    found = mismatch(value, shape)
    assert found is None if said is None else said in str(found)
