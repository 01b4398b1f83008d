"""Writes cli.md, the reference of the command line, from the command line itself: `make docs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from unifews.cli import app

PAGE = Path(__file__).with_name("cli.md")
HEAD = """\
# The command line

*Written by `make docs` from the commands themselves; edit `src/unifews/cli` instead.*

Results go to stdout (`--json` for machines), progress and notes to stderr. Exit code 0: done. 2: a mistake in the call or a
file, reported in one sentence on stderr. 130: interrupted by Ctrl-C; 143: by SIGTERM. Output files are complete or absent.
`UNIFEWS_DEBUG=1` shows tracebacks, `UNIFEWS_KERNELS=base` (or another of those that `unifews --version` lists) picks the
instruction set.
"""


def page() -> str:
    return "\n".join([HEAD, *_sections("unifews", typer.main.get_command(app))])


def _sections(path: str, command: Any) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help" and not p.hidden]
    commands = getattr(command, "commands", {})
    usage = [path, *(p.metavar for p in arguments), *(["[OPTIONS]"] if options else []), *(["COMMAND"] if commands else [])]
    lines = [f"## {path}", "", (command.help or "").strip(), "", "```", " ".join(usage), "```", ""]
    if commands:
        lines += ["| command | |", "|---|---|"]
        lines += [f"| [`{name}`](#{path.replace(' ', '-')}-{name}) | {_first(sub)} |" for name, sub in commands.items()]
        lines += [""]
    if arguments or options:
        lines += ["| option | | default |", "|---|---|---|"]
        lines += [f"| `{p.metavar}` | {_cell(p.help)} | required |" for p in arguments]
        lines += [f"| {_names(p)} | {_cell(p.help)} | {_default(p)} |" for p in options]
        lines += [""]
    for name, sub in commands.items():
        lines += _sections(f"{path} {name}", sub)
    return lines


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
