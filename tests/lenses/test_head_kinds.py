"""How a head's logits use content, which few keys it rests on, and heads with two labels."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import armillary as arm
from armillary.atlas.atlas import Atlas
from armillary.cli import app
from armillary.lenses.labels import content_kinds, evidence_table, more_facts, sure
from armillary.lenses.resting import fewest, rests_on
from armillary.lenses.tables import head_table
from armillary.observe.view import AttentionView
from armillary.probe.dossier import head_row, label_sentence
from armillary.streams.resting import POSITIONS, TOKENS, KeyMasses, most_seen
from armillary.streams.stream import Stream
from handmade import PREFERRED, choices, choosing_llama

STREAMS = ("positions", "attention", "constituents", "patterns")


@pytest.fixture(scope="module")
def choosing(tmp_path_factory: pytest.TempPathFactory) -> arm.Atlas:
    folder = tmp_path_factory.mktemp("choosing")
    choosing_llama().save_pretrained(folder / "model")
    return arm.scan(str(folder / "model"), choices(), streams=STREAMS, out=folder / "atlas", second_pass=64)


def shares(matching: float, preference: float, by_query: float) -> pd.DataFrame:
    """One head; `by_query` is the share of the query's content with mean and position of the key."""
    columns = {"content_share": [matching], "preference_share": [preference], "mixed_share": [preference + by_query]}
    return pd.DataFrame(columns)


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ((0.5, 0.2, 0.1), "matching"),
        ((0.2, 0.5, 0.1), "preference"),
        ((0.3, 0.2, 0.3), "content"),
        ((0.4, 0.4, 0.0), "content"),  # half is not more than half
        ((0.8, 0.7, -0.5), "content"),  # each is more than half of the sum 1, but neither outweighs the others
        ((0.9, -0.3, 0.1), "matching"),
        ((-0.9, 0.5, 0.1), "content"),  # a negative share does not count as more than half
    ],
)
def test_more_than_half_means_outweighing_all_other_parts(parts: tuple[float, float, float], kind: str) -> None:
    assert content_kinds(shares(*parts)) == [kind]


@settings(max_examples=200, deadline=None)
@given(parts=st.tuples(*[st.floats(0.0, 1.0)] * 3))
def test_with_nonnegative_shares_it_is_half_of_the_sum(parts: tuple[float, float, float]) -> None:
    kind = content_kinds(shares(*parts))[0]
    assert (kind == "matching") == (parts[0] > sum(parts) / 2 + 1e-12) or abs(parts[0] - sum(parts) / 2) < 1e-9
    assert (kind == "preference") == (parts[1] > sum(parts) / 2 + 1e-12) or abs(parts[1] - sum(parts) / 2) < 1e-9


def test_heads_without_shares_have_no_kind() -> None:
    assert content_kinds(pd.DataFrame({"focus": [0.7]})) == [""]
    assert content_kinds(shares(np.nan, 0.1, 0.1)) == [""]


def test_heads_built_to_prefer_and_to_match_get_these_labels(choosing: arm.Atlas) -> None:
    heads = choosing.heads
    assert list(heads["label"]) == ["preference", "matching", "preference"]
    assert heads["significant"].all()
    assert heads["preference_share"][0] > 0.9  # not 1: with 24 texts, the means by position still contain some content
    assert heads["content_share"][1] > 0.9
    supports = evidence_table(choosing).query("role == 'support'")
    assert supports.query("head == 0 and measure == 'preference_share'")["holds"].all()
    assert supports.query("head == 1 and measure == 'content_share'")["holds"].all()


def test_rests_on_names_the_token_that_a_head_prefers(choosing: arm.Atlas) -> None:
    assert list(choosing.heads["rests_on"].fillna("")) == [f"token {PREFERRED}", "", f"token {PREFERRED}"]
    sentence = label_sentence(head_row(choosing, 0, 0))
    assert sentence.startswith(f"preference (significant against random heads); most attention on token {PREFERRED}")
    shown = CliRunner().invoke(app, ["labels", str(choosing.path.parent)])
    assert shown.exit_code == 0, shown.output
    assert f"token {PREFERRED}" in shown.output


