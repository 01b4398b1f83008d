"""Kernels at every instruction set of this machine."""

from __future__ import annotations

import pytest

from unifews.kernels import native


@pytest.fixture(params=native.levels())
def level(request):
    before = native.level()
    native.use_level(request.param)
    yield request.param
    native.use_level(before)
