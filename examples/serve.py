"""Train a pruned model, compress it, answer for single nodes, store it without pickle and load it again.

python examples/serve.py --nodes 20000
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GCN

import unifews as uf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--nodes", type=int, default=20_000)
parser.add_argument("--epochs", type=int, default=60)
how = parser.parse_args()

data = uf.powerlaw(how.nodes, 20 * how.nodes, num_features=64)
x, y = torch.from_numpy(data.x), torch.from_numpy(data.y).long()
edge_index = torch.from_numpy(data.graph.to_edge_index())

torch.manual_seed(0)
model = uf.sparsify(GCN(64, 128, 2, int(y.max()) + 1), edge_sparsity=0.8, weight_sparsity=0.9)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(how.epochs):
    optimizer.zero_grad()
    cross_entropy(model(x, edge_index), y).backward()
    optimizer.step()

served = uf.compress(model, x, edge_index)  # packed weights; its outputs are compared with the model's
print(served)
served.predict(nodes=[0])
began = perf_counter()
scores = served.predict(nodes=[17])
print(f"node 17 is of class {int(scores.argmax())}, {1e3 * (perf_counter() - began):.2f} ms")
with TemporaryDirectory() as folder:
    served.save(Path(folder) / "served")  # safetensors and JSON
    again = uf.load(Path(folder) / "served").bind(x, edge_index)
    difference = (again.predict(nodes=[17]) - scores).abs().max()
    print(f"loaded again, the scores differ by {float(difference):.1g}")
