"""Whether a model is trained by several processes or replicas at once, which would decide differently."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from unifews.errors import InputError


def check_one_process(module: nn.Module, layers: Iterable[nn.Module]) -> None:
    """A pass that takes decisions is one of a whole model: every rank would decide by its own batch, and masks would differ.

    `module`: what is called; `layers`: those that decide. Where a process group is there and the model is not given to it,
    nothing is wrong.
    """
    found = _found(module, list(layers))
    if found:
        raise InputError(
            f"this sparsified model is trained in {found}, where each one would decide by its own batch which weights and "
            f"messages to remove; train it in one process, or call uf.set_schedule(model, 'frozen') once it is trained and go "
            f"on from there (decisions that ranks share are planned)."
        )


def _found(module: nn.Module, layers: list[nn.Module]) -> str:
    if any(getattr(part, "_is_replica", False) for part in (module, *layers)):
        return "replicas of torch.nn.DataParallel"
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return ""
    wrapper = getattr(DistributedDataParallel, "_active_ddp_module", None)  # the one whose forward is running
    if wrapper is not None and _holds(wrapper, layers):
        ranks = torch.distributed.get_world_size(wrapper.process_group)
        return f"DistributedDataParallel with {ranks} ranks" if ranks > 1 else ""
    ranks = torch.distributed.get_world_size()
    if ranks > 1 and any(getattr(layer, "_is_fsdp_managed_module", False) for layer in layers):
        return f"FullyShardedDataParallel with {ranks} ranks"
    return ""


def _holds(wrapper: nn.Module, layers: list[nn.Module]) -> bool:
    ours = set(map(id, layers))
    return any(id(module) in ours for module in wrapper.modules())
