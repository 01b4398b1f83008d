"""The entry rule, and how much is removed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unifews as uf
from unifews.core.entry import Amounts, survives
from unifews.errors import InputError

SIZES = st.floats(0, 1e6)


def test_ties_are_kept():
    assert survives(0.5, 2.0, 1.0)
    assert survives(-0.5, 2.0, 1.0)
    assert not survives(0.5, 2.0, np.nextafter(1.0, 2))


def test_zeros_are_no_entries_whatever_the_threshold():
    assert not survives(0.0, 3.0, 0.0) and not survives(3.0, 0.0, 0.0) and not survives(0.0, 0.0, 1.0)


def test_a_zero_threshold_keeps_whatever_is_not_zero():
    factor = np.array([-2.0, 0.0, 1e-30, 5.0])
    assert survives(factor, 1.0, 0.0).tolist() == [True, False, True, True]


def test_an_infinite_threshold_keeps_nothing():
    assert not survives([1.0, 1e30], 1.0, np.inf).any()


def test_factors_and_norms_are_broadcast():
    assert survives(np.array([[1.0], [2.0]]), np.array([1.0, 3.0]), 2.5).tolist() == [[False, True], [False, True]]


@given(factor=st.floats(-1e3, 1e3), norm=SIZES, a=SIZES, b=SIZES)
def test_a_larger_threshold_never_keeps_more(factor, norm, a, b):
    assert not survives(factor, norm, max(a, b)) or survives(factor, norm, min(a, b))


@pytest.mark.parametrize(
    ("amounts", "setting"),
    [
        ({"edge_sparsity": 0.5, "edge_threshold": 0.1}, "edge_threshold"),
        ({"edge_sparsity": 0.0, "max_error": 0.1}, "max_error"),
        ({"edge_threshold": 0.5, "relative_threshold": 0.1}, "relative_threshold"),
        ({"weight_sparsity": 0.5, "weight_threshold": 0.1}, "weight_threshold"),
    ],
)
def test_one_amount_for_edges_and_one_for_weights(amounts, setting):
    with pytest.raises(InputError, match=r"=0.* and .* exclude each other; give one of them") as caught:
        Amounts(**amounts)
    assert caught.value.setting == setting


def test_amounts_of_zero_remove_nothing():
    assert not Amounts(edge_sparsity=0, weight_threshold=0.0).prunes_edges
    assert not Amounts(edge_sparsity=0, weight_threshold=0.0).prunes_weights
    both = Amounts(max_error=0.1, weight_sparsity=0.5)
    assert both.prunes_edges and both.prunes_weights
    assert (str(both), str(Amounts())) == ("max_error=0.1, weight_sparsity=0.5", "unpruned")


def test_propagate_names_its_own_argument():
    graph = uf.Graph.from_edge_index([[0, 1], [1, 0]])
    with pytest.raises(InputError, match="`threshold` must be") as caught:
        uf.propagate(graph, np.ones((2, 1)), threshold=-1)
    assert caught.value.setting == "threshold"
    with pytest.raises(InputError, match=r"edge_sparsity=0\.5 and threshold=1 exclude"):
        uf.propagate(graph, np.ones((2, 1)), threshold=1, edge_sparsity=0.5)
