"""The torch.fx graph of a forward, traced without patching torch.

`torch.fx.Tracer.trace` replaces `torch.nn.Module.__call__` and `__getattr__`, and functions in the globals of other modules,
for the whole process while it runs. Here only the modules of one private copy are given another class while they are traced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import new_class
from typing import Any

import torch
from torch import fx, nn
from torch_geometric.nn import JumpingKnowledge, MessagePassing
from torch_geometric.nn import Linear as Dense
from torch_geometric.nn import norm as norms

from unifews.nn.linear import PrunedWeight

_LEAVES = (MessagePassing, PrunedWeight, Dense, JumpingKnowledge, norms.BatchNorm, norms.LayerNorm, norms.GraphNorm)
ProxyCache = dict[str, fx.Proxy]  # by name of a parameter
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")


def symbolic_graph(outer: nn.Module, names: Sequence[str]) -> fx.Graph:
    """The graph of ``outer.forward`` over placeholders of these names.

    `outer` and its modules must be private to the caller: they have another class and no forward hooks while this runs.
    """
    return _GraphTracer().graph_of(outer, names)


class _GraphTracer(fx.Tracer):
    record_stack_traces = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, _LEAVES) or super().is_leaf_module(m, module_qualified_name)

    def graph_of(self, outer: nn.Module, names: Sequence[str]) -> fx.Graph:
        self.root, self.graph = outer, fx.Graph(tracer_cls=type(self))
        self.submodule_paths = {module: path for path, module in outer.named_modules()}
        self.tensor_attrs = {}
        given = [self.create_proxy("placeholder", name, (), {}) for name in names]
        with self._intercepted(outer):
            result = outer.forward(*given)
        self.create_node("output", "output", (self.create_arg(result),), {})
        return self.graph

    @contextmanager
    def _intercepted(self, outer: nn.Module) -> Iterator[None]:
        """Record calls of these modules and reads of their parameters inside the context."""
        kinds: dict[type[nn.Module], type[nn.Module]] = {}
        modules = [m for m in outer.modules() if not isinstance(m, torch.jit.ScriptModule)]
        cache: ProxyCache = {}
        before = [(module, type(module), {name: vars(module).get(name) for name in _HOOKS}) for module in modules]
        try:
            for module, kind, hooks in before:
                vars(module).update({name: type(found)() for name, found in hooks.items() if found is not None})
                kinds[kind] = kinds.get(kind) or self._kind(kind, cache)
                module.__class__ = kinds[kind]
            yield
        finally:
            for module, kind, hooks in before:
                module.__class__ = kind
                vars(module).update({name: found for name, found in hooks.items() if found is not None})

    def _kind(self, kind: type[nn.Module], cache: ProxyCache) -> type[nn.Module]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            own = kind.__call__ is not nn.Module.__call__

            def forward(*args: Any, **kwargs: Any) -> Any:
                return kind.__call__(module, *args, **kwargs) if own else module.forward(*args, **kwargs)

            return self.call_module(module, forward, args, kwargs)

        def read(module: nn.Module, name: str) -> Any:
            return self.getattr(name, kind.__getattr__(module, name), cache)

        body = {"__call__": call, "__getattr__": read, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        return new_class(kind.__name__, (_NoInitSubclass, kind), exec_body=lambda space: space.update(body))


class _NoInitSubclass(nn.Module):
    """As the first base of a class it prevents ``__init_subclass__`` of the other bases from being called."""

    def __init_subclass__(cls) -> None:
        pass
