"""Texts longer than the model's positions: an error where they cannot run, a note in the atlas where they can."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import armillary as arm
from armillary.anatomy.loading import load_tokenizer
from armillary.anatomy.samples import sample_model
from armillary.cli import app
from armillary.progress import Progress
from armillary.report.whole import size

LONG = torch.randint(5, 99, (4, 80), generator=torch.Generator().manual_seed(2))
"""Samples are made for 64 positions."""


class Notes(Progress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_neox"])
def test_a_scan_shows_and_stores_a_note(family: str) -> None:
    progress = Notes()
    atlas = arm.scan(sample_model(family), LONG, streams=("attention",), progress=progress)
    notes = [note for note in progress.notes if "80 tokens are longer than the 64 positions" in note]
    assert len(notes) == 1
    assert notes[0] in atlas.attrs["notes"]
    assert atlas.attrs["text"]["longer_than_made_for"] is True
    assert atlas.attrs["text"]["made_for"] == 64
    assert "80 tokens, beyond the model's context length of 64" in size(atlas)


def test_a_text_of_just_that_length_has_no_note() -> None:
    progress = Notes()
    atlas = arm.scan(sample_model("llama"), LONG[:, :64], streams=("attention",), progress=progress)
    assert not any("longer than" in note for note in [*progress.notes, *atlas.attrs["notes"]])
    assert atlas.attrs["text"]["longer_than_made_for"] is False
    assert "longer" not in size(atlas)


def test_learned_positions_that_do_not_exist_raise_an_error() -> None:
    with pytest.raises(arm.ArmillaryError, match="has 64 positions"):
        arm.scan(sample_model("gpt2"), LONG)


def test_models_without_positions_have_no_longest_text() -> None:
    atlas = arm.scan(sample_model("bloom"), LONG, streams=("attention",))
    assert atlas.attrs["text"]["made_for"] is None
    assert atlas.attrs["text"]["longer_than_made_for"] is False


def test_maps_and_interventions_show_the_note(tmp_path: Path) -> None:
    text = "Return the list. " * 120
    folder = arm.bundled("llama")
    longest = arm.describe(folder).max_positions
    assert longest is not None
    assert len(load_tokenizer(folder)(text)["input_ids"]) > longest
    (tmp_path / "text.txt").write_text(text)
    for command in (["map"], ["intervene", "--scale", "0.5"]):
        shown = CliRunner().invoke(
            app, [command[0], str(folder), *command[1:], "--prompt-file", str(tmp_path / "text.txt")]
        )
        assert shown.exit_code == 0, shown.output
        assert f"longer than the {longest} positions" in shown.stderr
