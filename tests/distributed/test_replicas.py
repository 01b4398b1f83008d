"""A sparsified model trained on two ranks as one model: each would decide by its own batch, so it is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from replicas import PRUNED, graph, made
from torchrun import torchrun

from unifews.errors import InputError

pytestmark = pytest.mark.slow

SAYS = r"this sparsified model is trained in {} with 2 ranks, where each one would decide .*; train it in one process, or "


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replicas")
    done = torchrun(2, Path(__file__).parent / "replicas.py", folder, OMP_NUM_THREADS="1")
    assert done.code == 0, done.err[-3000:]
    return [json.loads((folder / f"told-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("case", "wrapper"),
    [
        ("ddp", "DistributedDataParallel"),
        ("ddp weights", "DistributedDataParallel"),
        ("ddp inside", "DistributedDataParallel"),
        ("module of ddp", "DistributedDataParallel"),
        ("part of ddp", "DistributedDataParallel"),
        ("fsdp", "FullyShardedDataParallel"),
        ("fsdp2", "FullyShardedDataParallel"),
    ],
)
def test_ranks_that_would_decide_differently(told, case, wrapper):
    for each in told:
        assert isinstance(each[case], str), each[case]
        with pytest.raises(InputError, match=SAYS.format(wrapper)):
            raise InputError(each[case])
        assert "\n" not in each[case]


def test_a_frozen_model_may_be_called_past_its_wrapper(told):
    assert all(each["frozen module of ddp"] > 0 for each in told)


@pytest.mark.parametrize("case", ["unpruned ddp", "frozen ddp"])
def test_where_nothing_is_decided_gradients_are_shared(told, case):
    assert told[0][case] == told[1][case] > 0


@pytest.mark.parametrize("case", ["ddp of one rank", "independent", "no longer ddp"])
def test_models_of_their_own_beside_a_process_group(told, case):
    assert all(each[case] > 0 for each in told) and told[0][case] != told[1][case]


def test_replicas_within_one_process():
    """What torch.nn.DataParallel makes of a model for each of several GPUs."""
    model = made(**PRUNED)
    torch.nn.DataParallel(model)(*graph(0)).sum().backward()  # without GPUs, or with one, it is the model itself
    with pytest.raises(InputError, match=r"in replicas of torch\.nn\.DataParallel, where each one would decide"):
        model._replicate_for_data_parallel()(*graph(0))
