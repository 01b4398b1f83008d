"""How many threads a call means, and that a number the system cannot start is refused before OpenMP ends the process."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import unifews as uf
from unifews.errors import InputError
from unifews.kernels import MAX_THREADS, limit_threads, threads_to_use

pytestmark = pytest.mark.slow

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize("threads", [MAX_THREADS + 1, 50_000, 300_000, np.int64(300_000), 10**30])
def test_more_threads_than_can_be_started_are_refused(threads):
    with pytest.raises(
        InputError, match=rf"`threads` is {int(threads):,}, but .* {CORES:,} cores; .* leave it out for all of them\.$"
    ):
        threads_to_use(threads)
    with pytest.raises(InputError), limit_threads(threads):
        pass


def test_propagate_refuses_them_before_any_work():
    graph = uf.Graph.from_edge_index(np.array([[0, 1], [1, 0]]), num_nodes=2)
    with pytest.raises(InputError, match="`threads` is 300,000"):
        uf.propagate(graph, np.ones((2, 3), dtype=np.float32), hops=2, threads=300_000)


@pytest.mark.parametrize(
    ("said", "meant"), [("3", 3), (" 2 ", 2), ("4,2", 4), ("", CORES), (None, CORES), (str(MAX_THREADS), MAX_THREADS)]
)
def test_what_the_environment_means(monkeypatch, said, meant):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if said is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert threads_to_use(None) == meant
    assert threads_to_use(5) == 5


@pytest.mark.parametrize("said", ["0", "-1", "two", "1.5", "²", ",4", "9" * 5000])
def test_an_environment_that_names_no_number_of_threads(monkeypatch, said):
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    with pytest.raises(InputError, match=r"^OMP_NUM_THREADS is .* not a number of threads; unset it"):
        threads_to_use(None)


def test_an_environment_that_asks_for_too_many(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "50000")
    with pytest.raises(InputError, match=rf"^OMP_NUM_THREADS is 50,000, but at most 1,024 are supported.* {CORES:,} cores"):
        threads_to_use(None)


def test_more_cores_than_threads_can_be_started_are_not_all_used(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(5000))
    assert threads_to_use(None) == MAX_THREADS


CHILD = """
import multiprocessing, sys
import numpy as np, torch, torch_geometric.nn as pyg
import unifews as uf

rng = np.random.default_rng(1)
graph = uf.Graph.from_edge_index(rng.integers(0, 3000, (2, 30_000)), 3000).undirected()
x = rng.standard_normal((3000, 32)).astype(np.float32)
edge_index, tensor = torch.from_numpy(graph.to_edge_index()), torch.from_numpy(x)
torch.manual_seed(0)
model = uf.sparsify(pyg.GCN(32, 16, 2, 5), edge_sparsity=0.5)
model(tensor, edge_index)
model.eval()
fast = uf.compress(model, tensor, edge_index)

def results(_=None):
    with torch.no_grad():
        return [
            uf.propagate(graph, x, edge_sparsity=0.5, threads=2).embedding.tobytes(),
            model(tensor, edge_index).numpy().tobytes(), fast(tensor, edge_index).numpy().tobytes(),
        ]

class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, item):
        from unifews.kernels import threads_to_use
        assert threads_to_use(None) == 1
        return results()

expected = results()
queue = multiprocessing.get_context("fork").SimpleQueue()
child = multiprocessing.get_context("fork").Process(target=lambda: queue.put(results()))
child.start()
assert queue.get() == expected
child.join()
for found in torch.utils.data.DataLoader(Items(), num_workers=2, batch_size=None, multiprocessing_context="fork"):
    assert found == expected
assert results() == expected
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_forked_children_compute_what_their_parent_does():
    """OpenMP's waiting threads do not survive a fork; a child that waited for them would hang for ever."""
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr
