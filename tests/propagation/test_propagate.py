"""`propagate` against the dense definition, and the properties that make it what it is."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from cases import ENTRIES, HOPS, RS, SCHEMES, SKIPS, adjacency, features, gap_near, graph_of, near, problems
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracle import degrees, dense, dense_hops, keep_of, off_diagonal, pruned, theta_of

import unifews as uf
from unifews import Appnp, Graph, Polynomial, Sgc

propagate = partial(uf.propagate, threads=1)  # on graphs this small more threads only get in each other's way


def counts(trace):
    return tuple([getattr(hop, name) for hop in trace.hops] for name in ("entries", "kept", "zeros", "macs"))


def expected_counts(answer):
    return answer.entries, answer.kept, answer.zeros, answer.macs


def small(seed=3, n=12, f=20, **kind):
    rng = np.random.default_rng(seed)
    a = adjacency(rng, n, 0.4, **kind)
    return a, graph_of(a), features(rng, n, f)


@pytest.fixture(scope="module")
def generated():
    """A graph with communities and a tail of hubs, features that go with them."""
    return uf.powerlaw(3_000, 30_000, num_features=64, seed=5)


# --------------------------------------------------------------------------------------------- against the definition


@settings(max_examples=150)
@given(
    problem=problems(),
    scheme=SCHEMES,
    r=RS,
    entries=ENTRIES,
    inherit=st.booleans(),
    share=st.sampled_from([0.0, 0.2, 0.5, 0.8, 0.97]),
)
def test_a_threshold_means_what_the_definition_says(problem, scheme, r, entries, inherit, share):
    a, x, _ = problem

    def solve(delta):
        return pruned(a, x, scheme, HOPS, r, entries, delta=delta, inherit=inherit)

    first = solve(0.0).magnitudes[0]
    start = float(np.quantile(first, share)) if share and len(first) else 0.0
    delta, answer = gap_near(solve, start)
    assume(answer is not None)
    out = propagate(graph_of(a), x, scheme, HOPS, r, threshold=delta, entries=entries, inherit=inherit, basis="input")
    near(out.embedding, answer.embedding)
    assert counts(out.trace) == expected_counts(answer)
    assert [hop.removed for hop in out.trace.hops] == [
        e - z - k for e, k, z in zip(answer.entries, answer.kept, answer.zeros, strict=True)
    ]


@settings(max_examples=80)
@given(problem=problems(), scheme=SCHEMES, r=RS, entries=ENTRIES, inherit=st.booleans(), ratio=st.sampled_from([0.1, 0.7, 1.5]))
def test_a_relative_threshold_is_a_multiple_of_the_mean_message(problem, scheme, r, entries, inherit, ratio):
    a, x, _ = problem
    ratio, answer = gap_near(lambda c: pruned(a, x, scheme, HOPS, r, entries, relative=c, inherit=inherit), ratio)
    assume(answer is not None)
    out = propagate(graph_of(a), x, scheme, HOPS, r, relative_threshold=ratio, entries=entries, inherit=inherit, basis="input")
    near(out.embedding, answer.embedding)
    assert counts(out.trace) == expected_counts(answer)


@settings(max_examples=80)
@given(
    seed=st.integers(0, 2**32 - 1),
    scheme=SCHEMES,
    r=RS,
    entries=ENTRIES,
    inherit=st.booleans(),
    share=st.sampled_from([0.3, 0.6, 0.9]),
    rank=st.sampled_from([None, 40, 17, 1]),
    weighted=st.booleans(),
)
def test_on_principal_axes_the_definition_holds_in_the_coordinates(seed, scheme, r, entries, inherit, share, rank, weighted):
    rng = np.random.default_rng(seed)
    n, f = 45, 40  # more rows than features, so that no axis is empty
    a = adjacency(rng, n, 0.1, weighted=weighted)
    x = rng.standard_normal((n, f)) * 10.0 ** rng.uniform(-1, 1, (n, 1))
    common = dict(entries=entries, inherit=inherit)
    graph = graph_of(a)
    first = propagate(graph, x, scheme, HOPS, r, threshold=0.0, rank=rank, **common)
    axes = np.asarray(first.basis, dtype=np.float64)[:, : first.trace.rank]
    near(axes.T @ axes, np.eye(axes.shape[1]), 1e-5)

    def solve(delta):
        return pruned(a, x, scheme, HOPS, r, delta=delta, axes=axes, deflate=True, **common)

    magnitudes = solve(0.0).magnitudes[0]
    delta, answer = gap_near(solve, float(np.quantile(magnitudes, share)) if len(magnitudes) else 1.0)
    assume(answer is not None)
    out = propagate(graph, x, scheme, HOPS, r, threshold=delta, rank=rank, **common)
    near(out.embedding, answer.embedding)
    assert counts(out.trace) == expected_counts(answer)


@settings(max_examples=60)
@given(problem=problems(), scheme=SCHEMES, r=RS)
def test_unpruned_is_the_polynomial_of_the_diffusion(problem, scheme, r):
    a, x, _ = problem
    out = propagate(graph_of(a), x, scheme, HOPS, r)
    near(out.embedding, dense(a, x, scheme, r, HOPS))
    m = int((a > 0).sum())
    assert out.trace.macs == out.trace.dense_macs == HOPS * m * x.shape[1]
    assert out.trace.edge_sparsity == 0 and out.trace.requested == "unpruned"


@settings(max_examples=60)
@given(
    problem=problems(),
    scheme=SCHEMES,
    r=RS,
    entries=ENTRIES,
    inherit=st.booleans(),
    basis=st.sampled_from(["principal", "input"]),
)
def test_a_zero_threshold_is_unpruned(problem, scheme, r, entries, inherit, basis):
    a, x, _ = problem
    rank = x.shape[1] if basis == "principal" else None
    out = propagate(graph_of(a), x, scheme, HOPS, r, threshold=0.0, entries=entries, inherit=inherit, basis=basis, rank=rank)
    near(out.embedding, dense(a, x, scheme, r, HOPS))
    assert all(hop.removed == 0 for hop in out.trace.hops)


def test_the_default_with_a_zero_threshold_is_unpruned(generated):
    whole = propagate(generated.graph, generated.x, hops=6).embedding
    near(propagate(generated.graph, generated.x, hops=6, threshold=0.0, rank=64).embedding, whole)


def test_unpruned_equals_scipy(generated):
    graph, x = generated.graph, generated.x
    t = uf.Diffusion(graph, 0.5).to_scipy()
    p, r, alpha = np.zeros_like(x, dtype=np.float64), x.astype(np.float64), 0.1
    for _ in range(8):
        p, r = p + alpha * r, (1 - alpha) * (t @ r)
    near(propagate(graph, x, Appnp(alpha), hops=8).embedding, p + r)
    near(propagate(graph, x, Appnp(alpha, tail=False), hops=8).embedding, p)


# ------------------------------------------------------------------------------------------- the two ends of the scale


@pytest.mark.parametrize("entries", ["block", "feature", "node"])
def test_no_threshold_and_the_diagonal_give_powers_of_the_diffusion(entries):
    a, graph, x = small()
    t = off_diagonal(a, 0.5) + np.diag(1 / degrees(a))
    out = propagate(graph, x, Sgc(skip="diagonal"), 5, threshold=0.0, entries=entries)
    near(out.embedding, np.linalg.matrix_power(t, 5) @ x)


@pytest.mark.parametrize("entries", ["block", "feature", "node"])
def test_no_threshold_and_the_identity_give_powers_of_identity_plus_edges(entries):
    a, graph, x = small()
    s = np.eye(len(a)) + off_diagonal(a, 0.5)
    out = propagate(graph, x, Sgc(skip="identity"), 5, threshold=0.0, entries=entries)
    near(out.embedding, np.linalg.matrix_power(s, 5) @ x)


@pytest.mark.parametrize("entries", ["block", "feature", "node"])
def test_with_everything_removed_the_identity_changes_nothing(entries):
    _, graph, x = small()
    out = propagate(graph, x, Sgc(skip="identity"), 7, threshold=np.inf, entries=entries, basis="input")
    near(out.embedding, x, 1e-6)
    assert out.trace.macs == 0 and out.trace.edge_sparsity == 1


@pytest.mark.parametrize("entries", ["block", "feature", "node"])
def test_with_everything_removed_appnp_keeps_the_diagonal_series(entries):
    a, graph, x = small()
    alpha, hops = 0.2, 6
    loop = (1 - alpha) / degrees(a)
    share = sum(alpha * loop**hop for hop in range(hops)) + loop**hops
    out = propagate(graph, x, Appnp(alpha), hops, threshold=np.inf, entries=entries, basis="input")
    near(out.embedding, share[:, None] * x)


def test_with_everything_removed_the_stationary_part_is_still_carried():
    a, graph, _ = small()
    phi = degrees(a) ** 0.5
    x = np.outer(phi, np.arange(1.0, 21)).astype(np.float32)
    out = propagate(graph, x, Appnp(), 6, threshold=np.inf)
    near(out.embedding, x)


# --------------------------------------------------------------------------------------------------- order among results


@settings(max_examples=40)
@given(problem=problems(), scheme=SCHEMES, entries=ENTRIES, share=st.sampled_from([0.1, 0.4, 0.8]))
def test_inherited_entries_never_grow_in_number(problem, scheme, entries, share):
    a, x, _ = problem
    magnitudes = pruned(a, x, scheme, HOPS, 0.5, entries, delta=0.0).magnitudes[0]
    delta = float(np.quantile(magnitudes, share)) if len(magnitudes) else 1.0
    answer = pruned(a, x, scheme, HOPS, 0.5, entries, delta=delta, inherit=True)
    out = propagate(graph_of(a), x, scheme, HOPS, threshold=delta, inherit=True, entries=entries, basis="input")
    kept = [hop.kept for hop in out.trace.hops]
    if answer.margin > 1e-4:
        assert kept == answer.kept
        assert all((later <= earlier).all() for earlier, later in zip(answer.edges, answer.edges[1:], strict=False))
    assert kept == sorted(kept, reverse=True)


@settings(max_examples=30)
@given(problem=problems(), scheme=SCHEMES, entries=ENTRIES, deltas=st.lists(st.floats(0, 10), min_size=2, max_size=5))
def test_a_larger_threshold_never_keeps_more_at_the_first_hop(problem, scheme, entries, deltas):
    a, x, _ = problem
    graph = graph_of(a)
    kept = [
        propagate(graph, x, scheme, HOPS, threshold=delta, entries=entries, basis="input").trace.hops[0].kept
        for delta in sorted(deltas)
    ]
    assert kept == sorted(kept, reverse=True)


@settings(max_examples=30)
@given(problem=problems(), scheme=SCHEMES, entries=ENTRIES, share=st.sampled_from([None, 0.3, 0.8]))
def test_renumbering_the_nodes_renumbers_the_result(problem, scheme, entries, share):
    a, x, rng = problem
    delta = None
    if share is not None:
        magnitudes = pruned(a, x, scheme, HOPS, 0.5, entries, delta=0.0).magnitudes[0]
        start = float(np.quantile(magnitudes, share)) if len(magnitudes) else 1.0
        delta, answer = gap_near(lambda d: pruned(a, x, scheme, HOPS, 0.5, entries, delta=d), start)
        assume(answer is not None)
    order = rng.permutation(len(a))
    common = dict(scheme=scheme, hops=HOPS, threshold=delta, entries=entries, basis="input")
    one = propagate(graph_of(a), x, **common)
    other = propagate(graph_of(a).permute(order), x[order], **common)
    near(other.embedding, one.embedding[order], 1e-5)
    assert counts(one.trace) == counts(other.trace)


@pytest.mark.parametrize("entries", ["block", "feature"])
def test_features_do_not_depend_on_each_other(generated, entries):
    graph, x = generated.graph, generated.x
    common = dict(scheme="appnp", hops=5, threshold=0.05 if entries == "block" else 0.01, entries=entries, basis="input")
    whole = propagate(graph, x, **common)
    parts = [propagate(graph, np.ascontiguousarray(x[:, part]), **common) for part in (slice(0, 16), slice(16, None))]
    assert 0.1 < whole.trace.edge_sparsity < 0.95
    assert np.array_equal(whole.embedding, np.concatenate([part.embedding for part in parts], axis=1))
    assert whole.trace.macs == sum(part.trace.macs for part in parts)


@pytest.mark.parametrize("entries", ["block", "feature", "node"])
@pytest.mark.parametrize("basis", ["principal", "input"])
@pytest.mark.parametrize("inherit", [False, True])
def test_the_number_of_threads_does_not_change_a_bit(generated, entries, basis, inherit):
    common = dict(scheme="appnp", hops=4, edge_sparsity=0.6, entries=entries, basis=basis, inherit=inherit)
    one, two, three = (propagate(generated.graph, generated.x, threads=threads, **common) for threads in (1, 2, 3))
    for other in (two, three):
        assert one.embedding.tobytes() == other.embedding.tobytes()
        assert one.coordinates.tobytes() == other.coordinates.tobytes()
        assert counts(one.trace) == counts(other.trace)


def test_the_number_of_threads_does_not_change_a_bit_of_wide_sparse_features():
    graph = uf.powerlaw(800, 6_000, num_features=1, seed=1).graph
    x = sp.random_array((800, 1_200), density=0.02, rng=np.random.default_rng(0), dtype=np.float32, format="csr")
    one, two = (propagate(graph, x, hops=4, edge_sparsity=0.95, threads=threads) for threads in (1, 2))
    assert one.embedding.tobytes() == two.embedding.tobytes()


# ------------------------------------------------------------------------------------------------------ sparsity targets


@pytest.mark.parametrize("inherit", [False, True])
@pytest.mark.parametrize("entries", ["block", "feature", "node"])
@pytest.mark.parametrize("basis", ["principal", "input"])
@pytest.mark.parametrize("scheme", ["appnp", "sgc"])
def test_a_target_is_met(generated, scheme, basis, entries, inherit):
    for sparsity in (0.5, 0.9):
        out = propagate(
            generated.graph, generated.x, scheme, 8, edge_sparsity=sparsity, entries=entries, basis=basis, inherit=inherit
        )
        assert out.trace.edge_sparsity == pytest.approx(sparsity, abs=0.01)


def test_a_target_counts_against_products_that_are_not_zero(generated):
    x = generated.x * (np.random.default_rng(0).random(generated.x.shape) < 0.3)
    out = propagate(generated.graph, x, "appnp", 4, edge_sparsity=0.5, entries="feature", basis="input")
    first = out.trace.hops[0]
    assert first.zeros == pytest.approx(0.7 * first.entries, rel=0.05)
    assert out.trace.edge_sparsity == pytest.approx(0.5, abs=0.01)


def test_a_target_of_zero_is_unpruned():
    _, graph, x = small()
    assert propagate(graph, x, hops=3, edge_sparsity=0).trace.requested == "unpruned"


# ------------------------------------------------------------------------------------------------------------- the basis


@pytest.mark.parametrize("rank", [1, 16, 20, 40])
@pytest.mark.parametrize("prune", [{}, {"threshold": 0.0}])
def test_dropped_axes_count_as_removed_and_bound_the_error(rank, prune):
    a, graph, _ = small(n=60, weighted=True)
    rng = np.random.default_rng(8)
    x = (3 + rng.standard_normal((60, 40)) * 10.0 ** rng.uniform(-1, 0, 40)).astype(np.float32)
    m, hops = graph.num_edges, 5
    out = propagate(graph, x, Appnp(), hops, rank=rank, **prune)
    assert out.trace.rank == rank
    assert [hop.macs for hop in out.trace.hops] == [m * rank] * hops
    assert [hop.dense_macs for hop in out.trace.hops] == [m * 40] * hops
    assert out.trace.edge_sparsity == pytest.approx(1 - rank / 40)

    axes = np.asarray(out.basis, dtype=np.float64)[:, :rank]
    phi = degrees(a) ** 0.5
    z = x - np.outer(phi, x.T @ phi / (phi @ phi))
    left = np.linalg.norm(z - z @ axes @ axes.T)
    assert out.trace.dropped_norm == pytest.approx(left, rel=1e-2, abs=float(1e-3 * np.linalg.norm(x)))
    error = np.linalg.norm(out.embedding - dense(a, x, Appnp(), 0.5, hops))
    assert error <= left + 1e-4 * np.linalg.norm(x)


def test_coordinates_on_the_basis_are_the_embedding(generated):
    for rank in (None, 10):
        out = propagate(generated.graph, generated.x, hops=3, edge_sparsity=0.9, rank=rank)
        k = out.coordinates.shape[1]
        assert out.basis.shape == (64, k) and out.coordinates.shape == (3_000, k)
        near(out.basis.T @ out.basis, np.eye(k), 1e-5)
        near(out.embedding @ out.basis, out.coordinates, 1e-5)
        if rank is None:
            near(out.coordinates @ out.basis.T, out.embedding, 1e-6)
    plain = propagate(generated.graph, generated.x, hops=3)
    assert plain.basis is None and np.array_equal(plain.coordinates, plain.embedding)


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("options", [{}, {"edge_sparsity": 0.9}, {"threshold": np.inf}])
@pytest.mark.parametrize("scheme", [Appnp(), *(Sgc(skip) for skip in SKIPS), Polynomial([0.5, 0.2, 0.3])])
def test_what_a_node_has_outside_the_axes_it_keeps(scheme, options, kind):
    """Axes left out lose their messages and nothing else: the skip connection is never pruned."""
    a, graph, _ = small(n=40)
    x = np.random.default_rng(5).standard_normal((40, 24)).astype(np.float32)
    hops = None if isinstance(scheme, Polynomial) else 4
    out = propagate(graph, kind(x), scheme, hops, rank=5, every_hop=True, **options)
    theta = scheme.coefficients(len(out.trace.hops))
    keep = keep_of(scheme.skip, a)
    own = sum(weight * keep**power for power, weight in enumerate(theta))
    outside = np.eye(24) - out.basis.astype(float) @ out.basis.T
    np.testing.assert_allclose(out.embedding @ outside, own[:, None] * (x @ outside), atol=1e-5 * np.abs(out.embedding).max())
    near(out.hop_embeddings[0], x, 1e-5)
    near(sum(weight * hop for weight, hop in zip(theta, out.hop_embeddings, strict=True)), out.embedding, 1e-5)


def test_rotating_back_is_paid_for_when_asked_for(generated):
    out = propagate(generated.graph, generated.x, hops=2, edge_sparsity=0.5)
    before = out.trace.basis_macs
    _ = out.embedding
    assert out.trace.basis_macs == before + 3_000 * out.coordinates.shape[1] * 64
    _ = out.embedding
    assert out.trace.basis_macs == before + 3_000 * out.coordinates.shape[1] * 64


# ------------------------------------------------------------------------------------------------------- kinds of input


@pytest.mark.parametrize("options", [{}, {"edge_sparsity": 0.7}, {"threshold": 0.05, "basis": "input"}, {"rank": 4}])
def test_sparse_features_give_the_same_as_dense_ones(generated, options):
    x = generated.x * (np.random.default_rng(1).random(generated.x.shape) < 0.1)
    expected = propagate(generated.graph, x, hops=4, **options)
    for kind in (sp.csr_array, sp.csc_matrix, sp.coo_array):
        out = propagate(generated.graph, kind(x), hops=4, **options)
        assert isinstance(out.embedding, np.ndarray)
        error = np.linalg.norm(out.embedding - expected.embedding)  # a message or two may be decided by rounding
        assert error <= 2e-3 * np.linalg.norm(expected.embedding)
        assert out.trace.macs == pytest.approx(expected.trace.macs, rel=1e-3)


def test_wide_features_sparse_or_dense_are_found_few_axes():
    graph = uf.powerlaw(600, 5_000, num_features=1, seed=1).graph
    x = sp.random_array((600, 1_100), density=0.02, rng=np.random.default_rng(0), dtype=np.float32, format="csr")
    out = propagate(graph, x, hops=3, threshold=0.0, rank=100)
    near(out.embedding, propagate(graph, x.toarray(), hops=3, threshold=0.0, rank=100).embedding, 1e-3)
    near(out.basis.T @ out.basis, np.eye(out.basis.shape[1]), 1e-4)
    whole = dense(graph.to_scipy().toarray().astype(float), x.toarray(), Appnp(), 0.5, 3)
    assert np.linalg.norm(out.embedding - whole) <= out.trace.dropped_norm * 1.01


def test_the_callers_arrays_stay_as_they_were():
    _, graph, x = small()
    rows = sp.csr_array((np.array([1.0, 2.0]), np.array([5, 2]), np.array([0, 2] + [2] * 11)), shape=(12, 20))
    indices = rows.indices.copy()
    propagate(graph, rows, hops=2, edge_sparsity=0.5)
    assert np.array_equal(rows.indices, indices)
    before = x.copy()
    propagate(graph, x, hops=3, edge_sparsity=0.5).embedding[:] = 0
    assert np.array_equal(x, before)


def test_sparse_features_with_copies_of_an_entry_add_them_up():
    _, graph, _ = small()
    rows = sp.csr_array((np.ones(3, dtype=np.float32), np.array([4, 4, 7]), np.array([0, 3] + [3] * 11)), shape=(12, 20))
    expected = propagate(graph, rows.toarray(), hops=2, rank=3)
    out = propagate(graph, rows, hops=2, rank=3)
    near(out.embedding, expected.embedding)
    assert out.trace.dropped_norm == pytest.approx(expected.trace.dropped_norm, abs=1e-3)


class TestTorch:
    import torch

    def run(self, x, **options):
        _, graph, _ = small()
        out = propagate(graph, x, hops=3, **options)
        for result in (out.embedding, out.coordinates, out.basis):
            assert result is None or isinstance(result, self.torch.Tensor)
            assert result is None or result.dtype == self.torch.float32
        return out.embedding.numpy()

    @pytest.mark.parametrize("options", [{}, {"edge_sparsity": 0.5}])
    @pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int64", "bool"])
    def test_torch_in_torch_out(self, dtype, options):
        torch = self.torch
        x = (torch.arange(240).reshape(12, 20) % 7 - 2).to(getattr(torch, dtype))
        plain = x.to(torch.float64).numpy()
        _, graph, _ = small()
        near(self.run(x, **options), propagate(graph, plain, hops=3, **options).embedding, 1e-5)

    @pytest.mark.parametrize("layout", ["to_sparse_coo", "to_sparse_csr", "to_sparse_csc"])
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_sparse_tensors(self, layout, dtype):
        torch = self.torch
        x = (torch.arange(240).reshape(12, 20) % 5 // 4).to(getattr(torch, dtype))
        near(self.run(getattr(x, layout)()), self.run(x.float()), 1e-5)

    def test_a_tensor_that_needs_gradients_or_is_a_transposed_view(self):
        torch = self.torch
        x = torch.rand(20, 12, requires_grad=True).T
        near(self.run(x), self.run(x.detach().contiguous()), 1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8, np.int64, np.uint8, bool])
def test_any_real_dtype(dtype):
    _, graph, _ = small()
    x = (np.arange(240).reshape(12, 20) % 7).astype(dtype)
    for options in ({}, {"edge_sparsity": 0.5}):
        expected = propagate(graph, x.astype(np.float32), hops=3, **options).embedding
        out = propagate(graph, x, hops=3, **options).embedding
        assert out.dtype == np.float32
        near(out, expected, 1e-6)


def test_lists_columns_first_and_every_other_row():
    _, graph, x = small()
    expected = propagate(graph, x, hops=3).embedding
    near(propagate(graph, x.tolist(), hops=3).embedding, expected, 1e-6)
    near(propagate(graph, np.asfortranarray(x), hops=3).embedding, expected, 1e-6)
    near(propagate(graph, np.repeat(x, 2, axis=0)[::2], hops=3).embedding, expected, 1e-6)


@pytest.mark.parametrize("options", [{}, {"edge_sparsity": 0.8}, {"edge_sparsity": 0.5, "basis": "input"}])
def test_features_on_disk(tmp_path, generated, options):
    np.save(tmp_path / "x.npy", generated.x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    expected = propagate(generated.graph, generated.x, hops=3, **options).embedding
    assert np.array_equal(propagate(generated.graph, mapped, hops=3, **options).embedding, expected)


def test_a_graph_on_disk(tmp_path, generated):
    generated.graph.save(tmp_path / "g")
    expected = propagate(generated.graph, generated.x, hops=3, edge_sparsity=0.8).embedding
    assert np.array_equal(propagate(Graph.open(tmp_path / "g"), generated.x, hops=3, edge_sparsity=0.8).embedding, expected)


@pytest.mark.parametrize("options", [{}, {"edge_sparsity": 0.5}, {"threshold": 0.1, "inherit": True}, {"rank": 2}])
@pytest.mark.parametrize("entries", ["block", "feature", "node"])
@pytest.mark.parametrize("n", [1, 3])
def test_graphs_without_edges(n, entries, options):
    graph = Graph.from_edge_index(np.zeros((2, 0), dtype=np.int64), num_nodes=n)
    x = np.arange(1.0, 1 + 5 * n, dtype=np.float32).reshape(n, 5)
    out = propagate(graph, x, hops=3, entries=entries, **options)
    if "rank" not in options:
        near(out.embedding, x, 1e-5)
    assert out.embedding.shape == (n, 5) and out.trace.macs == 0 and np.isfinite(out.trace.edge_sparsity)


@pytest.mark.parametrize("f", [5, 1_100])
@pytest.mark.parametrize("options", [{}, {"edge_sparsity": 0.5}, {"relative_threshold": 1.0}, {"threshold": 0.0}])
def test_features_that_are_all_zero(options, f):
    _, graph, _ = small()
    out = propagate(graph, np.zeros((12, f), dtype=np.float32), hops=3, **options)
    assert out.embedding.shape == (12, f) and not out.embedding.any()
    assert np.isfinite(out.trace.edge_sparsity)


# -------------------------------------------------------------------------------------------------- hops and magnitudes


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"threshold": 0.0, "basis": "input"},
        {"threshold": 0.0, "basis": "input", "entries": "node"},
        {"threshold": 0.0},
        {"threshold": 0.0, "rank": 20},
        {"rank": 20},
    ],
)
@pytest.mark.parametrize("scheme", [Appnp(), Sgc()])
def test_every_hop_is_there_when_asked_for(options, scheme):
    a, graph, x = small(n=30)
    out = propagate(graph, x, scheme, 4, every_hop=True, **options)
    expected = dense_hops(a, x, scheme.skip, 0.5, 4)
    assert len(out.hop_embeddings) == 5
    for got, value in zip(out.hop_embeddings, expected, strict=True):
        near(got, value)


def test_every_hop_of_truncated_axes_keeps_the_stationary_part():
    a, graph, x = small(n=30)
    out = propagate(graph, x + 5, Appnp(), 4, threshold=0.0, rank=2, every_hop=True)
    left = out.trace.dropped_norm
    for got, value in zip(out.hop_embeddings, dense_hops(a, x + 5, "diagonal", 0.5, 4), strict=True):
        assert np.linalg.norm(got - value) <= left * 1.01


def test_progress_is_reported_to_the_end():
    _, graph, x = small()
    for options in ({}, {"edge_sparsity": 0.5}):
        seen = []
        propagate(graph, x, hops=3, progress=lambda done, of, seen=seen: seen.append((done, of)), **options)
        assert seen[-1][0] == seen[-1][1] == len(seen)


def log_growth(a, x, hops):
    """(I + T_off)^hops X as a float64 matrix of largest value 1, and the log2 of what it was divided by."""
    s = np.eye(len(a)) + off_diagonal(a, 0.5)
    value, log = x.astype(np.float64), 0.0
    for _ in range(hops):
        value = s @ value
        peak = np.abs(value).max()
        value, log = value / peak, log + np.log2(peak)
    return value, log


MANY = [
    {"threshold": 0.0, "basis": "input"},
    {"threshold": 0.0, "basis": "input", "entries": "node"},
    {"threshold": 0.0, "basis": "input", "entries": "feature"},
    {"edge_sparsity": 0.01},
    {"threshold": 0.0},
    {"rank": 40},
    {"relative_threshold": 1e-6, "basis": "input"},
]


@pytest.mark.parametrize(
    "options, hops",
    [({}, 300), ({}, 1_500), *((options, 300) for options in MANY)] + [(options, 1_500) for options in MANY],
)
def test_many_identity_hops_stay_finite(options, hops):
    rng = np.random.default_rng(4)
    a = adjacency(rng, 12, 0.6)
    x = rng.random((12, 40)).astype(np.float32)
    out = propagate(graph_of(a), x, Sgc(skip="identity"), hops, **options)
    assert np.isfinite(out.embedding).all() and out.exponent > 0
    assert any("2^" in note for note in out.trace.notes)
    if "edge_sparsity" in options:
        return
    value, log = log_growth(a, x, hops)
    near(out.embedding / np.abs(out.embedding).max(), value, 1e-3)
    assert np.log2(np.abs(out.embedding).max()) + out.exponent == pytest.approx(log, abs=0.01)


@pytest.mark.parametrize("scheme", [uf.Sgc(skip="identity+loop"), uf.Polynomial([1.0] * 301, skip="identity+loop")])
def test_blocks_left_behind_for_long_survive_the_scaling(scheme):
    rng = np.random.default_rng(383)
    graph = uf.Graph.from_edge_index(rng.integers(0, 30, (2, 80)), num_nodes=40)  # each hop doubles the ten without edges
    x = rng.standard_normal((40, 20)).astype(np.float32)
    how = ({}, {"threshold": 1e-9}, {"edge_sparsity": 0.9})
    whole, pruned, few = (uf.propagate(graph, x, scheme, hops=300, basis="input", **options) for options in how)
    assert np.isfinite(few.embedding).all()
    scaled = np.ldexp(pruned.embedding.astype(np.float64), pruned.exponent - whole.exponent)
    assert np.abs(scaled - whole.embedding).max() <= 1e-4 * np.abs(whole.embedding).max()


def test_an_absolute_threshold_keeps_its_meaning_when_values_are_scaled_down():
    rng = np.random.default_rng(4)
    a = adjacency(rng, 12, 0.6)
    x = rng.standard_normal((12, 20)).astype(np.float32)
    answer = pruned(a, x, Sgc(), 130, 0.5, "block", delta=1e20)
    assert answer.margin > 1e-4
    out = propagate(graph_of(a), x, Sgc(), 130, threshold=1e20, basis="input")
    assert counts(out.trace) == expected_counts(answer)
    assert out.trace.hops[-1].threshold == pytest.approx(1e20)


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e18, 1e30])
@pytest.mark.parametrize("entries", ["block", "feature", "node"])
def test_the_unit_of_the_features_does_not_matter(scale, entries):
    a, graph, x = small()
    expected = dense(a, x, Appnp(), 0.5, 4)
    out = propagate(graph, x * np.float32(scale), Appnp(), 4, threshold=0.0, entries=entries, basis="input")
    near(out.embedding.astype(np.float64) / scale * 2.0**out.exponent, expected)
    one = propagate(graph, x, Appnp(), 4, edge_sparsity=0.5, entries=entries)
    other = propagate(graph, x * np.float32(scale), Appnp(), 4, edge_sparsity=0.5, entries=entries)
    assert other.trace.macs == pytest.approx(one.trace.macs, abs=2 * 20)  # two entries of the last bit


def test_the_schemes_by_name_are_the_defaults():
    _, graph, x = small()
    assert np.array_equal(propagate(graph, x, "sgc", 3).embedding, propagate(graph, x, Sgc(), 3).embedding)
    assert np.array_equal(propagate(graph, x, hops=3).embedding, propagate(graph, x, Appnp(), 3).embedding)
    assert len(propagate(graph, x).trace.hops) == 20
    assert len(propagate(graph, x, Polynomial([1, 2, 3])).trace.hops) == 2


def test_skips_are_what_the_table_says():
    a, graph, x = small()
    for skip in SKIPS:
        near(propagate(graph, x, Sgc(skip), 1).embedding, keep_of(skip, a)[:, None] * x + off_diagonal(a, 0.5) @ x)


def test_the_trace_says_what_was_asked_and_done():
    _, graph, x = small()
    out = propagate(graph, x, hops=2, threshold=0.25, basis="input", threads=1)
    assert out.trace.requested == "threshold 0.25"
    assert [hop.threshold for hop in out.trace.hops] == [0.25, 0.25]
    assert "1 thread" in out.trace.kernel and out.trace.rank is None
    assert "removed" in repr(out)
    theta, _ = theta_of(Appnp(), 2)
    assert sum(theta) == pytest.approx(1)


@pytest.fixture(scope="module")
def problem():
    """A graph so dense that nothing but the stationary part is left after a few hops, and features."""
    rng = np.random.default_rng(11)
    graph = uf.Graph.from_edge_index(rng.integers(0, 60, (2, 1500)), 60).undirected()
    return graph, rng.standard_normal((60, 20)).astype(np.float32)


class TestManyHops:
    """The stationary part may outgrow float32, and all that departs from it, by many powers of two."""

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("hops", [130, 300, 1000])
    @pytest.mark.parametrize(
        "how",
        [
            {"edge_sparsity": 0.5},
            {"edge_sparsity": 0.9, "inherit": True},
            {"edge_sparsity": 0.5, "entries": "node"},
            {"edge_sparsity": 0.5, "entries": "feature", "every_hop": True},
            {"rank": 3, "edge_sparsity": 0.5},
            {"threshold": 0.1, "certify": True},
        ],
        ids=str,
    )
    def test_an_identity_skip_gives_what_it_gives_unpruned(self, problem, hops, how):
        graph, x = problem
        whole, out = uf.propagate(graph, x, "sgc", hops), uf.propagate(graph, x, "sgc", hops, **how)
        exact = np.asarray(whole.embedding, dtype=np.float64) * 2.0 ** (whole.exponent - out.exponent)
        assert np.linalg.norm(out.embedding - exact) < 0.2 * np.linalg.norm(exact)
        if "every_hop" in how:
            last = out.hop_embeddings[-1]
            assert np.linalg.norm(last - exact) < 0.2 * np.linalg.norm(exact)

    @pytest.mark.filterwarnings("error")
    def test_through_files_too(self, problem, tmp_path):
        graph, x = problem
        graph.save(tmp_path / "graph")
        np.save(tmp_path / "x.npy", x)
        mapped = uf.Graph.open(tmp_path / "graph"), np.load(tmp_path / "x.npy", mmap_mode="r")
        out = uf.propagate(*mapped, "sgc", 300, edge_sparsity=0.5, out=tmp_path / "p.npy", memory="2GB")
        memory = uf.propagate(graph, x, "sgc", 300, edge_sparsity=0.5)
        assert out.exponent == memory.exponent > 0
        np.testing.assert_allclose(out.embedding, memory.embedding, rtol=1e-5)

    @pytest.mark.filterwarnings("error")
    def test_hops_that_nobody_would_take_are_no_trouble(self, problem):
        graph, x = problem
        out = uf.propagate(graph, x, "appnp", 3000, edge_sparsity=0.9)
        assert out.trace.edge_sparsity == pytest.approx(0.9, abs=0.01) and np.isfinite(out.embedding).all()
        out = uf.propagate(graph, x, "appnp", 3000, edge_sparsity=0.3)
        assert out.trace.edge_sparsity > 0.25 or "could be removed, not the 30.0% asked for" in str(out.trace)
