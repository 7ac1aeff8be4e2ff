"""Sockets that notice a dead connection: packets that a firewall or a lost machine drops get no error back."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final

from aiohttp import AddrInfoType


@dataclass(frozen=True, slots=True)
class Keepalive:
    """After `idle_s` seconds of silence the kernel probes the peer, every `interval_s`, and gives up after `count`.

    `unacknowledged_s` limits how long sent data may stay without an acknowledgement.
    """

    idle_s: int = 15
    interval_s: int = 10
    count: int = 3
    unacknowledged_s: int = 40


KEEPALIVE: Final = Keepalive()
"""A dead connection ends within 45 s."""


def make_socket(address: AddrInfoType) -> socket.socket:
    """Return a socket for an address, with keepalive where the system has these options."""
    family, kind, protocol, *_ = address
    tcp_socket = socket.socket(family, kind, protocol)
    for name, value in options(KEEPALIVE).items():
        if hasattr(socket, name):
            tcp_socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    tcp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return tcp_socket


def options(keepalive: Keepalive) -> dict[str, int]:
    """Return the TCP options by name; not every system has all of them."""
    return {
        "TCP_KEEPIDLE": keepalive.idle_s,
        "TCP_KEEPINTVL": keepalive.interval_s,
        "TCP_KEEPCNT": keepalive.count,
        "TCP_USER_TIMEOUT": keepalive.unacknowledged_s * 1000,
    }
