"""Whether a change of the code changes any result: hashes of the calls in tests/behaviour, before and after it.

    python tools/behaviour.py --record before.json      # with the old code
    python tools/behaviour.py --check before.json       # with the new one: names what differs, exit code 1
    python tools/behaviour.py --store                   # the arrays that the test suite compares with, where they should change

Bits differ between instruction sets and versions of libraries, so hashes are compared on one machine only.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parents[1] / "tests" / "behaviour"
sys.path.insert(0, str(FOLDER))


def results() -> dict[str, dict[str, np.ndarray]]:
    """What every call returns whose packages are installed."""
    from calls import CALLS, EXTRAS

    found = {}
    for name, call in CALLS.items():
        if missing := [package for package in EXTRAS.get(name, ()) if find_spec(package) is None]:
            print(f"{name} is left out: it needs {' and '.join(missing)}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[name] = call(Path(place))
    return found


def hashed(values: dict[str, np.ndarray]) -> str:
    whole = sha256()
    for name, array in sorted(values.items()):
        whole.update(f"{name} {array.dtype.str} {array.shape}".encode())
        whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--record", type=Path, metavar="FILE")
    action.add_argument("--check", type=Path, metavar="FILE")
    action.add_argument("--store", action="store_true")
    wanted = parser.parse_args()
    if wanted.store:
        from unifews.kernels import native

        native.use_level("base")  # which every machine has
        from calls import packed

        arrays = {f"{call}/{name}": array for call, values in results().items() for name, array in packed(values).items()}
        np.savez_compressed(FOLDER / "recorded.npz", **arrays)
        print(f"{len(arrays):,} arrays in {FOLDER / 'recorded.npz'}")
        return 0
    hashes = {name: hashed(values) for name, values in results().items()}
    if wanted.record:
        wanted.record.write_text(json.dumps(hashes, indent=1) + "\n")
        print(f"{len(hashes)} calls recorded in {wanted.record}")
        return 0
    before = json.loads(wanted.check.read_text())
    other = sorted(name for name in before if before[name] != hashes.get(name))
    print(f"{len(hashes)} calls, {len(other)} other than before{': ' if other else '.'}{', '.join(other)}")
    if added := sorted(hashes.keys() - before.keys()):
        print(f"not recorded before: {', '.join(added)}")
    return 1 if other else 0


if __name__ == "__main__":
    sys.exit(main())
