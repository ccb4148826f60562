"""Labels of heads and their evidence: heads built by hand, random heads, real models."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from transformers import Lfm2MoeConfig, Lfm2MoeForCausalLM, LlamaForCausalLM
from typer.testing import CliRunner

import armillary as arm
from armillary import interventions
from armillary.anatomy.samples import DISTINCT, sample_model
from armillary.cli import app
from armillary.interventions.attention import attending
from armillary.lenses.labels import LABELS, agreement_table, evidence_table, label_counts, patterns
from armillary.observe.view import AttentionView
from armillary.probe.label_checks import check_heads, sampled_heads, summary
from armillary.scanning.passes import repeated_sequences
from armillary.streams.null import OfRandomHeads
from armillary.streams.patterns import NEAR, TEXT, Masses, repeats
from armillary.streams.stream import Stream
from conftest import shared
from handmade import EXPECTED, handmade_llama, random_texts

NOT_HERE = {"next", "mixed", "matching", "preference", "content", "delimiter"}
"""Labels that a causal model cannot have, that have no evidence of their own, or that not every model's logits have."""

STREAMS = ("positions", "attention", "chunks", "constituents", "patterns")


@pytest.fixture(scope="module")
def handmade(tmp_path_factory: pytest.TempPathFactory) -> tuple[LlamaForCausalLM, arm.Atlas]:
    folder = tmp_path_factory.mktemp("handmade")
    model = handmade_llama()
    model.save_pretrained(folder / "model")
    atlas = arm.scan(str(folder / "model"), random_texts(24, 40), streams=STREAMS, out=folder / "atlas")
    return model, atlas


def test_heads_built_by_hand_get_the_right_labels(handmade: Any) -> None:
    table = handmade[1].heads
    labels = {(row.layer, row.head): row.label for row in table.itertuples()}
    assert labels == EXPECTED
    named = table[~table["label"].isin(["broad", "mixed"])]
    assert named["significant"].all()
    assert not table[table["label"] == "broad"]["significant"].any()


@pytest.mark.parametrize("seed", range(3))
def test_the_same_model_with_random_weights_gets_no_significant_label(handmade: Any, seed: int) -> None:
    with interventions.randomized(handmade[0], seed=seed):
        table = arm.scan(handmade[0], random_texts(24, 40), streams=STREAMS).heads
    assert not table["significant"].any()


def test_a_trained_model_with_random_weights_gets_no_significant_label() -> None:
    model = arm.load(arm.bundled("gpt2"))
    tokens = torch.randint(0, 500, (8, 48), generator=torch.Generator().manual_seed(0))
    with interventions.randomized(model):
        table = arm.scan(model, tokens, streams=STREAMS).heads
    assert not table["significant"].any()


def view_of(seed: int, tokens: int = 12, *, causal: bool = True, sharp: float = 3.0) -> AttentionView:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, 3, tokens, 4, generator=generator) for _ in range(3))
    return AttentionView(q * sharp, k, v, scale=0.5, causal=causal)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), causal=st.booleans(), skip=st.integers(0, 3))
def test_masses_and_focus_are_what_a_loop_over_pairs_finds(seed: int, causal: bool, skip: int) -> None:
    view = view_of(seed, causal=causal)
    stream = Stream(Masses(TEXT, skip))
    stream.update(0, view)
    found = {name: values[0].numpy() for name, values in stream.finish().items()}
    a = view.attention().double().numpy()
    sums: dict[str, np.ndarray] = {name: np.zeros(3) for name in ("self", "previous", "next", "near", "first", "focus")}
    chance = dict.fromkeys(sums, 0.0)
    rows = 2 * (12 - skip)
    for i in range(skip, 12):
        n = i + 1 if causal else 12
        for j in range(n):
            where = {
                "self": i == j,
                "previous": i - j == 1,
                "next": j - i == 1,
                "near": abs(i - j) <= NEAR and j > 0,
                "first": j == 0,
            }
            for name in (name for name, holds in where.items() if holds):
                sums[name] += a[:, :, i, j].sum(0) / rows
                chance[name] += 2 / n / rows
            sums["focus"] += np.clip(a[:, :, i, j] - 1 / n, 0, None).sum(0) / rows
    for name, expected in sums.items():
        label = name if name == "focus" else f"{name}_mass"
        np.testing.assert_allclose(found[label], expected, atol=1e-6)
        if name != "focus":
            np.testing.assert_allclose(found[f"{name}_chance"], chance[name], atol=1e-6)
            assert (found[f"{name}_mass"] - found[f"{name}_chance"] <= found["focus"] + 1e-6).all()


