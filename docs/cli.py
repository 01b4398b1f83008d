"""Writes cli.md, the reference of the command line, from the commands themselves: `make docs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from unifews.cli import app

PAGE = Path(__file__).with_name("cli.md")
HEAD = """\
# The command line

*Written by `make docs` from the commands themselves; edit `src/unifews/cli` instead.*

Results are printed to stdout (`--json` for machines), progress and notes to stderr. Exit code 0: success. 2: a mistake in the
call or a file, reported in one sentence on stderr. 130: interrupted by Ctrl-C; 143: by SIGTERM. Output files are complete or
absent. `--help` shows the common options of a command, `--help-all` all of them. `UNIFEWS_DEBUG=1` shows tracebacks,
`UNIFEWS_KERNELS=base` (or another of those that `unifews --version` lists) selects the instruction set.
"""


def page() -> str:
    return "\n".join([HEAD, *_sections("unifews", typer.main.get_command(app))])


def _sections(path: str, command: Any) -> list[str]:
    params = command.get_params(typer.Context(command, info_name=path))
    arguments = [p for p in params if p.param_type_name == "argument"]
    options = [p for p in params if p.param_type_name == "option" and p.name not in ("help", "help_all")]
    commands = getattr(command, "commands", {})
    usage = [path, *(p.metavar for p in arguments), *(["[OPTIONS]"] if options else []), *(["COMMAND"] if commands else [])]
    lines = [f"## {path}", "", (command.help or "").strip(), "", "```", " ".join(usage), "```", ""]
    if command.epilog:
        lines += [f"Example: `{command.epilog.removeprefix('Example: ')}`", ""]
    if commands:
        lines += ["| command | |", "|---|---|"]
        lines += [f"| [`{name}`](#{path.replace(' ', '-')}-{name}) | {_first(sub)} |" for name, sub in commands.items()]
        lines += [""]
    if arguments or options:
        lines += ["| option | | default |", "|---|---|---|"]
        lines += [f"| `{p.metavar}` | {_cell(p.help)} | {_default(p)} |" for p in arguments]
        lines += _rows(options)
        lines += [""]
    for name, sub in commands.items():
        lines += _sections(f"{path} {name}", sub)
    return lines


def _rows(options: list[Any]) -> list[str]:
    """A row per option, under the headings of the help."""
    rows: list[str] = []
    heading = None
    for option in options:
        if option.rich_help_panel != heading:
            heading = option.rich_help_panel
            rows.append(f"| **{heading}** | | |")
        rows.append(f"| {_names(option)} | {_cell(option.help)} | {_default(option)} |")
    return rows


def _first(command: Any) -> str:
    return (command.help or "").strip().splitlines()[0]


def _names(option: Any) -> str:
    value = f" {option.metavar}" if option.metavar else ""
    return _cell(", ".join(f"`{name}{value}`" for name in [*option.opts, *option.secondary_opts]))


def _default(option: Any) -> str:
    if option.required:
        return "required"
    return "" if option.default is None or isinstance(option.default, bool) else f"`{option.default}`"


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
