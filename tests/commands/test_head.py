"""The commands head, find and relation; tokens that try to break a terminal or a page."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import armillary as arm
from armillary.probe.relations import declared_relation, score_relation
from armillary.report import write_report
from armillary.text.vocabulary import vocabulary_of
from handmade import WORDS, telling_llama, telling_text, telling_tokenizer
from program import complaint, run

HOSTILE = (
    "<s>",
    "\x1b[31mred",
    "</script><b>",
    "\u202eevil",
    "שלום",
    "x" * 300,
    "[bold]",
    "{{data}}",
    "a\x07b",
    "`$x`",
)


def tokenizer_of_words(words: tuple[str, ...]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({word: token for token, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=words[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scan of a model whose tokens are hostile."""
    place = tmp_path_factory.mktemp("hostile") / "atlas"
    ids = telling_tokenizer()(telling_text())["input_ids"]
    tokens = torch.tensor(ids[: 24 * 40]).view(24, 40)
    streams = ("default", "tokens")
    arm.scan(telling_llama(), tokens, tokenizer=tokenizer_of_words(HOSTILE), out=place, streams=streams)
    return place


def test_hostile_tokens_cannot_break_a_terminal(folder: Path) -> None:
    for line in (("head", folder, "0.3"), ("head", folder, "L0H0"), ("find", folder, "[bold]")):
        shown = run(*line).stdout
        assert "\x1b[31m" not in shown
        assert "\u202e" not in shown
        assert "\x07" not in shown
    assert "[bold]" in run("find", folder, "same").stdout + run("head", folder, "0.3").stdout


def test_hostile_tokens_cannot_break_a_page(folder: Path) -> None:
    page = write_report(folder, out=folder / "page.html").read_text(encoding="utf-8")
    data = page.split('id="data"')[1].split(">", 1)[1].split("</script>")[0]
    cards = json.loads(data)["reading"]
    assert len(cards) == 4
    texts = [token[0] for card in cards for example in card.get("examples", []) for token in example]
    assert "</script><b>" in texts
    assert all(text.isprintable() and len(text) <= 48 for text in texts)
    assert page.count("</script><b>") == 0


def test_a_head_as_json_and_in_words(folder: Path) -> None:
    record = json.loads(run("head", folder, "L0H1", "--json").stdout)
    assert record["does"] == "copies what it reads"
    assert record["examples"] == [] or record["examples"][0]["tokens"]
    assert "In words  copies what it reads" in run("head", folder, "L0H1").stdout
    assert "there is no head 0.9" in complaint("head", folder, "0.9")


def test_find_names_heads_and_says_what_it_does_not_know(folder: Path) -> None:
    found = json.loads(run("find", folder, "same", "--json").stdout)
    assert found["reads"][0]["head"] == 3
    assert "no token of this vocabulary" in complaint("find", folder, "nothing like it")


TEXTS = telling_text(60)


def scored(tmp_path: Path, relation: Any) -> Any:
    (tmp_path / "text.txt").write_text(TEXTS)
    return score_relation(
        telling_llama(), telling_tokenizer(), relation, tmp_path / "text.txt", length=40, sequences=8
    ).set_index("head")


def test_a_declared_relation_is_scored_for_every_head_against_random_ones(tmp_path: Path) -> None:
    file = tmp_path / "stops.toml"
    file.write_text('query = "any"\nkey = "."\ndistance = [0, 40]\nnearest = true\n')
    table = scored(tmp_path, file)
    assert table.index[0] == 0
    assert bool(table.loc[0, "holds"])
    assert not table.loc[[1, 2, 3], "holds"].any()
    assert table.loc[0, "mass"] > table.loc[0, "threshold"]


def test_a_relation_can_be_a_function_of_the_texts(tmp_path: Path) -> None:
    def earlier(texts: list[str]) -> np.ndarray:
        place = np.arange(len(texts))
        return np.asarray((np.array(texts)[:, None] == np.array(texts)) & (place[:, None] > place))

    table = scored(tmp_path, earlier)
    assert table.index[0] == 3
    assert bool(table.loc[3, "holds"])
    assert not table.loc[[0, 1, 2], "holds"].any()


def test_the_nearest_opening_bracket() -> None:
    vocabulary = vocabulary_of(tokenizer_of_words(("<s>", "(", ")", "a")), 4)
    relation = declared_relation({"query": ")", "key": "(", "nearest": True}, vocabulary)
    assert np.argwhere(relation.of(np.array([1, 3, 1, 3, 2]))).tolist() == [[4, 2]]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"query": "."}, "has no 'key'"),
        ({"query": ".", "key": "nope"}, "no token of this vocabulary is 'nope'"),
        ({"query": ".", "key": ".", "far": 3}, "far"),
        ({"query": ".", "key": ".", "distance": [5, 2]}, "is not a distance"),
    ],
)
def test_a_wrong_relation_is_an_error_that_says_why(record: dict[str, Any], message: str) -> None:
    with pytest.raises(arm.ArmillaryError, match=message):
        declared_relation(record, vocabulary_of(telling_tokenizer(), len(WORDS)))


def test_the_command_reads_the_file(tmp_path: Path) -> None:
    file = tmp_path / "newline.toml"
    file.write_text('query = "any"\nkey = "newline"\nnearest = true\n')
    rows = json.loads(run("relation", arm.bundled("llama"), file, "--sequences", "4", "--json").stdout)
    assert len(rows) == 36
    assert rows[0]["share"] >= rows[-1]["share"]
