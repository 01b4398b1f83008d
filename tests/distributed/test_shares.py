"""How work is cut up for workers: columns, ranges of nodes, METIS."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import unifews as uf
from unifews import Graph
from unifews.distributed.partition import Owners, metis, ranges
from unifews.errors import InputError
from unifews.propagation.distributed import dealt

DATA = uf.powerlaw(500, 8_000, num_features=3, seed=29)


@pytest.mark.parametrize("width", [1, 16, 17, 100, 300, 1_024])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
def test_columns(width, workers):
    shapes = dealt(width, 1, workers)
    blocks = -(-width // 16)
    assert [shape.column for shape in shapes] == np.cumsum([0, *(shape.width for shape in shapes)])[:-1].tolist()
    assert sum(shape.width for shape in shapes) == width and sum(shape.blocks for shape in shapes) == blocks
    assert all(1 <= shape.blocks <= 8 for shape in shapes)
    assert len(shapes) == blocks or len(shapes) % workers == 0
    assert max(shape.blocks for shape in shapes) - min(shape.blocks for shape in shapes) <= 1


@pytest.mark.parametrize("workers", [1, 2, 5, 500])
def test_ranges_have_as_many_edges_and_nodes(workers):
    bounds = ranges(DATA.graph, workers)
    assert bounds[0] == 0 and bounds[-1] == 500 and (np.diff(bounds) > 0).all()
    load = np.diff(DATA.graph.indptr[bounds] + bounds)
    if workers < 500:
        assert load.max() <= 8_500 / workers + DATA.graph.degree.max() + 1
    owners = Owners(bounds)
    for worker in range(workers):
        assert (owners.of(owners.nodes(worker)) == worker).all()


def test_a_hub_leaves_something_for_everybody():
    star = Graph.from_edge_index(np.stack([np.arange(1, 50), np.zeros(49, dtype=int)]), 50)
    assert (np.diff(ranges(star, 4)) > 0).all()


def test_more_workers_than_nodes():
    with pytest.raises(InputError, match="5 workers are too many for 3 nodes; start fewer"):
        ranges(Graph.from_edge_index(np.array([[0], [1]]), 3), 5)


def test_metis_cuts_where_there_is_little_to_cut():
    pairs = np.array([(u, v) for u in range(20) for v in range(20) if u < v and (u < 10) == (v < 10)] + [(3, 17)])
    order = np.random.default_rng(31).permutation(20)
    graph = Graph.from_edge_index(order[pairs.T], 20)  # directed: METIS is told both ways
    found = metis(graph, 2)
    assert len(set(found[order[:10]].tolist())) == len(set(found[order[10:]].tolist())) == 1
    assert sorted(set(found.tolist())) == [0, 1]


def test_without_metis(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(InputError, match=r"pip install 'unifews\[distributed\]'"):
        metis(DATA.graph, 2)
