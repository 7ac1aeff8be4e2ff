"""Requests to a server inside the test bed's network."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.bed import layout, network

HERE = layout.Layout("some-bed", False, Path("/nowhere"), Path("/nowhere"))


class EchoHandler(http.server.BaseHTTPRequestHandler):
    """Replies with the status in the path, and the request as its body."""

    def do_GET(self) -> None:
        self.send_response(int(self.path.split("?")[0].rpartition("/")[2]))
        self.end_headers()
        self.wfile.write(f"{self.path} {self.headers['Authorization']}".encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), EchoHandler) as running:
        thread = threading.Thread(target=running.serve_forever, args=[0.01])
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


@pytest.fixture
def busy_server(server: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[int]]:
    """A server, and the statuses of its next responses."""
    statuses: list[int] = []

    def status(handler: EchoHandler) -> None:
        handler.send_response(statuses.pop(0))
        handler.end_headers()

    monkeypatch.setattr(EchoHandler, "do_GET", status)
    monkeypatch.setattr(network, "TOO_MANY_REQUESTS_PAUSE_S", 0)
    return server, statuses


@pytest.fixture
def mute() -> Iterator[str]:
    """A server that accepts connections and never replies."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_request_and_reply_are_forwarded(server: str) -> None:
    answer = network.get(HERE, f"{server}/a/404?b=c", {"Authorization": "Bearer t"})
    assert answer == (404, b"/a/404?b=c Bearer t")


def test_request_is_sent_again_after_429(busy_server: tuple[str, list[int]]) -> None:
    """While an API server starts the storage of a new CustomResourceDefinition, it responds 429."""
    url, statuses = busy_server
    statuses += [429, 429, 200, 500]
    assert (network.get(HERE, url), statuses) == ((200, b""), [500])


def test_request_is_not_sent_for_ever(busy_server: tuple[str, list[int]]) -> None:
    url, statuses = busy_server
    statuses += [429] * 11
    assert (network.get(HERE, url), statuses) == ((429, b""), [429])


@pytest.mark.parametrize(("status", "expected"), [(200, True), (500, False)])
def test_only_success_is_an_answer(status: int, expected: bool, server: str) -> None:
    assert network.answers(HERE, f"{server}/{status}") is expected


def test_slow_request_times_out(mute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "ANSWER_TIMEOUT_S", 0.05)
    assert network.answers(HERE, f"{mute}/healthz") is False


def test_missing_server_has_no_reply() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}/healthz"
    assert network.answers(HERE, url) is False
