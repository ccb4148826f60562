"""The recipe of the bundled models: the same bits again, texts that repeat, and models with heads worth looking at."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import armillary as arm
from armillary.training.bundled import FAMILIES, VOCABULARY, bundled
from armillary.training.recipe import PERIOD, ROWS, STAGES, fresh_model, sinusoids, train_stages, what_induction_does
from armillary.training.repeats import Spans, copy_losses, repeated_spans, two_copies
from conftest import Atlases


class TestRepeats:
    def test_spans_repeat_and_are_cut_from_the_texts_or_drawn(self) -> None:
        text = np.arange(1000, 2000).astype(np.uint16)
        only_text = repeated_spans([text], 3000, 5000, Spans(5, 5, copies=2, random=0.0))
        assert only_text.shape == (5000,)
        spans = only_text.reshape(-1, 2, 5)
        assert (spans[:, 0] == spans[:, 1]).all()
        assert (np.diff(spans[:, 0].astype(int), axis=1) == 1).all()
        drawn = repeated_spans([text], 3000, 60_000, Spans(5, 9, copies=4, random=1.0))
        assert drawn.min() == 1
        assert drawn.max() == 2999
        assert np.array_equal(only_text, repeated_spans([text], 3000, 5000, Spans(5, 5, copies=2, random=0.0)))

    def test_losses_of_both_copies_by_hand(self) -> None:
        model = arm.load(bundled("llama"), dtype=torch.float32)
        ids = two_copies(VOCABULARY, 16, 4)
        assert torch.equal(ids[:, :16], ids[:, 16:])
        assert all(len(set(row)) == 16 for row in ids[:, :16].tolist())
        with torch.no_grad():
            chances = model(input_ids=ids).logits.log_softmax(-1)
        right = -chances[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
        first, second = copy_losses(model, ids)
        assert first == pytest.approx(float(right[:, :15].mean()), rel=1e-5)
        assert second == pytest.approx(float(right[:, 16:].mean()), rel=1e-5)

    def test_a_head_that_writes_nothing_can_be_removed_without_a_change(self) -> None:
        model = arm.load(bundled("llama"), dtype=torch.float32)
        ids = two_copies(VOCABULARY, 16, 4)
        whole = copy_losses(model, ids)
        assert copy_losses(model, ids, [(0, 1)]) != whole
        width = model.config.hidden_size // model.config.num_attention_heads
        with torch.no_grad():
            model.model.layers[0].self_attn.o_proj.weight[:, width : 2 * width] = 0
        assert copy_losses(model, ids, [(0, 1)]) == pytest.approx(copy_losses(model, ids), abs=1e-6)

    def test_sinusoids_depend_on_the_distance_alone(self) -> None:
        gram = sinusoids(40, 24).double() @ sinusoids(40, 24).double().T
        for distance in (0, 1, 7):
            diagonal = gram.diagonal(distance)
            assert float(diagonal.max() - diagonal.min()) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_steps_give_the_same_bits_again(family: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bundled(family))
    stages = [replace(stage, settings=replace(stage.settings, steps=12)) for stage in STAGES]
    trained = []
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    for run in ("a", "b"):
        model = fresh_model(family)
        train_stages(model, tokenizer, tmp_path / run, stages)
        trained.append(model.state_dict())
    torch.set_num_threads(before)
    assert all(torch.equal(values, trained[1][name]) for name, values in trained[0].items())
    assert sorted(path.name for path in (tmp_path / "a" / "checkpoints").iterdir())[-1] == "step-00000016"


@pytest.mark.parametrize("family", ["llama"])
class TestBundledHeads:
    """The rotary model has heads to look at, and its record says what they do; gpt2 is of an earlier recipe."""

    def test_previous_token_and_induction_heads_are_significant(self, family: str, atlases: Atlases) -> None:
        heads = atlases.trained(family).heads
        significant = heads[heads["significant"].fillna(value=False).astype(bool)]
        assert {"previous", "induction"} <= set(significant["label"])

    def test_without_induction_heads_the_second_copy_is_harder(self, family: str) -> None:
        record = json.loads((bundled(family) / "training.json").read_text())["repeated_tokens"]
        assert record["heads"]["induction"]
        assert record["second_copy"] < record["first_copy"] - 2
        assert record["second_copy_without_induction_heads"] > record["second_copy"] + 1
        others = record["second_copy_without_others"] - record["second_copy"]
        assert others < record["second_copy_without_induction_heads"] - record["second_copy"]
        model = arm.load(bundled(family), dtype=torch.float32)
        induction = [(int(name.split(".")[0]), int(name.split(".")[1])) for name in record["heads"]["induction"]]
        measured = copy_losses(model, two_copies(VOCABULARY, PERIOD, ROWS), induction)
        assert measured[1] == pytest.approx(record["second_copy_without_induction_heads"], abs=0.01)


def test_what_is_recorded_is_what_is_measured() -> None:
    atlas = arm.scan(bundled("llama"), "builtin:prose", sequences=16)
    found = what_induction_does(arm.load(bundled("llama"), dtype=torch.float32), atlas)
    record = json.loads((bundled("llama") / "training.json").read_text())["repeated_tokens"]
    assert found["first_copy"] == pytest.approx(record["first_copy"], abs=0.01)
    assert found["second_copy"] == pytest.approx(record["second_copy"], abs=0.01)


def test_the_bundled_timeline_shows_induction_being_born() -> None:
    folder = bundled("timeline")
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < 1_000_000
    timeline = arm.open_timeline(folder)
    record = json.loads((bundled("llama") / "training.json").read_text())
    assert int(timeline.steps[-1]) == sum(stage["settings"]["steps"] for stage in record["stages"])
    births = timeline.births
    induction = births[births["label"] == "induction"]
    previous = births[births["label"] == "previous"]
    assert len(induction) > 0
    assert previous["birth"].min() < induction["birth"].min()  # what they compose with is there before
    assert "induction" not in set(timeline.labels[0].reshape(-1).tolist())
