"""Run `neuron-dra` in a process whose clock runs faster: `python -m hack.bench.fast_clock 60 plugin ...`.

The event loop's delays and `time.monotonic` run that many times as fast. This shows in a minute the requests that an
idle plugin sends to the API server in an hour.
"""

from __future__ import annotations

import selectors
import sys
import time

from neuron_dra import cli


def hurry(speed: int) -> None:
    """Make this process's clock run `speed` times as fast."""
    real, select = time.monotonic, selectors.EpollSelector.select

    def shortened(self, timeout=None):  # type: ignore[no-untyped-def]
        return select(self, timeout if timeout is None or timeout <= 0 else timeout / speed)

    time.monotonic = lambda: real() * speed
    selectors.EpollSelector.select = shortened  # type: ignore[method-assign]


if __name__ == "__main__":
    hurry(int(sys.argv[1]))
    sys.exit(cli.main(sys.argv[2:]))
