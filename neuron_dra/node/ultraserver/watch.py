"""The node's view of its one NeuronUltraServer: watched by name, and possibly not there, nor even its kind.

The node says which UltraServer it is in (`follow`) as soon as its labels are known, and again when they change. Without
the CRD there is no operator: it is looked for again from time to time, and nothing else depends on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from neuron_dra.core import ultraserver
from neuron_dra.core.ultraserver import Reading
from neuron_dra.errors import ApiError, Forbidden, NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import NEURON_ULTRASERVERS
from neuron_dra.node.signal import Signal

log = logging.getLogger(__name__)

PROBE_S: Final = 60.0  # before the second look for the CRD; each wait is longer by as much
LONGEST_PROBE_S: Final = 3600.0
EXPECTED_PROBE_S: Final = 10.0  # where an operator is said to run
SURE_ABSENCES: Final = 2  # an API server that has just started may not serve the CRD for a moment


@dataclass(frozen=True, slots=True)
class Unasked:
    """The node has not said yet in which UltraServer it is."""

    pending: ClassVar = True
    name: ClassVar[str | None] = None
    reading: ClassVar[Reading | None] = None


@dataclass(frozen=True, slots=True)
class Unidentified:
    """The node may be in an UltraServer, whose id is not known yet."""

    pending: ClassVar = False
    name: ClassVar[str | None] = None
    reading: ClassVar[Reading | None] = None


@dataclass(frozen=True, slots=True)
class Outside:
    """The node's type is in no UltraServer."""

    pending: ClassVar = False
    name: ClassVar[str | None] = None
    reading: ClassVar[Reading | None] = Reading()


@dataclass(frozen=True, slots=True)
class Watched:
    """The object `name` is watched. `absences` counts the times that its kind was not there, since it was last read."""

    name: str
    reading: Reading | None = None
    absences: int = 0

    @property
    def pending(self) -> bool:
        """The first answer is still to come."""
        return self.reading is None and self.absences == 0


State = Unasked | Unidentified | Outside | Watched


class UltraServerWatch:
    """Watches the NeuronUltraServer of this node. `changed` is notified of every change of `reading`."""

    def __init__(self, client: KubeClient, then: Callable[[], None], *, expected: bool = False) -> None:
        self._client = client
        self._expected = expected
        self._renamed = asyncio.Event()
        self._look = asyncio.Event()
        self._operator_seen = False
        self._reflector: Reflector | None = None
        self._node = ("", "")
        self.state: State = Unasked()
        self.changed = Signal(then)

    @property
    def pending(self) -> bool:
        """An answer is still to come."""
        return self.state.pending

    @property
    def name(self) -> str | None:
        """The name of the object that is watched."""
        return self.state.name

    @property
    def reading(self) -> Reading | None:
        """What the object says; None while it is not known, empty where the node is in no UltraServer."""
        return self.state.reading

    def follow(self, ultraserver_id: str | None, *, whole_node: bool, node: tuple[str, str] = ("", "")) -> None:
        """Watch the object of this UltraServer; None keeps what is watched, since an id does not go away.

        A node that is surely not of an UltraServer type (`whole_node`) is in none. `node` is the Node's name and UID:
        what was allocated to another Node of its name is not ours.
        """
        renewed, self._node = node[1] and node != self._node, node if node[1] else self._node
        first = isinstance(self.state, Unasked)
        if not whole_node:
            self.state = Outside()
        elif first:
            self.state = Unidentified()
        name = None if ultraserver_id is None else ultraserver.object_name(ultraserver_id)
        if name is not None and name != self.name:
            log.info("watching the node's UltraServer", extra={"ultraserver": ultraserver_id, "object": name})
            self.state, self._reflector = Watched(name), None
            self._renamed.set()
        elif renewed and self.reading is not None:
            self._read()
        if first:
            self.changed.notify()

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
            absences = self.state.absences if isinstance(self.state, Watched) else 0
            wait_s = EXPECTED_PROBE_S if self._expected else min(PROBE_S * absences, LONGEST_PROBE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._look.wait()

    def _read(self) -> None:
        reflector = self._reflector
        if reflector is None or not reflector.synced.is_set() or not isinstance(self.state, Watched):
            return  # a late answer of the watch before this one
        reading = ultraserver.read_allocations(reflector.items.get(f"{ultraserver.NAMESPACE}/{self.name}") or {})
        for problem in reading.problems:
            if self.reading is None or problem not in self.reading.problems:
                log.error("a NeuronUltraServer cannot be read", extra={"object": self.name, "problem": problem})
        self.state = Watched(self.state.name, reading.without_predecessors_of(*self._node))
        self.changed.notify()

    def _absent(self, err: ApiError) -> None:
        """There is no CRD, or no permission to read it: no operator, as far as this node can tell."""
        if not isinstance(self.state, Watched):
            return
        absences = self.state.absences + 1
        if absences == 1:
            level = logging.WARNING if self._expected else logging.INFO
            log.log(level, "no UltraServer operator; looking for it again", extra={"reason": str(err)})
        is_gone = absences >= SURE_ABSENCES and isinstance(err, NotFound)
        self.state = Watched(self.state.name, ultraserver.GONE if is_gone else self.state.reading, absences)
        self.changed.notify()
