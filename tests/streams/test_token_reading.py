"""What heads read: against two plain passes over transformers' own attentions; heavy pairs keep their bound."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.streams import heavy_pairs, looks
from armillary.streams.looks import Look, Text, look
from armillary.streams.tokens import EXAMPLES, RELATIONS

SKIP = 1
Scanned = tuple[arm.Atlas, np.ndarray, list[np.ndarray]]


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> Scanned:
    """An atlas of few texts, their tokens, and transformers' attentions (text, head, i, j) by layer."""
    model = sample_model("llama").eval()
    model.set_attn_implementation("eager")  # as for the attentions below: kernels differ in the last digits
    tokens = torch.randint(5, 17, (6, 14), generator=torch.Generator().manual_seed(0))
    folder = tmp_path_factory.mktemp("tokens")
    atlas = arm.scan(model, tokens, out=folder / "atlas", streams=("attention", "tokens"), shard=2, batch=2)
    with torch.no_grad():
        attentions = model(tokens, output_attentions=True).attentions
    return atlas, tokens.numpy(), [a.double().numpy() for a in attentions]


def by_distance(attention: np.ndarray) -> np.ndarray:
    """The mean attention of kept pairs at each distance, (head, distance)."""
    length = attention.shape[-1]
    rows = [[(i, i - n) for i in range(SKIP, length) if i - n >= SKIP] for n in range(length)]
    return np.array(
        [[np.mean([a[:, i, j] for i, j in row]) if row else 0.0 for row in rows] for a in attention.swapaxes(0, 1)]
    )


def plain_sums(attention: np.ndarray, tokens: np.ndarray, head: int) -> dict[Any, np.ndarray]:
    """Sums of a and of what distance explains, text by text, by key token and by pair of tokens."""
    usual = by_distance(attention)[head]
    sums: dict[Any, np.ndarray] = {}
    for c, text in enumerate(tokens):
        for i in range(SKIP, len(text)):
            for j in range(SKIP, i + 1):
                for key in (int(text[j]), (int(text[i]), int(text[j]))):
                    entry = sums.setdefault(key, np.zeros((len(tokens), 2)))
                    entry[c] += attention[c, head, i, j], usual[i - j]
    return sums


@pytest.mark.parametrize(("layer", "head"), [(0, 0), (1, 2), (2, 3)])
def test_gains_lifts_and_errors_are_those_of_two_passes(scanned: Scanned, layer: int, head: int) -> None:
    atlas, tokens, attentions = scanned
    arrays = atlas.group("tokens").isel(layer=layer, head=head)
    sums = plain_sums(attentions[layer], tokens, head)
    for token in np.unique(tokens[:, SKIP:]):
        a, b = sums[int(token)].T
        own = arrays.sel(read_token=int(token))
        lift = a.sum() / b.sum()
        texts = int((tokens[:, SKIP:] == token).any(1).sum())
        assert float(own["token_gain"]) == pytest.approx((a - b).sum(), abs=1e-6)
        assert float(own["token_lift"]) == pytest.approx(lift, abs=1e-6)
        assert int(own["token_count"]) == (tokens[:, SKIP:] == token).sum()
        if texts > 1:
            error = np.sqrt(texts / (texts - 1) * ((a - lift * b) ** 2).sum()) / b.sum()
            assert float(own["token_se"]) == pytest.approx(error, abs=1e-6)
        else:
            assert np.isnan(float(own["token_se"]))


def test_pairs_relations_and_moved_attention_are_those_of_two_passes(scanned: Scanned) -> None:
    atlas, tokens, attentions = scanned
    for layer, head in ((0, 1), (2, 0)):
        arrays = atlas.group("tokens").isel(layer=layer, head=head)
        usual = by_distance(attentions[layer])[head]
        related = {"same": 0.0, "after same": 0.0}
        moved = 0.0
        for c, text in enumerate(tokens):
            for i, j in product(range(SKIP, len(text)), repeat=2):
                if j > i:
                    continue
                off = attentions[layer][c, head, i, j] - usual[i - j]
                moved += max(off, 0.0)
                related["same"] += off * (text[i] == text[j] and j < i)
                related["after same"] += off * (text[i] == text[j - 1] and j < i)
        assert float(arrays["moved"]) * len(tokens) * (tokens.shape[1] - SKIP) == pytest.approx(moved, abs=1e-5)
        for name, value in related.items():
            assert float(arrays["relation_gain"][RELATIONS.index(name)]) == pytest.approx(value, abs=1e-6)
        sums = {
            key: value for key, value in plain_sums(attentions[layer], tokens, head).items() if isinstance(key, tuple)
        }
        gains = {key: float((value[:, 0] - value[:, 1]).sum()) for key, value in sums.items()}
        listed = {
            (int(q), int(k)): float(g)
            for q, k, g in zip(arrays["pair_query"], arrays["pair_key"], arrays["pair_gain"], strict=True)
            if q >= 0
        }
        assert listed
        for key, gain in gains.items():
            assert gain <= listed.get(key, 0.0) + float(arrays["pair_missed"]) + 1e-6


