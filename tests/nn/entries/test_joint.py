"""Decisions of several processes: every rank takes the same one, from the magnitudes of all."""

from __future__ import annotations

from threading import Barrier, Thread

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg

import unifews as uf
from unifews.distributed.communicator import SingleProcess
from unifews.nn.convs.base import session_of
from unifews.nn.entries.joint import joint_mean, joint_norms, joint_rows, joint_sum

N, F, CLASSES = 30, 20, 3


class Threads(SingleProcess):
    """Ranks that are threads of this process."""

    def __init__(self, rank, size, barrier, shared):
        self.rank, self.size, self._barrier, self._shared = rank, size, barrier, shared

    def all_reduce(self, array):
        self._shared[self.rank] = array.copy()
        self._barrier.wait(20)
        array[...] = sum(self._shared[rank] for rank in range(self.size))
        self._barrier.wait(20)
        return array


def on_two_ranks(work):
    """The results of work(comm) by rank."""
    barrier, shared, results, errors = Barrier(2), {}, {}, []

    def run(rank):
        try:
            results[rank] = work(Threads(rank, 2, barrier, shared))
        except Exception as error:
            errors.append(error)
            barrier.abort()

    threads = [Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results[0], results[1]


def values(rank, rows):
    return torch.randn(rows, 5, generator=torch.Generator().manual_seed(rank))


def test_the_functions_compute_over_the_rows_of_all_ranks():
    every = torch.cat([values(0, 7), values(1, 4)])

    def work(comm):
        own = values(comm.rank, (7, 4)[comm.rank])
        rows, mine = joint_rows(comm, own)
        assert torch.equal(rows, every) and torch.equal(rows[mine], own)
        assert joint_sum(comm, len(own)) == 11
        assert joint_mean(comm, own.flatten()) == pytest.approx(float(every.mean()), rel=1e-6)
        torch.testing.assert_close(joint_norms(comm, own.norm(dim=0)), every.norm(dim=0))
        return True

    assert on_two_ranks(work) == (True, True)


def test_one_process_gets_its_own_values_back():
    x, comm = values(0, 6), SingleProcess()
    assert joint_norms(comm, x) is x and joint_rows(comm, x)[0] is x and joint_sum(comm, 3) == 3
    assert joint_mean(comm, x.flatten()) == float(x.mean()) and joint_mean(comm, x[:0].flatten()) == 0.0


def model_on(comm, **options):
    """A model after one training pass on this rank's own graph."""
    torch.manual_seed(0)
    model = uf.sparsify(pyg.GCN(F, 32, 2, CLASSES), **options)
    session = session_of(model)
    session.comm = comm
    draw = torch.Generator().manual_seed(10 + comm.rank)
    x, edges = torch.randn(N, F, generator=draw), torch.randint(0, N, (2, 100 + 40 * comm.rank), generator=draw)
    model(x * (1 + comm.rank), edges)
    return session.convs


@pytest.mark.parametrize("amount", [{"edge_sparsity": 0.5}, {"edge_threshold": 0.7}], ids=["sparsity", "threshold"])
@pytest.mark.parametrize("entries", ["unit", "block", "feature", "node"])
def test_two_ranks_with_other_graphs_decide_the_same(entries, amount):
    options = dict(entries=entries, inherit=False, **amount)
    first, second = on_two_ranks(lambda comm: model_on(comm, **options))
    alone = model_on(SingleProcess(), **options)
    for one, other, single in zip(first, second, alone, strict=True):
        assert torch.equal(one.columns, other.columns) and torch.equal(one.delta, other.delta)
        assert not torch.equal(one.delta, single.delta)  # a rank alone decides by its own graph
    if entries == "unit":
        assert any(0 < int(conv.columns.sum()) < len(conv.columns) for conv in first)


def test_a_rank_without_edges_takes_part():
    def work(comm):
        torch.manual_seed(0)
        model = uf.sparsify(pyg.GCN(F, 32, 2, CLASSES), edge_sparsity=0.5, entries="block")
        session_of(model).comm = comm
        edges = torch.from_numpy(np.arange(8).reshape(2, 4)) if comm.rank else torch.zeros(2, 0, dtype=torch.long)
        model(torch.randn(N, F, generator=torch.Generator().manual_seed(1)), edges)
        return [float(conv.delta) for conv in session_of(model).convs]

    first, second = on_two_ranks(work)
    assert first == second and first[0] > 0
