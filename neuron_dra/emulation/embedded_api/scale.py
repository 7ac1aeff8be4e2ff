"""The subresource `scale`: the number of replicas of an object, as a Scale of autoscaling/v1."""

from __future__ import annotations

from typing import Any

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import patches
from neuron_dra.emulation.embedded_api.messages import RequestParts
from neuron_dra.emulation.embedded_api.store import ObjectStore


def change(store: ObjectStore, request: RequestParts, verb: str, obj: Obj, body: Any, *, dry_run: bool) -> Obj:
    """Return the Scale of a stored object, after a write of it if `verb` is not get."""
    if verb == "get":
        return _of(obj)
    new_scale = body if verb == "update" else patches.apply(request.content_type, _of(obj), body, custom=False)
    replicas = (new_scale.get("spec") or {}).get("replicas", 0)
    changed = {**obj, "spec": {**obj["spec"], "replicas": replicas}}
    resource, _ = store.registry.of_object(obj)
    meta = obj["metadata"]
    return _of(store.update(resource, meta["namespace"], meta["name"], changed, dry_run=dry_run))


def _of(obj: Obj) -> Obj:
    meta, status = obj["metadata"], obj.get("status") or {}
    selector = (obj["spec"].get("selector") or {}).get("matchLabels") or {}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")},
        "spec": {"replicas": obj["spec"].get("replicas", 1)},
        "status": {
            "replicas": status.get("replicas", 0),
            "selector": ",".join(f"{key}={value}" for key, value in sorted(selector.items())),
        },
    }
