"""Models that still train, saved and loaded: the same weights, masks and schedule, and training that does not notice."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from frozen_models import CLASSES, FEATURES, FORMS, Deep, Own, Two, evaluated, graph, trained
from safetensors.torch import save_file
from test_frozen_files import change, put
from torch import nn
from torch_geometric.nn import GAT, GCN, GIN, PNA, EdgeCNN, GCNConv, GraphConv, GraphSAGE, TAGConv

import unifews as uf
from unifews.errors import FileFormatError, InputError, MissingFileError, ShapeError
from unifews.nn.decoupled import DecoupledModel, Mlp
from unifews.nn.masked import MaskedModel
from unifews.nn.models import build


class Backwards(nn.Module):
    """Layers that run in another order than they are defined in."""

    def __init__(self):
        super().__init__()
        self.last, self.first = GCNConv(24, CLASSES), GraphConv(FEATURES, 24)

    def forward(self, x, edge_index):
        return self.last(nn.functional.dropout(self.first(x, edge_index).relu(), 0.5, self.training), edge_index)


OWN = {
    "own": Own,
    "deep, two weights": lambda: Deep(shared=False),
    "generic": lambda: Two(GraphConv),
    "generic, hops": lambda: Two(lambda a, b: TAGConv(a, b, K=2)),
    "ready": lambda: GCN(FEATURES, 16, 2, CLASSES, norm="batch", dropout=0.5),
    "backwards": Backwards,
}
READY = {
    "GCN": lambda: GCN(FEATURES, 16, 3, CLASSES, norm="batch", dropout=0.5),
    "GCN, plain": lambda: GCN(FEATURES, 16, 2, improved=True, act="leaky_relu", act_kwargs={"negative_slope": 0.3}),
    "GCN, no bias": lambda: GCN(FEATURES, 16, 2, CLASSES, act=None, bias=False, normalize=False),
    "GCN, one layer": lambda: GCN(FEATURES, 16, 1, CLASSES),
    "GraphSAGE": lambda: GraphSAGE(
        FEATURES, 16, 2, CLASSES, jk="cat", norm="LayerNorm", norm_kwargs={"mode": "node"}, aggr="max", project=True
    ),
    "GraphSAGE, sum": lambda: GraphSAGE(FEATURES, 16, 2, CLASSES, jk="lstm", act="gelu", act_first=True, bias=False),
    "GIN": lambda: GIN(FEATURES, 16, 2, CLASSES, norm="batch_norm", train_eps=True, eps=0.1, act="prelu", dropout=0.2),
    "GIN, graph": lambda: GIN(FEATURES, 16, 2, jk="max", norm="graph", act=nn.ELU(alpha=0.5)),
    "GAT": lambda: GAT(FEATURES, 16, 3, CLASSES, heads=4, dropout=0.3, negative_slope=0.1),
    "GAT, v2": lambda: GAT(FEATURES, 16, 2, heads=2, v2=True, concat=False, residual=True, jk="last"),
    "GAT, no outputs": lambda: GAT(FEATURES, 16, 2, heads=2, add_self_loops=False, norm="pair"),
    "GAT, one layer": lambda: GAT(FEATURES, 16, 1, CLASSES, heads=2),
    "EdgeCNN": lambda: EdgeCNN(FEATURES, 16, 2, CLASSES, norm="instance", norm_kwargs={"affine": True}),
}
ZOO = ("gcn", "gat", "sage", "gcnii", "gin")


def made(name, form="unit"):
    torch.manual_seed(0)
    own = OWN | READY
    plain = own[name]() if name in own else build(name, FEATURES, CLASSES, width=24)
    return uf.sparsify(plain, ramp=4, **FORMS[form])


def train(model, optimizer, epochs):
    """Dropout draws by the number of the epoch; from the fifth on only more may go."""
    x, edge_index = graph()
    y = torch.arange(len(x)) % CLASSES
    losses = []
    for epoch in epochs:
        torch.manual_seed(epoch)
        uf.set_schedule(model, "monotone" if epoch >= 4 else "regrow")
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x, edge_index), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def assert_same(model, other):
    one, two = model.state_dict(), other.state_dict()
    assert list(one) == list(two)
    for name, value in one.items():
        assert value.dtype == two[name].dtype and torch.equal(value, two[name]), name
    assert [type(module) for module in model.modules()] == [type(module) for module in other.modules()]
    assert [module.training for module in model.modules()] == [module.training for module in other.modules()]


# ---------------------------------------------------------------------------------------------------------- the same model


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ZOO)
def test_a_model_of_this_library_is_built_again(name, form, tmp_path):
    x, edge_index = graph()
    model = trained(name, form)
    uf.save(model, tmp_path / "m", record={"epoch": 3})
    again = uf.load(tmp_path / "m")
    assert again is not model and again.record == {"epoch": 3}
    assert_same(model, again)
    assert torch.equal(evaluated(again, x, edge_index), evaluated(model, x, edge_index))
    assert str(uf.trace(again)).splitlines()[0] == str(uf.trace(model)).splitlines()[0]
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("name", READY)
def test_a_ready_model_of_pyg_is_built_again_and_trains_on(name, tmp_path):
    x, edge_index = graph()
    model = made(name)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer, range(3))
    model.best = 0.5  # an attribute of one's own is none of the model's settings
    uf.save(model, tmp_path / "m", optimizer=optimizer)
    again = uf.load(tmp_path / "m")
    assert again is not model and type(again) is type(model) and repr(again) == repr(model)
    assert_same(model, again)
    assert torch.equal(evaluated(again, x, edge_index), evaluated(model, x, edge_index))
    other = uf.load(tmp_path / "m", into=torch.optim.Adam(again.parameters()))
    assert train(again, other, range(3, 6)) == train(model, optimizer, range(3, 6))
    uf.save(again, tmp_path / "again")
    uf.load(tmp_path / "again")


@pytest.mark.parametrize("form", FORMS)
def test_a_ready_model_in_every_form_of_pruning(form, tmp_path):
    model = made("GAT", form)
    train(model, torch.optim.Adam(model.parameters(), lr=0.01), range(2))
    uf.save(model, tmp_path / "m")
    assert_same(model, uf.load(tmp_path / "m"))


class Mine(GCN):
    pass


def dropout_of_its_own():
    model = GAT(FEATURES, 8, 2, CLASSES)
    model.dropout.p = 0.5
    return model


def other_layers():
    model = GCN(FEATURES, 8, 2, CLASSES)
    model.convs[0] = GraphConv(FEATURES, 8)
    return model


@pytest.mark.parametrize(
    "plain",
    [
        lambda: Mine(FEATURES, 8, 2, CLASSES),
        lambda: GCN(FEATURES, 8, 2, CLASSES, act=torch.sin),
        lambda: GCN(FEATURES, 8, 2, CLASSES, norm=nn.BatchNorm1d(8)),
        lambda: GCN(FEATURES, 8, 2, CLASSES, norm="batch", norm_kwargs={"momentum": None}),
        lambda: GCN(FEATURES, 8, 2, CLASSES, flow="target_to_source"),
        lambda: GraphSAGE(FEATURES, 8, 2, CLASSES, aggr=["mean", "max"]),
        lambda: GraphSAGE((FEATURES, FEATURES), 8, 2, CLASSES),
        lambda: GAT(FEATURES, 8, 2, CLASSES, fill_value=0.5),
        lambda: GAT(FEATURES, 8, 2, CLASSES, v2=True, share_weights=True),
        lambda: PNA(FEATURES, 8, 2, CLASSES, aggregators=["mean"], scalers=["identity"], deg=torch.ones(4, dtype=torch.long)),
        dropout_of_its_own,
        other_layers,
    ],
)
def test_a_ready_model_whose_settings_cannot_be_read_off_it_is_given(plain, tmp_path):
    model = uf.sparsify(plain(), **FORMS["unit"])
    uf.save(model, tmp_path / "m")
    with pytest.raises(InputError, match=r"settings that are not saved; build it and call .*into=model"):
        uf.load(tmp_path / "m")
    assert_same(model, uf.load(tmp_path / "m", into=plain()))


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("into", ["plain", "sparsified", "sparsified otherwise"])
def test_a_class_of_ones_own_is_put_into_another(name, into, tmp_path):
    x, edge_index = graph()
    model = made(name)
    train(model, torch.optim.Adam(model.parameters(), lr=0.01), range(3))
    uf.save(model.eval(), tmp_path / "m")
    torch.manual_seed(1)
    other = OWN[name]()
    if into != "plain":
        other = uf.sparsify(other, **(FORMS["unit"] if into == "sparsified" else FORMS["block"]))
        other(x, edge_index)
    assert uf.load(tmp_path / "m", into=other) is other
    assert_same(model, other)
    assert torch.equal(other(x, edge_index), model(x, edge_index))
    assert uf.trace(other).requested == uf.trace(model).requested


@pytest.mark.parametrize(
    "name, form, stop",
    [
        *((name, "unit", 3) for name in (*ZOO, *OWN)),
        *(
            (name, form, stop)
            for name in ("gcn", "gat", "generic", "backwards")
            for form in ("node", "block")
            for stop in (1, 6)
        ),
    ],
)
def test_training_goes_on_as_if_it_had_not_stopped(name, form, stop, tmp_path):
    model = made(name, form)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-3)
    train(model, optimizer, range(stop))
    uf.save(model, tmp_path / "m", optimizer=optimizer)
    expected = train(model, optimizer, range(stop, 8))

    again = uf.load(tmp_path / "m") if name in ZOO else uf.load(tmp_path / "m", into=OWN[name]())
    other = torch.optim.Adam(again.parameters(), lr=0.5)
    assert uf.load(tmp_path / "m", into=other) is other
    assert other.param_groups[0]["lr"] == 0.01 and other.param_groups[0]["weight_decay"] == 1e-3
    assert train(again, other, range(stop, 8)) == expected
    assert_same(model, again)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
        lambda p: torch.optim.RMSprop(p, lr=0.01),
        lambda p: torch.optim.Adam([{"params": p[:2], "lr": 0.1}, {"params": p[2:]}], lr=0.01, betas=(0.8, 0.9)),
    ],
)
def test_optimizers_of_many_kinds(make, tmp_path):
    model = made("gcn")
    optimizer = make(list(model.parameters()))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    train(model, optimizer, range(2))
    schedule.step()
    uf.save(model, tmp_path / "m", optimizer=optimizer)
    expected = train(model, optimizer, range(2, 4))
    again = uf.load(tmp_path / "m")
    other = uf.load(tmp_path / "m", into=make(list(again.parameters())))
    assert [group["lr"] for group in other.param_groups] == [group["lr"] for group in optimizer.param_groups]
    assert train(again, other, range(2, 4)) == expected


def test_a_frozen_phase_goes_on_learning_removed_weights_as_before(tmp_path):
    """Whether removed weights get a gradient is settled by the last pass that decided."""
    model = made("gcn")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, range(2))
    uf.set_schedule(model, "frozen")
    uf.save(model, tmp_path / "m")
    again = uf.load(tmp_path / "m")
    x, edge_index = graph()
    for one in (model, again):
        torch.manual_seed(0)
        one.zero_grad()
        one(x, edge_index).square().sum().backward()
    gone = ~model.convs[0].lin.keep
    assert bool((model.convs[0].lin.weight.grad[gone] != 0).any())
    assert torch.equal(again.convs[0].lin.weight.grad, model.convs[0].lin.weight.grad)


def test_modules_in_another_mode_than_the_model(tmp_path):
    model = trained("gcn")
    model.norms.eval()
    uf.save(model, tmp_path / "m")
    again = uf.load(tmp_path / "m")
    assert again.training and not again.norms[0].training


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_other_precisions(kind, tmp_path):
    model = trained("gcn").to(kind)
    uf.save(model, tmp_path / "m")
    assert_same(model, uf.load(tmp_path / "m"))
    with pytest.raises(ShapeError, match=r"is torch\.\w+ in the saved model and torch.float32 in this Stack"):
        uf.load(tmp_path / "m", into=build("gcn", FEATURES, CLASSES, width=24))


def test_values_that_are_not_finite_and_buffers_of_all_kinds(tmp_path):
    class Odd(Own):
        def __init__(self):
            super().__init__()
            for name, value in [
                ("nan", torch.tensor([[float("nan"), -0.0], [float("inf"), 1.0]])),
                ("falling", torch.tensor([3, 2, -5])),
                ("none", torch.zeros(0, 4, dtype=torch.int32)),
                ("cube", torch.rand(2, 3, 4) > 0.5),
                ("short", torch.rand(3).half()),
            ]:
                self.register_buffer(name, value)

    model = uf.sparsify(Odd(), **FORMS["unit"])
    uf.save(model, tmp_path / "m")
    other = uf.load(tmp_path / "m", into=Odd())
    for name, value in model.named_buffers():
        assert dict(other.named_buffers())[name].numpy().tobytes() == value.numpy().tobytes(), name


# -------------------------------------------------------------------------------------------------------------- decoupled


def head(rank=FEATURES, layers=2):
    made = Mlp(rank, CLASSES, width=16, layers=layers)
    made.standardise(torch.randn(50, rank) * 3 + 40)
    for layer in made.linears():
        layer.decide(torch.rand(layer.in_features) + 0.1, sparsity=0.7)
        layer.settle()
    return made


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_heads(layers, tmp_path):
    model = head(layers=layers)
    uf.save(model, tmp_path / "m")
    again = uf.load(tmp_path / "m")
    assert_same(model, again)
    assert again.dropout == model.dropout
    uf.save(model.eval(), tmp_path / "m", overwrite=True)
    rows = torch.randn(7, FEATURES)
    assert torch.equal(uf.load(tmp_path / "m", into=head(layers=layers))(rows), model(rows))


@pytest.mark.parametrize(
    "how",
    [
        None,
        {"scheme": uf.Appnp(alpha=0.2), "hops": 3, "edge_sparsity": 0.5},
        {"scheme": "sgc", "hops": 2},
        {"scheme": uf.PersonalizedPageRank(0.2), "max_error": 0.1},
        {"scheme": uf.HeatKernel(2.0), "max_error": 0.1, "degree": 3},
    ],
)
@pytest.mark.parametrize("rank", [None, 7])
def test_decoupled_models(how, rank, tmp_path):
    x, edge_index = graph()
    edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    axes = None if rank is None else torch.linalg.qr(torch.randn(FEATURES, rank)).Q
    if how is None and rank is not None:
        how = {"scheme": uf.Polynomial([0.5, 0.5])}
    model = DecoupledModel(head(rank or FEATURES), axes, how, exponent=0).eval()
    uf.save(model, tmp_path / "m")
    again = uf.load(tmp_path / "m")
    assert_same(model, again)
    assert torch.equal(again(x, edge_index), model(x, edge_index))
    uf.compress(again, x, edge_index)


def test_what_is_loaded_can_be_compressed_and_saved_frozen(tmp_path):
    x, edge_index = graph()
    uf.save(trained("gcn"), tmp_path / "m")
    fast = uf.compress(uf.load(tmp_path / "m"), x, edge_index)
    uf.save(fast, tmp_path / "m", overwrite=True)
    assert torch.equal(uf.load(tmp_path / "m")(x, edge_index), fast(x, edge_index))
    with pytest.raises(InputError, match="no optimizer and its own record"):
        uf.save(fast, tmp_path / "n", record={})


# ------------------------------------------------------------------------------------------------------------------ sizes


def size(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


def test_removed_weights_take_no_space_in_a_compressed_model(tmp_path):
    torch.manual_seed(0)
    x, edge_index = graph()
    model = uf.sparsify(build("gcn", FEATURES, CLASSES, width=512, layers=3), weight_sparsity=0.9, ramp=1)
    model(x, edge_index).sum().backward()
    save_file({name: value.contiguous() for name, value in uf.desparsify(model).state_dict().items()}, tmp_path / "dense")
    dense = (tmp_path / "dense").stat().st_size
    uf.save(model, tmp_path / "whole")
    assert dense < size(tmp_path / "whole") < 1.06 * dense  # a bit for every weight
    uf.save(uf.compress(model.eval(), x, edge_index), tmp_path / "compressed")
    assert size(tmp_path / "compressed") < 0.19 * dense
    with pytest.raises(InputError, match=r"`settled` was removed: .*uf.compress"):
        uf.save(model, tmp_path / "settled", settled=True)


# ------------------------------------------------------------------------------------------------------------------ mistakes


def test_a_class_of_ones_own_needs_one_to_put_it_into(tmp_path):
    uf.save(trained("own"), tmp_path / "m")
    with pytest.raises(InputError, match=r"holds a Own that cannot be rebuilt from its file.*into=model"):
        uf.load(tmp_path / "m")
    changed = build("gcn", FEATURES, CLASSES, width=24)
    changed.convs[1] = GCNConv(24, CLASSES + 1)
    uf.save(uf.sparsify(changed), tmp_path / "m", overwrite=True)
    with pytest.raises(InputError, match="modified after it was built"):
        uf.load(tmp_path / "m")


@pytest.mark.parametrize(
    "other, sentence",
    [
        (
            lambda: build("gcn", FEATURES, CLASSES, width=25),
            r"convs.0.bias is \[24\] in the saved model and \[25\] in this Stack",
        ),
        (lambda: build("gcn", FEATURES, CLASSES, width=24, layers=3), "the saved model has no convs.2"),
        (lambda: build("gcn", FEATURES, CLASSES, layers=1), r"has convs.1\S+, which this Stack does not"),
        (lambda: build("sage", FEATURES, CLASSES, width=24), "made with the same arguments"),
        (lambda: head(), "no PyG message-passing layer"),
    ],
)
def test_an_into_of_another_shape_is_left_alone(other, sentence, tmp_path):
    uf.save(trained("gcn"), tmp_path / "m")
    into = other()
    before = copy.deepcopy(into)
    with pytest.raises(InputError, match=sentence):
        uf.load(tmp_path / "m", into=into)
    assert_same(before, into)


def test_what_cannot_be_saved(tmp_path):
    x, edge_index = graph()
    place = tmp_path / "m"
    with pytest.raises(InputError, match=r"GCN has no masks.*torch\.save"):
        uf.save(GCN(FEATURES, 8, 2, CLASSES), place)
    with pytest.raises(InputError, match="is a str"):
        uf.save("gcn", place)
    with pytest.raises(InputError, match="selected by a method"):
        uf.save(MaskedModel(build("gcn", FEATURES, CLASSES, width=8), edge_index, len(x), "half"), place)
    with pytest.raises(InputError, match="`optimizer` is a float"):
        uf.save(trained("gcn"), place, optimizer=0.1)
    with pytest.raises(InputError, match="`record` is a dictionary"):
        uf.save(trained("gcn"), place, record=[1])
    with pytest.raises(InputError, match="training record"):
        uf.save(trained("gcn"), place, record={"loss": float("nan")})
    model = trained("own")
    model.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(InputError, match="phase cannot be saved: its type complex64"):
        uf.save(model, place)
    model = trained("gcn")
    optimizer = torch.optim.Adafactor(model.parameters())
    train(model, optimizer, [0])
    with pytest.raises(InputError, match=r"Adafactor holds 'row_var' of shape.*Adam, SGD"):
        uf.save(model, place, optimizer=optimizer)
    assert not place.exists()


def test_optimizers_that_do_not_fit(tmp_path):
    model = made("gcn")
    uf.save(model, tmp_path / "without")
    with pytest.raises(InputError, match="holds no optimizer"):
        uf.load(tmp_path / "without", into=torch.optim.Adam(model.parameters()))
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, [0])
    uf.save(model, tmp_path / "m", optimizer=optimizer)
    with pytest.raises(InputError, match="is a Adam, not a SGD"):
        uf.load(tmp_path / "m", into=torch.optim.SGD(model.parameters()))
    with pytest.raises(InputError, match=r"groups of \[6\] parameters and this one of \[2\]"):
        uf.load(tmp_path / "m", into=torch.optim.Adam(list(model.parameters())[:2]))
    with pytest.raises(InputError, match="in the same order"):
        uf.load(tmp_path / "m", into=torch.optim.Adam(list(model.parameters())[::-1]))


def test_frozen_and_training_folders_are_told_apart(tmp_path):
    x, edge_index = graph()
    model = trained("gcn")
    uf.save(model, tmp_path / "training")
    with pytest.raises(FileFormatError, match=r"in training.*uf\.compress"):
        uf.FrozenModel.load(tmp_path / "training")
    uf.compress(model, x, edge_index).save(tmp_path / "frozen")
    with pytest.raises(InputError, match="no model in training"):
        uf.load(tmp_path / "frozen", into=model)
    with pytest.raises(InputError, match="`into` is a str"):
        uf.load(tmp_path / "training", into="gcn")
    with pytest.raises(MissingFileError, match="no model folder"):
        uf.load(tmp_path / "nothing")


def test_saving_replaces_models_only(tmp_path):
    model = trained("gcn")
    uf.save(model, tmp_path / "m")
    with pytest.raises(InputError, match="overwrite=True"):
        uf.save(model, tmp_path / "m")
    uf.save(model, tmp_path / "m", overwrite=True)
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="not a unifews model"):
        uf.save(model, tmp_path / "mine", overwrite=True)


# -------------------------------------------------------------------------------------------------------------- bad files


@pytest.fixture
def folder(tmp_path):
    model = made("gcn", "node")
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, range(2))
    uf.save(model, tmp_path / "m", optimizer=optimizer)
    return tmp_path / "m"


def set_built(**values):
    return lambda config: config["built"].update(values)


def set_pruning(**values):
    return lambda config: config["pruning"].update(values)


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda c: c.update(version=3), "format version 3"),
        (lambda c: c.update(code="x"), "has 'code', which this release does not know"),
        (set_built(model="os.system"), "which this release cannot build"),
        (set_built(width=10**9), "cannot have width"),
        (set_built(width=23), r"convs.0.bias is \[24\]"),
        (set_built(layers=10**9), "layers with"),
        (set_built(layers=True), "layers with"),
        (set_built(heads=3), "unknown or missing settings|settings that its class"),
        (set_built(dropout="0.5"), "cannot have dropout"),
        (set_pruning(edge_sparsity=2), "cannot be used"),
        (set_pruning(entries=["unit"]), "cannot be used"),
        (set_pruning(inherit=1), "must be True or False"),
        (set_pruning(code="x"), "no pruning option named 'code'"),
        (lambda c: c.update(pruning=None), "is inconsistent"),
        (lambda c: c.update(phase="grow"), "no valid schedule"),
        (lambda c: c["convs"].reverse() or c["convs"].pop(), "other layers"),
        (lambda c: c["convs"][0].__setitem__(2, -1), "invalid width"),
        (lambda c: c["trains"].append("os"), "'trains' of modules"),
        (lambda c: c["feedback"].append(3), "'feedback' of modules"),
        (lambda c: c["state"].pop("convs.0.bias"), "convs.0.bias"),
        (lambda c: c["state"]["convs.0.bias"].update(type="float99"), "does not know"),
        (lambda c: c["state"]["convs.0.bias"].update({"as": "rows"}), "does not know"),
        (lambda c: c["state"]["convs.0.bias"].update(shape=[10**9, 10**9]), "values, not"),
        (lambda c: c.update(optimizer=None), "does not use"),
        (lambda c: c.update(training=3), "is damaged"),
        (lambda c: c.update({"class": 3}), "no class name"),
    ],
)
def test_a_config_that_lies(folder, make, sentence):
    change(folder, make)
    with pytest.raises(FileFormatError, match=sentence) as caught:
        uf.load(folder)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "make, sentence",
    [
        (set_built(model="torch_geometric.nn.PNA"), "which this release cannot build"),
        (set_built(model="torch_geometric.nn.GCN"), "unknown or missing settings|settings that its class"),
        (set_built(inputs=-1), "cannot have inputs"),
        (set_built(outputs="4"), "cannot have outputs"),
        (set_built(layers=10**9), "layers with"),
        (set_built(layers=1), "is inconsistent"),
        (set_built(width=24), "is inconsistent"),
        (set_built(heads=0), "cannot have heads"),
        (set_built(heads=True), "cannot have heads"),
        (set_built(heads=3), "cannot be built with its settings"),
        (set_built(v2=1), "cannot have v2"),
        (set_built(v2=True), "is inconsistent"),
        (set_built(edge_dim=-1), "cannot have edge_dim"),
        (set_built(negative_slope=1e300), "cannot have negative_slope"),
        (set_built(jk="sum"), "cannot have jk"),
        (set_built(jk=[]), "cannot have jk"),
        (set_built(act={"name": "Module"}), "cannot have act"),
        (set_built(act={"name": "LeakyReLU", "inplace": 1}), "cannot have inplace"),
        (set_built(act={"name": "GELU", "approximate": "x"}), "cannot have approximate"),
        (set_built(act={"name": "ReLU", "device": "cuda"}), "act with unknown settings"),
        (set_built(act="relu"), "cannot have act"),
        (set_built(norm={"name": ["batch"]}), "cannot have norm"),
        (set_built(norm={"name": "message"}), "cannot have norm"),
        (set_built(norm={"name": "layer", "mode": "x"}), "cannot have mode"),
        (set_built(norm={"name": "batch"}), "is inconsistent"),
        (set_built(act_first=None), "cannot have act_first"),
    ],
)
def test_a_ready_model_that_lies(tmp_path, make, sentence):
    uf.save(made("GAT"), tmp_path / "m")
    change(tmp_path / "m", make)
    with pytest.raises(FileFormatError, match=sentence) as caught:
        uf.load(tmp_path / "m")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name, to, sentence",
    [
        ("convs.0.nodes.values", 0, "edges that a graph of 0 nodes does not have"),
        ("convs.0.nodes.values", -4, "cannot|invalid"),
        ("convs.1.passes.values", -1, "cannot|invalid"),
    ],
)
def test_decisions_that_cannot_be(folder, name, to, sentence):
    put(folder, lambda arrays: arrays.update({name: 0 * arrays[name] + to}))
    with pytest.raises(FileFormatError, match=sentence):
        uf.load(folder)


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda o: o["groups"][0].update(lr="x"), "cannot have lr"),
        (lambda o: o["groups"][0].update(betas=[0.9]), "cannot have betas"),
        (lambda o: o["groups"][0].pop("eps"), "unknown or missing settings|settings that its class"),
        (lambda o: o["groups"][0].update(params=[0]), "unknown or missing settings|settings that its class"),
        (lambda o: o["state"].pop("2"), "without a state of parameter 2"),
        (lambda o: o["state"].update({"99": {}}), "(that it does not have|that do not exist)"),
        (lambda o: o["state"]["0"]["exp_avg"].update(type="float64"), "of type float32"),
        (lambda o: o["state"]["0"].update(exp_avg=[[1]]), "not a number"),
        (lambda o: o["state"]["0"].update(exp_avg=1.0), "inconsistent kinds"),
        (lambda o: [held.update(step="x") for held in o["state"].values()], "not a number"),
        (lambda o: [held.pop("step") for held in o["state"].values()], "rejects|does not use"),
    ],
)
def test_an_optimizer_that_lies(folder, make, sentence):
    model = uf.load(folder)
    change(folder, lambda config: make(config["optimizer"]))
    with pytest.raises(FileFormatError, match=sentence):
        uf.load(folder, into=torch.optim.Adam(model.parameters()))


def test_the_config_names_what_it_holds(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["format"] == "unifews-checkpoint" and config["version"] == 1 and config["library"] == uf.__version__
    assert config["built"]["model"] == "gcn" and config["pruning"]["entries"] == "node" and config["phase"] == "regrow"
