"""Replacing files and folders: a reader sees the old one or the new one, whoever writes at the same time or is killed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from things import KIND, got, put

from unifews import Graph, powerlaw, save_dataset
from unifews.datasets.dataset import About, Dataset
from unifews.datasets.folder import open_dataset
from unifews.errors import FileFormatError, InputError, MissingFileError, UnifewsError
from unifews.propagation.folder import SharedRows
from unifews.storage import atomic, state_files
from unifews.storage.atomic import atomic_file, atomic_folder, restore, steady


@pytest.fixture(params=["exchange", "renames"])
def way(request, monkeypatch, tmp_path):
    """Both ways of replacing a folder; a temporary file system of ours may not have the first."""
    monkeypatch.chdir(tmp_path)
    if request.param == "renames":
        monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    return request.param


def names():
    return sorted(path.name for path in Path().iterdir())


def test_a_folder_is_replaced_and_nothing_is_left(way):
    for number in range(3):
        put("f", number)
        assert got("f") == number and names() == ["f"]
    with pytest.raises(InputError, match="f already exists"):
        put("f", 3, overwrite=False)
    with pytest.raises(ZeroDivisionError), atomic_folder(Path("f"), overwrite=True) as place:
        (place / "x").touch()
        raise ZeroDivisionError
    assert got("f") == 2 and names() == ["f"]


def test_two_folders_are_exchanged_in_one_step(tmp_path):
    for name in "ab":
        (tmp_path / name / name).mkdir(parents=True)
    if not atomic._exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this system or file system cannot")
    assert (tmp_path / "a" / "b").is_dir() and (tmp_path / "b" / "a").is_dir()
    with pytest.raises(FileNotFoundError):
        atomic._exchange(tmp_path / "a", tmp_path / "c")


def test_without_overwrite_a_folder_that_came_meanwhile_stays(way):
    with pytest.raises(InputError, match="already exists"), atomic_folder(Path("f")) as place:
        (place / "mine").touch()
        put("f", 7)
    assert got("f") == 7 and names() == ["f"]


# ------------------------------------------------------------------------------------------------------------- killed

KILLED = """
import os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from unifews.storage import atomic
from unifews.storage import state_files
import things
if {renames}:
    atomic._exchange = lambda one, other: False
real, calls = os.rename, []
def rename(one, other, **more):
    if len(calls) == {after}:
        os._exit(9)
    calls.append(one)
    real(one, other, **more)
os.rename = rename
if {while_writing}:
    with atomic.atomic_folder(Path("f"), overwrite=True) as place:
        (place / "0").touch()
        with atomic.atomic_file(Path("file"), overwrite=True) as file:
            os._exit(9)
