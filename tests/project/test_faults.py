"""The campaign of faults (bench/campaign.py): it can fail, and a small one passes."""

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.atlas.manifest import Manifest

BENCH = Path(__file__).resolve().parents[2] / "bench"
TOKENS = torch.randint(5, 99, (4, 16), generator=torch.Generator().manual_seed(3))


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """The modules of the campaign by name; bench/ is on the path while a test runs."""
    import importlib

    monkeypatch.syspath_prepend(str(BENCH))
    return lambda name: importlib.import_module(f"faults.{name}")


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("faults") / "atlas"
    arm.scan(sample_model("llama"), TOKENS, out=out, streams=("positions", "attention"))
    return out


class TestItCanFail:
    """Every verdict that must not be seen is seen when there is a reason."""

    def test_a_hang_a_crash_and_an_exception(self, faults: Any, tmp_path: Path) -> None:
        serving = faults("serving")
        works: dict[str, tuple[str, Callable[[], object]]] = {
            "sleeps": ("hang", lambda: time.sleep(600)),
            "dies": ("traceback", lambda: os.kill(os.getpid(), signal.SIGKILL)),
            "raises": ("traceback", lambda: [][1]),
            "does nothing": ("same", lambda: None),
        }
        for name, (verdict, work) in works.items():
            case = serving.Case(0, random.Random(0), tmp_path, tmp_path)
            bound = 3.0 if verdict == "hang" else 300.0
            [found] = serving.forked(case, lambda case=case, name=name, work=work: (case.tries(name), work())[1], bound)
            assert (found["what"], found["verdict"]) == (name, verdict), found

    def test_an_atlas_read_without_its_checksums(
        self, faults: Any, atlas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Chunks of another atlas are refused; with a reader that looks at no checksum they are other values."""
        atlases, damages = faults("atlases"), faults("damages")
        expected = atlases.read(atlas)
        assert atlases.judged(atlas, expected).verdict == "same"
        other = tmp_path / "other"
        arm.scan(sample_model("llama", seed=1), TOKENS, out=other, streams=("positions", "attention"))
        replace = list(damages.DAMAGES).index("replace by another's")
        folders = [shutil.copytree(atlas, tmp_path / str(seed)) for seed in range(6)]
        for seed, folder in enumerate(folders):
            damages.damaged(folder, other, random.Random(seed), replace, "atlas.zarr")
            assert atlases.judged(folder, expected).verdict == "refused"
        monkeypatch.setattr(Manifest, "_read_checked", lambda self, name: ((self.store / name).read_bytes(), None))
        assert "different" in {atlases.judged(folder, expected).verdict for folder in folders}

    def test_a_check_that_finds_nothing(self, faults: Any, atlas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        atlases, programs = faults("atlases"), faults("programs")
        file = "atlas.zarr/attention/entropy/c/0/0"
        for ran, verdict in (
            (programs.Ran(0, "all files are match their checksums", ""), "wrong"),
            (programs.Ran(1, "attention/self_mass: attention/self_mass/c/0/0 (changed)", ""), "wrong"),
            (programs.Ran(1, "", "Traceback (most recent call last)"), "traceback"),
            (programs.Ran(1, "attention/entropy: attention/entropy/c/0/0 (changed)", ""), None),
        ):
            monkeypatch.setattr(programs, "armillary", lambda *given, ran=ran: ran)
            found = atlases.checked(atlas, [file], atlas)
            assert (found and found.verdict) == verdict

    def test_a_checkpoint_that_one_use_accepts(
        self, faults: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One use after the other reads a good folder instead of the damaged one that it is given."""
        checkpoints, mutation = faults("checkpoints"), faults("mutation")
        good, bad = tmp_path / "good", tmp_path / "bad"
        sample_model("llama").save_pretrained(good)
        sample_model("llama", seed=1).save_pretrained(bad)
        file = bad / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
        assert checkpoints.judged(bad, mutation.REFUSE, "cut", {}).verdict == "refused"
        for use, right in list(checkpoints.USES.items()):
            with monkeypatch.context() as patch:
                patch.setitem(checkpoints.USES, use, lambda folder, right=right: right(good))
                assert checkpoints.judged(bad, mutation.REFUSE, "cut", {}).verdict == "wrong", use

    def test_numbers_from_elsewhere_and_code_that_runs(
        self, faults: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checkpoints, mutation = faults("checkpoints"), faults("mutation")
        folder, other = tmp_path / "model", tmp_path / "other"
        sample_model("llama").save_pretrained(folder)
        sample_model("llama", seed=1).save_pretrained(other)
        assert checkpoints.judged(folder, mutation.FREE, "nothing", {}).verdict == "same"
        for use, right in list(checkpoints.USES.items()):
            monkeypatch.setitem(checkpoints.USES, use, lambda folder, right=right: right(other))
        assert checkpoints.judged(folder, mutation.FREE, "elsewhere", {}).verdict == "different"
        mutation.sentinel(folder).touch()
        assert checkpoints.judged(folder, mutation.FREE, "code", {}).verdict == "wrong"

    def test_command_lines(self, faults: Any) -> None:
        commands, programs = faults("commands"), faults("programs")
        raw = programs.Ran(1, "", "Traceback (most recent call last)\nValueError")
        assert commands.judged(raw, False, "").verdict == "traceback"
        assert commands.judged(programs.Ran(-signal.SIGSEGV, "", ""), False, "").verdict == "traceback"
        assert commands.judged(programs.Ran(1, "", "armillary: no"), False, "").verdict == "traceback"
        assert commands.judged(programs.Ran(0, "a table", ""), True, "").verdict == "wrong"
        assert commands.judged(programs.Ran(0, "", ""), False, "").verdict == "wrong"
        assert commands.judged(programs.Ran(0, "a table", ""), False, "").verdict == "same"
        assert commands.judged(programs.Ran(2, "", "armillary: no"), True, "").verdict == "refused"

    @pytest.mark.parametrize(
        ("expects", "answer", "verdict"),
        [
            ("any", b"HTTP/1.1 500 x\r\n\r\n", "traceback"),
            ("any", b"HTTP/1.1 503 x\r\n\r\n", "traceback"),
            ("any", b"HTTP/1.1 200 x\r\n\r\nthe-token", "wrong"),
            ("any", b"HTTP/1.1 404 x\r\n\r\nroot:x:0:0", "wrong"),
            ("refusal", b"HTTP/1.1 200 x\r\n\r\n{}", "wrong"),
            ("answer", b"HTTP/1.1 403 x\r\n\r\nno", "wrong"),
            ("answer", b"", "wrong"),
            ("refusal", b"HTTP/1.1 403 x\r\n\r\nno", "refused"),
            ("answer", b"HTTP/1.1 200 x\r\n\r\n{}", "same"),
        ],
    )
    def test_requests(self, faults: Any, expects: str, answer: bytes, verdict: str) -> None:
        request = faults("hostile").Request("x", (b"",), expects)
        assert faults("requests").judged_answer(request, answer, "the-token").verdict == verdict

    def test_one_fault_ends_the_campaign_with_exit_code_1(
        self, faults: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        import importlib.util

        spec = importlib.util.spec_from_file_location("campaign_of_faults", BENCH / "campaign.py")
        assert spec is not None
        assert spec.loader is not None
        campaign = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(campaign)
        outcomes = faults("outcomes")
        monkeypatch.setattr(sys, "argv", ["campaign.py", "--only", "atlases", "--out", str(tmp_path / "counts.json")])
        for verdict, code in (("same", 0), ("refused", 0), *((bad, 1) for bad in outcomes.FAULTS)):
            one = outcomes.Ended("atlases", 0, 17, outcomes.Outcome("flip a bit", verdict, "why"), 0.1)
            monkeypatch.setattr(campaign, "campaign", lambda *given, one=one: {"atlases": [one]})
            with pytest.raises(SystemExit) as ended:
                campaign.main()
            assert ended.value.code == code
            assert ("--only atlases --seed 0 --case 17" in capsys.readouterr().out) == (code == 1)
            counts = json.loads((tmp_path / "counts.json").read_text())["subjects"]["atlases"]
            assert counts["runs"] == counts[verdict] == 1


class TestConfinement:
    @pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
    def test_a_confined_process_writes_into_its_folder_alone(self, faults: Any, tmp_path: Path) -> None:
        serving, confining, outcomes = faults("serving"), faults("confining"), faults("outcomes")
        mine, others = tmp_path / "mine", tmp_path / "others"
        mine.mkdir()
        others.mkdir()

        def work() -> Any:
            why = confining.confined(mine)
            if why:
                return outcomes.Outcome("", "skipped", why)
            (mine / "file").touch()
            for path in (others / "file", Path("/dev/armillary-test"), Path("/armillary-test")):
                with pytest.raises(OSError, match="Read-only"):
                    path.touch()
            with pytest.raises(OSError, match="Read-only"):
                Path("/dev/null").unlink()
            return outcomes.Outcome("", "same")

        [found] = serving.forked(serving.Case(0, random.Random(0), mine, mine), work, 300.0)
        if found["verdict"] == "skipped":
            pytest.skip(found["told"])
        assert found["verdict"] == "same", found


def test_subjects_that_ran_apart_are_joined_in_order_and_others_are_not(faults: Any) -> None:
    page = faults("page")
    kills, atlases = ({"machine": {"cores": 2}, "seed": 0, "subjects": {name: {}}} for name in ("kills", "atlases"))
    assert list(page.joined([atlases, kills])["subjects"]) == ["kills", "atlases"]
    with pytest.raises(SystemExit, match="different machines"):
        page.joined([kills, {**atlases, "seed": 1}])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("subject", "cases"),
    [
        ("kills", 4),
        ("folders", 16),
        ("atlases", 40),
        ("disks", 16),
        ("checkpoints", 40),
        ("commands", 24),
        ("requests", 1),
    ],
)
def test_a_small_campaign(faults: Any, subject: str, cases: int, tmp_path: Path) -> None:
    """The first cases of every subject, with another seed than the campaign whose counts are kept."""
    ended = list(faults("serving").tried(subject, list(range(cases)), tmp_path, seed=1))
    bad = [one.as_dict() for one in ended if one.outcome.verdict in faults("outcomes").FAULTS]
    assert len(ended) >= cases
    assert not bad, json.dumps(bad, indent=1)


def test_the_page_shows_the_counts_and_all_are_zero(faults: Any) -> None:
    page, outcomes = faults("page"), faults("outcomes")
    counts = json.loads(page.COUNTS.read_text(encoding="utf-8"))
    assert page.PAGE.read_text(encoding="utf-8") == page.rendered(counts)
    assert {name: [told[bad] for bad in outcomes.FAULTS] for name, told in counts["subjects"].items()} == {
        name: [0, 0, 0, 0] for name in page.SUBJECTS
    }
    least = {"checkpoints": 1000, "atlases": 1000, "commands": 300, "requests": 1000}
    assert all(counts["subjects"][name]["runs"] >= count for name, count in least.items())
