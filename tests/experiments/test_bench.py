"""`unifews bench propagation`: what it compares."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from unifews.experiments import bench


@pytest.mark.slow
@pytest.mark.usefixtures("estimates_on_any_size")
def test_an_allowed_error_is_timed_beside_the_unpruned_hops():
    result = bench.run("tiny", trials=2)
    assert result["ratios"]["max_error=0.05 vs our own unpruned"]["median"] > 0
    assert result["ratios"]["max_error=0.05 vs 20 torch.sparse hops"]["median"] > 0
    quality = result["quality"]["max_error=0.05"]
    assert 0 < quality["estimated_error"] <= 0.05 and quality["error"] <= 0.05
    assert quality["macs"] == pytest.approx((1 - quality["sparsity"]) * 20 * result["edges"] * result["features"])
    printed = io.StringIO()
    bench.render(result, Console(file=printed, width=200))
    assert "at max_error=0.05: " in printed.getvalue() and f"{quality['estimated_error']:.3f} estimated" in printed.getvalue()
