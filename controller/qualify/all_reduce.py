"""A test of the network between the nodes of a group: a ring over TCP. `python -m controller.qualify.all_reduce`

It imports nothing of the controller, and runs in the controller's image. Each rank sends blocks around the ring; the
last line of the termination message has the figures:

- `bandwidth`: what a rank receives, in Gbit/s;
- `p99`: of a small message's way to the next rank and back to it around the ring, in milliseconds;
- `seconds`: of the whole test.

It ends with 0 if the sum of all ranks is right, whatever the figures are: thresholds are of the qualification.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PORT: Final = 29400
BLOCK: Final = 4 << 20  # bytes of a large message
ROUNDS: Final = 50
SMALL_ROUNDS: Final = 200
CONNECT_S: Final = 300.0  # pods start one after the other
SILENT_S: Final = 60.0  # a partner that says nothing for so long is dead
MESSAGE: Final = Path("/dev/termination-log")
_LENGTH: Final = struct.Struct(">Q")


def send(peer: socket.socket, message: bytes) -> None:
    """Send a message. Raises OSError."""
    peer.sendall(_LENGTH.pack(len(message)))
    peer.sendall(message)


def receive(peer: socket.socket) -> bytes:
    """Receive a message. Raises OSError, also if the partner has ended."""
    return _exactly(peer, _LENGTH.unpack(_exactly(peer, _LENGTH.size))[0])


def _exactly(peer: socket.socket, number: int) -> bytes:
    buffer = bytearray(number)
    view = memoryview(buffer)
    while view:
        received = peer.recv_into(view)
        if not received:
            raise ConnectionError("a partner has ended")
        view = view[received:]
    return bytes(buffer)


def connected(host: str, port: int, wait_s: float) -> socket.socket:
    """Connect to another rank, which may not have started yet. Raises OSError after `wait_s`."""
    until = time.monotonic() + wait_s
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=SILENT_S)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
            continue
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


class Ring:
    """One rank: it receives from the rank before it, and sends to the one after it."""

    def __init__(self, rank: int, world: int, rank0: str, port: int, wait_s: float = CONNECT_S) -> None:
        """Meet the other ranks at rank 0. Raises OSError."""
        self.rank, self.world = rank, world
        self._wait_s = wait_s
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        dual = family is socket.AF_INET6
        listening = socket.create_server(
            ("", port if rank == 0 else 0), family=family, backlog=world, dualstack_ipv6=dual
        )
        listening.settimeout(wait_s)
        with listening:
            table = self._at_rank_0(listening) if rank == 0 else self._met(rank0, port, listening)
            host, its_port = table[(rank + 1) % world]
            self._next = connected(host, its_port, wait_s)
            self._before, _ = listening.accept()
        self._before.settimeout(SILENT_S)

    def _at_rank_0(self, listening: socket.socket) -> list[tuple[str, int]]:
        """Gather the addresses of all ranks, and tell them. Raises OSError."""
        own_port = listening.getsockname()[1]
        address_by_rank: dict[int, tuple[str, int]] = {}
        peers: list[socket.socket] = []
        own_host = "127.0.0.1"
        while len(address_by_rank) < self.world - 1:
            peer, address = listening.accept()
            peer.settimeout(SILENT_S)
            greeting = json.loads(receive(peer))
            address_by_rank[int(greeting["rank"])] = address[0], int(greeting["port"])
            own_host = peer.getsockname()[0]
            peers.append(peer)
        table = [(own_host, own_port), *(address_by_rank[number] for number in range(1, self.world))]
        for peer in peers:
            send(peer, json.dumps(table).encode())
            peer.close()
        return table

    def _met(self, rank0: str, port: int, listening: socket.socket) -> list[tuple[str, int]]:
        """Tell rank 0 the own port, and return all addresses. Raises OSError."""
        with connected(rank0, port, self._wait_s) as peer:
            peer.settimeout(self._wait_s)
            send(peer, json.dumps({"rank": self.rank, "port": listening.getsockname()[1]}).encode())
            return [(str(host), int(number)) for host, number in json.loads(receive(peer))]

    def around(self, message: bytes) -> list[bytes]:
        """Give every rank the own message; return those of all ranks before this one, the nearest first."""
        messages: list[bytes] = []
        for _ in range(self.world - 1):
            message = self._exchanged(message)
            messages.append(message)
        return messages

    def _exchanged(self, message: bytes) -> bytes:
        """Send a message to the next rank while one of the rank before it arrives."""
        if len(message) <= 1 << 10:
            send(self._next, message)
            return receive(self._before)
        # Half of the ranks receive first: full buffers cannot stop the ring. In an odd ring, one pair takes turns.
        if self.rank % 2:
            received = receive(self._before)
            send(self._next, message)
            return received
        send(self._next, message)
        return receive(self._before)

    def close(self) -> None:
        """Close the connections."""
        self._next.close()
        self._before.close()


def measured(
    ring: Ring, block: int = BLOCK, rounds: int = ROUNDS, small_rounds: int = SMALL_ROUNDS
) -> dict[str, float]:
    """Return the figures. Raises OSError, ValueError if the sum of all ranks is wrong."""
    numbers = [int.from_bytes(message, "big") for message in ring.around(ring.rank.to_bytes(8, "big"))]
    if sum(numbers) + ring.rank != ring.world * (ring.world - 1) // 2:
        raise ValueError(f"the sum of all ranks is wrong: {numbers}")
    delays: list[float] = []
    for _ in range(small_rounds):
        began = time.perf_counter()
        ring.around(b"12345678")
        delays.append(1000 * (time.perf_counter() - began))
    payload = os.urandom(block)
    began = time.perf_counter()
    for _ in range(rounds):
        ring.around(payload)
    took = time.perf_counter() - began
    bits = 8 * block * rounds * (ring.world - 1)
    p99 = sorted(delays)[int(0.99 * (len(delays) - 1))]
    return {"bandwidth": round(bits / took / 1e9, 3), "p99": round(p99, 3)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank, by the variables of its claim; return the exit code."""
    parser = argparse.ArgumentParser(prog="all-reduce", description="Tests the network between nodes.")
    parser.add_argument("--rank", type=int, default=int(os.environ.get("NEURON_GLOBAL_TOPOID", "0")))
    parser.add_argument("--world", type=int, default=int(os.environ.get("NEURON_DRA_WORLD_SIZE", "1")))
    parser.add_argument("--rank0", default=os.environ.get("NEURON_DRA_RANK0_ADDR", "127.0.0.1"))
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--message", type=Path, default=MESSAGE)
    parsed = parser.parse_args(arguments)
    began = time.perf_counter()
    figures: dict[str, float] = {}
    try:
        if parsed.world > 1:
            ring = Ring(parsed.rank, parsed.world, parsed.rank0, parsed.port)
            figures = measured(ring, rounds=parsed.rounds)
            ring.close()
    except (OSError, ValueError) as err:
        sys.stderr.write(f"rank {parsed.rank}: {err}\n")
        parsed.message.write_text(f"{err}\n")
        return 1
    text = json.dumps({**figures, "seconds": round(time.perf_counter() - began, 3)})
    sys.stdout.write(f"{text}\n")
    parsed.message.write_text(f"{text}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
