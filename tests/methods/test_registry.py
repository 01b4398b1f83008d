"""Methods by name: found by scanning and by entry points, built from text, refused in a sentence."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest

from unifews.errors import InputError, UnknownNameError
from unifews.methods import registry
from unifews.methods.base import Propagator
from unifews.methods.ndls import Ndls
from unifews.methods.registry import method
from unifews.training.spec import MODELS, TrainSpec


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Installs a package with this code and this entry point, as pip would leave it."""

    def install(code, point="toy = toy_method:Toy"):
        (tmp_path / "toy_method.py").write_text(code)
        about = tmp_path / "toy_method-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-method\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[unifews.methods]\n{point}\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    yield install
    sys.modules.pop("toy_method", None)
    registry._LOCAL.pop("toy", None)
    registry._LOCAL.pop("ndls", None)


TOY = """
from dataclasses import dataclass
from unifews.methods.registry import method
from unifews.propagation.api import propagate

@method("toy", prunes=("edges",), backbones=("sgc",), paper="nobody's")
@dataclass(frozen=True)
class Toy:
    \"\"\"Keeps one hop.\"\"\"
    half: bool = False

    def propagate(self, graph, x, scheme="sgc", hops=None, r=0.5, *, edge_sparsity, threshold, seed, progress=None):
        return propagate(graph, x, scheme, 1, r)
"""


def test_those_of_the_folder_are_found():
    assert {"unifews", "ndls", "nigcn", "agp", "unifews-push"} <= set(registry.names())
    assert isinstance(registry.resolve("ndls"), Propagator)


def test_unifews_is_for_every_model():
    assert set(registry.find("unifews").card.backbones) == set(MODELS)


def test_a_package_adds_one(package):
    package(TOY)
    assert "toy" in registry.names()
    assert registry.resolve("toy:half=true").half is True
    assert TrainSpec.of({"dataset": "cora", "model": "sgc", "method": "toy"}).prunes


def test_a_model_is_trained_by_it(package):
    from method_cases import learnable

    import unifews as uf

    package(TOY)
    run = uf.train(learnable(), "sgc", "toy", epochs=3, width=8)
    assert run.spec.method == "toy" and len(run.trace.hops) == 1


@pytest.mark.parametrize(
    "code, point, says",
    [
        ("1 / 0", "toy = toy_method:Toy", "package toy-method cannot be loaded .ZeroDivisionError"),
        ("Toy = 3", "toy = toy_method:Toy", "toy_method:Toy of package toy-method is not a method 'toy'"),
        (TOY, "ndls = toy_method:Toy", "'ndls' is one of unifews, and package toy-method has another"),
    ],
)
def test_a_package_that_is_broken_says_so_when_asked_for_and_hides_no_other(package, code, point, says):
    package(code, point)
    name = point.split(" ")[0]
    with pytest.raises(InputError, match=says):
        registry.find(name)
    good, bad = registry.cards()
    assert name in bad and {"unifews", "agp"} <= {card.name for card in good}


def test_a_script_may_have_its_own():
    @method("scripted", prunes=("edges",), backbones=("sgc",), paper="none")
    @dataclass(frozen=True)
    class Scripted:
        strength: float = 1.0

    try:
        assert registry.text_of(Scripted(strength=2.5)) == "scripted:strength=2.5"
        assert registry.resolve("scripted:strength=2.5") == Scripted(2.5)
    finally:
        registry._LOCAL.pop("scripted")


@pytest.mark.parametrize("text", ["ndls", "ndls:epsilon=0.05", "ndls:own=0.2,normalise=false", "unifews-push:thr=1e-05"])
def test_text_and_back(text):
    assert registry.text_of(registry.resolve(text)) == text


def test_defaults_are_not_written():
    assert registry.text_of("ndls: epsilon = 0.03 , own=0.5") == "ndls:own=0.5"
    assert registry.text_of(Ndls()) == "ndls"
    assert registry.resolve("unifews-push:thr=none").thr is None


@pytest.mark.parametrize(
    "text, error, says",
    [
        ("ndsl", UnknownNameError, "no method named 'ndsl'. Did you mean 'ndls'"),
        ("ndls:epsilom=1", UnknownNameError, "setting of 'ndls' named 'epsilom'. Did you mean 'epsilon'"),
        ("ndls:epsilon", InputError, "name:setting=value"),
        ("ndls:epsilon=much", InputError, "`epsilon` must be a number of at least 0; got 'much'"),
        ("ndls:epsilon=-1", InputError, "`epsilon` must be a number of at least 0; got -1"),
        ("ndls:own=2", InputError, r"in \[0, 1\]"),
        ("ndls:normalise=perhaps", InputError, "True or False"),
        ("nigcn:epsilon=0", InputError, r"in \(0, 1\]"),
        ("agp:rmax=inf", InputError, "got inf"),
        ("unifews:delta=3", InputError, "'unifews' has no settings"),
        (7, InputError, "got 7"),
        (Ndls, InputError, "a name such as"),
    ],
)
def test_what_is_mistyped(text, error, says):
    with pytest.raises(error, match=says):
        registry.resolve(text)


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"model": "gcn", "method": "ndls"}, "'ndls' works on model='sgc', not on 'gcn'; for gcn take method=.*'unifews'"),
        ({"model": "appnp", "method": "nigcn"}, "for appnp take method='agp' or 'unifews' or 'unifews-push'"),
        ({"model": "sgc", "method": "agp", "weight_sparsity": 0.5}, "'agp' removes no weights; .*take method='unifews'"),
        ({"model": "sgc", "method": "agp", "entries": "node"}, "`entries` belongs to method='unifews'; agp has no"),
        ({"model": "sgc", "method": "agp", "task": "links"}, "`task` needs layers"),
        ({"model": "mlp", "method": "agp"}, "not on 'mlp'"),
    ],
)
def test_what_a_method_cannot_do_is_told_before_training(settings, says):
    with pytest.raises(InputError, match=says):
        TrainSpec.of({"dataset": "cora", **settings})


def test_a_spec_has_the_method_s_own_defaults_and_its_baseline_the_usual_ones():
    spec = TrainSpec.of({"dataset": "cora", "model": "sgc", "method": Ndls(epsilon=0.1)})
    assert spec.method == "ndls:epsilon=0.1" and spec.r == 0 and spec.prunes
    assert spec.unpruned().method == "unifews" and spec.unpruned().r == 0.5 and not spec.unpruned().prunes
    assert "entries" not in spec.to_dict() and TrainSpec.of(spec.to_dict()) == spec
    assert TrainSpec.of({"dataset": "cora", "model": "sgc", "method": "ndls", "r": 0.5}).r == 0.5


def test_a_class_that_is_no_dataclass():
    with pytest.raises(InputError, match="belongs above @dataclass"):
        method("odd", prunes=(), backbones=(), paper="")(type("Odd", (), {}))


def test_listing_needs_no_torch():
    code = "from unifews.methods import registry; registry.cards(); import sys; print({'torch', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
