"""A queue of Events about the Node, which a separate task posts.

An API server that rejects Events or is slow to accept them does not delay slices.
"""

from __future__ import annotations

import asyncio
import datetime
from typing import Final, Literal

from neuron_dra.kube.events import EventRecorder, reference

Kind = Literal["Normal", "Warning"]

MOST: Final = 256  # different Events in the queue; beyond that, the oldest are dropped


class EventQueue:
    """Events about one Node. `post` returns at once; `run` sends them."""

    def __init__(self, node_name: str, recorder: EventRecorder) -> None:
        # A node's events carry its name as UID, or `kubectl describe node` does not find them.
        self._about = reference("v1", "Node", "", node_name, node_name)
        self._recorder = recorder
        self._waiting: dict[tuple[Kind, str, str], datetime.datetime] = {}
        self._some = asyncio.Event()

    def post(self, kind: Kind, reason: str, message: str) -> None:
        """Queue an Event, unless the same one is queued."""
        self._waiting.pop((kind, reason, message), None)
        self._waiting[kind, reason, message] = datetime.datetime.now(datetime.UTC)
        while len(self._waiting) > MOST:
            del self._waiting[next(iter(self._waiting))]
        self._some.set()

    async def run(self) -> None:
        """Post the Events in order, until cancelled."""
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                kind, reason, message = first = next(iter(self._waiting))
                at = self._waiting.pop(first)
                await self._recorder.post(self._about, kind, reason, message, at)
