"""Exit codes, signals and one-line error messages of the commands. UNIFEWS_DEBUG=1 shows tracebacks instead."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

import typer
from typer.core import TyperGroup

from unifews.errors import UnifewsError
from unifews.resources import launched

_INTERRUPTED = "interrupted; nothing was written."
_NO_MEMORY = re.compile(r"you tried to allocate \d+ bytes")  # torch has a RuntimeError of its own for it
_WRITING = {errno.ENOSPC: "", errno.EDQUOT: "", errno.EFBIG: " (ulimit -f, or a limit of the file system)"}


_CTRL_C = 130  # 128 + SIGINT


class Interrupted(typer.Abort):
    """Ctrl-C after part of the work was saved; the message names what can be resumed."""


class Termination:
    """Handles SIGTERM, which batch systems, containers and `timeout` send, like Ctrl-C: same message, exit code 143.

    Workers of torchrun keep the default action: blocked in a collective call they would never run a Python handler.
    """

    exit_code = 128 + signal.SIGTERM
    _DUPLICATE = 1.0  # seconds within which a second signal is a copy: `timeout` signals the process and its group

    def __init__(self) -> None:
        self._at: float | None = None
        self._before: Any = None

    def __bool__(self) -> bool:
        """Whether the signal was received."""
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
        if self._at is None or monotonic() - self._at > self._DUPLICATE:
            self._at = monotonic()
            raise KeyboardInterrupt


class CommandGroup(TyperGroup):
    """A group of commands that reports an error in one line where typer would draw a frame or print a traceback."""

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
            return super(CommandGroup, self).main(args, prog_name, complete_var, False, windows_expand_args, **extra)

        if not standalone_mode:
            return run()
        with Termination() as terminated:
            code = _exit_code(run)
        return sys.exit(terminated.exit_code if terminated and code else code)


def _exit_code(run: Callable[[], Any]) -> int:
    """Run a command and report an error in one line on stderr."""
    debug = os.environ.get("UNIFEWS_DEBUG") == "1"
    try:
        code = run()
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort) as error:
        return _fail(str(error) or _INTERRUPTED, _CTRL_C)
    except BrokenPipeError:  # the reader of stdout has exited
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - replaces stdout until the process ends
        return 1
    except (UnifewsError, OSError) as error:
        if debug:
            raise
        return _fail(_message(error))
    except Exception as error:
        if hasattr(error, "format_message"):  # what typer raises for a mistyped command line
            return _fail(_usage(error))
        if debug:
            raise
        if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
            wanted = _NO_MEMORY.search(str(error))
            reason = wanted[0] if wanted else str(error).strip().rstrip(".") or "an allocation failed"
            return _fail(f"not enough memory: {reason}.")
        return _fail(
            f"this is a bug in unifews, {type(error).__name__}: {error}. UNIFEWS_DEBUG=1 shows where; please report it.", 1
        )
    if code == _CTRL_C:
        return _fail(_INTERRUPTED, _CTRL_C)
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int = 2) -> int:
    sys.stderr.write(f"unifews: {message}\n")
    return code


def _message(error: BaseException) -> str:
    if isinstance(error, OSError) and not isinstance(error, UnifewsError) and error.strerror:
        where = f" {error.filename}" if error.filename else ""
        verb, why = ("write", _WRITING[error.errno]) if error.errno in _WRITING else ("use", "")
        return f"cannot {verb}{where}: {error.strerror}{why}."
    return " ".join(str(error).split())


_NOT_A_NUMBER = re.compile("(int|float)_")  # types of pydantic's errors
_EXTRA = re.compile(r"unexpected extra arguments?(?:\(s\))? \((.*)\)$")
_VALUE = r"('[^']*'(?: or '[^']*')*|[\w.+-]*\w|)"  # of a setting in a message: quoted, plain or left open


def in_flags(message: str, params: Iterable[Any]) -> str:
    """An error message of the library with its settings, `name`, name=value or a_name, as the flags of a command."""
    options = {param.name: param for param in params if param.param_type_name == "option"}
    for name, flag in (("threshold", "edge_threshold"), ("method", "methods")):  # of `propagate`, and of `compare`
        if flag in options:
            options.setdefault(name, options[flag])
    for name, param in options.items():
        positive = max(param.opts, key=len)
        message = message.replace(f"`{name}`", positive)
        if "_" in name:
            message = re.sub(rf"(^|\s){name}(?=[\s,;])", rf"\1{positive}", message)
        if param.is_flag:
            negative = max(param.secondary_opts or param.opts, key=len)
            message = re.sub(rf"(^|[\s(]){name}=True", rf"\1{positive}", message)
            message = re.sub(rf"(^|[\s(]){name}=False", rf"\1{negative}", message)
        else:
            message = re.sub(rf"(^|[\s(]){name}={_VALUE}", partial(_with_value, positive), message)
    return re.sub(r"(--[\w-]+(?: [\w.]+)?) \(\1\)", r"\1", message)


def _with_value(flag: str, found: re.Match[str]) -> str:
    value = found[2].replace("'", "")
    return f"{found[1]}{flag} {value}" if value else f"{found[1]}{flag}"


def _usage(error: Any) -> str:
    """What typer raises for a mistyped command line, as one sentence in the form of the library's own errors."""
    message = " ".join(str(error.format_message()).split()).rstrip(".")
    found = _NOT_A_NUMBER.match(_reason(error).get("type", ""))
    if found:
        kind = "an integer" if found[1] == "int" else "a number"
        message = f"{max(error.param.opts, key=len)} must be {kind}; got {str(_reason(error)['input'])!r}"
    elif hasattr(error, "option_name") and hasattr(error, "possibilities"):
        near = get_close_matches(error.option_name, error.possibilities or (), n=1, cutoff=0.7)
        message = f"no such option: {error.option_name}" + "".join(f". Did you mean {name}?" for name in near)
    elif extra := _EXTRA.search(message):
        message = f"unexpected argument {extra[1]}"
    command = error.ctx.command_path if getattr(error, "ctx", None) is not None else "unifews"
    return f"{message[:1].lower()}{message[1:]} (see {command} --help)."


def _reason(error: Any) -> dict[str, Any]:
    """What pydantic, which typer converts values with, found wrong: its type and its input."""
    cause: Any = error.__cause__
    return cause.errors()[0] if hasattr(cause, "errors") and hasattr(error, "param") else {}


def help_if_alone(context: typer.Context) -> None:
    """Show the help of a group that is called without a command."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def configure_process() -> None:
    """Set up this process for training; called before numpy and torch are imported, which read these variables.

    Idle threads sleep instead of spinning: on a busy machine spinning threads wait for each other's time slice at the end of
    every loop. On 2 busy cores a training on Cora took 35 s spinning and 2.6 s sleeping, its PCA 1.1 s and 0.1 s. Variables
    that are set already are left alone. Freed memory is retained for later steps.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch and our kernels
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # numpy: 2^4 cycles instead of 2^26
    from unifews.resources import keep_freed

    keep_freed()


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Report on Ctrl-C what the same command will resume."""
    from unifews.storage.journal import folder_of

    try:
        yield
    except KeyboardInterrupt as error:
        if not folder_of(out).exists():
            raise
        raise Interrupted(f"interrupted; finished work is in {folder_of(out)}, run the same command to resume.") from error


@contextmanager
def resumable_runs(ledger: Path) -> Iterator[None]:
    """Report on Ctrl-C which ledger holds the finished runs and seeds."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted; finished runs are in {ledger}, run the same command to resume.") from error
