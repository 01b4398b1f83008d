"""Recorded results of the calls in `calls`: a change that should change nothing leaves them as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from calls import CALLS, packed

from unifews.kernels import native

RECORDED = Path(__file__).with_name("recorded.npz")
TRAINED = ("train_", "commands")  # scores of few nodes: a prediction that tips by rounding is a percent of them


@pytest.fixture
def base():
    before = native.level()
    native.use_level("base")
    yield
    native.use_level(before)


@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_recorded(name, tmp_path, base):
    """Where they should change: python tools/behaviour.py --store."""
    found = packed(CALLS[name](tmp_path))
    with np.load(RECORDED) as file:
        recorded = {key.partition("/")[2]: file[key] for key in file.files if key.partition("/")[0] == name}
    assert found.keys() == recorded.keys()
    for key, expected in recorded.items():
        assert found[key].shape == expected.shape and found[key].dtype == expected.dtype, key
        if expected.dtype.kind == "U":
            assert np.array_equal(found[key], expected)
        elif not name.startswith(TRAINED):
            scale = float(np.abs(expected).max(initial=0)) or 1.0
            np.testing.assert_allclose(found[key], expected, rtol=1e-3, atol=1e-4 * scale, err_msg=key)
