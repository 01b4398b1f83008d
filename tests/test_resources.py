"""Memory that is freed and taken again."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import numpy as np
from unifews.resources import keep_freed

if sys.argv[1] == "kept" and not keep_freed():
    sys.exit(3)

def step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        a = np.ones(1 << 20, dtype=np.float32)  # 4 MB
        b = a * 2
        del a, b
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

step()
print(step())
"""


def faults(how):
    done = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True)
    if done.returncode == 3:
        pytest.skip("this system's allocator cannot be told")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_freed_memory_is_not_asked_for_again():
    given_back, kept = faults("given back"), faults("kept")
    assert kept < 50 and kept < given_back / 4
