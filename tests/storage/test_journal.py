"""Working folders: what was kept is used as it was written, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from things import got, put

from unifews.errors import FileFormatError, InputError, UnifewsError
from unifews.storage import atomic, journal
from unifews.storage.journal import open_journal
from unifews.storage.npy import open_array
from unifews.storage.state_files import AppendedFiles

TASK = {"task": "test", "hops": 3}
DONE = {
    "plan": {"groups": [[0, 16, 1], [16, 4, 1]], "memory": 5, "seconds": 0.25, "outside": False},
    "state": {"slot": 1, "crc": 7, "budget": {"means": [[0.1 + 0.2, 0], [1e-300, -3]], "left": float("inf")}, "alive": None},
    "groups": {16: {"hops": ()}},  # JSON makes text of the number, and a list of the tuple
}


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """The manifest of interrupted work."""
    monkeypatch.chdir(tmp_path)
    Path("input").write_text("input")
    with pytest.raises(KeyboardInterrupt), open_journal(Path("out"), TASK, [Path("input")]) as task:
        task.record(**DONE)
        raise KeyboardInterrupt
    return json.loads(Path("out.work/manifest.json").read_text())


def resumed(**how):
    with open_journal(Path("out"), TASK, [Path("input")], **how) as task:
        return {name: task.get(name) for name in DONE}


def test_what_was_kept_comes_back(begun):
    assert resumed() == json.loads(json.dumps(DONE)) and resumed(restart=True) == dict.fromkeys(DONE)


def changes(value, path=()):
    """Every way to change one thing: a value, its type, a key that is gone."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        for other in (None, True, -1, 10**400, 0.5, float("nan"), "x", [], {}, [inner]):
            if other is not inner and (type(other), other) != (type(inner), inner):
                yield (*path, key), other
        yield (*path, key), KeyError
        yield from changes(inner, (*path, key))


def changed(manifest, path, other):
    copy = json.loads(json.dumps(manifest))
    at = copy
    for key in path[:-1]:
        at = at[key]
    if other is KeyError:
        del at[path[-1]]
    else:
        at[path[-1]] = other
    return copy


def test_whatever_is_changed_in_a_manifest_is_one_clear_error(begun):
    """A few hundred manifests, each with one change: none is gone on with."""
    tried = 0
    for path, other in changes(begun):
        Path("out.work/manifest.json").write_text(json.dumps(changed(begun, path, other)))
        with pytest.raises(UnifewsError, match=r"damaged|of a later release|an earlier release|no working folder") as error:
            resumed()
        assert "elet" in str(error.value)
        tried += 1
    assert tried > 300


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "\x00", "[" * 100_000, '{"format": "unifews-work"}', '{"format": "unifews-work", "version": 3}'],
)
def test_a_manifest_that_is_none_is_one_clear_error(begun, text):
    Path("out.work/manifest.json").write_text(text)
    with pytest.raises(UnifewsError, match=r"out.work.* (damaged|no working folder).*delet"):
        resumed()


def test_a_manifest_of_an_earlier_release_says_what_to_do(begun):
    before = {name: value for name, value in begun.items() if name != "sha256"} | {"version": 1}
    Path("out.work/manifest.json").write_text(json.dumps(before))
    with pytest.raises(FileFormatError, match=r"earlier release .* restart=True \(--restart\), or by deleting out.work"):
        resumed()
    assert resumed(restart=True) == dict.fromkeys(DONE)


@pytest.mark.parametrize("way", ["exchange", "renames"])
@pytest.mark.parametrize("there", [True, False], ids=["replaced", "new"])
@pytest.mark.parametrize("stop", ["before", "after"])
def test_a_folder_is_put_in_its_place_once(tmp_path, monkeypatch, way, there, stop):
    """Folders are exchanged, so after a stop the working folder may hold the old one: it must not go back."""
    monkeypatch.chdir(tmp_path)
    if way == "renames":
        monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    if there:
        put("out", 1)

    def stopped(place, target):
        if stop == "after":
            while not atomic._placed(place, target, True):
                pass
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), open_journal(Path("out"), TASK) as task:
        patch.setattr(journal, "put_folder", stopped)
        put("out.work/new", 2)
        task.publish("new", Path("out"))
    with open_journal(Path("out"), TASK) as task:
        assert task.is_published(Path("out")) is (stop == "after")
        if stop == "before":
            task.publish("new", Path("out"))
        task.remove()
    assert got("out") == 2 and sorted(path.name for path in Path().iterdir()) == ["out"]


def test_a_folder_that_cannot_be_told_from_another_is_not_put_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put("out", 1)
    with pytest.raises(KeyboardInterrupt), open_journal(Path("out"), TASK) as task:
        put("out.work/new", 2)
        task.record(published={"folder": "new", "inode": 0})
        raise KeyboardInterrupt
    with open_journal(Path("out"), TASK) as task, pytest.raises(FileFormatError, match=r"out.work/manifest.json is damaged"):
        task.is_published(Path("out"))
    assert got("out") == 1


def test_two_processes_do_not_work_in_one_folder(begun):
    with (
        open_journal(Path("out"), TASK, [Path("input")]),
        pytest.raises(InputError, match=r"another process is working in out.work"),
    ):
        resumed()


@pytest.mark.parametrize("stop", range(6))
def test_appending_continues_where_it_was_recorded(tmp_path, monkeypatch, stop):
    """Whatever item the process stops at, before or after it was written, the next call ends with the same bytes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(journal, "SAVE_INTERVAL", 0)

    def run(until):
        with open_journal(Path("out"), TASK) as work:
            state = work.get("rows") or {"done": 0, "files": {}}
            files = AppendedFiles(work.folder, state["files"])
            files.restore(["x.npy", "tail"])
            if "x.npy" not in files.recorded:
                files.create("x.npy", np.int64, (5,))

            def append(item):
                files.append("x.npy", np.array([item]))
                if item == until:
                    raise KeyboardInterrupt
                files.append("tail", np.array([-item]))
                state["done"] += 1

            work.append_resumably("rows", state, range(state["done"], 5), append)
            return open_array(work.folder / "x.npy").tolist(), files.read("tail", np.int64).tolist()

    if stop < 5:
        with pytest.raises(KeyboardInterrupt):
            run(stop)
    assert run(None) == ([0, 1, 2, 3, 4], [0, -1, -2, -3, -4])
    Path("out.work/x.npy").write_bytes(Path("out.work/x.npy").read_bytes()[:-1] + b"x")
    with pytest.raises(FileFormatError, match=r"x.npy has changed since the interrupted call"):
        run(None)
