"""Sources as a pass of a scan: off unless asked for, resumed with the same bits, refused with a sentence."""

from pathlib import Path

import numpy as np
import pytest
import torch

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.lenses.sources import edges, source_shares
from armillary.probe.sources import edges_of
from armillary.progress import Progress
from armillary.streams.registry import DEFAULT_STREAMS
from armillary.streams.sources import SEQUENCES
from same_bits import assert_identical

TOKENS = torch.randint(5, 99, (12, 16), generator=torch.Generator().manual_seed(3))
STREAMS = ("attention", "sources")


def test_shares_are_those_of_the_first_sequences_and_add_to_one() -> None:
    model = sample_model("llama")
    atlas = arm.scan(model, TOKENS, streams=STREAMS)
    assert np.allclose(np.nansum(source_shares(atlas), -1), 1.0, atol=1e-12)
    by_hand = edges_of(model, TOKENS[:SEQUENCES].numpy())
    table = edges(atlas)
    assert table.drop(columns="share").equals(by_hand.drop(columns="share"))
    assert np.allclose(table["share"], by_hand["share"], atol=1e-12)
    assert "sources" not in DEFAULT_STREAMS


def test_a_scan_without_them_says_how_to_get_them() -> None:
    atlas = arm.scan(sample_model("llama"), TOKENS, streams=("attention",))
    with pytest.raises(arm.ArmillaryError, match="this atlas has no sources"):
        edges(atlas)


class Stop(Progress):
    """Interrupts the scan after so many batches."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    def advance(self, count: int = 1, worker: object = None) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_an_interrupted_pass_is_resumed_with_the_same_bits(tmp_path: Path) -> None:
    model = sample_model("llama")
    whole = arm.scan(model, TOKENS, streams=STREAMS)
    with pytest.raises(KeyboardInterrupt):  # two batches of the first pass, then three sequences of this one
        arm.scan(model, TOKENS, streams=STREAMS, out=tmp_path / "a", progress=Stop(5))
    assert len(list((tmp_path / "a" / "work").glob("sources-?????"))) in (2, 3)
    assert_identical(whole, arm.scan(model, TOKENS, streams=STREAMS, out=tmp_path / "a", resume=True))


def test_what_cannot_be_split_is_noted_and_the_rest_is_scanned() -> None:
    class Notes(Progress):
        def __init__(self) -> None:
            self.notes: list[str] = []

        def note(self, sentence: str) -> None:
            self.notes.append(sentence)

    heard = Notes()
    atlas = arm.scan(sample_model("gemma4_text"), TOKENS, streams=STREAMS, progress=heard)
    assert any("there are no sources: what per_layer_input_gate writes" in note for note in heard.notes)
    assert not atlas.has("sources")
    assert atlas.heads["entropy"].notna().all()
