"""A scheduler for simulated clusters: watches pods and claims, and writes the decisions of `simulate.scheduler`.

As kube-scheduler does for claims, it writes finalizer, allocation and reservation to the claim, then the binding; a pod
that must wait gets the condition PodScheduled=False with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from neuron_dra.core.wire import Obj
from neuron_dra.errors import ApiError
from neuron_dra.kube.client import MERGE_PATCH, KubeClient
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from neuron_dra.simulate import allocator, scheduler
from neuron_dra.simulate.pools import PoolInventory
from neuron_dra.simulate.scheduler import Placement, Unschedulable
from neuron_dra.simulate.selectors import Selectors

DELETE_PROTECTION: Final = "resource.kubernetes.io/delete-protection"
RETRY_S: Final = 0.2  # pause after a failed write, usually a conflict


class PodScheduler:
    """Run `run()` as a task. `waiting` has, by pod name, the full reason why a pod is not placed."""

    def __init__(self, client: KubeClient, name: str = "") -> None:
        """`name`: the schedulerName of the pods to place."""
        self._client = client
        self._name = name
        self._wake = asyncio.Event()
        self._memo = Selectors()
        self._decoded: tuple[list[tuple[str, str]], PoolInventory] | None = None
        self._resting: dict[str, float] = {}  # by pod UID: no attempt before this time of the loop
        self.waiting: dict[str, Unschedulable] = {}
        resources = (PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, NODES, DEVICE_CLASSES)
        self._caches = {}
        for resource in resources:
            on_change = self._wake.set if resource is PODS else self._changed
            self._caches[resource.plural] = Reflector(self._client, resource, on_change=on_change)
        self._revision = 0  # of everything but pods
        self._judged: dict[
            str, tuple[int, str]
        ] = {}  # by UID of pods that fit nowhere: the revisions of cluster and pod

    def _changed(self) -> None:
        self._revision += 1
        self._wake.set()

    async def run(self) -> None:
        """Place pods until cancelled."""
        async with self._client, asyncio.TaskGroup() as tasks:
            for name, cache in self._caches.items():
                tasks.create_task(cache.run(), name=f"scheduler: watch {name}")
            for cache in self._caches.values():
                await cache.synced.wait()
            while True:
                await self._wake.wait()
                self._wake.clear()
                for pod in self._pending():
                    await self._try(pod)

    async def _try(self, pod: Obj) -> None:
        """Place one pod. After a write that the server rejected, leave the pod alone for RETRY_S."""
        loop, uid = asyncio.get_running_loop(), pod["metadata"]["uid"]
        if self._resting.get(uid, 0.0) > loop.time():
            return
        try:
            await self._place(pod)
        except ApiError:
            self._resting[uid] = loop.time() + RETRY_S
            loop.call_later(RETRY_S, self._wake.set)

    def _items(self, plural: str) -> list[Obj]:
        return [item for _, item in sorted(self._caches[plural].items.items())]

    def _pending(self) -> list[Obj]:
        """Return the pods without a node, oldest first (timestamps have whole seconds only)."""
        pods = []
        for pod in self._caches["pods"].items.values():
            if self._is_to_be_placed(pod):
                pods.append(pod)
        for name in set(self.waiting) - {pod["metadata"]["name"] for pod in pods}:
            del self.waiting[name]
        for uid in self._judged.keys() - {pod["metadata"]["uid"] for pod in pods}:
            del self._judged[uid]
        return pods

    def _is_to_be_placed(self, pod: Obj) -> bool:
        spec = pod["spec"]
        if spec.get("nodeName") or spec.get("schedulingGates") or pod["metadata"].get("deletionTimestamp"):
            return False
        is_pending = (pod.get("status") or {}).get("phase", "Pending") == "Pending"
        return is_pending and self._name in ("", spec.get("schedulerName"))

    def _inventory(self) -> PoolInventory:
        """Return the slices, decoded again only after a change."""
        items = self._items("resourceslices")
        seen = []
        for item in items:
            seen.append((item["metadata"]["uid"], item["metadata"]["resourceVersion"]))
        if self._decoded is None or self._decoded[0] != seen:
            self._decoded = (seen, PoolInventory(items))
        return self._decoded[1]

    def _claims(self, pod: Obj) -> list[Obj] | None:
        """Return the pod's claims in their order; None while one is missing."""
        made = {}
        for s in (pod.get("status") or {}).get("resourceClaimStatuses") or ():
            made[s["name"]] = s.get("resourceClaimName")
        claims = []
        for wanted in pod["spec"].get("resourceClaims") or ():
            name = wanted.get("resourceClaimName") or made.get(wanted["name"])
            claim = self._caches["resourceclaims"].items.get(f"{pod['metadata']['namespace']}/{name}")
            if claim is None:
                return None
            claims.append(claim)
        return claims

    async def _place(self, pod: Obj) -> None:
        claims = self._claims(pod)
        judged = self._revision, pod["metadata"]["resourceVersion"]
        if claims is None or self._judged.get(pod["metadata"]["uid"]) == judged:
            return
        outcome = scheduler.schedule(
            pod,
            claims,
            self._items("nodes"),
            self._inventory(),
            self._items("deviceclasses"),
            allocator.devices_in_use(self._items("resourceclaims")),
            self._memo,
        )
        if isinstance(outcome, Placement):
            await self._bind(pod, claims, outcome)
        else:
            await self._refuse(pod, outcome)
            self._judged[pod["metadata"]["uid"]] = judged

    async def _bind(self, pod: Obj, claims: Sequence[Obj], placement: Placement) -> None:
        meta = pod["metadata"]
        mine = {"resource": "pods", "name": meta["name"], "uid": meta["uid"]}
        for claim in claims:
            await self._reserve(claim, mine, placement.allocations.get(claim["metadata"]["name"]))
        target = {"apiVersion": "v1", "kind": "Node", "name": placement.node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": target}
        await self._client.request("POST", PODS.path(meta["namespace"], meta["name"], "binding"), body=body)
        self.waiting.pop(meta["name"], None)
        self._caches["pods"].items[f"{meta['namespace']}/{meta['name']}"] = {
            **pod,
            "spec": {**pod["spec"], "nodeName": placement.node},
        }

    async def _reserve(self, claim: Obj, pod: Obj, allocation: Mapping[str, Any] | None) -> None:
        meta = claim["metadata"]
        path = RESOURCE_CLAIMS.path(meta["namespace"], meta["name"])
        if allocation is not None and DELETE_PROTECTION not in (meta.get("finalizers") or ()):
            finalizers = [*(meta.get("finalizers") or ()), DELETE_PROTECTION]
            claim = await self._put(path, {**claim, "metadata": {**meta, "finalizers": finalizers}})
        status = dict(claim.get("status") or {})
        if allocation is not None:
            status["allocation"] = allocation
        held = status.get("reservedFor") or ()
        if pod not in held:  # an earlier attempt may have failed after this write
            status["reservedFor"] = [*held, pod]
        await self._put(f"{path}/status", {**claim, "status": status})

    async def _put(self, path: str, body: Obj) -> Obj:
        written: Obj = json.loads(await self._client.request("PUT", path, body=body))
        self._caches["resourceclaims"].remember(written)
        self._revision += 1
        return written

    async def _refuse(self, pod: Obj, outcome: Unschedulable) -> None:
        meta = pod["metadata"]
        self.waiting[meta["name"]] = outcome
        conditions = (pod.get("status") or {}).get("conditions") or ()
        shown = next((each for each in conditions if each["type"] == "PodScheduled"), None)
        if shown is not None and shown.get("message") == outcome.message:
            return
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": outcome.message}
        kept = []
        for c in (pod.get("status") or {}).get("conditions") or ():
            if c["type"] != "PodScheduled":
                kept.append(c)
        with contextlib.suppress(ApiError):  # the pod may be gone; if not, the next attempt handles it
            await self._client.request(
                "PATCH",
                PODS.path(meta["namespace"], meta["name"], "status"),
                body={"status": {"conditions": [*kept, condition]}},
                content_type=MERGE_PATCH,
            )
