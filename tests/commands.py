"""Running the command line in tests: inside this process, or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

from typer.testing import CliRunner

from unifews import cli


def work_in(folder, monkeypatch):
    """With no dataset on the machine but those put there."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("UNIFEWS_CACHE", str(folder / "cache"))
    monkeypatch.delenv("UNIFEWS_DATA", raising=False)


def call(*arguments):
    """Exit code, stdout and stderr of a command run inside this process."""
    result = CliRunner().invoke(cli.app, [str(a) for a in arguments], prog_name="unifews")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return SimpleNamespace(code=result.exit_code, out=result.stdout, err=result.stderr)


def fine(*arguments):
    result = call(*arguments)
    assert result.code == 0, result.err
    return result


def wrong(*arguments, says):
    """A mistake: exit code 2, nothing on stdout, one line on stderr that holds every one of `says`."""
    result = call(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("unifews: ") and result.err.endswith((".\n", "?\n")) and result.err.count("\n") == 1
    for part in [says] if isinstance(says, str) else says:
        assert part in result.err
    return result.err


def spawn(*arguments, cwd=None, **environment):
    return subprocess.run(
        [sys.executable, "-m", "unifews", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env={**os.environ, **environment},
    )
