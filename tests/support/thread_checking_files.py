"""Files that record each call which the event loop makes itself: on a slow disk it would stop everything."""

from __future__ import annotations

import asyncio
from typing import Any

from neuron_dra.node.files import Files


class ThreadCheckingFiles(Files):
    """The disk; `in_the_loop` has the name and path of each call that was made in the event loop's thread."""

    def __init__(self) -> None:
        self.in_the_loop: list[tuple[str, str]] = []
        self.calls = 0

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name in ("in_the_loop", "calls") or not callable(found):
            return found

        def recorded(*args: Any, **more: Any) -> Any:
            self.calls += 1
            if _in_the_loop():
                self.in_the_loop.append((name, str(args[0]) if args else ""))
            return found(*args, **more)

        return recorded


def _in_the_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
