"""Composition scores against dense products, and their null against sampled orthogonal bases."""

import numpy as np
import torch

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.lenses.composition import composition
from armillary.theory.composition import product_moments


def test_scores_are_those_of_dense_products() -> None:
    model = sample_model("llama")
    anatomy = arm.describe(model)
    scores = composition(anatomy).set_index(["from_layer", "from_head", "to_layer", "to_head", "kind"])["score"]
    table = scores.to_dict()
    first, last = anatomy.weights(0), anatomy.weights(2)
    group = anatomy.layers[0].group
    ov = first.v[4 // group] @ first.o[4]
    for kind, w in (("query", last.q[3]), ("key", last.k[3 // group]), ("value", last.v[3 // group])):
        dense = (ov @ w).norm() / (ov.norm() * w.norm())
        assert abs(table[0, 4, 2, 3, kind] - float(dense)) < 1e-6
    assert len(table) == 3 * 3 * anatomy.layers[0].heads ** 2  # three pairs of layers, three kinds


def test_the_null_is_that_of_random_orthogonal_bases() -> None:
    generator = np.random.default_rng(0)
    d, e = 12, 3
    m, n = (w @ w.T for w in generator.normal(size=(2, d, e)))
    bases = [np.linalg.qr(generator.normal(size=(d, d))) for _ in range(20_000)]
    sampled = np.array([np.trace(m @ (u := q * np.sign(np.diag(r))) @ n @ u.T) for q, r in bases])
    of_m, of_n = ((np.array([np.trace(x)]), np.array([np.trace(x @ x)])) for x in (m, n))
    mean, spread = (float(moment[0]) for moment in product_moments(of_m, of_n, d))
    assert abs(sampled.mean() - mean) < 4 * spread / len(sampled) ** 0.5
    assert abs(sampled.std() / spread - 1) < 0.03


def test_unrelated_heads_are_not_significant_and_a_planted_pair_is() -> None:
    model = sample_model("llama")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(parameter.numel()))
    plain = composition(arm.describe(model))
    assert plain["z"].abs().max() < 6
    e = arm.describe(model).layers[0].head_width
    with torch.no_grad():  # head 0 of layer 0 writes what key head 0 of layer 1 reads
        model.model.layers[0].self_attn.o_proj.weight[:, :e] = model.model.layers[1].self_attn.k_proj.weight[:e].T
    planted = composition(arm.describe(model))
    largest = planted.sort_values("z").iloc[-1]
    assert (largest["from_layer"], largest["from_head"], largest["to_layer"], largest["kind"]) == (0, 0, 1, "key")
    assert largest["z"] > 10
