"""What a reservation by an UltraServer operator means on the node: its tag is published, and its gate closed.

`Tags` keeps the tag in the checkpoint, so that the first publish after a restart or a wipe carries it. `Gate` refuses
who does not belong on a reserved node, after a last look.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from neuron_dra.core import reservation, ultraserver
from neuron_dra.core.claims import Claim
from neuron_dra.core.reservation import Reservation
from neuron_dra.core.slices import Wire
from neuron_dra.core.ultraserver import Reading, Tag
from neuron_dra.errors import ApiError
from neuron_dra.node.prepare.transactions import Transactions
from neuron_dra.node.ultraserver.watch import UltraServerWatch

log = logging.getLogger(__name__)

FIRST_ANSWER_S: Final = 10.0  # how long a node that remembers no tag waits for its NeuronUltraServer, once
RECHECK_S: Final = 5.0  # while a tag waits for the node's claims
MISSING_S: Final = 600.0  # so long a tag waits for an object, or a kind, that is not there
REFUSAL_WAIT_S: Final = 10.0  # a refusal costs the pod 90 s, and the kubelet waits 45 s
REFRESH_S: Final = 2.5


class Tags:
    """The workload tag of this node's devices."""

    def __init__(
        self,
        node_name: str,
        watch: UltraServerWatch,
        transactions: Transactions,
        allocated: Callable[[], AsyncIterator[Claim]],
    ) -> None:
        self._node_name = node_name
        self._watch = watch
        self._transactions = transactions
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
        return self._tag if self._unkept else self._transactions.tag

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
        """Tell whether the object that a tag waits for has been missing for so long that it may not come again."""
        loop = asyncio.get_running_loop()
        if not reading.missing or before is None:
            self._missing_since = None
            return False
        if self._missing_since is None:
            self._missing_since = loop.time()
            log.warning(
                "the NeuronUltraServer of a reserved node is missing; the reservation is kept",
                extra={"workload": before.workload, "allocation": before.allocation_id, "for_s": MISSING_S},
            )
        given_up = loop.time() >= self._missing_since + MISSING_S
        if not given_up:
            self._look_again(self._missing_since + MISSING_S)
        return given_up

    async def _occupied(self) -> bool:
        """Tell whether any claim, administrators' access aside, is prepared or allocated here. Raises ApiError."""
        prepared = self._transactions.claims.values()
        now = asyncio.get_running_loop().time()
        if any(not device.admin_access for claim in prepared for device in claim.devices):
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
        if tag != self._transactions.tag or self._unkept:
            try:
                await self._transactions.keep_tag(tag)
            except OSError as err:
                # Closing the node must not wait for a disk; the next publish tries again.
                log.error("the workload tag cannot be kept in the checkpoint", extra={"error": str(err)})
                self._look_again(asyncio.get_running_loop().time() + RECHECK_S)
        self._unkept = tag != self._transactions.tag


class Gate:
    """Who may start on this node."""

    def __init__(self, node_name: str, watch: UltraServerWatch, tags: Tags) -> None:
        self._node_name = node_name
        self._watch = watch
        self._tags = tags

    @property
    def reservation(self) -> Reservation | None:
        """The workload that holds this node, as far as is known now."""
        reading, tag = self._watch.reading, self._tags.current
        if reading is not None:
            slot = ultraserver.slot_of(reading, self._node_name, tag) or ultraserver.official_slot(
                reading, self._node_name, tag
            )
            if slot is not None:
                return Reservation.of(slot, self._node_name)
            if not reading.problems and not ultraserver.outlives(tag, reading):
                return None
        return None if tag is None else Reservation.remembered(tag)

    @property
    def tag(self) -> Tag | None:
        """What the node's devices show of it."""
        return self._tags.current

    async def known(self) -> None:
        """Return when the NeuronUltraServer has been read, or is known not to be there; after 10 s in any case."""
        now = asyncio.get_running_loop().time
        until = now() + REFUSAL_WAIT_S
        while self._watch.pending and now() < until:
            await self._watch.news(REFRESH_S)

    async def wait(self, claim: Claim) -> None:
        """Return as soon as `claim` may start here, or after 10 s: what decides then is `reservation`."""
        if not self._watch.pending and (self._watch.name is None or not self._refuses(claim)):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REFUSAL_WAIT_S):
                await self.known()
                while self._watch.name is not None and self._refuses(claim):
                    try:
                        await self._watch.refresh()
                    except ApiError as err:
                        log.warning("the NeuronUltraServer cannot be read", extra={"error": str(err)})
                    if self._refuses(claim):
                        await self._watch.news(REFRESH_S)

    def _refuses(self, claim: Claim) -> bool:
        return bool(reservation.why_refused(claim, self.reservation, self._node_name))
