"""Watches the NeuronUltraServer of this node, by name. The object, and even its CRD, may be missing.

The publishing loop calls `follow` with the UltraServer's id as soon as the node's labels are known, and again when they
change. Without the CRD there is no operator, and the watch looks for the CRD again from time to time. A 404 counts as
no CRD only if the API server's own lists of kinds lack the kind, because a proxy's 404 must not free a reserved node.
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
from neuron_dra.errors import ApiError, Forbidden, NotServed
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.missing_kind import is_missing
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import NEURON_ULTRASERVERS
from neuron_dra.node.signal import Signal
from neuron_dra.node.timing import DEFAULT_TIMING, UltraServerTiming

log = logging.getLogger(__name__)

SURE_ABSENCES: Final = 2  # an API server that has just started may not serve the CRD for a moment


@dataclass(frozen=True, slots=True)
class NotFollowed:
    """`follow` has not been called yet."""

    pending: ClassVar = True
    name: ClassVar[str | None] = None
    reading: ClassVar[Reading | None] = None


@dataclass(frozen=True, slots=True)
class Unidentified:
    """The node may be in an UltraServer, but its id is not known yet."""

    pending: ClassVar = False
    name: ClassVar[str | None] = None
    reading: ClassVar[Reading | None] = None


@dataclass(frozen=True, slots=True)
class Outside:
    """The node's instance type is not part of UltraServers."""

    pending: ClassVar = False
    name: ClassVar[str | None] = None
    reading: ClassVar[Reading | None] = Reading()


@dataclass(frozen=True, slots=True)
class Watched:
    """The object `name` is watched. `absences` counts failures to find its CRD since it was last read."""

    name: str
    reading: Reading | None = None
    absences: int = 0

    @property
    def pending(self) -> bool:
        """Whether the first reply is outstanding."""
        return self.reading is None and self.absences == 0


State = NotFollowed | Unidentified | Outside | Watched


class UltraServerWatch:
    """Watches the NeuronUltraServer of this node. `changed` is notified of every change of `reading`."""

    def __init__(
        self,
        client: KubeClient,
        then: Callable[[], None],
        *,
        expected: bool = False,
        timing: UltraServerTiming = DEFAULT_TIMING.ultraserver,
    ) -> None:
        self._timing = timing
        self._client = client
        self._expected = expected
        self._renamed = asyncio.Event()
        self._look = asyncio.Event()
        self._operator_seen = False
        self._doubt = ""  # why the last 404 did not count, as it was logged
        self._reflector: Reflector | None = None
        self._node = ("", "")
        self.state: State = NotFollowed()
        self.changed = Signal(then)

    @property
    def pending(self) -> bool:
        """Whether the first reply is outstanding."""
        return self.state.pending

    @property
    def name(self) -> str | None:
        """The name of the watched object."""
        return self.state.name

    @property
    def reading(self) -> Reading | None:
        """The object's allocations; None while unknown, empty if the node is in no UltraServer."""
        return self.state.reading

    def follow(self, ultraserver_id: str | None, *, whole_node: bool, node: tuple[str, str] = ("", "")) -> None:
        """Watch the object of this UltraServer; with None, keep watching the current one.

        `whole_node` is False if the node's type rules out an UltraServer. `node` is the Node's name and UID:
        allocations of an earlier Node with this name are ignored.
        """
        is_renewed, self._node = node[1] and node != self._node, node if node[1] else self._node
        is_first = isinstance(self.state, NotFollowed)
        if not whole_node:
            self.state = Outside()
        elif is_first:
            self.state = Unidentified()
        if ultraserver_id is None:
            name = None
        else:
            name = ultraserver.object_name(ultraserver_id)
        if name is not None and name != self.name:
            log.info("watching the node's UltraServer", extra={"ultraserver": ultraserver_id, "object": name})
            self.state, self._reflector = Watched(name), None
            self._renamed.set()
        elif is_renewed and self.reading is not None:
            self._read()
        if is_first:
            self.changed.notify()

    def saw_operator(self, is_seen: bool) -> None:
        """Look for the CRD immediately when an operator's labels appear on the Node."""
        if is_seen and not self._operator_seen:
            self._look.set()
        self._operator_seen = is_seen

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
                    watch.result()  # it ends only with an exception, which this raises
            finally:
                for task in (watch, renamed):
                    task.cancel()
                await asyncio.gather(watch, renamed, return_exceptions=True)

    async def refresh(self) -> None:
        """Read the object again, if its CRD exists. Raises ApiError."""
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
                gives_up_on=(NotServed, Forbidden),
            )
            self._reflector = reflector
            is_doubtful = False
            try:
                await reflector.run()
            except Forbidden as err:
                self._absent(err)
            except NotServed as err:
                is_doubtful = not await self._is_missing(err)
                if not is_doubtful:
                    self._absent(err)
            self._look.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._probe_in_s(is_doubtful=is_doubtful)):
                    await self._look.wait()

    async def _is_missing(self, err: NotServed) -> bool:
        """Return True if the API server's lists of kinds show that the CRD does not exist."""
        try:
            if await is_missing(self._client, NEURON_ULTRASERVERS):
                return True
            why = "the API server lists the kind"
        except ApiError as unread:
            why = f"the API server's lists of kinds cannot be read: {unread}"
        if why != self._doubt:
            self._doubt = why
            message = "the NeuronUltraServer cannot be read; the node stays as it is"
            log.warning(message, extra={"error": str(err), "reason": why})
        return False

    def _probe_in_s(self, *, is_doubtful: bool) -> float:
        if self._expected or is_doubtful:
            return self._timing.expected_probe_s
        absences = self.state.absences if isinstance(self.state, Watched) else 0
        first_s, longest_s = self._timing.probe_s
        return min(first_s * absences, longest_s)

    def _read(self) -> None:
        reflector = self._reflector
        if reflector is None or not reflector.synced.is_set() or not isinstance(self.state, Watched):
            return  # a late reply of the previous watch
        reading = ultraserver.read_allocations(reflector.items.get(f"{ultraserver.NAMESPACE}/{self.name}") or {})
        for problem in reading.problems:
            if self.reading is None or problem not in self.reading.problems:
                log.error("malformed NeuronUltraServer", extra={"object": self.name, "problem": problem})
        self.state = Watched(self.state.name, reading.without_predecessors_of(*self._node))
        self._doubt = ""
        self.changed.notify()

    def _absent(self, err: ApiError) -> None:
        """Record that the CRD does not exist or may not be read, so no operator seems to run."""
        if not isinstance(self.state, Watched):
            return
        absences = self.state.absences + 1
        if absences == 1:
            level = logging.WARNING if self._expected else logging.INFO
            log.log(level, "no UltraServer operator; looking for it again", extra={"reason": str(err)})
        is_gone = absences >= SURE_ABSENCES and isinstance(err, NotServed)
        self.state = Watched(self.state.name, ultraserver.GONE if is_gone else self.state.reading, absences)
        self.changed.notify()
