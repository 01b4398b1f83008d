"""Downloads that fail early, resume, and leave a complete file or none."""

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
from unifews.resources import StageProgress, report
from unifews.storage.atomic import atomic_file

ANSWER = 5.0  # seconds in which a site must answer
_STALL = 30.0  # seconds without a byte before a connection counts as lost
_TRIES = 4
_CHUNK = 1 << 20


class _Lost(Exception):
    """The connection was lost; the bytes so far are valid."""


def check_reachable(url: str, seconds: float = ANSWER) -> None:
    """Raise `Unavailable` unless the site of `url` answers, whatever it answers, in time."""
    site = urlsplit(url)
    outcome: list[str | None] = []

    def connect() -> None:
        try:
            urlopen(Request(f"{site.scheme}://{site.netloc}/", method="HEAD"), timeout=seconds).close()
        except HTTPError:
            outcome.append(None)  # it answered
        except (OSError, HTTPException) as error:
            outcome.append(_reason(error))
        else:
            outcome.append(None)

    # In a thread, because the look-up of a host name has no time limit.
    thread = Thread(target=connect, daemon=True)
    thread.start()
    thread.join(seconds + 1)
    reason = outcome[0] if outcome else f"no answer in {seconds:.0f} s"
    if reason is not None:
        raise Unavailable(f"{site.hostname} cannot be reached ({reason})")


def download(url: str, path: Path, progress: StageProgress | None = None) -> None:
    """Download `url` to `path`, which appears when it is complete. After a lost connection the download resumes."""
    check_reachable(url)
    reason = ""
    with atomic_file(path) as file:
        for _ in range(_TRIES):
            try:
                return _continue(url, file, progress)
            except _Lost as lost:
                reason = str(lost)
        raise Unavailable(f"{url} was interrupted {_TRIES} times ({reason})")


def _continue(url: str, file: BinaryIO, progress: StageProgress | None) -> None:
    """Download what is missing from `file`."""
    start = file.tell()
    with _opened(Request(url, headers={"Range": f"bytes={start}-"} if start else {})) as response:
        if response.status != 206:  # the complete file, without regard to the range
            start = 0
            file.seek(0)
            file.truncate()
        length = response.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        for chunk in _chunks(response):
            file.write(chunk)
            report(progress, f"downloading {url.rpartition('/')[2]}", file.tell(), total or file.tell())
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