things.put("f", 2)
"""


def killed(after=9, *, renames=False, while_writing=False):
    """A process that replaces f and ends, like one that is killed, at some moment."""
    script = KILLED.format(tests=str(Path(__file__).parent), after=after, renames=renames, while_writing=while_writing)
    return subprocess.run([sys.executable, "-c", script], timeout=60).returncode


@pytest.mark.slow
def test_killed_between_two_renames_the_old_folder_is_put_back_by_the_next_reader(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put("f", 1)
    assert killed(after=2, renames=True) == 9  # onto the folder there, which fails; the old one aside; not the new one in
    assert not Path("f").exists() and len(list(Path().glob(".f.*.old"))) == 1
    assert got("f") == 1
    put("f", 3)
    assert got("f") == 3 and names() == ["f"]


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [True, False])
def test_killed_between_two_renames_the_next_writer_knows_that_there_is_a_folder(tmp_path, monkeypatch, overwrite):
    monkeypatch.chdir(tmp_path)
    put("f", 1)
    assert killed(after=2, renames=True) == 9
    if overwrite:
        put("f", 3)
    else:
        with pytest.raises(InputError, match="already exists"):
            put("f", 3, overwrite=False)
    assert got("f") == (3 if overwrite else 1)
    put("f", 4)
    assert names() == ["f"]


@pytest.mark.slow
def test_where_it_cannot_be_put_back_the_error_names_the_copy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put("f", 1)
    assert killed(after=2, renames=True) == 9
    monkeypatch.setattr(Path, "rename", lambda self, other: (_ for _ in ()).throw(PermissionError(13, "no")))
    monkeypatch.setattr(atomic, "_PAUSE", 0.0)
    with pytest.raises(MissingFileError, match=r"there is no thing folder f. Its last complete copy is \.f\..*\.old: rename"):
        KIND.read(Path("f"))


def test_graphs_and_datasets_are_put_back_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = powerlaw(60, 300, num_features=4, num_classes=2, seed=1)
    data.graph.save("g")
    save_dataset(Dataset("made", data.graph, data.x, data.y, (), About(source="made")), "d")
    for name, read in (("g", Graph.open), ("d", open_dataset)):
        old = Path(f".{name}.{atomic._machine()}-{2**22 + 5:x}-1-abcdef.old")  # a larger number than processes have
        Path(name).rename(old)
        assert read(name) is not None and Path(name).is_dir() and not old.exists()


@pytest.mark.slow
def test_what_killed_writers_left_is_deleted_by_the_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put("f", 1)
    Path("file").write_text("1")
    for _ in range(3):
        assert killed(while_writing=True) == 9
        assert len(list(Path().glob(".f.*.tmp"))) == len(list(Path().glob(".file.*.tmp"))) == 1
    put("f", 2)
    with atomic_file(Path("file"), overwrite=True) as file:
        file.write(b"2")
    assert names() == ["f", "file"]


LIVE = """
import sys
from pathlib import Path
from unifews.storage.atomic import atomic_file, atomic_folder
with atomic_folder(Path("f"), overwrite=True) as place, atomic_file(Path("file"), overwrite=True) as file:
    file.write(b"live")
    (place / "0").write_text("live")
    print("in", flush=True)
    sys.stdin.read()
"""


def test_what_a_running_writer_works_on_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", LIVE], stdin=pipe, stdout=pipe, text=True) as live:
        assert live.stdout.readline() == "in\n"
        put("f", 1)
        with atomic_file(Path("file"), overwrite=True) as file:
            file.write(b"mine")
        assert len(list(Path().glob(".f*.tmp"))) == 2  # of f and of file
        live.stdin.close()
        assert live.wait(60) == 0
    assert (Path("f") / "0").read_text() == Path("file").read_text() == "live" and names() == ["f", "file"]


@pytest.mark.parametrize("mark", ["00000000-1-1-abcdef", "0123abcd"], ids=["of another machine", "of an earlier release"])
def test_what_is_of_other_machines_stays_for_a_day(tmp_path, monkeypatch, mark):
    monkeypatch.chdir(tmp_path)
    left = Path(f".f.{mark}.tmp")
    left.mkdir()
    (left / "x").touch()
    put("f", 1)
    assert left.exists()
    for path in (left, left / "x"):
        os.utime(path, (time.time() - 90_000,) * 2)
    put("f", 2)
    assert names() == ["f"]


def test_other_peoples_files_are_never_deleted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    others = [".f.tmp", ".f.notes.tmp", "f.0123abcd.tmp", ".f.0123abcd.tmp.txt", ".fa.0123abcd.tmp", ".f.0123ABCD.old"]
    for name in others:
        Path(name).touch()
        os.utime(name, (1, 1))
    put("f", 1)
    assert names() == sorted([*others, "f"])


def test_a_process_that_has_ended_is_known_by_its_start():
    pid, started = os.getpid(), atomic._started(os.getpid())
    assert atomic._is_running(pid, started)
    if started is not None:
        assert not atomic._is_running(pid, started - 1)  # the number was given to another process
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and nobody has asked for its exit code yet
        assert not atomic._is_running(child.pid, 0) or started is None
    assert not atomic._is_running(child.pid, 1)


# ------------------------------------------------------------------------------------------------------- at the same time

WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from unifews.storage import atomic
from unifews.storage import state_files
import things
if {renames}:
    atomic._exchange = lambda one, other: False
for number in range({first}, {first} + 150):
    things.put("f", number)
print("done")
"""


