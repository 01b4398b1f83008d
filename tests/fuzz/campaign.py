"""Many damaged files, read in processes of their own, so that a crash is counted and not suffered.

Try number k of a seed is the same mutation every time: `python tests/fuzz/campaign.py npz-csr 7 123 1` repeats number 123.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import NamedTuple

SECONDS, MEGABYTES = 20, 400  # that one file may take
_ADDRESSES, _FILE = 3 << 30, 1 << 29  # bytes that the process may take beyond what it has, and that a file may have
OUTCOMES = ("error", "equal", "other", "silent", "raw", "hang", "memory", "crash")
"""error: one of ours · equal: read as before · other: valid with other contents, where no checksum could tell · silent: other
contents although there is a checksum · raw: an exception that is not ours, or a message of several lines · hang, memory: more
time or memory than a file may take · crash: the process died."""
BAD = OUTCOMES[3:]


class Report(NamedTuple):
    """What came of the tries with one format."""

    counts: Counter
    failures: list[str]
    """Format, seed and number of each bad one, with what happened."""


def run(name: str, count: int, seed: int, *, most: int = 20) -> Report:
    """`count` mutations of a format; gives up after `most` crashes."""
    counts, failures, done = Counter(), [], 0
    while done < count and counts["crash"] < most:
        command = [sys.executable, __file__, name, str(seed), str(done), str(count - done)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment()
        ) as process:
            for line in process.stdout:
                number, outcome, detail = json.loads(line)
                counts[outcome] += 1
                done = number + 1
                if outcome in BAD:
                    failures.append(f"{name} seed {seed} number {number}: {outcome}: {detail}")
            errors = process.stderr.read()
        if process.returncode == 1:
            raise RuntimeError(f"the fuzzer itself failed on {name}: {errors[-2000:]}")
        if process.returncode:
            counts["crash"] += 1
            failures.append(f"{name} seed {seed} number {done}: crash: exit code {process.returncode} {errors[-300:]}")
            done += 1
    return Report(counts, failures)


def _environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "UNIFEWS_CACHE": tempfile.gettempdir()}


# ------------------------------------------------------------------------------------------------------- in the process


class Hang(BaseException):
    """A file that takes too long."""


def work(name: str, seed: int, start: int, count: int) -> None:
    from formats import FORMATS

    from unifews.errors import UnifewsError

    given = FORMATS[name]()
    with tempfile.TemporaryDirectory() as folder:
        sound, target = Path(folder) / "sound", Path(folder) / "target"
        sound.mkdir()
        given.write(sound)
        files = {path.relative_to(sound).as_posix(): path.read_bytes() for path in sorted(sound.rglob("*")) if path.is_file()}
        times = {path.relative_to(sound).as_posix(): path.stat().st_mtime_ns for path in sound.rglob("*") if path.is_file()}
        _put(target, files, times)
        expected = given.read(target)
        _limit()
        signal.signal(signal.SIGALRM, _stop)
        for number in range(start, start + count):
            changed, fits = given.damage(files, Random(f"{name} {seed} {number}"))
            _put(target, changed, times)
            where = [name for name in files if changed.get(name) != files[name]]
            before = _peak()
            outcome, detail = "equal", ""
            try:
                signal.alarm(SECONDS)
                found = given.read(target)
                if found is None or found != expected:
                    outcome = "silent" if not fits and any(re.search(given.checksums, name) for name in where) else "other"
            except UnifewsError as error:
                outcome, detail = "raw" if "\n" in str(error) else "error", f"{type(error).__name__}: {error}"
            except Hang:
                outcome = "hang"
            except Exception as error:
                outcome, detail = "raw", f"{type(error).__name__}: {error} ({_place(error)})"
            finally:
                signal.alarm(0)
            if _peak() - before > MEGABYTES and outcome not in BAD:
                outcome, detail = "memory", f"{_peak() - before} MB, {detail}"
            print(json.dumps([number, outcome, f"{detail[:500]} {where}"]), flush=True)  # noqa: T201
        os.chdir("/")


def _put(target, files, times):
    os.chdir("/")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for name, data in files.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if name in times:
            os.utime(path, ns=(times[name], times[name]))


def _limit() -> None:
    """What asks for gigabytes fails at once, and nothing fills the disk."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = {resource.RLIMIT_AS: taken + _ADDRESSES, resource.RLIMIT_FSIZE: _FILE, resource.RLIMIT_CORE: 0}
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def _stop(*_):
    raise Hang


def _place(error) -> str:
    """The line of the library where it arose."""
    place, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "unifews" in Path(code.co_filename).parts:
            place = f"{Path(code.co_filename).parent.name}/{Path(code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


if __name__ == "__main__":
    work(sys.argv[1], *map(int, sys.argv[2:5]))
