"""Graphs larger than memory: time, peak memory and bytes, each run a process of its own as a user would start it.

python benchmarks/scale.py grow --folder DIR                      # 15 M and 150 M edges, f = 32, 20 hops at .9, 12 GB
python benchmarks/scale.py grow --folder DIR --edges 1.5e9        # 50 M nodes: about an hour, 60 GB of disk
python benchmarks/scale.py error --folder DIR --memory 8GB        # --max-error .05 against unpruned; --edges, --features
                                                                  # (unpruned has --unpruned-memory: it needs more)
python benchmarks/scale.py memory --folder DIR                    # products size: a third of the memory against all of it
python benchmarks/scale.py kill --folder DIR                      # killed at random moments: the same bytes each time
python benchmarks/scale.py workers --folder DIR                   # partitioned over 2 and 4 processes: bytes sent

Graphs are generated (`unifews data generate powerlaw`, 30 edges a node) into DIR once and stay there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
from data import SMOKE, arguments
from rich.console import Console
from rich.table import Table

UNIFEWS = [sys.executable, "-m", "unifews"]
DEGREE = 30
HOPS = 20
PRODUCTS = (2_449_029, 123_718_280, 100)  # nodes, directed edges, features
TOY = (100, 3_000, 32)  # the same of --scale smoke
TRAFFIC = ("sent_bytes", "unpruned_bytes", "share")
CONSOLE = Console(width=130)


@dataclass(frozen=True)
class Run:
    """What one process took."""

    seconds: float
    peak: int
    """Bytes of resident memory, pages of mapped files included."""
    report: dict[str, Any]
    cpu: float = 0.0
    """Seconds of all threads, which a busy machine changes less than those of the clock."""

    @property
    def hops(self) -> float:
        """Seconds of hops alone."""
        return sum(hop["seconds"] for hop in self.report["hops"])


def command(*arguments: object) -> Run:
    """Run `unifews …  --json`."""
    return process([*UNIFEWS, *map(str, arguments), "--json"])


def process(arguments: list[str]) -> Run:
    began = perf_counter()
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout and child.stderr
        out, error = child.stdout.read(), child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(arguments)}\n{error}")
    return Run(perf_counter() - began, usage.ru_maxrss * 1024, json.loads(out), usage.ru_utime + usage.ru_stime)


def graph(folder: Path, nodes: int, edges: int, features: int) -> Path:
    """A generated dataset, made if it is not there yet."""
    place = folder / f"powerlaw-{edges}-{features}"
    if not place.exists():
        size = f"--num-nodes={nodes}", f"--num-edges={edges}", f"--num-features={features}"
        made = command("data", "generate", "powerlaw", *size, f"--out={place}", "--memory=4GB")
        CONSOLE.print(f"made {place.name}: {made.seconds:.0f} s, peak {made.peak / 1e9:.1f} GB")
    return place


def propagate(place: Path, out: Path, *options: str) -> Run:
    return command("propagate", place, f"--out={out}", *options)


def gigabytes(number: float) -> str:
    return f"{number / 1e9:.1f} GB"


def grow(folder: Path, sizes: list[int], memory: str, scheme: str) -> list[dict[str, Any]]:
    """How time and memory grow with the graph."""
    table, rows = Table("edges", "nodes", "whole run", "peak", "hop at .9", "hop unpruned", "times", "ns per kept MAC"), []
    for edges in sizes:
        place, out = graph(folder, edges // DEGREE, edges, 32), folder / "p.npy"
        how = f"--memory={memory}", f"--scheme={scheme}", "--overwrite"
        pruned = propagate(place, out, f"--hops={HOPS}", "--edge-sparsity=.9", *how)
        unpruned = propagate(place, out, "--hops=3", *how)
        out.unlink()
        macs = sum(hop["macs"] for hop in pruned.report["hops"])
        row = {
            "edges": edges,
            "seconds": pruned.seconds,
            "peak": pruned.peak,
            "hop": pruned.hops / HOPS,
            "unpruned_hop": unpruned.hops / 3,
            "unpruned_peak": unpruned.peak,
            "macs": macs,
            "scheme": scheme,
            "removed": 1 - macs / (edges * 32 * HOPS),
            "ns_per_mac": 1e9 * pruned.hops / macs,
            "whole_ns_per_mac": 1e9 * pruned.seconds / macs,
        }
        rows.append(row)
        table.add_row(
            f"{edges:,}",
            f"{edges // DEGREE:,}",
            f"{pruned.seconds:.0f} s",
            gigabytes(pruned.peak),
            f"{row['hop']:.2f} s",
            f"{row['unpruned_hop']:.2f} s",
            f"{row['unpruned_hop'] / row['hop']:.1f}x",
            f"{row['ns_per_mac']:.2f} ({row['whole_ns_per_mac']:.2f} with all else)",
        )
        CONSOLE.print(table)
    return rows


def error(folder: Path, sizes: list[int], features: int, limits: tuple[str, str], trials: int) -> list[dict[str, Any]]:
    """`--max-error .05` against all hops unpruned, in turns; time for each of the 20 hops' edges and columns.

    `limits` of memory: that of unpruned hops, and that of `--max-error`.
    """
    table, rows = (
        Table(
            "edges", "columns", "what", "seconds", "lowest - highest", "times", "CPU s", "times", "peak", "ns/edge/column, hop"
        ),
        [],
    )
    for edges in sizes:
        place, out = graph(folder, edges // DEGREE, edges, features), folder / "p.npy"
        unpruned, by_error = (f"--memory={limit}" for limit in limits)
        ways: dict[str, tuple[str, ...]] = {"unpruned": (unpruned,), "max error .05": (by_error, "--max-error=.05")}
        runs: dict[str, list[Run]] = {name: [] for name in ways}
        for _ in range(trials):
            for name, options in ways.items():
                how = f"--hops={HOPS}", "--overwrite", *options
                runs[name].append(propagate(place, out, *how))
        out.unlink()
        whole, whole_cpu = (float(np.median([getattr(run, of) for run in runs["unpruned"]])) for of in ("seconds", "cpu"))
        for (name, each), limit in zip(runs.items(), limits, strict=True):
            seconds, peak = [run.seconds for run in each], max(run.peak for run in each)
            hops = sum(hop["macs"] > 0 for hop in each[0].report["hops"])
            nanoseconds = 1e9 * float(np.median([run.hops for run in each])) / (edges * features * max(hops, 1))
            cpu = float(np.median([run.cpu for run in each]))
            times = whole / float(np.median(seconds))
            rows.append(
                {"edges": edges, "features": features, "what": name, "seconds": seconds, "peak": peak, "limit": limit}
                | {"hops": hops, "times": times, "ns_per_edge_and_column": nanoseconds}
                | {"cpu": cpu, "cpu_ns_per_edge_and_column": 1e9 * cpu / (edges * features * max(hops, 1))}
            )
            spread = f"{min(seconds):.1f} - {max(seconds):.1f}"
            shown = (
                f"{np.median(seconds):.1f}",
                spread,
                f"{times:.1f}x",
                f"{cpu:.1f}",
                f"{whole_cpu / cpu:.1f}x",
                f"{gigabytes(peak)} of {limit}",
                f"{nanoseconds:.3f} ({hops} hops)",
            )
            table.add_row(f"{edges:,}", str(features), name, *shown)
    CONSOLE.print(table)
    return rows


def memory(folder: Path, size: tuple[int, int, int], trials: int) -> list[dict[str, Any]]:
    """A graph of this size, products' unless toy, with a third of the memory that it takes in memory."""
    place, out = graph(folder, *size), folder / "p.npy"
    how = f"--hops={HOPS}", "--edge-sparsity=.9", "--overwrite"
    runs: dict[str, list[Run]] = {"in memory": [], "through files": []}
    for _ in range(trials):
        runs["in memory"].append(propagate(place, out, *how))
        third = runs["in memory"][0].peak // 3
        runs["through files"].append(propagate(place, out, f"--memory={third}", *how))
    out.unlink()
    table = Table("", "seconds", "lowest - highest", "peak")
    for name, each in runs.items():
        seconds = [run.seconds for run in each]
        spread = f"{min(seconds):.1f} - {max(seconds):.1f}"
        table.add_row(name, f"{np.median(seconds):.1f}", spread, gigabytes(max(run.peak for run in each)))
    CONSOLE.print(table)
    ratios = [b.seconds / a.seconds for a, b in zip(*runs.values(), strict=True)]
    CONSOLE.print(f"{np.median(ratios):.2f} times the time ({min(ratios):.2f} - {max(ratios):.2f})")
    return [
        {"what": name, "seconds": [run.seconds for run in each], "peak": [run.peak for run in each]}
        for name, each in runs.items()
    ]


