"""A program that listens on a Unix socket and removes it on SIGTERM, as a device plugin does.

python -m tests.support.listening SOCKET
"""

from __future__ import annotations

import os
import signal
import socket
import sys


def main(path: str) -> None:
    """Accept connections, and close them, until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(path)
        server.listen()
        while True:
            server.accept()[0].close()
    finally:
        os.unlink(path)


if __name__ == "__main__":
    main(sys.argv[1])
