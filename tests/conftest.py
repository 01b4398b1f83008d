"""Hypothesis draws the same examples every time: a red test means the code changed, not the dice."""

from __future__ import annotations

import os

# Waiting threads sleep: spinning ones slow each other down many times where tests share their cores. Read when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "unifews", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("unifews")


@pytest.fixture
def estimates_on_any_size(monkeypatch):
    """`max_error` estimates its error on small graphs too, on which all hops would take no longer."""
    monkeypatch.setattr("unifews.propagation.tolerance.METHODS", ("lanczos",))
