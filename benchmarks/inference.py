"""How much faster is inference with few weights? The weight product of a layer beside torch's dense one.

python benchmarks/inference.py                                   # 512 → 512 and other layers, 64,000 rows
python benchmarks/inference.py --shapes 512x512 --threads 1 --trials 15

Contestants take turns. Each gets new memory for its result at every call, as `torch.nn.functional.linear` does; "kept" is
both with the memory of their last result. Masks are random.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from unifews.bench.timing import interleave, ratio, summary
from unifews.kernels import aligned, describe, threads_to_use
from unifews.kernels.weights import PackedWeight, sparse_linear, worth

SHAPES = "512x512,128x256,256x40,1433x512,500x512"
SPARSITIES = "0.5,0.7,0.9,0.95"


def products(n: int, inputs: int, outputs: int, sparsity: float, threads: int) -> tuple[float, dict[str, Callable[[], Any]]]:
    """The density, and the same product by every contestant."""
    made = torch.Generator().manual_seed(86_243)
    x, bias = torch.randn(n, inputs, generator=made), torch.randn(outputs, generator=made)
    kept = torch.rand(outputs, inputs, generator=made) >= sparsity
    weight = torch.randn(outputs, inputs, generator=made) * kept
    packed, rows, plain = PackedWeight.pack(weight.numpy()), x.numpy(), bias.numpy()
    theirs, ours = torch.empty(n, outputs), aligned(n, outputs)
    contestants: dict[str, Callable[[], Any]] = {
        "torch": lambda: torch.nn.functional.linear(x, weight, bias),
        "packed": lambda: sparse_linear(rows, packed, plain, threads=threads),
        "torch, kept": lambda: torch.addmm(bias, x, weight.t(), out=theirs),
        "packed, kept": lambda: sparse_linear(rows, packed, plain, threads=threads, out=ours),
    }
    np.testing.assert_allclose(contestants["packed"](), contestants["torch"]().numpy(), rtol=1e-3, atol=1e-3)
    return packed.density, contestants


def weight_products(console: Console, shapes: str, sparsities: str, n: int, trials: int, threads: int) -> list[dict[str, Any]]:
    results = []
    console.print(f"[bold]weight product[/], {n:,} rows: times faster than torch dense (lowest - highest); {describe(threads)}")
    for shape in shapes.split(","):
        inputs, outputs = map(int, shape.split("x"))
        for sparsity in map(float, sparsities.split(",")):
            density, contestants = products(n, inputs, outputs, sparsity, threads)
            interleave(contestants, 1)  # warm
            times = interleave(contestants, trials)
            new, kept = ratio(times["torch"], times["packed"]), ratio(times["torch, kept"], times["packed, kept"])
            dense, few = (summary(times[name])["median"] * 1e3 for name in ("torch", "packed"))
            console.print(
                f"  {inputs:>5} → {outputs:<4} {sparsity:4.2f} removed  {dense:7.1f} ms to {few:6.1f} ms  {_times(new)}"
                f"   kept memory {_times(kept)}{'' if worth(n, inputs, outputs, density) else '   left dense'}"
            )
            results.append({"inputs": inputs, "outputs": outputs, "rows": n, "density": density, "seconds": times})
    return results


def _times(value: dict[str, float]) -> str:
    return f"{value['median']:5.2f}x ({value['low']:.2f} - {value['high']:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=SHAPES, help="inputs x outputs of layers")
    parser.add_argument("--sparsities", default=SPARSITIES)
    parser.add_argument("--rows", type=int, default=64_000)
    parser.add_argument("--trials", type=int, default=9)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--json", type=Path, default=None, help="also write the figures to this file")
    options = parser.parse_args()
    threads = threads_to_use(options.threads)
    torch.set_num_threads(threads)
    console = Console(width=140)
    results = weight_products(console, options.shapes, options.sparsities, options.rows, options.trials, threads)
    if options.json:
        options.json.write_text(json.dumps({"threads": threads, "weight products": results}))


if __name__ == "__main__":
    main()
