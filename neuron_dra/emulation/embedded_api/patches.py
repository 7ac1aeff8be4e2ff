"""JSON patch, JSON merge patch, and strategic merge patch with the merge keys of the kinds served here."""

from __future__ import annotations

import copy
from typing import Any

from neuron_dra.emulation.embedded_api.errors import (
    ApiError,
    Obj,
    bad_request,
    unsupported_media_type,
)

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

# Lists that a strategic merge patch merges by a key instead of replacing them. The real server reads the keys from its
# types; these are those of the kinds served here.
_MERGE_KEYS = {
    "conditions": "type",
    "addresses": "type",
    "ownerReferences": "uid",
    "resourceClaimStatuses": "name",
    "resourceClaims": "name",
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
}
_SETS = {"finalizers"}


def merge(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386) and return the result; neither argument is changed."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def strategic(target: Any, patch: Any) -> Any:
    """Apply a strategic merge patch: as `merge`, but merge the lists in the table above entry by entry."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    if patch.get("$patch") == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != "$patch"}
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if key.startswith(("$setElementOrder/", "$retainKeys")):
            continue
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            result[name] = [entry for entry in result.get(name) or [] if entry not in value]
        elif value is None:
            result.pop(key, None)
        elif key in _MERGE_KEYS and isinstance(value, list):
            result[key] = _merge_list(result.get(key) or [], value, _MERGE_KEYS[key])
        elif key in _SETS and isinstance(value, list):
            old = list(result.get(key) or [])
            result[key] = old + [entry for entry in value if entry not in old]
        else:
            result[key] = strategic(result.get(key), value)
    return result


def _merge_list(old: list[Obj], patch: list[Obj], key: str) -> list[Obj]:
    merged = {entry[key]: entry for entry in old}
    for entry in patch:
        if not isinstance(entry, dict) or key not in entry:
            raise bad_request(f"map: {entry} does not contain declared merge key: {key}")
        if entry.get("$patch") == "delete":
            merged.pop(entry[key], None)
        else:
            merged[entry[key]] = strategic(merged.get(entry[key]), entry)
    return list(merged.values())


def json_patch(target: Obj, operations: list[Obj]) -> Obj:
    """Apply a JSON patch (RFC 6902: add, replace, remove, test). Raises ApiError 422 for an operation that fails."""
    result = copy.deepcopy(target)
    for operation in operations:
        path = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        try:
            _operate(result, path, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise ApiError(
                422, "Invalid", f"the server rejected our request due to an error in our request: {error}"
            ) from error
    return result


def _operate(target: Any, path: list[str], operation: Obj) -> None:
    for step in path[:-1]:
        target = target[int(step)] if isinstance(target, list) else target[step]
    last = path[-1]
    kind, value = operation["op"], copy.deepcopy(operation.get("value"))
    if isinstance(target, list):
        index = len(target) if last == "-" else int(last)
        if kind == "add":
            target.insert(index, value)
            return
        position: Any = index
    else:
        position = last
        if kind == "add":
            target[last] = value
            return
    present = target[position]
    if kind == "replace":
        target[position] = value
    elif kind == "remove":
        del target[position]
    elif kind != "test":
        raise ValueError(f"unknown operation {kind}")
    elif present != value:
        raise ValueError(f"testing path {operation['path']} value failed")


def apply(content_type: str, target: Obj, patch: Any, *, custom: bool) -> Obj:
    """Apply `patch` of the given media type. `custom`: the object is a custom resource, which has no strategic merge.

    Raises ApiError 415 for server-side apply, which this server does not have.
    """
    if content_type == JSON and isinstance(patch, list):
        return json_patch(target, patch)
    offered = [JSON, MERGE] if custom else [JSON, MERGE, STRATEGIC]
    if content_type not in offered:
        hint = ""
        if content_type.startswith("application/apply-patch"):
            hint = "; the embedded API server has no server-side apply: use a merge patch or PUT with resourceVersion"
        listed = ", ".join(offered)
        raise unsupported_media_type(
            f"the body of the request was in an unknown format - accepted media types include: {listed}{hint}"
        )
    if not isinstance(patch, dict):
        raise bad_request("the patch must be a JSON object")
    return dict(merge(target, patch) if content_type == MERGE else strategic(target, patch))
