"""Damaged files of every format: the contents, or one of our errors; no other exception, no crash, no hang, no memory.

UNIFEWS_FUZZ=10000 for the long run; `python tools/fuzz.py` for one format and another seed.
"""

from __future__ import annotations

import os
from random import Random

import pytest
from campaign import run
from formats import FORMATS
from mutate import change

pytestmark = pytest.mark.slow

SLOW = {"ledger": 80, "propagation-work": 120, "model-folders": 150, "convert-npz": 80, "convert-npz-compressed": 80}
"""Tries; of the other formats 250."""


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_give_errors_of_ours(name):
    report = run(name, int(os.environ.get("UNIFEWS_FUZZ", SLOW.get(name, 250))), seed=7, most=3)
    assert not report.failures, "\n".join(report.failures[:20])
    if name != "ledger":  # a damaged line is reported and skipped, and the others are read
        assert report.counts["error"] > 0.3 * report.counts.total()


def test_a_mutation_is_repeated_by_its_seed():
    data = b"source,target\n0,1\n1,2\n"
    assert [change("e.csv", data, Random(f"{n}"))[0] for n in range(50)] == [
        change("e.csv", data, Random(f"{n}"))[0] for n in range(50)
    ]


def test_a_crash_is_counted_and_named(monkeypatch):
    """A process that dies of a signal is one try, and the next ones go on."""
    import campaign

    code = """if True:
        import json, os, sys
        for number in range(int(sys.argv[3]), 4):
            if number == 2:
                os.abort()
            print(json.dumps([number, "error", ""]), flush=True)
    """
    popen = campaign.subprocess.Popen
    monkeypatch.setattr(
        campaign.subprocess, "Popen", lambda command, **how: popen([command[0], "-c", code, *command[2:]], **how)
    )
    report = run("npz-csr", 4, seed=1)
    assert report.counts == {"error": 3, "crash": 1}
    assert "npz-csr seed 1 number 2: crash: exit code -6" in report.failures[0]
