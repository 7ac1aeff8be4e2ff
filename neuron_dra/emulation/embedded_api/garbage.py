"""Garbage collection by owner references."""

from __future__ import annotations

from collections import defaultdict

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api.history import Event
from neuron_dra.emulation.embedded_api.resources import EmbeddedResource
from neuron_dra.emulation.embedded_api.store import ObjectStore

_ORPHAN, _FOREGROUND = "orphan", "foregroundDeletion"


class GarbageCollector:
    """Deletes objects whose owners are all gone, or never existed.

    An owner of a kind that this server does not serve counts as present, as with the real collector.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._dependents: defaultdict[str, set[str]] = defaultdict(set)  # UID of the owner -> UIDs

    def __call__(self, event: Event) -> None:
        uid = event.obj["metadata"]["uid"]
        for source, note in ((event.old, set[str].discard), (event.obj, set[str].add)):
            for owner in (source or {}).get("metadata", {}).get("ownerReferences") or []:
                note(self._dependents[owner["uid"]], uid)
        if event.type == "DELETED":
            for owner in event.obj["metadata"].get("ownerReferences") or []:
                self._dependents[owner["uid"]].discard(uid)
                self._finish_foreground(owner["uid"])
            for dependent in sorted(self._dependents.pop(uid, ())):
                self._check(dependent)
            return
        self._check(uid)
        self._deletion(uid)

    def _check(self, uid: str) -> None:
        resource_and_object = self._store.find_uid(uid)
        if resource_and_object is None:
            return
        resource, obj = resource_and_object
        owners = obj["metadata"].get("ownerReferences") or []
        present = [owner for owner in owners if self._is_present(owner, obj)]
        if not owners or len(present) == len(owners):
            return
        namespace = obj["metadata"].get("namespace", "")
        name = obj["metadata"]["name"]
        if present:
            changed = {**obj, "metadata": {**obj["metadata"], "ownerReferences": present}}
            self._store.update(resource, namespace, name, changed)
        elif not obj["metadata"].get("deletionTimestamp"):
            self._store.delete(resource, namespace, name)

    def _is_present(self, reference: Obj, dependent: Obj) -> bool:
        kind = self._store.registry.by_kind(reference["apiVersion"], reference["kind"])
        if kind is None:
            return True
        resource_and_owner = self._store.find_uid(reference["uid"])
        if resource_and_owner is None:
            return False
        resource, owner = resource_and_owner
        meta = owner["metadata"]
        near = not resource.namespaced or meta["namespace"] == dependent["metadata"].get("namespace")
        return near and resource is kind and meta["name"] == reference["name"]

    def _deletion(self, uid: str) -> None:
        """Apply the propagation policy of an object that is being deleted."""
        resource_and_object = self._store.find_uid(uid)
        if resource_and_object is None:
            return
        resource, obj = resource_and_object
        finalizers = obj["metadata"].get("finalizers") or []
        if not obj["metadata"].get("deletionTimestamp"):
            return
        if _ORPHAN in finalizers:
            for dependent in sorted(self._dependents.get(uid, ())):
                self._disown(dependent, uid)
            self._drop_finalizer(resource, obj, _ORPHAN)
        elif _FOREGROUND in finalizers:
            for dependent in sorted(self._dependents.get(uid, ())):
                if child := self._store.find_uid(dependent):
                    meta = child[1]["metadata"]
                    if not meta.get("deletionTimestamp"):
                        self._store.delete(child[0], meta.get("namespace", ""), meta["name"])
            self._finish_foreground(uid)

    def _disown(self, uid: str, owner_uid: str) -> None:
        if resource_and_object := self._store.find_uid(uid):
            resource, obj = resource_and_object
            meta = obj["metadata"]
            other_owners = []
            for owner in meta.get("ownerReferences") or []:
                if owner["uid"] != owner_uid:
                    other_owners.append(owner)
            changed = {**obj, "metadata": {**meta, "ownerReferences": other_owners}}
            self._store.update(resource, meta.get("namespace", ""), meta["name"], changed)

    def _finish_foreground(self, uid: str) -> None:
        resource_and_object = self._store.find_uid(uid)
        if resource_and_object is None or not resource_and_object[1]["metadata"].get("deletionTimestamp"):
            return
        if not any(self._store.find_uid(dependent) for dependent in self._dependents.get(uid, ())):
            self._drop_finalizer(*resource_and_object, _FOREGROUND)

    def _drop_finalizer(self, resource: EmbeddedResource, obj: Obj, name: str) -> None:
        meta = obj["metadata"]
        other_finalizers = []
        for finalizer in meta.get("finalizers") or []:
            if finalizer != name:
                other_finalizers.append(finalizer)
        if len(other_finalizers) < len(meta.get("finalizers") or []):
            changed = {**obj, "metadata": {**meta, "finalizers": other_finalizers}}
            self._store.update(resource, meta.get("namespace", ""), meta["name"], changed)
