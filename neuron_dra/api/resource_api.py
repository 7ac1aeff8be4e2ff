"""Objects of resource.k8s.io/v1beta1 and v1beta2, rewritten as v1."""

from __future__ import annotations

from typing import Any

from neuron_dra.api.problems import BadInput, CannotMigrate

GROUP = "resource.k8s.io/"
OLD = ("v1beta1", "v1beta2")


def to_v1(value: dict[str, Any], where: str) -> None:
    """Change `value` in place if it is an object of a beta version of resource.k8s.io.

    v1beta2 has the fields of v1. In v1beta1 a request without alternatives has its fields beside its name, v1 has them
    in `exactly`; the device of a slice has them in `basic`, v1 has them in the device.
    """
    version = str(value.get("apiVersion", ""))
    if not version.startswith(GROUP) or version == f"{GROUP}v1":
        return
    if version.removeprefix(GROUP) not in OLD:
        raise CannotMigrate(f"{where or 'apiVersion'}: {version} is not supported; write it as {GROUP}v1 by hand")
    value["apiVersion"] = f"{GROUP}v1"
    if version.endswith("v1beta2"):
        return
    spec = value.get("spec")
    if value.get("kind") == "ResourceClaimTemplate":
        spec = spec.get("spec") if isinstance(spec, dict) else None
    devices = spec.get("devices") if isinstance(spec, dict) else None
    if value.get("kind") == "ResourceSlice":
        _devices(devices)
    elif isinstance(devices, dict):
        _requests(devices, where)


def below_exactly(value: dict[str, Any], where: str) -> None:
    """Change `value` in place if it is a claim of v1 whose requests have their fields where v1beta1 had them."""
    spec = value.get("spec")
    if value.get("kind") == "ResourceClaimTemplate":
        spec = spec.get("spec") if isinstance(spec, dict) else None
    devices = spec.get("devices") if isinstance(spec, dict) else None
    is_claim = value.get("kind") in ("ResourceClaim", "ResourceClaimTemplate")
    if is_claim and value.get("apiVersion") in (f"{GROUP}v1", f"{GROUP}v1beta2") and isinstance(devices, dict):
        _requests(devices, where)


def _requests(devices: dict[str, Any], where: str) -> None:
    requests = devices.get("requests")
    if requests is not None and not isinstance(requests, list):
        raise BadInput(f"{where or 'spec'}: devices.requests is not a list")
    for index, request in enumerate(requests or ()):
        if not isinstance(request, dict):
            raise BadInput(f"{where or 'spec'}: devices.requests[{index}] is not a mapping")
        fields = [key for key in request if key not in ("name", "firstAvailable", "exactly")]
        if fields and "exactly" not in request and not request.get("firstAvailable"):
            exactly = {key: request[key] for key in fields}
            for key in fields:
                del request[key]
            request["exactly"] = exactly


def _devices(devices: Any) -> None:
    for index, device in enumerate(devices if isinstance(devices, list) else ()):
        if isinstance(device, dict) and isinstance(device.get("basic"), dict):
            rest = {key: value for key, value in device.items() if key != "basic"}
            devices[index] = {**rest, **device["basic"]}
