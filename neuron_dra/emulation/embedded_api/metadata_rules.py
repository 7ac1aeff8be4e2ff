"""Validation of the metadata of all objects."""

from __future__ import annotations

from collections.abc import Iterable

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import errors, formats


def check(obj: Obj, old: Obj | None) -> Iterable[errors.Cause]:
    meta = obj["metadata"]
    if old is not None and old["metadata"].get("deletionTimestamp"):
        before = old["metadata"].get("finalizers") or []
        added = [name for name in meta.get("finalizers") or [] if name not in before]
        if added:
            shown = ", ".join(f'"{name}"' for name in added)
            rule = "no new finalizers can be added if the object is being deleted"
            why = f"{rule}, found new finalizers []string{{{shown}}}"
            yield errors.forbidden("metadata.finalizers", why)
    for place in ("labels", "annotations"):
        for key, value in (meta.get(place) or {}).items():
            if not formats.is_label_key(key.lower() if place == "annotations" else key):
                yield errors.invalid(f"metadata.{place}", key, "must be a label key: an optional domain and a name")
            if place == "labels" and not formats.is_label_value(value):
                yield errors.invalid("metadata.labels", value, "must be a label value")
    for index, name in enumerate(meta.get("finalizers") or []):
        if not formats.is_label_key(name):
            yield errors.invalid("metadata.finalizers", name, "must be a name with a domain")
        if "/" not in name and name not in ("orphan", "foregroundDeletion", "kubernetes"):
            why = "name is neither a standard finalizer name nor is it fully qualified"
            yield errors.invalid(f"metadata.finalizers[{index}]", name, why)
    yield from _check_owners(meta.get("ownerReferences") or [])


def _check_owners(owners: list[Obj]) -> Iterable[errors.Cause]:
    for index, owner in enumerate(owners):
        path = f"metadata.ownerReferences[{index}]"
        for key in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(key):
                yield errors.required(f"{path}.{key}", "must not be empty")
        if (owner.get("apiVersion"), owner.get("kind")) == ("v1", "Event"):
            yield errors.invalid(path, str(owner), "/v1, Kind=Event is disallowed from being an owner")
    if sum(1 for owner in owners if owner.get("controller")) > 1:
        why = "Only one reference can have Controller set to true."
        yield errors.invalid("metadata.ownerReferences", "", why)
