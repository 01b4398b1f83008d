"""Draws demo.svg, operations and accuracy side by side: `unifews demo --json | python docs/pictures/demo.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("demo.svg")
LABELS = ("unpruned", "half of the edges removed", "90 % of the propagation and 90 % of the weights removed (default method)")
PARTS = (("propagation", "keep"), ("principal components", "other"), ("classifier", "soft"))
_LEFT, _WIDTH, _ROW = 24, 440, 66
_STYLE = """
    text { font: 14px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
    .dim { fill: #59636e; font-size: 12.5px } .bold { font-weight: 600 } .end { text-anchor: end }
    .card { fill: #f6f8fa; stroke: #d0d7de } .keep { fill: #0072b2 } .soft { fill: #9ecae9 } .other { fill: #d55e00 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .dim { fill: #9da7b3 } .card { fill: #161b22; stroke: #30363d } .keep { fill: #4aa3df }
      .soft { fill: #1f4e70 } .other { fill: #f08a4b }
    }"""


def drawn(result: dict[str, Any]) -> str:
    """The picture of what `unifews demo --json` prints."""
    runs = result["runs"]
    counts = [[run["trace"][name] for name in ("macs", "basis_macs", "transform_macs")] for run in runs]
    most = max(map(sum, counts))
    seeds = len(runs[0]["seeds"])
    rows = []
    for number, (label, run, parts) in enumerate(zip(LABELS, runs, counts, strict=True)):
        top, x = 74 + _ROW * number, float(_LEFT)
        score = f"{run['scores']['test']:.1f} ± {run['scores']['test_std']:.1f} %"
        rows.append(f'<text x="{_LEFT}" y="{top}">{label}</text>')
        for (_, kind), count in zip(PARTS, parts, strict=True):
            width = _WIDTH * count / most
            rows.append(f'<rect class="{kind}" x="{x:.1f}" y="{top + 8}" width="{width:.1f}" height="20"/>')
            x += width
        rows.append(f'<text x="{x + 8:.1f}" y="{top + 23}" class="dim">{sum(parts) / 1e9:.2f} G</text>')
        rows.append(f'<text x="696" y="{top + 23}" class="end bold">{score}</text>')
    bottom = 74 + _ROW * len(runs)
    keys, x = [], _LEFT
    for name, kind in PARTS:
        keys.append(f'<rect class="{kind}" x="{x}" y="{bottom - 12}" width="12" height="12"/>')
        keys.append(f'<text x="{x + 18}" y="{bottom - 1}" class="dim">{name}</text>')
        x += 36 + 7 * len(name)
    name = "Cora" if result["real"] else "a generated stand-in for Cora"
    body = "\n  ".join([*rows, *keys])
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {bottom + 20}" width="720" height="{bottom + 20}" \
role="img" aria-labelledby="title desc">
  <title id="title">APPNP on {name}, unpruned and pruned</title>
  <desc id="desc">Multiply-adds and test accuracy of three models: {_description(runs, counts)}.</desc>
  <style>{_STYLE}
  </style>
  <rect class="card" x="0.5" y="0.5" width="719" height="{bottom + 19}" rx="8"/>
  <text x="{_LEFT}" y="34" class="bold">APPNP on {name}: multiply-adds to classify all nodes</text>
  <text x="696" y="34" class="end bold">test accuracy, {seeds} seeds</text>
  {body}
</svg>
"""


def _description(runs: list[dict[str, Any]], counts: list[list[int]]) -> str:
    each = zip(LABELS, runs, counts, strict=True)
    return "; ".join(f"{label} {sum(parts) / 1e9:.2f} G, {run['scores']['test']:.1f} percent" for label, run, parts in each)


if __name__ == "__main__":
    FILE.write_text(drawn(json.load(sys.stdin)), encoding="utf-8")
