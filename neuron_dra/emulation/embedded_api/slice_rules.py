"""Validation of ResourceSlices: the limits of resource.k8s.io/v1, with the server's field paths."""

from __future__ import annotations

from neuron_dra.core import semver
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import formats
from neuron_dra.emulation.embedded_api.errors import Cause, duplicate, forbidden, invalid, required, too_long, too_many

_MOST_DEVICES = 128
_MOST_HEAVY_DEVICES = 64  # in a slice with taints or counters
_MOST_ENTRIES = 32  # attributes and capacities of a device, together
_MOST_TAINTS = 16
_MOST_COUNTER_SETS = 8
_MOST_COUNTERS = 32
_MOST_CONSUMED_SETS = 2
_MOST_BINDING = 4
_LONGEST_POOL = 253
_LONGEST_ID = 32
_LONGEST_DOMAIN = 63
_LONGEST_TEXT = 64
_SELECTIONS = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_SINGLE = ("int", "bool", "string", "version")
_LISTS = ("ints", "bools", "strings", "versions")  # needs a feature gate that is off by default
_EFFECTS = ("None", "NoSchedule", "NoExecute")


def prepare(obj: Obj, old: Obj | None, now: str) -> None:
    """Set the pool's default generation, and the time of taints that have none."""
    spec = obj.get("spec") or {}
    if isinstance(spec.get("pool"), dict):
        spec["pool"].setdefault("generation", 0)
        spec["pool"].setdefault("resourceSliceCount", 0)
    for device in spec.get("devices") or []:
        for taint in device.get("taints") or []:
            taint.setdefault("timeAdded", now)
        for capacity in (device.get("capacity") or {}).values():
            capacity.setdefault("value", "0")