def test_repeats_count_only_rows_whose_other_copy_is_seen() -> None:
    """Attention that is all on the token after the earlier copy scores 1 for induction, 0 for duplicate."""
    period, tokens = 5, 11
    q, k = torch.zeros(1, 1, tokens, tokens), torch.eye(tokens)[None, None]
    for i in range(period + 1, tokens):
        q[0, 0, i, i - period + 1] = 200.0
    stream = Stream(Masses(repeats(period, 1), 0, among="duplicate"))
    view = AttentionView(q, k, k, scale=1.0, causal=True)
    stream.update(0, view)
    found = stream.finish()
    assert float(stream.states[0]["rows"]) == period  # the token before the copies is not counted as a copy
    assert float(found["induction_mass"]) == pytest.approx(1.0)
    assert float(found["duplicate_mass"]) == pytest.approx(0.0)


def test_repeated_sequences_have_every_token_twice() -> None:
    anatomy = arm.describe(arm.bundled("llama"))
    text = np.concatenate([np.full((4, 1), 7), np.arange(4 * 40).reshape(4, 40)], 1)
    sequences, period, first = repeated_sequences(text, anatomy, 0)
    assert (period, first) == (20, 1)
    assert (sequences[:, 0] == 7).all()
    assert np.array_equal(sequences[:, 1:21], sequences[:, 21:41])
    assert all(len(set(row[1:21])) == 20 for row in sequences)
    assert repeated_sequences(text[:, :4], anatomy, 0)[1] == 0


def test_random_heads_have_the_trained_heads_size_and_read_the_same_input() -> None:
    """Logits of heads whose q and k are Gaussian with the trained norms: their variance over draws is known."""
    model = arm.load(arm.bundled("gpt2"))
    anatomy = arm.describe(model)
    views: list[AttentionView] = []
    with torch.no_grad(), arm.Tap(model, views.append):
        model(input_ids=torch.arange(40)[None])
    statistic = OfRandomHeads(Masses(TEXT, 1), anatomy, draws=30, seed=0)
    drawn = list(statistic._views(views[2]))
    assert len(drawn) == 30
    assert not torch.equal(drawn[0].q, drawn[1].q)
    assert torch.equal(drawn[0].q, next(statistic._views(views[2])).q)
    weights = anatomy.weights(2)
    x = views[2].x
    assert x is not None
    expected = x[0].double().square().sum(-1) * weights.q[0].double().square().sum() / weights.q[0].shape[0]
    if weights.q_bias is not None:
        expected = expected + weights.q_bias[0].double().square().sum()
    seen = torch.stack([view.q[0, 0].double().square().sum(-1) for view in drawn]).mean(0)
    assert float((seen / expected).mean()) == pytest.approx(1.0, abs=0.1)
    assert float((seen / expected - 1).abs().max()) < 0.35


def test_evidence_holds_what_the_label_says(handmade: Any) -> None:
    atlas = handmade[1]
    table = evidence_table(atlas)
    heads = atlas.heads.set_index(["layer", "head"])
    rules = table[table["role"] == "rule"]
    assert set(rules["label"]) - {"matching", "preference", "content"} == set(LABELS) - NOT_HERE
    for (layer, head), rows in rules.groupby(["layer", "head"]):
        own = heads.loc[(layer, head)]
        mine = rows[rows["label"] == own["label"]].iloc[0]
        assert mine["holds"]
        assert mine["value"] == pytest.approx(own[mine["measure"]], abs=1e-3)
        assert (mine["value"] > mine["threshold"]) == bool(own["significant"]) or own["label"] == "broad"
    supports = table[table["role"] == "support"]
    previous = supports[(supports["layer"] == 0) & (supports["head"] == 0)].set_index("measure")["holds"]
    assert previous["positional_share"]
    assert previous["high_freq_share"]


