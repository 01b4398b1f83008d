"""The configuration mechanism: validation, plain values, TOML and text, all from the fields of a dataclass."""

from __future__ import annotations

import math
import pickle
import tomllib
from dataclasses import MISSING, dataclass, field
from typing import Literal

import numpy as np
import pytest

from unifews.core import config
from unifews.core.config import from_dict, from_text, option, options_of, same_option, to_dict, to_text, to_toml, validate
from unifews.errors import InputError, UnknownNameError


@dataclass(frozen=True)
class Inner:
    """A part."""

    epochs: int = option(200, "epochs", ge=1)
    rate: float = option(0.5, "dropout probability", ge=0, lt=1)

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True)
class Outer:
    """A configuration with every kind of field."""

    name: str = option(MISSING, "name of the dataset")
    sparsity: float | None = option(None, "fraction to remove", ge=0, lt=1, group="Amounts", metavar="S")
    threshold: float | None = option(None, "smallest magnitude kept", ge=0, le=math.inf)
    kind: Literal["block", "node"] = option("block", "what is decided", rare=True)
    certify: bool | Literal["sampled"] = option(False, "bound the error")
    nested: bool = option(False, "removed stays removed", needs="sparsity|threshold")
    lock: bool = option(False, "lock nodes", needs="kind=node")
    factor: float = option(4.0, "hysteresis", gt=0)
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True)
class Sharing:
    """Has an option of another class, with its own default."""

    sparsity: float | None = same_option(Outer, "sparsity", default=0.5)

    def __post_init__(self) -> None:
        validate(self)


