"""Saved and loaded models: the same scores, small files, and nothing believed that a file says."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from frozen_models import FORMS, graph, trained
from safetensors.numpy import load_file, save
from safetensors.torch import save_file

import unifews as uf
from unifews.errors import FileFormatError, InputError, MissingFileError
from unifews.nn.models import build
from unifews.serving import packed_arrays as packing
from unifews.serving.products import Weight


@pytest.fixture(scope="module")
def fast():
    return uf.compress(trained("gcn"), *graph(), record={"epochs": 3, "accuracy": {"test": 0.81}})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["gcn", "gat", "own", "gcnii"])
def test_a_saved_model_is_the_same_model(name, form, tmp_path):
    x, edge_index = graph()
    fast = uf.compress(trained(name, form), x, edge_index)
    fast.save(tmp_path / "m")
    again = uf.load(tmp_path / "m")
    assert torch.equal(again(x, edge_index), fast(x, edge_index))
    assert torch.equal(again.bind(x, edge_index).predict([1, 8]), fast.predict([1, 8]))
    assert repr(again) == repr(fast)


def test_what_is_beside_the_numbers(fast, tmp_path):
    fast.save(tmp_path / "m")
    assert uf.load(tmp_path / "m").record == {"epochs": 3, "accuracy": {"test": 0.81}}
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["format"] == "unifews-model" and config["version"] == 1 and config["library"] == uf.__version__
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["config.json", "model.safetensors"]


SMALL, LARGE = [(1, 1), (7, 13), (40, 300)], (40, 70_000)  # columns past 2^16, and few values: it takes time
PACKED = [(shape, density) for shape in SMALL for density in (0.0, 0.003, 0.02, 0.1, 0.5, 0.97, 1.0)]


@pytest.mark.parametrize("shape, density", [*PACKED, *((LARGE, density) for density in (0.0, 0.003, 0.02))])
def test_every_way_of_packing_gives_the_matrix_back(shape, density):
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal(shape, dtype=np.float32) * (rng.random(shape) < density)
    packed = Weight.of(torch.from_numpy(matrix))
    how, parts = packing.packed(packed)
    assert sum(part.nbytes for part in parts.values()) <= matrix.nbytes
    for way, stored in [(how["as"], parts), packing.as_mask(packed), packing.as_rows(packed)]:
        arrays = {f"1.weight.{name}": array for name, array in stored.items()}
        again = packing.unpacked({"as": way, "shape": list(shape)}, packing.Parts("1.weight.", arrays))
        assert isinstance(again, Weight) and not arrays
        np.testing.assert_array_equal(again.dense.numpy(), matrix)


@pytest.mark.parametrize("sparsity, share", [(0.15, 0.95), (0.5, 0.6), (0.9, 0.16), (0.98, 0.06)])
def test_files_are_smaller_than_the_dense_model(sparsity, share, tmp_path):
    x, edge_index = graph()
    model = uf.sparsify(
        build("gcn", 20, 5, width=512, layers=3), edge_sparsity=0.5, entries="unit", weight_sparsity=sparsity, ramp=1
    )
    model(x, edge_index).sum().backward()
    uf.compress(model, x, edge_index).save(tmp_path / "m")
    save_file({name: value.contiguous() for name, value in uf.desparsify(model).state_dict().items()}, tmp_path / "dense")
    size = sum(path.stat().st_size for path in (tmp_path / "m").iterdir())
    assert size <= share * (tmp_path / "dense").stat().st_size


def test_saving_replaces_models_only(fast, tmp_path):
    fast.save(tmp_path / "m")
    with pytest.raises(InputError, match="overwrite=True"):
        fast.save(tmp_path / "m")
    fast.save(tmp_path / "m", overwrite=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear")
    with pytest.raises(InputError, match="not a unifews model"):
        fast.save(tmp_path / "mine", overwrite=True)
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_a_record_that_json_cannot_hold(tmp_path):
    x, edge_index = graph()
    fast = uf.compress(trained("gcn"), x, edge_index, record={"loss": float("nan")})
    with pytest.raises(InputError, match="training record"):
        fast.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()
    with pytest.raises(InputError, match="dictionary"):
        uf.compress(trained("gcn"), x, edge_index, record=[1])


@pytest.mark.slow
def test_serving_imports_neither_pyg_nor_torchs_compiler(tmp_path):
    """Which take longer than a thousand predictions."""
    x, edge_index = graph()
    for name, form in (("gcn", "unit"), ("gat", "unit"), ("sage", "block"), ("gat one", "block"), ("gcnii", "node")):
        uf.compress(trained(name, form), x, edge_index).save(tmp_path / name)
    save_file({"x": x, "edge_index": edge_index}, tmp_path / "graph")
    code = f"""
