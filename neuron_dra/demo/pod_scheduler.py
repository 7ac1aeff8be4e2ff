"""A scheduler for simulated clusters: watches pods and what they need, and writes the decisions of `simulate`.

As kube-scheduler does, it creates the claim for limits that DeviceClasses serve, writes finalizer, allocation and
reservation to each claim, then the binding; a pod that must wait gets the condition PodScheduled=False with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.read.claim_views import ClaimView
from neuron_dra.ask.read.mirror import Changes, KindChanges, Mirror
from neuron_dra.ask.world import extended
from neuron_dra.ask.world.demand import FROM_LIMITS, PodClaim
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj, Wire
from neuron_dra.demo.scheduler_events import SchedulerEvents
from neuron_dra.errors import ApiError, NotServed
from neuron_dra.kube.client import MERGE_PATCH, KubeClient
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from neuron_dra.simulate.scheduler import Placement, Unschedulable

DELETE_PROTECTION: Final = "resource.kubernetes.io/delete-protection"
EXTENDED_RESOURCE: Final = "resource.kubernetes.io/extended-resource-claim"
"""The annotation of a claim that the scheduler has created for limits."""
RETRY_S: Final = 0.2  # pause after a failed write, usually a conflict
_KINDS: Final = {
    "Pod": PODS,
    "ResourceClaim": RESOURCE_CLAIMS,
    "ResourceSlice": RESOURCE_SLICES,
    "Node": NODES,
    "DeviceClass": DEVICE_CLASSES,
}
_VERSIONS: Final = {"Pod": "v1", "Node": "v1"}
_OPTIONAL: Final = {"DeviceTaintRule": DEVICE_TAINT_RULES}
"""Kinds that an API server may not serve."""


class PodScheduler:
    """Run `run()` as a task. `waiting` has, by pod name, the full reason why a pod is not placed."""

    def __init__(self, client: KubeClient, name: str = "", *, posts_events: bool = False) -> None:
        """`name`: the schedulerName of the pods to place."""
        self._client = client
        self._name = name
        self._events = SchedulerEvents(client) if posts_events else None
        self._wake = asyncio.Event()
        self._mirror = Mirror()
        self._world = World(snapshot.build([]), proposes=False)
        self._resting: dict[str, float] = {}  # by pod UID: no attempt before this time of the loop
        self.waiting: dict[str, Unschedulable] = {}
        self._caches = {
            kind: Reflector(
                client,
                resource,
                on_change=self._wake.set if kind == "Pod" else self._changed,
                gives_up_on=(NotServed,) if kind in _OPTIONAL else (),
            )
            for kind, resource in (_KINDS | _OPTIONAL).items()
        }
        self._revision = 0  # of everything but pods without a node
        # By UID of pods that fit nowhere: the revisions of cluster and pod.
        self._judged: dict[str, tuple[int, str]] = {}

    def _changed(self) -> None:
        self._revision += 1
        self._wake.set()

    async def run(self) -> None:
        """Place pods until cancelled."""
        async with self._client, asyncio.TaskGroup() as tasks:
            for kind, cache in self._caches.items():
                tasks.create_task(_follow(cache), name=f"scheduler: watch {kind}")
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

    def _pending(self) -> list[Obj]:
        """Return the pods without a node, oldest first (timestamps have whole seconds only)."""
        pods = []
        for pod in self._caches["Pod"].items.values():
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

    def _seen(self) -> World:
        """Return the cluster as the watches, and this scheduler's own writes, have shown it."""
        changes = []
        for kind, cache in self._caches.items():
            objects: dict[tuple[str, str], Mapping[str, Any] | None] = {}
            for key in sorted(cache.take_touched()):
                namespace, _, name = key.partition("/")
                item = cache.items.get(key)
                version = _VERSIONS.get(kind, "resource.k8s.io/v1")
                objects[namespace, name] = None if item is None else {**item, "apiVersion": version}
            if objects:
                changes.append(KindChanges(kind, objects))
        if changes:
            before = self._world
            self._world = before.following(self._mirror.apply(Changes(changes)), self._mirror.touched)
            before.forget(self._mirror.touched)
        return self._world

    async def _place(self, pod: Obj) -> None:
        uid = pod["metadata"]["uid"]
        judged = self._revision, pod["metadata"]["resourceVersion"]
        if self._judged.get(uid) == judged:
            return
        world = self._seen()
        if (why := _damage(world, pod)) is not None:
            # A real API server rejects such a pod, and this one stores it.
            await self._refuse(pod, Unschedulable(f"the pod cannot be decoded: {why}", error=True))
            self._judged[uid] = judged
            return
        claims = world.claims_of(pod)
        if any(not claim.exists and claim.entry != FROM_LIMITS for claim in claims):
            return  # kube-controller-manager creates it
        outcome = world.attempt(pod)
        if isinstance(outcome, Placement):
            await self._bind(pod, claims, outcome)
        else:
            await self._refuse(pod, outcome)
            self._judged[uid] = judged

    async def _bind(self, pod: Obj, claims: Sequence[PodClaim], placement: Placement) -> None:
        meta = pod["metadata"]
        user = {"resource": "pods", "name": meta["name"], "uid": meta["uid"]}
        for claim in claims:
            if claim.claim is None:
                continue
            allocation = placement.allocations.get(claim.claim["metadata"]["name"])
            stored = dict(claim.claim) if claim.exists else await self._create(pod, claim.claim)
            stored = await self._reserve(stored, user, allocation)
            if claim.entry == FROM_LIMITS:
                await self._show(pod, stored)
        target = {"apiVersion": "v1", "kind": "Node", "name": placement.node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": target}
        await self._client.request("POST", PODS.path(meta["namespace"], meta["name"], "binding"), body=body)
        self.waiting.pop(meta["name"], None)
        bound = {**pod, "spec": {**pod["spec"], "nodeName": placement.node}}
        self._caches["Pod"].put(f"{meta['namespace']}/{meta['name']}", bound)
        self._revision += 1
        if self._events is not None:
            await self._events.scheduled(pod, placement.node)

    async def _create(self, pod: Obj, claim: Wire) -> Obj:
        """Create the claim for the limits of a pod, or return the one that an earlier attempt has created.

        The pod names its claim only after the allocation, so the earlier one is found by its owner.
        """
        meta = pod["metadata"]
        for stored in self._caches["ResourceClaim"].items.values():
            of_limits = EXTENDED_RESOURCE in (stored["metadata"].get("annotations") or {})
            if of_limits and any(owner["uid"] == meta["uid"] for owner in stored["metadata"]["ownerReferences"]):
                return stored
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "generateName": f"{meta['name']}-extended-resources-",
                "namespace": meta["namespace"],
                "annotations": {EXTENDED_RESOURCE: "true"},
                "ownerReferences": [owner],
            },
            "spec": claim["spec"],
        }
        return await self._write("POST", RESOURCE_CLAIMS.path(meta["namespace"]), body)

    async def _show(self, pod: Obj, claim: Obj) -> None:
        """Write into the pod which claim its limits have, and which container has which of its requests."""
        meta = pod["metadata"]
        mappings = extended.mappings(pod, ClaimView.of(claim).requests)
        status = {"resourceClaimName": claim["metadata"]["name"], "requestMappings": mappings}
        await self._client.request(
            "PATCH",
            PODS.path(meta["namespace"], meta["name"], "status"),
            body={"status": {"extendedResourceClaimStatus": status}},
            content_type=MERGE_PATCH,
        )

    async def _reserve(self, claim: Obj, pod: Obj, allocation: Mapping[str, Any] | None) -> Obj:
        meta = claim["metadata"]
        path = RESOURCE_CLAIMS.path(meta["namespace"], meta["name"])
        if allocation is not None and DELETE_PROTECTION not in (meta.get("finalizers") or ()):
            finalizers = [*(meta.get("finalizers") or ()), DELETE_PROTECTION]
            claim = await self._write("PUT", path, {**claim, "metadata": {**meta, "finalizers": finalizers}})
        status = dict(claim.get("status") or {})
        if allocation is not None:
            status["allocation"] = allocation
        reserved = status.get("reservedFor") or ()
        if pod not in reserved:  # an earlier attempt may have failed after this write
            status["reservedFor"] = [*reserved, pod]
        return await self._write("PUT", f"{path}/status", {**claim, "status": status})

    async def _write(self, method: str, path: str, claim: Obj) -> Obj:
        """Write a claim, remember what the server has stored, and return it."""
        written: Obj = json.loads(await self._client.request(method, path, body=claim))
        self._caches["ResourceClaim"].remember(written)
        self._revision += 1
        return written

    async def _refuse(self, pod: Obj, outcome: Unschedulable) -> None:
        meta = pod["metadata"]
        self.waiting[meta["name"]] = outcome
        if self._events is not None:
            await self._events.failed(pod, outcome.message)
        conditions = (pod.get("status") or {}).get("conditions") or ()
        shown = next((condition for condition in conditions if condition["type"] == "PodScheduled"), None)
        if shown is not None and shown.get("message") == outcome.message:
            return
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": outcome.message}
        kept = [other_condition for other_condition in conditions if other_condition["type"] != "PodScheduled"]
        with contextlib.suppress(ApiError):  # the pod may be gone; if not, the next attempt handles it
            await self._client.request(
                "PATCH",
                PODS.path(meta["namespace"], meta["name"], "status"),
                body={"status": {"conditions": [*kept, condition]}},
                content_type=MERGE_PATCH,
            )


async def _follow(cache: Reflector) -> None:
    """Follow the objects of a kind; a kind that the server does not have has none."""
    try:
        await cache.run()
    except NotServed:
        cache.synced.set()


def _damage(world: World, pod: Wire) -> str | None:
    """Return why a pod cannot be decoded; None if it can."""
    key = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    for damaged in world.snapshot.damaged:
        if (damaged.kind, damaged.key) == ("Pod", key) and not damaged.paths:
            return damaged.why
    return None
