"""Ports for programs that cannot choose a free one themselves."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from typing import Final

FIRST: Final = 20_000
NUMBER: Final = 12_000
"""From here on are ports that systems give to clients, such as the hundreds of a test in another worker."""
APART: Final = 97

_given = itertools.count()


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now. A process never gets one twice, and others begin elsewhere."""
    for number in itertools.islice(_given, NUMBER):
        port = FIRST + (os.getpid() * APART + number) % NUMBER
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("no port is free")
