"""Model folders, damaged in every way we can think of: only named errors, no crash, no hang, no memory.

python tests/nn/frozen/fuzz.py 10000        # from the root of the repository
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import resource
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from frozen_models import CLASSES, FEATURES, MODELS, graph, trained
from torch_geometric.nn import GAT

import unifews as uf
from unifews.errors import FileFormatError, InputError, MissingFileError, UnifewsError
from unifews.nn.decoupled import Decoupled
from unifews.nn.frozen.model import FrozenModel
from unifews.nn.mlp import Mlp

SECONDS, MEGABYTES = 5.0, 400
ODD = (
    None, True, False, 0, 1, -1, 2, 3, 7, 1.5, -0.0, 1e300, 2**31, 2**40, 2**63, 10**40, "", "x", "linear", "gat", "cat", "sum",
    "dense", "mask", "rows", "sorted", "floats", "flags", "edges", "block", [], [0], [0, 0], [1, 2, 3], {}, {"as": "dense"},
    {"name": "appnp"}, [[[]]], "\x00", "é" * 99,
)  # fmt: skip


def folders(place):
    """Sound folders to start from: (name, config, tensors) of models that use everything a file can say."""
    torch.manual_seed(0)
    x, edge_index = graph()
    models = [("gcn", "unit"), ("gat", "node"), ("own", "block"), ("gin", "feature"), ("sage", "node")]
    made = [uf.compress(trained(*one), x, edge_index) for one in models]
    head = Mlp(FEATURES, CLASSES, width=8)
    how = {"scheme": uf.Appnp(alpha=0.2), "hops": 3, "edge_sparsity": 0.5}
    made.append(uf.compress(Decoupled(head, torch.eye(FEATURES), how).eval(), x, edge_index))
    # And of models that still train: built again, put into another, with an optimizer, or a head alone.
    training = [trained("gcn", "node"), trained("gat", "unit"), trained("gcnii", "block"), trained("own", "unit")]
    ready = GAT(FEATURES, 16, 2, CLASSES, heads=2, act="leaky_relu", norm="layer", norm_kwargs={"mode": "node"}, jk="lstm")
    training.append(uf.sparsify(ready, edge_sparsity=0.5, weight_sparsity=0.5))
    made += [*training, Decoupled(head, torch.eye(FEATURES), how), head]
    for number, model in enumerate(made):
        optimizer = _stepped(model) if model in training[:1] else None
        uf.save(model, place / str(number), **({} if optimizer is None else {"optimizer": optimizer}))
        config = json.loads((place / str(number) / "config.json").read_text())
        yield config, (place / str(number) / "model.safetensors").read_bytes()


def _stepped(model):
    optimizer = torch.optim.Adam(model.parameters())
    model(*graph()).sum().backward()
    optimizer.step()
    return optimizer


def signed(config, data):
    """The config with the checksum of these tensors, as somebody who means harm would write it."""
    config = copy.deepcopy(config)
    if isinstance(config.get("tensors"), dict):
        config["tensors"].update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    return config


def edit(tree, rng):
    """One change somewhere in a tree of JSON."""
    tree = copy.deepcopy(tree)
    places, stack = [], [tree]
    while stack:
        here = stack.pop()
        for key in here if isinstance(here, dict) else range(len(here)):
            places.append((here, key))
            if isinstance(here[key], dict | list):
                stack.append(here[key])
    here, key = rng.choice(places)
    what = rng.randrange(6)
    if what == 0:
        del here[key]
    elif what == 1 and isinstance(here[key], int | float) and not isinstance(here[key], bool):
        here[key] += rng.choice([-1, 1, 2, 100, -100, 2**20, 2**33])
    elif what == 2 and isinstance(here, list):
        here.insert(key, copy.deepcopy(rng.choice(here)))
    elif what == 3:
        there, other = rng.choice(places)
        here[key] = copy.deepcopy(there[other]) if there is not here else there[other]
    elif what == 4 and isinstance(here, dict):
        here[rng.choice(["op", "of", "settings", "arrays", "weight", "bias", "x"])] = here[key]
    else:
        here[key] = rng.choice(ODD)
    return tree


def flip(data, rng):
    """A few bytes changed, left out or put in."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(max(len(data), 1))
        what = rng.randrange(4)
        if what == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif what == 1 and data:
            data[at] = rng.choice([0, 255, 34, 91, 123, 125, rng.randrange(256)])
        elif what == 2:
            del data[at : at + rng.choice([1, 4, 100])]
        else:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice([1, 4, 30])))
    return bytes(data)


def edit_header(data, rng):
    """The tensors' own header changed."""
    length = struct.unpack("<Q", data[:8])[0]
    header = edit(json.loads(data[8 : 8 + length]), rng)
    text = json.dumps(header).encode()
    size = rng.choice([len(text), len(text), len(text), len(text) + 1, 2**62, 0])
    return struct.pack("<Q", size) + text + data[8 + length :]


def damaged(config, data, rng):
    """(text of config.json, tensors) after one mutation."""
    way = rng.randrange(8)
    if way == 0:
        return flip(json.dumps(config).encode(), rng), data
    if way <= 3:
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            config = edit(config, rng)
            if not isinstance(config, dict):
                break
        text = json.dumps(signed(config, data) if isinstance(config, dict) and rng.random() < 0.8 else config)
        return text.encode(), data
    if way == 4:
        return json.dumps(config).encode(), flip(data, rng)
    changed = {5: flip, 6: edit_header}.get(way, lambda data, rng: data[: rng.randrange(len(data))])(data, rng)
    return json.dumps(signed(config, changed)).encode(), changed


def _loaded(folder, text):
    """The model, put into one of its class where only that can be, and its optimizer."""
    own = b'"class": "Own"' in text
    model = uf.load(folder, into=MODELS["own"]()) if own else uf.load(folder)
    if b'"class": "Adam"' in text and isinstance(model, torch.nn.Module):
        uf.load(folder, into=torch.optim.Adam(model.parameters()))
    return model


def _run(model, x, edge_index):
    if isinstance(model, FrozenModel):
        if model.num_features == FEATURES:
            model(x, edge_index)
            model.bind(x, edge_index).predict([0, 5])
    elif isinstance(model, Mlp):
        model(x)
    else:
        model(x, edge_index)


def fuzz(count, seed=0):
    """How many folders were refused, by error, and how many were still sound; raises at anything else."""
    rng, seen = random.Random(seed), Counter()
    x, edge_index = graph(n=60, m=90)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        sound = list(folders(place))
        target = place / "damaged"
        target.mkdir()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(count):
            text, data = damaged(*rng.choice(sound), rng)
            (target / "config.json").write_bytes(text)
            (target / "model.safetensors").write_bytes(data)
            began = time.perf_counter()
            try:
                model = _loaded(target, text)
                seen["loaded"] += 1
            except (FileFormatError, MissingFileError, InputError) as error:
                assert "\n" not in str(error), error
                seen[type(error).__name__] += 1
                continue
            finally:
                assert time.perf_counter() - began < SECONDS, f"mutation {number} of seed {seed} hangs"
            if seen["loaded"] % 4 == 0:
                try:
                    _run(model, x, edge_index)
                    seen["ran"] += 1
                except UnifewsError:
                    seen["refused to run"] += 1
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        assert grown < MEGABYTES, f"loading took {grown:.0f} MB"
    return seen


if __name__ == "__main__":
    print(dict(fuzz(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)))  # noqa: T201
