"""Run `neuron-dra` in a process whose clock runs faster: `fast_clock.py 60 plugin ...`.

What the event loop waits for, and what `time.monotonic` tells, pass that many times as fast. It shows in a minute what
an idle plugin asks the API server for in an hour.
"""

from __future__ import annotations

import selectors
import sys
import time

from neuron_dra import cli


def hurry(speed: int) -> None:
    """Make this process' clock run `speed` times as fast."""
    real, select = time.monotonic, selectors.EpollSelector.select

    def shortened(self, timeout=None):  # type: ignore[no-untyped-def]
        return select(self, timeout if timeout is None or timeout <= 0 else timeout / speed)

    time.monotonic = lambda: real() * speed
    selectors.EpollSelector.select = shortened  # type: ignore[method-assign]


if __name__ == "__main__":
    hurry(int(sys.argv[1]))
    sys.exit(cli.main(sys.argv[2:]))
