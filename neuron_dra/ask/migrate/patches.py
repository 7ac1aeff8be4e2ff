"""Manifests that are parts of others: patches of a Kustomization, and what they patch.

A strategic merge adds the keys of a patch to those of its base. So if both are rewritten, each by its own number, the
result has two limits, and the pod twice the devices. Such manifests are left alone: the whole must be rendered first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from neuron_dra.ask.migrate import kustomized, leftovers

WHOLE: Final = frozenset({"Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob"})
"""Kinds whose containers have an image, unless the manifest is a patch."""

Key = tuple[str, str, str]


def has_old(value: Any) -> bool:
    """Return True if a value has an old resource name in a key or in a text."""
    if isinstance(value, dict):
        return any(has_old(key) or has_old(item) for key, item in value.items())
    if isinstance(value, list):
        return any(map(has_old, value))
    return isinstance(value, str) and leftovers.OLD.search(value) is not None


def key(document: Any) -> Key | None:
    """Return kind, namespace and name of an object; None for what has no name."""
    if not isinstance(document, Mapping):
        return None
    meta = document.get("metadata")
    name = meta.get("name") if isinstance(meta, Mapping) else None
    if not isinstance(name, str) or not isinstance(document.get("kind"), str):
        return None
    return str(document["kind"]), str(meta.get("namespace") or ""), name  # type: ignore[union-attr]


def of_each(path: Path | None, documents: list[Any], places_by_object: Mapping[Key, Sequence[str]]) -> list[str]:
    """Return for each document why it must be left alone; empty if it need not.

    `path` is its file's, None for standard input; `places_by_object` has the places of the objects of this run that
    have an old name.
    """
    named: Sequence[str] = ()
    if path is not None and has_old(documents):
        named = list(kustomized.uses(path, has_old))
    reasons = []
    for document in documents:
        reasons.append(_why(document, named, places_by_object) if has_old(document) else "")
    return reasons


def _why(document: Any, named: Sequence[str], places_by_object: Mapping[Key, Sequence[str]]) -> str:
    object_key = key(document)
    places = places_by_object.get(object_key, ()) if object_key is not None else ()
    if object_key is not None and len(places) > 1:
        return f"{' and '.join(places)} are about one object, so one is a patch of the other; {leftovers.RENDER}"
    if named:
        return f"{named[0]}; {leftovers.RENDER}"
    return ""


def note(document: Any) -> str:
    """Return that a document looks like a patch, though nothing names it as one; empty if it does not."""
    object_key = key(document)
    name = _without_image(document) if object_key is not None and object_key[0] in WHOLE else ""
    if name:
        return f"container {name} has no image; if this is a patch, {leftovers.RENDER}"
    return ""


def _without_image(value: Any) -> str:
    """Return the name of a container that has an old limit and no image; empty if there is none."""
    if isinstance(value, list):
        return next(filter(None, map(_without_image, value)), "")
    if not isinstance(value, dict):
        return ""
    for field in ("containers", "initContainers"):
        for container in value[field] if isinstance(value.get(field), list) else ():
            if isinstance(container, dict) and "image" not in container and has_old(container.get("resources")):
                return str(container.get("name"))
    return next(filter(None, map(_without_image, value.values())), "")
