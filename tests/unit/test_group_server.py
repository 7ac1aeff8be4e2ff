"""18.2. The program of deploy/examples/programs/group-server.yaml, as processes on the loopback interface."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import fast_yaml
from tests.support.ports import free_port

EXAMPLE = Path(__file__).resolve().parents[2] / "deploy/examples/programs/group-server.yaml"
RANKS = 3
TIMEOUT_S = 60
ALL_PLACES = {"0": 0, "1": 1, "2": 2}


class Group:
    """The processes of a group; each writes to a file."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder, self.environment = folder, environment
        self.program = folder / "group_server.py"
        self.program.write_text(fast_yaml.load(EXAMPLE.read_text())["data"][self.program.name])
        self.port, self.http_port = free_port(), free_port()
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *ranks: int) -> None:
        for rank in ranks:
            environment = {
                **os.environ,
                "LWS_WORKER_INDEX": f"{rank}",
                "LWS_GROUP_SIZE": f"{RANKS}",
                "LWS_LEADER_ADDRESS": "127.0.0.1",
                "NEURON_RT_ULTRASERVER_NODE_ID": f"{rank}",
                "PORT": f"{self.port}",
                "HTTP_PORT": f"{self.http_port}",
                **self.environment,
            }
            with (self.folder / f"{rank}").open("ab") as log:
                words = [sys.executable, str(self.program)]
                self.running[rank] = subprocess.Popen(words, env=environment, stdout=log, stderr=log)

    def kill(self, *ranks: int) -> None:
        for rank in ranks:
            process = self.running.pop(rank)
            process.kill()
            process.wait()

    def get(self, path: str, address: str = "127.0.0.1") -> tuple[int, Any]:
        """Return status and content; 0 while the leader does not listen."""
        connection = http.client.HTTPConnection(address, self.http_port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except ConnectionRefusedError:
            return 0, None
        finally:
            connection.close()

    def until(self, path: str, status: int) -> Any:
        """Ask until the answer has this status, and return its content."""
        deadline = time.monotonic() + TIMEOUT_S
        while (found := self.get(path))[0] != status:
            assert time.monotonic() < deadline, (
                found,
                [(self.folder / f"{rank}").read_text() for rank in range(RANKS)],
            )
            time.sleep(0.1)
        return found[1]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    found = Group(tmp_path)
    yield found
    found.kill(*list(found.running))


def test_all_ranks_compute_an_answer(group: Group) -> None:
    """(18.2)"""
    group.start(0, 1)
    missing = [["ranks that have not joined: [2]"], ["ranks that have not joined: [1, 2]"]]
    assert [group.until("/health", 503)["error"]] in missing
    group.start(2)
    group.until("/health", 200)
    assert group.get("/sum?to=1000") == (200, {"to": 1000, "sum": 500500, "places": ALL_PLACES})
    assert group.get("/other")[0] == group.get("/sum?to=x")[0] == 404
    said = (group.folder / "0").read_text()
    assert all(f"rank 0 of 3: rank {rank} has joined from 127.0.0.1" in said for rank in (1, 2))


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this kernel has no IPv6")
def test_leader_answers_at_ipv6_addresses(tmp_path: Path) -> None:
    group = Group(tmp_path, LWS_LEADER_ADDRESS="::1")
    try:
        group.start(0, 1, 2)
        group.until("/health", 200)
        assert group.get("/sum?to=10", "::1") == (200, {"to": 10, "sum": 55, "places": ALL_PLACES})
    finally:
        group.kill(*list(group.running))


def test_a_worker_that_restarts_joins_again(group: Group) -> None:
    """(18.2)"""
    group.start(0, 1, 2)
    group.until("/health", 200)
    group.kill(2)
    group.until("/health", 503)
    group.start(2)
    assert group.until("/sum?to=10", 200) == {"to": 10, "sum": 55, "places": ALL_PLACES}


def test_workers_find_a_leader_that_restarts(group: Group) -> None:
    """(18.2)"""
    group.start(0, 1, 2)
    group.until("/health", 200)
    group.kill(0)
    group.start(0)
    assert group.until("/sum?to=10", 200) == {"to": 10, "sum": 55, "places": ALL_PLACES}


def test_a_wrong_answer_is_an_error(group: Group) -> None:
    """(18.2)"""
    group.program.write_text(group.program.read_text().replace("last + 1, RANKS", "last, RANKS"))
    group.start(0, 1, 2)
    assert group.until("/sum?to=3", 500)["sum"] == 3


def test_a_group_goes_on_from_the_answer_of_another(group: Group, tmp_path: Path) -> None:
    """(18.2) As decode does after prefill."""
    (tmp_path / "decode").mkdir()
    decode = Group(tmp_path / "decode", PREFILL=f"127.0.0.1:{group.http_port}")
    try:
        decode.start(0, 1, 2)
        decode.until("/health", 200)
        assert decode.get("/sum?to=1001")[0] == 503
        group.start(0, 1, 2)
        found = {"to": 1001, "sum": 501501, "places": ALL_PLACES, "prefill": ALL_PLACES}
        assert decode.until("/sum?to=1001", 200) == found
    finally:
        decode.kill(*list(decode.running))


def test_strangers_are_ignored(group: Group) -> None:
    """(18.2)"""
    group.start(0)
    group.until("/health", 503)
    with socket.create_connection(("127.0.0.1", group.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    group.start(1, 2)
    group.until("/health", 200)


def test_processes_end_when_their_pod_does(group: Group) -> None:
    """(18.2)"""
    group.start(0, 1, 2)
    group.until("/health", 200)
    for process in group.running.values():
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0
