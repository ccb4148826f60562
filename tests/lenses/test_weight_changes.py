"""Changes of weights: equal to the dense computation, exact for tiny changes, and like noise where they are noise."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.cli import app
from armillary.lenses.products import entropy_rank
from armillary.lenses.spectral import random_like
from armillary.lenses.weight_changes import (
    TOP,
    head_changes,
    matrix_change,
    noise_ranks,
    overlap,
    product_change,
    whole,
)
from armillary.scanning.weight_changes import change_arrays, weight_changes
from program import complaint
from stored import write_adapter

FAMILIES = ("llama", "gpt2", "gpt_neox", "qwen3", "bert", "falcon")


def fine_tuned(name: str, size: float = 0.1, seed: int = 5) -> tuple[Any, Any]:
    """A small model and a copy whose matrices were changed at random."""
    base, changed = sample_model(name), sample_model(name)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in changed.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(size * noise * parameter.std() if parameter.dim() > 1 else 0)
    return base.double(), changed.double()


def dense_top(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    u, s, v = np.linalg.svd(matrix)
    top = int((s[:TOP] ** 2 > 1e-11 * s[0] ** 2).sum())
    return s, u[:, :top], v[:top].T


def dense_overlap(a: np.ndarray, b: np.ndarray) -> float:
    cosines = np.linalg.svd(a.T @ b, compute_uv=False)
    return float(np.square(cosines).sum() / min(a.shape[1], b.shape[1]))


@pytest.mark.parametrize("name", FAMILIES)
def test_heads_and_matrices_of_every_layout_equal_the_dense_computation(name: str) -> None:
    base, changed = (arm.describe(model) for model in fine_tuned(name))
    for layer in base.layers:
        before, after = base.weights(layer.index), changed.weights(layer.index)
        arrays = change_arrays(changed, base, layer.index)
        for head in range(layer.heads):
            key = layer.kv_head(head)
            pairs = {
                "qk": [(w.q[head] @ w.k[key].mT).numpy() for w in (before, after)],
                "ov": [(w.v[key] @ w.o[head]).numpy() for w in (before, after)],
            }
            for product, (old, new) in pairs.items():
                singular, left, right = dense_top(new - old)
                computed = arrays[f"change.{product}_singular"][head].numpy()
                kept = min(len(computed), len(singular))
                np.testing.assert_allclose(computed[:kept], singular[:kept], atol=1e-10 * singular[0], rtol=0)
                assert not singular[kept:].any() or singular[kept:].max() < 1e-10 * singular[0]
                _, old_left, old_right = dense_top(old)
                for side, ours, theirs in (("in", left, old_left), ("out", right, old_right)):
                    expected = dense_overlap(ours, theirs)
                    assert float(arrays[f"change.{product}_overlap_{side}"][head]) == pytest.approx(expected, abs=1e-10)
                assert float(arrays[f"change.{product}_base"][head]) == pytest.approx(np.linalg.norm(old), rel=1e-10)
        for (part, old_matrix), (_, new_matrix) in zip(
            base.matrices(layer.index), changed.matrices(layer.index), strict=True
        ):
            singular, left, right = dense_top((new_matrix - old_matrix).numpy())
            _, old_left, old_right = dense_top(old_matrix.numpy())
            squared = arrays[f"change.{part}_squared"].numpy()
            np.testing.assert_allclose(squared, singular**2, atol=1e-10 * singular[0] ** 2, rtol=0)
            for side, ours, theirs in (("in", left, old_left), ("out", right, old_right)):
                expected = dense_overlap(ours, theirs)
                assert float(arrays[f"change.{part}_overlap_{side}"]) == pytest.approx(expected, abs=1e-8), part


def test_a_change_a_billion_times_smaller_keeps_its_digits() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b, da, db = (torch.randn(20, 4, generator=generator, dtype=torch.float64) for _ in range(4))
    first_order = np.linalg.svd((da @ b.mT + a @ db.mT).numpy(), compute_uv=False)[:8]
    for size in (1e-9, 1e-12):
        computed = product_change(a, b, size * da, size * db).singular / size
        np.testing.assert_allclose(computed, first_order, rtol=10 * size + 1e-12)
        subtracted = ((a + size * da) @ (b + size * db).mT - a @ b.mT).numpy() / size
        error = abs(np.linalg.svd(subtracted, compute_uv=False)[:8] - first_order).max()
        assert error > abs(computed - first_order).max()  # what subtracting the products would have lost


def test_the_change_of_a_product_has_at_most_twice_its_rank() -> None:
    base, changed = (arm.describe(model) for model in fine_tuned("llama"))
    layer = base.layers[0]
    assert change_arrays(changed, base, 0)["change.qk_singular"].shape == (layer.heads, 2 * layer.head_width)
    only_q = torch.zeros(12, 3, dtype=torch.float64)
    only_q[0, 0] = 1
    a, b = (torch.randn(12, 3, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in (1, 2))
    spectrum = product_change(a, b, only_q, torch.zeros_like(b))
    assert spectrum.left.shape[1] == 1  # one direction changed, so one is compared
    assert spectrum.stable_rank == pytest.approx(1)


def test_overlap_is_one_for_the_same_directions_and_the_stated_mean_for_random_ones() -> None:
    generator = torch.Generator().manual_seed(0)

    def directions(count: int) -> Tensor:
        drawn = torch.randn(24, count, generator=generator, dtype=torch.float64)
        basis: Tensor = torch.linalg.qr(drawn)[0]
        return basis

    same = directions(4)
    turned = same @ torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64))[0]
    assert overlap(same, turned) == pytest.approx(1)
    assert overlap(same, same[:, :1]) == pytest.approx(1)
    assert np.isnan(overlap(same, same[:, :0]))
    drawn = [overlap(directions(4), directions(2)) for _ in range(600)]
    assert np.mean(drawn) == pytest.approx(4 / 24, abs=4 * np.std(drawn) / 600**0.5)


def test_noise_looks_like_noise_and_a_planted_direction_is_an_outlier() -> None:
    generator = torch.Generator().manual_seed(3)
    base = torch.randn(96, 160, generator=generator, dtype=torch.float64)
    noise = 0.01 * torch.randn(96, 160, generator=generator, dtype=torch.float64)
    singular = np.sqrt(matrix_change(base, noise)["squared"].numpy())
    closed = noise_ranks(96, 160)
    assert np.square(singular).sum() / singular[0] ** 2 == pytest.approx(closed["stable_rank_random"], rel=0.06)
    assert float(entropy_rank(np.square(singular))) == pytest.approx(closed["entropy_rank_random"], rel=0.02)
    spectrum = whole(base)
    planted = noise + 0.5 * torch.outer(spectrum.left[:, 0], spectrum.right[:, 0])
    facts = matrix_change(base, planted)
    assert float(facts["overlap_in"]) > float(facts["overlap_in_random"]) + 0.2
    assert float(matrix_change(base, noise)["overlap_in"]) < 0.2


def test_gaussian_changes_of_a_head_give_what_the_random_columns_say() -> None:
    """If the change is itself Gaussian, its measures scatter around those of another Gaussian change."""
    base, changed = (arm.describe(model) for model in fine_tuned("llama", size=0.3))
    before = base.weights(0)
    noise = random_like(changed.weights(0), 1)
    arrays = head_changes(base.layers[0], before, random_like(changed.weights(0), 2), noise)
    singular = arrays["qk_singular"].numpy()
    stable = np.square(singular).sum(-1) / np.square(singular[:, 0])
    assert stable.mean() == pytest.approx(float(arrays["qk_stable_rank_random"].mean()), rel=0.35)


# commands and Python ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    base, changed = fine_tuned("llama")
    later = fine_tuned("llama", size=0.2)[1]
    for name, model in (("base", base), ("tuned", changed), ("later", later), ("other", sample_model("gpt2"))):
        model.float().save_pretrained(place / name)
    return {name: place / name for name in ("base", "tuned", "later", "other")}


def test_weights_against_a_base_model_prints_and_stores_the_changes(saved: dict[str, Path], tmp_path: Path) -> None:
    line = ["weights", str(saved["tuned"]), "--against", str(saved["base"]), "--out", str(tmp_path / "w")]
    page = tmp_path / "w.html"
    ran = CliRunner().invoke(app, [*line, "--html", str(page)], env={"COLUMNS": "300"})
    assert ran.exit_code == 0, ran.output
    assert "Change from base: heads (qk, ov) and matrices" in ran.output
    assert "Relative change of the weights" in page.read_text(encoding="utf-8")
    atlas = arm.open_atlas(tmp_path / "w")
    table = atlas.weight_changes
    anatomy = arm.describe(saved["base"])
    heads = sum(layer.heads for layer in anatomy.layers)
    matrices = sum(len(list(anatomy.matrices(layer.index))) for layer in anatomy.layers)
    assert len(table) == 2 * heads + matrices
    q = table[(table["part"] == "q") & (table["layer"] == 0)].iloc[0]
    old, new = (dict(arm.describe(saved[name]).matrices(0))["q"].double() for name in ("base", "tuned"))
    assert q["relative"] == pytest.approx(float((new - old).norm() / old.norm()), rel=1e-6)
    assert pd.isna(q["head"])
    assert atlas.attrs["against"]["name"] == str(saved["base"])
    again = arm.weigh(saved["tuned"], against=saved["base"])
    pd.testing.assert_frame_equal(again.weight_changes, table)
    loaded = arm.weigh(arm.load(saved["tuned"]), against=arm.load(saved["base"]))
    np.testing.assert_allclose(loaded.weight_changes["relative"], table["relative"], rtol=1e-6)
    rows = json.loads(CliRunner().invoke(app, [*line[:-1], str(tmp_path / "j"), "--json"]).stdout)
    assert len(rows["weight_changes"]) == len(table)
    assert (tmp_path / "csv" / "weight_changes.csv") in atlas.to_csv(tmp_path / "csv")


def test_the_same_weights_are_said_to_be_the_same(saved: dict[str, Path]) -> None:
    atlas = arm.weigh(saved["base"], against=saved["base"])
    assert (atlas.weight_changes["relative"] == 0).all()
    assert atlas.weight_changes["stable_rank"].isna().all()
    assert atlas.attrs["notes"] == ["the two models have the same weights: nothing changed"]


def test_random_still_means_gaussian_weights(saved: dict[str, Path]) -> None:
    atlas = arm.weigh(saved["base"], against="random")
    assert "qk_fro_random" in atlas.heads
    with pytest.raises(arm.ArmillaryError, match="not compared with another model"):
        _ = atlas.weight_changes


def test_other_shapes_and_missing_folders_are_refused(saved: dict[str, Path], tmp_path: Path) -> None:
    out = str(tmp_path / "w")
    assert "different shapes" in complaint(
        "weights", str(saved["tuned"]), "--against", str(saved["other"]), "--out", out
    )
    assert "there is no folder" in complaint(
        "weights", str(saved["tuned"]), "--against", str(tmp_path / "no" / "such"), "--out", out
    )
    with pytest.raises(arm.ArmillaryError, match="needs two or more"):
        weight_changes([saved["base"]])


def test_a_resumed_comparison_must_be_with_the_same_model(saved: dict[str, Path], tmp_path: Path) -> None:
    arm.weigh(saved["tuned"], against=saved["base"], out=tmp_path / "w")
    arm.weigh(saved["tuned"], against=saved["base"], out=tmp_path / "w", resume=True)
    with pytest.raises(arm.ArmillaryError, match="holds a finished atlas"):
        arm.weigh(saved["tuned"], against=saved["later"], out=tmp_path / "w", resume=True)


def test_consecutive_checkpoints_make_one_table(saved: dict[str, Path]) -> None:
    table = weight_changes([saved[name] for name in ("base", "tuned", "later")])
    assert list(dict.fromkeys(zip(table["since"], table["checkpoint"], strict=True))) == [
        ("base", "tuned"),
        ("tuned", "later"),
    ]
    first = table[table["checkpoint"] == "tuned"].drop(columns=["since", "checkpoint"]).reset_index(drop=True)
    stored = arm.weigh(saved["tuned"], against=saved["base"]).weight_changes
    np.testing.assert_allclose(first["overlap_in"].astype(float), stored["overlap_in"].astype(float))
    np.testing.assert_allclose(first["relative"], stored["relative"])


def test_an_adapter_gives_the_same_table_with_its_rank(saved: dict[str, Path], tmp_path: Path) -> None:
    write_adapter(tmp_path / "lora", sample_model("llama"))
    alone = arm.weigh(saved["base"], adapter=tmp_path / "lora", delta=True).weight_changes
    merged = arm.weigh(saved["base"], adapter=tmp_path / "lora", against=saved["base"]).weight_changes
    assert alone.columns.to_list() == merged.columns.to_list()
    np.testing.assert_allclose(alone["relative"], merged["relative"], rtol=1e-4, atol=1e-7)
    ranks = alone.groupby("part")["rank"].max()
    assert ranks["q"] == ranks["v"] == 2
    assert ranks["k"] == ranks["o"] == 0
    assert ranks["qk"] == ranks["ov"] == 2  # W_k and W_o did not change, so the products changed by rank 2
    with pytest.raises(arm.ArmillaryError, match="leave out `delta`"):
        arm.weigh(saved["base"], adapter=tmp_path / "lora", delta=True, against=saved["tuned"])
