"""What a run is asked to do: one id per setting, run files that say it all, one sentence for a mistake."""

from __future__ import annotations

from dataclasses import asdict, fields, make_dataclass, replace

import numpy as np
import pytest
from small import small

from unifews.datasets.dataset import About, Split
from unifews.datasets.folder import open_dataset, save_dataset
from unifews.errors import FileFormatError, InputError, MissingFileError, UnknownNameError
from unifews.methods import registry
from unifews.training import spec
from unifews.training.recipe import Recipe
from unifews.training.run_files import read_toml, write_toml
from unifews.training.spec import PAPER, DecoupledSpec, LayeredSpec, TrainSpec, paper_form

DATA = small()
OTHER = dict(
    dataset="other",
    model="sgc",
    edge_sparsity=0.5,
    edge_threshold=0.1,
    weight_sparsity=0.5,
    weight_threshold=0.1,
    weight_reference="head",
    weight_ramp=5,
    weight_feedback=False,
    seeds=3,
    seed=7,
    split="stored",
    hops=3,
    alpha=0.2,
    r=0.4,
    skip="identity",
    entries="node",
    basis="principal",
    rank=4,
    inherit=True,
    head="embedding",
    standardise="column",
)
LAYERED = dict(
    model="gcnii",
    entries="node",
    inherit=False,
    alpha=0.2,
    theta=0.3,
    task="links",
    budget="layers",
    absolute=True,
    settle=0.4,
)
BY_ERROR = dict(max_error=0.05, error_norm="frobenius", degree=3, precision="float32")  # the others need the first
RECIPE = dict(width=8, layers=3, dropout=0.1, batch=64, epochs=9, patience=4, lr=0.5, weight_decay=0.25, plateau=2)


def test_every_setting_has_its_alternative_here():
    """So that the tests below cover a setting that is added later."""
    names = {field.name for kind in (DecoupledSpec, LayeredSpec) for field in fields(kind)} - {"recipe", "method"}
    assert set(OTHER) | set(LAYERED) | set(BY_ERROR) | {"heads", "node_lock", "choice", "scope", "renormalize"} == names
    assert set(RECIPE) == set(Recipe.names())


def test_any_setting_changes_the_id_and_the_same_ones_give_it_again():
    specs = [TrainSpec.of({"dataset": "small"} | change) for change in [{}, *({k: v} for k, v in (OTHER | RECIPE).items())]]
    ids = [spec.id(DATA) for spec in specs]
    assert len(set(ids)) == len(ids) == 1 + len(OTHER) + len(RECIPE)
    assert [TrainSpec.of(spec.to_dict()).id(DATA) for spec in specs] == ids
    assert all(len(one) == 12 and int(one, 16) for one in ids)


def test_an_allowed_error_changes_the_id_and_its_options_too():
    base = {"dataset": "small", "max_error": 0.1}
    specs = [TrainSpec.of({"dataset": "small"}), TrainSpec.of(base)]
    specs += [TrainSpec.of(base | {name: value}) for name, value in BY_ERROR.items()]
    assert len({spec.id(DATA) for spec in specs}) == len(specs)
    assert [TrainSpec.of(spec.to_dict()) for spec in specs] == specs
    assert all(spec.unpruned() == specs[0] for spec in specs)
    # Runs without it are those of earlier versions: their records have none of these settings.
    assert not set(BY_ERROR) & set(specs[0].to_dict()) and set(BY_ERROR) <= set(specs[1].to_dict())


