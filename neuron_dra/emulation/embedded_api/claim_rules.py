"""Defaults and validation of claims, claim templates and device classes (resource.k8s.io/v1)."""

from __future__ import annotations

from collections.abc import Callable

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import bodies, formats
from neuron_dra.emulation.embedded_api.errors import Cause, duplicate, forbidden, invalid, required, too_long, too_many

_MOST = 32  # requests, constraints, configurations; selectors of a request
_MOST_RESULTS = 32
_MOST_CONSUMERS = 256
_MOST_ALTERNATIVES = 8
_LONGEST_PARAMETERS = 10 * 1024  # bytes
_MODES = ("ExactCount", "All")
_OPERATORS = ("Equal", "Exists")
_EFFECTS = ("None", "NoSchedule", "NoExecute")
_ADMIN_LABEL = "resource.kubernetes.io/admin-access"


def prepare_claim(obj: Obj, old: Obj | None, now: str) -> None:
    obj["spec"] = _complete(obj.get("spec") or {})
    for device_status in obj.setdefault("status", {}).get("devices") or []:
        device_status.setdefault("conditions", None)  # as Go encodes a nil slice


def prepare_template(obj: Obj, old: Obj | None, now: str) -> None:
    obj["spec"] = {**(obj.get("spec") or {}), "spec": _complete((obj.get("spec") or {}).get("spec") or {})}


def prepare_class(obj: Obj, old: Obj | None, now: str) -> None:
    obj.setdefault("spec", {})


def _complete(spec: Obj) -> Obj:
    """Set the defaults of requests. A claim without requests gets null, as Go encodes a nil slice."""
    devices = dict(spec.get("devices") or {})
    devices["requests"] = devices.get("requests") or None
    for request in devices["requests"] or []:
        for exact in [request.get("exactly"), *(request.get("firstAvailable") or [])]:
            if exact is not None:
                exact.setdefault("allocationMode", "ExactCount")
                if exact["allocationMode"] == "ExactCount":
                    exact["count"] = exact.get("count") or 1
    return {**spec, "devices": devices}


def _immutable(field: str) -> Cause:
    return Cause("FieldValueInvalid", "Invalid value: field is immutable", field)


def check_claim(obj: Obj, old: Obj | None) -> list[Cause]:
    if old is not None:
        if obj.get("spec") == old.get("spec"):
            return []
        return [_immutable("spec")]
    return _check_spec(obj["spec"], "spec")


def check_template(obj: Obj, old: Obj | None) -> list[Cause]:
    if old is not None:
        if obj.get("spec") == old.get("spec"):
            return []
        return [_immutable("spec")]
    meta = obj["spec"].get("metadata") or {}
    causes = [
        forbidden(f"spec.metadata.{key}", "cannot be set") for key in meta if key not in ("labels", "annotations")
    ]
    for field in ("labels", "annotations"):
        for key in meta.get(field) or {}:
            if not formats.is_label_key(key):
                causes.append(invalid(f"spec.metadata.{field}", key, "must be a label key"))
    return causes + _check_spec(obj["spec"]["spec"], "spec.spec")


def check_class(obj: Obj, old: Obj | None) -> list[Cause]:
    spec = obj["spec"]
    causes = _check_selectors(spec.get("selectors") or [], "spec.selectors")
    if len(spec.get("config") or []) > _MOST:
        return [*causes, too_many("spec.config", len(spec["config"]), _MOST)]
    for index, config in enumerate(spec.get("config") or []):
        causes += _check_opaque(config, f"spec.config[{index}]")
    name = spec.get("extendedResourceName")
    if name and "/" not in name:
        why = "a name must be a domain-prefixed path, such as 'example.com/my-prop'"
        causes.append(invalid("spec.extendedResourceName", name, why))
    return causes


def check_admin(obj: Obj, namespace: Obj) -> list[Cause]:
    """Reject admin access in a namespace without the label that permits it."""
    if (namespace["metadata"].get("labels") or {}).get(_ADMIN_LABEL) == "true":
        return []
    spec = obj["spec"].get("spec") or obj["spec"]
    why = f"admin access to devices requires the `{_ADMIN_LABEL}: true` label on the containing namespace"
    causes = []
    for index, request in enumerate(spec["devices"]["requests"] or []):
        if (request.get("exactly") or {}).get("adminAccess"):
            causes.append(forbidden(f"spec.devices.requests[{index}].adminAccess", why))
    return causes


