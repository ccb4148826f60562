"""The compiled loops give what torch gives in float64, for any mask, and the same bits for any number of threads."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from armillary.anatomy.description import Rotary
from armillary.machine import compiler
from armillary.observe.view import AttentionView
from armillary.streams import compiled_tiles, fused
from armillary.streams.attention import AttentionStatistics
from armillary.streams.chunks import ChunkNorms
from armillary.streams.loops import compile_loops
from armillary.streams.moments import PositionMoments
from armillary.streams.similarity import OutputRank
from armillary.streams.stream import Statistic

HEADS, KEY_HEADS, WIDTH = 4, 2, 8


def view_of(batch: int, length: int, seed: int = 0, offset: float = 0.0, **options: Any) -> AttentionView:
    """Random queries and keys; `offset` moves all keys, which adds a constant to every row of logits."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(batch, h, length, WIDTH, generator=generator) for h in (HEADS, KEY_HEADS, KEY_HEADS))
    return AttentionView(q * 1.5, k + offset, v, 0.5, **options)


def in_float64(view: AttentionView) -> AttentionView:
    """The same numbers in float64, which the compiled loops leave to torch."""

    def wide(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.double()

    return replace(
        view, q=view.q.double(), k=view.k.double(), v=view.v.double(), bias=wide(view.bias), output=wide(view.output)
    )


def agree(statistic: Statistic, view: AttentionView, digits: float = 1e-6) -> None:
    """Results of the loops and of torch in float64, each relative to its largest value."""
    ours, exact = (statistic.finish(statistic.measure(each)) for each in (view, in_float64(view)))
    for name, expected in exact.items():
        assert torch.equal(ours[name].isnan(), expected.isnan()), name
        near = 3.0 if name == "logit_kurtosis" else 1e-9  # E x^4 / (E x^2)^2 minus 3, which may cancel
        scale = max(float(expected.nan_to_num().abs().max()), near)
        worst = float((ours[name] - expected).nan_to_num().abs().max())
        assert worst <= digits * scale, f"{name}: {worst / scale:.1e} of its largest value"


KINDS = ("none", "bias", "row bias", "padding", "holes", "holes by head", "causal mask")


def masked_view(
    kind: str, batch: int, length: int, seed: int, padding: tuple[int, int], **options: Any
) -> AttentionView:
    """A view with a bias or a mask of this kind."""
    generator = torch.Generator().manual_seed(seed)
    if options.pop("sink"):
        options["sinks"] = torch.randn(HEADS, generator=generator)
    if "bias" in kind:
        options["bias"] = torch.randn(1, HEADS, 1 if "row" in kind else length, length, generator=generator)
    if "holes" in kind:
        heads = HEADS if "head" in kind else 1
        options["mask"] = torch.rand(batch, heads, length, length, generator=generator) < 0.7
    if kind == "padding":
        options["mask"] = torch.ones(batch, 1, length, length, dtype=torch.bool)
        options["mask"][0, ..., : padding[0]] = False
        options["mask"][-1, ..., length - padding[1] :] = False
    if kind == "causal mask":
        options["mask"] = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    return view_of(batch, length, seed, **options)


@given(
    st.sampled_from(KINDS),
    st.integers(1, 3),
    st.integers(12, 30),
    st.integers(0, 10**6),
    st.tuples(st.integers(0, 5), st.integers(0, 5)),
    st.fixed_dictionaries(
        {
            "causal": st.booleans(),
            "window": st.sampled_from([None, 3, 9]),
            "softcap": st.sampled_from([None, 3.0]),
            "sink": st.booleans(),
            "offset": st.sampled_from([0.0, 2.0]),
        }
    ),
    st.integers(0, 2),
)
@settings(deadline=None, max_examples=150)
def test_attention_statistics_for_any_mask(
    kind: str, batch: int, length: int, seed: int, padding: tuple[int, int], options: dict[str, Any], skip: int
) -> None:
    agree(AttentionStatistics(skip, length), masked_view(kind, batch, length, seed, padding, **options), 3e-6)


@pytest.mark.parametrize("window", [None, 20, 75])
@pytest.mark.parametrize("skip", [0, 1, 5])
def test_long_texts_in_blocks(window: int | None, skip: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small blocks and tiles: channels then come from products of keys for all but the last block's."""
    monkeypatch.setattr(fused, "HEIGHT", 16)
    monkeypatch.setattr(fused, "TILE", 2000)
    view = view_of(2, 200, offset=3.0, causal=True, window=window)
    plain = [block.plain for block in fused.blocks(view, skip)]
    assert sum(columns.stop > columns.start for columns in plain) >= (0 if window == 20 else 5)
    agree(AttentionStatistics(skip, 200), view)


def test_texts_shorter_than_the_statistics_and_cells_of_several_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armillary.streams.by_place.CELLS", 8)
    agree(AttentionStatistics(1, 60), view_of(2, 41, causal=True))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(
    "options",
    [{"causal": True}, {"causal": True, "window": 5}, {"window": 5}, {}, {"causal": True, "mask": "padding"}],
)
def test_rotary_chunks(layout: Any, options: dict[str, Any]) -> None:
    if "mask" in options:
        options = {**options, "mask": torch.ones(3, 1, 20, 20, dtype=torch.bool)}
        options["mask"][0, ..., :4] = False
        options["mask"][2, ..., 15:] = False
    rotary = Rotary((1.0, 0.3, 0.05), layout, 10.0)  # three frequencies: two channels are not rotated
    for skip in (0, 2):
        agree(ChunkNorms((rotary,), skip, 20), view_of(3, 20, **options))


def test_distance_of_mixed_values_to_rank_one() -> None:
    view = view_of(3, 150, causal=True)
    close = replace(
        view, output=1 + 1e-3 * torch.randn(3, 150, HEADS, WIDTH, generator=torch.Generator().manual_seed(1))
    )
    for each in (view, close):  # also where all tokens are nearly the same: the squares' difference has few digits
        ours, exact = (OutputRank(2).finish(OutputRank(2).measure(v)) for v in (each, in_float64(each)))
        torch.testing.assert_close(ours["rank_one_distance"], exact["rank_one_distance"], rtol=2e-6, atol=0)


@pytest.mark.parametrize("width", [7, 1500])
def test_moments_by_position(width: int) -> None:
    """Also beside a large mean, where the squares' difference would have few digits."""
    noise = torch.randn(5, 9, width, generator=torch.Generator().manual_seed(width))
    for h in (noise, 100 + noise, noise[:, ::2], noise[:1]):
        ours, exact = (PositionMoments().finish(PositionMoments().measure(part)) for part in (h, h.double()))
        for name, expected in exact.items():
            torch.testing.assert_close(ours[name], expected, rtol=2e-6, atol=1e-9 if name == "scatter" else 0)


def test_keys_that_no_range_describes_are_left_to_torch() -> None:
    mask = torch.rand(1, 1, 20, 20, generator=torch.Generator().manual_seed(0)) < 0.6
    rotary = Rotary((1.0, 0.3), "half", 10.0)
    agree(ChunkNorms((rotary,), 1, 20), view_of(2, 20, mask=mask, causal=True))


@pytest.mark.parametrize("tile", [1 << 20, 10_000, 2_000])
def test_the_bits_do_not_depend_on_threads(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All heads together, a key head with its queries, and single heads, as the size of a tile decides."""
    monkeypatch.setattr(fused, "TILE", tile)
    monkeypatch.setattr(fused, "HEIGHT", 16)
    view = view_of(3, 70, causal=True)
    chunks = fused.FusedLayer(view, 1, 70)._chunks()
    assert len(chunks) == {1 << 20: 1, 10_000: KEY_HEADS, 2_000: HEADS}[tile]
    rotary = Rotary((1.0, 0.3), "half", 10.0)
    before = torch.get_num_threads()
    states = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            statistics: tuple[Statistic, ...] = (AttentionStatistics(1, 70), ChunkNorms((rotary,), 1, 70))
            states.append([statistic.measure(view) for statistic in statistics])
    finally:
        torch.set_num_threads(before)
    for other in states[1:]:
        for ours, theirs in zip(states[0], other, strict=True):
            for name, tensor in ours.items():
                assert torch.equal(tensor, theirs[name]), name


@pytest.fixture
def broken_compiler() -> Iterator[None]:
    """Forget at the end that compiling failed."""
    yield
    compiler._failures.clear()


@pytest.mark.usefixtures("broken_compiler")
def test_where_compiling_fails_torch_computes_and_it_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    view, statistic = view_of(2, 24, causal=True), AttentionStatistics(1, 24)
    compiled = statistic.finish(statistic.measure(view))

    def fails(*_: Any) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(compiled_tiles, "add_heads", fails)
    notes: list[str] = []
    compile_loops(notes.append)
    assert len(notes) == 1
    assert "no such instruction" in notes[0]
    assert "torch" in notes[0]
    assert not compiler.serves(view.q)
    by_torch = statistic.finish(statistic.measure(view))  # would raise if it called the loop
    for name, value in compiled.items():
        torch.testing.assert_close(by_torch[name], value, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_a_full_disk_does_not_keep_loops_from_being_used() -> None:
    """Every function is in memory before it is written; numba raises if it cannot be written."""
    left = [3]
    notes: list[str] = []

    def work() -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(28, "No space left on device")

    compiler.warm_up(work, notes.append)
    assert left == [0]
    assert notes == []
    assert compiler.trouble() == ""


def test_where_nothing_can_be_written_functions_are_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core import caching

    implementation = getattr(caching, "CacheImpl", None) or caching._CacheImpl
    monkeypatch.setattr(implementation, "_locator_classes", [])

    def twice(x: float) -> float:
        return 2.0 * x

    assert compiler.compiled(twice)(1.5) == 3.0


def test_without_numba_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "numba", None)
    compiler._missing.cache_clear()
    try:
        assert "pip install numba" in compiler.trouble()
        assert not compiler.serves(torch.zeros(1))
    finally:
        monkeypatch.undo()
        compiler._missing.cache_clear()
    assert compiler.trouble() == ""


def test_a_note_is_given_if_compiling_takes_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "SOON", 0.0)
    said = threading.Event()
    notes: list[str] = []

    def note(sentence: str) -> None:
        notes.append(sentence)
        said.set()

    compiler.warm_up(said.wait, note)
    assert len(notes) == 1
    assert "compiling" in notes[0]


def test_scores_of_long_and_short_rows_are_exact_for_a_hand_made_head() -> None:
    """All logits equal: the attention of row t is 1 / (t + 1), whatever the block it lies in."""
    length = 300
    q, k = torch.zeros(1, 1, length, 4), torch.ones(1, 1, length, 4)
    statistic = AttentionStatistics(0, length)
    results = statistic.finish(statistic.measure(AttentionView(q, k, k, 1.0, causal=True)))
    seen = np.arange(1, length + 1)
    assert float(results["entropy"][0]) == pytest.approx(np.log(seen).mean(), rel=1e-6)
    assert float(results["self_mass"][0]) == pytest.approx((1 / seen).mean(), rel=1e-6)
    assert float(results["mean_distance"][0]) == pytest.approx((seen - 1).mean() / 2, rel=1e-6)
