"""The fields of the kinds whose exact shape matters, decoded as by the real server's Go types.

A field of the wrong type is an error 400; an unknown field is dropped (or a 400 with fieldValidation=Strict); empty
lists, maps and strings are not stored. Kinds without an entry are stored as sent, except for their metadata.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import formats
from neuron_dra.emulation.embedded_api.errors import bad_request

# A leaf is one of these; a struct is a dict of fields, a list is [type], a map is ("map", type). A struct with OPEN
# keeps fields that it does not name.
S: Final = "string"
P: Final = "pointer to a string"  # stored even if empty
I: Final = "int64"  # noqa: E741
B: Final = "bool"
Q: Final = "quantity"
T: Final = "time"
ANY: Final = "any"
OPEN: Final = "*"
Type = Any

_STRINGS: Final = ("map", S)
_OWNER: Final = {"apiVersion": S, "kind": S, "name": S, "uid": S, "controller": B, "blockOwnerDeletion": B}
_META: Final = {
    **dict.fromkeys(("name", "generateName", "namespace", "selfLink", "uid", "resourceVersion"), S),
    **dict.fromkeys(("generation", "deletionGracePeriodSeconds"), I),
    **dict.fromkeys(("creationTimestamp", "deletionTimestamp"), T),
    "labels": _STRINGS,
    "annotations": _STRINGS,
    "finalizers": [S],
    "ownerReferences": [_OWNER],
    "managedFields": ANY,
}
_SELECTORS: Final = [{"cel": {"expression": S}}]
_TOLERATION: Final = {"key": S, "operator": S, "value": S, "effect": S, "tolerationSeconds": I}
_EXACT: Final = {
    "deviceClassName": S,
    "selectors": _SELECTORS,
    "allocationMode": S,
    "count": I,
    "tolerations": [_TOLERATION],
    "capacity": {"requests": ("map", Q)},
}
_OPAQUE: Final = {"driver": S, "parameters": ANY}
_CLAIM: Final = {
    "devices": {
        "requests": [
            {"name": S, "exactly": {**_EXACT, "adminAccess": B}, "firstAvailable": [{"name": S, **_EXACT}]},
        ],
        "constraints": [{"requests": [S], "matchAttribute": S, "distinctAttribute": S}],
        "config": [{"requests": [S], "opaque": _OPAQUE}],
    }
}
_RESULT: Final = {
    **dict.fromkeys(("request", "driver", "pool", "device", "shareID"), S),
    "adminAccess": B,
    "tolerations": [_TOLERATION],
    "bindingConditions": [S],
    "bindingFailureConditions": [S],
    "consumedCapacity": ("map", Q),
}
_ALLOCATION: Final = {
    "devices": {"results": [_RESULT], "config": [{"source": S, "requests": [S], "opaque": _OPAQUE}]},
    "nodeSelector": ANY,
    "allocationTimestamp": T,
}
_DEVICE_STATUS: Final = {
    **dict.fromkeys(("driver", "pool", "device", "shareID"), S),
    "conditions": ANY,
    "data": ANY,
    "networkData": {"interfaceName": S, "ips": [S], "hardwareAddress": S},
}
_CONSUMER: Final = {"apiGroup": S, "resource": S, "name": S, "uid": S}
_COUNTERS: Final = ("map", {"value": Q})
_DEVICE: Final = {
    "name": S,
    # List values need a feature gate that is off by default, so the server drops them.
    "attributes": ("map", {"int": I, "bool": B, "string": P, "version": P}),
    "capacity": ("map", {"value": Q, "requestPolicy": ANY}),
    "consumesCounters": [{"counterSet": S, "counters": _COUNTERS}],
    "nodeName": S,
    "nodeSelector": ANY,
    "allNodes": B,
    "taints": [{"key": S, "value": S, "effect": S, "timeAdded": T}],
    "bindsToNode": B,
    "bindingConditions": [S],
    "bindingFailureConditions": [S],
    "allowMultipleAllocations": B,
}
_SLICE: Final = {
    "driver": S,
    "pool": {"name": S, "generation": I, "resourceSliceCount": I},
    "nodeName": S,
    "nodeSelector": ANY,
    "allNodes": B,
    "perDeviceNodeSelection": B,
    "devices": [_DEVICE],
    "sharedCounters": [{"name": S, "counters": _COUNTERS}],
}
_CONTAINER: Final = {OPEN: ANY, "name": S, "env": [{OPEN: ANY, "name": S}],
                     "resources": {OPEN: ANY, "claims": [{"name": S, "request": S}]}}  # fmt: skip
_POD: Final = {
    OPEN: ANY,
    "nodeName": S,
    "containers": [_CONTAINER],
    "initContainers": [_CONTAINER],
    "resourceClaims": [{"name": S, "resourceClaimName": S, "resourceClaimTemplateName": S}],
    "terminationGracePeriodSeconds": I,
}

_KINDS: Final[dict[tuple[str, str], Type]] = {
    ("resource.k8s.io", "ResourceSlice"): {"spec": _SLICE},
    ("resource.k8s.io", "ResourceClaim"): {
        "spec": _CLAIM,
        "status": {"allocation": _ALLOCATION, "reservedFor": [_CONSUMER], "devices": [_DEVICE_STATUS]},
    },
    ("resource.k8s.io", "ResourceClaimTemplate"): {"spec": {"metadata": _META, "spec": _CLAIM}},
    ("resource.k8s.io", "DeviceClass"): {
        "spec": {"selectors": _SELECTORS, "config": [{"opaque": _OPAQUE}], "extendedResourceName": S}
    },
    ("", "Pod"): {OPEN: ANY, "spec": _POD},
    ("policy", "PodDisruptionBudget"): {
        OPEN: ANY,
        "spec": {OPEN: ANY, "selector": {OPEN: ANY, "matchLabels": _STRINGS}},
    },
}
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


@functools.cache
def _of(group: str, kind: str) -> Type:
    return {"apiVersion": S, "kind": S, **_KINDS.get((group, kind), {OPEN: ANY}), "metadata": _META}


def decode(group: str, kind: str, obj: Obj) -> tuple[Obj, list[str]]:
    """Return the fields of `obj` that the schema has, and the paths of unknown fields.

    The result shares nothing with `obj`. Raises ApiError 400 for a value of the wrong type.
    """
    unknown: list[str] = []
    return dict(_decode(_of(group, kind), obj, "", kind, unknown)), unknown


def tidy(group: str, kind: str, obj: Obj) -> Obj:
    """Return `obj` without empty lists, maps and strings, which the server does not store."""
    return dict(_tidy(_of(group, kind), obj))


def _decode(schema: Type, value: Any, path: str, kind: str, unknown: list[str]) -> Any:
    if schema == ANY or value is None:
        return _copied(value)
    if isinstance(schema, dict):
        _expect(value, dict, "object", path, kind)
        decoded_fields = {}
        for name, entry in value.items():
            if type(entry) is str and schema.get(name) == S:  # most fields: their paths are not needed
                decoded_fields[name] = entry
                continue
            where = f"{path}.{name}" if path else name
            if name in schema and name != OPEN:
                decoded = _decode(schema[name], entry, where, kind, unknown)
                if decoded is not None:
                    decoded_fields[name] = decoded
            elif OPEN in schema:
                decoded_fields[name] = _copied(entry)
            else:
                unknown.append(where)
        return decoded_fields
    if isinstance(schema, list):
        _expect(value, list, "array", path, kind)
        return [_decode(schema[0], entry, f"{path}[{index}]", kind, unknown) for index, entry in enumerate(value)]
    if isinstance(schema, tuple):
        _expect(value, dict, "map", path, kind)
        if schema[1] == S and all(type(entry) is str for entry in value.values()):
            return dict(value)
        return {key: _decode(schema[1], entry, f"{path}[{key}]", kind, unknown) for key, entry in value.items()}
    return _leaf(schema, value, path, kind)


def _copied(value: Any) -> Any:
    """Copy a JSON value, several times faster than copy.deepcopy."""
    if isinstance(value, dict):
        return {key: _copied(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_copied(entry) for entry in value]
    return value


def _expect(value: Any, expected_type: type, name: str, path: str, kind: str) -> None:
    if not isinstance(value, expected_type):
        raise bad_request(
            f"{kind} cannot be handled: json: cannot unmarshal {_name(value)} into field {path} of type {name}"
        )


def _name(value: Any) -> str:
    names = {bool: "bool", int: "number", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


_TYPES: Final[dict[str, type]] = {S: str, P: str, B: bool, I: int}


def _leaf(schema: str, value: Any, path: str, kind: str) -> Any:
    if schema == Q:
        text = ""
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            text = str(value)
        if not formats.is_quantity(text):
            rule = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            raise bad_request(f"{kind} cannot be handled: {path}: {rule}")
        return formats.canonical_quantity(text)
    if schema == T:
        _expect(value, str, "string", path, kind)
        if not _TIME.fullmatch(value):
            raise bad_request(f'{kind} cannot be handled: {path}: parsing time "{value}"')
        return value
    expected_type = _TYPES[schema]
    fits = isinstance(value, expected_type)
    if schema == I and fits:
        fits = not isinstance(value, bool) and -(2**63) <= value < 2**63
    if not fits:
        if schema == I and isinstance(value, (int, float)):
            shown = f"{_name(value)} {value}"
        else:
            shown = _name(value)
        text = f"json: cannot unmarshal {shown} into field {path} of type {S if schema == P else schema}"
        raise bad_request(f"{kind} cannot be handled: {text}")
    return value


def _tidy(schema: Type, value: Any) -> Any:
    if isinstance(schema, dict) and isinstance(value, dict):
        tidy_fields = {}
        for name, entry in value.items():
            kept = _tidy(schema[name], entry) if name in schema else entry
            kind = schema.get(name)
            optional = isinstance(kind, (list, tuple)) or kind == S
            if not optional or kept or entry is None:
                tidy_fields[name] = kept
        return tidy_fields
    if isinstance(schema, list) and isinstance(value, list):
        return [_tidy(schema[0], entry) for entry in value]
    if isinstance(schema, tuple) and isinstance(value, dict) and isinstance(schema[1], dict):
        return {key: _tidy(schema[1], entry) for key, entry in value.items()}
    return value
