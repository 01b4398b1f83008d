"""Commands that are stopped, by a signal, a full disk or a limit of file sizes, and commands that share a ledger."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import commands
import numpy as np
import pytest
from commands import work_in

from unifews import cli, save_dataset
from unifews.cli.errors import Termination
from unifews.datasets.gencat import gencat
from unifews.training.api import train
from unifews.training.ledger import Ledger

pytestmark = pytest.mark.slow

DATA = gencat(300, 900, features=12, classes=3, seed=7, name="mine")
LONG = ["--width", "8", "--epochs", "100000", "--patience", "0"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    work_in(tmp_path, monkeypatch)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    save_dataset(DATA, "mine")
    return tmp_path


def start(*arguments, before="", **how):
    """A command in a process group of its own, which says "ready" when `before` has it say so."""
    code = f"import sys\nfrom unifews import cli\n{before}\ncli.app({[str(a) for a in arguments]!r})\n"
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **how
    )


def until(condition):
    end = time.monotonic() + 120
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    assert found
    return found


def stopped(process, *, group=False):
    """Exit code, and what was printed."""
    try:
        os.killpg(process.pid, signal.SIGTERM) if group else process.terminate()
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, out, err


READY = "{0} = cli.{1}\ncli.{1} = lambda *a, **k: print('ready', flush=True) or {0}(*a, **k)"


def test_sigterm_is_told_like_ctrl_c():
    DATA.graph.save("graph")
    np.save("wide.npy", np.random.default_rng(3).random((300, 2000), dtype=np.float32))
    ready = READY.format("load", "propagate._load")
    process = start("propagate", "graph", "-x", "wide.npy", "-o", "p.npy", "--hops", 50000, before=ready)
    assert process.stdout.readline() == "ready\n"
    assert stopped(process) == (143, "", "unifews: interrupted; nothing was written.\n")
    assert not Path("p.npy").exists() and not list(Path().glob(".*.tmp"))


def test_sigterm_keeps_what_is_done_and_says_how_to_go_on():
    """Through files: what is kept leads to the same bytes."""
    data = gencat(3000, 9000, features=64, classes=3, seed=7, name="wide")
    data.graph.save("graph")
    np.save("x.npy", np.asarray(data.x, dtype=np.float32))
    call = ["propagate", "graph", "-x", "x.npy", "-o", "p.npy", "--hops", 4000, "--memory", "2GB", "--checkpoint-every-hop"]
    process = start(*call)
    until(lambda: list(Path().glob("p.npy.work/*/state-*")))
    code, out, err = stopped(process)
    assert code == 143 and out == ""
    assert "interrupted; finished work is in p.npy.work, run the same command to resume." in err
    assert Path("p.npy.work/manifest.json").exists() and not Path("p.npy").exists()


def test_sigterm_while_training_keeps_finished_seeds():
    process = start("train", "mine", *LONG[:2], "--epochs", 400, "--patience", 0, "--seeds", 9, "--hops", 3)
    until(lambda: list(Path("runs").glob(".*.partial.json")))
    code, out, err = stopped(process)
    assert (code, out) == (143, "") and err.count("\n") == 1
    assert "interrupted; finished runs are in runs, run the same command to resume." in err
    assert list(Path("runs").glob(".*.partial.json")) and not Ledger("runs").records()


def children(pid):
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_sigterm_ends_the_processes_of_a_comparison():
    """The signal goes to all of them, as `timeout` sends it."""
    call = ["compare", "mine", "--methods", "random", "--edge-sparsity", ".5", "--jobs", 2, "--seeds", 1, *LONG[:4]]
    process = start(*call)
    workers = until(lambda: len(found := children(process.pid)) >= 3 and found)  # two of ours, and what watches over them
    until(lambda: len(list(Path("runs").glob(".*.lock"))) == 2)  # both are at work
    code, out, err = stopped(process, group=True)
    assert (code, out) == (143, "")
    assert "unifews: interrupted; finished runs are in runs, run the same command to resume." in err
    until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))


def test_a_second_signal_in_the_same_moment_does_not_disturb():
    termination = Termination()
    with termination:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # the copy that goes to the process group
        assert termination and termination.exit_code == 143
        termination._at -= 2
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and not Termination()


def test_workers_of_torchrun_keep_the_signal_as_it_is(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    with Termination():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# -------------------------------------------------------------------------------------------------------------- full disks


@contextmanager
def small_files(size):
    """Files may have no more than so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


SHORT = ["--hops", 3, "--width", 64, "--epochs", 2, "--seeds", 1]


@pytest.mark.parametrize(
    "size, call, file",
    [
        (4000, ["propagate", "mine", "-o", "p.npy"], "p.npy"),
        (4000, ["train", "mine", *SHORT, "--no-ledger", "--save", "model"], "model"),
        (1000, ["train", "mine", *SHORT], "runs/ledger.jsonl"),
        (4000, ["report", "kept", "-o", "page.html"], "page.html"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_may_not_grow_is_named(size, call, file):
    Ledger("kept").append(train(DATA, hops=2, width=4, epochs=2, seeds=1).to_dict())
    before = {path.name for path in Path().rglob("*")}
    with small_files(size):
        result = commands.call(*call)
    assert (result.code, result.out) == (2, "")
    assert result.err == f"unifews: cannot write {file}: File too large (ulimit -f, or a limit of the file system).\n"
    left = {path.name for path in Path().rglob("*")} - before
    assert all(name in ("runs", "ledger.jsonl") or name.endswith(".toml") for name in left)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes rights that this user lacks")
@pytest.mark.parametrize(
    "call, file", [(["propagate", "mine", "-o"], "p.npy"), (["train", "mine", *SHORT, "--no-ledger", "--save"], "model")]
)
def test_a_full_disk_is_named_with_the_file(call, file):
    disk = Path("disk")
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("no small disk can be mounted")
    try:
        result = commands.call(*call, disk / file)
        assert (result.code, result.out) == (2, "")
        assert result.err == f"unifews: cannot write disk/{file}: No space left on device.\n"
        assert not list(disk.iterdir())
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_graph_names_its_file_too():
    with small_files(4000), pytest.raises(OSError, match="File too large") as error:
        gencat(3000, 9000, features=1, classes=2, seed=7).graph.save("g")
    assert str(error.value.filename).startswith(".g.") and [path.name for path in Path().iterdir()] == ["mine"]


# ------------------------------------------------------------------------------------------------------------ one ledger


def test_two_processes_with_one_ledger_train_every_run_once():
    long = ["--hops", 3, "--width", 8, "--epochs", 60, "--patience", 0, "--seeds", 3]
    both = [start("train", "mine", *long, "--edge-sparsity", 0.5, "--json") for _ in range(2)]
    printed = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    records = Ledger("runs").records()
    assert len(records) == len({record["id"] for record in records}) == 2
    for out, _ in printed:
        assert json.loads(out)["runs"] == records
    assert not list(Path("runs").glob(".*"))


@pytest.mark.parametrize(
    "error, says",
    [
        (MemoryError("Unable to allocate 8.00 EiB"), "Unable to allocate 8.00 EiB"),
        (MemoryError(), "an allocation failed"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes. Error code 12"),
            "you tried to allocate 64 bytes",
        ),
    ],
)
def test_memory_that_is_not_there_is_no_bug(monkeypatch, error, says):
    def fail(path):
        raise error

    monkeypatch.setattr(cli.propagate, "dataset_at", fail)
    printed = commands.wrong("propagate", "mine", "-o", "p.npy", says=says)
    assert printed == f"unifews: not enough memory: {says}.\n"
