"""Whatever a caller can get wrong is refused at the door, in a sentence or two that say what to write instead."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse as sp

from unifews import Appnp, Graph, Polynomial, Sgc, UnifewsError, propagate
from unifews.errors import GraphError, InputError, ShapeError, UnknownNameError

GRAPH = Graph.from_edge_index(np.array([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=4)
X = np.ones((4, 3), dtype=np.float32)


def refused(kind, *says, graph=GRAPH, x=X, **options):
    with pytest.raises(kind) as caught:
        propagate(graph, x, **{"hops": 2, **options})
    message = str(caught.value)
    assert isinstance(caught.value, UnifewsError)
    for part in says:
        assert re.search(part, message), message
    sentences = re.split(r"(?<=[.?!])\s+(?=[A-Z`])", message.strip())
    assert 1 <= len(sentences) <= 3 and message.strip()[-1] in ".?!)", message
    assert len(message) < 320, message


def broken(value, *places):
    x = X.copy()
    for row, column in places:
        x[row, column] = value
    return x


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array, sp.csc_array, lambda x: x.astype(np.float64)])
def test_values_that_are_not_finite_are_counted_and_located(kind, value):
    refused(InputError, r"\b2 NaN", r"row 1\b", x=kind(broken(value, (1, 2), (3, 0))))
    refused(InputError, r"\b1 NaN or infinite value,", r"row 3\b", x=kind(broken(value, (3, 1))))


def test_infinities_that_cancel_in_a_sum_are_found():
    x = broken(np.inf, (0, 0))
    x[2, 0] = -np.inf
    refused(InputError, r"\b2 NaN", r"row 0\b", x=x)


def test_torch_values_that_are_not_finite():
    import torch

    refused(InputError, r"\b1 NaN", r"row 2\b", x=torch.from_numpy(broken(np.nan, (2, 2))))


def test_values_too_large_for_float32_are_refused():
    refused(InputError, x=X.astype(np.float64) * 1e300)


def test_rows_must_be_the_nodes():
    refused(ShapeError, "5 rows", "4 nodes", x=np.ones((5, 3)))
    refused(ShapeError, "transposed", x=np.ones((3, 4)))


def test_features_are_a_matrix_of_real_numbers():
    refused(ShapeError, r"\[4\]", r"x\[:, None\]", x=np.ones(4))
    refused(ShapeError, x=np.ones((4, 3, 2)))
    refused(ShapeError, "no columns", x=np.ones((4, 0)))
    refused(InputError, "complex", x=np.ones((4, 3), dtype=complex))
    refused(InputError, x=np.full((4, 3), "a"))
    refused(InputError, x=np.full((4, 3), None))


@pytest.mark.parametrize("value", [1, 1.0, -0.1, 2, np.nan, np.inf, True, "0.5", [0.5]])
def test_a_sparsity_is_a_fraction(value):
    refused(InputError, "edge_sparsity", r"\[0, 1\)", edge_sparsity=value)


def test_a_sparsity_in_percent_is_recognised():
    refused(InputError, r"edge_sparsity=0\.5", edge_sparsity=50)


@pytest.mark.parametrize("name", ["threshold", "relative_threshold"])
@pytest.mark.parametrize("value", [-1, -1e-9, np.nan, True, "0.1", [0.1]])
def test_a_threshold_is_a_magnitude(name, value):
    refused(InputError, name, **{name: value})


def test_only_one_way_to_say_how_much():
    refused(InputError, "edge_sparsity", "threshold=0.1", edge_sparsity=0.5, threshold=0.1)
    refused(InputError, "one of", relative_threshold=0.5, threshold=0.1)


@pytest.mark.parametrize("hops", [0, -3, 2.0, 2.5, True, "2", 60_001])
def test_hops_are_a_whole_number_of_steps(hops):
    refused(InputError, "hops", hops=hops)


def test_hops_of_a_polynomial_are_its_own():
    refused(InputError, "3 coefficients", scheme=Polynomial([1, 1, 1]), hops=5)


@pytest.mark.parametrize(
    "option, value, near",
    [
        ("scheme", "appmp", "'appnp'"),
        ("entries", "blocks", "'block'"),
        ("basis", "principle", "'principal'"),
        ("scheme", "zzz", "Known: appnp, heat, ppr, sgc"),
        ("entries", None, "block"),
        ("basis", 3, "input"),
    ],
)
def test_a_misspelt_name_gets_a_suggestion(option, value, near):
    refused(UnknownNameError, re.escape(near), **{option: value})


@pytest.mark.parametrize("scheme", [None, 3, ["appnp"], Appnp])
def test_a_scheme_is_a_name_or_an_object(scheme):
    refused(InputError, "scheme", scheme=scheme)


@pytest.mark.parametrize("alpha", [0, -0.1, 1.1, np.nan, np.inf])
def test_alpha_is_a_share(alpha):
    with pytest.raises(InputError, match=r"\(0, 1\]"):
        Appnp(alpha)


@pytest.mark.parametrize("make", [Sgc, lambda skip: Appnp(skip=skip), lambda skip: Polynomial([1, 1], skip=skip)])
def test_a_misspelt_skip_gets_a_suggestion(make):
    with pytest.raises(UnknownNameError, match="Did you mean 'identity'"):
        make("identiti")


@pytest.mark.parametrize("coefficients", [[], [1], [1, np.nan], [np.inf, 1]])
def test_a_polynomial_has_finite_coefficients(coefficients):
    with pytest.raises(InputError, match="coefficients"):
        Polynomial(coefficients)


@pytest.mark.parametrize("rank", [0, -1, 4, 2.5, True, "2"])
def test_a_rank_is_a_number_of_axes(rank):
    refused(InputError, "rank", rank=rank)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_threads_are_at_least_one(threads):
    refused(InputError, "threads", threads=threads)


@pytest.mark.parametrize("r", [-0.1, 1.1, np.nan])
def test_r_lies_between_zero_and_one(r):
    refused(InputError, r"\[0, 1\]", r=r)


@pytest.mark.parametrize("graph", [None, np.eye(4), sp.eye_array(4), (np.zeros((2, 1)), 4)])
def test_a_graph_is_a_graph(graph):
    refused(GraphError, "Graph.from_", graph=graph)


def test_every_hop_must_have_been_asked_for():
    with pytest.raises(InputError, match="every_hop=True"):
        _ = propagate(GRAPH, X, hops=2).hop_embeddings
