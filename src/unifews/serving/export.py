"""`export`: a frozen model as a torch.export program or as ONNX, for programs without this library."""

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
from unifews.serving.packed_arrays import Json
from unifews.serving.portable import PortableProgram, classifier
from unifews.serving.program import GRAPH_OPS, Program
from unifews.storage.atomic import atomic_file

OPSET = 18  # the first with scatter of maxima
_SUFFIX = {"torch": ".pt2", "onnx": ".onnx"}
_ONNX = ("onnx", "onnxscript", "onnxruntime")
_TOLERANCE = 1e-4  # relative, of the norm of all scores
_NODES, _EDGES = 48, 200  # of the test graph

_EXPORT_LOCK = Lock()
"""The exporters of torch have global state and fail when two run at once."""

Scores = Callable[[tuple[Tensor, ...]], Tensor]


@dataclass(frozen=True)
class Exported:
    """Description of an exported file; also stored in it, as ``unifews.json`` (torch) or in its metadata (ONNX)."""

    path: Path
    format: str
    inputs: tuple[str, ...]
    """Its inputs in order: x float32 [nodes, features], edge_index int64 [2, edges], edge_weight float32 [edges]."""
    propagation: Json | None
    """Arguments of `propagate` for the embedding that it takes as input; None: it takes features."""
    limits: tuple[str, ...]
    """Limitations compared with the frozen model."""

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
    """Export a model for programs without this library: ``torch.export.load(path)``, or any runtime of ONNX opset 18.

    Args:
        model: a `FrozenModel`; or a sparsified and trained model, with the graph to freeze it on.
        path: the file to write, ``.pt2`` or ``.onnx``.
        format: ``"torch"`` or ``"onnx"`` (which needs ``pip install "unifews[export]"``).
        x, edge_index, edge_weight: as in `compress`, for a model that is not frozen.
        weighted: whether the exported program takes edge weights, as its third input.
        overwrite: replace an existing file.

    The graph is an input with any number of nodes and edges. The exported program is compared with the frozen model on a small
    graph (an error if scores differ by more than 1e-4). It returns the same scores without the speed: weights are dense, every
    message is a row in memory, and what is pruned is multiplied by 0. A decoupled model is exported without its propagation.
    Other limitations are in ``limits`` of the result, and in the file. Exports in several threads run one after the other,
    because torch's exporters have global state; nothing else may export with torch meanwhile.
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
        with _EXPORT_LOCK:
            data, scores = (_torch if format == "torch" else _onnx)(_program(classifier(program), len(about.inputs)), about)
            _compare_with_frozen(scores, classifier(program), len(about.inputs), format)
        file.write(data)
    return about


def _frozen(model: Any, x: Any, edge_index: Any, edge_weight: Any) -> FrozenModel:
    if isinstance(model, FrozenModel):
        if x is not None or edge_index is not None or edge_weight is not None:
            raise InputError("a frozen model is exported without a graph; leave x, edge_index and edge_weight out.")
        return model
    if isinstance(model, nn.Module) and (x is None or edge_index is None):
        raise InputError(
            f"{type(model).__name__} is not frozen yet; give the graph to freeze it on, x=... and edge_index=..., or the "
            f"result of uf.compress(model, x, edge_index)."
        )
    return compress(model, x, edge_index, edge_weight)


def _about(program: Program, path: Path, format: str, weighted: bool) -> Exported:
    for step in program.steps:
        if step.op == "layer":
            layer = step.settings["layer"]
            raise InputError(f"{layer.path} is a {layer.kind}, which runs with its own code and cannot be exported.")
    how = next((step.settings["how"] for step in program.steps if step.op == "propagate"), None)
    around = any(step.op in GRAPH_OPS for step in program.steps)
    if weighted and how is not None:
        raise InputError("a decoupled model is exported without its propagation, so it takes no edge weights; leave them out.")
    if weighted and not any(step.settings.get("weighted") for step in program.steps):
        raise InputError("this model does not use edge weights; leave `weighted` and `edge_weight` out.")
    limits = ["weights are dense, zeros included: it is as large and as slow as the unpruned model"]
    if around:
        limits += [
            "every message is a row in memory, edges × columns, and what is pruned is multiplied by 0 instead of skipped",
            "it scores all nodes of a graph; there is no predict(nodes)",
            "it takes " + ("edge weights, always" if weighted else "no edge weights"),
        ]
    if program.thinning is not None:
        limits.append("it uses all edges that it is called with: give it those of FrozenModel.thin(edge_index)")
    if any(step.settings.get("form") == "edges" for step in program.steps):
        limits.append(
            "the list of removed edges is not in it: it compares with the stored thresholds on every graph, as the frozen "
            "model does on a new graph"
        )
    elif program.decides:
        limits.append("thresholds are fixed numbers, and rounding may decide about a product near one")
    if how is not None:
        limits.append("it does not propagate: its input is uf.propagate(graph, x, ...).embedding, see `propagation`")
    inputs = ("embedding" if how is not None else "x", *(["edge_index"] * around), *(["edge_weight"] * weighted))
    return Exported(path, format, inputs, None if how is None else dict(how), tuple(limits))


# ------------------------------------------------------------------------------------------------------------- formats


def _program(program: Program, inputs: int) -> ExportedProgram:
    nodes, edges = Dim("nodes"), Dim("edges")
    shapes = ({0: nodes}, {1: edges}, {0: edges})[:inputs]
    with torch.no_grad():
        return torch.export.export(PortableProgram(program).eval(), _graph(program, inputs, seed=1), dynamic_shapes=shapes)


def _torch(program: ExportedProgram, about: Exported) -> tuple[bytes, Scores]:
    buffer = BytesIO()
    torch.export.save(program, buffer, extra_files={"unifews.json": _metadata(about)})
    return buffer.getvalue(), lambda given: torch.export.load(BytesIO(buffer.getvalue())).module()(*given)


def _onnx(program: ExportedProgram, about: Exported) -> tuple[bytes, Scores]:
    from onnx.checker import check_model
    from onnxruntime import InferenceSession

    with _without_messages():
        made = torch.onnx.export(
            program, dynamo=True, opset_version=OPSET, input_names=about.inputs, output_names=["scores"], verbose=False
        )
    assert made is not None
    proto = made.model_proto
    proto.doc_string = str(about)
    proto.metadata_props.add(key="unifews", value=_metadata(about))
    check_model(proto)
    data: bytes = proto.SerializeToString()

    def scores(given: tuple[Tensor, ...]) -> Tensor:
        session = InferenceSession(data, providers=["CPUExecutionProvider"])
        named = {name: tensor.numpy() for name, tensor in zip(about.inputs, given, strict=True)}
        return torch.from_numpy(session.run(None, named)[0])

    return data, scores


def _metadata(about: Exported) -> str:
    return json.dumps({**asdict(about), "path": about.path.name}, indent=1)


@contextmanager
def _without_messages() -> Iterator[None]:
    """Suppress log messages and warnings of the converter."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