def test_any_setting_of_layers_changes_the_id_too():
    plain = [{}, *({k: v} for k, v in (LAYERED | RECIPE).items() if k not in ("model", "batch"))]
    specs = [TrainSpec.of({"dataset": "small", "model": "gcnii"} | change) for change in plain]
    specs.append(TrainSpec.of({"dataset": "small", "model": "gat", "heads": 4}))
    specs.append(TrainSpec.of({"dataset": "small", "model": "gat"}))
    locked = dict(dataset="small", model="gcn", entries="node", edge_sparsity=0.5)
    specs += [TrainSpec.of(locked), TrainSpec.of(locked | {"node_lock": True})]
    edges = dict(dataset="small", model="gcn", edge_sparsity=0.5, entries="edge")
    specs += [TrainSpec.of(edges | change) for change in ({}, {"choice": "random"}, {"scope": "target"})]
    ids = [spec.id(DATA) for spec in specs]
    assert len(set(ids)) == len(ids)
    assert [TrainSpec.of(spec.to_dict()).id(DATA) for spec in specs] == ids


def test_a_model_has_its_own_defaults():
    gcn, appnp = TrainSpec.of(dict(dataset="small", model="gcn")), TrainSpec.of(dict(dataset="small"))
    assert (gcn.entries, gcn.inherit, gcn.recipe.dropout) == ("unit", True, 0.8)
    assert (appnp.entries, appnp.inherit, appnp.recipe.dropout) == ("block", False, 0.7)
    assert TrainSpec.of(dict(dataset="small", model="gcn", recipe=Recipe(dropout=0.7))).recipe.dropout == 0.7
    deeper = TrainSpec.of(dict(dataset="small", model="gcn", layers=4))
    assert (gcn.weight_ramp, deeper.weight_ramp, appnp.weight_ramp) == (12, 12, 30)
    gcnii = TrainSpec.of(dict(dataset="small", model="gcnii"))  # two layers between two more
    for deep in (deeper, gcnii):
        assert (deep.recipe.dropout, deep.recipe.weight_decay) == (0.5, Recipe.weight_decay)
    assert gcnii.weight_ramp == 12
    assert TrainSpec.of(dict(dataset="small", model="gcnii", layers=32)).weight_ramp == 96
    assert TrainSpec.of(dict(dataset="small", model="gcn", task="links")).recipe.layers == 3


def test_a_record_holds_only_what_the_model_has():
    gcn, gat, appnp = (TrainSpec.of(dict(dataset="small", model=model)).to_dict() for model in ("gcn", "gat", "appnp"))
    assert "hops" not in gcn and "heads" not in gcn and "batch" not in gcn["recipe"] and gcn["budget"] == "macs"
    assert gat["heads"] == 8 and "theta" not in gat
    assert "budget" not in appnp and "task" not in appnp and appnp["recipe"]["batch"] == 512


@pytest.mark.parametrize(
    "settings, sentence",
    [
        (dict(model="gcn", hops=3), "`hops` concerns propagation once before training, and gcn propagates in every layer"),
        (dict(model="gcn", recipe={"batch": 8}), "gcn is trained on the whole graph at once, so it has no `batch`"),
        (dict(model="gcn", alpha=0.1), "`alpha` belongs to model='gcnii' or 'appnp'; gcn has no such setting"),
        (dict(model="sgc", heads=4), "`heads` belongs to model='gat'; sgc has no such setting"),
        (dict(task="links"), "`task` needs layers that propagate, and appnp has none; take model='gcn'"),
        (dict(model="gcn", task="links", split="stored"), "task='links' splits the edges by seed"),
        (dict(model="gcn", node_lock=True), "`node_lock` has no effect without `edge_sparsity` or `edge_threshold`"),
        (dict(model="gcn", node_lock=True, edge_sparsity=0.5), "`node_lock` has no effect with entries=unit"),
        (dict(rank=3, basis="input"), "`rank` has no effect with basis=input; leave it out."),
        (dict(entries="unit"), "no `entries` named 'unit'"),
        (
            dict(model="gcn", max_error=0.05),
            "`max_error` concerns propagation once before training, and gcn propagates in every layer; leave it out, or take "
            "model='appnp' or 'sgc'.",
        ),
        (dict(model="sgc", method="random", max_error=0.05), "method 'random' works on model="),
        (dict(model="sgc", method="ndls", max_error=0.05), "`max_error` belongs to method='unifews'; ndls has no such"),
    ],
)
def test_what_a_model_does_not_have(settings, sentence):
    with pytest.raises(InputError) as error:
        TrainSpec.of(dict(dataset="small") | settings)
    assert sentence in str(error.value)


