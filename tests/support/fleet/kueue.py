"""A small Kueue: two queues in one cohort, which admits, preempts, and requeues Workloads by their quota.

Its transitions are those of Kueue 0.19 (pkg/controller/core/workload_controller.go and the scheduler): it never takes
quota away from an evicted Workload, because only the reconciler of the job does.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from neuron_dra.core.wire import Obj, Wire
from neuron_dra.errors import ApiError, Conflict
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import KUEUE_WORKLOADS
from tests.support.fleet.view import condition, parsed

QUEUES: Final = ("left", "right")
LOOK_S: Final = 1.0
BACK_OFF_S: Final = 60.0
LIFTED: Final = {
    "Deactivated": "Reactivated",
    "PodsReadyTimeout": "BackoffFinished",
    "ClusterQueueStopped": "ClusterQueueRestarted",
}
"""The reasons of Requeued=False that Kueue lifts, and with which reason."""


def is_true(item: Wire, kind: str) -> bool:
    return condition(item, kind).get("status") == "True"


def granted(item: Wire) -> int:
    """Return the pods for which a Workload has quota, by its conditions."""
    if not is_true(item, "QuotaReserved") or is_true(item, "Finished"):
        return 0
    status = item["status"]
    returned = sum(int(each["count"]) for each in status.get("reclaimablePods") or ())
    return int(item["spec"]["podSets"][0]["count"]) - returned


def _active(item: Wire) -> bool:
    return item["spec"].get("active") is not False


def _priority(item: Wire) -> int:
    return int(item["spec"].get("priority") or 0)


@dataclass(slots=True)
class Queue:
    """A LocalQueue with its ClusterQueue."""

    name: str
    quota: int
    stopped: bool = False


class Kueue:
    """The program. Its state is in the objects; `queues` are its configuration."""

    def __init__(self, connect: Callable[[str], KubeClient], now: Callable[[], datetime.datetime]) -> None:
        self.queues = {name: Queue(name, 0) for name in QUEUES}
        self._connect = connect
        self._now = now
        self._tasks: list[asyncio.Task[None]] = []
        self._reflector: Reflector | None = None
        self._client: KubeClient | None = None

    @property
    def up(self) -> bool:
        """It runs."""
        return bool(self._tasks)

    def start(self) -> None:
        """Start it, unless it runs."""
        if self._tasks:
            return
        self._client = client = self._connect("kueue")
        self._reflector = reflector = Reflector(client, KUEUE_WORKLOADS)
        self._tasks = [asyncio.create_task(reflector.run()), asyncio.create_task(self._run(reflector))]

    async def stop(self) -> None:
        """End it, at any point."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def look_once(self) -> None:
        """Read all Workloads, and do once what follows from them, until a Workload has changed meanwhile."""
        self._client = client = self._client or self._connect("kueue")
        found: list[Obj] = []
        async for page in client.list(KUEUE_WORKLOADS):
            found += page.decoded(dict).objects
        with contextlib.suppress(Conflict):
            await self._pass(found)

    async def _run(self, reflector: Reflector) -> None:
        await reflector.synced.wait()
        while True:
            with contextlib.suppress(ApiError):
                await self._pass([dict(item) for _, item in sorted(reflector.items.items())])
            await asyncio.sleep(LOOK_S)

    async def _pass(self, items: list[Obj]) -> None:
        alive = [item for item in items if not is_true(item, "Finished")]
        for item in alive:
            await self._follow(item)
        for queue in self.queues.values():
            await self._admit(queue, alive)

    # One Workload

    async def _follow(self, item: Obj) -> None:
        """Do what follows from the Workload alone."""
        requeued, queue = condition(item, "Requeued"), self.queues.get(item["spec"].get("queueName"))
        if not _active(item):
            if not is_true(item, "Evicted") and condition(item, "QuotaReserved"):
                await self.evict(item, "Deactivated", "The workload is deactivated")
            return
        if is_true(item, "QuotaReserved") and queue is not None and queue.stopped and not is_true(item, "Evicted"):
            await self.evict(item, "ClusterQueueStopped", "The ClusterQueue is stopped")
        elif requeued.get("status") == "False" and requeued["reason"] in LIFTED:
            stopped = requeued["reason"] == "ClusterQueueStopped" and (queue is None or queue.stopped)
            waited_s = (self._now() - parsed(requeued["lastTransitionTime"])).total_seconds()
            early = requeued["reason"] == "PodsReadyTimeout" and waited_s < BACK_OFF_S
            if not (stopped or early):
                await self._set(item, {"Requeued": (True, LIFTED[requeued["reason"]], "it queues again")})
        elif is_true(item, "QuotaReserved") and not is_true(item, "Admitted") and not is_true(item, "Evicted"):
            await self._set(item, {"Admitted": (True, "Admitted", "The workload is admitted")})

    async def evict(self, item: Obj, reason: str, message: str) -> None:
        """Ask for the quota back."""
        await self._set(item, {"Evicted": (True, reason, message)})

    async def _preempt(self, victim: Obj, queue: Queue, name: str) -> None:
        """Ask for the quota back that the Workload `name` of a queue needs."""
        text = f"preempted to accommodate {name}"
        same = victim["status"]["admission"]["clusterQueue"] == queue.name
        why = "InClusterQueue" if same else "InCohortReclamation"
        await self._set(victim, {"Evicted": (True, "Preempted", text), "Preempted": (True, why, text)})

    # A queue

    def _usage(self, items: Iterable[Wire], names: Collection[str]) -> int:
        mine = [each for each in items if str((each["status"].get("admission") or {}).get("clusterQueue")) in names]
        return sum(granted(each) for each in mine if _active(each))

    async def _admit(self, queue: Queue, items: list[Obj]) -> None:
        """Admit the first Workload that waits in a queue, or preempt others for it."""
        waiting = [
            each
            for each in items
            if each["spec"].get("queueName") == queue.name
            and _active(each)
            and not is_true(each, "QuotaReserved")
            and condition(each, "Requeued").get("status") != "False"
            and not each["metadata"].get("deletionTimestamp")
        ]
        if not waiting or queue.stopped:
            return
        first = min(waiting, key=lambda each: (-_priority(each), self._since(each), each["metadata"]["name"]))
        wanted = int(first["spec"]["podSets"][0]["count"])
        counted = [each for each in items if each.get("status")]
        used, of_all = self._usage(counted, [queue.name]), self._usage(counted, self.queues)
        if wanted <= sum(each.quota for each in self.queues.values()) - of_all:
            await self._reserve(queue, first, wanted)
            items.remove(first)  # until its watch shows the result
            return
        for victim in self._victims(queue, counted, first, within=used + wanted <= queue.quota):
            await self._preempt(victim, queue, first["metadata"]["name"])
            return
        text = f"insufficient unused quota in ClusterQueue {queue.name}: {wanted} more needed"
        if condition(first, "QuotaReserved").get("message") != text:
            await self._set(first, {"QuotaReserved": (False, "Pending", text)})

    def _since(self, item: Wire) -> str:
        evicted = condition(item, "Evicted")
        moment = evicted.get("lastTransitionTime") if evicted.get("status") == "True" else None
        return str(moment or item["metadata"]["creationTimestamp"])

    def _victims(self, queue: Queue, items: list[Obj], first: Wire, *, within: bool) -> list[Obj]:
        """Return whom a Workload may preempt, the best one first.

        Lower priority in its own queue; and any in a queue that borrows, if its own quota has room. Other queues
        come first, then low priority, then those that got quota last.
        """
        running = [each for each in items if granted(each) and _active(each)]
        if any(is_true(each, "Evicted") for each in running):
            return []  # their quota comes first
        own = [each for each in running if each["status"]["admission"]["clusterQueue"] == queue.name]
        lower = [each for each in own if _priority(each) < _priority(first)]
        borrowed = []
        for other in self.queues.values():
            if within and other is not queue and self._usage(items, [other.name]) > other.quota:
                borrowed += [each for each in running if each["status"]["admission"]["clusterQueue"] == other.name]

        def order(each: Wire) -> tuple[bool, int, float, str]:
            since = parsed(condition(each, "QuotaReserved")["lastTransitionTime"])
            own = each["status"]["admission"]["clusterQueue"] == queue.name
            return own, _priority(each), -since.timestamp(), each["metadata"]["name"]

        return sorted([*lower, *borrowed], key=order)

    async def _reserve(self, queue: Queue, item: Obj, wanted: int) -> None:
        conditions = {"QuotaReserved": (True, "QuotaReserved", f"Quota reserved in ClusterQueue {queue.name}")}
        for kind in ("Evicted", "Preempted"):
            if is_true(item, kind):
                conditions[kind] = (False, "QuotaReserved", "Previously: it was evicted")
        assignment = {
            "name": item["spec"]["podSets"][0]["name"],
            "flavors": {"neuron.aws.com/ultraserver-node": "any"},
            "resourceUsage": {"neuron.aws.com/ultraserver-node": str(wanted)},
            "count": wanted,
        }
        admission = {"clusterQueue": queue.name, "podSetAssignments": [assignment]}
        await self._set(item, conditions, admission=admission)

    # Writing

    async def _set(self, item: Obj, conditions: dict[str, tuple[bool, str, str]], **status: Any) -> None:
        """Write conditions by PUT, as they were decided. Raises ApiError."""
        assert self._client is not None
        moment = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        found = dict(item.get("status") or {}, **status)
        kept = [each for each in found.get("conditions") or () if each["type"] not in conditions]
        for kind, (value, reason, message) in conditions.items():
            before, text = condition(item, kind), "True" if value else "False"
            since = before["lastTransitionTime"] if before.get("status") == text else moment
            kept.append(
                {"type": kind, "status": text, "reason": reason, "message": message, "lastTransitionTime": since}
            )
        meta = item["metadata"]
        body = {**item, "status": {**found, "conditions": kept}}
        path = KUEUE_WORKLOADS.path(meta["namespace"], meta["name"], "status")
        item["status"] = json.loads(await self._client.request("PUT", path, body=body))["status"]
