"""Claims for pods: creates them from templates, reserves them, and releases them when their pods are finished.

Follows kube-controller-manager's resourceclaim controller: it removes a claim's allocation with the last reservation,
if the claim has the finalizer that the scheduler adds on allocation.
"""

from __future__ import annotations

from collections import defaultdict

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api.errors import StatusError
from neuron_dra.emulation.embedded_api.history import Event
from neuron_dra.emulation.embedded_api.store import DeleteOptions, ObjectStore

POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
DELETE_PROTECTION = "resource.kubernetes.io/delete-protection"


def is_done(pod: Obj) -> bool:
    """Return True if a pod will not use its claims again."""
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return True
    return bool(pod["metadata"].get("deletionTimestamp")) and not (pod.get("spec") or {}).get("nodeName")


class ClaimController:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._pods = store.registry.named("pods")
        self._claims = store.registry.named("resourceclaims")
        self._templates = store.registry.named("resourceclaimtemplates")
        self._users: defaultdict[tuple[str, str], set[str]] = defaultdict(set)  # names of pods, by claim
        self._generated: defaultdict[str, set[str]] = defaultdict(set)  # names of claims, by UID of their pod
        self._warned: dict[tuple[str, str], str] = {}  # names of Events, by UID of their pod and message

    def __call__(self, event: Event) -> None:
        namespace = event.obj["metadata"].get("namespace", "")
        if event.resource is self._pods:
            self._pod_changed(event, namespace)
        elif event.resource is self._claims:
            self._claim_changed(event, namespace)
        elif event.resource is self._templates and event.type == "ADDED":
            for pod in self._store.list(self._pods, namespace):
                self._sync_pod(namespace, pod["metadata"]["name"])

    def _pod_changed(self, event: Event, namespace: str) -> None:
        pod_name = event.obj["metadata"]["name"]
        claims = self._claims_of(event.obj)
        for name in claims:
            if event.type == "DELETED":
                self._users[namespace, name].discard(pod_name)
            else:
                self._users[namespace, name].add(pod_name)
        if event.type != "DELETED":
            self._sync_pod(namespace, pod_name)
        for name in claims:
            self._sync_claim(namespace, name)

    def _claim_changed(self, event: Event, namespace: str) -> None:
        name = event.obj["metadata"]["name"]
        if owner := _owner_pod(event.obj):
            if event.type == "DELETED":
                self._generated[owner[1]].discard(name)
            else:
                self._generated[owner[1]].add(name)
        if event.type != "DELETED":
            self._sync_claim(namespace, name)
            for pod_name in sorted(self._users.get((namespace, name), ())):
                self._sync_pod(namespace, pod_name)

    def _claims_of(self, pod: Obj) -> set[str]:
        """Return the names of a pod's claims, including generated ones that its status does not list."""
        named = set()
        for pod_claim in (pod.get("spec") or {}).get("resourceClaims") or []:
            named.add(pod_claim.get("resourceClaimName"))
        status = pod.get("status") or {}
        claim_statuses = status.get("resourceClaimStatuses") or []
        generated = {claim_status.get("resourceClaimName") for claim_status in claim_statuses}
        of_limits = (status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName")
        return {name for name in {*named, *generated, of_limits} if name}

    # Pods

    def _sync_pod(self, namespace: str, name: str) -> None:
        pod = self._store.find(self._pods, namespace, name)
        if pod is None or pod["metadata"].get("deletionTimestamp") or is_done(pod):
            return
        statuses = list((pod.get("status") or {}).get("resourceClaimStatuses") or [])
        present = {claim_status["name"] for claim_status in statuses}
        for claim_entry in (pod.get("spec") or {}).get("resourceClaims") or []:
            template = claim_entry.get("resourceClaimTemplateName")
            if template and claim_entry["name"] not in present:
                claim = self._claim_for(pod, claim_entry["name"], template)
                if claim:
                    statuses.append({"name": claim_entry["name"], "resourceClaimName": claim})
        if len(statuses) > len(present):
            status = {**(pod.get("status") or {}), "resourceClaimStatuses": statuses}
            pod = self._store.update(self._pods, namespace, name, {**pod, "status": status}, subresource="status")
        if (pod.get("spec") or {}).get("nodeName"):
            for claim in self._claims_of(pod):
                self._reserve(pod, claim)

    def _claim_for(self, pod: Obj, pod_claim: str, template_name: str) -> str:
        """Return the name of the claim for one entry of a pod's resourceClaims; create the claim if it is missing."""
        meta = pod["metadata"]
        for name in sorted(self._generated.get(meta["uid"], ())):
            existing_claim = self._store.find(self._claims, meta["namespace"], name)
            if existing_claim is None:
                continue
            annotations = existing_claim["metadata"].get("annotations") or {}
            if annotations.get(POD_CLAIM_NAME) == pod_claim:
                return name
        template = self._store.find(self._templates, meta["namespace"], template_name)
        if template is None:
            missing = f'resourceclaimtemplate.resource.k8s.io "{template_name}" not found'
            text = f'resource claim template "{template_name}": {missing}'
            self._warn(pod, "FailedResourceClaimCreation", f"PodResourceClaim {pod_claim}: {text}")
            return ""
        template_metadata = template["spec"].get("metadata") or {}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
        claim = {
            "metadata": {
                "generateName": f"{meta['name']}-{pod_claim}-",
                "annotations": {**(template_metadata.get("annotations") or {}), POD_CLAIM_NAME: pod_claim},
                "labels": dict(template_metadata.get("labels") or {}),
                "ownerReferences": [owner],
            },
            "spec": template["spec"]["spec"],
        }
        if not claim["metadata"]["labels"]:
            del claim["metadata"]["labels"]
        try:
            return str(self._store.create(self._claims, meta["namespace"], claim)["metadata"]["name"])
        except StatusError as error:
            self._warn(pod, "FailedResourceClaimCreation", f"PodResourceClaim {pod_claim}: {error}")
            return ""

    def _reserve(self, pod: Obj, name: str) -> None:
        """Reserve an allocated claim for a pod that was bound without the scheduler."""
        meta = pod["metadata"]
        claim = self._store.find(self._claims, meta["namespace"], name)
        status = (claim or {}).get("status") or {}
        if claim is None or not status.get("allocation") or claim["metadata"].get("deletionTimestamp"):
            return
        reserved = status.get("reservedFor") or []
        if any(consumer.get("uid") == meta["uid"] for consumer in reserved):
            return
        group = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
        if any((consumer.get("resource"), consumer.get("name")) == ("podgroups", group) for consumer in reserved):
            return  # it is reserved for all pods of the group
        pod_reference = {"resource": "pods", "name": meta["name"], "uid": meta["uid"]}
        self._write_status(claim, {**status, "reservedFor": [*reserved, pod_reference]})

    def _warn(self, pod: Obj, reason: str, message: str) -> None:
        meta, events = pod["metadata"], self._store.registry.named("events")
        about = {
            "kind": "Pod",
            "apiVersion": "v1",
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
        }
        warned = self._warned.get((meta["uid"], message), "")
        if warned and self._store.find(events, meta["namespace"], warned) is not None:
            return
        now = self._store.timestamp()
        body = {
            "metadata": {"generateName": f"{meta['name']}."},
            "involvedObject": about,
            "type": "Warning",
            "reason": reason,
            "message": message,
            "source": {"component": "resource_claim"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        event = self._store.create(events, meta["namespace"], body)
        self._warned[meta["uid"], message] = event["metadata"]["name"]

    # Claims

    def _sync_claim(self, namespace: str, name: str) -> None:
        claim = self._store.find(self._claims, namespace, name)
        if claim is None:
            return
        status = claim.get("status") or {}
        reserved = status.get("reservedFor") or []
        valid = [consumer for consumer in reserved if self._still_used(namespace, consumer)]
        protected = DELETE_PROTECTION in (claim["metadata"].get("finalizers") or [])
        released = len(valid) < len(reserved)
        freed = protected and not valid and (released or bool(claim["metadata"].get("deletionTimestamp")))
        if released:
            status = {**status, "reservedFor": valid}
        if freed:
            status = {}
        if status != (claim.get("status") or {}):
            claim = self._write_status(claim, status)
        if freed:
            self._unprotect(claim)
        if not valid:
            self._delete_generated(claim)

    def _still_used(self, namespace: str, consumer: Obj) -> bool:
        if consumer.get("apiGroup") or consumer.get("resource") != "pods":
            return True
        pod = self._store.find(self._pods, namespace, consumer["name"])
        return pod is not None and pod["metadata"]["uid"] == consumer["uid"] and not is_done(pod)

    def _unprotect(self, claim: Obj) -> None:
        meta = claim["metadata"]
        finalizers = meta.get("finalizers") or []
        if DELETE_PROTECTION in finalizers:
            other_finalizers = [name for name in finalizers if name != DELETE_PROTECTION]
            changed = {**claim, "metadata": {**meta, "finalizers": other_finalizers}}
            if not other_finalizers:
                del changed["metadata"]["finalizers"]
            self._store.update(self._claims, meta["namespace"], meta["name"], changed)

    def _delete_generated(self, claim: Obj) -> None:
        """Delete the claim of a pod that is finished but not deleted."""
        meta = claim["metadata"]
        owner = _owner_pod(claim)
        if owner is None or meta.get("deletionTimestamp"):
            return
        pod = self._store.find(self._pods, meta["namespace"], owner[0])
        if pod is not None and pod["metadata"]["uid"] == owner[1] and not is_done(pod):
            return
        if self._store.find(self._claims, meta["namespace"], meta["name"]):
            self._store.delete(self._claims, meta["namespace"], meta["name"], DeleteOptions(uid=meta["uid"]))

    def _write_status(self, claim: Obj, status: Obj) -> Obj:
        meta = claim["metadata"]
        changed = {**claim, "status": status}
        return self._store.update(self._claims, meta["namespace"], meta["name"], changed, subresource="status")


def _owner_pod(claim: Obj) -> tuple[str, str] | None:
    for owner in claim["metadata"].get("ownerReferences") or []:
        if owner.get("controller") and owner["kind"] == "Pod":
            return str(owner["name"]), str(owner["uid"])
    return None
