"""Thin a graph once, and train any PyG model on it with nothing else changed.

python examples/thin.py --nodes 10000 --sparsity 0.5
"""

import argparse

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import unifews as uf
from unifews.transforms import Thin

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--nodes", type=int, default=10_000)
parser.add_argument("--sparsity", type=float, default=0.5)
parser.add_argument("--epochs", type=int, default=50)
how = parser.parse_args()

made = uf.powerlaw(how.nodes, 40 * how.nodes, num_features=32)
whole = Data(
    x=torch.from_numpy(made.x),
    y=torch.from_numpy(made.y).long(),
    edge_index=torch.from_numpy(made.graph.to_edge_index()),
)
train, test = torch.randperm(how.nodes, generator=torch.Generator().manual_seed(0)).chunk(2)


def accuracy(data):
    torch.manual_seed(0)
    model = GraphSAGE(data.num_features, 64, 2, int(data.y.max()) + 1, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(how.epochs):
        optimizer.zero_grad()
        cross_entropy(model(data.x, data.edge_index)[train], data.y[train]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        return (model(data.x, data.edge_index)[test].argmax(1) == data.y[test]).float().mean()


print(f"all {whole.num_edges:,} edges: test accuracy {100 * accuracy(whole):.1f} %")
for method in ("unifews", "random", "k-neighbor"):
    data = Thin(method, sparsity=how.sparsity)(whole)
    print(f"{method}, {data.num_edges:,} edges: {100 * accuracy(data):.1f} %")