def test_the_unpruned_run_of_layers_has_the_plain_settings():
    pruned = TrainSpec.of(dict(dataset="small", model="gcn", edge_sparsity=0.5, **paper_form("gcn")))
    assert pruned.unpruned() == TrainSpec.of(dict(dataset="small", model="gcn"))


def test_edges_that_settled_are_another_run(monkeypatch):
    """`settle` used to be about edges too: a record of that time is not this run; of weights alone it is."""

    def ids(rule):
        monkeypatch.setattr(spec, "_SETTLE", rule)
        runs = [dict(edge_sparsity=0.5, settle=0.5), dict(weight_sparsity=0.5, settle=0.5), dict(edge_sparsity=0.5)]
        return [TrainSpec.of(dict(dataset="small", model="gcn", **run)).id(DATA) for run in runs]

    before, after = ids("before"), ids("after")
    assert before[0] != after[0] and before[1:] == after[1:]


def test_two_ways_to_write_a_value_are_one_run():
    one = DecoupledSpec("small", alpha=1, edge_sparsity=np.float32(0.5), seeds=np.int64(2), recipe=Recipe(lr=1, dropout=0))
    two = TrainSpec.of(dict(dataset="small", alpha=1.0, edge_sparsity=0.5, seeds=2, lr=1.0, recipe={"dropout": 0.0}))
    assert one == two and one.id(DATA) == two.id(DATA)


def test_the_settings_of_a_method_change_the_id_whether_told_or_its_defaults(monkeypatch):
    """Or a ledger would serve runs made with other defaults."""

    def ids():
        specs = [TrainSpec.of(dict(dataset="small", model="gcn", method=m, edge_sparsity=0.5)) for m in ("glt", "glt:rounds=9")]
        return [spec.id(DATA) for spec in specs]

    before = ids()
    other = make_dataclass("Glt", [("rounds", int, 9)], bases=(registry.find("glt"),), frozen=True)
    monkeypatch.setitem(registry._OWN, "glt", other)
    assert before[0] != before[1] and ids() == [before[1], before[1]]


def changed(**changes):
    return replace(DATA, **changes)


@pytest.mark.parametrize(
    "other",
    [
        changed(x=np.where(np.arange(DATA.x.size).reshape(DATA.x.shape) == 77, 9, DATA.x).astype(np.float32)),
        changed(y=np.roll(DATA.y, 1)),
        changed(graph=small(seed=311).graph),
        changed(splits=(Split(np.arange(4), np.arange(4, 8), np.arange(8, 12)),)),
        changed(about=About("a test", metric="f1")),
        changed(about=About("a test", split="stored")),
    ],
    ids=["features", "labels", "graph", "splits", "metric", "split"],
)
def test_other_data_under_the_same_name_is_another_run(other):
    """Or seeds finished on the one would be taken for results on the other."""
    assert DecoupledSpec("small").id(DATA) != DecoupledSpec("small").id(other)


@pytest.mark.parametrize("sparse", [False, True])
def test_where_the_data_lies_does_not_matter(tmp_path, sparse):
    data = small(sparse=sparse, stored=True)
    save_dataset(data, tmp_path / "a")
    assert DecoupledSpec("small").id(open_dataset(tmp_path / "a")) == DecoupledSpec("small").id(data)


# ----------------------------------------------------------------------------------------------------------- run files

FULL = {k: v for k, v in OTHER.items() if k not in ("edge_threshold", "weight_sparsity")}


