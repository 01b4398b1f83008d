"""Layers of several hops with `max_error`: a shorter polynomial, within its bound forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import unifews as uf
from unifews.errors import InputError
from unifews.nn.economise import economise

N, F = 120, 12
_draw = torch.Generator().manual_seed(2)
_ONE_WAY = torch.randint(0, N - 3, (2, 300), generator=_draw)
UNDIRECTED = torch.cat([_ONE_WAY, _ONE_WAY.flip(0)], dim=1)
PATH = torch.stack([torch.arange(N - 1), torch.arange(1, N)])
PATH = torch.cat([PATH, PATH.flip(0)], dim=1)  # bipartite: -1 is an eigenvalue without self-loops
X = torch.randn(N, F, generator=_draw)


def pagerank(hops, alpha):
    return (*[alpha * (1 - alpha) ** k for k in range(hops)], (1 - alpha) ** hops)


@given(st.integers(2, 14), st.floats(0.05, 0.6), st.sampled_from([0.02, 0.05, 0.1, 0.3]))
def test_the_distance_is_a_bound_and_1_is_exact(hops, alpha, allowed):
    f = pagerank(hops, alpha)
    found = economise((f,), allowed)
    t = np.linspace(-1, 1, 4001)
    own, near = (np.polynomial.polynomial.polyval(t, terms) for terms in (f, found.powers[0]))
    assert np.abs(own - near).max() <= found.error + 1e-9 <= allowed * np.abs(own).max() * 1.01 + 2e-9
    assert near[-1] == pytest.approx(own[-1], abs=1e-9)
    assert found.degree <= hops and (found.degree < hops or found.error == 0)


def test_degrees_of_personalized_pagerank():
    """Of T^k no shorter polynomial is near where k is small, and of a Chebyshev polynomial never."""
    assert [economise((pagerank(10, 0.1),), error).degree for error in (0.05, 0.1)] == [5, 4]
    assert economise(((0.0, 0.0, 0.0, 1.0),), 0.05).degree == 3
    assert economise(((0.0, -3.0, 0.0, 4.0),), 0.3).degree == 3


@pytest.mark.parametrize("edges", [UNDIRECTED, PATH], ids=["random", "path"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: pyg.APPNP(10, 0.1),
        lambda: pyg.SGConv(F, 4, K=12, bias=False),
        lambda: pyg.SSGConv(F, 30, alpha=0.1, K=10, bias=False),
        lambda: pyg.TAGConv(F, 4, K=9, bias=False),
    ],
    ids=["appnp", "sg", "ssg", "tag"],
)
def test_forward_and_backward_stay_within_the_bound(make, edges):
    torch.manual_seed(0)
    layer = make()
    hops = len(_trace(layer, edges).hops)
    fast = uf.accelerate(layer, max_error=0.1)
    (note,) = _trace(fast, edges).notes
    bound = float(note.split("at most ")[1].split()[0])
    assert len(uf.trace(fast).hops) < hops and 0 < bound <= 0.1
    weights = sum(float(torch.linalg.matrix_norm(p.detach(), 2)) for p in layer.parameters()) or 1.0
    outs, slopes = [], []
    for each in (layer, fast):
        x = X.clone().requires_grad_()
        out = each(x, edges)
        out.backward(torch.ones_like(out))
        outs.append(out.detach())
        slopes.append(x.grad)
    assert float((outs[0] - outs[1]).norm()) <= bound * weights * float(X.norm())
    assert float((slopes[0] - slopes[1]).norm()) <= bound * weights * float(torch.ones_like(outs[0]).norm())
    assert not torch.equal(outs[0], outs[1])


def _trace(layer, edges):
    model = layer if hasattr(layer, "session") else uf.accelerate(layer)
    model(X, edges)
    return uf.trace(model)


@pytest.mark.parametrize(
    "inputs, why",
    [
        ((X, _ONE_WAY), "directed"),
        ((X, UNDIRECTED, torch.where(torch.arange(600) % 300 < 2, -0.1, 1.0)), "negative weights"),
        ((X, UNDIRECTED, torch.rand(600, generator=_draw)), "directed"),  # weights of the two directions differ
        ((X, UNDIRECTED, torch.ones(600, requires_grad=True)), "learnt"),
    ],
)
def test_unsuitable_graphs_get_all_hops_and_a_note(inputs, why):
    layer = pyg.APPNP(10, 0.1)
    fast = uf.accelerate(layer, max_error=0.1)
    torch.testing.assert_close(fast(*inputs), layer(*inputs), equal_nan=True)
    assert len(uf.trace(fast).hops) == 10 and why in uf.trace(fast).notes[0]


def test_a_thinned_graph_that_keeps_one_direction_of_an_edge_is_directed():
    model = uf.sparsify(pyg.SGConv(F, 4, K=12), edge_sparsity=0.3, entries="edge", max_error=0.1)
    assert "directed" in _trace(model, PATH).notes[0]


def test_copies_and_files(tmp_path):
    model = uf.sparsify(pyg.SGConv(F, 4, K=12), weight_sparsity=0.3, ramp=1, max_error=0.1)
    model(X, PATH)
    out = model.eval()(X, PATH)
    assert len(uf.trace(model).hops) < 12
    uf.save(model, tmp_path / "model")
    again = uf.load(tmp_path / "model", into=pyg.SGConv(F, 4, K=12)).eval()
    assert torch.equal(again(X, PATH), out) and len(uf.trace(again).hops) == len(uf.trace(model).hops)
    torch.testing.assert_close(uf.compress(model, X, PATH)(X, PATH), out, rtol=1e-4, atol=1e-5)


def test_mistakes():
    for wrong in (0, 1, -0.1, "little", True):
        with pytest.raises(InputError, match="between 0 and 1"):
            uf.accelerate(pyg.APPNP(3, 0.1), max_error=wrong)
    with pytest.raises(InputError, match=r"layers of several hops \(APPNP.* has none"):
        uf.accelerate(nn.Sequential(pyg.GCNConv(4, 4)), max_error=0.1)
    with pytest.raises(InputError, match="decides at every hop; use entries='edge'"):
        uf.sparsify(pyg.APPNP(3, 0.1), edge_sparsity=0.5, entries="unit", max_error=0.1)
