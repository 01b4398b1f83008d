"""Downloads that fail fast, resume, and leave a whole file or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from threading import Thread
from typing import BinaryIO
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from unifews.datasets.registry import Unavailable
from unifews.resources import StageProgress
from unifews.storage.atomic import atomic_file

ANSWER = 5.0  # seconds a site has to answer at all
_STALL = 30.0  # seconds without a byte before a connection counts as lost
_TRIES = 4
_CHUNK = 1 << 20


class _Lost(Exception):
    """The connection broke; what has arrived so far is good."""


def check_reachable(url: str, seconds: float = ANSWER) -> None:
    """Raise `Unavailable` unless the site of `url` answers, whatever it answers, in time."""
    site = urlsplit(url)
    fate: list[str | None] = []

    def knock() -> None:
        try:
            urlopen(Request(f"{site.scheme}://{site.netloc}/", method="HEAD"), timeout=seconds).close()
        except HTTPError:
            fate.append(None)  # it answered
        except (OSError, HTTPException) as error:
            fate.append(_reason(error))
        else:
            fate.append(None)

    # A thread of its own, because looking up a name knows no time limit.
    thread = Thread(target=knock, daemon=True)
    thread.start()
    thread.join(seconds + 1)
    reason = fate[0] if fate else f"no answer in {seconds:.0f} s"
    if reason is not None:
        raise Unavailable(f"{site.hostname} cannot be reached ({reason})")


def download(url: str, path: Path, progress: StageProgress | None = None) -> None:
    """The file at `url`, which appears at `path` when it is whole. A broken connection is taken up where it broke."""
    check_reachable(url)
    reason = ""
    with atomic_file(path) as file:
        for _ in range(_TRIES):
            try:
                return _continue(url, file, progress)
            except _Lost as lost:
                reason = str(lost)
        raise Unavailable(f"{url} broke off {_TRIES} times ({reason})")


def _continue(url: str, file: BinaryIO, progress: StageProgress | None) -> None:
    """Download what is missing from `file`."""
    start = file.tell()
    with _opened(Request(url, headers={"Range": f"bytes={start}-"} if start else {})) as response:
        if response.status != 206:  # the whole file, whatever was asked for
            start = 0
            file.seek(0)
            file.truncate()
        length = response.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        for chunk in _chunks(response):
            file.write(chunk)
            if progress is not None:
                progress(f"downloading {url.rpartition('/')[2]}", file.tell(), total or file.tell())
    if total is not None and file.tell() != total:
        raise _Lost(f"after {file.tell():,} of {total:,} bytes")


def _opened(request: Request) -> HTTPResponse:
    try:
        response: HTTPResponse = urlopen(request, timeout=_STALL)
    except HTTPError as error:
        raise Unavailable(f"{request.full_url} gives {error.code} {error.reason}") from error
    except (OSError, HTTPException) as error:
        raise _Lost(_reason(error)) from error
    return response


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            chunk = response.read(_CHUNK)
        except (OSError, HTTPException) as error:
            raise _Lost(_reason(error)) from error
        if not chunk:
            return
        yield chunk


def _reason(error: BaseException) -> str:
    """The cause in a few words: "Name or service not known", "timed out"."""
    inner = getattr(error, "reason", error)
    return str(getattr(inner, "strerror", None) or inner or type(error).__name__).strip()