@pytest.mark.parametrize(
    "settings",
    [
        {"dataset": "cora"},
        FULL | RECIPE,
        {"dataset": "cora", **PAPER, "edge_threshold": 1e-17, "lr": 3e22, "weight_decay": 0},
        {"dataset": "cora", **LAYERED, "edge_sparsity": 0.5, "lr": 0.5},
        {"dataset": "cora", "model": "sgc", **BY_ERROR},
        {"dataset": 'C:\\data\\"größe"\n\U0001f600\x7f.npz', "seed": 2**62},
    ],
    ids=["defaults", "everything", "numbers", "layers", "error", "text"],
)
def test_a_run_file_says_it_all(tmp_path, settings):
    spec = TrainSpec.of(settings)
    path = tmp_path / "run.toml"
    path.write_bytes(write_toml(spec).encode())
    assert TrainSpec.of(read_toml(path)) == spec


def written(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_settings_of_the_recipe_stand_anywhere_and_the_plain_ones_win(tmp_path):
    path = written(tmp_path, 'dataset = "a"\nwidth = 8\n[recipe]\nwidth = 9\nepochs = 3\n')
    assert TrainSpec.of(read_toml(path)).recipe == Recipe(width=8, epochs=3)


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("edge_sparsty = 0.9", "no setting named 'edge_sparsty'. Did you mean 'edge_sparsity'?"),
        ("[recipe]\nwdth = 9", "no setting named 'wdth'. Did you mean 'width'?"),
        ("edge_sparsity = 90", "For 90 percent write edge_sparsity=0.9"),
        ("recipe = 3", "`recipe` is a table"),
        ("dataset = 3", "`dataset` must be a string"),
    ],
)
def test_a_mistake_in_a_run_file(tmp_path, text, sentence):
    path = written(tmp_path, text)
    with pytest.raises(InputError) as error:
        read_toml(path)
    assert sentence in str(error.value) and str(path) in str(error.value)


@pytest.mark.parametrize(
    "content",
    [b"edge_sparsity 0.9", b"\xff\xfe\x00", b"a = 1\na = 2", b"a = " + b"[" * 9999, b"a = " + b"9" * 5000],
)
def test_what_is_no_run_file(tmp_path, content):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="is no run file"):
        read_toml(path)
    with pytest.raises(MissingFileError, match="there is no run file"):
        read_toml(tmp_path / "nowhere.toml")


