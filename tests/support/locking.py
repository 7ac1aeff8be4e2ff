"""A program that holds the lock of a store until SIGTERM, so that a driver can neither prepare nor unprepare claims.

python -m tests.support.locking FILE
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from neuron_dra.node.files import locked


def main(path: str) -> None:
    """Hold the lock until SIGTERM. Raises TimeoutError."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with locked(Path(path), timeout_s=60.0):
        print("locked", flush=True)
        while True:
            signal.pause()


if __name__ == "__main__":
    main(sys.argv[1])
