"""The products of a layer as torch operators: compiled kernels on the CPU, plain torch on other devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode

from unifews.kernels import LANES, threads_to_use

_MIN_VALUES = 1 << 12  # below, a call costs more than it saves
_SHARED_WORK = 1 << 19  # values below which one thread is done before others have started (some 100 µs)


def takes_kernel(x: Tensor) -> bool:
    """Whether an elementwise kernel with its own `torch.autograd.Function` can stand in for torch's on x.

    Not for other devices, types and layouts, few values, subclasses (meta and fake tensors, compiled models), autocast,
    `torch.func`, forward-mode derivatives, tracing and dispatch modes, which count or record torch's own operations.
    """
    return (
        type(x) in (Tensor, torch.nn.Parameter)
        and x.dtype == torch.float32
        and x.device.type == "cpu"
        and x.layout == torch.strided
        and x.numel() >= _MIN_VALUES
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._is_tracing()
        and torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
        and _get_current_dispatch_mode() is None
    )


class KernelOperator:
    """A kernel as a torch operator, with gradients, torch.compile and flop counting.

    Without gradients, compilation and dispatch modes the kernel is called directly: the first call of a torch operator imports
    torch's compiler, which takes longer than a thousand predictions.
    """

    def __init__(self, name: str, kernel: Callable[..., Any]) -> None:
        self._kernel = kernel
        made = torch.library.custom_op(name, kernel, mutates_args=())
        self.register_fake, self.register_autograd = made.register_fake, made.register_autograd
        library, _, own = name.partition("::")
        self._operator = getattr(getattr(torch.ops, library), own)

    def __call__(self, *args: Any) -> Any:
        seen = torch.is_grad_enabled() or torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None
        if seen:
            return self._operator(*args)
        return self._kernel(*(arg.detach() if isinstance(arg, Tensor) else arg for arg in args))


def operator(name: str) -> Callable[[Callable[..., Any]], KernelOperator]:
    """Register the decorated kernel as the torch operator ``"library::name"``."""
    return lambda kernel: KernelOperator(name, kernel)


def _array(tensor: Tensor) -> NDArray[Any]:
    tensor = tensor.detach() if tensor.requires_grad else tensor
    array: NDArray[Any] = (tensor if tensor.is_contiguous() else tensor.contiguous()).numpy()
    return array


def call_kernel(kernel: Callable[..., Any], outputs: Mapping[str, Tensor | None], **inputs: Any) -> Any:
    """Call a compiled kernel with tensors as NumPy arrays; inputs are made contiguous, outputs are written to in place."""
    for name, value in inputs.items():
        if isinstance(value, Tensor):
            inputs[name] = _array(value)
    for name, value in outputs.items():
        inputs[name] = value if value is None else value.numpy()
    return kernel(**inputs, threads=_threads(inputs))


def _threads(inputs: Mapping[str, Any]) -> int:
    """As many as torch uses (`torch.set_num_threads`), if they have enough to do; no result depends on their number."""
    most = min(threads_to_use(None), torch.get_num_threads())
    return most if most > 1 and _work(inputs) >= _SHARED_WORK else 1


def _work(arrays: Mapping[str, Any]) -> int:
    """About how many values a kernel reads, writes and multiplies: those of its arrays, and of lists each entry with a row."""
    work = sum(int(value.size) for value in arrays.values() if isinstance(value, np.ndarray))
    entries = arrays.get("indices")
    if entries is not None:
        work += len(entries) * (len(arrays["x"]) if "indptr" in arrays else LANES * int(arrays.get("blocks", 1)))
    return work
