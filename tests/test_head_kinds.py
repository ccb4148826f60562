"""What content does in a head's logits, which few keys a head rests on, and heads that do two things."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import armillary as arm
from armillary.atlas import Atlas
from armillary.cli import app
from armillary.dossier import head_row, label_sentence
from armillary.lenses.labels import content_kinds, evidence_table, more_facts, sure
from armillary.lenses.resting import fewest, rests_on
from armillary.lenses.tables import head_table
from armillary.streams import Stream
from armillary.streams.resting import POSITIONS, TOKENS, KeyMasses, most_seen
from armillary.view import AttentionView
from handmade import PREFERRED, choices, choosing_llama

STREAMS = ("positions", "attention", "constituents", "patterns")


@pytest.fixture(scope="module")
def choosing(tmp_path_factory: pytest.TempPathFactory) -> arm.Atlas:
    folder = tmp_path_factory.mktemp("choosing")
    choosing_llama().save_pretrained(folder / "model")
    return arm.scan(str(folder / "model"), choices(), streams=STREAMS, out=folder / "atlas")


def shares(matching: float, preference: float, asked: float) -> pd.DataFrame:
    """One head; `asked` is the content of the query against mean and position of the key."""
    columns = {"content_share": [matching], "preference_share": [preference], "mixed_share": [preference + asked]}
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
        ((-0.9, 0.5, 0.1), "content"),  # what works against the logits is no part of what makes them
    ],
)
def test_more_than_half_is_what_outweighs_all_else(parts: tuple[float, float, float], kind: str) -> None:
    assert content_kinds(shares(*parts)) == [kind]


@settings(max_examples=200, deadline=None)
@given(parts=st.tuples(*[st.floats(0.0, 1.0)] * 3))
def test_of_shares_that_are_not_negative_it_is_half_of_the_sum(parts: tuple[float, float, float]) -> None:
    found = content_kinds(shares(*parts))[0]
    assert (found == "matching") == (parts[0] > sum(parts) / 2 + 1e-12) or abs(parts[0] - sum(parts) / 2) < 1e-9
    assert (found == "preference") == (parts[1] > sum(parts) / 2 + 1e-12) or abs(parts[1] - sum(parts) / 2) < 1e-9


def test_heads_without_shares_have_no_kind() -> None:
    assert content_kinds(pd.DataFrame({"focus": [0.7]})) == [""]
    assert content_kinds(shares(np.nan, 0.1, 0.1)) == [""]


def test_heads_built_to_prefer_and_to_match_are_called_so(choosing: arm.Atlas) -> None:
    heads = choosing.heads
    assert list(heads["label"]) == ["preference", "matching", "preference"]
    assert heads["significant"].all()
    assert heads["preference_share"][0] > 0.9  # but for what 24 texts leave of content in the means by position
    assert heads["content_share"][1] > 0.9
    supports = evidence_table(choosing).query("role == 'support'")
    assert supports.query("head == 0 and measure == 'preference_share'")["holds"].all()
    assert supports.query("head == 1 and measure == 'content_share'")["holds"].all()


def test_a_head_that_prefers_one_token_says_which(choosing: arm.Atlas) -> None:
    assert list(choosing.heads["rests_on"].fillna("")) == [f"token {PREFERRED}", "", f"token {PREFERRED}"]
    told = label_sentence(head_row(choosing, 0, 0))
    assert told.startswith(f"preference (no random head does that); rests on token {PREFERRED}")
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
    from armillary.models import load_tokenizer

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


def test_the_tokens_that_are_counted_are_those_that_most_queries_see() -> None:
    tokens = np.array([[9, 1, 2, 2], [9, 3, 1, 1], [9, 1, 4, 4]])
    assert most_seen(tokens, causal=True) == (1, 3, 2, 4)  # seen by 3 + 2 + 3, 3, 2 and 2 queries; 9 is always first
    many = np.arange(TOKENS * 2 + 1)[None]
    assert most_seen(many, causal=True) == tuple(range(1, TOKENS + 1))
    assert most_seen(many, causal=False) == tuple(range(1, TOKENS + 1))


def with_patterns(atlas: arm.Atlas, **changed: Any) -> arm.Atlas:
    """The atlas as if its patterns had been these: a number for every head, or an array."""
    group = atlas.group("patterns").load()
    told = {name: group[name] * 0 + value for name, value in changed.items()}
    return Atlas(atlas.path, {"patterns": group.assign(told)})


def test_a_head_that_rests_on_two_places_says_which(choosing: arm.Atlas) -> None:
    gain = np.zeros(min(POSITIONS, 40))
    gain[[0, 3, 5]] = 0.2, 0.3, 0.1
    told = with_patterns(choosing, text_focus=0.8, key_position_gain=gain, key_token_gain=0.0)
    assert rests_on(told) == ["positions 0 and 3"] * 3
    many = with_patterns(choosing, text_focus=0.8, key_position_gain=0.02, key_token_gain=0.0)
    assert rests_on(many) == [""] * 3
    broad = with_patterns(choosing, text_focus=0.4, key_position_gain=gain, key_token_gain=0.0)
    assert rests_on(broad) == [""] * 3


def test_the_fewest_keys_are_those_that_have_more_than_half() -> None:
    gain = np.array([0.1, 0.3, 0.0, 0.25])
    assert fewest(gain, 0.5) == [1]
    assert fewest(gain, 0.6) == [1, 3]  # 0.3 is half of 0.6, not more
    assert fewest(gain, 2.0) is None


# two facts ----------------------------------------------------------------------------------------------------------

COPIES = dict(repeat_focus=0.95, repeat_first_chance=0.01, repeat_duplicate_chance=0.01, repeat_induction_chance=0.01)
SINK = dict(text_focus=0.9, text_first_mass=0.9, text_first_chance=0.05)


def test_a_weak_score_beside_a_sink_is_no_label_but_a_second_fact(choosing: arm.Atlas) -> None:
    """0.11 on the other copy and 0.84 on the first token: what is left of the focus copies, but the head rests."""
    weak = dict(repeat_first_mass=0.84, repeat_duplicate_mass=0.11, repeat_induction_mass=0.0)
    table = head_table(with_patterns(choosing, **COPIES, **SINK, **weak))
    assert set(table["label"]) == {"first-token"}
    assert set(table["also"]) == {"duplicate"}
    assert "first-token (no random head does that), and duplicate on repeated random tokens" in label_sentence(
        table.iloc[0]
    )


def test_an_induction_head_that_rests_on_the_first_token_says_both(choosing: arm.Atlas) -> None:
    strong = dict(repeat_first_mass=0.2, repeat_duplicate_mass=0.0, repeat_induction_mass=0.7)
    table = head_table(with_patterns(choosing, **COPIES, **SINK, **strong))
    assert set(table["label"]) == {"induction"}
    assert set(table["also"]) == {"first-token"}
    assert "induction (no random head does that), and first-token in text" in label_sentence(table.iloc[0])


def test_a_second_fact_that_random_heads_show_too_is_not_told(choosing: arm.Atlas) -> None:
    weak = dict(repeat_first_mass=0.84, repeat_duplicate_mass=0.11, repeat_induction_mass=0.0)
    atlas = with_patterns(choosing, **COPIES, **SINK, **weak)
    null = atlas.group("null").load()
    atlas._groups["null"] = null.assign(repeat_duplicate_mass=null["repeat_duplicate_mass"] * 0 + 0.12)
    assert set(head_table(atlas)["also"]) == {""}


def test_a_label_that_is_not_sure_is_shown_with_a_question_mark(choosing: arm.Atlas) -> None:
    heads = choosing.heads.assign(
        significant=pd.array([False, True, True], dtype="boolean"), check=["holds", "fails", None]
    )
    assert sure(heads).tolist() == [False, False, True]
    told = Atlas(choosing.path)
    told.__dict__["heads"] = heads
    shown = more_facts(told)
    assert shown["label"].tolist() == ["preference?", "matching?", "preference"]
    assert "(no random head does that, but its own check fails)" in label_sentence(heads.iloc[1])


def test_atlases_of_before_say_confident(choosing: arm.Atlas, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = choosing.heads.drop(columns="significant").assign(confident=pd.array([1, 0, None], dtype="Int64"))
    monkeypatch.setattr("armillary.atlas.read_table", lambda atlas, name: heads)
    assert Atlas(choosing.path).heads["significant"].tolist() == [True, False, pd.NA]
