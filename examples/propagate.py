"""Propagate features over a big graph to an allowed error, and train a classifier on the embedding.

python examples/propagate.py --nodes 200000 --max-error 0.05
"""

import argparse
from time import perf_counter

import torch
from torch.nn.functional import cross_entropy

import unifews as uf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--nodes", type=int, default=200_000)
parser.add_argument("--max-error", type=float, default=0.05)
parser.add_argument("--epochs", type=int, default=30)
how = parser.parse_args()

data = uf.powerlaw(how.nodes, 20 * how.nodes, num_features=64)
y = torch.from_numpy(data.y).long()
train, test = torch.randperm(how.nodes, generator=torch.Generator().manual_seed(0)).chunk(2)


def classify(embedding):
    """Test accuracy of a small network on standardised features."""
    torch.manual_seed(0)
    x = torch.from_numpy(embedding)
    x = (x - x[train].mean(0)) / (x[train].std(0) + 1e-6)
    model = torch.nn.Sequential(
        torch.nn.Linear(x.shape[1], 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, int(y.max()) + 1),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(how.epochs):
        for part in torch.randperm(len(train)).split(4096):
            optimizer.zero_grad()
            cross_entropy(model(x[train[part]]), y[train[part]]).backward()
            optimizer.step()
    return (model(x[test]).argmax(1) == y[test]).float().mean()


for name, options in (
    ("all 20 hops", {}),
    (f"max_error={how.max_error}", {"max_error": how.max_error}),
):
    uf.propagate(data.graph, data.x, "appnp", **options)  # the first call of a process also starts threads
    began = perf_counter()
    result = uf.propagate(data.graph, data.x, "appnp", **options)
    embedding = result.embedding
    print(f"{name}: {perf_counter() - began:.2f} s, test accuracy {100 * classify(embedding):.1f} %")
print(f"estimated error {result.error:.3f}: {result.plan or 'all hops'}")
