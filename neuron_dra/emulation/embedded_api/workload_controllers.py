"""Deployments, ReplicaSets and DaemonSets: creates, replaces and counts pods, as kube-controller-manager does.

Left out: a Deployment's pause, rollback and minReadySeconds. Nothing reads the clock but for timestamps.

Source: kubernetes@v1.37.0 pkg/controller/{replicaset,deployment,daemon}.
"""

from __future__ import annotations

import abc
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import bodies
from neuron_dra.emulation.embedded_api.errors import StatusError
from neuron_dra.emulation.embedded_api.history import Event
from neuron_dra.emulation.embedded_api.resources import EmbeddedResource
from neuron_dra.emulation.embedded_api.store import DeleteOptions, ObjectStore
from neuron_dra.simulate import model, nodes

TEMPLATE_HASH: Final = "pod-template-hash"
REVISION: Final = "deployment.kubernetes.io/revision"
_KEPT_REPLICA_SETS: Final = 10  # the default of revisionHistoryLimit
ENDED: Final = ("Succeeded", "Failed")


class WorkloadController(abc.ABC):
    """What the controllers have in common: they find the objects that they own, create pods, and write a status."""

    kind = ""
    plural = ""
    dependents = "pods"

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._resource = store.registry.named(self.plural)
        self._pods = store.registry.named("pods")
        self._owned = store.registry.named(self.dependents)

    def __call__(self, event: Event) -> None:
        meta = event.obj["metadata"]
        if event.resource is self._resource and event.type != "DELETED":
            self._sync_named(meta["namespace"], meta["name"])
        elif event.resource is self._owned:
            for source in (event.old, event.obj):
                owner = controller_of(source or {})
                if owner and owner["kind"] == self.kind:
                    self._sync_named(meta["namespace"], owner["name"])

    def _sync_named(self, namespace: str, name: str) -> None:
        obj = self._store.find(self._resource, namespace, name)
        if obj is None or obj["metadata"].get("deletionTimestamp"):
            return
        try:
            self.sync(obj)
        except StatusError as error:  # of a namespace that ends, or of a template that is not valid
            self._warn(obj, str(error))

    @abc.abstractmethod
    def sync(self, obj: Obj) -> None:
        """Bring the dependents and the status of an object closer to its spec."""

    def of(self, obj: Obj) -> list[Obj]:
        """Return the dependents that an object controls, oldest first."""
        meta = obj["metadata"]
        owned = []
        for dependent in self._store.list(self._owned, meta["namespace"]):
            if (controller_of(dependent) or {}).get("uid") == meta["uid"]:
                owned.append(dependent)
        return sorted(owned, key=lambda dependent: int(dependent["metadata"]["resourceVersion"]))

    def create_pod(self, owner: Obj, template: Obj, **metadata: Any) -> None:
        """Create a pod from a template."""
        pod = bodies.copied({"metadata": template.get("metadata") or {}, "spec": template["spec"]})
        meta = owner["metadata"]
        pod["metadata"] = {
            "generateName": f"{meta['name']}-",
            **pod["metadata"],
            **metadata,
            "ownerReferences": [owner_reference(owner)],
        }
        self._store.create(self._pods, meta["namespace"], pod)

    def delete(self, resource: EmbeddedResource, obj: Obj) -> None:
        """Delete an object."""
        meta = obj["metadata"]
        self._store.delete(resource, meta["namespace"], meta["name"], DeleteOptions(uid=meta["uid"]))

    def write_status(self, obj: Obj, status: Obj) -> None:
        """Write a status unless the object has it already."""
        meta = obj["metadata"]
        status = {**status, "observedGeneration": meta["generation"]}
        if status != (obj.get("status") or {}):
            changed = {**obj, "status": status}
            self._store.update(self._resource, meta["namespace"], meta["name"], changed, subresource="status")

    def condition(self, obj: Obj, kind: str, *, is_true: bool, reason: str, message: str) -> Obj:
        """Return a condition, with the time of the one that the object has if the status of both is the same."""
        status = "True" if is_true else "False"
        before = next((condition for condition in conditions_of(obj) if condition["type"] == kind), {})
        since = before["lastTransitionTime"] if before.get("status") == status else self._store.timestamp()
        return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}

    def _warn(self, obj: Obj, message: str) -> None:
        """Post that a pod cannot be created, once for each generation of the object."""
        meta = obj["metadata"]
        name = f"{meta['name']}.{meta['uid'][:8]}-{meta['generation']}"
        events = self._store.registry.named("events")
        now = self._store.timestamp()
        about = {key: meta[key] for key in ("namespace", "name", "uid")}
        body = {
            "metadata": {"name": name},
            "involvedObject": {"apiVersion": obj["apiVersion"], "kind": self.kind, **about},
            "type": "Warning",
            "reason": "FailedCreate",
            "message": f"Error creating: {message}",
            "source": {"component": f"{self.kind.lower()}-controller"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        if self._store.find(events, meta["namespace"], name) is None:
            try:
                self._store.create(events, meta["namespace"], body)
            except StatusError:
                return  # the namespace ends


class ReplicaSetController(WorkloadController):
    kind, plural = "ReplicaSet", "replicasets"

    def sync(self, obj: Obj) -> None:
        """Create the pods that are missing, or delete those that are too many."""
        replicas = int(obj["spec"].get("replicas", 1))
        pods = [pod for pod in self.of(obj) if is_active(pod)]
        self.write_status(obj, _replica_status(pods))
        for pod in sorted(pods, key=_keep_last)[: max(0, len(pods) - replicas)]:
            self.delete(self._pods, pod)
        for _ in range(replicas - len(pods)):
            self.create_pod(obj, obj["spec"]["template"])


class DeploymentController(WorkloadController):
    kind, plural, dependents = "Deployment", "deployments", "replicasets"

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        owner = controller_of(event.obj)
        if event.resource is self._pods and event.type == "DELETED" and owner and owner["kind"] == "ReplicaSet":
            # Recreate waits for pods that a ReplicaSet counts no more.
            namespace = event.obj["metadata"]["namespace"]
            deployment = controller_of(self._store.find(self._owned, namespace, owner["name"]) or {})
            if deployment:
                self._sync_named(namespace, deployment["name"])

    def sync(self, obj: Obj) -> None:
        """Move the pods to the ReplicaSet of the present template, as the strategy says."""
        spec, sets = obj["spec"], self.of(obj)
        replicas = int(spec.get("replicas", 1))
        digest = template_hash(spec["template"])
        of_template = (
            replica_set for replica_set in sets if replica_set["metadata"]["labels"].get(TEMPLATE_HASH) == digest
        )
        new = next(of_template, None)
        old = [replica_set for replica_set in sets if replica_set is not new]
        if new is None:
            new = self._create(obj, digest, 1 + max(map(_revision, sets), default=0))
        elif old and _revision(new) < max(map(_revision, old)):  # an earlier template is back
            new = self._annotate(new, 1 + max(map(_revision, old)))
        strategy = spec.get("strategy") or {}
        if strategy.get("type") == "Recreate":
            self._recreate(new, old, replicas)
        else:
            self._roll(new, old, replicas, strategy.get("rollingUpdate") or {})
        idle = []
        for replica_set in old:
            if not replica_set["spec"].get("replicas") and not _counted(replica_set, "replicas"):
                idle.append(replica_set)
        surplus = len(idle) - int(spec.get("revisionHistoryLimit", _KEPT_REPLICA_SETS))
        for replica_set in sorted(idle, key=_revision)[: max(0, surplus)]:
            self.delete(self._owned, replica_set)
        self._report(obj, replicas, digest)

    def _create(self, obj: Obj, digest: str, revision: int) -> Obj:
        meta, spec = obj["metadata"], obj["spec"]
        template = bodies.copied(spec["template"])
        labels = {**((template.get("metadata") or {}).get("labels") or {}), TEMPLATE_HASH: digest}
        template["metadata"] = {**(template.get("metadata") or {}), "labels": labels}
        selector = {"matchLabels": {**((spec.get("selector") or {}).get("matchLabels") or {}), TEMPLATE_HASH: digest}}
        replica_set = {
            "metadata": {
                "name": f"{meta['name']}-{digest}",
                "labels": labels,
                "annotations": {REVISION: str(revision)},
                "ownerReferences": [owner_reference(obj)],
            },
            "spec": {"replicas": 0, "selector": selector, "template": template},
        }
        return self._store.create(self._owned, meta["namespace"], replica_set)

    def _annotate(self, replica_set: Obj, revision: int) -> Obj:
        meta = replica_set["metadata"]
        annotations = {**(meta.get("annotations") or {}), REVISION: str(revision)}
        changed = {**replica_set, "metadata": {**meta, "annotations": annotations}}
        return self._store.update(self._owned, meta["namespace"], meta["name"], changed)

    def _scale(self, replica_set: Obj, replicas: int) -> None:
        if replica_set["spec"].get("replicas") != replicas:
            meta = replica_set["metadata"]
            changed = {**replica_set, "spec": {**replica_set["spec"], "replicas": replicas}}
            self._store.update(self._owned, meta["namespace"], meta["name"], changed)

    def _recreate(self, new: Obj, old: Sequence[Obj], replicas: int) -> None:
        """Start the new pods when all old ones are gone, also those that still end."""
        for replica_set in old:
            self._scale(replica_set, 0)
        uids = {replica_set["metadata"]["uid"] for replica_set in old}
        pods = self._store.list(self._pods, new["metadata"]["namespace"])
        is_left = any(
            (controller_of(pod) or {}).get("uid") in uids and (pod.get("status") or {}).get("phase") not in ENDED
            for pod in pods
        )
        if not is_left:
            self._scale(new, replicas)

    def _roll(self, new: Obj, old: Sequence[Obj], replicas: int, limits: Mapping[str, Any]) -> None:
        """Start as many new pods, and end as many old ones, as maxSurge and maxUnavailable allow now."""
        surge = _share(limits.get("maxSurge", "25%"), replicas, up=True)
        unavailable = _share(limits.get("maxUnavailable", "25%"), replicas, up=False)
        if not surge and not unavailable:
            unavailable = 1
        total = sum(int(replica_set["spec"].get("replicas") or 0) for replica_set in (new, *old))
        new_replicas = int(new["spec"].get("replicas") or 0)
        room = max(0, replicas + surge - total)
        self._scale(new, min(replicas, new_replicas + room))
        spare = sum(map(_available, (new, *old))) - (replicas - unavailable)
        for replica_set in old:
            count = int(replica_set["spec"].get("replicas") or 0)
            sick = count - _available(replica_set)  # these serve nobody: they go first
            ends = min(count, sick + max(0, spare))
            spare -= ends - sick
            self._scale(replica_set, count - ends)

    def _report(self, obj: Obj, replicas: int, digest: str) -> None:
        sets = self.of(obj)
        new = [replica_set for replica_set in sets if replica_set["metadata"]["labels"].get(TEMPLATE_HASH) == digest]

        def total(field: str, of: Sequence[Obj] = sets) -> int:
            return sum(_counted(replica_set, field) for replica_set in of)

        available, updated = total("availableReplicas"), total("replicas", new)
        limits = (obj["spec"].get("strategy") or {}).get("rollingUpdate") or {}
        least = replicas - _share(limits.get("maxUnavailable", "25%"), replicas, up=False)
        is_whole = updated == replicas == available == total("replicas")
        name = f'ReplicaSet "{obj["metadata"]["name"]}-{digest}"'
        conditions = [
            self.condition(
                obj,
                "Available",
                is_true=available >= least,
                reason="MinimumReplicasAvailable" if available >= least else "MinimumReplicasUnavailable",
                message=f"Deployment {'has' if available >= least else 'does not have'} minimum availability.",
            ),
            self.condition(
                obj,
                "Progressing",
                is_true=True,
                reason="NewReplicaSetAvailable" if is_whole else "ReplicaSetUpdated",
                message=f"{name} {'has successfully progressed' if is_whole else 'is progressing'}.",
            ),
        ]
        counts = {
            "replicas": total("replicas"),
            "updatedReplicas": updated,
            "readyReplicas": total("readyReplicas"),
            "availableReplicas": available,
            "unavailableReplicas": max(0, replicas - available),
        }
        self.write_status(obj, {**{key: count for key, count in counts.items() if count}, "conditions": conditions})


class DaemonSetController(WorkloadController):
    kind, plural = "DaemonSet", "daemonsets"

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._nodes = store.registry.named("nodes")

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if event.resource is self._nodes and event.type != "MODIFIED":
            for obj in self._store.list(self._resource):
                self._sync_named(obj["metadata"]["namespace"], obj["metadata"]["name"])

    def sync(self, obj: Obj) -> None:
        """Create a pod for each node that the template selects. It is bound at once; the real one leaves that to the
        scheduler."""
        template = obj["spec"]["template"]
        node_names = []
        for wire in self._store.list(self._nodes):
            if nodes.is_selected(template, model.node(wire)):
                node_names.append(wire["metadata"]["name"])
        pods = [pod for pod in self.of(obj) if is_active(pod) and pod["spec"].get("nodeName") in node_names]
        served = {pod["spec"]["nodeName"] for pod in pods}
        ready = sum(map(is_ready, pods))
        status = {
            "desiredNumberScheduled": len(node_names),
            "currentNumberScheduled": len(pods),
            "updatedNumberScheduled": len(pods),
            "numberMisscheduled": 0,
            "numberReady": ready,
            "numberAvailable": ready,
        }
        self.write_status(obj, status)
        for node in node_names:
            if node not in served:
                self.create_pod(obj, {**template, "spec": {**template["spec"], "nodeName": node}})


def controller_of(obj: Obj) -> Obj | None:
    """Return the owner reference of an object's controller, if it has one."""
    owners = (obj.get("metadata") or {}).get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def owner_reference(obj: Obj) -> Obj:
    """Return the reference of a dependent to the object that controls it."""
    meta = obj["metadata"]
    named = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": meta["name"], "uid": meta["uid"]}
    return {**named, "controller": True, "blockOwnerDeletion": True}


def conditions_of(obj: Obj) -> Sequence[Obj]:
    """Return the conditions in the status of an object."""
    return (obj.get("status") or {}).get("conditions") or ()


def is_active(pod: Obj) -> bool:
    """Return True for a pod that has not ended, and is not to end."""
    return (pod.get("status") or {}).get("phase") not in ENDED and not pod["metadata"].get("deletionTimestamp")


def is_ready(pod: Obj) -> bool:
    """Return True for a pod whose containers are ready."""
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions_of(pod))


def template_hash(template: Obj) -> str:
    """Return the label by which a Deployment tells the pods of different templates apart."""
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()
    return digest[:10]


def _replica_status(pods: Sequence[Obj]) -> Obj:
    ready = sum(map(is_ready, pods))
    counts = {"readyReplicas": ready, "availableReplicas": ready, "fullyLabeledReplicas": len(pods)}
    return {"replicas": len(pods), **{key: count for key, count in counts.items() if count}}


def _keep_last(pod: Obj) -> tuple[bool, bool, int]:
    """Return the order in which pods are given up: without a node first, then not ready, then the newest."""
    has_node = bool(pod["spec"].get("nodeName"))
    return has_node, is_ready(pod), -int(pod["metadata"]["resourceVersion"])


def _revision(replica_set: Obj) -> int:
    return int((replica_set["metadata"].get("annotations") or {}).get(REVISION, 0))


def _counted(replica_set: Obj, field: str) -> int:
    return int((replica_set.get("status") or {}).get(field) or 0)


def _available(replica_set: Obj) -> int:
    """Return how many pods are available that are not about to be deleted; the status may be of an earlier spec."""
    return min(_counted(replica_set, "availableReplicas"), int(replica_set["spec"].get("replicas") or 0))


def _share(value: Any, total: int, *, up: bool) -> int:
    """Return a number of pods that is given as such, or in percent of all."""
    text = str(value)
    if not text.endswith("%"):
        return int(text)
    share = int(text[:-1]) * total / 100
    return math.ceil(share) if up else math.floor(share)
