"""Defaults and validation of the core and policy kinds."""

from __future__ import annotations

import ipaddress

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import formats
from neuron_dra.emulation.embedded_api.errors import Cause, duplicate, forbidden, invalid, required

# The fields of a pod's spec that may change after creation.
_MUTABLE_POD_FIELDS = {"activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations", "schedulingGates"}


def prepare_namespace(obj: Obj, old: Obj | None, now: str) -> None:
    if old is None:
        obj.setdefault("spec", {})["finalizers"] = ["kubernetes"]
        obj["status"] = {"phase": "Active"}
        obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"]["name"]


def prepare_pod(obj: Obj, old: Obj | None, now: str) -> None:
    """Set the defaults that scheduling and deletion read. A pod's many other defaults are left out."""
    if old is not None:
        return
    spec = obj.setdefault("spec", {})
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("serviceAccountName", "default")
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        resources = container.get("resources") or {}
        for field in {"limits", "requests"} & set(resources):
            resources[field] = {name: str(amount) for name, amount in (resources[field] or {}).items()}
    obj["status"] = {"phase": "Pending", "qosClass": "BestEffort"}


def check_pod(obj: Obj, old: Obj | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    if old is not None:
        return _check_pod_update(spec, old.get("spec") or {})
    causes = [] if spec.get("containers") else [required("spec.containers")]
    claims = spec.get("resourceClaims") or []
    names = [claim.get("name") or "" for claim in claims]
    for index, claim in enumerate(claims):
        causes += _check_pod_claim(claim, f"spec.resourceClaims[{index}]", names[:index])
    for kind in ("initContainers", "containers"):
        containers = spec.get(kind) or []
        for index, container in enumerate(containers):
            path = f"spec.{kind}[{index}]"
            if container.get("name") in [other.get("name") for other in containers[:index]]:
                causes.append(duplicate(f"{path}.name", container["name"]))
            claim_requests = (container.get("resources") or {}).get("claims") or []
            for position, claim_request in enumerate(claim_requests):
                where = f"{path}.resources.claims[{position}]"
                if claim_request in claim_requests[:position]:
                    causes.append(duplicate(where, claim_request.get("name") or ""))
                elif claim_request.get("name") not in names:
                    rule = "must be one of the names in pod.spec.resourceClaims"
                    text = f'Not found: "{claim_request.get("name")}": {rule}'
                    causes.append(Cause("FieldValueNotFound", text, where))
    return causes


def _check_pod_claim(claim: Obj, path: str, earlier: list[str]) -> list[Cause]:
    name = claim.get("name") or ""
    causes = []
    if not name:
        causes.append(required(f"{path}.name"))
    elif not formats.is_label(name):
        causes.append(invalid(f"{path}.name", name, formats.LABEL_RULE))
    elif name in earlier:
        causes.append(duplicate(f"{path}.name", name))
    sources = []
    for key in ("resourceClaimName", "resourceClaimTemplateName"):
        if claim.get(key):
            sources.append(key)
    if len(sources) != 1:
        why = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
        if sources:
            why = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
        causes.append(invalid(path, name, why))
    return causes


def _check_pod_update(spec: Obj, old: Obj) -> list[Cause]:
    def fixed(source: Obj) -> Obj:
        fixed_fields = {}
        for key, value in source.items():
            if key not in {*_MUTABLE_POD_FIELDS, *_containers(source)}:
                fixed_fields[key] = value
        return fixed_fields

    if fixed(spec) == fixed(old):
        return []
    why = (
        "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
        "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
        "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
    )
    return [forbidden("spec", why)]


def _containers(spec: Obj) -> set[str]:
    return {"containers", "initContainers"} & set(spec)


_FAMILIES = {"IPv4": ipaddress.IPv4Address, "IPv6": ipaddress.IPv6Address}


def check_endpoint_slice(obj: Obj, old: Obj | None) -> list[Cause]:
    """Check the address family, which cannot change, and that the addresses are of it."""
    family = obj.get("addressType") or ""
    if old is not None and family != old["addressType"]:
        return [invalid("addressType", family, "field is immutable")]
    if not family:
        return [required("addressType")]
    if family not in (*_FAMILIES, "FQDN"):
        text = f'Unsupported value: "{family}": supported values: "FQDN", "IPv4", "IPv6"'
        return [Cause("FieldValueNotSupported", text, "addressType")]
    causes = []
    for index, endpoint in enumerate(obj.get("endpoints") or []):
        path = f"endpoints[{index}].addresses"
        addresses = endpoint.get("addresses") or []
        if not addresses:
            causes.append(required(path))
        for position, address in enumerate(addresses):
            if family in _FAMILIES and not _is_address(address, family):
                causes.append(invalid(f"{path}[{position}]", address, f"must be an {family} address"))
    return causes


def _is_address(text: str, family: str) -> bool:
    try:
        _FAMILIES[family](text)
    except ValueError:
        return False
    return True


def check_budget(obj: Obj, old: Obj | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        return [invalid("spec", "", "minAvailable and maxUnavailable cannot be both set")]
    return []
