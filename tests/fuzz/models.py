"""Folders of models and checkpoints: sound ones that use everything a file can say, and damage that knows their checksum."""

from __future__ import annotations

import copy
import hashlib
import json
import struct
import sys
from pathlib import Path

import torch
from mutate import edit, flip

sys.path.append(str(Path(__file__).parents[1]))

from frozen_models import CLASSES, FEATURES, MODELS, graph, trained
from torch_geometric.nn import GAT

import unifews as uf
from unifews.nn.decoupled import DecoupledModel, Mlp
from unifews.serving.model import FrozenModel

CONFIG, TENSORS = "config.json", "model.safetensors"


def write(place: Path) -> None:
    """Models that still train, the first with an optimizer, and frozen ones, each in a folder of its own."""
    torch.manual_seed(0)
    for number, model in enumerate([*_training(), *_frozen()]):
        uf.save(model, place / str(number), **({} if number else {"optimizer": _stepped(model)}))


def _decoupled():
    head = Mlp(FEATURES, CLASSES, width=8)
    return head, DecoupledModel(head, torch.eye(FEATURES), {"scheme": uf.Appnp(alpha=0.2), "hops": 3, "edge_sparsity": 0.5})


def _frozen():
    x, edge_index = graph()
    kinds = [("gcn", "unit"), ("gat", "node"), ("own", "block"), ("gin", "feature"), ("sage", "node")]
    models = [*(trained(*one) for one in kinds), _decoupled()[1].eval()]
    return [uf.compress(model, x, edge_index) for model in models]


def _training():
    """To be built again, put into another, with an optimizer, or a head alone."""
    models = [trained("gcn", "node"), trained("gat", "unit"), trained("gcnii", "block"), trained("own", "unit")]
    ready = GAT(FEATURES, 16, 2, CLASSES, heads=2, act="leaky_relu", norm="layer", norm_kwargs={"mode": "node"}, jk="lstm")
    head, decoupled = _decoupled()
    return [*models, uf.sparsify(ready, edge_sparsity=0.5, entries="unit", weight_sparsity=0.5), decoupled, head]


def _stepped(model):
    optimizer = torch.optim.Adam(model.parameters())
    model(*graph()).sum().backward()
    optimizer.step()
    return optimizer


def damaged(files, rng):
    """One of the folders after one mutation, mostly with a checksum that fits, as somebody who means harm would write it."""
    number = rng.choice(sorted({name.split("/")[0] for name in files}))
    config, data = json.loads(files[f"{number}/{CONFIG}"]), files[f"{number}/{TENSORS}"]
    text, data = _damaged(config, data, rng)
    return {CONFIG: text, TENSORS: data}, True


def _damaged(config, data, rng):
    """(text of config.json, tensors) after one mutation."""
    way = rng.randrange(8)
    if way == 0:
        return flip(json.dumps(config).encode(), rng), data
    if way <= 3:
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            config = edit(config, rng)
            if not isinstance(config, dict):
                break
        text = json.dumps(_signed(config, data) if isinstance(config, dict) and rng.random() < 0.8 else config)
        return text.encode(), data
    if way == 4:
        return json.dumps(config).encode(), flip(data, rng)
    changed = {5: flip, 6: _edit_header}.get(way, lambda data, rng: data[: rng.randrange(len(data))])(data, rng)
    return json.dumps(_signed(config, changed)).encode(), changed


def _signed(config, data):
    """The config with the checksum of these tensors."""
    config = copy.deepcopy(config)
    if isinstance(config.get("tensors"), dict):
        config["tensors"].update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    return config


def _edit_header(data, rng):
    """The tensors' own header changed."""
    length = struct.unpack("<Q", data[:8])[0]
    header = edit(json.loads(data[8 : 8 + length]), rng)
    text = json.dumps(header).encode()
    size = rng.choice([len(text), len(text), len(text), len(text) + 1, 2**62, 0])
    return struct.pack("<Q", size) + text + data[8 + length :]


def read(place: Path) -> None:
    """Load the model, into one of its class where only that can be, and its optimizer; then run it."""
    if not (place / CONFIG).exists():  # the sound folders
        for folder in place.iterdir():
            _read(folder)
        return
    _read(place)


def _read(folder):
    text = (folder / CONFIG).read_bytes()
    own = b'"class": "Own"' in text
    model = uf.load(folder, into=MODELS["own"]()) if own else uf.load(folder)
    if b'"class": "Adam"' in text and isinstance(model, torch.nn.Module):
        uf.load(folder, into=torch.optim.Adam(model.parameters()))
    x, edge_index = graph(n=60, m=90)
    if isinstance(model, FrozenModel):
        if model.num_features == FEATURES:
            model(x, edge_index)
            model.bind(x, edge_index).predict([0, 5])
    elif isinstance(model, Mlp):
        model(x)
    else:
        model(x, edge_index)
