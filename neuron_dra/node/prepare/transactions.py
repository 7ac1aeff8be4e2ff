"""Preparing and unpreparing claims: one transaction each, with the store's checkpoint as its only commit point.

    prepare    GET and decode, then under the lock: decide, write the CDI file, write the checkpoint; only then reply
    again      the earlier result; where a claim can get a new allocation under its UID, GET and compare first
    unprepare  under the lock: write the checkpoint, then remove the CDI file

Transactions that wait for the lock share one commit: sixteen claims of sixteen pods cost one write of the checkpoint.

Each transaction runs in its own task. When the kubelet's deadline passes, only its wait is cancelled, and its retry
joins the same transaction.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from neuron_dra.core import backoff, decision
from neuron_dra.core.claims import Claim, ClaimRef, PreparedClaim
from neuron_dra.core.withdrawals import Mark, refusal
from neuron_dra.errors import (
    ApiError,
    CheckpointDamaged,
    ClaimError,
    DeviceInUse,
    DriverNotReady,
    Forbidden,
    TooManyRequests,
    Unavailable,
)
from neuron_dra.node.prepare.device_wait import DeviceWait
from neuron_dra.node.prepare.group_commit import GroupCommit
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.timing import DEFAULT_TIMING, PrepareTiming

log = logging.getLogger(__name__)

FORBIDDEN_TRIES: Final = 3  # an API server that has just started may not know our rights yet


class ClaimAdmission(Protocol):
    """Reads claims, and decides what they get."""

    async def fetch(self, ref: ClaimRef) -> Claim:
        """Read a claim that is to be prepared here. Raises ClaimError, ApiError."""

    async def allocation(self, ref: ClaimRef) -> Claim:
        """Read which devices a prepared claim has now. Raises ClaimError, ApiError."""

    def decide(self, claim: Claim, other_claims: list[PreparedClaim]) -> PreparedClaim:
        """Return the claim's devices, given the other prepared claims. Called in a thread. Raises ClaimError."""


