"""`unifews.transforms`: alone, composed, and beside PyG's own."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from method_cases import graph_of, words
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import GDC, Compose

import unifews as uf
from unifews.errors import InputError
from unifews.transforms import Propagate, Thin

GRAPH = graph_of()


def data():
    return Data(x=torch.from_numpy(words()), edge_index=torch.from_numpy(GRAPH.to_edge_index()))


def test_thin_is_the_function():
    given = data()
    found = Thin("k-neighbor", k=2, seed=3)(given)
    assert torch.equal(found.edge_index, uf.thin(given, "k-neighbor", k=2, seed=3).edge_index)
    by_x = Thin("unifews", keep=30, use_x=True)(given)
    assert torch.equal(by_x.edge_index, uf.thin(given, "unifews", keep=30, x=given.x).edge_index)


def test_propagate_is_the_function():
    given, transform = data(), Propagate("appnp", hops=10, edge_sparsity=0.5, alpha=0.2)
    found = transform(given)
    expected = uf.propagate(GRAPH, words(), uf.Appnp(0.2), hops=10, edge_sparsity=0.5)
    assert np.array_equal(found.x.numpy(), expected.embedding)
    assert transform.trace.edge_sparsity == expected.trace.edge_sparsity
    assert torch.equal(given.x, data().x)  # a transform copies its data
    beside = Propagate("sgc", hops=2, out="diffused")(given)
    assert torch.equal(beside.x, given.x) and beside.diffused.shape == given.x.shape


def test_hops_as_sign_has_them():
    found = Propagate("sgc", hops=3, every_hop=True)(data())
    hops = uf.propagate(GRAPH, words(), "sgc", hops=3, every_hop=True).hop_embeddings
    for hop in (1, 2, 3):
        assert np.allclose(found[f"x{hop}"].numpy(), hops[hop], atol=1e-6)
    assert torch.equal(found.x, data().x)


@pytest.mark.parametrize(
    "transform, diffusion",
    [
        (Propagate("ppr", alpha=0.15, max_error=1e-3), dict(method="ppr", alpha=0.15)),
        (Propagate("heat", time=3.0, max_error=1e-3), dict(method="heat", t=3.0)),
    ],
)
def test_diffused_features_are_those_of_pyg_gdc(transform, diffusion):
    exact = GDC(
        normalization_in="sym",
        normalization_out=None,
        diffusion_kwargs=diffusion,
        sparsification_kwargs=dict(method="threshold", eps=0.0),
    )(data())
    dense = torch.zeros(GRAPH.num_nodes, GRAPH.num_nodes)
    dense[tuple(exact.edge_index)] = exact.edge_attr
    expected = dense.T @ data().x
    assert torch.linalg.norm(transform(data()).x - expected) < 2e-3 * torch.linalg.norm(expected)


def test_composed_copied_and_shown():
    both = Compose([Thin("unifews", sparsity=0.5), Propagate("ppr", max_error=0.05)])
    found = copy.deepcopy(both)(data())
    assert found.num_edges == pytest.approx(GRAPH.num_edges / 2, abs=2)
    assert repr(both.transforms[0]) == "Thin('unifews', sparsity=0.5)"
    assert repr(both.transforms[1]) == "Propagate('ppr', max_error=0.05)"
    assert all(isinstance(value, torch.Tensor) for _, value in found)


def test_mistakes():
    with pytest.raises(InputError, match=r"needs features, and this Data has no `x`; set data\.x"):
        Propagate("ppr", max_error=0.1)(Data(edge_index=data().edge_index, num_nodes=60))
    with pytest.raises(InputError, match="one kind of node"):
        Propagate("sgc")(HeteroData())
    with pytest.raises(InputError, match="`time` belongs to the scheme 'heat'"):
        Propagate("ppr", time=3.0, max_error=0.1)
    with pytest.raises(InputError, match="give one of `sparsity`"):
        Thin("unifews")
    with pytest.raises(InputError, match="Did you mean 'dspar'"):
        Thin("dspr", sparsity=0.5)(data())
