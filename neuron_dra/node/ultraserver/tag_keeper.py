"""The workload tag of this node's devices: what shows the scheduler and the controller that the node is reserved.

The tag is kept in the checkpoint, so that the first publish after a restart or a wipe carries it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from neuron_dra.core import ultraserver
from neuron_dra.core.claims import Claim
from neuron_dra.core.slices import Wire
from neuron_dra.core.ultraserver import Reading, Tag
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.ultraserver.watch import UltraServerWatch

log = logging.getLogger(__name__)

FIRST_ANSWER_S: Final = 10.0  # how long a node without a tag waits for its NeuronUltraServer, once
RECHECK_S: Final = 5.0  # while a tag waits for the node's claims
MISSING_S: Final = 600.0  # how long a tag outlives the object that made it


class TagKeeper:
    """The workload tag of this node's devices."""

    def __init__(
        self,
        node_name: str,
        watch: UltraServerWatch,
        prepared: PreparedClaims,
        allocated: Callable[[], AsyncIterator[Claim]],
    ) -> None:
        self._node_name = node_name
        self._watch = watch
        self._prepared = prepared
        self._allocated = allocated
        self._occupied_until = 0.0  # an answer of the API server, that the node is in use, is believed so long
        self.look_at: float | None = None  # when to settle again, whatever happens; each time replaces the one before
        self._tag: Tag | None = None
        self._unkept = False  # `_tag` could not be written to the checkpoint
        self._first_at: float | None = None
        self._missing_since: float | None = None

    @property
    def current(self) -> Tag | None:
        """The tag as it was last settled, by whichever process of this node."""
        return self._tag if self._unkept else self._prepared.tag

    async def settle(self, published: Sequence[Wire]) -> bool:
        """Bring `current` up to date and keep it; `published` are the devices in our slices.

        False means that it is too early to publish: nothing remembers a tag, and the answer is on its way. Raises
        ApiError.
        """
        now = asyncio.get_running_loop().time()
        self.look_at = None
        before = self.current
        if self._first_at is None:
            self._first_at = now
            before = before or ultraserver.tag_on(published)
        if before is None and self._watch.pending and now < self._first_at + FIRST_ANSWER_S:
            self._look_again(self._first_at + FIRST_ANSWER_S)
            return False
        await self._keep(before, await self._next(before))
        return True

    async def _next(self, before: Tag | None) -> Tag | None:
        reading = self._watch.reading
        if reading is None:
            return before  # the API server is away, or has no operator's objects (yet)
        given_up = self._given_up(before, reading)
        waits = ultraserver.waits_for_claims(before, reading, self._node_name, given_up=given_up)
        occupied = waits and await self._occupied()
        return ultraserver.next_tag(before, reading, self._node_name, occupied=occupied, given_up=given_up)

    def _given_up(self, before: Tag | None, reading: Reading) -> bool:
        """Return True once no object has listed the reservation of a tag for MISSING_S seconds."""
        loop = asyncio.get_running_loop()
        if before is None or not ultraserver.outlives(before, reading):
            self._missing_since = None
            return False
        if self._missing_since is None:
            self._missing_since = loop.time()
            log.warning(
                "no NeuronUltraServer lists the reservation of this node; the reservation is kept",
                extra={"workload": before.workload, "allocation": before.allocation_id, "for_s": MISSING_S},
            )
        given_up = loop.time() >= self._missing_since + MISSING_S
        if not given_up:
            self._look_again(self._missing_since + MISSING_S)
        return given_up

    async def _occupied(self) -> bool:
        """Tell whether any claim, administrators' access aside, is prepared or allocated here. Raises ApiError."""
        held = self._prepared.claims.values()
        now = asyncio.get_running_loop().time()
        if any(not device.admin_access for claim in held for device in claim.devices):
            self._look_again(now + RECHECK_S)
            return True
        if now >= self._occupied_until:
            found = [True async for claim in self._allocated() if not all(d.admin_access for d in claim.devices)]
            if not found:
                return False
            self._occupied_until = asyncio.get_running_loop().time() + RECHECK_S
        self._look_again(self._occupied_until)
        return True

    def _look_again(self, at: float) -> None:
        self.look_at = at if self.look_at is None else min(at, self.look_at)

    async def _keep(self, before: Tag | None, tag: Tag | None) -> None:
        self._tag = tag
        if tag != before:
            about = tag or before
            log.info(
                "the node is reserved" if tag else "the node is free again",
                extra={
                    "workload": about.workload if about else "",
                    "allocation": about.allocation_id if about else "",
                    **({"phase": tag.phase.value} if tag else {}),
                },
            )
        if tag != self._prepared.tag or self._unkept:
            try:
                await self._prepared.keep_tag(tag)
            except OSError as err:
                # Closing the node must not wait for a disk; the next publish tries again.
                log.error("the workload tag cannot be kept in the checkpoint", extra={"error": str(err)})
                self._look_again(asyncio.get_running_loop().time() + RECHECK_S)
        self._unkept = tag != self._prepared.tag