def test_strength_times_focus_is_the_mass_above_chance(handmade: Any) -> None:
    found = patterns(handmade[1])
    group = handmade[1].group("patterns")
    chance = group["text_previous_chance"].to_numpy().reshape(-1)
    np.testing.assert_allclose(found.strength["previous"] * found.focus, found.value["previous"] - chance, atol=1e-7)


def test_counts_add_to_the_heads(handmade: Any) -> None:
    counts = label_counts(handmade[1])
    assert counts["heads"].sum() == len(handmade[1].heads)
    layers = [name for name in counts.columns if name.startswith("layer ")]
    assert (counts[layers].sum(axis=1) == counts["heads"]).all()


def test_agreement_is_scipys_rank_correlation(handmade: Any) -> None:
    heads = handmade[1].heads
    rows: Any = agreement_table(handmade[1]).itertuples()
    for row in rows:
        both = heads[[row.a, row.b]].astype(float).dropna()
        assert row.heads == len(both)
        assert row.correlation == pytest.approx(float(spearmanr(both[row.a], both[row.b]).statistic))
        assert row.low <= row.correlation <= row.high


def test_labels_are_missing_without_patterns_and_unsure_without_an_adapter(tmp_path: Path) -> None:
    model = arm.load(arm.bundled("gpt2"))
    tokens = torch.randint(0, 500, (4, 24), generator=torch.Generator().manual_seed(0))
    bare = arm.scan(model, tokens, streams=("attention",))
    assert bare.heads["label"].isna().all()
    assert evidence_table(bare).empty
    with pytest.raises(arm.ArmillaryError, match="no labels"):
        label_counts(bare)
    model.config.model_type = "nobody-described-this"
    unknown = arm.scan(model, tokens, streams=("attention", "patterns")).heads
    assert unknown["label"].notna().all()
    assert unknown["significant"].isna().all()
    assert unknown["induction_score"].notna().all()


def test_heads_whose_attention_was_not_observed_have_no_label() -> None:
    """Layers of another kind, here convolutions, have rows in the heads table, with nulls."""
    config = Lfm2MoeConfig(  # a family without an adapter: nothing says beforehand which layers have heads
        **dict(vocab_size=50, hidden_size=24, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2),
        **dict(num_key_value_heads=1, max_position_embeddings=64, layer_types=["conv", "full_attention", "conv"]),
        **dict(num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16, num_dense_layers=3),
    )
    tokens = torch.randint(3, 50, (4, 16), generator=torch.Generator().manual_seed(0))
    atlas = arm.scan(Lfm2MoeForCausalLM(config), tokens, streams=("attention", "patterns"))
    assert list(atlas.heads["label"].isna()) == [True, True, False, False, True, True]
    assert label_counts(atlas)["heads"].sum() == 2


@pytest.mark.parametrize(("family", "scored"), [("llama", True), ("mistral", False)])
def test_short_windows_have_no_induction_score_and_skipped_tokens_do_not_matter(family: str, scored: bool) -> None:
    """In a window of 5 tokens the period would be 2, and induction would be the previous token."""
    tokens = np.random.default_rng(0).integers(5, 90, (3, 24))
    heads = arm.scan(sample_model(family), tokens, streams=("attention", "patterns"), skip=22).heads
    assert heads["label"].notna().all()
    assert heads["induction_score"].between(0, 1).all() if scored else heads["induction_score"].isna().all()


# checks of labels by intervention -----------------------------------------------------------------------------------


