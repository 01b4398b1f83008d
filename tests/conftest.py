"""Hypothesis draws the same examples every time: a red test means the code changed, not the dice."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "unifews", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("unifews")
