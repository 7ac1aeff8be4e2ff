"""What a reply must be: the object or list that was requested. A proxy or a broken server may send anything else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from neuron_dra.errors import Unavailable
from neuron_dra.kube import objects


class _Kind(msgspec.Struct):
    kind: str = ""


def decode_object(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in a reply, without opaque values that cannot be decoded.

    Raises Unavailable for anything else.
    """
    try:
        reply = json.loads(objects.readable(raw))
    except (ValueError, RecursionError) as err:
        raise Unavailable(f"the API server's response is not JSON: {err}") from err
    if not isinstance(reply, dict):
        raise Unavailable("the API server's response is not an object")
    return reply


def stored(raw: bytes, name: str, kind: str = "") -> dict[str, Any]:
    """Return the object `name` in a reply to a read or a write. Raises Unavailable for anything else."""
    stored_object = decode_object(raw)
    meta = stored_object.get("metadata")
    if not isinstance(meta, dict) or meta.get("name") != name:
        raise Unavailable(f"the API server's response is not the object {name}")
    texts = [meta.get(key, "") for key in ("namespace", "uid", "resourceVersion")]
    if not all(isinstance(text, str) for text in texts):
        raise Unavailable(f"the API server's response for {name} has malformed metadata")
    if kind and stored_object.get("kind", kind) != kind:
        raise Unavailable(f"the API server's response for {name} is a {stored_object['kind']}, not a {kind}")
    if not all(isinstance(stored_object.get(part, {}), dict) for part in ("spec", "status")):
        raise Unavailable(f"the API server's response for {name} has a malformed spec or status")
    return stored_object


def check_deleted(raw: bytes, name: str) -> None:
    """Raise Unavailable unless the reply is that of a deletion: a Status of success, or the object."""
    reply = decode_object(raw)
    if reply.get("kind") == "Status" and reply.get("status") == "Success":
        return
    stored(raw, name)


def check_done(raw: bytes) -> None:
    """Raise Unavailable unless the reply is a Status of success, as to an eviction."""
    reply = decode_object(raw)
    if reply.get("kind") != "Status" or reply.get("status") != "Success":
        raise Unavailable("the API server's response is not a Status of success")


def names(details: Mapping[str, Any], path: str) -> bool:
    """Return True if the details of a Status name the object at this path, or the namespace that it would be in."""
    return f"/{details.get('kind')}/{details.get('name')}/" in f"{path}/"


def check_identity(raw: bytes, namespace: str, name: str) -> None:
    """Raise Unavailable unless the reply is this object; nothing else of it is decoded."""
    try:
        identity = objects.identity(raw)
    except objects.MALFORMED as err:
        raise Unavailable(f"the API server's response is not an object: {err!r}") from err
    if (identity.namespace, identity.name) != (namespace, name):
        raise Unavailable(f"the API server's response is not the object {namespace}/{name}")


def check_list(raw: bytes) -> None:
    """Raise Unavailable if a page is an object of another kind, which would count as an empty list.

    A page that is malformed passes: the decoder of its items rejects it.
    """
    try:
        kind = msgspec.json.decode(raw, type=_Kind).kind
    except (ValueError, RecursionError):
        return
    if not kind.endswith("List"):
        raise Unavailable(f"the API server's response is a {kind or 'value without a kind'}, not a list")


def serves(groups: bytes, group: str, version: str) -> bool:
    """Return whether the API server serves a version of a group, from its reply to /apis. Raises Unavailable."""
    return version in served_versions(groups, group)


def served_versions(groups: bytes, group: str) -> set[str]:
    """Return the versions of a group that the API server serves, from its reply to /apis. Raises Unavailable."""
    reply = decode_object(groups)
    listed = reply.get("groups")
    if reply.get("kind") != "APIGroupList" or not isinstance(listed, list):
        raise Unavailable("the API server's response is not a list of API groups")
    versions: set[str] = set()
    for api_group in listed:
        if isinstance(api_group, dict) and api_group.get("name") == group:
            versions |= _versions(api_group)
    return versions


def served_plurals(resources: bytes, group_version: str) -> set[str]:
    """Return the plurals of the kinds in a version of a group, from the reply to its path. Raises Unavailable."""
    reply = decode_object(resources)
    listed = reply.get("resources")
    is_list = reply.get("kind") == "APIResourceList" and isinstance(listed, list)
    if not is_list or reply.get("groupVersion") != group_version:
        raise Unavailable(f"the API server's response is not a list of the kinds in {group_version}")
    return {str(api_resource.get("name")) for api_resource in listed or () if isinstance(api_resource, dict)}


def _versions(group: Mapping[str, Any]) -> set[str]:
    listed = group.get("versions")
    versions = listed if isinstance(listed, list) else []
    return {str(version.get("version")) for version in versions if isinstance(version, dict)}
