"""Run `neuron-dra` in a process whose clock runs faster: `python -m hack.bench.fast_clock 60 plugin ...`.

The event loop's delays and `time.monotonic` run that many times as fast. This shows in a minute the requests that an
idle plugin sends to the API server in an hour.

If the environment has NEURON_DRA_HEAP, the file of that name gets the number of allocated blocks of memory every second.
"""

from __future__ import annotations

import os
import selectors
import sys
import threading
import time
from pathlib import Path

from neuron_dra import cli


def hurry(speed: int) -> None:
    """Make this process's clock run `speed` times as fast."""
    real, select = time.monotonic, selectors.EpollSelector.select

    def shortened(self, timeout=None):  # type: ignore[no-untyped-def]
        return select(self, timeout if timeout is None or timeout <= 0 else timeout / speed)

    time.monotonic = lambda: real() * speed
    selectors.EpollSelector.select = shortened  # type: ignore[method-assign]


def report_heap(path: Path) -> None:
    """Write the number of blocks that Python has allocated, every second, for ever."""
    new = path.with_suffix(".new")
    while True:
        new.write_text(str(sys.getallocatedblocks()))
        new.replace(path)
        time.sleep(1.0)


if __name__ == "__main__":
    if heap := os.environ.get("NEURON_DRA_HEAP"):
        threading.Thread(target=report_heap, args=(Path(heap),), daemon=True).start()
    hurry(int(sys.argv[1]))
    sys.exit(cli.main(sys.argv[2:]))
