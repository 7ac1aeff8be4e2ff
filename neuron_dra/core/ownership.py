"""Ownership: which object controls another one. Pure.

An owner reference has a UID that anyone may copy, and no namespace. So a join by UID alone believes an object that
another tenant wrote in another namespace. Every join compares group, kind, namespace, name, UID and the controller
flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neuron_dra.core.wire import Wire


@dataclass(frozen=True, slots=True, order=True)
class ObjectIdentity:
    """Which object this is, in any served version of its group. A cluster-scoped object has no namespace."""

    group: str
    kind: str
    namespace: str
    name: str
    uid: str

    def controls(self, item: Wire) -> bool:
        """Return True if the object controls `item`. A namespaced object controls objects of its own namespace only."""
        owner = controller_of(item)
        if owner is None:
            return False
        namespace = owner.namespace if self.namespace else ""
        return self == ObjectIdentity(owner.group, owner.kind, namespace, owner.name, owner.uid)


def controller_of(item: Wire) -> ObjectIdentity | None:
    """Return the object that controls `item`, as if it is in the namespace of `item`; None if no object controls it."""
    meta: Wire = item.get("metadata") or {}
    for reference in meta.get("ownerReferences") or []:
        if reference.get("controller") is True:
            return referenced(reference, str(meta.get("namespace") or ""))
    return None


def referenced(reference: Mapping[str, object], namespace: str) -> ObjectIdentity:
    """Return the object that an owner reference names in a namespace."""
    group, slash, _ = str(reference.get("apiVersion") or "").partition("/")
    texts = [str(reference.get(field) or "") for field in ("kind", "name", "uid")]
    return ObjectIdentity(group if slash else "", texts[0], namespace, texts[1], texts[2])