@pytest.mark.slow
def test_two_writers_and_a_reader_never_see_a_gap(way):
    """One folder, replaced 300 times by two processes while this one reads it."""
    put("f", 0)
    script = [WRITER.format(tests=str(Path(__file__).parent), renames=way == "renames", first=first) for first in (1000, 2000)]
    writers = [subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) for text in script]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        seen.add(got("f"))
        assert KIND.describes(Path("f"))
    assert [writer.communicate()[0] for writer in writers] == ["done\n"] * 2
    assert got("f") in (1149, 2149) and len(seen) > 2 and names() == ["f"]


def test_a_folder_that_is_replaced_while_it_is_read_is_read_again(way):
    put("f", 1)
    replaced = iter([2, 3])

    def read():
        number = KIND.read(Path("f"))["number"]
        if (another := next(replaced, None)) is not None:
            put("f", another)
        return number, (Path("f") / "0").read_text()

    assert steady(Path("f"), read) == (3, "3")


def test_a_folder_that_is_replaced_without_end_is_an_error(way):
    put("f", 0)
    count = iter(range(1, 1000))
    with pytest.raises(FileFormatError, match="f is being replaced by another process"):
        steady(Path("f"), lambda: put("f", next(count)))


def test_a_folder_that_is_not_replaced_gives_its_own_error(way):
    put("f", 1)
    calls = []

    def read():
        calls.append(1)
        return (Path("f") / "missing").read_text()

    with pytest.raises(FileNotFoundError):
        steady(Path("f"), read)
    assert len(calls) == 1 and not restore(Path("nothing"))


# --------------------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_names_the_file(tmp_path, monkeypatch, code):
    monkeypatch.chdir(tmp_path)
    for make in (atomic_file, atomic_folder):
        with pytest.raises(OSError, match=os.strerror(code)) as error, make(Path("out")):
            raise OSError(code, os.strerror(code))
        assert error.value.filename == "out" and error.value.errno == code and names() == []


def test_other_errors_stay_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for error in (ConnectionResetError(104, "reset"), TimeoutError("slow"), UnifewsError("ours")):
        with pytest.raises(type(error)) as raised, atomic_file(Path("out")):
            raise error
        assert raised.value is error


def test_a_short_write_of_numpy_is_told_like_any_other(tmp_path, monkeypatch):
    """Under ulimit -f, numpy says how much it has written and nothing of why."""
    monkeypatch.chdir(tmp_path)
    script = (
        "import resource, numpy as np; from pathlib import Path; from unifews.storage.npy import write_array\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n    write_array(Path('a.npy'), np.ones(100_000))\n"
        "except OSError as error:\n    print(error.errno, error.filename)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{errno.EFBIG} a.npy\n", done.stderr
    assert names() == []


def test_numbers_come_back(tmp_path):
    with atomic_file(tmp_path / "a.npy") as file:
        np.save(file, np.arange(3))
    assert np.load(tmp_path / "a.npy").tolist() == [0, 1, 2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_files_of_a_working_folder_name_themselves(tmp_path):
    """A file in a folder that is full: /dev/full takes nothing."""
    file = tmp_path / "state-0"
    file.symlink_to("/dev/full")
    rows = np.arange(3), np.ones((3, 2), dtype=np.float32)
    for write in (lambda: state_files.append(file, np.ones(9), 0), lambda: SharedRows(file, (3, 2)).write(*rows)):
        with pytest.raises(OSError, match="No space left") as error:
            write()
        assert error.value.filename == str(file)
