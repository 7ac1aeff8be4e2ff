"""What people are to know of this node, as Events: put in a queue, and posted by a task of its own.

An API server that refuses Events, or takes its time over them, holds up no slice: what is told waits here.
"""

from __future__ import annotations

import asyncio
import datetime
from typing import Final, Literal

from neuron_dra.kube.events import EventRecorder

Kind = Literal["Normal", "Warning"]

MOST: Final = 256  # different ones that wait; of more, the oldest are dropped


class EventQueue:
    """Events about one Node. `tell` never waits; `run` posts."""

    def __init__(self, node_name: str, recorder: EventRecorder) -> None:
        # A node's events carry its name as UID, or `kubectl describe node` does not find them.
        self._about = {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_name}
        self._recorder = recorder
        self._waiting: dict[tuple[Kind, str, str], datetime.datetime] = {}
        self._some = asyncio.Event()

    def tell(self, kind: Kind, reason: str, message: str) -> None:
        """Post an Event as soon as possible; one that waits already is not posted twice."""
        self._waiting.pop((kind, reason, message), None)
        self._waiting[kind, reason, message] = datetime.datetime.now(datetime.UTC)
        while len(self._waiting) > MOST:
            del self._waiting[next(iter(self._waiting))]
        self._some.set()

    async def run(self) -> None:
        """Post what is told, in that order, until cancelled."""
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                kind, reason, message = first = next(iter(self._waiting))
                at = self._waiting.pop(first)
                await self._recorder.post(self._about, kind, reason, message, at)
