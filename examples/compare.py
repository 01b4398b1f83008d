"""Compare pruning methods on your own data: the same model, equal shares of edges removed, several seeds.

python examples/compare.py --nodes 2000 --methods unifews,random,dspar
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import unifews as uf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--nodes", type=int, default=2_000)
parser.add_argument("--methods", default="unifews,random,dspar,k-neighbor")
parser.add_argument("--epochs", type=int, default=100)
parser.add_argument("--seeds", type=int, default=2)
how = parser.parse_args()

made = uf.powerlaw(how.nodes, 10 * how.nodes, num_features=32)
data = uf.Dataset("mine", made.graph, made.x, made.y)  # or the name of one, such as "cora"
with TemporaryDirectory() as folder:  # name a folder of your own, and finished runs are never repeated
    comparison = uf.compare(
        data,
        model="gcn",
        methods=how.methods.split(","),
        edge_sparsity=[0.5, 0.8],
        seeds=how.seeds,
        epochs=how.epochs,
        ledger=Path(folder),
    )
print(comparison)
