"""Pages of mapped files are given back in time, and nothing is lost with them."""

from __future__ import annotations

import sys
from threading import Event

import numpy as np
import pytest

from unifews.resources import mapped, resident
from unifews.storage import pages
from unifews.storage.pages import MappedPages, mapping_of

SIZE = 128 << 20
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much memory a process has in this way")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as out:
        out.truncate(SIZE)
    return path


def test_the_map_behind_an_array_is_found(file):
    array = np.memmap(file, np.float32, "r")
    for each in (array, array[100:], array.reshape(-1, 16), np.asarray(array)[3:].view(np.uint8)):
        assert mapping_of(each) is array._mmap
    assert mapping_of(np.ones(3)) is None
    assert mapping_of(np.memmap(file, np.float32, "c")[5:]) is None, "what is written there is nowhere else"


@LINUX
def test_pages_given_back_are_memory_no_more_and_what_was_written_stays(file):
    array = np.memmap(file, np.float32, "r+")
    held = MappedPages()
    held.add(array, array[1:], None, np.ones(2))
    array[::1024] = np.arange(len(array[::1024]))
    before = resident()
    held.release()
    assert resident() < before - SIZE // 2
    assert np.array_equal(array[::1024], np.arange(len(array[::1024])))


@LINUX
def test_a_limit_is_kept_while_a_file_larger_than_it_is_read(file, monkeypatch):
    looked = Event()
    give_back = MappedPages.release

    def told(self):
        give_back(self)
        looked.set()

    monkeypatch.setattr(MappedPages, "release", told)
    monkeypatch.setattr(pages, "_SHARE", 1.0)
    array = np.memmap(file, np.uint8, "r")
    held = MappedPages()
    held.add(array)
    other, limit, peak = mapped(), SIZE // 8, 0
    with held.within(limit):
        for at in range(0, SIZE, SIZE // 16):
            array[at : at + SIZE // 16].sum()
            looked.clear()
            if mapped() - other > limit:
                assert looked.wait(10)
            peak = max(peak, mapped() - other)
    assert peak < limit + SIZE // 8


def test_a_failure_inside_ends_the_watch(file):
    held = MappedPages()
    with pytest.raises(ZeroDivisionError), held.within(1):
        raise ZeroDivisionError
