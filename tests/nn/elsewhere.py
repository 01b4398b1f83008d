"""A device that every machine has: tensors of it are CPU tensors in a wrapper that must not be mixed with others.

An operation on tensors of both places raises, as it does between the CPU and a GPU; a scalar may come from the CPU. Unlike on
a GPU, an index from the CPU is refused as well: it costs a copy at every call.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils import _pytree as tree
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("lazy", 0)
aten = torch.ops.aten
_ANYWHERE = {aten._to_copy.default, aten.copy_.default, aten._copy_from.default}


class Elsewhere(Tensor):
    """A tensor that says it is on `DEVICE`."""

    elem: Tensor

    @staticmethod
    def __new__(cls, elem):
        return Tensor._make_wrapper_subclass(
            cls,
            elem.size(),
            strides=elem.stride(),
            storage_offset=elem.storage_offset(),
            dtype=elem.dtype,
            layout=elem.layout,
            device=DEVICE,
            requires_grad=elem.requires_grad,
        )

    def __init__(self, elem):
        self.elem = elem.detach()

    def __repr__(self, *, tensor_contents=None):
        return f"Elsewhere({self.elem})"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is Tensor.as_subclass:
            return args[0]
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


class Place(TorchDispatchMode):
    """While it is on, tensors can be made on `DEVICE`."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


def run(func, args, kwargs):
    flat, _ = tree.tree_flatten((args, kwargs))
    here = [a for a in flat if isinstance(a, Tensor) and not isinstance(a, Elsewhere)]
    there = [a for a in flat if isinstance(a, Elsewhere)]
    device = kwargs.get("device")
    if there and func not in _ANYWHERE and any(a.ndim for a in here):
        raise RuntimeError(f"{func} mixes tensors of two devices: {[tuple(a.shape) for a in here]} on the CPU")
    if there and func.namespace == "unifews":
        raise RuntimeError(f"{func} is a kernel of the CPU")
    kwargs = {**kwargs, "device": torch.device("cpu")} if device is not None else kwargs
    args, kwargs = tree.tree_map_only(Elsewhere, lambda a: a.elem, (args, kwargs))
    out = func(*args, **kwargs)
    if func is aten.copy_.default or (device is None and not there):
        return flat[0] if func is aten.copy_.default else out
    if device is not None and torch.device(device).type != DEVICE.type:
        return out
    if func._schema.name.endswith("_") and isinstance(flat[0], Elsewhere):
        return flat[0]
    return tree.tree_map_only(Tensor, Elsewhere, out)


def move(value):
    """A copy of a tensor, of a container of them, or of a module, on `DEVICE`."""
    if isinstance(value, nn.Module):
        for module in value.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = nn.Parameter(Elsewhere(parameter.detach().clone()))
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = Elsewhere(buffer.clone())
            for name, tensor in list(vars(module).items()):  # such as `_apply` of the module itself moves
                if isinstance(tensor, Tensor):
                    setattr(module, name, Elsewhere(tensor.clone()))
        return value
    return tree.tree_map_only(Tensor, lambda a: Elsewhere(a.clone()), value)


def back(value):
    """The value on the CPU."""
    return value.elem if isinstance(value, Elsewhere) else value
