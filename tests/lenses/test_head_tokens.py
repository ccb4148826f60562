"""Heads in words: those made by hand are described so and by no other words; copying against the dense computation."""

from pathlib import Path

import numpy as np
import pytest
import torch

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.anatomy.source import describe
from armillary.lenses.finding import find
from armillary.lenses.reading import differs, gain_share
from armillary.lenses.sentences import NOTHING
from armillary.lenses.vocabulary import ENDS, VocabularyLens, directions, extreme_tokens
from handmade import TELLS, telling_llama, telling_text, telling_tokenizer


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> arm.Atlas:
    folder = tmp_path_factory.mktemp("told")
    (folder / "text.txt").write_text(telling_text())
    tokenizer = telling_tokenizer()
    return arm.scan(
        telling_llama(),
        folder / "text.txt",
        tokenizer=tokenizer,
        out=folder / "atlas",
        length=48,
        sequences=24,
        streams=("default", "tokens"),
    )


@pytest.mark.parametrize("head", TELLS)
def test_heads_made_by_hand_are_told_as_they_are_and_by_no_other_words(told: arm.Atlas, head: int) -> None:
    assert told.head(0, head).does == TELLS[head]


def test_a_head_that_attends_to_full_stops_is_a_delimiter_head_with_its_evidence(told: arm.Atlas) -> None:
    head = told.head(0, 0)
    assert head.label == "delimiter"
    rule = head.evidence[(head.evidence["label"] == "delimiter") & (head.evidence["role"] == "rule")].iloc[0]
    assert bool(rule["holds"])
    assert rule["value"] > rule["threshold"]
    assert head.reads["text"].iloc[0] == "'.'"
    assert head.reads["lift"].iloc[0] > 2
    assert (head.reads["gain"].iloc[1:] < 0).all()
    strongest = max((token for token in head.examples[0].tokens if not token.is_query), key=lambda token: token.weight)
    assert strongest.text == "."
    assert str(head.examples[0]).count("[[") == 1


def test_a_head_that_copies_writes_the_token_that_it_reads(told: arm.Atlas) -> None:
    copies, suppresses = told.head(0, 1), told.head(0, 2)
    assert copies.row["copying_score"] == pytest.approx(1, abs=1e-6)
    assert suppresses.row["copying_score"] == pytest.approx(-1, abs=1e-6)
    for row in copies.writes.itertuples():
        ends = set(str(row.source).split()), set(str(row.target).split())
        assert ends[0] & ends[1]


def test_find_names_the_heads_that_read_or_write_a_token(told: arm.Atlas) -> None:
    reads, _ = find(told, ".")
    assert reads.iloc[0][["layer", "head"]].tolist() == [0, 0]
    reads, _ = find(told, "punctuation")
    assert reads.iloc[0][["layer", "head"]].tolist() == [0, 0]
    reads, _ = find(told, "same")
    assert reads.iloc[0][["layer", "head"]].tolist() == [0, 3]
    _, writes = find(told, "cat")
    assert set(writes["head"]) <= {1, 2}
    with pytest.raises(arm.ArmillaryError, match="no token of this vocabulary"):
        find(told, "no such word")


def test_random_heads_have_no_clear_pattern(tmp_path: Path) -> None:
    tokens = torch.randint(5, 90, (16, 32), generator=torch.Generator().manual_seed(1))
    atlas = arm.scan(sample_model("llama"), tokens, out=tmp_path / "random", streams=("default", "tokens"))
    said = atlas.heads["does"].dropna()
    assert {str(word) for word in said} <= {NOTHING}


def test_a_lift_seen_in_one_text_differs_from_nothing_and_few_texts_need_more() -> None:
    one, two, many = (bool(differs(np.array(3.0), np.array(0.1), np.array(texts))) for texts in (1.0, 2.0, 100.0))
    assert (one, two, many) == (False, False, True)


