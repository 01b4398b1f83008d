"""Proposition 4.3, made computable: the bound is never below the true error, and not far above it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from graphs import exact, graphs, matrix_of, needs_data, random_removal, real, removed_by
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.sparse import diags_array

import unifews as uf
from unifews.core.schemes import SKIPS
from unifews.errors import InputError, ShapeError
from unifews.theory import Certificate, HopMatrix, NodeCertificate, rounding_norm, step

SCHEMES = st.one_of(
    st.builds(uf.Sgc, skip=st.sampled_from(SKIPS)),
    st.builds(uf.Appnp, alpha=st.sampled_from([0.1, 0.5]), tail=st.booleans()),
    st.just(uf.Polynomial.heat(2.0, hops=4)),
    st.just(uf.Polynomial([0.5, -0.2, 0.3, 0.0, 0.2], skip="identity")),
)
HOPS = 4
SLACK = 1 + 1e-6


def test_sgc_adds_up_what_was_removed():
    certificate = Certificate(uf.Sgc("diagonal").coefficients(3))
    assert [certificate.hop(r) for r in (0.5, 0.25, 1.0)] == pytest.approx([0.5, 0.75, 1.75])


@pytest.mark.parametrize("tail", [True, False])
def test_appnp_follows_its_residual(tail):
    """The recursion: ρ ← (1-α)(ρ + ‖ΥR̂‖), output ≤ αΣρ + ρ_L; the residual is (1-α)^l times our Ẑ_l."""
    alpha, hops = 0.2, 6
    removed = np.random.default_rng(907).random(hops)
    certificate = Certificate(uf.Appnp(alpha, tail).coefficients(hops))
    rho, output = 0.0, 0.0
    for hop in range(hops):
        output += alpha * rho
        rho = (1 - alpha) * (rho + (1 - alpha) ** hop * removed[hop])
        certificate.hop(removed[hop])
    assert certificate.bound == pytest.approx(output + (rho if tail else 0))
    if tail:
        assert certificate.weight(0) == pytest.approx(1 - alpha)  # as the entry rule weighs it


@settings(max_examples=60)
@given(graphs(), SCHEMES, st.sampled_from([0.0, 0.5, 1.0]), st.booleans())
def test_the_bound_is_never_below_the_error(problem, scheme, r, inherit):
    graph, rng = problem
    diffusion = uf.Diffusion(graph, r)
    s, theta = matrix_of(diffusion, scheme.skip), scheme.coefficients(HOPS)
    x = rng.standard_normal((graph.num_nodes, 3))
    scalar, groups = (Certificate.of(scheme, HOPS, diffusion) for _ in range(2))
    nodes = NodeCertificate.of(scheme, HOPS, diffusion)
    z, total = x, theta[0] * x
    removed = random_removal(diffusion, rng)
    for hop in range(HOPS):
        if not inherit:
            removed = random_removal(diffusion, rng)
        lost = removed @ z
        z = s @ z - lost
        total = total + theta[hop + 1] * z
        scalar.hop(np.linalg.norm(lost))
        groups.hop([np.linalg.norm(lost[:, :1]), np.linalg.norm(lost[:, 1:])])
        nodes.hop(np.linalg.norm(lost, axis=1))
    error = total - exact(s, x, theta)
    tiny = 1e-12 * (np.linalg.norm(total) + np.linalg.norm(x))
    assert np.linalg.norm(error) <= nodes.bound * SLACK + tiny
    assert nodes.bound <= scalar.bound * SLACK  # one number per node knows more
    assert np.linalg.norm(error) <= groups.bound * SLACK + tiny
    assert groups.bound <= scalar.bound * SLACK
    assert (np.linalg.norm(error, axis=1) <= nodes.nodes * SLACK + tiny).all()


@settings(max_examples=40)
@given(graphs(least=4), SCHEMES, st.sampled_from(["node", "block", "feature"]), st.booleans(), st.floats(0.01, 2))
def test_it_holds_for_the_library_s_own_runs(problem, scheme, entries, inherit, threshold):
    graph, rng = problem
    x = rng.standard_normal((graph.num_nodes, 20)).astype(np.float32)
    hops = None if isinstance(scheme, uf.Polynomial) else HOPS
    out = uf.propagate(
        graph, x, scheme, hops, threshold=threshold, entries=entries, basis="input", inherit=inherit, every_hop=True
    )
    assume(out.exponent == 0)
    diffusion = uf.Diffusion(graph)
    s, theta = matrix_of(diffusion, scheme.skip), scheme.coefficients(HOPS)
    scalar, nodes = Certificate.of(scheme, HOPS, diffusion), NodeCertificate.of(scheme, HOPS, diffusion)
    for lost in removed_by(s, out.hop_embeddings):
        scalar.hop(np.linalg.norm(lost))
        nodes.hop(np.linalg.norm(lost, axis=1))
    error = np.linalg.norm(out.embedding - exact(s, x, theta))
    rounding = 1e-5 * np.linalg.norm(out.embedding) + 1e-6  # of the sum over hops; that of each hop counts as removed
    assert error <= nodes.bound + rounding and nodes.bound <= scalar.bound * SLACK


@given(graphs(undirected=True), st.sampled_from([(0.1, 9.0), (0.5, 1.0), (1.0, 0.7), (0.3, 4.0)]))
def test_steps_of_smoothing_are_bounded_too(problem, constants):
    graph, rng = problem
    (b, c), diffusion = constants, uf.Diffusion(graph)
    t = diffusion.to_scipy().toarray()
    x = rng.standard_normal((graph.num_nodes, 2))
    certificate, whole, sparse = Certificate.smoothing(b, c, 5), x, x
    for _ in range(5):
        removed = random_removal(diffusion, rng)
        certificate.hop(b * c * np.linalg.norm(removed @ sparse))
        whole, sparse = step(t, whole, x, b, c), step(t - removed, sparse, x, b, c)
        scale = np.linalg.norm(whole) + np.linalg.norm(sparse)
    assert np.linalg.norm(whole - sparse) <= certificate.bound * SLACK + 1e-12 * scale


@given(graphs(undirected=True, least=2), SCHEMES)
def test_axes_left_out_count_as_an_error_beside_the_pruning(problem, scheme):
    graph, rng = problem
    diffusion = uf.Diffusion(graph)
    s, theta = matrix_of(diffusion, scheme.skip), scheme.coefficients(HOPS)
    x = rng.standard_normal((graph.num_nodes, 4))
    x[:, 3] *= 0.1
    certificate = Certificate.of(scheme, HOPS, diffusion, dropped=float(np.linalg.norm(x[:, 3])))
    z = x * [1, 1, 1, 0]
    total = theta[0] * z
    for hop in range(HOPS):
        lost = random_removal(diffusion, rng) @ z
        z = s @ z - lost
        total = total + theta[hop + 1] * z
        certificate.hop(np.linalg.norm(lost))
    assert np.linalg.norm(total - exact(s, x, theta)) <= certificate.bound * SLACK


@given(
    SCHEMES, st.floats(0.5, 2), st.floats(0, 0.3), st.lists(st.floats(0, 1.5), min_size=HOPS, max_size=HOPS), st.floats(0.1, 10)
)
def test_spending_the_allowance_meets_the_error_and_nothing_more(scheme, norm, dropped, shares, error):
    certificate = Certificate(scheme.coefficients(HOPS), norm, dropped=dropped)
    start = certificate.bound
    for hop, share in enumerate(shares):
        allowance = certificate.allowance(error)
        assert allowance == 0 if certificate.bound > error else allowance >= 0
        if hop == HOPS - 1 and 0 < allowance < math.inf:
            certificate.hop(allowance)
            assert certificate.bound == pytest.approx(error, rel=1e-6)
        else:
            certificate.hop(min(allowance, 1e9) * min(share, 1.0))
        assert certificate.bound <= max(error, start)
    assert certificate.allowance(error) == 0


def test_a_relative_error_needs_only_the_pruned_norm():
    certificate = Certificate([0.0, 1.0])
    certificate.hop(1.0)
    assert certificate.relative(11.0) == pytest.approx(0.1)
    assert certificate.relative(1.0) == math.inf
    assert Certificate([0.0, 1.0]).relative(0.0) == 0


def test_growth_beyond_floats_is_given_over_a_power_of_two():
    certificate = Certificate(uf.Sgc("identity").coefficients(3_000), 2.0)
    certificate.hop(1.0)
    assert certificate.bound == math.inf
    assert certificate.bound_over(2_999) == pytest.approx(1.0)
    assert certificate.relative(11.0, exponent=2_999) == pytest.approx(0.1)
    for _ in range(2_998):
        certificate.hop(0.0)
    certificate.hop(1.0, exponent=2_999)
    assert certificate.bound_over(2_999) == pytest.approx(2.0)


def test_nothing_removed_is_no_error():
    certificate = Certificate([0.1, 0.9])
    assert certificate.bound == 0 and certificate.hop(0.0) == 0
    assert Certificate([0.5, 0.5], 0.0).hop(1.0) == pytest.approx(0.5)


def test_rounding_covers_what_float32_loses():
    rng = np.random.default_rng(31)
    factors, values = rng.random(3_000).astype(np.float32), rng.standard_normal(3_000).astype(np.float32)
    total = np.float32(0)
    for product in factors * values:
        total += product
    exactly = float(factors.astype(np.float64) @ values.astype(np.float64))
    assert abs(float(total) - exactly) <= rounding_norm(3_000, float(factors @ np.abs(values)))
    with pytest.raises(InputError, match="float32 sum of 20,000,000 products"):
        rounding_norm(20_000_000, 1.0)


def test_mistakes_are_reported():
    certificate = Certificate([0.0, 1.0])
    for wrong in (-1.0, math.nan):
        with pytest.raises(InputError, match="`removed_norm` is a norm"):
            certificate.hop(wrong)
    certificate.hop(1.0)
    with pytest.raises(InputError, match="for 1 hops, and all of them"):
        certificate.hop(1.0)
    with pytest.raises(InputError, match="at least two"):
        Certificate([1.0])
    groups = Certificate([0.0, 0.0, 1.0])
    groups.hop([1.0, 2.0])
    with pytest.raises(ShapeError, match=r"same shape at every hop: \[2\] so far"):
        groups.hop(1.0)
    nodes = NodeCertificate(HopMatrix(uf.Diffusion(uf.Graph.from_edge_index([[0], [1]]))), [0.0, 1.0])
    with pytest.raises(InputError, match="0 of 1 hops are recorded"):
        _ = nodes.bound
    with pytest.raises(ShapeError, match=r"must be \[2\]"):
        nodes.hop([1.0])


class TestOnRealGraphs:
    """The true error of runs on cora-lcc: the bound holds, and by what factor it is too large."""

    pytestmark = needs_data

    @pytest.mark.parametrize("entries", ["node", "block"])
    @pytest.mark.parametrize("scheme", [uf.Appnp(), uf.Sgc("diagonal"), uf.Sgc(), uf.Polynomial.heat(3.0, 10)], ids=str)
    def test_the_bound_is_within_a_few_times_the_error(self, scheme, entries):
        graph, x = real("cora-lcc", 64)
        hops = 10
        given = None if isinstance(scheme, uf.Polynomial) else hops
        out = uf.propagate(graph, x, scheme, given, edge_sparsity=0.5, entries=entries, basis="input", every_hop=True)
        diffusion = uf.Diffusion(graph)
        matrix = HopMatrix(diffusion, scheme.skip)
        s, theta = diffusion.to_scipy(loops=False) + diags_array(matrix.keep), scheme.coefficients(hops)
        scalar, nodes = Certificate.of(scheme, hops, diffusion), NodeCertificate(matrix, theta)
        for lost in removed_by(s, out.hop_embeddings):
            scalar.hop(np.linalg.norm(lost))
            nodes.hop(np.linalg.norm(lost, axis=1))
        each = np.linalg.norm(out.embedding - exact(s, x, theta), axis=1)
        error = np.linalg.norm(each)
        assert error <= nodes.bound <= scalar.bound * SLACK
        assert nodes.bound < 3 * error and scalar.bound < 4 * error
        assert (each <= nodes.nodes + 1e-4 * np.abs(out.embedding).max()).all()

    @pytest.mark.parametrize("scheme", [uf.Appnp(), uf.Sgc()], ids=str)
    def test_it_covers_principal_axes_and_those_left_out(self, scheme):
        graph, x = real("cora-lcc", 64)
        hops = 6
        out = uf.propagate(graph, x, scheme, hops, edge_sparsity=0.7, rank=32, every_hop=True)
        diffusion = uf.Diffusion(graph)
        matrix = HopMatrix(diffusion, scheme.skip)
        s, theta = diffusion.to_scipy(loops=False) + diags_array(matrix.keep), scheme.coefficients(hops)
        certificate = Certificate.of(scheme, hops, diffusion, dropped=out.trace.dropped_norm)
        for lost in removed_by(s, out.hop_embeddings):
            certificate.hop(np.linalg.norm(lost))
        truth = exact(s, x, theta)
        error = np.linalg.norm(out.embedding - truth)
        assert error <= certificate.bound < 5 * error  # axes left out are mostly noise, which hops average away unseen
        assert certificate.relative(float(np.linalg.norm(out.embedding))) >= error / np.linalg.norm(truth)