def test_token_masses_are_those_of_the_models_own_attention(choosing: arm.Atlas) -> None:
    """Against transformers' eager attention, pair by pair."""
    model = arm.load(choosing.path.parents[1] / "model", attn_implementation="eager")
    tokens = choices()
    with torch.no_grad():
        attention = model(input_ids=tokens, output_attentions=True).attentions[0].double().numpy()
    group = choosing.group("patterns")
    counted = group["key_token"].to_numpy().tolist()
    skip, texts, length = 1, *tokens.shape
    for head in range(3):
        mass = gain = 0.0
        for c in range(texts):
            for i in range(skip, length):
                for j in range(1, i + 1):
                    if tokens[c, j] == PREFERRED:
                        mass += attention[c, head, i, j]
                        gain += attention[c, head, i, j] - 1 / (i + 1)
        rows = texts * (length - skip)
        place = counted.index(PREFERRED)
        assert float(group["key_token_mass"][0, head, place]) == pytest.approx(mass / rows, abs=1e-6)
        assert float(group["key_token_gain"][0, head, place]) == pytest.approx(gain / rows, abs=1e-6)


def test_tokens_have_their_text_where_there_is_a_tokenizer() -> None:
    atlas = arm.scan(arm.bundled("llama"), "builtin:prose", streams=("positions", "patterns"), sequences=4, length=32)
    group = atlas.group("corpus")
    names = group.attrs["token_names"]
    counted = atlas.group("patterns")["key_token"].to_numpy()
    assert set(map(str, counted)) == set(names)
    from armillary.anatomy.loading import load_tokenizer

    assert names[str(counted[0])] == load_tokenizer(arm.bundled("llama")).decode([int(counted[0])])


# which keys ---------------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), causal=st.booleans(), skip=st.integers(0, 3))
def test_masses_by_position_and_token_are_what_a_loop_over_pairs_finds(seed: int, causal: bool, skip: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(2, 3, 9, 4, generator=generator) for _ in range(2))
    tokens = torch.randint(0, 4, (2, 9), generator=generator)
    view = AttentionView(3 * q, k, k, scale=0.5, causal=causal, tokens=tokens)
    whole, halves = Stream(KeyMasses((1, 3), skip, 9)), Stream(KeyMasses((1, 3), skip, 9))
    whole.update(0, view)
    for row in (0, 1):
        part = AttentionView(3 * q[[row]], k[[row]], k[[row]], scale=0.5, causal=causal, tokens=tokens[[row]])
        halves.update(0, part)
    a, rows = view.attention().double().numpy(), 2 * (9 - skip)
    position, token = np.zeros((3, 9)), np.zeros((3, 2))
    for c in range(2):
        for i in range(skip, 9):
            seen = i + 1 if causal else 9
            for j in range(seen):
                above = a[c, :, i, j] - 1 / seen
                position[:, j] += above / rows
                if j > 0 and int(tokens[c, j]) in (1, 3):
                    token[:, (1, 3).index(int(tokens[c, j]))] += above / rows
    for found in (whole.finish(), halves.finish()):
        np.testing.assert_allclose(found["position_gain"][0].numpy(), position, atol=1e-6)
        np.testing.assert_allclose(found["token_gain"][0].numpy(), token, atol=1e-6)


def test_the_counted_tokens_are_those_that_most_queries_see() -> None:
    tokens = np.array([[9, 1, 2, 2], [9, 3, 1, 1], [9, 1, 4, 4]])
    assert most_seen(tokens, causal=True) == (1, 3, 2, 4)  # seen by 3 + 2 + 3, 3, 2 and 2 queries; 9 is always first
    many = np.arange(TOKENS * 2 + 1)[None]
    assert most_seen(many, causal=True) == tuple(range(1, TOKENS + 1))
    assert most_seen(many, causal=False) == tuple(range(1, TOKENS + 1))


def with_patterns(atlas: arm.Atlas, **changed: Any) -> arm.Atlas:
    """The atlas with these patterns instead of its own: a number for every head, or an array."""
    group = atlas.group("patterns").load()
    arrays = {name: group[name] * 0 + value for name, value in changed.items()}
    return Atlas(atlas.path, {"patterns": group.assign(arrays)})