def test_the_share_of_the_ten_best_tokens() -> None:
    gain = np.array([[*[2.0] * 10, *[1.0] * 10, -5.0], [-1.0] * 21])
    assert gain_share(gain)[0] == pytest.approx(2 / 3)
    assert np.isnan(gain_share(gain)[1])


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text", "bloom", "phi", "qwen3", "granite", "olmo"])
def test_copying_and_directions_are_those_of_the_dense_products(family: str) -> None:
    """Tied and untied, layer and rms norms, gains minus one, scaled and normed embeddings, grouped keys."""
    model = sample_model(family).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += torch.linspace(-0.3, 0.3, len(parameter))
    anatomy = describe(model)
    lens = VocabularyLens(anatomy.ends())
    ends = lens.ends
    e, u = ends.embedded(0, ends.tokens).double(), ends.unembedded(0, ends.tokens).double()
    layer = anatomy.layers[1]
    weights = anatomy.weights(1)
    arrays = lens.layer(layer, weights)
    for head in range(layer.heads):
        v, o = weights.v[layer.kv_head(head)].double(), weights.o[head].double()
        values = torch.linalg.eigvals(e @ v @ o @ u.T)
        assert float(arrays["copying_score"][head]) == pytest.approx(
            float(values.real.sum() / values.abs().sum()), abs=1e-6
        )
        left, energy, right = torch.linalg.svd(v @ o)
        assert torch.allclose(arrays["write_share"][head], (energy.square() / energy.square().sum())[:3], atol=1e-6)
        for place in range(3):
            scores = e @ left[:, place]
            expected = {frozenset(side.topk(ENDS).indices.tolist()) for side in (scores, -scores)}
            assert {frozenset(side.tolist()) for side in arrays["read_end"][head, place]} == expected
            both = e @ left[:, place], u @ right[place]
            top = both[0].topk(ENDS).indices.tolist(), both[1].topk(ENDS).indices.tolist()
            sides = [
                (a.tolist(), b.tolist())
                for a, b in zip(arrays["read_end"][head, place], arrays["write_end"][head, place], strict=True)
            ]
            assert top in sides


@pytest.mark.parametrize(
    "family", ["llama", "gpt2", "gemma3_text", "bloom", "gpt_neox", "opt", "cohere", "nemotron", "olmo"]
)
def test_both_ends_are_what_the_model_does_with_tokens(family: str) -> None:
    """E is what enters layer 0 (with positions, up to what all texts share); logits are h U, scaled."""
    model = sample_model(family).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and "bias" not in name:
                parameter += torch.linspace(-0.3, 0.3, len(parameter))
            elif parameter.dim() == 1:
                parameter.zero_()
    ends = describe(model).ends()
    tokens = torch.randint(5, 40, (2, 9), generator=torch.Generator().manual_seed(0))
    stream: dict[int, torch.Tensor] = {}
    with torch.no_grad(), arm.Tap(model, lambda view: None, lambda layer, h: stream.update({layer: h})):
        logits = model(tokens).logits.double()
    rest = stream[0] - ends.embedded(0, ends.tokens)[tokens]
    assert (rest[0] - rest[1]).abs().max() < 1e-5  # positions, or nothing
    ours = stream[max(stream)].double() @ ends.unembedded(0, ends.tokens).double().T
    one, other = (part - part.mean(-1, keepdim=True) for part in (ours, logits))
    cosine = (one * other).sum(-1) / one.norm(dim=-1) / other.norm(dim=-1)
    assert cosine.min() > 1 - 1e-5


def test_a_folder_gives_the_ends_of_the_loaded_model(tmp_path: Path) -> None:
    folder = arm.bundled("gpt2")
    stored, loaded = describe(folder).ends(), describe(arm.load(folder)).ends()
    for name in ("embedded", "unembedded"):
        assert torch.equal(getattr(stored, name)(100, 110), getattr(loaded, name)(100, 110))


def test_weights_alone_give_the_same_copying_scores(told: arm.Atlas, tmp_path: Path) -> None:
    atlas = arm.weigh(telling_llama(), out=tmp_path / "weights", matrices=False)
    assert np.allclose(atlas.heads["copying_score"], told.heads["copying_score"])
    assert atlas.head(0, 1).does == "copies what it reads"
    assert len(atlas.head(0, 1).writes)


def test_extreme_tokens_do_not_depend_on_the_rows_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table = torch.randn(500, 12, generator=torch.Generator().manual_seed(0))
    along = directions([table[:12, :4]], [table[12:24, :4]]).left
    whole = extreme_tokens(lambda start, stop: table[start:stop], 500, along)
    monkeypatch.setattr("armillary.lenses.vocabulary.ROWS", 7)
    assert torch.equal(whole, extreme_tokens(lambda start, stop: table[start:stop], 500, along))
