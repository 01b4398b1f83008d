"""One process alone and a group of one are the same communicator."""

from __future__ import annotations

import numpy as np
import pytest

from unifews.distributed.communicator import SingleProcess, check_same, workers
from unifews.errors import InputError


def exchanged(comm):
    """What every method returns."""
    one = np.ones(1, dtype=np.int64)
    array, first = np.arange(6.0).reshape(3, 2), np.arange(3)
    comm.broadcast(first)
    comm.barrier()
    check_same(comm, {"hops": 5})
    with comm.agreed():
        rows = comm.all_to_all(array, 3 * one, 3 * one)
    return {
        "rank": (comm.rank, comm.size),
        "gathered": comm.all_gather({"hops": (1, 2), 3: None}),
        "sum": comm.all_reduce(array.copy()).tolist(),
        "nothing": comm.all_reduce(np.zeros((0, 2))).shape,
        "largest": comm.maximum(-2.5),
        "first": first.tolist(),
        "rows": rows.tolist(),
        "refused": str(comm.refuse("no")),
    }


def test_one_process_needs_no_group():
    alone = exchanged(SingleProcess())
    with workers() as group:
        assert exchanged(group) == alone
    assert alone["gathered"] == [{"hops": [1, 2], "3": None}], "as JSON, from however many"


@pytest.mark.parametrize("error", [InputError("wrong"), OSError("full")])
def test_an_error_of_the_only_worker_is_its_own(error):
    with pytest.raises(type(error), match=str(error)), SingleProcess().agreed():
        raise error
    with pytest.raises(type(error), match=str(error)), workers() as group, group.agreed():
        raise error
