"""Every stream equals a two-pass float64 computation, for any split of the data and any order of merging neighbors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from armillary.anatomy.description import Rotary
from armillary.observe.view import AttentionView
from armillary.scanning.folder import from_tensors, to_tensors
from armillary.streams.attention import AttentionStatistics
from armillary.streams.by_place import diagonal_sums
from armillary.streams.chunks import ChunkNorms
from armillary.streams.moments import Covariance, LaggedCovariance, PositionMoments
from armillary.streams.similarity import TokenSimilarity
from armillary.streams.stream import Statistic, Stream
from armillary.streams.tiles import TILE, row_blocks, tiles

DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def close(ours: Tensor, theirs: np.ndarray, dtype: torch.dtype = torch.float64, size: float = 0.0) -> None:
    """Within 1e-10 of the largest value, or 1e-6 if a few numbers were multiplied in single precision.

    size: what the numbers come from, if that is larger (a covariance can be small beside the variances).
    """
    scale = max(np.nanmax(np.abs(theirs)) if theirs.size else 0.0, size)
    digits = 1e-10 if dtype == torch.float64 else 1e-6
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=digits, atol=digits * max(scale, 1e-30))


def merged(make: Callable[[], Statistic], parts: list[Any], order: np.random.Generator) -> dict[str, Tensor]:
    """Each part in a stream of its own, neighbors merged in a random tree, every merge through a file's tensors."""
    streams = []
    for part in parts:
        stream = Stream(make())
        stream.update(0, part)
        streams.append(stream)
    while len(streams) > 1:
        i = int(order.integers(len(streams) - 1))
        left, right = streams[i], streams.pop(i + 1)
        copy = {"s": Stream(make())}
        from_tensors(copy, to_tensors({"s": right}))
        left.merge(copy["s"])
    return {name: result[0] for name, result in streams[0].finish().items()}