# ------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "name, value, sentence",
    [
        ("model", "apnp", "no model named 'apnp'. Did you mean 'appnp'?"),
        ("method", "unifew", "no method named 'unifew'. Did you mean 'unifews'?"),
        ("edge_sparsity", 1.0, "must be a number in [0, 1); got 1.0"),
        ("edge_sparsity", "0.5", "must be a number in [0, 1)"),
        ("edge_threshold", -1, "must be a number of at least 0; got -1"),
        ("edge_threshold", float("inf"), "of at least 0; got inf"),
        ("edge_threshold", float("nan"), "of at least 0; got "),
        ("weight_sparsity", 90, "For 90 percent write weight_sparsity=0.9"),
        ("weight_threshold", -0.1, "of at least 0; got "),
        ("weight_threshold", float("inf"), "of at least 0; got inf"),
        ("weight_reference", "heads", "no `weight_reference` named 'heads'. Did you mean 'head'?"),
        *(("weight_ramp", value, "`weight_ramp` must be an integer") for value in (0, 2.5, "3", True)),
        *(("weight_feedback", value, "`weight_feedback` must be True or False") for value in (1, "yes", None)),
        *(
            (name, value, f"`{name}` must be an integer of at least 1")
            for name in ("seeds", "hops", "rank")
            for value in (0, 2.5, "3", True)
        ),
        ("seed", -1, "`seed` must be an integer of at least 0"),
        ("seed", 2**63, "below 2^63"),
        ("split", "public", "no `split` named 'public'"),
        *(("alpha", value, "`alpha`") for value in (0, -0.1, 1.1, "a", float("nan"), True)),
        *(("r", value, "`r` must be a number in [0, 1]") for value in (-0.1, 1.1, None, float("nan"))),
        ("skip", "diagonl", "Did you mean 'diagonal'?"),
        ("entries", "edge", "no `entries` named 'edge'"),
        ("basis", "fourier", "no `basis` named 'fourier'"),
        ("inherit", 1, "`inherit` must be True or False; got 1"),
        ("head", "embeding", "Did you mean 'embedding'?"),
        ("head", "coordinates", "needs principal components"),
        ("standardise", "rows", "no `standardise` named 'rows'"),
        ("recipe", "paper", "`recipe` is a table of settings"),
        ("edge_sparsities", 0.5, "Did you mean 'edge_sparsity'?"),
        ("epoch", 3, "Did you mean 'epochs'?"),
    ],
)
def test_values_that_cannot_work(name, value, sentence):
    with pytest.raises(InputError) as error:
        TrainSpec.of({"dataset": "small", name: value})
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    "settings, sentence",
    [
        (dict(edge_sparsity=0.5, edge_threshold=0.1), "exclude each other; give one of them"),
        (dict(weight_sparsity=0.5, weight_threshold=0.1), "exclude each other; give one of them"),
        (dict(model="mlp", edge_sparsity=0.5), "an MLP sees no edges"),
        (dict(head="coordinates", edge_sparsity=0.5, basis="input"), "needs principal components"),
        (dict(max_error=0.05, edge_sparsity=0.5), "edge_sparsity=0.5 and max_error=0.05 exclude each other"),
        (dict(max_error=0.05, model="mlp"), "an MLP sees no edges"),
        (dict(max_error=0.05, head="coordinates"), "needs principal components"),
        (dict(max_error=0.05, inherit=True), "max_error removes no entries .* leave out `inherit`"),
        (dict(max_error=0.05, entries="node"), "max_error decides about no entries; leave out `entries`"),
        (dict(degree=3), "`degree` has no effect without `max_error`"),
        (dict(max_error=0), "`max_error` is 0, and float32 rounds"),
    ],
)
def test_settings_that_do_not_go_together(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        TrainSpec.of({"dataset": "small"} | settings)


def test_a_dataset_is_named():
    with pytest.raises(InputError, match="no dataset is named"):
        TrainSpec.of({"model": "sgc"})
    with pytest.raises(UnknownNameError, match="no setting named"):
        TrainSpec.of({"dataset": "small", "nonsense": 1})


def test_unpruned_is_the_same_run_with_nothing_removed():
    kept = ("model", "seeds", "seed", "split", "hops", "alpha", "r", "skip", "standardise", "recipe")
    spec = TrainSpec.of(FULL | RECIPE)
    plain = spec.unpruned()
    assert spec.prunes and spec.prunes_edges and not plain.prunes and not plain.prunes_edges
    assert {name: asdict(plain)[name] for name in kept} == {name: asdict(spec)[name] for name in kept}
    other = {"edge_sparsity": 0.9, "weight_reference": "unpruned", "weight_ramp": 9, "weight_feedback": True, "inherit": False}
    assert plain == TrainSpec.of(FULL | RECIPE | other).unpruned()  # so it is trained once for all of them


@pytest.mark.parametrize("layers, epochs", [(1, 30), (2, 30), (8, 120)])
def test_weights_of_a_deep_network_go_more_slowly(layers, epochs):
    assert TrainSpec.of({"dataset": "a", "layers": layers}).pruning.ramp == epochs
    assert TrainSpec.of({"dataset": "a", "layers": layers, "weight_ramp": 7}).pruning.ramp == 7


def test_schemes():
    assert DecoupledSpec("a", "sgc").scheme.skip == "diagonal"  # T^L X, as everybody knows it
    assert DecoupledSpec("a", "sgc", skip="identity").scheme.skip == "identity"
    assert DecoupledSpec("a", alpha=0.3).scheme.alpha == 0.3 and DecoupledSpec("a", skip="none").scheme.skip == "none"
