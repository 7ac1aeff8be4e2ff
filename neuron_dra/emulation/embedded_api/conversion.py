"""Converts resource.k8s.io/v1beta1 and v1beta2 to and from v1, the stored version.

v1beta2 has the schema of v1. v1beta1 has no `exactly` (the fields are in the request itself) and nests a device's
fields in `basic`.
"""

from __future__ import annotations

from collections.abc import Callable

from neuron_dra.emulation.embedded_api.errors import Obj

# The fields of a v1beta1 request that v1 has in `exactly`.
_EXACT_FIELDS = ("deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity")


def to_storage(kind: str, version: str, obj: Obj) -> Obj:
    """Return `obj`, which a client sent in `version`, in v1 form; the argument is not changed."""
    return _convert(kind, version, obj, _request_to_v1, _device_to_v1)


def from_storage(kind: str, version: str, obj: Obj) -> Obj:
    """Return the stored `obj` in the form of `version`; the argument is not changed."""
    return _convert(kind, version, obj, _request_to_v1beta1, _device_to_v1beta1)


def _convert(
    kind: str, version: str, obj: Obj, request: Callable[[Obj], Obj], device: Callable[[Obj], Obj]
) -> Obj:  # fmt: skip
    spec = obj.get("spec")
    if version != "v1beta1" or not isinstance(spec, dict):
        return obj
    if kind == "ResourceClaim":
        return {**obj, "spec": _claim_spec(spec, request)}
    if kind == "ResourceClaimTemplate" and isinstance(spec.get("spec"), dict):
        return {**obj, "spec": {**spec, "spec": _claim_spec(spec["spec"], request)}}
    if kind == "ResourceSlice" and isinstance(spec.get("devices"), list):
        return {**obj, "spec": {**spec, "devices": [device(entry) for entry in spec["devices"]]}}
    return obj


def _claim_spec(spec: Obj, request: Callable[[Obj], Obj]) -> Obj:
    devices = spec.get("devices")
    if not isinstance(devices, dict) or not isinstance(devices.get("requests"), list):
        return spec
    return {**spec, "devices": {**devices, "requests": [request(entry) for entry in devices["requests"]]}}


def _request_to_v1(request: Obj) -> Obj:
    exact = {key: request[key] for key in _EXACT_FIELDS if key in request}
    rest = {key: value for key, value in request.items() if key not in (*_EXACT_FIELDS, "exactly")}
    return {**rest, "exactly": exact} if exact else rest


def _request_to_v1beta1(request: Obj) -> Obj:
    rest = {key: value for key, value in request.items() if key != "exactly"}
    return {**rest, **(request.get("exactly") or {"deviceClassName": ""})}


def _device_to_v1(device: Obj) -> Obj:
    return {"name": device.get("name"), **(device.get("basic") or {})}


def _device_to_v1beta1(device: Obj) -> Obj:
    return {"name": device["name"], "basic": {key: value for key, value in device.items() if key != "name"}}
