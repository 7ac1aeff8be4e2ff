"""The workload tag of this node's devices, which shows the scheduler and the controller that the node is reserved.

The tag is stored in the checkpoint, so that the first publish after a restart or a wipe of the slices has it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from neuron_dra.core import reservation, ultraserver
from neuron_dra.core.claims import ClaimRef
from neuron_dra.core.notice import Told
from neuron_dra.core.ultraserver import Reading, Tag
from neuron_dra.core.wire import Wire
from neuron_dra.errors import ClaimError, NotFound
from neuron_dra.node.prepare.claim_reader import ClaimReader
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.timing import DEFAULT_TIMING, UltraServerTiming
from neuron_dra.node.ultraserver.watch import UltraServerWatch

log = logging.getLogger(__name__)


class TagKeeper:
    """Computes the workload tag of this node's devices, and stores it in the checkpoint."""

    def __init__(
        self,
        node_name: str,
        watch: UltraServerWatch,
        prepared: PreparedClaims,
        claims: ClaimReader,
        timing: UltraServerTiming = DEFAULT_TIMING.ultraserver,
    ) -> None:
        self._timing = timing
        self._node_name = node_name
        self.watch = watch
        self._prepared = prepared
        self._claims = claims
        self.reserved = asyncio.Event()
        """Set once the node has had a tag while this process runs."""
        self._occupied_until = 0.0  # until then, the API server's last reply that the node is in use holds
        self.look_at: float | None = None  # when to call `settle` again even without a change
        self._unwritten: tuple[Tag | None] | None = None  # the tag that could not be written to the checkpoint
        self._last_told: tuple[Told, frozenset[str]] | None = None  # and the UIDs of the claims
        self._first_at: float | None = None
        self._missing_since: float | None = None

    @property
    def current(self) -> Tag | None:
        """The tag as last settled, by any plugin process of this node."""
        if self._unwritten is None:
            return self._prepared.tag
        return self._unwritten[0]

    async def settle(self, published: Sequence[Wire]) -> bool:
        """Update `current` and store it; `published` are the devices in our slices. Raises ApiError.

        Return False if it is too early to publish: no tag is stored, and the NeuronUltraServer has not been read yet.
        """
        now = asyncio.get_running_loop().time()
        self.look_at = None
        before = self.current
        if self._first_at is None:
            self._first_at = now
            before = before or ultraserver.tag_on(published)
        if before is None and self.watch.pending and now < self._first_at + self._timing.first_answer_s:
            self._look_again(self._first_at + self._timing.first_answer_s)
            return False
        tag = await self._next(before)
        await self._tell(tag)  # before the tag, which evictions wait for
        await self._keep(before, tag)
        return True

    async def _next(self, before: Tag | None) -> Tag | None:
        reading = self.watch.reading
        if reading is None:
            return before  # the API server is unavailable, or has no NeuronUltraServer (yet)
        is_given_up = self._given_up(before, reading)
        waits = ultraserver.waits_for_claims(before, reading, self._node_name, given_up=is_given_up)
        ends = ultraserver.slot_of(reading, self._node_name, before) is None
        is_occupied = before is not None and waits and await self._occupied(before, ends=ends)
        return ultraserver.next_tag(before, reading, self._node_name, occupied=is_occupied, given_up=is_given_up)

    def _given_up(self, before: Tag | None, reading: Reading) -> bool:
        """Return True once no object has listed the reservation of a tag for `missing_s` seconds."""
        loop = asyncio.get_running_loop()
        missing_s = self._timing.missing_s
        if before is None or not ultraserver.outlives(before, reading):
            self._missing_since = None
            return False
        if self._missing_since is None:
            self._missing_since = loop.time()
            log.warning(
                "no NeuronUltraServer lists the reservation of this node; the reservation is kept",
                extra={"workload": before.workload, "allocation": before.allocation_id, "for_s": missing_s},
            )
        is_given_up = loop.time() >= self._missing_since + missing_s
        if not is_given_up:
            self._look_again(self._missing_since + missing_s)
        return is_given_up

    async def _occupied(self, tag: Tag, *, ends: bool) -> bool:
        """Return whether any claim is prepared here, or one of the tag's workload is allocated. Raises ApiError.

        Claims with adminAccess do not count. Allocated claims of others do not count either: the node rejects them
        while the tag stays, and the owner of an evicted pod could create the next claim each time before the tag ends.
        If no other tag follows (`ends`), prepared claims of others do not count either.
        """
        prepared_refs = []
        for claim in self._prepared.claims.values():
            if not all(d.admin_access for d in claim.devices):
                prepared_refs.append(claim.ref)
        now = asyncio.get_running_loop().time()
        if prepared_refs and not ends:
            self._look_again(now + self._timing.recheck_s)
            return True
        if now >= self._occupied_until:
            if not (await self._any_may_be_of(prepared_refs, tag) or await self._is_allocated(tag)):
                return False
            self._occupied_until = asyncio.get_running_loop().time() + self._timing.recheck_s
        self._look_again(self._occupied_until)
        return True

    async def _any_may_be_of(self, refs: Sequence[ClaimRef], tag: Tag) -> bool:
        """Return False if none of the claims belongs to the tag's workload. Raises ApiError."""
        return any([await self._may_be_of(ref, tag) for ref in refs if ref.namespace == tag.workload_namespace])

    async def _is_allocated(self, tag: Tag) -> bool:
        """Return True if a claim of the tag's workload is allocated here. Raises ApiError."""
        async for claim in self._claims.allocated():
            if await self._any_may_be_of([claim.ref], tag):
                return True
        return False

    async def _may_be_of(self, ref: ClaimRef, tag: Tag) -> bool:
        """Return True unless a claim certainly does not belong to the tag's workload. Raises ApiError.

        A claim that is not found or not allocated may still have a container, or the reply may be a proxy's.
        """
        try:
            claim = await self._claims.fetch(ref)
            return not claim.devices or reservation.is_of(claim, tag)
        except (ClaimError, NotFound):
            return True

    def _look_again(self, at: float) -> None:
        self.look_at = at if self.look_at is None else min(at, self.look_at)

    async def _tell(self, tag: Tag | None) -> None:
        """Write the notice of the node's workload for its claims, if the notice or the claims have changed."""
        reading = self.watch.reading
        told = None if reading is None else ultraserver.told(tag, reading)
        if told is None:
            return
        key = (told, frozenset(self._prepared.claims))
        if key == self._last_told:
            return
        try:
            await self._prepared.tell(told)
        except OSError as err:
            # A disk must not delay the release of a node; the next publish tries again.
            log.error("cannot write the notice of a workload", extra={"error": str(err)})
            self._look_again(asyncio.get_running_loop().time() + self._timing.recheck_s)
        else:
            self._last_told = key if self._prepared.damaged is None else None

    async def _keep(self, before: Tag | None, tag: Tag | None) -> None:
        if tag is not None:
            self.reserved.set()
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
        if tag != self._prepared.tag or self._unwritten is not None:
            try:
                await self._prepared.keep_tag(tag)
            except OSError as err:
                # A disk must not delay the reservation; the next publish tries again.
                log.error("cannot write the workload tag to the checkpoint", extra={"error": str(err)})
                self._look_again(asyncio.get_running_loop().time() + self._timing.recheck_s)
        self._unwritten = None if tag == self._prepared.tag else (tag,)
