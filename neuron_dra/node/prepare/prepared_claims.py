"""The prepared claims of this node: the store's checkpoint, kept in memory.

All changes go through one lock and one thread. While the checkpoint is damaged, `damaged` has the reason, and no claim
is prepared or unprepared until it is rebuilt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from neuron_dra.core.checkpoint import Checkpoint
from neuron_dra.core.claims import ClaimRef, PreparedClaim
from neuron_dra.core.notice import Told
from neuron_dra.core.ultraserver import Tag
from neuron_dra.errors import CheckpointDamaged
from neuron_dra.node.prepare.daemon_worker import Worker
from neuron_dra.node.prepare.store import Store
from neuron_dra.node.signal import Signal

log = logging.getLogger(__name__)

T = TypeVar("T")


class PreparedClaims:
    """The prepared claims and the workload tag. `changed` is notified when either changes, or `damaged` does."""

    def __init__(self, store: Store, then: Callable[[], None] | None = None) -> None:
        self.store = store
        self.claims: dict[str, PreparedClaim] = {}  # by UID
        self.tag: Tag | None = None
        self.damaged: str | None = None  # why the checkpoint cannot be read
        self.rebuild_waits = ""  # what the rebuild of a damaged checkpoint waits for; empty if it does not wait
        self.unflushed: str | None = None  # why the disk may not have what was written
        self.unreadable: str | None = None  # why the state on the disk could neither be read nor written again
        self.changed = Signal(then)
        self.order = asyncio.Lock()
        self.worker = Worker("claims")

    def problems(self) -> list[str]:
        """Return what is wrong with the claims on the disk: while there is anything, the plugin is not ready."""
        texts = []
        if self.damaged is not None:
            waits = f", which waits: {self.rebuild_waits}" if self.rebuild_waits else ""
            texts.append(f"the checkpoint is being rebuilt{waits}")
        if self.unreadable is not None:
            texts.append(f"the node's state cannot be read or written: {self.unreadable}")
        if self.unflushed is not None:
            texts.append(f"the disk did not keep what was written: {self.unflushed}")
        return texts

    async def open(self) -> None:
        """Read the checkpoint. A damaged one sets `damaged`. Raises OSError."""
        try:
            self._take(await self.worker.do(self.store.open))
        except CheckpointDamaged as err:
            outlived = self.store.outlived
            self.tag = outlived.tag if outlived is not None else None
            self.found_damaged(err)

    async def known(self, uid: str) -> PreparedClaim | None:
        """Return a claim that is prepared, with its CDI file in place. Raises CheckpointDamaged, OSError."""
        if self.store.surely_unknown(uid):
            return None
        async with self.order:
            return await self.worker.do(self.store.known, uid)

    async def write_anew(self) -> None:
        """Write and flush everything again, unless the checkpoint is damaged. Raises OSError, TimeoutError."""
        async with self.order:
            if self.damaged is None:
                current = await self._unless_damaged(self.store.write_anew)
                if current is not None:
                    self._take(current)

    async def repair(self) -> list[ClaimRef]:
        """Rewrite missing CDI files, and read what another process prepared. Raises OSError, TimeoutError."""
        repaired: list[ClaimRef] = []
        if self.damaged is None:
            async with self.order:
                repair_outcome = await self._unless_damaged(self.store.repair)
                if repair_outcome is not None:
                    repaired, current = repair_outcome
                    self._take(current)
        for ref in repaired:
            log.warning("restored a missing or altered CDI file", extra={"claim": str(ref), "uid": ref.uid})
        return repaired

    async def keep_repaired(self, period_s: float, on_repaired: Callable[[int], None]) -> None:
        """Repair every `period_s` seconds until cancelled, and report the number of files; errors set `unreadable`."""
        while True:
            await asyncio.sleep(period_s)
            try:
                on_repaired(len(await self.repair()))
            except (OSError, TimeoutError) as err:
                self.unreadable = str(err)
                facts = {"error": str(err), "folder": str(self.store.folder)}
                log.warning("cannot check the checkpoint and the CDI files", extra=facts)
            else:
                self.unreadable = None

    async def rebuilt(self, claims: dict[str, PreparedClaim]) -> None:
        """Replace a damaged checkpoint with one that has `claims`. Raises OSError."""
        async with self.order:
            self._take(await self.worker.do(self.store.rebuild, claims, self.tag))
            self.damaged = None
        self.changed.notify()

    async def adopt(self, claims: dict[str, PreparedClaim], *, others_ran: bool = False) -> list[PreparedClaim]:
        """Add claims that were prepared here, perhaps by another driver; return those that are new. Raises OSError."""
        async with self.order:
            before = self.claims
            current = await self._unless_damaged(lambda: self.store.adopt(claims, others_ran=others_ran))
            if current is not None:
                self._take(current)
        return [claim for uid, claim in self.claims.items() if uid in claims and uid not in before]

    async def forget(self, claims: Sequence[PreparedClaim]) -> list[PreparedClaim]:
        """Remove those of `claims` that have not changed; return them. Raises OSError."""
        async with self.order:
            forget_outcome = None if self.damaged is not None else await self._unless_damaged(self.store.forget, claims)
            if forget_outcome is None:
                return []
            forgotten, current = forget_outcome
            self._take(current)
            return forgotten

    async def keep_tag(self, tag: Tag | None) -> None:
        """Write the workload tag to the checkpoint, unless that is damaged. Raises OSError."""
        async with self.order:
            if self.damaged is None:
                current = await self._unless_damaged(self.store.keep_tag, tag)
                if current is not None:
                    self._take(current)

    async def tell(self, told: Told) -> None:
        """Write the notice of a workload for its claims, unless the checkpoint is damaged. Raises OSError."""
        async with self.order:
            if self.damaged is None:
                current = await self._unless_damaged(self.store.tell, told)
                if current is not None:
                    self._take(current)

    def hold(self, claim: PreparedClaim) -> None:
        """Add a claim that was committed."""
        self._put({**self.claims, claim.ref.uid: claim})

    def drop(self, uid: str) -> None:
        """Remove a claim whose removal was committed."""
        self._put({other_uid: claim for other_uid, claim in self.claims.items() if other_uid != uid})

    def flush_failed(self, err: OSError) -> None:
        """Record that the disk may not have what was written; nothing new is prepared until it has."""
        self.unflushed = str(err)

    def flushed(self) -> None:
        """Record that the disk has what was written."""
        self.unflushed = None

    def found_damaged(self, err: CheckpointDamaged) -> None:
        """Record that the checkpoint cannot be read."""
        if self.damaged is None:
            log.error("the checkpoint is damaged; rebuilding it", extra={"reason": str(err)})
            self.damaged = str(err)
            self.changed.notify()

    async def _unless_damaged(self, work: Callable[..., T], *args: object) -> T | None:
        try:
            return await self.worker.do(work, *args)
        except CheckpointDamaged as err:
            self.found_damaged(err)
            return None

    def _take(self, checkpoint: Checkpoint) -> None:
        if (self.claims, self.tag) != (checkpoint.claims, checkpoint.tag):
            self.tag = checkpoint.tag
            self._put(dict(checkpoint.claims))

    def _put(self, claims: dict[str, PreparedClaim]) -> None:
        self.claims = claims
        self.changed.notify()