def kill(folder: Path, edges: int, kills: int) -> list[dict[str, Any]]:
    """Killed at random moments until it is done; against a run that was left alone."""
    place, rng = graph(folder, edges // DEGREE, edges, 32), np.random.default_rng(0)
    how = f"--hops={HOPS}", "--edge-sparsity=.9", "--memory=1GB", "--overwrite"
    alone, killed = folder / "alone.npy", folder / "killed.npy"
    seconds = propagate(place, alone, *how).seconds
    rows = []
    for _ in range(kills):
        killed.unlink(missing_ok=True)
        moment = float(rng.uniform(0.1, 0.95) * seconds)
        child = subprocess.Popen(
            [*UNIFEWS, "propagate", str(place), f"--out={killed}", *how], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        sleep(moment)
        child.send_signal(signal.SIGKILL)
        if child.wait() != -signal.SIGKILL:
            CONSOLE.print("done before it could be killed")
        rest = propagate(place, killed, *how).seconds
        same = digest(killed) == digest(alone)
        rows.append({"killed_at": moment, "rest": rest, "same": same})
        result = "the same bytes" if same else "OTHER BYTES"
        CONSOLE.print(f"killed after {moment:.1f} s of {seconds:.1f} s; {rest:.1f} s more; {result}")
    for file in (alone, killed):
        file.unlink()
    return rows


def workers(folder: Path, size: tuple[int, int, int], counts: tuple[int, ...], partition: str) -> list[dict[str, Any]]:
    """Bytes sent by so many processes that share the nodes: with entries removed, with `--max-error`, and of unpruned hops."""
    place, out, rows = graph(folder, *size), folder / "p.npy", []
    table = Table("workers", "what", "sent", "unpruned", "share", "seconds")
    for count, (name, option) in product(
        counts, {".9 removed": "--edge-sparsity=.9", "max error .05": "--max-error=.05"}.items()
    ):
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", *UNIFEWS[1:]]
        how = f"--partition={partition}", f"--hops={HOPS}", option, "--overwrite", "--json"
        run = process([*launch, "propagate", str(place), f"--out={out}", *how])
        traffic = run.report["traffic"]
        rows.append({"workers": count, "what": name, "seconds": run.seconds, **{key: traffic[key] for key in TRAFFIC}})
        sent, unpruned = gigabytes(traffic["sent_bytes"]), gigabytes(traffic["unpruned_bytes"])
        table.add_row(str(count), name, sent, unpruned, f"{traffic['share']:.3f}", f"{run.seconds:.0f}")
    out.unlink()
    CONSOLE.print(table)
    return rows


def digest(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["grow", "error", "memory", "kill", "workers"])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--edges", default="15e6,150e6")
    parser.add_argument("--memory", default="12GB")
    parser.add_argument("--unpruned-memory", default="12GB", help="of the error part: unpruned hops need more")
    parser.add_argument("--features", type=int, default=32, help="columns of the error part")
    parser.add_argument("--scheme", default="appnp")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--partition", default="nodes", help="of workers: nodes, metis, or a file")
    parser.add_argument("--json", type=Path, default=None, help="also write the figures to this file")
    options = arguments(parser, edges="3000", trials=1)
    options.folder.mkdir(parents=True, exist_ok=True)
    toy = options.scale == SMOKE
    size = TOY if toy else PRODUCTS
    sizes = [int(float(size)) for size in options.edges.split(",")]
    if options.part == "grow":
        rows = grow(options.folder, sizes, options.memory, options.scheme)
    elif options.part == "error":
        rows = error(options.folder, sizes, options.features, (options.unpruned_memory, options.memory), options.trials)
    elif options.part == "memory":
        rows = memory(options.folder, size, options.trials)
    elif options.part == "kill":
        rows = kill(options.folder, sizes[0], 1 if toy else 5)
    else:
        rows = workers(options.folder, size, (2,) if toy else (2, 4), options.partition)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
