"""Run by every worker: sparsified models inside what trains one model on several ranks."""

from __future__ import annotations

import faulthandler
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GCNConv

import unifews as uf
from unifews.errors import InputError

PRUNED = dict(edge_sparsity=0.5, weight_sparsity=0.5, ramp=1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(20, 16), GCNConv(16, 4)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


class Parts(Net):
    """As link prediction is written: `forward` is not called."""

    def encode(self, x, edge_index):
        return self.first(x, edge_index)


class Outer(nn.Module):
    """A sparsified model as a part of another one."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, edge_index):
        return self.inner(x, edge_index)


def made(kind=Net, **how):
    torch.manual_seed(0)
    return uf.sparsify(kind(), **how)


def graph(rank):
    """Every rank has another one."""
    draw = torch.Generator().manual_seed(rank)
    return torch.randn(60, 20, generator=draw), torch.randint(0, 60, (2, 300), generator=draw)


def step(model, rank, call=None):
    """The norm of the gradient of a training pass, or what was said instead. `call`: default: the model itself."""
    try:
        (call or model)(*graph(rank)).square().mean().backward()
    except InputError as error:
        return str(error)
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return float(sum(grad.square().sum() for grad in grads).sqrt())


def unwrapped(rank):
    """A model whose wrapper is gone, of which a reference cycle is left."""
    model = made(**PRUNED)
    wrapper = DistributedDataParallel(model)
    wrapper.cycle = [wrapper]
    del wrapper
    return step(model, rank)


def frozen():
    """Trained alone and alike on all ranks; what is removed does not change any more."""
    model = made(**PRUNED)
    step(model, 0)
    model.zero_grad()
    uf.set_schedule(model, "frozen")
    return model


def main(folder):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    alone = [dist.new_group([one]) for one in range(dist.get_world_size())][rank]
    wrapped, parts = (DistributedDataParallel(made(Parts, **how)) for how in (PRUNED, PRUNED))
    settled = DistributedDataParallel(frozen())
    told = {
        "module of ddp": step(wrapped, rank, wrapped.module),
        "part of ddp": step(parts, rank, parts.module.encode),
        "frozen module of ddp": step(settled, rank, settled.module),
        "no longer ddp": unwrapped(rank),
        "ddp": step(DistributedDataParallel(made(**PRUNED)), rank),
        "ddp weights": step(DistributedDataParallel(made(weight_threshold=0.1)), rank),
        "ddp inside": step(DistributedDataParallel(Outer(made(**PRUNED))), rank),
        "fsdp": step(FullyShardedDataParallel(made(**PRUNED), use_orig_params=True, device_id=torch.device("cpu")), rank),
        "fsdp2": step(fully_shard(made(**PRUNED)), rank),
        "unpruned ddp": step(DistributedDataParallel(made()), rank),
        "frozen ddp": step(DistributedDataParallel(frozen()), rank),
        "ddp of one rank": step(DistributedDataParallel(made(**PRUNED), process_group=alone), rank),
        "independent": step(made(**PRUNED), rank),
    }
    Path(folder, f"told-{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(120, exit=True)
    main(sys.argv[1])
