"""Downloads against a server on this machine: whole, resumed, refused, out of reach."""

from __future__ import annotations

import socket
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import pytest

from unifews.datasets.download import check_reachable, download
from unifews.datasets.registry import Unavailable

CONTENT = bytes(range(256)) * 20_000  # several chunks


class Server(BaseHTTPRequestHandler):
    drops: ClassVar[list[int]] = []  # after how many bytes each of the next connections breaks
    ranges = True
    asked: ClassVar[list[str | None]] = []

    def do_HEAD(self):
        self.send_error(404)  # an answer, which is all that matters

    def do_GET(self):
        if self.path != "/a.zip":
            self.send_error(404)
            return
        wanted = self.headers.get("Range")
        self.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start : start + self.drops.pop(0)] if self.drops else CONTENT[start:])

    def log_message(self, *_):
        pass


@pytest.fixture
def site():
    handler = type("Handler", (Server,), dict(drops=[], asked=[]))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    handler.url = f"http://127.0.0.1:{server.server_port}"
    yield handler
    server.shutdown()
    server.server_close()


def test_a_file_arrives_whole_with_progress(site, tmp_path):
    seen = []
    download(f"{site.url}/a.zip", tmp_path / "a.zip", lambda *step: seen.append(step))
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert seen[-1] == ("downloading a.zip", len(CONTENT), len(CONTENT)) and len(seen) > 1


def test_a_broken_connection_is_taken_up_where_it_broke(site, tmp_path):
    site.drops += [1_000_000, 500_000]
    download(f"{site.url}/a.zip", tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert site.asked == [None, "bytes=1000000-", "bytes=1500000-"]


def test_a_server_that_cannot_resume_sends_everything_again(site, tmp_path):
    site.drops += [1_000_000]
    site.ranges = False
    download(f"{site.url}/a.zip", tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_a_connection_that_keeps_breaking_leaves_nothing(site, tmp_path):
    site.drops += [10] * 9
    with pytest.raises(Unavailable, match=r"a\.zip was interrupted 4 times"):
        download(f"{site.url}/a.zip", tmp_path / "a.zip")
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_not_there(site, tmp_path):
    with pytest.raises(Unavailable, match=r"b\.zip gives 404 Not Found"):
        download(f"{site.url}/b.zip", tmp_path / "b.zip")
    assert not list(tmp_path.iterdir())


def test_nobody_listens(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1 cannot be reached \(Connection refused\)"):
            check_reachable(f"http://127.0.0.1:{free.getsockname()[1]}/a")


def test_a_silent_site_costs_no_more_than_the_time_given():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        start = time.perf_counter()
        with pytest.raises(Unavailable, match="cannot be reached"):
            check_reachable(f"http://127.0.0.1:{silent.getsockname()[1]}/", seconds=0.3)
        assert time.perf_counter() - start < 3
