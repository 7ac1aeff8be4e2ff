"""Ends a program at a SIGTERM that comes while it starts. Imported before all else, so it imports nearly nothing.

The kernel ignores a signal without a handler for process 1 of a container, and the event loop takes over the signals
only after the imports. A pod that was deleted in that time would begin its work and get SIGKILL half a minute later.
Nothing has begun yet, so nothing has to be ended.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def on_sigterm(program: str, *commands: str) -> None:
    """End this process at SIGTERM from now on, if it runs one of `commands`, or has the name `program`."""
    if os.path.basename(sys.argv[0]) == program or sys.argv[1:2] in [[command] for command in commands]:
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    os._exit(0)
