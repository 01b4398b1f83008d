"""`export`: a frozen model for programs that do not have this library, as a torch.export program or as ONNX."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from io import BytesIO
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from unifews.errors import InputError, unknown_name
from unifews.serving.compress import compress
from unifews.serving.model import FrozenModel
from unifews.serving.model_folder import as_path
from unifews.serving.portable import Indexed, classifier
from unifews.serving.program import GRAPH_OPS, Program
from unifews.storage.atomic import atomic_file

OPSET = 18  # the first whose scatter takes a maximum
_SUFFIX = {"torch": ".pt2", "onnx": ".onnx"}
_ONNX = ("onnx", "onnxscript", "onnxruntime")
_TOLERANCE = 1e-4  # of all scores
_NODES, _EDGES = 48, 200  # of the graph it is tried on

_ONE_AT_A_TIME = Lock()
"""The exporters of torch have state of the whole process, and fail where two run at once."""

Scores = Callable[[tuple[Tensor, ...]], Tensor]


@dataclass(frozen=True)
class Exported:
    """What `export` wrote; the same is in the file, as ``unifews.json`` (torch) or in its metadata (ONNX)."""

    path: Path
    format: str
    inputs: tuple[str, ...]
    """What it is called with, in order: x float32 [nodes, features], edge_index int64 [2, edges], edge_weight float32
    [edges]."""
    propagation: dict[str, Any] | None
    """Arguments of `propagate` that make the embedding it is to be given; None: it is given features."""
    limits: tuple[str, ...]
    """What it cannot do and the frozen model can."""

    def __str__(self) -> str:
        return "\n".join([f"{self.path}: {self.format}, inputs {', '.join(self.inputs)}", *(f"  {s}" for s in self.limits)])


def export(
    model: FrozenModel | nn.Module,
    path: str | PathLike[str],
    format: str = "torch",
    *,
    x: Any = None,
    edge_index: Any = None,
    edge_weight: Any = None,
    weighted: bool = False,
    overwrite: bool = False,
) -> Exported:
    """Write a model for programs without this library: ``torch.export.load(path)``, or any runtime of ONNX opset 18.

    Args:
        model: what `compress` or `load` gave; or a sparsified and trained model, with the graph to freeze it on.
        path: the file to write, ``.pt2`` or ``.onnx``.
        format: ``"torch"`` or ``"onnx"`` (which needs ``pip install "unifews[export]"``).
        x, edge_index, edge_weight: as `compress` takes them, for a model that is not frozen yet.
        weighted: whether what is written takes edge weights, as its third input.
        overwrite: replace a file that is there.

    The graph is an input: any number of nodes and edges. What is written is tried on one and compared with the frozen model
    (an error if it differs by 1e-4). It gives the same scores and none of the speed: weights are dense with their zeros,
    a message is a row in memory, and what is pruned is multiplied by 0. A decoupled model is written without its
    propagation. What else it cannot do is in ``limits`` of what this gives, and in the file. Exports in several threads take
    turns, as torch's exporters have to; models in other threads are not disturbed, but nothing else may export with torch
    meanwhile.
    """
    if format not in _SUFFIX:
        raise unknown_name("format", format, _SUFFIX)
    path = as_path("path", path)
    if path.suffix != _SUFFIX[format]:
        raise InputError(f"{path} must end in {_SUFFIX[format]}, as files of format={format!r} do.")
    missing = [name for name in _ONNX if find_spec(name) is None] if format == "onnx" else []
    if missing:
        raise InputError(f'format="onnx" needs {", ".join(missing)}; install it with: pip install "unifews[export]".')
    with atomic_file(path, overwrite=overwrite) as file:
        weighted = weighted or edge_weight is not None
        program = _frozen(model, x, edge_index, edge_weight).program
        about = _about(program, path, format, weighted)
        with _ONE_AT_A_TIME:
            data, scores = (_torch if format == "torch" else _onnx)(_program(classifier(program), len(about.inputs)), about)
            _try(scores, classifier(program), len(about.inputs), format)
        file.write(data)
    return about


def _frozen(model: Any, x: Any, edge_index: Any, edge_weight: Any) -> FrozenModel:
    if isinstance(model, FrozenModel):
        if x is not None or edge_index is not None or edge_weight is not None:
            raise InputError("a frozen model needs no graph to be exported; leave x, edge_index and edge_weight out.")
        return model
    if isinstance(model, nn.Module) and (x is None or edge_index is None):
        raise InputError(
            f"{type(model).__name__} is not frozen yet; give the graph to freeze it on, x=... and edge_index=..., or what "
            f"uf.compress(model, x, edge_index) gives."
        )
    return compress(model, x, edge_index, edge_weight)


def _about(program: Program, path: Path, format: str, weighted: bool) -> Exported:
    for step in program.steps:
        if step.op == "layer":
            layer = step.settings["layer"]
            raise InputError(f"{layer.path} is a {layer.kind}, which has only PyG's code and no steps, so it is not exported.")
    how = next((step.settings["how"] for step in program.steps if step.op == "propagate"), None)
    around = any(step.op in GRAPH_OPS for step in program.steps)
    if weighted and how is not None:
        raise InputError("a decoupled model is exported without its propagation, so it takes no edge weights; leave them out.")
    if weighted and not any(step.settings.get("weighted") for step in program.steps):
        raise InputError("this model has no use for edge weights; leave `weighted` and `edge_weight` out.")
    limits = ["weights are dense with their zeros: it is as large and as slow as the unpruned model"]
    if around:
        limits += [
            "a message is a row in memory, edges × columns, and what is pruned is multiplied by 0 instead of skipped",
            "it scores all nodes of the graph it is given; there is no predict(nodes)",
            "it takes " + ("edge weights, always" if weighted else "no edge weights"),
        ]
    if any(step.settings.get("form") == "edges" for step in program.steps):
        limits.append(
            "edges that were chosen one by one are not in it: it compares with the stored thresholds on every graph, as the "
            "frozen model does on a new one"
        )
    elif program.decides:
        limits.append("thresholds are fixed numbers, and rounding may tip a product of just that size")
    if how is not None:
        limits.append("it does not propagate: give it uf.propagate(graph, x, ...).embedding, by the settings in `propagation`")
    inputs = ("embedding" if how is not None else "x", *(["edge_index"] * around), *(["edge_weight"] * weighted))
    return Exported(path, format, inputs, None if how is None else dict(how), tuple(limits))


# ------------------------------------------------------------------------------------------------------------- formats


def _program(program: Program, inputs: int) -> ExportedProgram:
    nodes, edges = Dim("nodes"), Dim("edges")
    shapes = ({0: nodes}, {1: edges}, {0: edges})[:inputs]
    with torch.no_grad():
        return torch.export.export(Indexed(program).eval(), _graph(program, inputs, seed=1), dynamic_shapes=shapes)


def _torch(program: ExportedProgram, about: Exported) -> tuple[bytes, Scores]:
    buffer = BytesIO()
    torch.export.save(program, buffer, extra_files={"unifews.json": _words(about)})
    return buffer.getvalue(), lambda given: torch.export.load(BytesIO(buffer.getvalue())).module()(*given)


def _onnx(program: ExportedProgram, about: Exported) -> tuple[bytes, Scores]:
    from onnx.checker import check_model
    from onnxruntime import InferenceSession

    with _quiet():
        made = torch.onnx.export(
            program, dynamo=True, opset_version=OPSET, input_names=about.inputs, output_names=["scores"], verbose=False
        )
    assert made is not None
    proto = made.model_proto
    proto.doc_string = str(about)
    proto.metadata_props.add(key="unifews", value=_words(about))
    check_model(proto)
    data: bytes = proto.SerializeToString()

    def scores(given: tuple[Tensor, ...]) -> Tensor:
        session = InferenceSession(data, providers=["CPUExecutionProvider"])
        named = {name: tensor.numpy() for name, tensor in zip(about.inputs, given, strict=True)}
        return torch.from_numpy(session.run(None, named)[0])

    return data, scores


def _words(about: Exported) -> str:
    return json.dumps({**asdict(about), "path": about.path.name}, indent=1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the converter says about itself."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


# ------------------------------------------------------------------------------------------------------------- trying it


def _graph(program: Program, inputs: int, seed: int) -> tuple[Tensor, ...]:
    """Features, edges and weights of a small graph, as many of them as there are inputs; self-loops are among the edges."""
    known = {step.settings.get("nodes") for step in program.steps}
    nodes = next(n for n in range(_NODES, _NODES + len(known) + 1) if n not in known)  # none whose edges were chosen one by one
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, program.features, generator=draw)
    edge_index = torch.randint(0, nodes, (2, _EDGES), generator=draw)
    return (x, edge_index, torch.rand(_EDGES, generator=draw) + 0.5)[:inputs]


def _try(scores: Scores, program: Program, inputs: int, format: str) -> None:
    given = _graph(program, inputs, seed=2)
    x, *edges = given
    expected = FrozenModel(program)(x, *(edges or [torch.zeros(2, 0, dtype=torch.int64)]))
    found = scores(given)
    error = float((found - expected).norm() / expected.norm().clamp(min=1e-30))
    if found.shape != expected.shape or not error <= _TOLERANCE:
        raise InputError(
            f"what format={format!r} makes of this model differs from it by {error:.2g} of its scores, more than "
            f"{_TOLERANCE:g}, so it is not written; check that its weights are finite, or take the other format."
        )