import sys
from pathlib import Path
from safetensors.torch import load_file
import unifews as uf
data = load_file(r"{tmp_path / "graph"}")
for name in ("gcn", "gat", "sage", "gat one", "gcnii"):
    fast = uf.load(Path(r"{tmp_path}") / name).bind(**data)
    fast.predict([3]), fast.predict()
print(*sorted({{"torch", "torch._dynamo", "torch_geometric", "unifews.propagation"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["torch"]


# -------------------------------------------------------------------------------------------------------------- bad files


@pytest.fixture
def folder(fast, tmp_path):
    fast.save(tmp_path / "m")
    return tmp_path / "m"


def change(folder, make):
    """Change the config by a function, and the checksum with it."""
    config = json.loads((folder / "config.json").read_text())
    make(config)
    (folder / "config.json").write_text(json.dumps(config))


def put(folder, change_arrays):
    """Change the tensors by a function, and sign them."""
    arrays = dict(load_file(folder / "model.safetensors"))
    change_arrays(arrays)
    data = save(arrays)
    (folder / "model.safetensors").write_bytes(data)
    change(folder, lambda c: c["tensors"].update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest()))


def test_missing_foreign_and_newer_folders(folder, tmp_path):
    with pytest.raises(MissingFileError, match="no model folder"):
        uf.load(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileFormatError, match="not a unifews model"):
        uf.load(tmp_path / "empty")
    uf.Graph.from_edge_index([[0], [1]]).save(tmp_path / "graph")
    with pytest.raises(FileFormatError, match="not a unifews model"):
        uf.load(tmp_path / "graph")
    change(folder, lambda c: c.update(version=3))
    with pytest.raises(FileFormatError, match=r"format version 3.*reads version 1 and 2"):
        uf.load(folder)


def test_missing_settings_take_defaults_and_unknown_fields_are_refused(folder):
    """A later release adds fields: files of either release are read, but for what this one does not know."""
    was = uf.load(folder).program.steps

    def without_relu(config):
        config["version"] = 2
        for step in config["steps"]:
            if step.get("settings", {}).get("relu") is False:
                del step["settings"]["relu"]

    change(folder, without_relu)
    assert [step.settings for step in uf.load(folder).program.steps] == [step.settings for step in was]
    change(folder, lambda config: config.update(precision="int8"))
    with pytest.raises(FileFormatError, match="has 'precision', which this release does not know"):
        uf.load(folder)


def test_a_truncated_or_changed_tensor_file(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-1])
    with pytest.raises(FileFormatError, match="truncated or was changed"):
        uf.load(folder)
    (folder / "model.safetensors").write_bytes(data[:-1] + b"x")
    with pytest.raises(FileFormatError, match="truncated or was changed"):
        uf.load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(MissingFileError, match=r"no model\.safetensors"):
        uf.load(folder)


def set_step(number, **values):
    return lambda config: config["steps"][number].update(values)


def set_setting(number, **values):
    return lambda config: config["steps"][number]["settings"].update(values)


@pytest.mark.parametrize(
    "make, sentence",
    [
        (set_step(0, op="system"), "step 1 .system. is not an operation"),
        (set_step(0, of=[1]), "values .1., some of which are not computed yet"),
        (set_step(0, of=[True]), "not computed yet"),
        (set_step(0, of=[0, 0]), "has 2 inputs; it takes 1"),
        (set_step(0, code="import os"), "not a step"),
        (set_setting(0, relu="yes"), "cannot have relu = 'yes'"),
        (set_setting(1, norm="huge"), "cannot have norm"),
        (set_setting(1, delta=float("inf")), "cannot have delta"),
        (set_setting(1, form="edges"), "arrays that do not match"),
        (set_setting(1, nodes=-4), "cannot have nodes"),
        (lambda c: c["steps"][0]["arrays"]["weight"].update(shape=[10**9, 10**9]), "bits|sound shape"),
        (lambda c: c["steps"][0]["arrays"]["weight"].update(shape=[24, 21]), "bits|24|inputs"),
        (lambda c: c["steps"][0]["arrays"]["weight"].update({"as": "pickle"}), "does not know"),
        (lambda c: c["steps"].clear(), "0 steps"),
        (lambda c: c["steps"].pop(), "returns .* columns, but|does not use"),
        (lambda c: c["steps"].extend([{"op": "cat", "of": [4, 4]}] * 3), "columns, but `outputs` is 5"),
        (lambda c: c.update(features=21), "needs a weight with 21 inputs"),
        (lambda c: c.update(features=True), "needs `features`"),
        (lambda c: c.update(requested=1), "is damaged"),
        (lambda c: c.pop("tensors"), "does not describe"),
        (lambda c: c["tensors"].update(file="../../etc/passwd"), "does not describe"),
    ],
)
def test_a_config_that_lies(folder, make, sentence):
    change(folder, make)
    with pytest.raises(FileFormatError, match=sentence) as caught:
        uf.load(folder)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


def test_a_program_cannot_grow_without_end(folder):
    def grow(config):
        for _ in range(60):
            last = len(config["steps"])
            config["steps"].append({"op": "cat", "of": [last, last]})

    change(folder, grow)
    with pytest.raises(FileFormatError, match="columns; a value has"):
        uf.load(folder)


def test_deep_json_is_no_model(folder):
    (folder / "config.json").write_text('{"format": "unifews-model", "a": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(FileFormatError):
        uf.load(folder)


@pytest.mark.parametrize(
    "name, change_array, sentence",
    [
        ("1.weight.bits", lambda a: ~a, "values, not"),
        ("1.weight.bits", lambda a: a[:-1], "bits, not"),
        ("1.weight.bits", lambda a: a.astype(np.float32), "of type float32"),
        ("1.weight.values", lambda a: a[1:], "values, not"),
        ("1.weight.values", lambda a: a * np.inf, "not finite"),
        ("1.weight.values", lambda a: a.astype(np.float64), "F64|of type"),
        ("2.bias.values", lambda a: a[:3], "3 values, not 24"),
        ("2.columns.bits", lambda a: a[:1], "bits, not"),
    ],
)
def test_tensors_that_do_not_fit(folder, name, change_array, sentence):
    def swap(arrays):
        arrays[name] = np.ascontiguousarray(change_array(arrays[name]))

    put(folder, swap)
    with pytest.raises(FileFormatError, match=sentence):
        uf.load(folder)


def test_tensors_that_nobody_needs_or_that_are_not_there(folder):
    put(folder, lambda arrays: arrays.update(more=np.zeros(3, np.float32)))
    with pytest.raises(FileFormatError, match="does not use 'more'"):
        uf.load(folder)
    put(folder, lambda arrays: [arrays.pop("more"), arrays.pop("2.bias.values")])
    with pytest.raises(FileFormatError, match="has no values"):
        uf.load(folder)


def test_indices_out_of_range(tmp_path):
    """Weights so few that they are stored by their indices."""
    x, edge_index = graph()
    model = uf.sparsify(
        build("gcn", 20, 5, width=300, layers=3), edge_sparsity=0.5, entries="unit", weight_sparsity=0.99, ramp=1
    )
    model(x, edge_index).sum().backward()
    uf.compress(model, x, edge_index).save(tmp_path / "m")
    name = next(name for name in load_file(tmp_path / "m" / "model.safetensors") if name.endswith(".indices"))
    put(tmp_path / "m", lambda arrays: arrays.update({name: np.full_like(arrays[name], 301)}))
    with pytest.raises(FileFormatError, match="names input 301 of 300"):
        uf.load(tmp_path / "m")
    put(tmp_path / "m", lambda arrays: arrays.update({name: np.zeros_like(arrays[name])}))
    with pytest.raises(FileFormatError, match="unsorted"):
        uf.load(tmp_path / "m")


def test_edges_that_no_graph_has(tmp_path):
    uf.compress(trained("gcn", "node"), *graph()).save(tmp_path / "m")
    change(tmp_path / "m", set_setting(1, nodes=12))
    with pytest.raises(FileFormatError, match="edges that a graph of 12 nodes does not have"):
        uf.load(tmp_path / "m")


@pytest.mark.parametrize("place", [3, None, b"folder", ["folder"], "a\0b"])
def test_what_is_no_path(fast, place):
    model = trained("gcn")
    for call in (uf.load, fast.save, fast.load, lambda p: uf.save(model, p), lambda p: uf.export(fast, p)):
        with pytest.raises(InputError, match="which is not a path; give a str"):
            call(place)