@pytest.mark.parametrize(
    ("values", "setting", "words"),
    [
        ({"sparsity": 50}, "sparsity", r"must be a number in \[0, 1\); got 50\. For 50 percent write sparsity=0.5"),
        ({"sparsity": True}, "sparsity", "got True"),
        ({"sparsity": math.nan}, "sparsity", "got nan"),
        ({"threshold": -1}, "threshold", "of at least 0; got -1"),
        ({"threshold": math.nan}, "threshold", "got nan"),
        ({"factor": math.inf}, "factor", "must be a number above 0; got inf"),
        ({"factor": 10**400}, "factor", "got 1000"),
        ({"factor": "4"}, "factor", "got '4'"),
        ({"certify": "smapled"}, "certify", "must be True or False or 'sampled'; got 'smapled'"),
        ({"nested": 1}, "nested", "must be True or False; got 1"),
        ({"nested": True}, "nested", "no effect without `sparsity` or `threshold`"),
        ({"lock": True}, "lock", "no effect with kind=block; leave it out, or write kind=node"),
        ({"name": 3}, "name", "must be a string; got 3"),
        ({"inner": {"epochs": 0}}, "epochs", "must be an integer of at least 1; got 0"),
        ({"inner": {"epochs": 2.0}}, "epochs", "must be an integer"),
        ({"inner": 3}, "inner", "must be a Inner; got 3"),
    ],
)
def test_a_bad_value_names_its_setting(values: dict[str, object], setting: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        from_dict(Outer, {"name": "cora", **values})
    assert caught.value.setting == setting


def test_an_unknown_choice_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'block'") as caught:
        Outer("cora", kind="blok")  # type: ignore[arg-type]
    assert caught.value.setting == "kind"


def test_numbers_become_plain_python() -> None:
    made = Outer("cora", sparsity=np.float32(0.5), factor=2, inner=Inner(epochs=np.int64(3)))  # type: ignore[arg-type]
    assert (type(made.sparsity), type(made.factor), type(made.inner.epochs)) == (float, float, int)
    assert Outer("cora", threshold=math.inf).threshold == math.inf
    assert Outer("cora", certify=np.True_).certify is True  # type: ignore[arg-type]


def test_plain_values_there_and_back() -> None:
    made = Outer("cora", sparsity=0.5, nested=True, inner=Inner(epochs=7))
    assert from_dict(Outer, to_dict(made)) == made
    assert from_dict(Outer, tomllib.loads(to_toml(made))) == made
    assert "threshold" not in to_toml(made)
    assert "[inner]\nepochs = 7" in to_toml(made)


def test_missing_fields_take_defaults_and_unknown_ones_are_refused() -> None:
    assert from_dict(Outer, {"name": "cora"}) == Outer("cora")
    with pytest.raises(InputError, match="`name` is missing"):
        from_dict(Outer, {})
    with pytest.raises(UnknownNameError, match=r"no setting named 'sparsty'\. Did you mean 'sparsity'"):
        from_dict(Outer, {"name": "cora", "sparsty": 0.5})
    with pytest.raises(UnknownNameError, match=r"no setting of `inner` named 'epoch'\. Did you mean 'epochs'"):
        from_dict(Outer, {"name": "cora", "inner": {"epoch": 3}})


def test_options_of_a_part_may_stand_among_the_others() -> None:
    assert from_dict(Outer, {"name": "cora", "epochs": 3, "inner": {"rate": 0.1}}).inner == Inner(3, 0.1)
    assert from_dict(Outer, {"name": "cora", "epochs": 3, "inner": Inner(rate=0.1)}).inner == Inner(3, 0.1)


def test_options_carry_what_flags_and_pages_need() -> None:
    found = {each.name: each for each in options_of(Outer)}
    assert list(found) == ["name", "sparsity", "threshold", "kind", "certify", "nested", "lock", "factor", "epochs", "rate"]
    sparsity = found["sparsity"]
    assert (sparsity.group, sparsity.metavar, sparsity.help) == ("Amounts", "S", "fraction to remove")
    assert sparsity.kinds == (float,) and sparsity.is_optional
    assert found["kind"].choices == ("block", "node") and found["kind"].rare
    assert found["nested"].is_flag and not found["certify"].is_flag
    assert found["epochs"].part == "inner" and found["epochs"].default == 200
    assert found["name"].default is MISSING


def test_an_option_is_declared_once_and_used_elsewhere() -> None:
    assert Sharing().sparsity == 0.5
    assert next(options_of(Sharing)).help == "fraction to remove"
    with pytest.raises(InputError, match=r"in \[0, 1\)"):
        Sharing(sparsity=1.0)


def test_text_there_and_back() -> None:
    made = from_text(Outer, "mine:name=cora,sparsity=0.25,nested=yes,kind=node,threshold=none")
    assert made == Outer("cora", sparsity=0.25, nested=True, kind="node")
    assert to_text("mine", made) == "mine:name=cora,sparsity=0.25,kind=node,nested=true"
    assert to_text("inner", Inner()) == "inner"
    assert to_text("inner", Inner(), full=True) == "inner:epochs=200,rate=0.5"
    with pytest.raises(UnknownNameError, match="no setting of 'inner' named 'epoch'"):
        from_text(Inner, "inner:epoch=3")
    with pytest.raises(InputError, match="`epochs` must be an integer of at least 1; got 'x'"):
        from_text(Inner, "inner:epochs=x")
    with pytest.raises(InputError, match="name:setting=value"):
        from_text(Inner, "inner:epochs")


def test_project_takes_the_values_of_the_same_names() -> None:
    assert config.project(Inner, Inner(epochs=5), rate=0.25) == Inner(5, 0.25)


def test_the_setting_survives_pickling_between_processes() -> None:
    for kind in (InputError, UnknownNameError):
        error = pickle.loads(pickle.dumps(kind("wrong.", setting="sparsity")))
        assert (str(error), error.setting) == ("wrong.", "sparsity")


# ------------------------------------------------------------------------------------------------- options without effect


@dataclass(frozen=True)
class How:
    """Conditions on options of its own and of another class."""

    basis: Literal["pca", "input"] = option("pca", "basis")
    rank: int | None = option(None, "components", needs="basis!=input & model=big|model=huge")
    nested: bool = option(False, "removed stays removed", needs="sparsity|threshold")
    model: str = option("big", "model")

    def __post_init__(self) -> None:
        validate(self)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"basis": "input", "rank": 3}, "`rank` has no effect with basis=input; leave it out."),
        (
            {"rank": 3, "model": "small"},
            "`rank` has no effect with model=small; leave it out, or write model=big or model=huge.",
        ),
    ],
)
def test_all_conditions_of_an_option_must_hold(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        from_dict(How, values)
    assert str(caught.value) == message and caught.value.setting == "rank"
    assert from_dict(How, {"rank": 3, "model": "huge"}).rank == 3


def test_conditions_on_options_of_another_class_are_checked_together() -> None:
    how = How(nested=True)  # by itself it has no sparsity to look at
    config.check_needs(how, Sharing(0.5), given=["nested"])
    with pytest.raises(InputError, match="`nested` has no effect without `sparsity`; add it, or leave it out"):
        config.check_needs(how, Sharing(None), given=["nested"])
    config.check_needs(How(), Sharing(None), given=["nested", "unknown"])  # False asks for nothing


def test_an_option_given_by_name_is_checked_whatever_its_value() -> None:
    how = How(basis="input", model="big")
    config.check_needs(how, given=["basis"])
    with pytest.raises(InputError, match="`rank` has no effect with basis=input"):
        config.check_needs(how, given=["rank"])


def test_fields_may_be_exempt() -> None:
    @dataclass(frozen=True)
    class Lenient(How):
        def __post_init__(self) -> None:
            validate(self, unneeded=("rank",))

    assert Lenient(basis="input", rank=3).rank == 3
    with pytest.raises(InputError, match="no effect with basis=input"):
        config.check_needs(Lenient(basis="input", rank=3), given=["rank"])
