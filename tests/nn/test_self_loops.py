"""Self-loops that a graph already has, in an edge_index and in a sparse matrix, which PyG treats differently."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.nn import APPNP, GCN2Conv, GCNConv, SGConv, TAGConv

import unifews as uf

N, F = 30, 8
CONVS = {
    "gcn": lambda: GCNConv(F, 5),
    "improved": lambda: GCNConv(F, 5, improved=True),
    "without": lambda: GCNConv(F, 5, add_self_loops=False),
    "gcn2": lambda: GCN2Conv(F, 0.1),
    "sgc": lambda: SGConv(F, 5, K=2),
    "tag": lambda: TAGConv(F, 5, K=2),
    "appnp": lambda: APPNP(K=3, alpha=0.1),
}
KINDS = {
    "csr": lambda dense: dense.to_sparse_csr(),
    "coo": lambda dense: dense.to_sparse_coo().coalesce(),
    "edge_index": lambda dense: dense.nonzero().T.contiguous(),
}


class Model(torch.nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x, edges):
        return self.conv(x, x, edges) if isinstance(self.conv, GCN2Conv) else self.conv(x, edges)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONVS)
def test_outputs_are_those_of_pyg(name, kind):
    torch.manual_seed(61)
    dense = (torch.rand(N, N) < 0.2).float()
    dense = ((dense + dense.T) > 0).float().fill_diagonal_(0)
    dense[range(10), range(10)] = 1.0
    edges, x, model = KINDS[kind](dense), torch.randn(N, F), Model(CONVS[name]()).eval()
    with torch.no_grad():
        expected = model(x, edges)
        for other in (uf.accelerate(model).eval(), uf.compress(uf.sparsify(model).eval(), x, edges)):
            assert (other(x, edges) - expected).abs().max() <= 3e-7 * expected.abs().max()
