"""What does dropout cost? Drawing on the way forward and doing the same on the way back, beside torch's own.

python benchmarks/dropout.py                   # the hidden layer of a GCN on the arxiv graph, 169,343 x 256
python benchmarks/dropout.py --rows 2485 --width 512
"""

from __future__ import annotations

import argparse

import torch
from data import arguments
from rich.console import Console

from unifews.experiments.bench import interleave, ratio, summary
from unifews.nn.ops.dropout import dropout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=169_343)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--trials", type=int, default=7)
    options = arguments(parser, rows=300, width=16, trials=1)
    x = torch.randn(options.rows, options.width)
    given = x.clone().requires_grad_()
    grad = torch.ones_like(x)

    def both(drop: object) -> object:
        given.grad = None
        out = drop(given, 0.5, True)  # type: ignore[operator]
        out.backward(grad)
        return out

    runs = {
        "torch, forward": lambda: torch.nn.functional.dropout(x, 0.5, True),
        "ours, forward": lambda: dropout(x, 0.5, True),
        "torch, both ways": lambda: both(torch.nn.functional.dropout),
        "ours, both ways": lambda: both(dropout),
    }
    interleave(runs, 1)  # warm
    times, console = interleave(runs, options.trials), Console(width=110)
    for name, seconds in times.items():
        each = summary(seconds)
        console.print(f"{name:<18} {each['median']:.4f} s ({each['low']:.4f} - {each['high']:.4f})")
    for way in ("forward", "both ways"):
        gain = ratio(times[f"torch, {way}"], times[f"ours, {way}"])
        console.print(f"{way}: {gain['median']:.1f}x ({gain['low']:.1f} - {gain['high']:.1f})")


if __name__ == "__main__":
    main()
