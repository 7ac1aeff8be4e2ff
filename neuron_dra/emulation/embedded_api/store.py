"""The objects of the embedded API server, their history, and the rules for writes of all kinds.

All functions are synchronous and belong to one event loop. Stored objects are never modified: each write stores a new
one, so readers, watches and pages of a list can keep theirs.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import (
    bodies,
    claim_rules,
    errors,
    formats,
    metadata_rules,
    schema,
)
from neuron_dra.emulation.embedded_api.history import Event, History
from neuron_dra.emulation.embedded_api.resources import EmbeddedResource, Registry

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # length of the generated part
_LONGEST_BASE = 58  # length of generateName that is kept: 63 less the suffix
_DEFAULT_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_SYSTEM_METADATA = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation",
                    "name", "namespace", "generateName")  # fmt: skip


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    uid: str | None = None
    resource_version: str | None = None
    grace_s: int | None = None
    propagation: str = "Background"

    @classmethod
    def from_wire(cls, body: Obj) -> DeleteOptions:
        preconditions = body.get("preconditions") or {}
        return cls(
            uid=preconditions.get("uid"),
            resource_version=preconditions.get("resourceVersion"),
            grace_s=body.get("gracePeriodSeconds"),
            propagation=body.get("propagationPolicy") or "Background",
        )


Key = tuple[str, str, str, str]  # group, plural, namespace, name


@dataclass(frozen=True, slots=True)
class Backup:
    """All objects by group and plural, then namespace and name, and the revision of their time."""

    revision: int
    objects: Mapping[tuple[str, str], Mapping[tuple[str, str], Obj]]


class ObjectStore:
    """All objects. Writes raise `StatusError`; `listeners` are called with each Event, in order."""

    def __init__(self, registry: Registry, *, now: Callable[[], float] = time.time, seed: int = 0) -> None:
        self.registry = registry
        self.revision = 1000
        self.listeners: list[Callable[[Event], None]] = []
        self.mutators: list[Callable[[EmbeddedResource, Obj], None]] = []
        self._now = now
        self._random = random.Random(seed)
        self._objects: dict[tuple[str, str], dict[tuple[str, str], Obj]] = {}
        self._order: dict[tuple[str, str], list[tuple[str, str]]] = {}  # the keys of _objects, sorted
        self._histories: dict[tuple[str, str], History] = {}
        self._compacted = self.revision
        self._wakers: dict[asyncio.Event, EmbeddedResource | None] = {}
        self._by_uid: dict[str, tuple[EmbeddedResource, Key]] = {}
        for name in _DEFAULT_NAMESPACES:
            self.create(registry.named("namespaces"), "", {"metadata": {"name": name}})

    # Reading

    def now(self) -> float:
        return self._now()

    def timestamp(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._now()))

    def get(self, resource: EmbeddedResource, namespace: str, name: str) -> Obj:
        obj = self.find(resource, namespace, name)
        if obj is None:
            raise errors.not_found(resource.group, resource.plural, name)
        return obj

    def find(self, resource: EmbeddedResource, namespace: str, name: str) -> Obj | None:
        return self._objects.get(resource.key, {}).get((namespace, name))

    def find_uid(self, uid: str) -> tuple[EmbeddedResource, Obj] | None:
        resource_and_key = self._by_uid.get(uid)
        if resource_and_key is None:
            return None
        resource, (_, _, namespace, name) = resource_and_key
        return resource, self._objects[resource.key][(namespace, name)]

    def list(self, resource: EmbeddedResource, namespace: str = "") -> list[Obj]:
        """Return the objects of a namespace, or of all, in the order of their keys in etcd."""
        objects = self._objects.get(resource.key, {})
        order = self._order.get(resource.key, [])
        if not namespace:
            return [objects[key] for key in order]
        first = bisect_left(order, (namespace, ""))
        listed_objects = []
        for key in order[first : bisect_left(order, (namespace + "\0", ""))]:
            listed_objects.append(objects[key])
        return listed_objects

    def everything(self) -> Iterator[tuple[EmbeddedResource, Obj]]:
        for resource in self.registry:
            for obj in self.list(resource):
                yield resource, obj

    def history(self, resource: EmbeddedResource) -> History:
        return self._histories.setdefault(resource.key, History(since=self._compacted))

    def compact(self) -> None:
        """Discard all history: a watch or page that starts before now gets a 410."""
        self._compacted = self.revision
        for key, history in self._histories.items():
            lost = history.events[-1].revision if history.events else history.lost
            self._histories[key] = History(since=self._compacted, lost=lost)

    def backup(self) -> Backup:
        """Return what `restore` goes back to; stored objects never change, so nothing is copied but the tables."""
        return Backup(self.revision, {key: dict(objects) for key, objects in self._objects.items()})

    def restore(self, backup: Backup) -> None:
        """Go back to a backup. Nobody is told: `listeners` get no Event, and watches no change."""
        self.revision = self._compacted = backup.revision
        self._objects = {key: dict(objects) for key, objects in backup.objects.items()}
        self._order = {key: sorted(objects) for key, objects in self._objects.items()}
        self._histories.clear()
        self._by_uid.clear()
        for resource in self.registry:
            for (namespace, name), obj in self._objects.get(resource.key, {}).items():
                self._by_uid[obj["metadata"]["uid"]] = resource, (*resource.key, namespace, name)
        for waker in self._wakers:
            waker.set()

    def wake_on_change(self, waker: asyncio.Event, resource: EmbeddedResource | None = None) -> None:
        """Set `waker` on each change, or on those of one resource."""
        self._wakers[waker] = resource

    def stop_waking(self, waker: asyncio.Event) -> None:
        self._wakers.pop(waker, None)

    # Writing

    def create(self, resource: EmbeddedResource, namespace: str, obj: Obj, *, dry_run: bool = False) -> Obj:
        obj, _ = schema.decode(resource.group, resource.kind, obj)
        meta = obj.setdefault("metadata", {})
        if meta.get("resourceVersion"):
            raise errors.StatusError(500, "InternalError", "resourceVersion should not be set on objects to be created")
        self._check_namespace(resource, namespace, meta)
        self._name(resource, namespace, meta)
        for key in ("managedFields", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"):
            meta.pop(key, None)
        if owners := meta.get("ownerReferences"):
            meta["ownerReferences"] = [owner for index, owner in enumerate(owners) if owner not in owners[:index]]
        meta["uid"] = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        meta["creationTimestamp"] = self.timestamp()
        if resource.generation or resource.custom:
            meta["generation"] = 1
        obj["apiVersion"] = resource.api_version(resource.storage)
        obj["kind"] = resource.kind
        if resource.status and not resource.keeps_status_on_create:
            obj.pop("status", None)
        resource.prepare(obj, None, self.timestamp())
        self._mutate(resource, obj)
        self._validate(resource, obj, None, "")
        obj = schema.tidy(resource.group, resource.kind, obj)
        if self.find(resource, namespace, meta["name"]) is not None:
            raise errors.already_exists(resource.group, resource.plural, meta["name"])
        if dry_run:
            return obj
        return self._put("ADDED", resource, obj, None)

    def update(
        self,
        resource: EmbeddedResource,
        namespace: str,
        name: str,
        obj: Obj,
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Obj:
        """Replace the object, or with `subresource` "status" its status. An equal object is not written."""
        old = self.get(resource, namespace, name)
        obj, _ = schema.decode(resource.group, resource.kind, obj)
        meta = obj.setdefault("metadata", {})
        self._check_update(resource, old, meta)
        meta.pop("managedFields", None)
        for key in (*_SYSTEM_METADATA, "resourceVersion"):
            meta.pop(key, None)
            if key in old["metadata"]:
                meta[key] = old["metadata"][key]
        obj["apiVersion"], obj["kind"] = old["apiVersion"], old["kind"]
        if subresource == "status":
            obj = {**bodies.copied(old), "status": obj.get("status") or {}}
            if not obj["status"]:
                del obj["status"]
        elif resource.status:
            obj.pop("status", None)
            if "status" in old:
                obj["status"] = bodies.copied(old["status"])
        resource.prepare(obj, old, self.timestamp())
        self._mutate(resource, obj)
        self._validate(resource, obj, old, subresource)
        obj = schema.tidy(resource.group, resource.kind, obj)
        if obj == old:
            return old
        if (resource.generation or resource.custom) and _content(obj) != _content(old):
            obj["metadata"] = {**obj["metadata"], "generation": old["metadata"].get("generation", 0) + 1}
        if dry_run:
            return obj
        if _finished(obj):
            return self._remove(resource, obj)
        return self._put("MODIFIED", resource, obj, old)

    def delete(
        self,
        resource: EmbeddedResource,
        namespace: str,
        name: str,
        options: DeleteOptions | None = None,
        *,
        dry_run: bool = False,
    ) -> tuple[Obj, bool]:
        """Delete the object or mark it for deletion; return its last state, and True if it is gone."""
        options = options or DeleteOptions()
        old = self.get(resource, namespace, name)
        meta = old["metadata"]
        for label, precondition, present in (
            ("UID", options.uid, meta["uid"]),
            ("ResourceVersion", options.resource_version, meta["resourceVersion"]),
        ):
            if precondition is not None and precondition != present:
                why = f"Precondition failed: {label} in precondition: {precondition}, {label} in object meta: {present}"
                raise errors.conflict(resource.group, resource.plural, name, why)
        grace_s = _grace(resource, old, options.grace_s)
        finalizers = list(meta.get("finalizers") or [])
        waiting = {"Orphan": "orphan", "Foreground": "foregroundDeletion"}.get(options.propagation)
        if waiting and waiting not in finalizers:
            finalizers.append(waiting)
        if not finalizers and grace_s == 0 and resource.plural != "namespaces":
            return (old if dry_run else self._remove(resource, old)), True
        if meta.get("deletionTimestamp") and grace_s >= meta.get("deletionGracePeriodSeconds", 0):
            return old, False
        obj = {**old, "metadata": {**meta, "deletionGracePeriodSeconds": grace_s}}
        obj["metadata"].setdefault("deletionTimestamp", self.timestamp())
        if finalizers:
            obj["metadata"]["finalizers"] = finalizers
        if "generation" in meta:
            obj["metadata"]["generation"] = meta["generation"] + 1
        if resource.plural == "namespaces":
            obj["status"] = {**(old.get("status") or {}), "phase": "Terminating"}
        return (obj if dry_run else self._put("MODIFIED", resource, obj, old)), False

    def remove(self, resource: EmbeddedResource, namespace: str, name: str) -> None:
        """Remove the object regardless of finalizers; for the server's own controllers."""
        self._remove(resource, self.get(resource, namespace, name))

    def bind(self, pod: Obj, node: str) -> Obj:
        """Assign a pod to a node; updates cannot do this."""
        meta, status = pod["metadata"], pod.get("status") or {}
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.timestamp()}
        other_conditions = []
        for condition in status.get("conditions") or []:
            if condition["type"] != "PodScheduled":
                other_conditions.append(condition)
        bound = {
            **pod,
            "metadata": {**meta, "generation": meta["generation"] + 1},
            "spec": {**pod["spec"], "nodeName": node},
            "status": {**status, "conditions": [*other_conditions, scheduled]},
        }
        return self._put("MODIFIED", self.registry.named("pods"), bound, pod)

    # Helpers of writes

    def _check_namespace(self, resource: EmbeddedResource, namespace: str, meta: Obj) -> None:
        if not resource.namespaced:
            meta.pop("namespace", None)
            return
        if meta.setdefault("namespace", namespace) != namespace:
            raise errors.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        holder = self.get(self.registry.named("namespaces"), "", namespace)
        if holder["metadata"].get("deletionTimestamp"):
            name = meta.get("name") or ""
            text = f"unable to create new content in namespace {namespace} because it is being terminated"
            cause = errors.Cause(
                "NamespaceTerminating", f"namespace {namespace} is being terminated", "metadata.namespace"
            )
            details = {"name": name, "kind": resource.plural} | ({"group": resource.group} if resource.group else {})
            raise errors.refused(f'{resource.qualified} "{name}" is forbidden: {text}', details=details, causes=[cause])

    def _name(self, resource: EmbeddedResource, namespace: str, meta: Obj) -> None:
        base = meta.get("generateName") or ""
        if not meta.get("name") and base:
            taken = self._objects.get(resource.key, {})
            for _ in range(8):
                suffix = "".join(self._random.choices(_SUFFIX, k=5))
                meta["name"] = base[:_LONGEST_BASE] + suffix
                if (namespace, meta["name"]) not in taken:
                    break
        name = meta.get("name") or ""
        if not name:
            cause = errors.required("metadata.name", "name or generateName is required")
            raise errors.unprocessable(resource.group, resource.kind, "", [cause])
        # Names of roles may contain colons and capitals.
        if resource.group != "rbac.authorization.k8s.io" and not formats.is_subdomain(name):
            cause = errors.invalid("metadata.name", name, formats.SUBDOMAIN_RULE)
            raise errors.unprocessable(resource.group, resource.kind, name, [cause])

    def _check_update(self, resource: EmbeddedResource, old: Obj, meta: Obj) -> None:
        name = old["metadata"]["name"]
        if meta.get("name", name) != name:
            text = f"the name of the object ({meta['name']}) does not match the name on the URL ({name})"
            raise errors.bad_request(text)
        namespace = old["metadata"].get("namespace")
        if meta.get("namespace", namespace) != namespace:
            raise errors.bad_request("the namespace of the object does not match the namespace on the request")
        uid = meta.get("uid")
        if uid and uid != old["metadata"]["uid"]:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old['metadata']['uid']}"
            raise errors.conflict(resource.group, resource.plural, name, why)
        version = meta.get("resourceVersion")
        if not version and (resource.custom or not resource.blind_update):
            cause = errors.invalid("metadata.resourceVersion", 0, "must be specified for an update")
            raise errors.unprocessable(resource.group, resource.kind, name, [cause])
        if version and version != old["metadata"]["resourceVersion"]:
            raise errors.conflict(resource.group, resource.plural, name)

    def _mutate(self, resource: EmbeddedResource, obj: Obj) -> None:
        for mutator in self.mutators:
            mutator(resource, obj)

    def _validate(self, resource: EmbeddedResource, obj: Obj, old: Obj | None, subresource: str) -> None:
        causes = list(metadata_rules.check(obj, old))
        causes += resource.check_status(obj, old) if subresource == "status" else resource.check(obj, old)
        if old is None and resource.kind in ("ResourceClaim", "ResourceClaimTemplate"):
            namespace = self.get(self.registry.named("namespaces"), "", obj["metadata"]["namespace"])
            causes += claim_rules.check_admin(obj, namespace)
        if causes:
            raise errors.unprocessable(resource.group, resource.kind, obj["metadata"]["name"], causes)

    def _put(self, change: str, resource: EmbeddedResource, obj: Obj, old: Obj | None) -> Obj:
        self.revision += 1
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.revision)}}
        namespace = obj["metadata"].get("namespace", "")
        name = obj["metadata"]["name"]
        objects = self._objects.setdefault(resource.key, {})
        if (namespace, name) not in objects:
            insort(self._order.setdefault(resource.key, []), (namespace, name))
        objects[(namespace, name)] = obj
        self._by_uid[obj["metadata"]["uid"]] = resource, (*resource.key, namespace, name)
        self._record(Event(self.revision, change, resource, obj, old))
        return obj

    def _remove(self, resource: EmbeddedResource, obj: Obj) -> Obj:
        self.revision += 1
        namespace = obj["metadata"].get("namespace", "")
        name = obj["metadata"]["name"]
        old = self._objects[resource.key].pop((namespace, name))
        order = self._order[resource.key]
        del order[bisect_left(order, (namespace, name))]
        del self._by_uid[obj["metadata"]["uid"]]
        last = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.revision)}}
        self._record(Event(self.revision, "DELETED", resource, last, old))
        return last

    def _record(self, event: Event) -> None:
        self.history(event.resource).add(event)
        for listener in self.listeners:
            listener(event)
        for waker, resource in self._wakers.items():
            if resource is None or resource is event.resource:
                waker.set()


def _content(obj: Obj) -> Obj:
    """Return the fields that raise the generation: all but metadata and status."""
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}


def _finished(obj: Obj) -> bool:
    """Return True if an object that is being deleted has no finalizer and no grace period left."""
    meta = obj["metadata"]
    deleting = meta.get("deletionTimestamp") and not meta.get("finalizers")
    return bool(deleting) and meta.get("deletionGracePeriodSeconds", 0) == 0 and obj["kind"] != "Namespace"


def _grace(resource: EmbeddedResource, obj: Obj, requested_grace_s: int | None) -> int:
    """Return a pod's remaining grace period in seconds; 0 if it never ran or has ended."""
    if resource.plural != "pods" or resource.group:
        return 0
    spec = obj.get("spec") or {}
    if not spec.get("nodeName") or (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    return int(spec.get("terminationGracePeriodSeconds", 30) if requested_grace_s is None else requested_grace_s)
