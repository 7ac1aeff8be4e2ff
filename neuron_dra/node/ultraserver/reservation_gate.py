"""A reserved node prepares only its workload's claims. Before it rejects one, it reads the NeuronUltraServer again."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from neuron_dra.core import reservation, ultraserver
from neuron_dra.core.claims import Claim
from neuron_dra.core.reservation import NodeReservation
from neuron_dra.core.ultraserver import Tag
from neuron_dra.errors import ApiError
from neuron_dra.node.timing import DEFAULT_TIMING, UltraServerTiming
from neuron_dra.node.ultraserver.tag_keeper import TagKeeper
from neuron_dra.node.ultraserver.watch import UltraServerWatch

log = logging.getLogger(__name__)


class ReservationGate:
    """Decides which claims wait for a change of the node's reservation."""

    def __init__(
        self,
        node_name: str,
        watch: UltraServerWatch,
        tags: TagKeeper,
        timing: UltraServerTiming = DEFAULT_TIMING.ultraserver,
    ) -> None:
        self._timing = timing
        self._node_name = node_name
        self._watch = watch
        self._tags = tags

    @property
    def reservation(self) -> NodeReservation | None:
        """The reservation of this node, from the object and the tag; None if there is none."""
        reading, tag = self._watch.reading, self._tags.current
        if reading is not None:
            slot = ultraserver.slot_of(reading, self._node_name, tag) or ultraserver.official_slot(
                reading, self._node_name, tag
            )
            if slot is not None:
                return NodeReservation.of(slot, self._node_name)
            if not reading.may_hold(self._node_name) and not ultraserver.outlives(tag, reading):
                return None
        if tag is None:
            return None
        return NodeReservation.remembered(tag)

    @property
    def tag(self) -> Tag | None:
        """The workload tag on the node's devices."""
        return self._tags.current

    async def known(self) -> None:
        """Return once the NeuronUltraServer has been read or is known to be absent, at the latest after 10 s."""
        now = asyncio.get_running_loop().time
        deadline = now() + self._timing.rejection_wait_s
        while self._watch.pending and now() < deadline:
            await self._watch.changed.after(self._watch.changed.count, self._timing.refresh_s)

    async def wait(self, claim: Claim) -> None:
        """Return once `claim` matches the reservation, at the latest after 10 s; `reservation` then decides."""
        if not self._watch.pending and (self._watch.name is None or not self._refuses(claim)):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timing.rejection_wait_s):
                await self.known()
                while self._watch.name is not None and self._refuses(claim):
                    try:
                        await self._watch.refresh()
                    except ApiError as err:
                        log.warning("cannot read the NeuronUltraServer", extra={"error": str(err)})
                    if self._refuses(claim):
                        await self._watch.changed.after(self._watch.changed.count, self._timing.refresh_s)

    def _refuses(self, claim: Claim) -> bool:
        return bool(reservation.why_refused(claim, self.reservation, self._node_name))
