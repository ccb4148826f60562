"""The loss of the scanned text: with and without a begin token, two baselines, and the notes about them."""

import json
import math
import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import armillary as arm
from armillary.anatomy.loading import load_tokenizer
from armillary.anatomy.tokenizer_flags import honor_gguf
from armillary.report.whole import size
from armillary.text import loss as text_loss
from armillary.text.loss import LossSample, loss_sample, losses, notes, unigram_losses
from armillary.text.sequences import Sequences, read_sequences, special_tokens
from conftest import shared
from handmade import letters

SETTINGS: dict[str, Any] = dict(length=32, sequences=6, shard=2, streams=("attention",))


def text_sequences(bos: Any = "never") -> Sequences:
    tokenizer = load_tokenizer(arm.bundled("llama"))
    return read_sequences("builtin:prose", tokenizer, length=32, sequences=6, vocabulary=2048, bos=bos)


class TestBaselines:
    def test_each_token_is_left_out_of_its_own_frequency(self) -> None:
        texts = np.array([[5, 5, 5, 6, 6, 7, 8, 5]])
        found = unigram_losses(texts, LossSample(texts, (), (1, 3, 5)), 100)
        unseen = 2 / 8  # 7 and 8 occur once
        chances = [(1 - unseen) * rest / 7 + unseen / 100 for rest in (3, 1, 0)]
        assert found == pytest.approx([-np.mean(np.log(chances))])

    def test_if_no_token_occurs_twice_it_is_the_uniform_loss(self) -> None:
        texts = np.arange(12).reshape(2, 6)
        assert unigram_losses(texts, LossSample(texts, (), (1, 2)), 50) == pytest.approx([math.log(50)] * 2)