# ------------------------------------------------------------------------------------------------------------ comparison


def _graph(program: Program, inputs: int, seed: int) -> tuple[Tensor, ...]:
    """Features, edges and weights of a small graph with self-loops, as many of them as there are inputs."""
    known = {step.settings.get("nodes") for step in program.steps}
    nodes = next(n for n in range(_NODES, _NODES + len(known) + 1) if n not in known)  # not that of a stored list of edges
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, program.features, generator=draw)
    edge_index = torch.randint(0, nodes, (2, _EDGES), generator=draw)
    return (x, edge_index, torch.rand(_EDGES, generator=draw) + 0.5)[:inputs]


def _compare_with_frozen(scores: Scores, program: Program, inputs: int, format: str) -> None:
    given = _graph(program, inputs, seed=2)
    x, *edges = given
    expected = FrozenModel(program)(x, *(edges or [torch.zeros(2, 0, dtype=torch.int64)]))
    found = scores(given)
    error = float((found - expected).norm() / expected.norm().clamp(min=1e-30))
    if found.shape != expected.shape or not error <= _TOLERANCE:
        raise InputError(
            f"the scores of the model exported as format={format!r} differ by {error:.2g}, more than {_TOLERANCE:g}, so it is "
            f"not written; check that its weights are finite, or use the other format."
        )
