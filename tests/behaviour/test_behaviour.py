"""Recorded results of the calls in `calls`: a change that should change nothing leaves them as they are."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from calls import CALLS, EXTRAS, packed

from unifews.kernels import native

RECORDED = Path(__file__).with_name("recorded.npz")
TOLERANCE = 1e-6
"""Of the largest value of an array, and of a single number. Measured between the kernels' instruction sets, ten of OpenBLAS and
those of torch: 7e-7 and less, apart from the calls below."""
LOOSER = {
    "blocks_on_principal_components": (0.02, "an entry lies at its threshold: the rounding of the PCA decides on it (9e-4)"),
    "weighted_directed_mean": (0.02, "an entry lies at its threshold: the rounding of the PCA decides on it (9e-3)"),
    "gatv2_columns": (1e-4, "four steps of Adam through a softmax (5e-6)"),
    "train_appnp": (0.05, "9 of 800 entries of hop 1 lie at its threshold; later hops remove that many more"),
    "experiment_of_the_paper": (0.05, "four epochs of training: predictions of 1,000 nodes (5e-3)"),
}
SCORES = re.compile(r"(^|\.)(scores|seeds|against_unpruned)\.")
"""Results of short trainings, in which Adam turns rounding into steps of full size: of some 22 evaluation nodes, one that tips
is 5 points of 100."""
POINTS = 25.0


FAST = [name for name in CALLS if not name.startswith(("train_", "command", "experiment_", "exported_"))]
SLOW = ("experiment_", "exported_")
CASES = [pytest.param(name, "base", marks=[pytest.mark.slow] if name.startswith(SLOW) else []) for name in CALLS] + [
    (name, level) for level in native.levels() if level != "base" for name in FAST
]


@pytest.fixture
def level(request):
    before = native.level()
    native.use_level(request.param)
    yield request.param
    native.use_level(before)


def close(name, key, names, found, expected):
    """Whether an array, or the vector of single numbers, is the recorded one."""
    tolerance = LOOSER.get(name, (TOLERANCE, ""))[0]
    if key != "numbers":
        return np.abs(found - expected) <= tolerance * np.abs(expected).max(initial=0)
    scores = np.array([bool(SCORES.search(each)) for each in names], dtype=bool)
    return np.abs(found - expected) <= np.where(scores, POINTS, tolerance * np.abs(expected))


@pytest.mark.parametrize(("name", "level"), CASES, indirect=["level"])
def test_results_are_those_recorded(name, level, tmp_path):
    """Where they should change: python tools/behaviour.py --store."""
    for package in EXTRAS.get(name, ()):
        pytest.importorskip(package)
    found = packed(CALLS[name](tmp_path))
    with np.load(RECORDED) as file:
        recorded = {key.partition("/")[2]: file[key] for key in file.files if key.partition("/")[0] == name}
    assert found.keys() == recorded.keys()
    names = recorded["names"]
    assert np.array_equal(found["names"], names)
    for key, expected in recorded.items():
        assert found[key].shape == expected.shape and found[key].dtype == expected.dtype, key
        if expected.dtype.kind != "U":
            same = close(name, key, names, found[key], expected)
            where = names if key == "numbers" else np.arange(same.size).reshape(same.shape)
            assert same.all(), (key, where[~same][:9], found[key][~same][:9], expected[~same][:9])


def test_looser_tolerances_are_of_calls_that_exist():
    assert LOOSER.keys() <= CALLS.keys() and EXTRAS.keys() <= CALLS.keys()