class TestLosses:
    def test_are_those_of_the_whole_model(self) -> None:
        sequences = text_sequences()
        sample = loss_sample(sequences, 2048)
        assert sample is not None
        model = arm.load(arm.bundled("llama"))
        found = losses(model, sample, torch.device("cpu"))
        text = torch.from_numpy(sample.texts)
        assert sequences.begin is not None
        begun = torch.cat([torch.full((len(text), 1), sequences.begin), text], 1)
        with torch.no_grad():
            plain, after_begin = model(input_ids=text).logits, model(input_ids=begun).logits
        for name, logits in (("without_begin", plain[:, :-1]), ("with_begin", after_begin[:, 1:-1])):
            each = cross_entropy(logits.transpose(1, 2).double(), text[:, 1:], reduction="none").mean(1)
            assert found[name] == pytest.approx(each.numpy(), rel=1e-5)

    def test_few_places_of_a_large_vocabulary(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(text_loss, "MOST_LOGITS", 2048 * 5)
        sample = loss_sample(text_sequences(), 2048)
        assert sample is not None
        assert len(sample.positions) == 5
        model = arm.load(arm.bundled("llama"))
        seen: list[int] = []
        model.lm_head.register_forward_hook(lambda module, given, made: seen.append(made.shape[1]))
        losses(model, sample, torch.device("cpu"))
        assert set(seen) == {5}

    def test_do_not_depend_on_what_the_scan_puts_before_its_text(self) -> None:
        whole = {bos: arm.scan(arm.bundled("llama"), bos=bos, **SETTINGS).attrs["loss"] for bos in ("always", "never")}
        assert whole["always"]["chosen"] == "with_begin"
        assert whole["never"]["chosen"] == "without_begin"
        assert 0 < whole["always"]["with_begin"] < whole["always"]["unigram"] < whole["always"]["uniform"]

    def test_a_model_without_a_head_has_none(self) -> None:
        model = arm.load(arm.bundled("llama")).model
        atlas = arm.scan(model, tokenizer=load_tokenizer(arm.bundled("llama")), **SETTINGS)
        assert atlas.attrs["loss"] is None
        assert "loss" not in size(atlas)

    @pytest.mark.slow
    def test_are_the_same_from_workers_and_from_parts(self, tmp_path: Path) -> None:
        folder = arm.bundled("llama")
        whole = arm.scan(folder, **SETTINGS)
        assert whole.attrs["loss"]["blocks"] == 4
        assert f"loss {whole.attrs['loss']['without_begin']:.2f} nats per token" in size(whole)
        assert arm.scan(folder, workers=2, **SETTINGS).attrs["loss"] == whole.attrs["loss"]
        for number in (1, 2):
            arm.scan_part(folder, part=f"{number}/2", out=tmp_path / str(number), **SETTINGS)
        merged = arm.merge([tmp_path / "1", tmp_path / "2"], out=tmp_path / "merged")
        assert merged.attrs["loss"] == whole.attrs["loss"]


class TestNotes:
    TOLD: ClassVar[dict[str, Any]] = dict(
        chosen="without_begin", with_begin=3.0, without_begin=3.2, begin_se=0.05, unigram=7.0, unigram_se=0.1
    )

    def test_a_choice_that_is_worse_by_more_than_its_standard_error(self) -> None:
        told = {**self.TOLD, "uniform": 9.0}
        (said,) = notes(told)
        assert "better with a begin token (3.00 against 3.20" in said
        assert "`bos=always`" in said
        assert notes({**told, "begin_se": 0.3}) == []
        assert notes({**told, "chosen": "with_begin"}) == []
        (said,) = notes({**told, "chosen": "with_begin", "with_begin": 3.4})
        assert "`bos=never`" in said

    def test_no_better_than_frequencies(self) -> None:
        told = {**self.TOLD, "uniform": 9.0, "with_begin": None}
        for loss, unknown in ((6.8, False), (6.95, True), (8.7, True)):
            found = notes({**told, "without_begin": loss})
            assert bool(found) == unknown
            assert all("does not know this text" in note for note in found)

    def test_text_unlike_the_training_data(self, tmp_path: Path) -> None:
        letters = np.random.default_rng(0).choice(list("QXZVWJK#@~"), 20_000)
        (tmp_path / "noise.txt").write_text("".join(letters))
        atlas = arm.scan(arm.bundled("llama"), tmp_path / "noise.txt", **SETTINGS)
        assert any("does not know this text" in note for note in atlas.attrs["notes"])
        atlas = arm.scan(arm.bundled("llama"), "builtin:prose", **SETTINGS)
        assert not any("does not know" in note for note in atlas.attrs["notes"])

    def test_stories_and_documentation(self) -> None:
        model = shared("models/stories15M")
        asked = {**SETTINGS, "length": 64, "sequences": 15}
        stories = arm.scan(model, shared("corpora/tinystories-sample-cs336.txt"), **asked).attrs
        prose = arm.scan(model, "builtin:prose", **asked).attrs
        assert stories["loss"]["with_begin"] < 3 < 8 < prose["loss"]["with_begin"]
        assert not any("does not know" in note for note in stories["notes"])
        assert any("does not know" in note for note in prose["notes"])


class TestFlags:
    @pytest.mark.parametrize("template", [None, "<s> $A", "$A </s>"])
    @pytest.mark.parametrize("bos", [True, False])
    @pytest.mark.parametrize("eos", [True, False])
    def test_of_a_gguf_file_decide(self, template: str | None, bos: bool, eos: bool, tmp_path: Path) -> None:
        tokenizer = letters(template)
        file = gguf(tmp_path, add_bos_token=bos, add_eos_token=eos, bos_token_id=0, eos_token_id=1, model="gpt2")
        honor_gguf(tokenizer, file)
        assert special_tokens(tokenizer, "auto") == ([0] if bos else [], [1] if eos else [])

    def test_that_are_absent_leave_it_but_sentencepiece_begins(self, tmp_path: Path) -> None:
        for kind, before in (("gpt2", []), ("llama", [0])):
            tokenizer = letters()
            honor_gguf(tokenizer, gguf(tmp_path, bos_token_id=0, model=kind))
            assert special_tokens(tokenizer, "auto") == (before, [])

    def test_of_a_folder(self, tmp_path: Path) -> None:
        folder = Path(shutil.copytree(arm.bundled("llama"), tmp_path / "model"))
        plain = load_tokenizer(folder)
        text = "Give back the list."
        told = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps({**told, "add_bos_token": True}))
        found = load_tokenizer(folder)
        assert found(text)["input_ids"] == [plain.bos_token_id, *plain(text)["input_ids"]]
        assert (
            found(text, return_offsets_mapping=True)["offset_mapping"][1:]
            == (plain(text, return_offsets_mapping=True)["offset_mapping"])
        )
        atlas = arm.scan(folder, **SETTINGS)
        assert atlas.attrs["text"]["before"] == [plain.bos_token_id]
        assert atlas.attrs["loss"]["chosen"] == "with_begin"


def gguf(folder: Path, **settings: Any) -> Path:
    """A GGUF file with nothing in it but settings of a tokenizer."""
    writer = pytest.importorskip("gguf", reason="the extra gguf is not installed").GGUFWriter
    made = writer(str(folder / "model.gguf"), "llama")
    for name, value in settings.items():
        add = {bool: made.add_bool, int: made.add_uint32, str: made.add_string}[type(value)]
        add(f"tokenizer.ggml.{name}", value)
    made.add_array("tokenizer.ggml.tokens", ["<s>", "</s>", "a"])
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.close()
    return folder / "model.gguf"
