"""Work that is too large is refused at once, with the estimate and how to lift the limit; nothing is written."""

from pathlib import Path

import numpy as np
import pytest
import torch

import armillary as arm
from armillary.anatomy.loading import load_tokenizer
from armillary.anatomy.samples import sample_model
from armillary.engines.local import Local
from armillary.errors import ArmillaryError
from armillary.interventions import scaled
from armillary.machine import limits
from armillary.probe.attention_map import attention_map
from armillary.probe.trial import trial
from armillary.progress import Progress
from armillary.scanning.folder import Shard, parse_part, plan
from armillary.text.sequences import read_sequences
from armillary.training.config import from_dict
from armillary.training.models import refuse_too_large
from program import complaint

LIFT = "`armillary --no-limits ...` tries it nonetheless"
GB = 1e9
really_free = limits.free_memory


@pytest.fixture(autouse=True)
def sixteen_gigabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates are held against a machine of one size, whatever runs the tests."""
    monkeypatch.setattr(limits, "free_memory", lambda: 16 * GB)


@pytest.mark.parametrize("corpus", ["builtin:random", "builtin:prose"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--sequences", 10**12), "1000000000000 sequences of 128 tokens would need about "),
        (("--length", 10**9), "64 sequences of 1000000000 tokens would need about "),
        (("--sequences", 10**15, "--part", "1/1000"), "1000000000000000 sequences of 128 tokens would need about"),
        (("--sequences", 2**62, "--length", 2**62), "tokens would need about"),
    ],
)
def test_more_text_than_memory(tmp_path: Path, corpus: str, options: tuple[object, ...], said: str) -> None:
    asked = complaint("scan", arm.bundled("llama"), "--out", tmp_path / "o", "--corpus", corpus, *map(str, options))
    assert said in asked
    assert "are free here: ask for fewer or shorter sequences" in asked
    assert LIFT in asked
    assert not (tmp_path / "o").exists()


def test_a_batch_that_does_not_fit_or_would_not_end(tmp_path: Path) -> None:
    scan = ("scan", arm.bundled("llama"), "--corpus", "builtin:random", "--out", tmp_path / "o", "--sequences", "1")
    held = complaint(*scan, "--length", str(10**8))
    assert "1 sequences of 100000000 tokens at once would need about 1.8 TB of memory, and 16 GB are free here" in held
    slow = complaint(*scan, "--streams", "attention", "--length", str(2 * 10**6))
    assert "the attention of one layer on 1 sequences of 2000000 tokens at once would take about 6 hours" in slow


def test_a_map_of_twenty_thousand_tokens() -> None:
    folder = arm.bundled("llama")
    with pytest.raises(
        ArmillaryError, match=r"a map of \d+ words in 6 layers would need about \d+ GB of memory"
    ) as told:
        attention_map(arm.load(folder), load_tokenizer(folder), "word " * 20_000, level="token")
    assert "`no_limits=True` tries it nonetheless" in str(told.value)


def test_a_hundred_thousand_tokens_to_generate() -> None:
    folder = arm.bundled("llama")
    line = ("intervene", folder, "--scale", "1.1", "--text", "def the function", "--generate", "100000")
    said = complaint(*line)
    assert "generating 100000 tokens before and after the change would take about" in said
    assert LIFT in said
    shown: list[str] = []

    class Shown(Progress):
        def begin(self, what: str, total: int, unit: str, **others: int) -> None:
            shown.append(f"{total} {unit}")

    model = arm.load(folder)
    trial(model, load_tokenizer(folder), "def the function", lambda m: scaled(m, 1.1), generate=3, progress=Shown())
    assert shown == ["3 tokens", "3 tokens"]


@pytest.mark.parametrize(
    "sizes",
    [
        {"model": {"layers": 10**9}},
        {"model": {"width": 10**6, "heads": 10}},
        {"model": {"mlp": 10**12}},
        {"training": {"batch": 10**9}},
        {"training": {"length": 10**9}},
    ],
    ids=str,
)
def test_a_model_that_does_not_fit(sizes: dict[str, dict[str, int]]) -> None:
    with pytest.raises(ArmillaryError, match=r"a model of .* would need about .* of memory, and 16 GB are free here"):
        refuse_too_large(from_dict(sizes), 2048)
    refuse_too_large(from_dict({}), 2048)


def test_absurd_training_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[model]\nlayers = 1000000000\n[data]\ndocuments = 60\n")
    assert "a model of 1000000000 layers of width 128" in complaint("train", tmp_path / "run.toml")
    (tmp_path / "run.toml").write_text("[training]\nsteps = 1000000000000\n")
    assert "training.steps = 1000000000000: it must be below 10^8" in complaint("train", tmp_path / "run.toml")
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_more_workers_than_memory() -> None:
    with pytest.raises(ArmillaryError, match="1000000 worker processes would need about 200 TB of memory"):
        Local(1_000_000)


def test_limits_can_be_lifted() -> None:
    with pytest.raises(ArmillaryError, match="would need about 20 GB"):
        limits.refuse_beyond_memory(20 * GB, "it", "no")
    with arm.no_limits():
        limits.refuse_beyond_memory(20 * GB, "it", "no")
        limits.refuse_beyond_patience(1e9, "it", "no")
    with pytest.raises(ArmillaryError, match="would take about 12 days"):
        limits.refuse_beyond_patience(1e6, "it", "no")


def test_what_fits_is_never_refused() -> None:
    blocks = read_sequences("builtin:random", None, length=128, sequences=1000, vocabulary=99)
    assert blocks.tokens.shape == (1000, 128)
    arm.scan(sample_model("llama"), torch.randint(5, 99, (2, 16)), streams=("attention",))


def test_the_memory_that_is_free_is_known() -> None:
    assert 1e7 < really_free() < 1e15


def test_shards_are_counted_not_made() -> None:
    every = plan(10**18, 7)
    assert every[-1] == Shard(len(every) - 1, (len(every) - 1) * 7, 10**18)
    half = parse_part("2/2").shards(every)
    assert len(half) == len(every) - len(every) // 2
    small = plan(10, 4)
    assert list(small) == [Shard(0, 0, 4), Shard(1, 4, 8), Shard(2, 8, 10)]
    assert np.array_equal([shard.index for shard in small[1:]], [1, 2])
