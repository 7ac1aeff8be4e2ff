"""Performs a plan's actions: one request each, guarded so that what was planned on old knowledge is refused."""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from controller.actions import (
    Action,
    CreateTemplate,
    CreateUltraServer,
    DeleteTemplate,
    DeleteUltraServer,
    Evict,
    LabelNode,
    SetFinalizers,
    UpdateTopology,
    WriteUltraServerStatus,
    WriteWorkloadStatus,
)
from controller.caches import Caches
from controller.model import API_VERSION, FINALIZER
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.errors import Conflict, NotFound, TooManyRequests
from neuron_dra.kube.client import MERGE_PATCH, KubeClient
from neuron_dra.kube.events import EventRecorder
from neuron_dra.kube.requests import (
    CLAIM_TEMPLATES,
    NEURON_ULTRASERVERS,
    NEURON_WORKLOADS,
    NODES,
    PODS,
    Resource,
)

log = logging.getLogger(__name__)

EVICT_AGAIN_S: Final = 5.0  # a pod takes its time to end, and a budget to allow it


class Applier:
    """Writes to the API server, and puts the answers into the caches, so that the next plan knows of them."""

    def __init__(self, client: KubeClient, caches: Caches, events: EventRecorder) -> None:
        self._client = client
        self._caches = caches
        self._events = events
        self._evicted: dict[str, datetime.datetime] = {}
        self.blocked_evictions: dict[str, str] = {}
        self.on_eviction: Callable[[str], None] = lambda result: None

    async def perform(self, action: Action, now: datetime.datetime) -> None:
        """Make one write. Raises ApiError; Conflict and NotFound say that the plan is out of date."""
        match action:
            case CreateUltraServer(body=body):
                self._caches.ultraservers.remember(await self._client.create(NEURON_ULTRASERVERS, NAMESPACE, body))
            case UpdateTopology(name=name, version=version, topology=topology):
                patch = _guarded(version, {"spec": {"topology": [dict(entry) for entry in topology]}})
                self._caches.ultraservers.remember(await self._patch(NEURON_ULTRASERVERS, NAMESPACE, name, patch))
            case DeleteUltraServer(name=name, uid=uid, version=version):
                await self._client.delete(NEURON_ULTRASERVERS, NAMESPACE, name, uid=uid, version=version)
            case WriteUltraServerStatus(name=name, version=version, before=before, status=status):
                patch = _guarded(version, {"status": _replacing(before, status)})
                stored = await self._patch(NEURON_ULTRASERVERS, NAMESPACE, name, patch, "status")
                self._caches.ultraservers.remember(stored)
            case LabelNode(name=name, uid=uid, labels=labels):
                patch = {"metadata": {"uid": uid, "labels": dict(labels)}}
                self._caches.nodes.remember(await self._patch(NODES, "", name, patch))
            case SetFinalizers():
                await self._set_finalizers(action)
            case CreateTemplate(body=body):
                stored = await self._client.create(CLAIM_TEMPLATES, body["metadata"]["namespace"], body)
                self._caches.templates.remember(stored)
            case DeleteTemplate(namespace=namespace, name=name, uid=uid):
                await self._client.delete(CLAIM_TEMPLATES, namespace, name, uid=uid)
            case Evict():
                await self._evict(action, now)
            case WriteWorkloadStatus():
                await self._write_workload_status(action, now)
            case _:
                raise TypeError(f"nobody performs {type(action).__name__}")

    async def _patch(
        self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any], subresource: str = ""
    ) -> dict[str, Any]:
        path = resource.path(namespace, name, subresource)
        raw = await self._client.request("PATCH", path, body=patch, content_type=MERGE_PATCH)
        stored: dict[str, Any] = json.loads(raw)
        return stored

    async def _set_finalizers(self, action: SetFinalizers) -> None:
        patch = _guarded(action.version, {"metadata": {"finalizers": list(action.finalizers)}})
        stored = await self._patch(NEURON_WORKLOADS, action.namespace, action.name, patch)
        if FINALIZER in action.finalizers:
            self._caches.workloads.remember(stored)
        else:
            self._caches.workloads.forget(stored)  # it goes with its last finalizer; the watch tells if not

    async def _write_workload_status(self, action: WriteWorkloadStatus, now: datetime.datetime) -> None:
        patch = _guarded(action.version, {"status": _replacing(action.before, action.status)})
        stored = await self._patch(NEURON_WORKLOADS, action.namespace, action.name, patch, "status")
        self._caches.workloads.remember(stored)
        before, after = _ready(action.before), _ready(action.status)
        log.info(
            "workload",
            extra={
                "workload": f"{action.namespace}/{action.name}",
                "state": action.status["state"],
                "reason": after.get("reason"),
                "text": after.get("message"),
            },
        )
        about = {
            "apiVersion": API_VERSION,
            "kind": "NeuronUltraServerWorkload",
            "namespace": action.namespace,
            "name": action.name,
            "uid": action.uid,
        }
        wrong = _degraded(action.status)
        if wrong is not None and wrong != _degraded(action.before):
            await self._events.post(about, "Warning", *wrong, now)
        if wrong is None and _degraded(action.before) is not None:
            text = "what was wrong with the reserved nodes is over, or left behind"
            await self._events.post(about, "Normal", "Recovered", text, now)
        if before.get("reason") != after.get("reason"):
            kind: Literal["Normal", "Warning"] = "Warning" if action.warning else "Normal"
            await self._events.post(about, kind, str(after.get("reason")), str(after.get("message")), now)

    async def _evict(self, action: Evict, now: datetime.datetime) -> None:
        """Ask for an eviction; not again for a while, whatever the answer was."""
        last = self._evicted.get(action.uid)
        if last is not None and now < last + datetime.timedelta(seconds=EVICT_AGAIN_S):
            return
        self._evicted = {
            uid: moment for uid, moment in self._evicted.items() if now < moment + datetime.timedelta(minutes=10)
        } | {action.uid: now}
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": action.name, "namespace": action.namespace},
            "deleteOptions": {"preconditions": {"uid": action.uid}},
        }
        try:
            await self._client.request("POST", PODS.path(action.namespace, action.name, "eviction"), body=body)
        except (NotFound, Conflict):
            self.blocked_evictions.pop(action.uid, None)  # gone already, or another pod under that name
            self.on_eviction("gone")
        except TooManyRequests as err:
            self.blocked_evictions[action.uid] = "; ".join(err.causes) or str(err)
            self.on_eviction("refused")
        else:
            self.blocked_evictions.pop(action.uid, None)
            self.on_eviction("evicted")


def _guarded(version: str, patch: Mapping[str, Any]) -> dict[str, Any]:
    """Have the server refuse the patch if the object is no longer the one that was read."""
    return {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": version}}


def _replacing(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that leaves exactly `after`: fields that are to go are null."""
    return {**{name: None for name in before if name not in after}, **after}


def _ready(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((c for c in status.get("conditions") or [] if c.get("type") == "Ready"), {})


def _degraded(status: Mapping[str, Any]) -> tuple[str, str] | None:
    found: Mapping[str, Any] = next((c for c in status.get("conditions") or [] if c.get("type") == "Degraded"), {})
    return (str(found.get("reason")), str(found.get("message"))) if found.get("status") == "True" else None
