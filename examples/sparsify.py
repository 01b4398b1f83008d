"""Sparsify a PyG model: the same training loop on PyG's layers, on our exact kernels, and pruned.

python examples/sparsify.py --nodes 20000 --epochs 100
"""

import argparse
from time import perf_counter

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GCN

import unifews as uf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--nodes", type=int, default=20_000)
parser.add_argument("--epochs", type=int, default=100)
how = parser.parse_args()

data = uf.powerlaw(how.nodes, 20 * how.nodes, num_features=64)  # or your own x, edge_index and y
x, y = torch.from_numpy(data.x), torch.from_numpy(data.y).long()
edge_index = torch.from_numpy(data.graph.to_edge_index())
shuffled = torch.randperm(how.nodes, generator=torch.Generator().manual_seed(0))
train, test = shuffled.chunk(2)


def accuracy(model):
    model.eval()
    with torch.no_grad():
        return (model(x, edge_index)[test].argmax(1) == y[test]).float().mean()


def seconds_of_training(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    began = perf_counter()
    for _ in range(how.epochs):
        model.train()
        optimizer.zero_grad()
        cross_entropy(model(x, edge_index)[train], y[train]).backward()
        optimizer.step()
    return perf_counter() - began


for name in ("PyG", "accelerated", "sparsified"):
    torch.manual_seed(0)
    model = GCN(x.shape[1], 128, 2, int(y.max()) + 1, dropout=0.5)
    if name == "accelerated":
        model = uf.accelerate(model)
    elif name == "sparsified":
        model = uf.sparsify(model, edge_sparsity=0.5, weight_sparsity=0.9)
    seconds = seconds_of_training(model)
    print(f"{name}: {seconds:.1f} s, test accuracy {100 * accuracy(model):.1f} %")
print(uf.trace(model))
