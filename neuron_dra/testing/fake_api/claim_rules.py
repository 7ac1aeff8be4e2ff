"""What the API server completes and refuses for claims, claim templates and device classes (resource.k8s.io/v1)."""

from __future__ import annotations

from collections.abc import Callable

from neuron_dra.testing.fake_api.errors import Cause, Obj, forbidden, invalid, required, too_many
from neuron_dra.testing.fake_api.formats import is_label, is_subdomain

_MOST = 32  # requests, constraints, configurations; selectors of a request
_MOST_RESULTS = 32
_MOST_CONSUMERS = 256
_MOST_ALTERNATIVES = 8
_MODES = ("ExactCount", "All")


def prepare_claim(obj: Obj, old: Obj | None) -> None:
    _default_requests(obj.get("spec") or {})


def prepare_template(obj: Obj, old: Obj | None) -> None:
    _default_requests((obj.get("spec") or {}).get("spec") or {})


def _default_requests(spec: Obj) -> None:
    for request in (spec.get("devices") or {}).get("requests") or []:
        for exact in [request.get("exactly"), *(request.get("firstAvailable") or [])]:
            if isinstance(exact, dict):
                mode = exact.setdefault("allocationMode", "ExactCount")
                if mode == "ExactCount":
                    exact.setdefault("count", 1)


def _immutable(field: str) -> Cause:
    return Cause("FieldValueInvalid", "Invalid value: field is immutable", field)


def check_claim(obj: Obj, old: Obj | None) -> list[Cause]:
    if old is not None:
        return [] if obj.get("spec") == old.get("spec") else [_immutable("spec")]
    return _check_spec(obj.get("spec") or {}, "spec")


def check_template(obj: Obj, old: Obj | None) -> list[Cause]:
    if old is not None:
        return [] if obj.get("spec") == old.get("spec") else [_immutable("spec")]
    return _check_spec((obj.get("spec") or {}).get("spec") or {}, "spec.spec")