def _check_spec(spec: Obj, path: str) -> list[Cause]:
    devices = spec["devices"]
    causes = []
    for field in ("requests", "constraints", "config"):
        if len(devices.get(field) or []) > _MOST:
            causes.append(too_many(f"{path}.devices.{field}", len(devices[field]), _MOST))
    if causes:
        return causes
    request_names: set[str] = set()
    for index, request in enumerate(devices["requests"] or []):
        causes += _check_request(request, f"{path}.devices.requests[{index}]", request_names)
    for index, constraint in enumerate(devices.get("constraints") or []):
        causes += _check_constraint(constraint, f"{path}.devices.constraints[{index}]", request_names)
    for index, config in enumerate(devices.get("config") or []):
        where = f"{path}.devices.config[{index}]"
        causes += _check_references(config.get("requests") or [], request_names, f"{where}.requests")
        causes += _check_opaque(config, where)
    return causes


def _check_constraint(constraint: Obj, path: str, request_names: set[str]) -> list[Cause]:
    causes = _check_references(constraint.get("requests") or [], request_names, f"{path}.requests")
    kinds = [key for key in ("matchAttribute", "distinctAttribute") if constraint.get(key)]
    if not kinds:
        causes.append(required(path, "exactly one of `matchAttribute` or `distinctAttribute` is required"))
    for key in kinds:
        domain, slash, name = constraint[key].partition("/")
        if not slash:
            causes.append(invalid(f"{path}.{key}", constraint[key], "must include a domain"))
        elif not formats.is_subdomain(domain.lower()):
            causes.append(invalid(f"{path}.{key}", domain, formats.SUBDOMAIN_RULE))
        elif not formats.is_id(name):
            causes.append(invalid(f"{path}.{key}", name, formats.ID_RULE))
    return causes


def _check_request(request: Obj, path: str, request_names: set[str]) -> list[Cause]:
    name = request.get("name") or ""
    if formats.is_label(name):
        causes = []
    else:
        causes = [invalid(f"{path}.name", name, formats.LABEL_RULE)]
    if name in request_names:
        causes.append(duplicate(path, name))
    request_names.add(name)
    exact = request.get("exactly")
    alternatives = request.get("firstAvailable") or []
    rule = "exactly one of `exactly` or `firstAvailable` is required"
    if exact is None and not alternatives:
        causes.append(required(path, rule))
    elif exact is not None and alternatives:
        causes.append(invalid(path, None, f"{rule}, but multiple fields are set"))
        return causes
    if exact is not None:
        causes += _check_exact(exact, f"{path}.exactly")
    if len(alternatives) > _MOST_ALTERNATIVES:
        causes.append(too_many(f"{path}.firstAvailable", len(alternatives), _MOST_ALTERNATIVES))
    for index, alternative in enumerate(alternatives[:_MOST_ALTERNATIVES]):
        where = f"{path}.firstAvailable[{index}]"
        sub = alternative.get("name") or ""
        if not formats.is_label(sub):
            causes.append(invalid(f"{where}.name", sub, formats.LABEL_RULE))
        elif f"{name}/{sub}" in request_names:
            causes.append(duplicate(where, sub))
        request_names.add(f"{name}/{sub}")
        causes += _check_exact(alternative, where)
    return causes


def _check_exact(exact: Obj, path: str) -> list[Cause]:
    name = exact.get("deviceClassName") or ""
    causes = [] if name else [required(f"{path}.deviceClassName")]
    if name and not formats.is_subdomain(name):
        causes.append(invalid(f"{path}.deviceClassName", name, formats.SUBDOMAIN_RULE))
    causes += _check_selectors(exact.get("selectors") or [], f"{path}.selectors")
    mode, count = exact.get("allocationMode") or "", exact.get("count") or 0
    if mode not in _MODES:
        causes.append(_unsupported(f"{path}.allocationMode", mode, _MODES))
    if mode == "ExactCount" and count <= 0:
        causes.append(invalid(f"{path}.count", count, "must be greater than zero"))
    if mode == "All" and count:
        causes.append(invalid(f"{path}.count", count, "must not be specified when allocationMode is 'All'"))
    return causes + _check_tolerations(exact.get("tolerations") or [], f"{path}.tolerations")


def _unsupported(path: str, value: str, supported_values: tuple[str, ...]) -> Cause:
    listed = ", ".join(f'"{supported}"' for supported in sorted(supported_values))
    return Cause("FieldValueNotSupported", f'Unsupported value: "{value}": supported values: {listed}', path)


def _check_tolerations(tolerations: list[Obj], path: str) -> list[Cause]:
    causes = []
    for index, toleration in enumerate(tolerations):
        for field, supported_values in (("operator", _OPERATORS), ("effect", _EFFECTS)):
            value = toleration.get(field) or ("Equal" if field == "operator" else "")
            if value and value not in supported_values:
                causes.append(_unsupported(f"{path}[{index}].{field}", value, supported_values))
    return causes