def test_rests_on_names_two_positions(choosing: arm.Atlas) -> None:
    gain = np.zeros(min(POSITIONS, 40))
    gain[[0, 3, 5]] = 0.2, 0.3, 0.1
    two = with_patterns(choosing, text_focus=0.8, key_position_gain=gain, key_token_gain=0.0)
    assert rests_on(two) == ["positions 0 and 3"] * 3
    many = with_patterns(choosing, text_focus=0.8, key_position_gain=0.02, key_token_gain=0.0)
    assert rests_on(many) == [""] * 3
    broad = with_patterns(choosing, text_focus=0.4, key_position_gain=gain, key_token_gain=0.0)
    assert rests_on(broad) == [""] * 3


def test_the_fewest_keys_are_those_that_have_more_than_half() -> None:
    gain = np.array([0.1, 0.3, 0.0, 0.25])
    assert fewest(gain, 0.5) == [1]
    assert fewest(gain, 0.6) == [1, 3]  # 0.3 is half of 0.6, not more
    assert fewest(gain, 2.0) is None


# two labels ---------------------------------------------------------------------------------------------------------

COPIES = dict(repeat_focus=0.95, repeat_first_chance=0.01, repeat_duplicate_chance=0.01, repeat_induction_chance=0.01)
SINK = dict(text_focus=0.9, text_first_mass=0.9, text_first_chance=0.05)


def test_a_weak_score_beside_a_sink_is_only_the_second_label(choosing: arm.Atlas) -> None:
    """0.11 on the other copy and 0.84 on the first token: the label is first-token."""
    weak = dict(repeat_first_mass=0.84, repeat_duplicate_mass=0.11, repeat_induction_mass=0.0)
    table = head_table(with_patterns(choosing, **COPIES, **SINK, **weak))
    assert set(table["label"]) == {"first-token"}
    assert set(table["also"]) == {"duplicate"}
    assert "first-token (significant against random heads), and duplicate on repeated random tokens" in label_sentence(
        table.iloc[0]
    )


def test_an_induction_head_that_rests_on_the_first_token_has_both_labels(choosing: arm.Atlas) -> None:
    strong = dict(repeat_first_mass=0.2, repeat_duplicate_mass=0.0, repeat_induction_mass=0.7)
    table = head_table(with_patterns(choosing, **COPIES, **SINK, **strong))
    assert set(table["label"]) == {"induction"}
    assert set(table["also"]) == {"first-token"}
    assert "induction (significant against random heads), and first-token in text" in label_sentence(table.iloc[0])


def test_a_second_label_that_random_heads_reach_too_is_left_out(choosing: arm.Atlas) -> None:
    weak = dict(repeat_first_mass=0.84, repeat_duplicate_mass=0.11, repeat_induction_mass=0.0)
    atlas = with_patterns(choosing, **COPIES, **SINK, **weak)
    null = atlas.group("null").load()
    atlas._groups["null"] = null.assign(repeat_duplicate_mass=null["repeat_duplicate_mass"] * 0 + 0.12)
    assert set(head_table(atlas)["also"]) == {""}


def test_a_label_that_is_not_sure_is_shown_with_a_question_mark(choosing: arm.Atlas) -> None:
    significant = pd.array([False, True, True], dtype="boolean")
    heads = choosing.heads.assign(significant=significant, check=pd.Series(["holds", "fails", None], dtype=object))
    assert sure(heads).tolist() == [False, False, True]
    atlas = Atlas(choosing.path)
    atlas.__dict__["heads"] = heads
    shown = more_facts(atlas)
    assert shown["label"].tolist() == ["preference?", "matching?", "preference"]
    assert "(significant against random heads, but its check failed)" in label_sentence(heads.iloc[1])


def test_confident_in_older_atlases_is_read_as_significant(
    choosing: arm.Atlas, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = choosing.heads.drop(columns="significant").assign(confident=pd.array([1, 0, None], dtype="Int64"))
    monkeypatch.setattr("armillary.atlas.atlas.read_table", lambda atlas, name: heads)
    assert Atlas(choosing.path).heads["significant"].tolist() == [True, False, pd.NA]
