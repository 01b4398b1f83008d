"""Whether a model is trained by several processes or replicas at once, which would decide differently."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

from unifews.errors import InputError

_wrappers: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


def _remember_wrapper(module: nn.Module, name: str, submodule: nn.Module | None) -> None:
    """DDP leaves no mark on the module it is given, so wrappers are recorded when they are made."""
    if isinstance(module, DistributedDataParallel):
        _wrappers.add(module)


register_module_module_registration_hook(_remember_wrapper)


def check_one_process(module: nn.Module, layers: Iterable[nn.Module]) -> None:
    """A pass that takes decisions is one of a whole model: every rank would decide by its own batch, and masks would differ.

    `module`: what is called; `layers`: those that decide. A model that is wrapped in DistributedDataParallel counts as trained
    by all of its ranks, also when it is called through ``ddp.module``. Where a process group is there and the model is not
    given to it, nothing is wrong.
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
    ranks = _ddp_ranks(layers)
    if ranks > 1:
        gc.collect()  # a wrapper that is no longer in use may be kept alive by a reference cycle
        ranks = _ddp_ranks(layers)
    if ranks > 1:
        return f"DistributedDataParallel with {ranks} ranks"
    ranks = torch.distributed.get_world_size()
    if ranks > 1 and any(getattr(layer, "_is_fsdp_managed_module", False) for layer in layers):
        return f"FullyShardedDataParallel with {ranks} ranks"
    return ""


def _ddp_ranks(layers: list[nn.Module]) -> int:
    """Ranks of the largest process group that a DistributedDataParallel around one of these layers has; 0 = no such wrapper."""
    ours = set(map(id, layers))
    running = getattr(DistributedDataParallel, "_active_ddp_module", None)  # may be older than the import of this module
    wrappers = [*_wrappers, *([] if running is None else [running])]
    held = [wrapper for wrapper in wrappers if any(id(module) in ours for module in wrapper.modules())]
    return max((torch.distributed.get_world_size(wrapper.process_group) for wrapper in held), default=0)
