"""The node's view of its one NeuronUltraServer: watched by name, and possibly not there, nor even its kind.

The node says which UltraServer it is in (`follow`) as soon as its labels are known, and again when they change. Without
the CRD there is no operator: it is looked for again from time to time, and nothing else depends on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from neuron_dra.core import ultraserver
from neuron_dra.core.ultraserver import Reading
from neuron_dra.errors import ApiError, Forbidden, NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import NEURON_ULTRASERVERS

log = logging.getLogger(__name__)

PROBE_S: Final = 60.0  # before the second look for the CRD; each wait is longer by as much
LONGEST_PROBE_S: Final = 3600.0
EXPECTED_PROBE_S: Final = 10.0  # where an operator is said to run
SURE_ABSENCES: Final = 2  # an API server that has just started may not serve the CRD for a moment


class UltraServerWatch:
    """What the NeuronUltraServer of this node says, in `reading`.

    `reading` is None while nothing is known: before the first answer, without an id of the UltraServer, and until the
    CRD has been found missing twice. On other than UltraServer nodes it is empty.
    """

    def __init__(self, client: KubeClient, on_change: Callable[[], None], *, expected: bool = False) -> None:
        self._client = client
        self._on_change = on_change
        self._expected = expected
        self._renamed = asyncio.Event()
        self._look = asyncio.Event()
        self._operator_seen = False
        self._news = asyncio.Event()
        self._reflector: Reflector | None = None
        self._absences = 0
        self._followed = False
        self._node = ("", "")
        self.name: str | None = None
        self.reading: Reading | None = None

    @property
    def pending(self) -> bool:
        """An answer is still to come."""
        return not self._followed or (self.name is not None and self.reading is None and self._absences == 0)

    def follow(self, ultraserver_id: str | None, *, whole_node: bool, node: tuple[str, str] = ("", "")) -> None:
        """Watch the object of this UltraServer; None keeps what is watched, since an id does not go away.

        A node that is surely not of an UltraServer type (`whole_node`) is in none. `node` is the Node's name and UID:
        what was allocated to another Node of its name is not ours.
        """
        renewed, self._node = node[1] and node != self._node, node if node[1] else self._node
        first, self._followed = not self._followed, True
        if not whole_node:
            self.name, self.reading = None, Reading()
        name = None if ultraserver_id is None else ultraserver.object_name(ultraserver_id)
        if name is not None and name != self.name:
            log.info("watching the node's UltraServer", extra={"ultraserver": ultraserver_id, "object": name})
            self.name, self.reading, self._reflector, self._absences = name, None, None, 0
            self._renamed.set()
        elif renewed and self.reading is not None:
            self._read()
        if first:
            self._tell()

    def saw_operator(self, seen: bool) -> None:
        """Look for the CRD at once when an operator's labels appear on the Node: nobody asks all the time for it."""
        if seen and not self._operator_seen:
            self._look.set()
        self._operator_seen = seen

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self._renamed.clear()
            if self.name is None:
                await self._renamed.wait()
                continue
            watch = asyncio.create_task(self._watch(self.name), name=f"watch {self.name}")
            renamed = asyncio.create_task(self._renamed.wait())
            try:
                await asyncio.wait([watch, renamed], return_when=asyncio.FIRST_COMPLETED)
                if watch.done():
                    watch.result()  # it never ends by itself: this raises what ended it
            finally:
                for task in (watch, renamed):
                    task.cancel()
                await asyncio.gather(watch, renamed, return_exceptions=True)

    async def refresh(self) -> None:
        """Read the object afresh, if its kind is there. Raises ApiError."""
        reflector = self._reflector
        if reflector is not None:
            await reflector.relist()

    async def news(self, timeout_s: float) -> None:
        """Return when something has changed, or after `timeout_s` seconds."""
        news = self._news
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await news.wait()

    async def _watch(self, name: str) -> None:
        while True:
            reflector = Reflector(
                self._client,
                NEURON_ULTRASERVERS,
                namespace=ultraserver.NAMESPACE,
                field_selector=f"metadata.name={name}",
                on_change=self._read,
                gives_up_on=(NotFound, Forbidden),
            )
            self._reflector = reflector
            try:
                await reflector.run()
            except (NotFound, Forbidden) as err:
                self._absent(err)
            self._look.clear()
            wait_s = EXPECTED_PROBE_S if self._expected else min(PROBE_S * self._absences, LONGEST_PROBE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._look.wait()

    def _read(self) -> None:
        reflector = self._reflector
        if reflector is None or not reflector.synced.is_set():
            return  # a late answer of the watch before this one
        self._absences = 0
        key = f"{ultraserver.NAMESPACE}/{self.name}"
        reading = ultraserver.read_allocations(reflector.items.get(key) or {})
        for problem in reading.problems:
            if self.reading is None or problem not in self.reading.problems:
                log.error("a NeuronUltraServer cannot be read", extra={"object": self.name, "problem": problem})
        self.reading = reading.without_predecessors_of(*self._node)
        self._tell()

    def _absent(self, err: ApiError) -> None:
        """There is no CRD, or no permission to read it: no operator, as far as this node can tell."""
        self._absences += 1
        if self._absences == 1:
            level = logging.WARNING if self._expected else logging.INFO
            log.log(level, "no UltraServer operator; looking for it again", extra={"reason": str(err)})
        if self._absences >= SURE_ABSENCES and isinstance(err, NotFound):
            self.reading = ultraserver.GONE
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
        self._on_change()