class Transactions:
    """Runs one transaction per claim at a time, even if its callers are cancelled.

    A prepare waits up to `device_wait_s` seconds for a device that another claim holds.
    """

    def __init__(
        self,
        prepared: PreparedClaims,
        admission: ClaimAdmission,
        device_wait_s: float = 0.0,
        timing: PrepareTiming = DEFAULT_TIMING.prepare,
    ) -> None:
        self.prepared = prepared
        self._admission = admission
        self._device_wait_s = device_wait_s
        self._timing = timing
        self._stopping = False
        self._running: dict[tuple[str, str], asyncio.Task[PreparedClaim | None]] = {}
        self._withdrawn: set[str] = set()  # UIDs of claims that were unprepared while their prepare was running
        store = prepared.store
        self._commit: GroupCommit[tuple[Claim, Mark], PreparedClaim] = GroupCommit(
            prepared.order, prepared.worker, lambda claims: store.prepare_all(claims, admission.decide)
        )
        self._release: GroupCommit[str, PreparedClaim] = GroupCommit(
            prepared.order, prepared.worker, store.unprepare_all
        )

    async def prepare(self, ref: ClaimRef) -> PreparedClaim:
        """Prepare one claim, or join the task that does. Raises ClaimError, OSError, ApiError."""
        prepared_claim = await self._join("prepare", ref, lambda: self._prepare(ref))
        assert prepared_claim is not None  # noqa: S101 - _prepare returns a claim or raises
        return prepared_claim

    async def unprepare(self, ref: ClaimRef) -> None:
        """Unprepare one claim, if it is prepared. Does not call the API server. Raises ClaimError, OSError."""
        await self._join("unprepare", ref, lambda: self._unprepare(ref))

    def hurry(self) -> None:
        """End all waits for devices: those claims are rejected, and the kubelet retries."""
        self._stopping = True
        self.prepared.changed.notify()

    async def finish(self, timeout_s: float) -> None:
        """Wait for running transactions, at most `timeout_s` seconds; then abandon them, as a crash would.

        A write that has begun in its thread goes on until the process ends.
        """
        if self._running:
            _, late_tasks = await asyncio.wait(list(self._running.values()), timeout=timeout_s)
            for task in late_tasks:
                log.warning("transaction abandoned at shutdown", extra={"transaction": task.get_name()})
                task.cancel()
            await asyncio.gather(*late_tasks, return_exceptions=True)

    async def _join(
        self, verb: str, ref: ClaimRef, work: Callable[[], Awaitable[PreparedClaim | None]]
    ) -> PreparedClaim | None:
        key = (verb, ref.uid)
        task = self._running.get(key)
        if task is None:
            task = asyncio.ensure_future(work())
            task.set_name(f"{verb} {ref}")
            self._running[key] = task
            task.add_done_callback(lambda done_task: self._forget(key, done_task))
        return await asyncio.shield(task)

    def _forget(self, key: tuple[str, str], done_task: asyncio.Task[PreparedClaim | None]) -> None:
        self._running.pop(key, None)
        if key[0] == "prepare":
            self._withdrawn.discard(key[1])
        if not done_task.cancelled():
            done_task.exception()  # retrieved, or asyncio logs it if all callers are gone

    async def _prepare(self, ref: ClaimRef) -> PreparedClaim:
        mark = self.prepared.store.mark()
        self._reject_while_damaged(ref)
        try:
            deadline = asyncio.get_running_loop().time() + self._timing.fetch_patience_s
            earlier_claim = await self._earlier_claim(ref, deadline)
            if earlier_claim is not None:
                return earlier_claim
            self._reject_while_unflushed(ref)
            prepared = await self._commit_when_free(ref, mark, deadline)
        except CheckpointDamaged as err:
            self.prepared.found_damaged(err)
            self._reject_while_damaged(ref)
            raise
        self.prepared.hold(prepared)
        return prepared

    async def _earlier_claim(self, ref: ClaimRef, deadline: float) -> PreparedClaim | None:
        """Return the earlier result of a claim, if it has one that is still right. Raises ClaimError, ApiError.

        A kubelet that restarts forgets that a claim is prepared. If the pod was deleted by force meanwhile, another pod
        may use the same claim with a new allocation, so the claim is read again. A claim that Kubernetes made for a pod
        needs no second read, because it ends with its pod.
        """
        earlier_claim = await self.prepared.known(ref.uid)
        if earlier_claim is None or earlier_claim.of_its_pod:
            return earlier_claim
        claim = await self._fetched(self._admission.allocation, ref, self._wait(ref), deadline)
        # Read again, because the claim may have been unprepared during the request.
        earlier_claim = await self.prepared.known(ref.uid)
        if earlier_claim is not None:
            decision.refuse_new_allocation(earlier_claim, claim)
        return earlier_claim

    def _wait(self, ref: ClaimRef) -> DeviceWait:
        return DeviceWait(
            self.prepared,
            lambda: ref.uid in self._withdrawn,
            lambda: self._stopping,
            self._device_wait_s,
            self._timing.look_again_s,
        )

    async def _commit_when_free(self, ref: ClaimRef, mark: Mark, deadline: float) -> PreparedClaim:
        """Commit a claim; if another claim holds one of its devices, wait until that one is unprepared.

        This happens when a pod is deleted without a grace period and another replaces it: the scheduler allocates the
        device again before the kubelet has ended the container.
        """
        wait = self._wait(ref)
        is_logged = False
        while True:
            claim = await self._fetched(self._admission.fetch, ref, wait, deadline)
            self._reject_while_damaged(ref)
            self._reject_while_unflushed(ref)
            if ref.uid in self._withdrawn:
                raise refusal(ref)
            changes_seen = self.prepared.changed.count
            try:
                prepared = await self._commit((claim, mark))
            except DeviceInUse as err:
                if not is_logged:
                    log.info("waiting for a device", extra={"claim": str(ref), "uid": ref.uid, "reason": str(err)})
                    is_logged = True
                if not await wait.released(err.holder, changes_seen):
                    raise
            else:
                assert prepared is not None  # noqa: S101 - the store gives a claim or an error
                return prepared

    async def _fetched(
        self, read: Callable[[ClaimRef], Awaitable[Claim]], ref: ClaimRef, wait: DeviceWait, deadline: float
    ) -> Claim:
        """Read a claim; retry while the API server fails or limits the rate, and while the kernel driver loads.

        Raises ClaimError, ApiError.
        """
        waits = backoff.delays(*self._timing.fetch_retry_s, random.random)
        forbidden_count = 0
        while True:
            try:
                return await read(ref)
            except DriverNotReady as err:  # a rejection costs the pod 90 s, and most loads take less than a minute
                if not await wait.pause(self._timing.look_again_s, deadline):
                    raise
                log.info("waiting for the kernel driver", extra={"claim": str(ref), "uid": ref.uid, "reason": str(err)})
            except (TooManyRequests, Unavailable, Forbidden) as err:
                forbidden_count += isinstance(err, Forbidden)
                if forbidden_count >= FORBIDDEN_TRIES:
                    raise
                if not await wait.pause(self._pause(err, next(waits)), deadline):
                    raise
                log.info("retrying the API server", extra={"claim": str(ref), "uid": ref.uid, "error": str(err)})

    async def _unprepare(self, ref: ClaimRef) -> None:
        if ("prepare", ref.uid) in self._running:
            # The kubelet gave up on that prepare. If it committed after this, nothing would unprepare the claim.
            self._withdrawn.add(ref.uid)
            self.prepared.changed.notify()
        try:
            await self._release(ref.uid)
        except CheckpointDamaged as err:
            self.prepared.found_damaged(err)
        if self.prepared.damaged is not None:
            # After a success now, the rebuild could still find the claim, which would stay prepared.
            raise ClaimError(f"claim {ref}: {_REBUILDING}{self._why_waiting}")
        self.prepared.drop(ref.uid)

    def _reject_while_damaged(self, ref: ClaimRef) -> None:
        if self.prepared.damaged is not None:
            raise ClaimError(f"claim {ref}: {_REBUILDING} ({self.prepared.damaged}){self._why_waiting}")

    @property
    def _why_waiting(self) -> str:
        return f". The rebuild waits: {self.prepared.rebuild_waits}" if self.prepared.rebuild_waits else ""

    def _reject_while_unflushed(self, ref: ClaimRef) -> None:
        if self.prepared.unflushed is not None:
            raise ClaimError(
                f"claim {ref}: the node's disk did not keep what was written ({self.prepared.unflushed}), so nothing "
                "new is prepared; the plugin writes it again, and the kubelet tries again. Check the disk of the "
                "kubelet's folder"
            )

    def _pause(self, err: ApiError, usual_s: float) -> float:
        """Return the seconds to wait before a retry; Retry-After counts up to a limit."""
        if err.retry_after_s is None:
            return usual_s
        asked_s = min(err.retry_after_s, self._timing.longest_retry_after_s)
        return max(usual_s, backoff.not_before(asked_s, random.random))


_REBUILDING = "the node's checkpoint was damaged and is being rebuilt; the kubelet tries again"
