"""Small random graphs, random removals, and one pruned walk that tells what every hop removed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import strategies as st
from real_data import FOLDER

import unifews as uf
from unifews.io.graphs import read_graph, read_matrix
from unifews.theory import HopMatrix, removed_matrix

needs_data = [
    pytest.mark.data,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="the real graphs are not on this machine (UNIFEWS_DATA)"),
]


def real(name, features=None):
    """A real graph and its most frequent features, dense float32."""
    path = FOLDER / f"{name}.npz"
    x = read_matrix(path, dense=False)
    if features is not None:
        often = np.argsort(-np.asarray(abs(x).sum(axis=0)).ravel(), kind="stable")[:features]
        x = x[:, often]
    return read_graph(path), np.asarray(x.todense(), dtype=np.float32)


def random_graph(rng, n, density=0.3, *, directed=False, weighted=False):
    a = np.triu(rng.random((n, n)) < density, k=1).astype(np.float64)
    if rng.random() < 0.5:
        a[0, 1:] = 1  # a hub
    if weighted:
        a *= rng.uniform(0.2, 3, (n, n)).astype(np.float32)
    a = a * (rng.random((n, n)) < 0.7) + a.T * (rng.random((n, n)) < 0.7) if directed else a + a.T
    v, u = np.nonzero(a.T)
    return uf.Graph.from_edge_index(np.stack([v, u]), n, a[u, v] if weighted else None)


@st.composite
def graphs(draw, least=1, most=14, *, undirected=False):
    """(Graph, generator)"""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    directed = not undirected and draw(st.booleans())
    n, density = draw(st.integers(least, most)), draw(st.sampled_from([0.1, 0.3, 0.8]))
    return random_graph(rng, n, density, directed=directed, weighted=draw(st.booleans())), rng


def random_removal(diffusion, rng, share=None):
    """Υ = T - T̂ for edges that are kept or not by a coin, (u, v) and (v, u) apart; dense."""
    share = rng.random() if share is None else share
    return removed_matrix(diffusion, rng.random(diffusion.graph.num_edges) >= share).toarray()


def matrix_of(diffusion, skip):
    return diffusion.to_scipy(loops=False).toarray() + np.diag(HopMatrix(diffusion, skip).keep)


def exact(s, x, theta):
    """Σ θ_l S^l X."""
    z, total = np.asarray(x, dtype=np.float64), theta[0] * np.asarray(x, dtype=np.float64)
    for weight in theta[1:]:
        z = s @ z
        total = total + weight * z
    return total


def removed_by(s, hops):
    """What each hop of a run left out, R_l = S Ẑ_l - Ẑ_{l+1}, rounding included; from the embeddings of all its hops."""
    hops = [np.asarray(hop, dtype=np.float64) for hop in hops]
    return [s @ before - after for before, after in pairwise(hops)]