def check_class(obj: Obj, old: Obj | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = _check_selectors(spec.get("selectors") or [], "spec.selectors")
    for index, config in enumerate(spec.get("config") or []):
        causes += _check_opaque(config, f"spec.config[{index}]")
    return causes


def _check_spec(spec: Obj, path: str) -> list[Cause]:
    devices = spec.get("devices") or {}
    causes = []
    for field in ("requests", "constraints", "config"):
        if len(devices.get(field) or []) > _MOST:
            causes.append(too_many(f"{path}.devices.{field}", len(devices[field]), _MOST))
    known: set[str] = set()
    for index, request in enumerate(devices.get("requests") or []):
        causes += _check_request(request, f"{path}.devices.requests[{index}]", known)
    for index, constraint in enumerate(devices.get("constraints") or []):
        where = f"{path}.devices.constraints[{index}]"
        causes += _check_references(constraint.get("requests") or [], known, f"{where}.requests")
        kinds = [key for key in ("matchAttribute", "distinctAttribute") if constraint.get(key)]
        if len(kinds) != 1:
            causes.append(required(where, "exactly one of `matchAttribute` or `distinctAttribute` is required"))
        for key in kinds:
            if "/" not in constraint[key]:
                causes.append(invalid(f"{where}.{key}", constraint[key], "must include a domain"))
    for index, config in enumerate(devices.get("config") or []):
        where = f"{path}.devices.config[{index}]"
        causes += _check_references(config.get("requests") or [], known, f"{where}.requests")
        causes += _check_opaque(config, where)
    return causes


def _check_request(request: Obj, path: str, known: set[str]) -> list[Cause]:
    name = request.get("name") or ""
    causes = []
    if not is_label(name):
        causes.append(required(f"{path}.name") if not name else invalid(f"{path}.name", name, "must be a DNS label"))
    if name in known:
        causes.append(Cause("FieldValueDuplicate", f'Duplicate value: "{name}"', f"{path}.name"))
    known.add(name)
    exact, alternatives = request.get("exactly"), request.get("firstAvailable")
    if bool(exact) == bool(alternatives):
        causes.append(required(path, "exactly one of `exactly` or `firstAvailable` is required"))
    if exact:
        causes += _check_exact(exact, f"{path}.exactly")
    if len(alternatives or []) > _MOST_ALTERNATIVES:
        causes.append(too_many(f"{path}.firstAvailable", len(alternatives or []), _MOST_ALTERNATIVES))
    for index, alternative in enumerate(alternatives or []):
        where = f"{path}.firstAvailable[{index}]"
        if not alternative.get("name"):
            causes.append(required(f"{where}.name"))
        known.add(f"{name}/{alternative.get('name')}")
        causes += _check_exact(alternative, where)
    return causes


def _check_exact(exact: Obj, path: str) -> list[Cause]:
    causes = [] if exact.get("deviceClassName") else [required(f"{path}.deviceClassName")]
    causes += _check_selectors(exact.get("selectors") or [], f"{path}.selectors")
    mode, count = exact.get("allocationMode"), exact.get("count")
    if mode not in _MODES:
        shown = f'Unsupported value: "{mode}": supported values: "All", "ExactCount"'
        causes.append(Cause("FieldValueNotSupported", shown, f"{path}.allocationMode"))
    if mode == "ExactCount" and (not isinstance(count, int) or count <= 0):
        causes.append(invalid(f"{path}.count", count, "must be greater than zero"))
    if mode == "All" and count:
        causes.append(invalid(f"{path}.count", count, "must not be specified when allocationMode is 'All'"))
    return causes


def _check_selectors(selectors: list[Obj], path: str) -> list[Cause]:
    if len(selectors) > _MOST:
        return [too_many(path, len(selectors), _MOST)]
    return [
        required(f"{path}[{index}].cel.expression")
        for index, selector in enumerate(selectors)
        if not (selector.get("cel") or {}).get("expression")
    ]


def _check_references(names: list[str], known: set[str], path: str) -> list[Cause]:
    why = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
    return [
        invalid(f"{path}[{index}]", name, why)
        for index, name in enumerate(names)
        if name not in known
    ]  # fmt: skip


def _check_opaque(config: Obj, path: str) -> list[Cause]:
    opaque = config.get("opaque")
    if not opaque:
        return [required(f"{path}.opaque")]
    causes = []
    if not is_subdomain(opaque.get("driver") or ""):
        causes.append(required(f"{path}.opaque.driver"))
    if not isinstance(opaque.get("parameters"), dict):
        causes.append(required(f"{path}.opaque.parameters"))
    return causes


def check_status(obj: Obj, old: Obj | None) -> list[Cause]:
    status, before = obj.get("status") or {}, (old or {}).get("status") or {}
    allocation, reserved = status.get("allocation"), status.get("reservedFor") or []
    causes = []
    if before.get("allocation") and allocation and allocation != before["allocation"]:
        causes.append(_immutable("status.allocation"))
    if reserved and not allocation:
        causes.append(forbidden("status.reservedFor", "may not be specified when `allocated` is not set"))
    if len(reserved) > _MOST_CONSUMERS:
        causes.append(too_many("status.reservedFor", len(reserved), _MOST_CONSUMERS))
    uids = [entry.get("uid") for entry in reserved]
    for index, uid in enumerate(uids):
        if uid in uids[:index]:
            causes.append(Cause("FieldValueDuplicate", f'Duplicate value: "{uid}"', f"status.reservedFor[{index}].uid"))
    if old is not None and old["metadata"].get("deletionTimestamp"):
        added = [uid for uid in uids if uid not in {entry.get("uid") for entry in before.get("reservedFor") or []}]
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
    known: set[str] = set()
    for request in ((obj.get("spec") or {}).get("devices") or {}).get("requests") or []:
        known.add(request["name"])
        known |= {f"{request['name']}/{sub['name']}" for sub in request.get("firstAvailable") or []}
    causes = []
    for index, result in enumerate(results):
        path = f"status.allocation.devices.results[{index}]"
        causes += _check_references([result.get("request") or ""], known, path)
        checks: dict[str, Callable[[str], bool]] = {"driver": is_subdomain, "pool": bool, "device": is_label}
        for field, valid in checks.items():
            if not valid(result.get(field) or ""):
                causes.append(required(f"{path}.{field}"))
    return causes


def _check_device_status(entries: list[Obj], results: list[Obj]) -> list[Cause]:
    def key(entry: Obj) -> tuple[object, ...]:
        return tuple(entry.get(field) for field in ("driver", "pool", "device", "shareID"))

    allocated = {key(result) for result in results}
    causes = []
    for index, entry in enumerate(entries):
        path = f"status.devices[{index}]"
        if key(entry) not in allocated:
            causes.append(invalid(path, str(key(entry)[:3]), "must be an allocated device in the claim"))
        if "data" in entry and not isinstance(entry["data"], dict):
            causes.append(invalid(f"{path}.data", "<value omitted>", "must be a valid JSON object"))
    return causes
