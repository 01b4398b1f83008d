"""Memory of large arrays: used again, bounded, and returned."""

from __future__ import annotations

import gc
import multiprocessing
import threading

import numpy as np
import pytest

from unifews.kernels import aligned, buffers

MEGABYTE = 1 << 18  # float32 values


@pytest.fixture(autouse=True)
def empty():
    buffers.release_memory()
    yield
    buffers.release_memory()


def cached():
    gc.collect()
    return sum(len(each) for each in buffers._cache.free)


def test_a_large_array_gets_the_memory_of_one_that_is_gone():
    first = aligned(8, MEGABYTE)
    at = first.ctypes.data
    assert at % (2 << 20) == 0 and first.flags.writeable and first.shape == (8, MEGABYTE)
    first[:] = 1
    part = first[2:3, 5:]
    del first
    assert cached() == 0, "a view still refers to it"
    assert (part == 1).all()
    del part
    assert cached() >= 8 << 20
    assert aligned(8, MEGABYTE).ctypes.data == at


def test_arrays_in_use_have_memory_of_their_own():
    arrays = [aligned(4, MEGABYTE) for _ in range(4)]
    for number, each in enumerate(arrays):
        each[:] = number
    assert [float(each.min()) for each in arrays] == [float(each.max()) for each in arrays] == [0, 1, 2, 3]


def test_much_smaller_arrays_do_not_take_it():
    aligned(64, MEGABYTE)
    before = cached()
    small = aligned(4, MEGABYTE)
    assert cached() == before
    del small


def test_zeroed_and_small_arrays_are_as_before():
    used = aligned(8, MEGABYTE)
    used[:] = 7
    del used
    assert not aligned(8, MEGABYTE, zero=True).any()
    assert aligned(3, 5).base is not None and cached() > 0


def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(buffers, "installed", lambda: 16 * (20 << 20))
    arrays = [aligned(8, MEGABYTE) for _ in range(5)]
    del arrays
    assert 0 < cached() <= 20 << 20


def test_nothing_is_cached_where_the_size_of_the_process_is_limited():
    aligned(8, MEGABYTE)
    assert cached() > 0
    with buffers.nothing_cached():
        assert cached() == 0
        aligned(8, MEGABYTE)
        assert cached() == 0
    aligned(8, MEGABYTE)
    assert cached() > 0


def test_memory_that_cannot_be_had_is_an_error_after_the_cache_is_emptied():
    aligned(8, MEGABYTE)
    with pytest.raises(MemoryError, match="cannot be allocated"):
        buffers.large(1 << 60)
    assert cached() == 0


def test_threads_do_not_get_the_same_memory():
    wrong = []

    def work(number):
        for _ in range(50):
            array = aligned(2, MEGABYTE)
            array[:] = number
            if not (array == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _in_child(queue):
    array = aligned(8, MEGABYTE)
    array[:] = 2
    queue.put((float(array.sum()), cached()))


def test_a_forked_child_has_a_cache_of_its_own():
    kept = aligned(8, MEGABYTE)
    kept[:] = 1
    aligned(8, MEGABYTE)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue,))
    with buffers._cache.lock:  # held while the child is made, as by another thread
        child.start()
    assert queue.get(timeout=30) == (16.0 * MEGABYTE, 0)
    child.join()
    assert (kept == 1).all()


def test_memory_with_any_content_does_not_change_a_result():
    """What is used again holds old values, here NaN."""
    import unifews as uf

    made = uf.powerlaw(20_000, 100_000, num_features=130, seed=1)
    for how in ({}, {"max_error": 0.05}, {"max_error": 0.01}, {"edge_sparsity": 0.5}):
        buffers.release_memory()
        clean = uf.propagate(made.graph, made.x, **how).embedding
        for _ in range(3):
            dirty = [aligned(n, 20_000) for n in (128, 128, 64, 64, 64, 64, 32, 32, 32, 32, 32, 32, 32, 32, 130, 130)]
            for each in dirty:
                each[:] = np.nan
            del dirty, each
        assert np.array_equal(uf.propagate(made.graph, made.x, **how).embedding, clean), how
