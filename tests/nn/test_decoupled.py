"""A trained decoupled model as one function of features and edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

import unifews as uf
from unifews.nn.decoupled import DecoupledModel, Mlp

DATA = uf.powerlaw(60, 300, num_features=8, seed=239)
EDGES = torch.from_numpy(DATA.graph.to_edge_index())


def head(inputs, layers=2):
    torch.manual_seed(241)
    return Mlp(inputs, 3, width=5, layers=layers).eval()


@pytest.mark.parametrize("edges", [EDGES, EDGES.numpy(), DATA.graph], ids=["torch", "numpy", "graph"])
@pytest.mark.parametrize("kind", [torch.from_numpy, np.asarray, csr_array], ids=["torch", "numpy", "scipy"])
def test_it_propagates_and_classifies(kind, edges):
    how = {"scheme": "appnp", "hops": 4}
    model = DecoupledModel(head(8), None, how)
    expected = model.head(torch.from_numpy(uf.propagate(DATA.graph, DATA.x, **how).embedding))
    scores = model(kind(DATA.x.copy()), edges)
    assert torch.allclose(scores, expected, atol=1e-5) and not scores.requires_grad


@pytest.mark.parametrize("kind", [torch.from_numpy, np.asarray, csr_array], ids=["torch", "numpy", "scipy"])
def test_without_propagation_the_edges_do_not_matter(kind):
    model = DecoupledModel(head(8), None, None)
    scores = model(kind(DATA.x.copy()), EDGES)
    assert torch.equal(scores, model.head(torch.from_numpy(DATA.x)))
    assert torch.equal(scores, model(kind(DATA.x.copy()), EDGES[:, :4]))


def test_a_head_on_principal_coordinates_sees_them_again():
    how = {"scheme": "sgc", "hops": 3, "edge_sparsity": 0.5, "rank": 4}
    out = uf.propagate(DATA.graph, DATA.x, **how)
    model = DecoupledModel(head(out.basis.shape[1]), torch.from_numpy(out.basis), how)
    expected = model.head(torch.from_numpy(out.coordinates))
    assert torch.allclose(model(torch.from_numpy(DATA.x), EDGES), expected, atol=1e-4)
    assert "axes" in model.state_dict()


def test_values_beyond_float32_come_in_the_unit_of_training():
    """(I + T)^160 doubles values at every hop: the embedding is given divided by a power of two, which may differ by graph."""
    how = {"scheme": uf.Sgc(skip="identity"), "hops": 160}
    out = uf.propagate(DATA.graph, DATA.x, **how)
    assert out.exponent > 0
    same, half = (DecoupledModel(head(8, layers=1), None, how, out.exponent + more) for more in (0, 1))
    expected = same.head(torch.from_numpy(out.embedding))
    assert torch.allclose(same(DATA.x, EDGES), expected, rtol=1e-4)
    bias = same.head.layers[0].bias
    assert torch.allclose(half(DATA.x, EDGES) - bias, (expected - bias) / 2, rtol=1e-3)


@pytest.mark.parametrize("axes", [None, torch.eye(8)[:, :5]], ids=["input axes", "principal axes"])
@pytest.mark.parametrize("how", [None, {"scheme": "appnp", "hops": 2}], ids=["mlp", "appnp"])
def test_features_of_another_width_are_told(axes, how):
    model = DecoupledModel(head(8 if axes is None else 5), axes, how)
    with pytest.raises(uf.UnifewsError, match="x has 3 features, but this model was trained on 8"):
        model(np.zeros((60, 3), dtype=np.float32), EDGES)
