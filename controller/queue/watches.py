"""Kueue's Workloads of reservations, kept by a watch if the API server has that kind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from controller.observe.caches import KEPT
from controller.queue.model import KueueWorkload, project
from controller.timing import QueueTiming
from neuron_dra.errors import Forbidden, NotServed
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.reflector import Item, Reflector
from neuron_dra.kube.requests import KUEUE_WORKLOADS
from neuron_dra.planner.fleet.reserved import put, take

log = logging.getLogger(__name__)

_ABSENT: Final = "the API server has no workloads.kueue.x-k8s.io of v1beta2: install Kueue, or remove the queue"


class _Part(msgspec.Struct, omit_defaults=True, rename="camel"):
    """A part of an object. Absent fields stay absent."""


class _Owner(_Part):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class _Meta(_Part):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    deletion_timestamp: str | None = None
    finalizers: list[str] | None = None
    labels: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None


class _Resources(_Part):
    requests: dict[str, Any] | None = None


class _Container(_Part):
    resources: _Resources | None = None


class _Pod(_Part):
    node_selector: dict[str, str] | None = None
    containers: list[_Container] | None = None


class _Template(_Part):
    spec: _Pod | None = None


class _PodSet(_Part):
    name: str = ""
    count: int | None = None
    template: _Template | None = None


class _PriorityClass(_Part):
    name: str = ""


class _Spec(_Part):
    queue_name: str = ""
    pod_sets: list[_PodSet] | None = None
    priority_class_ref: _PriorityClass | None = None
    priority: int | None = None
    active: bool | None = None


class _Condition(_Part):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class _Assignment(_Part):
    count: int | None = None
    topology_assignment: dict[str, Any] | None = None
    delayed_topology_request: str | None = None


class _Admission(_Part):
    cluster_queue: str
    pod_set_assignments: list[_Assignment] | None = None


class _Reclaimable(_Part):
    count: int = 0


class _Status(_Part):
    conditions: list[_Condition] | None = None
    admission: _Admission | None = None
    reclaimable_pods: list[_Reclaimable] | None = None
    cluster_name: str | None = None
    nominated_cluster_names: list[str] | None = None


class KueueFields(_Part):
    """What is decoded of a Workload. Those of jobs have large pod templates, which never become Python objects."""

    metadata: _Meta
    spec: _Spec | None = None
    status: _Status | None = None


def _kept(item: Item) -> Item | None:
    """Keep the Workloads of reservations, and nothing of those of jobs."""
    kueue_workload = project(item)
    if kueue_workload is None:
        return None
    meta = item["metadata"]
    return {"metadata": {key: meta[key] for key in KEPT if key in meta}, "value": kueue_workload}


class QueueWatch:
    """The watch. It calls `on_change` when a Workload of a reservation changes."""

    def __init__(self, client: KubeClient, on_change: Callable[[], None], timing: QueueTiming) -> None:
        self._timing = timing
        self._on_change = on_change
        self._reflector = Reflector(
            client,
            KUEUE_WORKLOADS,
            on_change=on_change,
            gives_up_on=(NotServed, Forbidden),
            project=_kept,
            fields=KueueFields,
        )
        self._problem = "Kueue's Workloads are not listed yet"
        self.by_owner: dict[str, dict[str, KueueWorkload]] = {}
        """The Workloads by UID of the workload that controls them, then by namespace/name, as of the last `follow`."""
        self._known: dict[str, KueueWorkload] = {}  # by namespace/name

    @property
    def unknown(self) -> str:
        """Why the Workloads are not known; empty if they are."""
        return "" if self._reflector.synced.is_set() else self._problem

    @property
    def installed(self) -> bool:
        """The API server has, or may have, the kind."""
        return self._problem != _ABSENT

    @property
    def reflectors(self) -> dict[str, Reflector]:
        """The watch by the plural of its kind."""
        return {KUEUE_WORKLOADS.plural: self._reflector}

    @property
    def unreadable(self) -> frozenset[str]:
        """The Workloads, by namespace/name, that cannot be read."""
        return self._reflector.unreadable

    def follow(self) -> set[str]:
        """Update `by_owner`; return the UIDs of workloads of which a Workload has changed."""
        changed: set[str] = set()
        for key in self._reflector.take_touched():
            before, item = self._known.get(key), self._reflector.items.get(key)
            now: KueueWorkload | None = None if item is None else item["value"]
            put(self._known, key, now)
            if before is not None:
                changed.add(before.owner.uid)
                take(self.by_owner, before.owner.uid, key)
            if now is not None:
                changed.add(now.owner.uid)
                self.by_owner.setdefault(now.owner.uid, {})[key] = now
        return changed

    def remember(self, stored: Item) -> None:
        """Keep the answer to a write, so that the next decision includes it."""
        if stored["metadata"].get("deletionTimestamp") and not stored["metadata"].get("finalizers"):
            self._reflector.forget(stored)
        else:
            self._reflector.remember(stored)

    async def relist(self) -> None:
        """List again: a new leader must not decide on a follower's cache. Raises ApiError."""
        if self._reflector.synced.is_set():
            await self._reflector.relist()

    async def resume(self) -> None:
        """Open the watch again for a leader that regained its Lease; list only if that fails. Raises ApiError."""
        if self._reflector.synced.is_set():
            await self._reflector.resume()

    async def run(self) -> None:
        """Watch, and look for Kueue from time to time while the API server does not have it."""
        while True:
            try:
                await self._reflector.run()
            except NotServed:
                self._problem = _ABSENT
            except Forbidden as err:
                problem = f"Kueue's Workloads cannot be read: apply the ClusterRole of this release ({err})"
                if problem != self._problem:
                    log.warning("workloads with a queue wait", extra={"error": str(err)})
                self._problem = problem
            self._reflector.synced.clear()
            self._on_change()
            await asyncio.sleep(self._timing.absent_s)
