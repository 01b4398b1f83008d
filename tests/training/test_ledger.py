"""The ledger: whole lines or none, whoever writes at the same time and whatever breaks."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest

from unifews.errors import FileFormatError
from unifews.training import ledger as module
from unifews.training.ledger import Ledger


def record(name, **more):
    return {"id": name, **more}


def seed(number):
    scores = {"train": 90.0, "val": 80.0, "test": 75.5}
    return {"seed": number, **scores, "epoch": 3, "epochs": 9, "seconds": 0.5, "kept": [6], "trace": None}


def test_what_is_appended_is_read_in_order(tmp_path):
    book = Ledger(tmp_path / "runs.jsonl")
    assert book.records() == [] and not book.path.exists()
    book.append(record("a1", text="größe\nnew line"))
    book.append(record("b2"))
    book.append(record("a1", again=True))
    assert Ledger(book.path).records() == [record("a1", text="größe\nnew line"), record("b2"), record("a1", again=True)]
    assert book.find("a") == record("a1", again=True) and book.find("b2") == record("b2") and book.find("c") is None
    assert len(book.path.read_bytes().splitlines()) == 3


@pytest.mark.parametrize(
    "given, file",
    [("runs", "runs/ledger.jsonl"), ("deep/er/runs", "deep/er/runs/ledger.jsonl"), ("a.jsonl", "a.jsonl"), ("plain", "plain")],
)
def test_a_folder_or_a_file(tmp_path, given, file):
    if given == "plain":
        (tmp_path / "plain").touch()
    book = Ledger(tmp_path / given)
    assert book.path == tmp_path / file
    book.append(record("a"))
    assert (tmp_path / file).is_file()


@pytest.mark.slow
def test_processes_that_write_at_once_do_not_mix(tmp_path):
    """Lines of many pages, so that a write in two pieces would show."""
    path = tmp_path / "runs.jsonl"
    script = (
        "import sys; from unifews.training.ledger import Ledger\n"
        "for i in range(25): Ledger(sys.argv[1]).append({'id': sys.argv[2], 'i': i, 'x': sys.argv[2] * 30000})"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, path, name]) for name in "abcd"]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    records = Ledger(path).records()
    assert len(records) == 100
    for name in "abcd":
        assert [r["i"] for r in records if r["id"] == name] == list(range(25))
    assert all(set(r["x"]) == {r["id"]} and len(r["x"]) == 30000 for r in records)


def full_disk(monkeypatch, *, after):
    """A disk that takes `after` more bytes of a write: fewer than given (some file systems), or none and an error."""
    real = os.write

    def write(descriptor, data):
        if after is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[:after])

    monkeypatch.setattr(module.os, "write", write)


@pytest.mark.parametrize("after", [None, 0, 7])
@pytest.mark.parametrize("before", ["", '{"id": "a"}\n', '{"id": "a"}\n{"id": "cut o'], ids=["new", "whole", "cut off"])
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch, after, before):
    book = Ledger(tmp_path / "runs.jsonl")
    if before:
        book.path.write_text(before)
    with monkeypatch.context() as patch:
        full_disk(patch, after=after)
        with pytest.raises(OSError, match="No space left on device") as error:
            book.append(record("b"))
    assert error.value.filename == str(book.path)  # the sentence says where
    assert book.path.read_text() == before
    book.append(record("b"))
    assert [one["id"] for one in book.records()] == (["a", "b"] if before else ["b"])


@pytest.mark.parametrize("tail", [b'{"id": "b", "scores": {"te', b"\0" * 40, b'{"id": "b"' + b"\0" * 40])
def test_a_line_that_a_crash_cut_off_is_passed_over_and_closed(tmp_path, tail):
    book = Ledger(tmp_path / "runs.jsonl")
    book.append(record("a"))
    with book.path.open("ab") as file:
        file.write(tail)
    assert book.records() == [record("a")]
    book.append(record("c"))
    assert book.records() == [record("a"), record("c")]
    assert book.skipped() == ([(2, "is cut off")] if tail.startswith(b"{") else [])


@pytest.mark.parametrize(
    "text, where",
    [("node,label\n1,2\n", "line 1"), ("\n[1]\n", "line 2"), ('{"name": "a"}\n', "line 1"), ("\x89PNG", "line 1")],
)
def test_a_foreign_file_is_named_and_not_written_to(tmp_path, text, where):
    path = tmp_path / "runs.jsonl"
    path.write_text(text)
    for call in (Ledger(path).records, Ledger(path).check):
        with pytest.raises(
            FileFormatError, match=f"runs.jsonl is no ledger: {where} .*; delete that line, or move the file away"
        ):
            call()
    assert path.read_text() == text


def test_a_place_that_takes_no_files_is_told_before_training(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Ledger(tmp_path / "file" / "runs").check()
    book = Ledger(tmp_path / "runs")
    book.check()
    assert not book.path.exists() and not list(book.path.parent.iterdir())  # checking leaves nothing behind


def test_a_record_that_is_no_json_leaves_the_file_as_it_was(tmp_path):
    book = Ledger(tmp_path / "runs.jsonl")
    book.append(record("a"))
    with pytest.raises(ValueError, match="JSON compliant"):
        book.append(record("b", score=float("nan")))
    assert book.records() == [record("a")]


def test_unfinished_runs_have_files_of_their_own(tmp_path):
    book = Ledger(tmp_path / "runs")
    assert book.partial("a1") == []
    book.save_partial("a1", [seed(1)])
    book.save_partial("a1", [seed(1), seed(2)])
    book.save_partial("b2", [seed(3)])
    assert book.partial("a1") == [seed(1), seed(2)] and book.partial("b2") == [seed(3)]
    book.drop_partial("a1")
    book.drop_partial("a1")
    assert book.partial("a1") == [] and book.records() == []
    assert [path.name for path in book.path.parent.iterdir()] == [".b2.partial.json"]


def test_unfinished_runs_of_an_earlier_release_go_on(tmp_path):
    """It wrote the seeds without a checksum."""
    book = Ledger(tmp_path)
    book.partial_file("a1").write_text(json.dumps([seed(1)]))
    assert book.partial("a1") == [seed(1)]


@pytest.mark.parametrize("change", [("test", 70.0), ("val", 1e9), ("kept", [7]), ("epoch", 4)])
def test_a_number_changed_in_a_partial_file_is_told(tmp_path, change):
    book = Ledger(tmp_path)
    book.save_partial("a1", [seed(1)])
    kept = json.loads(book.partial_file("a1").read_text())
    kept["seeds"][0] |= dict([change])
    book.partial_file("a1").write_text(json.dumps(kept))
    with pytest.raises(FileFormatError, match=r"\.a1\.partial\.json is damaged; delete it"):
        book.partial("a1")


@pytest.mark.parametrize(
    "content",
    ['[{"seed": 1', "3", "[1]", "{}", "[" * 100_000, '[{"seed": 1}]', '{"seeds": []}', '{"sha256": "", "seeds": [1]}', "\x00"],
)
def test_a_damaged_partial_file_says_what_to_do(tmp_path, content):
    book = Ledger(tmp_path)
    book.save_partial("a1", [])
    book.partial_file("a1").write_text(content)
    with pytest.raises(FileFormatError, match=r"\.a1\.partial\.json is damaged; delete it"):
        book.partial("a1")


def test_lines_are_json(tmp_path):
    book = Ledger(tmp_path)
    book.append(record("a", nested={"x": [1, 2.5, None]}))
    assert json.loads(book.path.read_text()) == record("a", nested={"x": [1, 2.5, None]})


@pytest.mark.parametrize(
    "line, why",
    [
        ('{"id": "b", "sco', "is cut off"),
        ('{"id": "b", "scores": }', "holds no JSON record"),
        ("nonsense", "holds no JSON record"),
        ("[1]", "is not the record of a run"),
        ('{"name": "b"}', "is not the record of a run: it has no `id`"),
        ('{"id": 3}', "is not the record of a run: it has no `id`"),
        ('{"id": "b", "x": ' + "[" * 100_000, "has values nested too deeply"),
        ('{"id": "b", "x": ' + "[" * 60 + "]" * 60 + "}", "has values nested too deeply"),
        ('{"id": "b", "x": [NaN]}', "has nan where a number belongs"),
        ('{"id": "b", "x": 1e999}', "has inf where a number belongs"),
        ('{"id": "b", "x": 1' + "0" * 40 + "}", "has a number of too many digits"),
        ('{"id": "b", "x": 1' + "0" * 5000 + "}", "holds no JSON record"),
        ('{"id": "b", "x": "\\ud800"}', "has a text that is no text (half of a surrogate pair)"),
        ('{"id": "b", "measurement": "clock"}', "lacks `values`"),
        ('{"id": "b", "values": {}, "curves": {}}', "lacks `measurement`"),
        ('{"id": "b", "measurement": "c", "values": {"s": "1"}}', "has '1' in `values.s`, which is a number or null"),
        ('{"id": "b", "measurement": "c", "values": {}, "curves": {"a": {"x": 1}}}', "has 1 in `curves.a.x`, which is a list"),
    ],
)
def test_a_line_that_holds_no_record_is_skipped_and_told(tmp_path, line, why):
    path = tmp_path / "runs.jsonl"
    path.write_text(f'{{"id": "a"}}\n{line}\n{{"id": "c"}}\n')
    book = Ledger(path)
    assert [one["id"] for one in book.records()] == ["a", "c"] and book.skipped() == [(2, why)]
    book.check()
    book.append(record("d"))
    assert [one["id"] for one in book.records()] == ["a", "c", "d"]


# ------------------------------------------------------------------------------------------------- one process at a time

AT_IT = """
import sys, time
from unifews.training.ledger import Ledger
book = Ledger(sys.argv[1])
def make():
    print("making", flush=True)
    sys.stdin.readline()
    book.append({"id": "a", "by": "other"})
    return {"id": "a"}
