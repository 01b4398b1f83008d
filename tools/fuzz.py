"""Damage files of every format in thousands of ways and read them: `python tools/fuzz.py --format all --count 1000 --seed 7`.

Prints what came of the tries with each format, then the first failures, and exits with 1 if there were some.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "fuzz"))

from campaign import OUTCOMES, run
from formats import FORMATS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--format", default="all", choices=["all", *FORMATS])
    parser.add_argument(
        "--count",
        type=int,
        default=1000,
        help="mutations of each format (default: 1000)",
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--failures",
        type=int,
        default=20,
        help="failures to print of each format (default: 20)",
    )
    given = parser.parse_args()
    print(f"{'format':<24}{'tries':>8}" + "".join(f"{name:>8}" for name in OUTCOMES))
    failures = []
    for name in FORMATS if given.format == "all" else [given.format]:
        report = run(name, given.count, given.seed)
        counts = "".join(f"{report.counts[outcome]:>8}" for outcome in OUTCOMES)
        print(f"{name:<24}{report.counts.total():>8}{counts}", flush=True)
        failures.append(report.failures)
    for found in failures:
        print(*found[: given.failures], sep="\n", end="\n" if found else "")
    return int(any(failures))


if __name__ == "__main__":
    sys.exit(main())
