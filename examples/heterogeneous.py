"""A heterogeneous graph: thin every relation, and prune the layers of each.

python examples/heterogeneous.py --nodes 2000
"""

import argparse

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

import unifews as uf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--nodes", type=int, default=2_000)
parser.add_argument("--epochs", type=int, default=40)
how = parser.parse_args()

generator = torch.Generator().manual_seed(0)
papers, authors = how.nodes, how.nodes // 2
data = HeteroData()
data["paper"].x = torch.randn(papers, 32, generator=generator)
data["author"].x = torch.randn(authors, 16, generator=generator)
writes = torch.stack([torch.randint(n, (6 * papers,), generator=generator) for n in (authors, papers)])
data["author", "writes", "paper"].edge_index = writes
data["paper", "written_by", "author"].edge_index = writes.flip(0)
y = (data["paper"].x[:, 0] > 0).long()


class Network(torch.nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.first = HeteroConv(
            {
                ("author", "writes", "paper"): SAGEConv((16, 32), width),
                ("paper", "written_by", "author"): SAGEConv((32, 16), width),
            }
        )
        self.second = HeteroConv({("author", "writes", "paper"): SAGEConv(width, 2)})

    def forward(self, x_dict, edge_index_dict):
        hidden = {name: value.relu() for name, value in self.first(x_dict, edge_index_dict).items()}
        return self.second(hidden, edge_index_dict)["paper"]


def train(model, data):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(how.epochs):
        optimizer.zero_grad()
        cross_entropy(model(data.x_dict, data.edge_index_dict), y).backward()
        optimizer.step()
    return float((model(data.x_dict, data.edge_index_dict).argmax(1) == y).float().mean())


for name, given, model in (
    ("all edges", data, uf.accelerate(Network())),
    (
        "half of each relation",
        uf.thin(data, "unifews", sparsity=0.5),
        uf.accelerate(Network()),
    ),
    (
        "half of the propagation, a tenth of the weights",
        data,
        uf.sparsify(Network(), edge_sparsity=0.5, weight_sparsity=0.9),
    ),
):
    print(f"{name}: training accuracy {100 * train(model, given):.1f} %")
