"""An option is one field: its flag, help text, key in run files, validation and reference page come from it."""

from __future__ import annotations

import importlib.util
import inspect
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import call, fine, work_in, wrong

import unifews as uf
from unifews.core.config import option, options_of
from unifews.core.entry import Amounts
from unifews.datasets.gencat import gencat
from unifews.errors import InputError
from unifews.nn.config import PruningConfig
from unifews.propagation import api as propagation_api
from unifews.propagation.config import PropagationConfig
from unifews.training import api as training_api
from unifews.training import spec

IMPORTED = (propagation_api, training_api)  # before a class is replaced, so that none of their modules goes on using it
DOCS = Path(__file__).parents[2] / "docs"
QUICK = ("--epochs", 2, "--width", 4, "--seeds", 1, "--no-baseline")


@dataclass(frozen=True)
class WithOption(spec.DecoupledSpec):
    """A specification with one more field."""

    warmup: int = option(0, "epochs of linear warm-up", ge=0, group="Training", metavar="N", needs="hops")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    work_in(tmp_path, monkeypatch)
    monkeypatch.setattr(spec, "DecoupledSpec", WithOption)
    uf.save_dataset(gencat(60, 150, features=8, classes=3, seed=1), tmp_path / "d")
    return tmp_path


def test_it_is_a_flag_with_help(folder):
    shown = " ".join(fine("train", "--help-all").out.replace("│", " ").split())
    assert "--warmup" in shown and "Epochs of linear warm-up" in shown
    found = json.loads(fine("train", "d", *QUICK, "--warmup", 3, "--json").out)
    assert found["runs"][-1]["spec"]["warmup"] == 3


def test_it_is_a_key_of_run_files(folder):
    (folder / "run.toml").write_text('dataset = "d"\nwarmup = 4\n')
    found = json.loads(fine("train", "--run-file", "run.toml", *QUICK, "--json").out)
    assert found["runs"][-1]["spec"]["warmup"] == 4
    [written] = [Path(path) for path in found["run_files"]]
    assert "warmup = 4\n" in written.read_text()
    (folder / "run.toml").write_text('dataset = "d"\nwarmpu = 4\n')
    wrong("train", "--run-file", "run.toml", says="Did you mean 'warmup'")


def test_it_is_an_argument_of_the_function(folder):
    assert uf.train("d", epochs=1, width=4, warmup=2).spec.warmup == 2


def test_it_is_validated_once_for_all_of_them(folder):
    wrong("train", "d", "--warmup", -1, says="--warmup must be an integer of at least 0; got -1")
    assert "warmup" in call("train", "d", "--warmup", "soon").err
    (folder / "run.toml").write_text('dataset = "d"\nwarmup = -1\n')
    wrong("train", "--run-file", "run.toml", says="`warmup` must be an integer of at least 0; got -1")
    with pytest.raises(InputError, match="`warmup` must be an integer of at least 0; got -1") as caught:
        uf.train("d", warmup=-1)
    assert caught.value.setting == "warmup"
    wrong("train", "d", "--model", "gcn", "--warmup", 3, says="--warmup")  # of models that propagate once


def test_it_changes_the_id_of_a_run(folder):
    runs = [json.loads(fine("train", "d", *QUICK, "--warmup", n, "--json").out)["runs"][-1]["id"] for n in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_it_is_on_the_reference_page(folder):
    found = importlib.util.spec_from_file_location("cli_page", DOCS / "cli.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    page = module.page()
    assert "| `--warmup N` | Epochs of linear warm-up (needs --hops). |" in page
    assert page.replace("| `--warmup N` | Epochs of linear warm-up (needs --hops). | `0` |\n", "") == module.PAGE.read_text()


def test_one_of_propagation_is_a_flag_too(folder, monkeypatch):
    @dataclass(frozen=True)
    class Config(PropagationConfig):
        damping: float = option(0.0, "made for this test", ge=0, group="Pruning")

    monkeypatch.setattr("unifews.propagation.config.PropagationConfig", Config)
    assert "--damping" in fine("propagate", "--help-all").out
    wrong("propagate", "d", "-o", "p.npy", "--damping", -1, says="--damping must be a number of at least 0; got -1")


# ----------------------------------------------------------------- functions whose arguments are written out, for editors


@pytest.mark.parametrize(
    ("function", "configs", "names"),
    [
        (uf.propagate, (Amounts, PropagationConfig), {"edge_threshold": "threshold"}),
        (uf.sparsify, (PruningConfig,), {}),
    ],
)
def test_every_option_is_an_argument_with_the_same_default(function, configs, names):
    arguments = inspect.signature(function).parameters
    for found in (each for config in configs for each in options_of(config)):
        if function is uf.propagate and found.name.startswith("weight_"):  # there are none
            continue
        assert arguments[names.get(found.name, found.name)].default == found.default, found.name
