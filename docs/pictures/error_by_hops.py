"""Draws error-by-hops.svg, the error of `propagate(max_error=...)` after each hop: `python docs/pictures/error_by_hops.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import unifews as uf
from unifews.report.figures import COLOURS, Axis, Mark, Plot
from unifews.report.vector import draw, to_svg

FILE = Path(__file__).with_name("error-by-hops.svg")
HOPS = range(2, 13)


def curves() -> dict[str, list[float]]:
    """Relative errors on PubMed, APPNP with 20 hops."""
    data = uf.load_dataset("pubmed")
    whole = uf.propagate(data.graph, data.x, "appnp", 20).embedding
    by_error = [uf.propagate(data.graph, data.x, max_error=0.05, error_norm="frobenius", degree=hops) for hops in HOPS]
    theta = uf.Appnp().coefficients(20)
    first = [uf.propagate(data.graph, data.x, uf.Polynomial(theta[: hops + 1])).embedding for hops in HOPS]

    def relative(values: np.ndarray) -> float:
        return float(np.linalg.norm(values - whole) / np.linalg.norm(whole))

    return {
        "the scheme's own first hops": [relative(each) for each in first],
        "max_error: estimated": [each.error for each in by_error],
        "max_error: true": [relative(each.embedding) for each in by_error],
    }


def main() -> None:
    found = curves()
    marks = [
        Mark(name, list(HOPS), values, colour=COLOURS[number], dash="dot" if "estimated" in name else "solid")
        for number, (name, values) in enumerate(found.items())
    ]
    plot = Plot(marks, Axis("hops"), (Axis("relative error", "log"),))
    FILE.write_text(to_svg(draw(plot, "APPNP on PubMed")), encoding="utf-8")


if __name__ == "__main__":
    main()