def _check_selectors(selectors: list[Obj], path: str) -> list[Cause]:
    """Check selectors except for their expressions: this server does not compile CEL."""
    if len(selectors) > _MOST:
        return [too_many(path, len(selectors), _MOST)]
    causes = []
    for index, selector in enumerate(selectors):
        if selector.get("cel") is None:
            causes.append(required(f"{path}[{index}].cel"))
        elif not selector["cel"].get("expression"):
            causes.append(invalid(f"{path}[{index}].cel.expression", "", "compilation failed: there is no expression"))
    return causes


def _check_references(names: list[str], request_names: set[str], path: str) -> list[Cause]:
    why = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
    causes = []
    for index, name in enumerate(names):
        if name not in request_names:
            causes.append(invalid(f"{path}[{index}]", name, why))
        if name in names[:index]:
            causes.append(duplicate(f"{path}[{index}]", name))
    return causes


def _check_opaque(config: Obj, path: str) -> list[Cause]:
    opaque = config.get("opaque")
    if not opaque:
        return [required(f"{path}.opaque")]
    causes = []
    driver, parameters = opaque.get("driver") or "", opaque.get("parameters")
    if not driver:
        causes.append(required(f"{path}.opaque.driver"))
    elif not formats.is_subdomain(driver.lower()):
        causes.append(invalid(f"{path}.opaque.driver", driver, formats.SUBDOMAIN_RULE))
    if parameters is None:
        causes.append(required(f"{path}.opaque.parameters"))
    elif not bodies.is_object(parameters):
        causes.append(invalid(f"{path}.opaque.parameters", "<value omitted>", "must be a valid JSON object"))
    elif bodies.size(parameters) > _LONGEST_PARAMETERS:
        causes.append(too_long(f"{path}.opaque.parameters", _LONGEST_PARAMETERS))
    return causes


def check_status(obj: Obj, old: Obj | None) -> list[Cause]:
    status, before = obj.get("status") or {}, (old or {}).get("status") or {}
    allocation = status.get("allocation")
    reserved = status.get("reservedFor") or []
    causes = []
    if before.get("allocation") and allocation and allocation != before["allocation"]:
        causes.append(_immutable("status.allocation"))
    if reserved and not allocation:
        causes.append(forbidden("status.reservedFor", "may not be specified when `allocated` is not set"))
    if len(reserved) > _MOST_CONSUMERS:
        causes.append(too_many("status.reservedFor", len(reserved), _MOST_CONSUMERS))
    uids = [consumer.get("uid") for consumer in reserved]
    for index, uid in enumerate(uids):
        if uid in uids[:index]:
            causes.append(Cause("FieldValueDuplicate", f'Duplicate value: "{uid}"', f"status.reservedFor[{index}].uid"))
    if old is not None and old["metadata"].get("deletionTimestamp"):
        old_uids = {consumer.get("uid") for consumer in before.get("reservedFor") or []}
        added = [uid for uid in uids if uid not in old_uids]
        if added:
            causes.append(
                forbidden("status.reservedFor", "new entries may not be added while `deletionTimestamp` is set")
            )
    results = ((allocation or {}).get("devices") or {}).get("results") or []
    if len(results) > _MOST_RESULTS:
        causes.append(too_many("status.allocation.devices.results", len(results), _MOST_RESULTS))
    causes += _check_results(obj, results)
    return causes + _check_device_status(status.get("devices") or [], results)


def _check_results(obj: Obj, results: list[Obj]) -> list[Cause]:
    request_names: set[str] = set()
    for request in obj["spec"]["devices"]["requests"] or []:
        request_names.add(request["name"])
        request_names |= {f"{request['name']}/{sub['name']}" for sub in request.get("firstAvailable") or []}
    causes = []
    for index, result in enumerate(results):
        path = f"status.allocation.devices.results[{index}]"
        causes += _check_references([result.get("request") or ""], request_names, path)
        checks: dict[str, Callable[[str], bool]] = {
            "driver": formats.is_subdomain,
            "pool": bool,
            "device": formats.is_label,
        }
        for field, valid in checks.items():
            if not valid(result.get(field) or ""):
                causes.append(required(f"{path}.{field}"))
    return causes


def _check_device_status(entries: list[Obj], results: list[Obj]) -> list[Cause]:
    def key(device: Obj) -> tuple[object, ...]:
        return tuple(device.get(field) for field in ("driver", "pool", "device", "shareID"))

    allocated = {key(result) for result in results}
    causes = []
    for index, device_status in enumerate(entries):
        path = f"status.devices[{index}]"
        if key(device_status) not in allocated:
            causes.append(invalid(path, str(key(device_status)[:3]), "must be an allocated device in the claim"))
        if "data" in device_status and not bodies.is_object(device_status["data"]):
            causes.append(invalid(f"{path}.data", "<value omitted>", "must be a valid JSON object"))
    return causes