book.once("a", make)
print("made", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def other(tmp_path):
    """Another process that is at run a."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", AT_IT, str(tmp_path)], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "making\n"
        yield process
        process.kill()


def go_on(process):
    process.stdin.write("\n")
    process.stdin.flush()


def mine(book, name="a"):
    def make():
        book.append(record(name, by="me"))
        return record(name, by="me")

    return make


@pytest.mark.slow
def test_a_run_that_another_process_is_at_is_waited_for_and_its_record_taken(tmp_path, other):
    book, waited = Ledger(tmp_path), []

    def waiting():
        waited.append(1)
        go_on(other)

    assert book.once("a", mine(book), waiting=waiting) == record("a", by="other") and waited == [1]
    assert book.records() == [record("a", by="other")] and not list(tmp_path.glob(".*.lock"))


@pytest.mark.slow
def test_who_does_not_wait_is_told_and_other_runs_are_free(tmp_path, other):
    book = Ledger(tmp_path)
    with pytest.raises(module.Busy, match="another process is training run a"):
        book.once("a", mine(book), wait=False)
    assert book.once("b", mine(book, "b"), wait=False) == record("b", by="me")


@pytest.mark.slow
def test_a_killed_process_lets_go_of_its_run(tmp_path, other):
    book = Ledger(tmp_path)
    other.kill()
    other.wait()
    assert book.once("a", mine(book)) == record("a", by="me")
    assert book.records() == [record("a", by="me")] and not list(tmp_path.glob(".*.lock"))


def test_a_record_that_is_there_is_taken_unless_wanted_again(tmp_path):
    book = Ledger(tmp_path)
    for _ in range(2):
        assert book.once("a", mine(book)) == record("a", by="me")
    assert len(book.records()) == 1
    book.once("a", mine(book), restart=True)
    assert len(book.records()) == 2
    with pytest.raises(ZeroDivisionError):
        book.once("c", lambda: 1 // 0)
    assert not list(tmp_path.glob(".*.lock"))


@pytest.mark.slow
def test_many_processes_do_every_run_once(tmp_path):
    script = (
        "import sys; from unifews.training.ledger import Ledger\n"
        "book = Ledger(sys.argv[1])\n"
        "for i in range(40):\n"
        "    def make():\n"
        "        book.append({'id': f'r{i}'})\n"
        "        return {'id': f'r{i}'}\n"
        "    assert book.once(f'r{i}', make) == {'id': f'r{i}'}\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(3)]
    assert [process.wait(60) for process in both] == [0] * 3
    assert sorted(one["id"] for one in Ledger(tmp_path).records()) == sorted(f"r{i}" for i in range(40))
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.jsonl"]


@pytest.mark.parametrize("look", [1, 2])
def test_a_lock_that_is_deleted_while_it_is_looked_at_is_taken_again(tmp_path, monkeypatch, look):
    """The process that held a lock deletes its file: that may happen at any moment."""
    stat, looks = type(tmp_path).stat, []

    def deleted_once(path, **options):
        if path.suffix == ".lock":
            looks.append(path)
            if len(looks) == look:
                path.unlink()
        return stat(path, **options)

    monkeypatch.setattr(type(tmp_path), "stat", deleted_once)
    assert Ledger(tmp_path).once("a", lambda: {"id": "a"}) == {"id": "a"} and looks
