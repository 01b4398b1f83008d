"""What an installed package must do, in an environment with its dependencies and nothing else: `python tools/check_install.py`.

torch and our kernels may each bring a copy of the OpenMP library: both run their threads here, one after the other, and in a
child process after a fork.
"""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import numpy as np
import torch
from torch_geometric.nn import GCN

import unifews as uf


def outputs() -> list[np.ndarray]:
    """Of our kernels, of torch's, and of a model that uses both."""
    data = uf.powerlaw(2_000, 40_000, num_features=32)
    embedding = uf.propagate(data.graph, data.x, max_error=0.05).embedding
    torch.manual_seed(0)
    model = uf.accelerate(GCN(32, 64, 2, 4)).eval()
    x, edge_index = (
        torch.from_numpy(data.x),
        torch.from_numpy(data.graph.to_edge_index()),
    )
    with torch.no_grad():
        return [embedding, (x @ x.T).sum(1).numpy(), model(x, edge_index).numpy()]


def libraries() -> list[str]:
    """Files of OpenMP libraries in this process."""
    try:
        names = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "omp" in line}
    except FileNotFoundError:  # not Linux
        return []
    return sorted(name for name in names if "omp" in name.rsplit("/", 1)[-1])


def child(queue: multiprocessing.Queue) -> None:
    queue.put(outputs())


if __name__ == "__main__":
    here = outputs()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    there = queue.get(timeout=120)
    process.join()
    same = all(np.allclose(one, other, rtol=1e-5, atol=1e-6) for one, other in zip(here, there, strict=True))
    found = "\n  ".join(libraries()) or "none"
    sys.stdout.write(f"unifews {uf.__version__} from {uf.__path__[0]}\nOpenMP libraries:\n  {found}\n")
    sys.stdout.write("parent and child agree\n" if same else "parent and child DIFFER\n")
    sys.exit(not same)
