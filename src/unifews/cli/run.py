"""Running a command: exit codes, signals, and one sentence where something went wrong. Set UNIFEWS_DEBUG=1 for tracebacks."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from types import FrameType
from typing import Any

import typer
from typer.core import TyperGroup

from unifews.distributed.launch import launched
from unifews.errors import InputError, UnifewsError

# How the library's sentences name a setting: `name`; name=value, or name='a' or 'b'; and bare where it is no word, weight_ramp.
_NAMED = re.compile(r"`(\w+)`")
_GIVEN = re.compile(r"(?<![\w./:-])(?<!got )(\w+)=('[^']*'|[\w.+-]*\w|)((?: or '[^']*')*)")
_BARE = re.compile(r"(?<![\w./:'\"-])([a-z]+(?:_[a-z]+)+)(?![\w/='\"]|\.\w)")

_INTERRUPTED = "interrupted; nothing was written."
_NO_MEMORY = re.compile(r"you tried to allocate \d+ bytes")  # torch has a RuntimeError of its own for it
_WRITING = {errno.ENOSPC: "", errno.EDQUOT: "", errno.EFBIG: " (ulimit -f, or a limit of the file system)"}


_CTRL_C = 130  # 128 + SIGINT


class Interrupted(typer.Abort):
    """Ctrl-C where something has been kept; the message says what."""


class Termination:
    """SIGTERM, by which batch systems, containers and `timeout` stop a program, as Ctrl-C: the same message, exit code 143.

    Workers of torchrun keep the system's own way: they may wait for each other where no handler would be called.
    """

    exit_code = 128 + signal.SIGTERM
    _AGAIN = 1.0  # seconds in which a second signal is the first one's copy: `timeout` sends one to the process and its group

    def __init__(self) -> None:
        self._at: float | None = None
        self._before: Any = None

    def __bool__(self) -> bool:
        """Whether the signal has come."""
        return self._at is not None

    def __enter__(self) -> Termination:
        if not launched() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            try:
                self._before = signal.signal(signal.SIGTERM, self._stop)
            except ValueError:  # not in the main thread
                self._before = None
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._at is None or monotonic() - self._at > self._AGAIN:
            self._at = monotonic()
            raise KeyboardInterrupt


class Group(TyperGroup):
    """A group of commands that ends in one sentence where typer would draw a frame or print a traceback."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        def run() -> Any:
            return super(Group, self).main(args, prog_name, complete_var, False, windows_expand_args, **extra)

        if not standalone_mode:
            return run()
        with Termination() as asked:
            code = _exit_code(run)
        return sys.exit(asked.exit_code if asked and code else code)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            command = self.get_command(ctx, ctx.invoked_subcommand) if ctx.invoked_subcommand else None
            if command is not None:
                error.args = (in_options(str(error), command.params),)
            raise


def _exit_code(run: Callable[[], Any]) -> int:
    """Run a command; say in one sentence what went wrong."""
    debug = os.environ.get("UNIFEWS_DEBUG") == "1"
    try:
        code = run()
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort) as error:
        return _fail(str(error) or _INTERRUPTED, _CTRL_C)
    except BrokenPipeError:  # whoever read our output has left
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - stands in for stdout until the end of the process
        return 1
    except (UnifewsError, OSError) as error:
        if debug:
            raise
        return _fail(_sentence(error))
    except Exception as error:
        if hasattr(error, "format_message"):  # what typer raises for a mistyped command line
            return _fail(_usage(error))
        if debug:
            raise
        if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
            wanted = _NO_MEMORY.search(str(error))
            reason = wanted[0] if wanted else str(error).strip().rstrip(".") or "an allocation failed"
            return _fail(f"there is not enough memory for this: {reason}.")
        return _fail(
            f"this is a bug in unifews, {type(error).__name__}: {error}. UNIFEWS_DEBUG=1 shows where; please report it.", 1
        )
    if code == _CTRL_C:
        return _fail(_INTERRUPTED, _CTRL_C)
    return code if isinstance(code, int) else 0


def _fail(sentence: str, code: int = 2) -> int:
    sys.stderr.write(f"unifews: {sentence}\n")
    return code


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and not isinstance(error, UnifewsError) and error.strerror:
        where = f" {error.filename}" if error.filename else ""
        verb, why = ("write", _WRITING[error.errno]) if error.errno in _WRITING else ("use", "")
        return f"cannot {verb}{where}: {error.strerror}{why}."
    return " ".join(str(error).split())


def in_options(sentence: str, params: Iterable[Any]) -> str:
    """A sentence of the library in the words of a command: settings that are options of it become those; nothing else does."""
    if sentence.startswith("in "):  # a run file, in which settings have the library's names
        return sentence
    options = {param.name: param for param in params if param.param_type_name == "option"}
    options |= {f"num_{name}": option for name, option in options.items()}

    def named(found: re.Match[str]) -> str:
        return _long(options[found[1]].opts) if found[1] in options else found[0]

    def given(found: re.Match[str]) -> str:
        name, value, others = found.groups()
        if name not in options:
            return found[0]
        option = options[name]
        if option.is_flag:
            return _long(option.secondary_opts or option.opts) if value == "False" else _long(option.opts)
        return f"{_long(option.opts)} {value}{others}".replace("'", "").rstrip()

    return _BARE.sub(named, _NAMED.sub(named, _GIVEN.sub(given, sentence)))


def _long(spellings: Sequence[str]) -> str:
    return next((text for text in spellings if text.startswith("--")), spellings[0])


def _usage(error: Any) -> str:
    message = " ".join(str(error.format_message()).split()).rstrip(".")
    command = error.ctx.command_path if getattr(error, "ctx", None) is not None else "unifews"
    return f"{message[:1].lower()}{message[1:]} (see {command} --help)."


def group() -> typer.Typer:
    """An empty group of commands: the program itself, or one of its families."""
    return typer.Typer(cls=Group, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def help_if_alone(context: typer.Context) -> None:
    """A family named without a command shows what there is."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def own_process() -> None:
    """For commands that train; called before numpy and torch are imported, later is too late.

    Threads with nothing to do sleep instead of spinning: where something else runs too, threads that spin wait for each other's
    time slice at the end of every loop. On 2 busy cores a training on Cora took 35 s spinning and 2.6 s sleeping, and finding
    its axes 1.1 s and 0.1 s. What the environment says already is left alone. And memory that is freed is kept for later steps.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch and our kernels
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # numpy: 2^4 cycles instead of 2^26
    from unifews.resources import keep_freed

    keep_freed()