def test_the_model_computes_with_the_given_attention(handmade: Any) -> None:
    """A head given its own attention changes nothing; given zero attention, it acts as if its W_o were zero."""
    model = handmade[0]
    ids = random_texts(2, 40)
    with torch.no_grad():
        before = model(input_ids=ids).logits
        with attending(model, lambda view: {h: view.attention()[:, h] for h in range(6)}):
            same = model(input_ids=ids).logits
        with attending(model, lambda view: {0: torch.zeros(2, 40, 40)} if view.layer == 0 else {}):
            nowhere = model(input_ids=ids).logits
        original = model.model.layers[0].self_attn.o_proj.weight.clone()
        model.model.layers[0].self_attn.o_proj.weight[:, :96] = 0
        cut = model(input_ids=ids).logits
        model.model.layers[0].self_attn.o_proj.weight.copy_(original)
        after = model(input_ids=ids).logits
    torch.testing.assert_close(same, before, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(nowhere, cut)
    assert torch.equal(after, before)
    with pytest.raises(arm.ArmillaryError, match="no_grad"), attending(model, lambda view: {0: torch.zeros(2, 40, 40)}):
        model(input_ids=ids)


def test_heads_built_by_hand_pass_the_checks_of_their_labels(handmade: Any) -> None:
    model, atlas = handmade
    found = check_heads(model, atlas, sampled_heads(atlas, 12), sequences=4)
    assert set(found["label"]) == {"previous", "self", "first-token", "local", "induction", "duplicate"}
    by_position = found[(found["used"] == "position") & (found["head"] != 4)]  # head 4 is W_q W_k' = identity: content
    assert by_position["holds"].all()
    assert (by_position["keys_rest"].abs() < 1e-6).all()  # their logits depend on position alone
    others = found[found["used"] != "position"]
    assert others["holds"].all()
    identity = found[(found["layer"] == 0) & (found["head"] == 4)].iloc[0]
    assert not identity["holds"]
    by_label = summary(found).set_index("label")
    assert by_label.loc["induction", "holds"] == 1.0
    assert by_label.loc["self", "holds"] == 0.5


def test_removing_everything_from_the_logits_leaves_uniform_attention(handmade: Any) -> None:
    """Position and content add to the logits: where a head has no content, removing position leaves nothing."""
    model, atlas = handmade
    chosen = atlas.heads[(atlas.heads["layer"] == 0) & (atlas.heads["head"] == 0)][
        ["layer", "head", "label", "significant"]
    ]
    row = check_heads(model, atlas, chosen, sequences=4).iloc[0]
    before = atlas.heads.set_index(["layer", "head"]).loc[(0, 0)]
    chance = float(atlas.group("patterns")["text_previous_chance"][0, 0])
    assert row["keys_used"] == pytest.approx(before["prev_mass"] - chance, abs=1e-3)


def test_commands_print_labels_and_check_them(handmade: Any) -> None:
    folder = str(handmade[1].path.parent)
    printed = CliRunner().invoke(app, ["labels", folder])
    assert printed.exit_code == 0, printed.output
    assert "induction" in printed.output
    shown = CliRunner().invoke(app, ["show", folder, "0.0"])
    assert "previous (significant against random heads)" in shown.output
    checked = CliRunner().invoke(app, ["verify-heads", folder, "--heads", "3", "--sequences", "2", "--json"])
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize("name", [name for name in DISTINCT if "/" not in name])
def test_zeroing_a_heads_attention_changes_the_output_of_every_family(name: str) -> None:
    model = sample_model(name)
    ids = torch.randint(5, 90, (1, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = model(input_ids=ids)[0]
        with attending(model, lambda view: {0: view.attention()[:, 0]}):
            own = model(input_ids=ids)[0]
        with attending(model, lambda view: {0: torch.zeros_like(view.attention()[:, 0])}):
            nowhere = model(input_ids=ids)[0]
    torch.testing.assert_close(own, before, atol=1e-4, rtol=1e-4)
    assert float((nowhere - before).abs().max()) > 1e-4


@pytest.mark.parametrize("name", ["bloom", "mpt"])
def test_random_models_with_a_position_bias_get_no_significant_label(name: str, atlases: Any) -> None:
    assert not atlases.family(name).heads["significant"].any()


# real models --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_labels_of_two_halves_of_a_text_agree() -> None:
    folder = shared("models/stories15M")
    from armillary.anatomy.loading import load_tokenizer
    from armillary.text.sequences import read_sequences

    model = arm.load(folder)
    corpus = shared("corpora/wikitext2-tokenized-valid.txt")
    options = dict(length=64, sequences=64, vocabulary=32000)
    tokens = read_sequences(str(corpus), load_tokenizer(folder), **options).tokens  # type: ignore[arg-type]
    wanted = ("positions", "constituents", "patterns")
    halves = [arm.scan(model, tokens[part::2], streams=wanted).heads for part in (0, 1)]
    assert (halves[0]["label"] == halves[1]["label"]).mean() >= 0.85
    assert isinstance(halves[0], pd.DataFrame)
