"""Preparing and unpreparing claims: one transaction each, with the store's checkpoint as its only commit point.

    prepare    GET and decode, then under the lock: decide, write the CDI file, write the checkpoint; only then reply
    unprepare  under the lock: write the checkpoint, then remove the CDI file

What waits for its turn at the same time shares one commit: sixteen claims of sixteen pods cost one checkpoint. A claim
whose device is still held by another waits for that one to be unprepared: a refusal would cost its pod 90 s.

A transaction runs in a task of its own: a kubelet that gives up after its deadline cancels the wait, never the work,
and its retry joins it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from neuron_dra.core import backoff
from neuron_dra.core.checkpoint import Checkpoint
from neuron_dra.core.claims import Claim, ClaimRef, PreparedClaim
from neuron_dra.core.ultraserver import Tag
from neuron_dra.core.withdrawals import Mark, refusal
from neuron_dra.errors import ApiError, CheckpointDamaged, ClaimError, DeviceInUse, TooManyRequests, Unavailable
from neuron_dra.node.prepare.daemon_worker import Worker
from neuron_dra.node.prepare.group_commit import GroupCommit
from neuron_dra.node.prepare.store import Decide, Store

log = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 1.0  # another process of this node may have unprepared
FETCH_AGAIN_S: Final = (0.25, 4.0)  # first and longest wait after the API server failed
LONGEST_RETRY_AFTER_S: Final = 8.0  # whatever the API server asks for: the kubelet waits 45 s in all

Fetch = Callable[[ClaimRef], Awaitable[Claim]]


class Transactions:
    """Runs the store's blocking work in threads, once per claim at a time, whatever becomes of the callers.

    `device_wait_s` seconds after its beginning a prepare gives up waiting for a device that another claim holds, and
    after `fetch_patience_s` seconds it no longer asks an API server again that is away or asks it to wait.
    """

    def __init__(
        self, store: Store, fetch: Fetch, decide: Decide, device_wait_s: float = 0.0, fetch_patience_s: float = 0.0
    ) -> None:
        self._store = store
        self._fetch = fetch
        self._decide = decide
        self._device_wait_s = device_wait_s
        self._fetch_patience_s = fetch_patience_s
        self._hurries = False
        self._news = asyncio.Event()  # replaced with each change of `claims`, and when somebody need not wait any more
        self._running: dict[tuple[str, str], asyncio.Task[PreparedClaim | None]] = {}
        self._withdrawn: set[str] = set()  # claims that were unprepared while their prepare was under way
        self._order = asyncio.Lock()
        self._worker = Worker("claims")
        self._commit: GroupCommit[tuple[Claim, Mark], PreparedClaim] = GroupCommit(
            self._order, self._worker, self._prepare_all
        )
        self._release: GroupCommit[str, PreparedClaim] = GroupCommit(self._order, self._worker, store.unprepare_all)
        self.claims: dict[str, PreparedClaim] = {}
        self.tag: Tag | None = None
        self.damaged: str | None = None
        self.on_change: Callable[[], None] = lambda: None
        self.on_damage: Callable[[], None] = lambda: None

    async def open(self) -> None:
        """Read the checkpoint; a damaged one is told by `damaged` and not by an error."""
        try:
            self._took(await self._worker.do(self._store.open))
        except CheckpointDamaged as err:
            self._damage(err)

    async def prepare(self, ref: ClaimRef) -> PreparedClaim:
        """Prepare one claim, or join the task that does. Raises ClaimError, OSError, ApiError."""
        done = await self._join("prepare", ref, lambda: self._prepare(ref))
        assert done is not None  # noqa: S101 - _prepare returns a claim or raises
        return done

    async def unprepare(self, ref: ClaimRef) -> None:
        """Unprepare one claim; unknown is success. Needs no API server. Raises ClaimError, OSError."""
        await self._join("unprepare", ref, lambda: self._unprepare(ref))

    async def repair(self) -> list[ClaimRef]:
        """Write missing CDI files again, and take in what another process prepared."""
        if self.damaged is not None:
            return []
        async with self._order:
            try:
                repaired, current = await self._worker.do(self._store.repair)
                self._took(current)
            except CheckpointDamaged as err:
                self._damage(err)
                return []
        for ref in repaired:
            log.warning("CDI file was missing or altered; written again", extra={"claim": str(ref), "uid": ref.uid})
        return repaired

    async def rebuilt(self, claims: dict[str, PreparedClaim]) -> None:
        """Take `claims` as what is prepared, after a damaged checkpoint. Raises OSError."""
        async with self._order:
            self._took(await self._worker.do(self._store.rebuild, claims, self.tag))
            self.damaged = None

    async def adopt(self, claims: dict[str, PreparedClaim]) -> list[PreparedClaim]:
        """Hold the devices of claims that somebody else prepared; return those that are new. Raises OSError."""
        async with self._order:
            before = self.claims
            try:
                self._took(await self._worker.do(self._store.adopt, claims))
            except CheckpointDamaged as err:
                self._damage(err)
        return [claim for uid, claim in self.claims.items() if claim.adopted and uid not in before]

    async def let_go(self, claims: Sequence[PreparedClaim]) -> list[PreparedClaim]:
        """Forget those of `claims` that are held as they were seen; return them. Raises OSError."""
        async with self._order:
            if self.damaged is not None:
                return []
            try:
                gone, current = await self._worker.do(self._store.let_go, claims)
            except CheckpointDamaged as err:
                self._damage(err)
                return []
            self._took(current)
            return gone

    async def keep_tag(self, tag: Tag | None) -> None:
        """Keep the workload tag in the checkpoint; while that is damaged, nowhere. Raises OSError."""
        async with self._order:
            if self.damaged is None:
                try:
                    self._took(await self._worker.do(self._store.keep_tag, tag))
                except CheckpointDamaged as err:
                    self._damage(err)

    def found_damaged(self, err: CheckpointDamaged) -> None:
        """Take in that somebody else found the checkpoint damaged."""
        self._damage(err)

    def hurry(self) -> None:
        """Let no claim wait for a device any more: those that do are refused, and asked for again."""
        self._hurries = True
        self._tell()

    async def finish(self, timeout_s: float) -> None:
        """Wait for running transactions, at most `timeout_s` seconds; then abandon them, as a crash would.

        A write that has begun in its thread goes on until the process ends.
        """
        if self._running:
            _, late = await asyncio.wait(list(self._running.values()), timeout=timeout_s)
            for task in late:
                log.warning("abandoned at shutdown", extra={"transaction": task.get_name()})
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _join(
        self, verb: str, ref: ClaimRef, work: Callable[[], Awaitable[PreparedClaim | None]]
    ) -> PreparedClaim | None:
        key = (verb, ref.uid)
        task = self._running.get(key)
        if task is None:
            task = asyncio.ensure_future(work())
            task.set_name(f"{verb} {ref}")
            self._running[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)

    def _forget(self, key: tuple[str, str], done: asyncio.Task[PreparedClaim | None]) -> None:
        self._running.pop(key, None)
        if key[0] == "prepare":
            self._withdrawn.discard(key[1])
        if not done.cancelled():
            done.exception()  # looked at, so that a caller that left does not make asyncio complain

    async def _prepare(self, ref: ClaimRef) -> PreparedClaim:
        mark = self._store.mark()
        self._refuse_while_damaged(ref)
        try:
            if not self._store.surely_unknown(ref.uid):
                async with self._order:
                    known = await self._worker.do(self._store.known, ref.uid)
                if known is not None:
                    return known
            prepared = await self._commit_when_free(ref, mark)
        except CheckpointDamaged as err:
            self._damage(err)
            self._refuse_while_damaged(ref)
            raise
        self._hold({**self.claims, ref.uid: prepared})
        return prepared

    async def _commit_when_free(self, ref: ClaimRef, mark: Mark) -> PreparedClaim:
        """Commit a claim; while another holds a device of it, wait for that one to be unprepared.

        So it is when a pod is deleted without grace and another one takes its place: the scheduler gives the device
        on before the kubelet has ended the container.
        """
        began = asyncio.get_running_loop().time()
        until = began + self._device_wait_s
        is_told = False
        while True:
            claim = await self._fetched(ref, began + self._fetch_patience_s)
            self._refuse_while_damaged(ref)
            if ref.uid in self._withdrawn:
                raise refusal(ref)
            news = self._news
            try:
                prepared = await self._commit((claim, mark))
            except DeviceInUse as err:
                if not is_told:
                    log.info("waiting for a device", extra={"claim": str(ref), "uid": ref.uid, "reason": str(err)})
                    is_told = True
                if not await self._released(err.holder, ref, news, until):
                    raise
            else:
                assert prepared is not None  # noqa: S101 - the store gives a claim or an error
                return prepared

    async def _fetched(self, ref: ClaimRef, until: float) -> Claim:
        """Read a claim; while the API server fails or asks to wait, again. Raises ClaimError, ApiError.

        A refusal costs the pod 90 s, and the kubelet waits 45 s for an answer.
        """
        waits = backoff.delays(*FETCH_AGAIN_S, random.random)
        while True:
            try:
                return await self._fetch(ref)
            except (TooManyRequests, Unavailable) as err:
                pause_s = _pause(err, next(waits))
                if not await self._may_ask_again(ref, pause_s, until):
                    raise
                log.info("asking the API server again", extra={"claim": str(ref), "uid": ref.uid, "error": str(err)})

    async def _may_ask_again(self, ref: ClaimRef, pause_s: float, until: float) -> bool:
        """Wait `pause_s` seconds; False at once if that is too long, and when nobody wants the answer any more."""
        loop = asyncio.get_running_loop()
        again_at = loop.time() + pause_s
        while not self._hurries and ref.uid not in self._withdrawn and again_at <= until:
            if (left := again_at - loop.time()) <= 0:
                return True
            news = self._news
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await news.wait()
        return False

    async def _released(self, holder: str, waiting: ClaimRef, news: asyncio.Event, until: float) -> bool:
        """Return True as soon as `holder` may have been unprepared; False if nobody should wait any longer.

        `news` is the event that tells what happened since `holder` was seen to hold the device.
        """
        while not self._hurries and (left := until - asyncio.get_running_loop().time()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, LOOK_AGAIN_S)):
                    await news.wait()
            if waiting.uid in self._withdrawn or holder not in self.claims:
                return True
            news = self._news
        return False

    async def _unprepare(self, ref: ClaimRef) -> None:
        if ("prepare", ref.uid) in self._running:
            # Its caller gave up. What it has read may be seconds old, and nobody would unprepare the claim again.
            self._withdrawn.add(ref.uid)
            self._tell()
        try:
            await self._release(ref.uid)
        except CheckpointDamaged as err:
            self._damage(err)
        if self.damaged is not None:
            # Answering success now could lose it: the rebuild would find the claim again.
            raise ClaimError(f"claim {ref}: {_REBUILDING}", retryable=True)
        self._hold({uid: claim for uid, claim in self.claims.items() if uid != ref.uid})

    def _prepare_all(self, claims: list[tuple[Claim, Mark]]) -> list[PreparedClaim | Exception]:
        marks = {claim.ref.uid: mark for claim, mark in claims}
        return self._store.prepare_all([claim for claim, _ in claims], self._decide, marks)

    def _refuse_while_damaged(self, ref: ClaimRef) -> None:
        if self.damaged is not None:
            raise ClaimError(f"claim {ref}: {_REBUILDING} ({self.damaged})", retryable=True)

    def _took(self, checkpoint: Checkpoint) -> None:
        if (self.claims, self.tag) != (checkpoint.claims, checkpoint.tag):
            self.tag = checkpoint.tag
            self._hold(dict(checkpoint.claims))

    def _hold(self, claims: dict[str, PreparedClaim]) -> None:
        self.claims = claims
        self._tell()
        self.on_change()

    def _tell(self) -> None:
        """Wake up who waits for a device."""
        self._news.set()
        self._news = asyncio.Event()

    def _damage(self, err: CheckpointDamaged) -> None:
        if self.damaged is None:
            log.error("the checkpoint is damaged; rebuilding it", extra={"reason": str(err)})
            self.damaged = str(err)
            self.on_damage()


def _pause(err: ApiError, usual_s: float) -> float:
    """Return how long to wait before asking again; never longer than is left of the kubelet's patience at its best."""
    if err.retry_after_s is None:
        return usual_s
    return max(usual_s, backoff.not_before(min(err.retry_after_s, LONGEST_RETRY_AFTER_S), random.random))


_REBUILDING = "the node's checkpoint was damaged and is being rebuilt; the kubelet tries again"
