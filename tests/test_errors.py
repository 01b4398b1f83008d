"""Errors: one tree, and messages that read as sentences."""

from __future__ import annotations

import pytest

from unifews import errors
from unifews.errors import UnifewsError, UnknownNameError, unknown_name


def test_a_misspelt_name_meets_its_nearest_neighbour():
    error = unknown_name("method", "dspr", ["unifews", "dspar"])
    assert str(error) == "no method named 'dspr'. Did you mean 'dspar'? Known: dspar, unifews."


def test_a_name_near_to_nothing_gets_the_list_alone():
    assert str(unknown_name("dataset", "zzz", ["cora"])) == "no dataset named 'zzz'. Known: cora."


def test_an_unknown_name_can_be_caught_in_three_ways():
    for kind in (UnifewsError, KeyError, ValueError):
        with pytest.raises(kind):
            raise UnknownNameError("no such thing")


def test_every_error_hangs_on_the_tree_and_is_drawn_in_it():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) == 7
    for kind in kinds:
        assert issubclass(kind, UnifewsError) and kind.__name__ in errors.__doc__
