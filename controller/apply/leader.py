"""Leader election: the leader renews a Lease, and another replica takes it when it expires.

A leader that could not renew until its deadline stops writing, well before another may take over. In addition, every
write is guarded by a resourceVersion.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import random
import time
from collections.abc import Callable
from typing import Any, Protocol

from controller.timing import LeaseTiming
from neuron_dra.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.events import EventRecorder, reference
from neuron_dra.kube.objects import MALFORMED
from neuron_dra.kube.requests import LEASES

log = logging.getLogger(__name__)


class Leadership(Protocol):
    """Decides if this process may write.

    - `term`: changes each time that it becomes the leader.
    - `tenure`: changes with the term if another replica can have held the Lease in between.
    """

    term: int
    tenure: int

    def holds(self) -> bool:
        """Return True while this process is the leader."""


class Alone:
    """Leadership without election, for a single replica."""

    term = 1
    tenure = 1

    def holds(self) -> bool:
        """Return True."""
        return True


def suspended_s() -> float:
    """Return for how long the machine was suspended; the event loop's clock does not count that time."""
    return round(time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic(), 1)


class Leader:
    """Leadership by a Lease. Run `run()` as a task; `on_change` is called when leadership begins or ends.

    The lease is renewed only while `works()` is True: a replica whose planner hangs must not lead for ever.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        on_change: Callable[[], None],
        timing: LeaseTiming,
        works: Callable[[], bool] = lambda: True,
        suspended: Callable[[], float] = suspended_s,
        events: EventRecorder | None = None,
    ) -> None:
        """`events`: posts an Event on the Lease if the API server rejects it."""
        self._events = events
        self._timing = timing
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._on_change = on_change
        self._works = works
        self._suspended = suspended
        self._seen: tuple[str, str] = ("", "")  # holder and renewTime, as last read
        self._seen_at = 0.0
        self._free_at = 0.0  # when another replica's lease expires
        self._valid_until = 0.0
        self._logged = ""  # the last logged error, to log it once
        self._had: tuple[str, int] | None = None  # UID and leaseTransitions of the lease, when it was last ours
        self.term = 0
        self.tenure = 0

    def holds(self) -> bool:
        """Return True while this process is the leader."""
        return self._now() < self._valid_until

    async def run(self) -> None:
        """Acquire the lease when it is free and renew it until cancelled; then release it."""
        reported = (0, False)  # the term and whether this replica leads, as last reported
        try:
            while True:
                started = self._now()
                try:
                    if not self._works():
                        self._log_hanging()
                    elif await self._take():
                        if not self.holds():  # also if it expired during this request
                            self.term += 1
                            log.info("leader", extra={"identity": self._identity, "term": self.term})
                        self._valid_until = started + self._timing.renew_deadline_s
                    else:
                        self._valid_until = 0.0
                    self._logged = "" if self._works() else self._logged
                except (ApiError, *MALFORMED) as err:
                    self._log_failure(err)
                    if isinstance(err, Forbidden | Invalid):
                        self._tell_rejected(err)
                # Not compared with the state before this request: the lease may have expired in the pause.
                current = (self.term, self.holds())
                if current != reported:
                    if reported[1] and not current[1]:
                        log.warning("no longer the leader", extra={"identity": self._identity})
                    reported = current
                    self._on_change()
                await asyncio.sleep(self._pause_s())
        finally:
            await self._release()

    def _log_hanging(self) -> None:
        """Log once that the lease is not renewed."""
        text = "the planner hangs, so the lease is not renewed and another replica takes over"
        if self._logged != text:
            log.error(text, extra={"identity": self._identity})
        self._logged = text

    def _log_failure(self, err: Exception) -> None:
        """Log why the lease could not be renewed; a missing namespace only once."""
        if isinstance(err, NotFound):
            if self._logged != str(err):
                log.error(
                    "namespace %s does not exist, so the Lease %s cannot be held and the controller does nothing: "
                    "create it (kubectl create namespace %s)",
                    self._namespace,
                    self._name,
                    self._namespace,
                    extra={"error": str(err)},
                )
            self._logged = str(err)
            return
        log.warning("the lease could not be renewed", extra={"lease": self._name, "error": str(err) or repr(err)})

    def _tell_rejected(self, err: ApiError) -> None:
        """Post an Event on the Lease, which may not exist: without it no replica does anything."""
        if self._events is None:
            return
        about = reference("coordination.k8s.io/v1", "Lease", self._namespace, self._name, "")
        text = f"the Lease cannot be held, so the controller does nothing: {err}"
        self._events.post(about, "Warning", "LeaseRejected", text, datetime.datetime.now(datetime.UTC))

    def _pause_s(self) -> float:
        """Return the seconds until the next try, at most until another replica's lease expires."""
        usual = self._timing.retry_s * random.uniform(0.9, 1.2)
        until_free_s = self._free_at - self._now()
        if until_free_s > 0:
            return min(usual, until_free_s)
        return usual

    async def _take(self) -> bool:
        """Renew or acquire the lease; return True if this replica has it. Raises ApiError."""
        try:
            lease = await self._read()
        except NotFound:
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": self._spec({}),
            }
            try:
                stored = await self._client.create(LEASES, self._namespace, body)
            except AlreadyExists:
                return False
            self._note(stored)
            return True
        spec = lease.get("spec") or {}
        holder, renewed = str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")
        if (holder, renewed) != self._seen:
            # By our own clock: the clocks of two machines may differ.
            self._seen, self._seen_at = (holder, renewed), self._now()
        duration = float(spec.get("leaseDurationSeconds") or self._timing.duration_s)
        if holder not in ("", self._identity):
            self._free_at = self._seen_at + duration
            if self._now() < self._free_at:
                return False
        own_lease = {**lease, "spec": self._spec(spec)}
        try:
            await self._client.replace(LEASES, self._namespace, own_lease)
        except Conflict:
            return False
        self._note(own_lease)
        return True

    def _note(self, lease: dict[str, Any]) -> None:
        """Note the lease that this replica has now; another tenure begins if it has changed hands since the last."""
        uid_and_transitions = str(lease["metadata"]["uid"]), int(lease["spec"]["leaseTransitions"])
        if uid_and_transitions != self._had:
            self.tenure += 1
        self._had = uid_and_transitions

    async def _read(self) -> dict[str, Any]:
        """Return the lease. Raises ApiError, or one of MALFORMED for another answer."""
        lease: dict[str, Any] = json.loads(
            await self._client.get(LEASES, self._namespace, self._name, timeout_s=self._timing.request_s)
        )
        if lease["metadata"]["name"] != self._name:
            raise ValueError(f"the API server's answer is not Lease {self._name}")
        return lease

    def _spec(self, before: dict[str, Any]) -> dict[str, Any]:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_holder = before.get("holderIdentity") == self._identity
        transitions = int(before.get("leaseTransitions") or 0)
        return {
            **before,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._timing.duration_s,
            "acquireTime": before.get("acquireTime") if is_holder else now,
            "renewTime": now,
            "leaseTransitions": transitions if is_holder or not before else transitions + 1,
        }

    async def _release(self) -> None:
        """Release the lease, so that the next leader need not wait; if that fails, it expires."""
        if not self.holds():
            return
        self._valid_until = 0.0
        try:
            lease = await self._read()
            if lease["spec"].get("holderIdentity") == self._identity:
                spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                await self._client.replace(LEASES, self._namespace, {**lease, "spec": spec})
        except (ApiError, *MALFORMED) as err:
            log.info("the lease was not released", extra={"lease": self._name, "error": str(err)})

    def _now(self) -> float:
        """Return the time in seconds, including that in which the machine was suspended."""
        return asyncio.get_running_loop().time() + self._suspended()
