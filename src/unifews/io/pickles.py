"""Arrays from pickles without unpickling: the opcodes are read as data, and nothing that they name is called.

Numbers, text, lists, dictionaries, numpy arrays of numbers and scipy's compressed rows are read; anything else in a pickle is
an error. The memory used is proportional to the size of the pickle.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NUMBERS = {f"{kind}{size}" for kind, sizes in {"b": "1", "i": "1248", "u": "1248", "f": "248"}.items() for size in sizes}
_MODULES = {
    "__builtin__": "builtins",
    "numpy._core.multiarray": "numpy.core.multiarray",
    "scipy.sparse._csr": "scipy.sparse.csr",
}
_RECONSTRUCT = "numpy.core.multiarray._reconstruct"
_ROWS = "scipy.sparse.csr.csr_matrix"
_ADMITTED = {"numpy.ndarray", "numpy.dtype", _RECONSTRUCT, _ROWS, "collections.defaultdict", "builtins.list"}


class Refused(ValueError):
    """A pickle with an object that is not admitted."""


class PickledRows:
    """The state of a scipy csr_matrix in a pickle."""

    state: dict[str, Any]


class _Named(str):
    """A class or function by its name; nothing stands behind it."""


class _Type:
    """A numpy dtype: its code, and its byte order once its state is known."""

    def __init__(self, code: str) -> None:
        if code not in _NUMBERS:
            raise Refused(f"it holds an array of type {code[:20]!r}")
        self.code, self.order = code, "="


class _Array:
    """A numpy array until its state is known."""

    def __init__(self) -> None:
        self.keys: list[int] = []  # under which it is remembered


def loads(content: bytes) -> Any:
    """What a pickle holds. One with other objects is `Refused`; a damaged one is a ValueError, TypeError or LookupError."""
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(content):
        step = _STEPS.get(opcode.name)
        if step is None:
            raise Refused(f"it uses the opcode {opcode.name}")
        step(machine, argument)
        if opcode.name == "STOP":
            return machine.stack.pop()
    raise ValueError("it has no end")


class _Machine:
    """The stack of a pickle, the marks in it, and what it refers back to."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def since_mark(self) -> list[Any]:
        at = self.marks.pop()
        items = self.stack[at:]
        del self.stack[at:]
        return items

    def put(self, key: int | None) -> None:
        key, item = len(self.memo) if key is None else key, self.stack[-1]
        self.memo[key] = item
        if isinstance(item, _Array):
            item.keys.append(key)

    def name(self, module: str, name: str) -> None:
        full = f"{_MODULES.get(module, module)}.{name}"
        if full not in _ADMITTED:
            raise Refused(f"it names {module}.{name}")
        self.stack.append(_Named(full))

    def stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if type(module) is not str or type(name) is not str:
            raise Refused("it names an object that is not text")
        self.name(module, name)

    def call(self) -> None:
        """What an admitted name stands for, given its arguments."""
        arguments, name = self.stack.pop(), self.stack.pop()
        if not isinstance(name, _Named) or type(arguments) is not tuple:
            raise Refused("it calls something that is no name")
        if name == "numpy.dtype" and arguments:
            self.stack.append(_Type(_text(arguments[0])))
        elif name == _RECONSTRUCT and arguments[:1] == ("numpy.ndarray",):
            self.stack.append(_Array())
        elif name == _ROWS:
            self.stack.append(PickledRows())
        elif name == "collections.defaultdict" and arguments == ("builtins.list",):
            self.stack.append({})
        elif name == "builtins.list" and not arguments:
            self.stack.append([])
        else:
            raise Refused(f"it calls {name} with {len(arguments)} arguments")

    def build(self) -> None:
        """Give an object its state."""
        state, item = self.stack.pop(), self.stack[-1]
        if isinstance(item, _Type):
            item.order = _text(state[1]).replace("|", "=")
            if item.order not in "<>=" or state[2:5] != (None, None, None):
                raise Refused("it holds an array of a compound type")
        elif isinstance(item, _Array):
            self.stack[-1] = array = _array(*state[-4:])
            self.memo |= dict.fromkeys(item.keys, array)
        elif isinstance(item, PickledRows) and type(state) is dict:
            item.state = state
        else:
            raise Refused(f"it changes a {type(item).__name__}")

    def items(self, pairs: list[Any]) -> None:
        if type(self.stack[-1]) is not dict or len(pairs) % 2:
            raise ValueError("items of what is no dictionary")
        self.stack[-1].update(zip(pairs[::2], pairs[1::2], strict=True))

    def extend(self, values: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise ValueError("values of what is no list")
        self.stack[-1].extend(values)

    def tuple_of(self, size: int) -> None:
        items = self.stack[len(self.stack) - size :]
        if len(items) != size:
            raise IndexError("a tuple of more than there is")
        del self.stack[len(self.stack) - size :]
        self.stack.append(tuple(items))


def _dict_since(machine: _Machine) -> None:
    pairs = machine.since_mark()
    machine.stack.append({})
    machine.items(pairs)


_Step = Callable[[_Machine, Any], Any]
_PUSHED: _Step = lambda m, value: m.stack.append(value)  # noqa: E731
_NUMBERS_AND_TEXT = [
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING"),
    *("SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
]
_STEPS: dict[str, _Step] = {
    **dict.fromkeys(_NUMBERS_AND_TEXT, _PUSHED),
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda m, _: None),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda m, key: m.stack.append(m.memo[key])),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), lambda m, _: m.call()),
    "NONE": lambda m, _: m.stack.append(None),
    "NEWTRUE": lambda m, _: m.stack.append(True),
    "NEWFALSE": lambda m, _: m.stack.append(False),
    "MARK": lambda m, _: m.marks.append(len(m.stack)),
    "POP": lambda m, _: m.stack.pop(),
    "POP_MARK": lambda m, _: m.since_mark(),
    "EMPTY_TUPLE": lambda m, _: m.tuple_of(0),
    "TUPLE1": lambda m, _: m.tuple_of(1),
    "TUPLE2": lambda m, _: m.tuple_of(2),
    "TUPLE3": lambda m, _: m.tuple_of(3),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.since_mark())),
    "EMPTY_LIST": lambda m, _: m.stack.append([]),
    "LIST": lambda m, _: m.stack.append(m.since_mark()),
    "APPEND": lambda m, _: m.extend([m.stack.pop()]),
    "APPENDS": lambda m, _: m.extend(m.since_mark()),
    "EMPTY_DICT": lambda m, _: m.stack.append({}),
    "DICT": lambda m, _: _dict_since(m),
    "SETITEM": lambda m, _: m.items([m.stack.pop(), m.stack.pop()][::-1]),
    "SETITEMS": lambda m, _: m.items(m.since_mark()),
    "GLOBAL": lambda m, names: m.name(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.stack_global(),
    "BUILD": lambda m, _: m.build(),
}


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _array(shape: Any, dtype: Any, fortran: Any, data: Any) -> NDArray[Any]:
    """An array of its state, whose data have the length of its shape. Data of Python 2 are text of the bytes' values."""
    raw = data.encode("latin1") if isinstance(data, str) else data
    plain = type(shape) is tuple and all(type(side) is int and side >= 0 for side in shape)
    if not plain or not isinstance(dtype, _Type) or type(raw) is not bytes:
        raise Refused("it holds an array of something else than numbers")
    kind = np.dtype(dtype.order + dtype.code)
    if prod(shape) * kind.itemsize != len(raw):
        raise ValueError(f"an array of shape {list(shape)} in {len(raw):,} bytes")
    return np.frombuffer(raw, kind).reshape(shape, order="F" if fortran else "C").copy()