def check(obj: Obj, old: Obj | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = _check_head(spec)
    devices, counters = spec.get("devices"), spec.get("sharedCounters")
    if devices is not None and counters is not None:
        causes.append(invalid("spec", "", "exactly one of `devices` and `sharedCounters` may be specified"))
    causes += _check_devices(devices or [], bool(spec.get("perDeviceNodeSelection")))
    causes += _check_counter_sets(counters or [])
    if old is not None:
        causes += _check_immutable(spec, old["spec"])
    return causes


def _check_head(spec: Obj) -> list[Cause]:
    causes = []
    driver, pool = spec.get("driver") or "", spec.get("pool") or {}
    if not driver:
        causes.append(required("spec.driver"))
    elif len(driver) > _LONGEST_DOMAIN:
        causes.append(too_long("spec.driver", _LONGEST_DOMAIN))
    elif not formats.is_subdomain(driver):
        causes.append(invalid("spec.driver", driver, formats.SUBDOMAIN_RULE))
    name = pool.get("name") or ""
    if not name:
        causes.append(required("spec.pool.name"))
    if len(name) > _LONGEST_POOL:
        causes.append(too_long("spec.pool.name", _LONGEST_POOL))
    for part in name.split("/") if name else []:
        if not formats.is_subdomain(part):
            causes.append(invalid("spec.pool.name", part, formats.SUBDOMAIN_RULE))
    if pool.get("resourceSliceCount", 0) <= 0:
        why = "must be greater than zero"
        causes.append(invalid("spec.pool.resourceSliceCount", pool.get("resourceSliceCount", 0), why))
    if pool.get("generation", 0) < 0:
        causes.append(invalid("spec.pool.generation", pool["generation"], "must be greater than or equal to zero"))
    return causes + _check_selection(spec)


def _check_selection(spec: Obj) -> list[Cause]:
    causes = []
    listed = ", ".join(f"`{name}`" for name in _SELECTIONS)
    chosen = []
    for name in _SELECTIONS:
        if spec.get(name) or isinstance(spec.get(name), dict):
            chosen.append(name)
    for flag in ("allNodes", "perDeviceNodeSelection"):
        if spec.get(flag) is False:
            causes.append(invalid(f"spec.{flag}", "false", "must be either unset or set to true"))
    if spec.get("nodeName") == "":
        causes.append(invalid("spec.nodeName", "", "must be either unset or set to a non-empty string"))
    elif spec.get("nodeName") and not formats.is_subdomain(spec["nodeName"]):
        causes.append(invalid("spec.nodeName", spec["nodeName"], formats.SUBDOMAIN_RULE))
    if "nodeSelector" in chosen:
        causes += _check_selector(spec["nodeSelector"], "spec.nodeSelector.nodeSelectorTerms")
    if not chosen:
        causes.append(required("spec", f"exactly one of {listed} is required"))
    elif len(chosen) > 1:
        shown = "{" + ", ".join(f"`{name}`" for name in chosen) + "}"
        causes.append(invalid("spec", shown, f"exactly one of {listed} is required, but multiple fields are set"))
    return causes


def _check_selector(selector: Obj, path: str) -> list[Cause]:
    terms = selector.get("nodeSelectorTerms") or []
    if terms:
        causes = []
    else:
        causes = [required(path, "must have at least one node selector term")]
    if len(terms) != 1:
        causes.append(invalid(path, str(terms), "must have exactly one node selector term"))
    return causes


def _check_immutable(spec: Obj, old: Obj) -> list[Cause]:
    pairs = [
        ("spec.driver", spec.get("driver"), old.get("driver")),
        ("spec.pool.name", (spec.get("pool") or {}).get("name"), (old.get("pool") or {}).get("name")),
        ("spec.nodeName", spec.get("nodeName"), old.get("nodeName")),
    ]
    causes = []
    for path, new, before in pairs:
        if new != before:
            causes.append(invalid(path, new, "field is immutable"))
    return causes


def _heavy(device: Obj) -> bool:
    return bool(device.get("taints") or device.get("consumesCounters"))


def _check_devices(devices: list[Obj], own_selection: bool) -> list[Cause]:
    if any(_heavy(device) for device in devices):
        most = _MOST_HEAVY_DEVICES
    else:
        most = _MOST_DEVICES
    if len(devices) > most:
        return [too_many("spec.devices", len(devices), most)]
    causes = []
    seen: set[str] = set()
    for index, device in enumerate(devices):
        path = f"spec.devices[{index}]"
        name = device.get("name") or ""
        if not formats.is_label(name):
            causes.append(invalid(f"{path}.name", name, formats.LABEL_RULE))
        elif name in seen:
            causes.append(duplicate(path, name))
        seen.add(name)
        causes += _check_device(device, path)
        if own_selection != any(device.get(key) for key in ("nodeName", "nodeSelector", "allNodes")):
            causes.append(_selection_of_device(device, path, own_selection))
    return causes


def _selection_of_device(device: Obj, path: str, own_selection: bool) -> Cause:
    if own_selection:
        return required(path, "exactly one of `nodeName`, `nodeSelector`, `allNodes` is required when "
                              "`perDeviceNodeSelection` is set to true in the ResourceSlice spec")  # fmt: skip
    why = (
        "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the "
        "ResourceSlice spec"
    )
    return invalid(path, None, why)


def _check_device(device: Obj, path: str) -> list[Cause]:
    attributes = device.get("attributes") or {}
    capacity = device.get("capacity") or {}
    causes = []
    if len(attributes) + len(capacity) > _MOST_ENTRIES:
        text = f"the total number of attributes and capacities must not exceed {_MOST_ENTRIES}"
        causes.append(invalid(path, len(attributes) + len(capacity), text))
    for key, value in attributes.items():
        causes += _check_name(key, f"{path}.attributes")
        causes += _check_attribute(value, f"{path}.attributes[{key}]")
    for key, value in capacity.items():
        causes += _check_name(key, f"{path}.capacity")
        if value.get("requestPolicy") and not device.get("allowMultipleAllocations"):
            where = f"{path}.capacity[{key}].requestPolicy"
            causes.append(forbidden(where, "allowMultipleAllocations must be true"))
    causes += _check_taints(device.get("taints") or [], f"{path}.taints")
    causes += _check_binding(device, path)
    return causes + _check_consumption(device.get("consumesCounters") or [], f"{path}.consumesCounters")


def _check_name(key: str, path: str) -> list[Cause]:
    """Check the key of an attribute or capacity. Keys with two slashes are accepted, as by the real server."""
    parts = key.split("/")
    if len(parts) > 2:
        return []
    causes = []
    if len(parts) == 2:
        domain = parts[0]
        if not domain:
            causes.append(invalid(path, "", "the domain must not be empty"))
        elif len(domain) > _LONGEST_DOMAIN:
            causes.append(too_long(path, _LONGEST_DOMAIN))
        elif not formats.is_subdomain(domain.lower()):
            causes.append(invalid(path, domain, formats.SUBDOMAIN_RULE))
    name = parts[-1]
    if len(parts) == 2 and not name:
        causes.append(invalid(path, "", "the name must not be empty"))
        return causes
    if len(name) > _LONGEST_ID:
        causes.append(too_long(path, _LONGEST_ID))
    if not formats.is_id(name):
        causes.append(invalid(path, name, formats.ID_RULE))
    return causes


def _check_attribute(value: Obj, path: str) -> list[Cause]:
    kinds = [kind for kind in _SINGLE if value.get(kind) is not None]
    if len(kinds) != 1:
        listed = ", ".join(f"`{kind}`" for kind in (*_SINGLE, *_LISTS))
        return [invalid(path, "", f"must specify one of: {listed}")]
    kind = kinds[0]
    causes = []
    where = f"{path}.{kind}"
    if kind in ("string", "version"):
        if len(value[kind].encode()) > _LONGEST_TEXT:
            causes.append(too_long(where, _LONGEST_TEXT))
        if kind == "version" and not semver.is_admitted(value[kind]):
            causes.append(invalid(where, value[kind], "must be a string compatible with semver.org spec 2.0.0"))
    return causes


def _check_taints(taints: list[Obj], path: str) -> list[Cause]:
    if len(taints) > _MOST_TAINTS:
        return [too_many(path, len(taints), _MOST_TAINTS)]
    causes = []
    for index, taint in enumerate(taints):
        if not formats.is_label_key(taint.get("key") or ""):
            causes.append(invalid(f"{path}[{index}].key", taint.get("key") or "", "must be a label name"))
        if not formats.is_label_value(taint.get("value") or ""):
            causes.append(invalid(f"{path}[{index}].value", taint["value"], "must be a label value"))
        if not taint.get("effect"):
            causes.append(required(f"{path}[{index}].effect"))
        elif taint["effect"] not in _EFFECTS:
            listed = ", ".join(f'"{effect}"' for effect in sorted(_EFFECTS))
            text = f'Unsupported value: "{taint["effect"]}": supported values: {listed}'
            causes.append(Cause("FieldValueNotSupported", text, f"{path}[{index}].effect"))
    return causes


def _check_binding(device: Obj, path: str) -> list[Cause]:
    conditions = device.get("bindingConditions") or []
    failures = device.get("bindingFailureConditions") or []
    causes = []
    for field, entries in (("bindingConditions", conditions), ("bindingFailureConditions", failures)):
        if len(entries) > _MOST_BINDING:
            causes.append(too_many(f"{path}.{field}", len(entries), _MOST_BINDING))
    if conditions and not failures:
        why = "bindingFailureConditions are required to use bindingConditions"
        causes.append(invalid(f"{path}.bindingFailureConditions", None, why))
    if failures and not conditions:
        why = "bindingConditions are required to use bindingFailureConditions"
        causes.append(invalid(f"{path}.bindingConditions", None, why))
    for index, condition in enumerate(failures):
        if condition in conditions:
            why = "bindingFailureConditions must not overlap with bindingConditions"
            causes.append(invalid(f"{path}.bindingFailureConditions[{index}]", condition, why))
    return causes


def _check_consumption(entries: list[Obj], path: str) -> list[Cause]:
    if len(entries) > _MOST_CONSUMED_SETS:
        return [too_many(path, len(entries), _MOST_CONSUMED_SETS)]
    causes = []
    seen: set[str] = set()
    for index, consumption in enumerate(entries):
        name = consumption.get("counterSet") or ""
        counters = consumption.get("counters") or {}
        if not name:
            causes.append(required(f"{path}[{index}].counterSet"))
        elif name in seen:
            causes.append(duplicate(f"{path}[{index}]", name))
        seen.add(name)
        if not counters:
            causes.append(required(f"{path}[{index}].counters"))
        elif len(counters) > _MOST_COUNTERS:
            causes.append(too_many(f"{path}[{index}].counters", len(counters), _MOST_COUNTERS))
    return causes


def _check_counter_sets(sets: list[Obj]) -> list[Cause]:
    if len(sets) > _MOST_COUNTER_SETS:
        return [too_many("spec.sharedCounters", len(sets), _MOST_COUNTER_SETS)]
    causes = []
    seen: set[str] = set()
    for index, counter_set in enumerate(sets):
        path, name = f"spec.sharedCounters[{index}]", counter_set.get("name") or ""
        if not name:
            causes.append(required(f"{path}.name"))
        elif not formats.is_label(name):
            causes.append(invalid(f"{path}.name", name, formats.LABEL_RULE))
        elif name in seen:
            causes.append(duplicate(path, name))
        seen.add(name)
        causes += [
            invalid(f"{path}.counters", key, formats.LABEL_RULE)
            for key in counter_set.get("counters") or {}
            if not formats.is_label(key)
        ]
        if not counter_set.get("counters"):
            causes.append(required(f"{path}.counters"))
        elif len(counter_set["counters"]) > _MOST_COUNTERS:
            causes.append(too_many(f"{path}.counters", len(counter_set["counters"]), _MOST_COUNTERS))
    return causes