def test_examples_are_the_rows_that_distance_explains_least(scanned: Scanned) -> None:
    atlas, tokens, attentions = scanned
    layer, head = 1, 0
    usual = by_distance(attentions[layer])[head]
    best = []
    for c in range(len(tokens)):
        scores = [
            sum(max(attentions[layer][c, head, i, j] - max(1 / (i + 1), usual[i - j]), 0) for j in range(SKIP, i + 1))
            if i >= SKIP
            else 0.0
            for i in range(tokens.shape[1])
        ]
        best.append((max(scores), c, int(np.argmax(scores))))
    arrays = atlas.group("tokens").isel(layer=layer, head=head)
    for place, (score, c, query) in enumerate(sorted(best, key=lambda entry: -entry[0])[:EXAMPLES]):
        assert float(arrays["example_score"][place]) == pytest.approx(score, abs=1e-6)
        assert (int(arrays["example_text"][place]), int(arrays["example_query"][place])) == (c, query)
        key = int(arrays["example_key"][place, 0])
        assert key == int(np.argmax(attentions[layer][c, head, query, SKIP:])) + SKIP
        assert float(arrays["example_weight"][place, 0]) == pytest.approx(
            attentions[layer][c, head, query, key], abs=1e-6
        )


def test_the_number_of_workers_changes_no_bit(tmp_path: Path) -> None:
    folder = arm.bundled("llama")
    options: Any = dict(sequences=8, length=32, shard=2, streams=("attention", "tokens"), second_pass=8)
    alone = arm.scan(folder, "builtin:prose", out=tmp_path / "alone", **options)
    shared = arm.scan(folder, "builtin:prose", out=tmp_path / "shared", workers=2, **options)
    for name, array in alone.group("tokens").items():
        assert array.to_numpy().tobytes() == shared.group("tokens")[name].to_numpy().tobytes(), name


def random_text(generator: np.random.Generator, vocabulary: int, length: int) -> tuple[Text, np.ndarray, np.ndarray]:
    ids = np.minimum(generator.zipf(1.3, length), vocabulary) - 1
    seen = np.tril(np.ones((length, length), bool))
    logits = np.where(seen, generator.normal(0, 2, (length, length)), -np.inf)
    attention = np.exp(logits - logits.max(1, keepdims=True))
    return Text.of(ids), (attention / attention.sum(1, keepdims=True)).astype(np.float32), seen


def test_heavy_pairs_keep_their_bound_on_a_large_corpus() -> None:
    generator = np.random.default_rng(0)
    usual = np.full(2 * 96 - 1, 0.02, np.float32)
    truth: dict[tuple[int, int], float] = {}
    state = None
    for _ in range(60):
        text, attention, seen = random_text(generator, 400, 96)
        looked = look(attention, usual, seen, SKIP, text)
        for a, b in product(range(len(text.tokens)), repeat=2):
            pair = int(text.tokens[a]), int(text.tokens[b])
            truth[pair] = truth.get(pair, 0.0) + float(looked.pairs[0, a, b] - looked.pairs[1, a, b])
        fresh = {
            name: tensor[None]
            for name, tensor in heavy_pairs.of_text(looked, text, np.ones(looked.pairs.shape[1:], np.int64)).items()
        }
        state = fresh if state is None else heavy_pairs.joined(state, fresh)
    assert state is not None
    tokens, sums, missed = state["pair_tokens"][0], state["pair_sums"][0], float(state["pair_missed"][0])
    listed = {(int(q), int(k)): float(s[0] - s[1]) for (q, k), s in zip(tokens, sums, strict=True)}
    assert len(listed) == heavy_pairs.PAIRS < len(truth) / 10
    assert all(gain <= listed.get(pair, 0.0) + missed + 1e-9 for pair, gain in truth.items())
    strongest = max(truth, key=lambda pair: truth[pair])
    assert strongest in listed


@pytest.mark.parametrize("seed", [0, 1])
def test_the_compiled_loop_and_the_plain_one_agree(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(seed)
    text, attention, seen = random_text(generator, 30, 40)
    usual = generator.random(2 * 40 - 1).astype(np.float32) / 40
    fast, places = look(attention, usual, seen, 2, text), []
    places.append(looks.strongest(fast.pairs, 10))
    monkeypatch.setattr(looks, "trouble", lambda: "no compiler")
    slow = look(attention, usual, seen, 2, text)
    places.append(looks.strongest(fast.pairs, 10))
    for name in Look.__dataclass_fields__:
        assert np.allclose(getattr(fast, name), getattr(slow, name), atol=1e-6), name
    assert places[0][0].tolist() == places[1][0].tolist()
    assert places[0][1] == pytest.approx(places[1][1])