@st.composite
def vectors(draw: st.DrawFn) -> tuple[Tensor, list[Tensor], np.random.Generator]:
    """(sequence, position, width) numbers with a mean that may be much larger than their spread, and its batches."""
    sequences, positions, width = draw(st.integers(1, 9)), draw(st.integers(4, 12)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    offset = draw(st.sampled_from([0.0, 3.0, 1e4]))
    data = torch.from_numpy(rng.normal(size=(sequences, positions, width)) + offset)
    data = data.to(draw(st.sampled_from(DTYPES)))
    cuts = sorted(draw(st.sets(st.integers(1, max(1, sequences - 1)), max_size=4)) - {sequences})
    parts = list(torch.tensor_split(data, [c for c in cuts if 0 < c < sequences]))
    return data, parts, rng


@given(vectors())
@settings(deadline=None, max_examples=60)
def test_position_moments(case: tuple[Tensor, list[Tensor], np.random.Generator]) -> None:
    data, parts, rng = case
    found = merged(PositionMoments, parts, rng)
    h = data.double().numpy()
    close(found["mean"], h.mean(0))
    close(found["scatter"], ((h - h.mean(0)) ** 2).sum((0, 2)), data.dtype)
    close(found["norm"], np.linalg.norm(h, axis=-1).mean(0), data.dtype)
    close(found["norm_squared"], (h**2).sum(-1).mean(0), data.dtype)


@given(vectors(), st.integers(0, 2))
@settings(deadline=None, max_examples=60)
def test_covariance(case: tuple[Tensor, list[Tensor], np.random.Generator], skip: int) -> None:
    data, parts, rng = case
    found = merged(lambda: Covariance(skip), parts, rng)
    x = data.double().numpy()[:, skip:].reshape(-1, data.shape[2])
    close(found["mean"], x.mean(0))
    close(found["covariance"], np.cov(x, rowvar=False, bias=True).reshape(data.shape[2], data.shape[2]), data.dtype)


def test_covariance_of_many_tokens_keeps_seven_digits() -> None:
    """Single precision, with means a hundred times the spread in some channels: as outlier channels have."""
    torch.manual_seed(0)
    scale = torch.logspace(-2, 2, 48)
    data = (torch.randn(6, 300, 48) @ torch.randn(48, 48) * 0.2 + torch.randn(48) * 100) * scale
    found = Stream(Covariance(1))
    for part in data.split(2):
        found.update(0, part)
    exact = np.cov(data[:, 1:].double().numpy().reshape(-1, 48), rowvar=False, bias=True)
    size = np.sqrt(np.diag(exact))
    assert (np.abs(found.finish()["covariance"][0].numpy() - exact) / np.outer(size, size)).max() < 2e-7


@given(vectors(), st.integers(0, 1))
@settings(deadline=None, max_examples=60)
def test_lagged_covariance(case: tuple[Tensor, list[Tensor], np.random.Generator], skip: int) -> None:
    data, parts, rng = case
    found = merged(lambda: LaggedCovariance((1, 2), skip), parts, rng)
    x = data.double().numpy()[:, skip:]
    for i, lag in enumerate((1, 2)):
        a, b = x[:, :-lag].reshape(-1, x.shape[2]), x[:, lag:].reshape(-1, x.shape[2])
        size = float(a.std(0).max() * b.std(0).max())
        close(found["covariance"][i], (a - a.mean(0)).T @ (b - b.mean(0)) / len(a), data.dtype, size)
        close(found["earlier"][i], a.mean(0))


@st.composite
def attention_views(draw: st.DrawFn) -> tuple[AttentionView, list[AttentionView], int, np.random.Generator]:
    batch, kv_heads, group = draw(st.integers(1, 5)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    length, e, heads = draw(st.integers(3, 11)), 4, kv_heads * group
    seed = draw(st.integers(0, 2**32))
    torch.manual_seed(seed % 2**31)
    dtype = draw(st.sampled_from(DTYPES))
    scale = draw(st.sampled_from([0.3, 2.0]))
    q, k, v = (torch.randn(batch, h, length, e).to(dtype) for h in (heads, kv_heads, kv_heads))
    options: dict[str, Any] = dict(
        causal=draw(st.booleans()),
        window=draw(st.sampled_from([None, 3])),
        softcap=draw(st.sampled_from([None, 0.8])),
        bias=draw(st.sampled_from([None, torch.randn(1, heads, length, length)])),
        sinks=draw(st.sampled_from([None, torch.randn(heads)])),
    )
    whole = AttentionView(q, k, v, scale, **options)
    cut = draw(st.integers(0, batch - 1))
    parts = [
        AttentionView(q[rows], k[rows], v[rows], scale, **options)
        for rows in (slice(0, cut), slice(cut, batch))
        if len(q[rows])
    ]
    return whole, parts, draw(st.integers(0, 1)), np.random.default_rng(seed)


def reference(view: AttentionView, skip: int) -> dict[str, np.ndarray]:
    """The definitions, with loops over every row, in float64."""
    q, k = view.q.double().numpy(), view.k.double().numpy().repeat(view.heads // view.k.shape[1], 1)
    products = np.einsum("bhqe,bhke->bhqk", q, k) * view.scale
    capped = products if view.softcap is None else view.softcap * np.tanh(products / view.softcap)
    bias = 0.0 if view.bias is None else view.bias.double().numpy()
    logits, capped = products + bias, capped + bias
    seen = np.broadcast_to(view.visible().numpy(), logits.shape)
    batch, heads, length = logits.shape[:3]
    names = ("entropy", "entropy_norm", "self_mass", "prev_mass", "first_mass", "sink_mass", "mean_distance")
    rows: dict[str, list[list[float]]] = {name: [[] for _ in range(heads)] for name in names}
    for c in range(batch):
        for a in range(heads):
            for i in range(skip, length):
                keys = np.flatnonzero(seen[c, a, i])
                z = capped[c, a, i, keys]
                z = z if view.sinks is None else np.append(z, float(view.sinks[a]))
                p = np.exp(z - z.max())
                p /= p.sum()
                row = dict(zip(keys, p[: len(keys)], strict=True))
                entropy = float(-(p * np.log(p)).sum())
                rows["entropy"][a].append(entropy)
                if len(keys) > 1:
                    rows["entropy_norm"][a].append(entropy / np.log(len(keys)))
                rows["self_mass"][a].append(row.get(i, 0.0))
                rows["prev_mass"][a].append(row.get(i - 1, 0.0))
                rows["first_mass"][a].append(row.get(0, 0.0))
                rows["sink_mass"][a].append(0.0 if view.sinks is None else float(p[-1]))
                rows["mean_distance"][a].append(float(sum(w * abs(i - j) for j, w in row.items())))
    found = {name: np.array([np.mean(x) if x else np.nan for x in values]) for name, values in rows.items()}
    kept = seen.copy()
    kept[:, :, :skip] = kept[..., :skip] = False
    pairs = [logits[:, a][kept[:, a]] for a in range(heads)]
    found["logit_mean"] = np.array([b.mean() for b in pairs])
    found["logit_variance"] = np.array([b.var() for b in pairs])
    found["logit_skewness"] = np.array([((b - b.mean()) ** 3).mean() / b.std() ** 3 for b in pairs])
    found["logit_kurtosis"] = np.array([((b - b.mean()) ** 4).mean() / b.var() ** 2 - 3 for b in pairs])
    i, j = np.indices((length, length))
    by_lag = [[logits[:, a][kept[:, a] & (i - j == lag)] for lag in range(length)] for a in range(heads)]
    found["logit_mean_by_lag"] = np.array([[b.mean() if len(b) else np.nan for b in row] for row in by_lag])
    found["logit_variance_by_lag"] = np.array([[b.var() if len(b) else np.nan for b in row] for row in by_lag])
    with np.errstate(invalid="ignore"):
        found["logit_matrix"] = (logits * kept).sum(0) / kept.sum(0)
    return found


@given(attention_views())
@settings(deadline=None, max_examples=80)
@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_attention_statistics(case: tuple[AttentionView, list[AttentionView], int, np.random.Generator]) -> None:
    whole, parts, skip, rng = case
    found = merged(lambda: AttentionStatistics(skip, whole.queries), parts, rng)
    for name, theirs in reference(whole, skip).items():
        if name in ("logit_skewness", "logit_kurtosis") and whole.queries - skip < 3:
            continue  # too few numbers: the variance may be 0
        if whole.q.dtype == torch.float64:
            close(found[name], theirs)
        else:  # single rows, in single precision; what many rows come to: test_single_precision_tiles
            scale = np.nanmax(np.abs(theirs)) if np.isfinite(theirs).any() else 0.0
            np.testing.assert_allclose(found[name].numpy(), theirs, rtol=3e-5, atol=1e-5 * max(scale, 1.0))


@pytest.mark.parametrize(("spread", "length"), [(1.0, 256), (6.0, 256), (6.0, 640)])
def test_single_precision_tiles_keep_seven_digits(spread: float, length: int) -> None:
    """Against the same statistic in float64, of queries and keys with a mean, as trained heads have."""
    torch.manual_seed(0)
    q, k = (spread**0.5 * torch.randn(4, 6, length, 32) + torch.randn(1, 6, 1, 32) for _ in range(2))
    views = [AttentionView(q.to(kind), k.to(kind), k.to(kind), 32**-0.5, causal=True) for kind in DTYPES[1::-1]]
    ours, exact = [AttentionStatistics(1, length).finish(AttentionStatistics(1, length).measure(v)) for v in views]
    size = exact["logit_variance"].sqrt() + exact["logit_mean"].abs()
    for name, value in exact.items():
        if value.shape == size.shape and not name.startswith("bias"):
            scales: dict[str, Any] = {
                "logit_mean": size,
                "logit_variance": size**2,
                "logit_skewness": 1.0,
                "logit_kurtosis": 1.0,
            }
            scales["least_entropy"] = value.clamp(min=0.01)  # nats; it falls like exp(-logits)
            scales |= dict.fromkeys(("self_mass", "prev_mass", "first_mass"), 0.1)
            assert ((ours[name] - value).abs() <= 1e-7 * scales.get(name, value.abs())).all(), name
    by_lag = (ours["logit_mean_by_lag"] - exact["logit_mean_by_lag"])[:, : length - 56]  # longer ones have few pairs
    assert by_lag.abs().max() <= 2e-7 * size.max()
    torch.testing.assert_close(ours["channel_share"], exact["channel_share"], rtol=0, atol=1e-7)
    torch.testing.assert_close(ours["channel_share"].sum(-1), torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-6)


def test_logits_of_hundreds_do_not_underflow() -> None:
    """exp underflows for most weights, and all results stay finite."""
    torch.manual_seed(0)
    q, k = torch.randn(1, 2, 256, 8), torch.randn(1, 2, 256, 8)
    views = [AttentionView(q.to(kind), k.to(kind), k.to(kind), 60.0, causal=True) for kind in DTYPES[1::-1]]
    ours, exact = [AttentionStatistics(0, 256).finish(AttentionStatistics(0, 256).measure(view)) for view in views]
    assert exact["logit_variance"].min() > 100**2
    for name in ("entropy", "self_mass", "mean_distance", "logit_variance", "logit_kurtosis", "channel_share"):
        torch.testing.assert_close(ours[name], exact[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"causal": True}, {}, {"causal": True, "window": 9}, {"window": 9}])
def test_long_rows_are_computed_in_tiles(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 50, 4, dtype=torch.float64) for _ in range(3))
    view = AttentionView(q, k, v, 0.5, **options)
    whole = AttentionStatistics(1, 50).finish(AttentionStatistics(1, 50).measure(view))
    monkeypatch.setattr("armillary.streams.tiles.ROWS", 7)
    monkeypatch.setattr("armillary.streams.tiles.TILE", 2 * 50 * 7)
    assert len(list(row_blocks(view, 1))) == 7
    blocks = AttentionStatistics(1, 50).finish(AttentionStatistics(1, 50).measure(view))
    for name, value in whole.items():
        torch.testing.assert_close(blocks[name], value, rtol=1e-10, atol=1e-12, equal_nan=True)


def test_the_mean_logit_matrix_of_long_texts_is_a_grid_of_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armillary.streams.by_place.CELLS", 5)
    q, k, v = (torch.randn(2, 1, 20, 4) for _ in range(3))
    view = AttentionView(q, k, v, 1.0, causal=True)
    statistic = AttentionStatistics(0, 20)
    grid = statistic.finish(statistic.measure(view))["logit_matrix"][0]
    logits, seen = view.logits()[:, 0].double(), view.visible()[:, 0].expand(2, -1, -1)
    for i, j in ((4, 0), (2, 2)):
        block = (slice(None), slice(4 * i, 4 * i + 4), slice(4 * j, 4 * j + 4))
        assert float(grid[i, j]) == pytest.approx(float(logits[block][seen[block]].mean()), rel=1e-5)
    assert grid.shape == (5, 5)
    assert grid[0, 4].isnan()


@given(st.integers(1, 6), st.integers(1, 6))
@settings(deadline=None)
def test_diagonal_sums(rows: int, keys: int) -> None:
    matrix = torch.arange(2 * rows * keys, dtype=torch.float64).view(2, rows, keys)
    expected = [
        sum(float(matrix[1, i, j]) for i in range(rows) for j in range(keys) if i - j == lag)
        for lag in range(-(keys - 1), rows)
    ]
    assert diagonal_sums(matrix)[1].tolist() == expected


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_chunk_norms(layout: str) -> None:
    rng = np.random.default_rng(0)
    rotary = Rotary((1.0, 0.1), layout, 10.0)  # type: ignore[arg-type]
    q, k, v = (torch.from_numpy(rng.normal(size=(3, heads, 7, 6))).float() for heads in (4, 2, 2))
    parts = [AttentionView(q[i : i + 1], k[i : i + 1], v[i : i + 1], 1.0) for i in range(3)]
    found = merged(lambda: ChunkNorms((rotary,), 1, 7), parts, rng)
    channels = [(0, 2), (1, 3)] if layout == "half" else [(0, 1), (2, 3)]
    for name, vectors_ in (("q_norm", q), ("k_norm", k), ("v_norm", v)):
        wide = vectors_.double().numpy()[:, :, 1:]
        expected = np.stack([np.hypot(wide[..., a], wide[..., b]).mean((0, 2)) for a, b in channels], -1)
        close(found[name], expected)


def test_a_layer_without_attention_is_missing_not_zero() -> None:
    stream = Stream(PositionMoments())
    stream.update(1, torch.zeros(1, 3, 2))
    found = stream.finish(3)["mean"]
    assert found.shape == (3, 3, 2)
    assert found[0].isnan().all()
    assert (found[1] == 0).all()
    assert found[2].isnan().all()


def test_logits_with_large_means_keep_their_digits() -> None:
    """A bias by distance and a constant along rows, as ALiBi and key biases give, must not cost precision."""
    torch.manual_seed(0)
    q, k = (torch.randn(4, 2, 96, 16) for _ in range(2))
    distance = (torch.arange(96.0)[:, None] - torch.arange(96.0)).abs()
    bias = (100 - 0.5 * distance).expand(1, 2, -1, -1)
    ours, exact = (
        AttentionStatistics(1, 96).finish(
            AttentionStatistics(1, 96).measure(
                AttentionView(q.to(kind), k.to(kind), k.to(kind), 0.05, causal=True, bias=bias.to(kind))
            )
        )
        for kind in (torch.float32, torch.float64)
    )
    lags = slice(0, 80)  # the longest have few pairs
    torch.testing.assert_close(
        ours["logit_variance_by_lag"][:, lags], exact["logit_variance_by_lag"][:, lags], rtol=1e-4, atol=0
    )
    whole = ours["channel_share"].sum(-1) + ours["bias_share"]
    torch.testing.assert_close(whole, torch.ones(2, dtype=torch.float64), rtol=0, atol=2e-6)


def test_a_model_under_autocast_changes_no_statistic() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 40, 8) for _ in range(3))
    view = AttentionView(q, k, v, 0.4, causal=True)
    h = torch.randn(2, 40, 12) + 3
    measured: tuple[tuple[Any, Any], ...] = (
        (AttentionStatistics(1, 40), view),
        (Covariance(1), h),
        (LaggedCovariance((1, 4), 1), h),
        (TokenSimilarity(1), h),
    )
    for statistic, batch in measured:
        plain = statistic.measure(batch)
        with torch.autocast("cpu", torch.bfloat16):
            lowered = statistic.measure(batch)
        for name, value in plain.items():
            assert torch.equal(lowered[name], value), (type(statistic).__name__, name)


def test_few_key_heads_do_not_make_large_tiles() -> None:
    q, k, v = (torch.randn(4, heads, 256, 4) for heads in (71, 1, 1))
    view = AttentionView(q, k, v, 0.5, causal=True)
    largest = max(tile.products.numel() for block in row_blocks(view) for tile in tiles(block))
    assert largest <= 8 * TILE
