"""Performs the actions of a plan: one request each, guarded so that the API server rejects outdated ones."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping, Set
from typing import Any, Final, Literal

from controller.apply import rejections
from controller.apply.claim_pods import ClaimPods
from controller.apply.claim_reads import ClaimReads
from controller.apply.fence import Fence, unelected
from controller.apply.outbox import Answer
from controller.apply.pod_checks import PodLooks
from controller.apply.priorities import Priorities
from controller.apply.refused_pod_eviction import Refusals
from controller.apply.rendezvous_service import RendezvousServices
from controller.apply.schema_check import Schemas
from controller.apply.sender import Sender, answer_of
from controller.observe.caches import Caches
from controller.timing import Timing
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.errors import ApiError, Conflict, Forbidden, Invalid, NotFound, TooManyRequests, Unavailable
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.events import EventRecorder, reference
from neuron_dra.kube.objects import MALFORMED
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import (
    CLAIM_TEMPLATES,
    NEURON_ULTRASERVERS,
    NEURON_WORKLOADS,
    NODES,
    Resource,
)
from neuron_dra.planner.decisions.actions import (
    Action,
    CreateTemplate,
    CreateUltraServer,
    DeleteTemplate,
    DeleteUltraServer,
    Evict,
    LabelNode,
    SetFinalizers,
    SetUltraServerFinalizers,
    UpdateTopology,
    WriteUltraServerStatus,
    WriteWorkloadStatus,
)
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed.model import API_VERSION, ENDS_SOON, EXPIRED, FINALIZER, IN_USE, condition
from neuron_dra.planner.plan import block_end
from neuron_dra.planner.plan.expiry import SOON

log = logging.getLogger(__name__)


READ_AGAIN: Final = (SetFinalizers, CreateTemplate, DeleteTemplate, WriteWorkloadStatus, WriteUltraServerStatus)
"""The writes after which, if they had no answer, the object is read before the next one. Others may be repeated."""
PODS_TOLD_AT_MOST: Final = 256
"""The pods of a workload that get an Event before the end of a capacity block; the others find it at the workload."""


class Applier:
    """Writes to the API server, and puts the answers into the caches, so that the next plan includes them."""

    def __init__(
        self,
        client: KubeClient,
        caches: Caches[FleetIndex],
        events: EventRecorder,
        timing: Timing,
        fence: Fence | None = None,
    ) -> None:
        """Every write is checked by `fence` immediately before it is sent."""
        self._client = client
        self.fence = fence = fence or unelected()
        self._caches = caches
        self._events = events
        self.sender = sender = Sender(fence, timing.outbox)
        self.schemas = Schemas(client, timing.writes, sender)
        self.refusals = Refusals(client, events, timing.pods, sender)
        self.claim_pods = ClaimPods(client, timing.pods, sender)
        self.claim_reads = ClaimReads(caches, timing.pods, sender)
        self.priorities = Priorities(client, timing.writes, sender)
        self.pod_looks = PodLooks(client, events, timing.pods, sender)
        self.rendezvous = RendezvousServices(client, events, timing.rendezvous, sender)
        self.blocked_evictions: dict[str, str] = {}
        self.on_eviction: Callable[[str], None] = lambda result: None

    def end_waits(self) -> None:
        """Do at once what waits for a time: the clock was set back."""
        looks = (self.refusals, self.pod_looks, self.claim_pods, self.claim_reads, self.rendezvous)
        for component in (self.sender, self.schemas, self.priorities, *looks):
            component.end_waits()

    async def perform(self, action: Action, now: datetime.datetime, term: int | None = None) -> None:
        """Make one write that was decided in `term`, by default that of the pass.

        Raises ApiError; Conflict and NotFound mean that the plan is out of date.
        """
        self.fence.check(term)
        match action:
            case CreateUltraServer(body=body):
                await self._create_ultraserver(body)
            case UpdateTopology(name=name, version=version, topology=topology):
                patch = _guarded(version, {"spec": {"topology": [dict(entry) for entry in topology]}})
                await self._patch(self._caches.ultraservers, NEURON_ULTRASERVERS, NAMESPACE, name, patch)
            case DeleteUltraServer(name=name, uid=uid, version=version):
                await self._client.delete(NEURON_ULTRASERVERS, NAMESPACE, name, uid=uid, version=version)
            case WriteUltraServerStatus(name=name, version=version, before=before, status=status):
                if action.finalizers is not None:
                    version = await self._write_finalizers(name, version, action.finalizers)
                patch = _guarded(version, {"status": _replacing(before, status)})
                self.fence.check(term)  # again: this action may be two writes
                await self._patch(self._caches.ultraservers, NEURON_ULTRASERVERS, NAMESPACE, name, patch, "status")
            case SetUltraServerFinalizers(name=name, version=version, finalizers=finalizers):
                await self._write_finalizers(name, version, finalizers)
            case LabelNode(name=name, uid=uid, labels=labels):
                patch = {"metadata": {"uid": uid, "labels": dict(labels)}}
                await self._patch(self._caches.nodes, NODES, "", name, patch)
            case SetFinalizers():
                await self._set_finalizers(action)
            case CreateTemplate(body=body):
                meta = body["metadata"]
                stored = await self._client.create(CLAIM_TEMPLATES, meta["namespace"], body)
                _remember(self._caches.templates, meta["namespace"], meta["name"], stored)
            case DeleteTemplate(namespace=namespace, name=name, uid=uid):
                await self._client.delete(CLAIM_TEMPLATES, namespace, name, uid=uid)
            case Evict():
                await self._evict(action)
            case WriteWorkloadStatus():
                await self._write_workload_status(action, now)
            case _:
                raise TypeError(f"no request for {type(action).__name__}")

    async def _patch(
        self,
        cache: Reflector,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        subresource: str = "",
        *,
        always: bool = False,
    ) -> dict[str, Any]:
        """Patch an object and cache the result. For our own kinds, check that the server kept every field."""
        is_own_kind = resource in (NEURON_ULTRASERVERS, NEURON_WORKLOADS)
        if is_own_kind and not always:
            self.schemas.refuse(resource)
        stored = await self._client.patch(resource, namespace, name, patch, subresource)
        _remember(cache, namespace, name, stored)
        if not stored["metadata"].get("finalizers") and stored["metadata"].get("deletionTimestamp"):
            cache.forget(stored)  # it goes with its last finalizer; the watch corrects this if not
        if is_own_kind:
            self.schemas.check(resource, patch, stored)
        return stored

    async def _create_ultraserver(self, body: Mapping[str, Any]) -> None:
        self.schemas.refuse(NEURON_ULTRASERVERS)
        stored = await self._client.create(NEURON_ULTRASERVERS, NAMESPACE, body)
        _remember(self._caches.ultraservers, NAMESPACE, body["metadata"]["name"], stored)
        self.schemas.check(NEURON_ULTRASERVERS, body, stored)

    async def _write_finalizers(self, name: str, version: str, finalizers: tuple[str, ...]) -> str:
        """Write the finalizers of a NeuronUltraServer; return its new resourceVersion."""
        patch = _guarded(version, {"metadata": {"finalizers": list(finalizers)}})
        stored = await self._patch(self._caches.ultraservers, NEURON_ULTRASERVERS, NAMESPACE, name, patch)
        return str(stored["metadata"]["resourceVersion"])

    async def _set_finalizers(self, action: SetFinalizers) -> None:
        patch = _guarded(action.version, {"metadata": {"finalizers": list(action.finalizers)}})
        stored = await self._client.patch(NEURON_WORKLOADS, action.namespace, action.name, patch)
        _remember(self._caches.workloads, action.namespace, action.name, stored)
        if FINALIZER not in action.finalizers:
            self._caches.workloads.forget(stored)  # it goes with its last finalizer; the watch corrects this if not

    def _tell_of_end(self, action: WriteWorkloadStatus, about: Mapping[str, str], now: datetime.datetime) -> None:
        """Post Events if the capacity block of a workload ends soon, or before the workload."""
        ends, before = condition(action.status, ENDS_SOON), condition(action.before, ENDS_SOON)
        reason, text = str(ends.get("reason")), str(ends.get("message"))
        if reason == before.get("reason") or reason not in (block_end.SOON, block_end.TOO_SOON):
            return
        self._events.post(about, "Warning", reason, text, now)
        for name, uid in action.told[:PODS_TOLD_AT_MOST]:
            self._events.post(reference("v1", "Pod", action.namespace, name, uid), "Warning", reason, text, now)

    async def _write_workload_status(self, action: WriteWorkloadStatus, now: datetime.datetime) -> None:
        """Write a workload's status, log it, and post Events about what changed."""
        patch = _guarded(action.version, {"status": _replacing(action.before, action.status)})
        await self._patch(
            self._caches.workloads,
            NEURON_WORKLOADS,
            action.namespace,
            action.name,
            patch,
            "status",
            always=action.explains_stop,
        )
        before, after = condition(action.before, "Ready"), condition(action.status, "Ready")
        log.info(
            "workload",
            extra={
                "workload": f"{action.namespace}/{action.name}",
                "state": action.status["state"],
                "reason": after.get("reason"),
                "text": after.get("message"),
            },
        )
        about = reference(API_VERSION, "NeuronUltraServerWorkload", action.namespace, action.name, action.uid)
        fault = _degraded(action.status)
        if fault is not None and fault != _degraded(action.before):
            self._events.post(about, "Warning", *fault, now)
        if fault is None and _degraded(action.before) is not None:
            text = "the reserved nodes have no fault any more, or were replaced"
            self._events.post(about, "Normal", "Recovered", text, now)
        use, used = condition(action.status, IN_USE), condition(action.before, IN_USE)
        if use.get("reason") != used.get("reason") and use.get("reason") in (SOON, EXPIRED):
            self._events.post(about, "Warning", str(use["reason"]), str(use["message"]), now)
        self._tell_of_end(action, about, now)
        # What has expired was told before its nodes were released.
        if before.get("reason") != after.get("reason") != EXPIRED:
            kind: Literal["Normal", "Warning"] = "Warning" if action.warning else "Normal"
            self._events.post(about, kind, str(after.get("reason")), str(after.get("message")), now)

    async def _evict(self, action: Evict) -> None:
        """Request an eviction; if it is rejected, record the reason."""
        try:
            await self._client.evict(action.namespace, action.name, uid=action.uid)
        except (NotFound, Conflict):
            self.blocked_evictions.pop(action.uid, None)  # the pod is gone, or another has its name
            self.on_eviction("gone")
        except TooManyRequests as err:
            self.blocked_evictions[action.uid] = "; ".join(err.causes) or str(err)
            self.on_eviction("refused")
        except (Forbidden, Invalid) as err:  # an admission policy, or a missing right
            self.blocked_evictions[action.uid] = str(err)
            self.on_eviction("refused")
        else:
            self.blocked_evictions.pop(action.uid, None)
            self.on_eviction("evicted")

    async def read_again(self, action: Action) -> Answer:
        """Put what is stored of the object of an action into its cache: a write of it had no answer."""
        resource, cache = CLAIM_TEMPLATES, self._caches.templates
        match action:
            case CreateTemplate(body=body):
                namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
            case DeleteTemplate(namespace=namespace, name=name):
                pass
            case SetFinalizers(namespace=namespace, name=name) | WriteWorkloadStatus(namespace=namespace, name=name):
                resource, cache = NEURON_WORKLOADS, self._caches.workloads
            case WriteUltraServerStatus(name=name):
                namespace, resource, cache = NAMESPACE, NEURON_ULTRASERVERS, self._caches.ultraservers
            case _:
                raise TypeError(f"{type(action).__name__} may be repeated")
        try:
            # Not a GET, which older ClusterRoles do not allow.
            async for page in self._client.list(resource, namespace, fieldSelector=f"metadata.name={name}"):
                for raw in page.items:
                    cache.remember_raw(raw)
        except ApiError as err:
            return answer_of(err)
        except MALFORMED as err:
            log.warning(
                "an object could not be read again", extra={"object": f"{namespace}/{name}", "error": repr(err)}
            )
            return Answer.NONE
        return Answer.DECIDED

    def tell_rejected(self, action: Action, err: Forbidden | Invalid, now: datetime.datetime) -> None:
        """Post an Event about a write that was rejected, unless a condition says it (`rejections`)."""
        about = rejections.event_about(action)
        if about is not None:
            reason, text = rejections.event_text(action, err)
            self._events.post(about, "Warning", reason, text, now)

    def keep_blocked(self, uids: Set[str]) -> None:
        """Remove the records of rejected evictions, except for these pods."""
        for uid in [uid for uid in self.blocked_evictions if uid not in uids]:
            del self.blocked_evictions[uid]


def _remember(cache: Reflector, namespace: str, name: str, stored: dict[str, Any]) -> None:
    """Cache the answer to a write. Raises Unavailable if it is not the object but, for example, a proxy's page."""
    meta = stored.get("metadata")
    identity: tuple[Any, ...] = ()
    if isinstance(meta, Mapping):
        identity = (meta.get("namespace") or "", meta.get("name"))
    if identity != (namespace, name) or not isinstance(meta, Mapping) or not isinstance(meta.get("uid"), str):
        raise Unavailable(f"the API server's answer to a write of {name} is not that object")
    try:
        cache.remember(stored)
    except MALFORMED as err:
        raise Unavailable(f"the API server's answer to a write of {name} cannot be read: {err!r}") from err


def _guarded(version: str, patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch with a resourceVersion: the server rejects it if the object has changed."""
    return {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": version}}


def _replacing(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that results in exactly `after`: removed fields are null."""
    return {**{name: None for name in before if name not in after}, **after}


def _degraded(status: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return reason and message of the condition Degraded; None unless it is True."""
    degraded = condition(status, "Degraded")
    if degraded.get("status") == "True":
        return (str(degraded.get("reason")), str(degraded.get("message")))
    return None
