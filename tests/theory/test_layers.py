"""Proposition 4.4 over several pruned layers, and what products cost."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import graphs, random_graph, random_removal
from hypothesis import given, settings
from hypothesis import strategies as st

import unifews as uf
from unifews.errors import InputError
from unifews.theory import HopMatrix, LayerCertificate, propagation_macs, removed_norm_by_count, transform_macs


def relu(x):
    return np.maximum(x, 0)


@settings(max_examples=60)
@given(graphs(least=2), st.sampled_from([0.0, 0.5, 1.0]), st.booleans(), st.floats(0.05, 2))
def test_the_bound_is_never_below_the_error_of_three_pruned_layers(problem, r, residual, threshold):
    graph, rng = problem
    diffusion = uf.Diffusion(graph, r)
    t, norm = diffusion.to_scipy().toarray(), HopMatrix(diffusion).norm().upper
    whole = sparse = rng.standard_normal((graph.num_nodes, 4))
    certificate = LayerCertificate()
    for _ in range(3):
        weights = rng.standard_normal((4, 4))
        removed = random_removal(diffusion, rng)
        lost = removed @ sparse
        p = t @ sparse - lost
        gone = np.where(np.abs(weights) * np.linalg.norm(p, axis=0)[:, None] < threshold, weights, 0)
        by_rule = removed_norm_by_count((gone != 0).sum(axis=0), threshold)
        assert np.linalg.norm(p @ gone) <= by_rule + 1e-9  # ‖P̂M‖ ≤ δ_w √Σ q_i² ≤ q_w δ_w
        assert by_rule <= (gone != 0).sum() * threshold + 1e-9
        own_whole, own_sparse = (whole, sparse) if residual else (0, 0)
        whole, sparse = relu(t @ whole @ weights + own_whole), relu(p @ (weights - gone) + own_sparse)
        certificate.layer(
            weight_norm=float(np.linalg.norm(weights, 2)),
            removed_edges=float(np.linalg.norm(lost)),
            removed_weights=by_rule,
            diffusion_norm=norm,
            skip_norm=float(residual),
        )
        assert np.linalg.norm(sparse - whole) <= certificate.bound * (1 + 1e-9) + 1e-9


def test_an_error_travels_on_by_the_norms_of_a_layer():
    """Cases in which the bound is attained, so that none of its factors can be left out."""
    first = dict(weight_norm=1.0, removed_edges=0.5)
    certificate = LayerCertificate()
    assert certificate.layer(**first) == pytest.approx(0.5)
    assert certificate.layer(weight_norm=0.0, skip_norm=1.0) == pytest.approx(0.5)  # H' = H
    assert certificate.layer(weight_norm=2.0, diffusion_norm=3.0, skip_norm=0.25) == pytest.approx(0.5 * 6.25)
    # T of a mean over neighbours stretches (1, 0, 0, ..) on a star, and W doubles it.
    star = uf.Graph.from_edge_index([[0] * 8, [*range(1, 9)]])
    t = uf.Diffusion(star, 0.0).to_scipy().toarray()
    error = np.eye(9)[:, :1]
    norm = HopMatrix(uf.Diffusion(star, 0.0)).norm(steps=500, tolerance=1e-9).upper
    certificate = LayerCertificate()
    certificate.layer(weight_norm=1.0, removed_edges=1.0)
    bound = certificate.layer(weight_norm=2.0, diffusion_norm=norm)
    after = np.linalg.norm(t @ error * 2)
    assert after > 2 * 1.5 and after <= bound < 1.35 * after


def test_a_batch_norm_s_scale_is_part_of_the_lipschitz_constant():
    rng = np.random.default_rng(907)
    diffusion = uf.Diffusion(random_graph(rng, 12))
    t, removed = diffusion.to_scipy().toarray(), random_removal(diffusion, rng, 0.5)
    h, weights, scale = rng.standard_normal((12, 3)), rng.standard_normal((3, 3)), np.array([0.5, 3.0, 1.0])
    error = np.linalg.norm(relu(scale * ((t - removed) @ h @ weights)) - relu(scale * (t @ h @ weights)))
    layer = dict(weight_norm=float(np.linalg.norm(weights, 2)), removed_edges=float(np.linalg.norm(removed @ h)))
    assert error <= LayerCertificate().layer(**layer, lipschitz=3.0)
    assert LayerCertificate().layer(**layer, lipschitz=3.0) == pytest.approx(3 * LayerCertificate().layer(**layer))


def test_a_norm_cannot_be_negative():
    with pytest.raises(InputError, match="`removed_edges` is a norm"):
        LayerCertificate().layer(weight_norm=1.0, removed_edges=-1.0)


@pytest.mark.parametrize(
    "name, edges, features, giga",
    [
        ("cora", 12_623, 1_433, 0.362),
        ("citeseer", 9_228, 3_703, 0.683),
        ("pubmed", 88_648, 500, 0.886),
        ("arxiv", 2_315_598, 128, 5.93),
        ("products", 123_718_024, 100, 247.4),
        ("papers100m", 3_228_124_712, 128, 8_264),  # printed: 17.7
    ],
)
def test_the_counts_of_the_paper_s_table(name, edges, features, giga):
    macs = propagation_macs(edges, features, hops=20)
    assert isinstance(macs, int) and macs / 1e9 == pytest.approx(giga, rel=2e-3)


def test_the_printed_count_of_papers100m_is_a_wrapped_counter():
    assert (propagation_macs(3_228_124_712, 1, hops=20) % 2**32) * 128 / 1e9 == pytest.approx(17.7, abs=0.05)


def test_costs_are_those_of_the_trace():
    graph = random_graph(np.random.default_rng(31), 30)
    x = np.ones((30, 7), dtype=np.float32)
    trace = uf.propagate(graph, x, hops=3).trace
    assert trace.macs == propagation_macs(graph.num_edges, 7, hops=3)


@given(st.integers(0, 10**12), st.floats(0, 0.99))
def test_what_is_removed_is_saved(edges, sparsity):
    assert propagation_macs(edges, 3, sparsity=sparsity) == pytest.approx((1 - sparsity) * 3 * edges, abs=1)


def test_a_transformation_is_the_sum_of_its_layers():
    assert transform_macs(10, [4, 5, 2]) == 10 * (20 + 10)
    assert transform_macs(10, [4, 5, 2], sparsity=0.9) == 30
    with pytest.raises(InputError, match="at least two"):
        transform_macs(10, [4])
    with pytest.raises(InputError, match="`rows` is a count"):
        transform_macs(-1, [4, 5])
