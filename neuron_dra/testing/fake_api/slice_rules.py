"""What the API server refuses in a ResourceSlice: the limits of resource.k8s.io/v1, with the server's field paths."""

from __future__ import annotations

from neuron_dra.testing.fake_api import formats
from neuron_dra.testing.fake_api.errors import Cause, Obj, duplicate, invalid, required, too_long, too_many

_MOST_DEVICES = 128
_MOST_HEAVY_DEVICES = 64  # in a slice with taints, counters or attributes that are lists
_MOST_ENTRIES = 32  # attributes and capacities of a device, together
_MOST_VALUES = 48  # the same with every element of a list counted
_MOST_TAINTS = 16
_MOST_COUNTER_SETS = 8
_MOST_COUNTERS = 32
_MOST_CONSUMED_SETS = 2
_LONGEST_ID = 32
_LONGEST_DOMAIN = 63
_LONGEST_TEXT = 64
_SELECTIONS = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_SINGLE = ("string", "int", "bool", "version")
_LISTS = ("strings", "ints", "bools", "versions")
_EFFECTS = ("None", "NoSchedule", "NoExecute")


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
    chosen = [name for name in _SELECTIONS if spec.get(name)]
    for flag in ("allNodes", "perDeviceNodeSelection"):
        if spec.get(flag) is False:
            causes.append(invalid(f"spec.{flag}", "false", "must be either unset or set to true"))
    if spec.get("nodeName") == "":
        causes.append(invalid("spec.nodeName", "", "must be either unset or set to a non-empty string"))
    if not chosen:
        causes.append(required("spec", f"exactly one of {listed} is required"))
    elif len(chosen) > 1:
        shown = "{" + ", ".join(f"`{name}`" for name in chosen) + "}"
        causes.append(invalid("spec", shown, f"exactly one of {listed} is required, but multiple fields are set"))
    return causes


def _check_immutable(spec: Obj, old: Obj) -> list[Cause]:
    pairs = [
        ("spec.driver", spec.get("driver"), old.get("driver")),
        ("spec.pool.name", (spec.get("pool") or {}).get("name"), (old.get("pool") or {}).get("name")),
        ("spec.nodeName", spec.get("nodeName"), old.get("nodeName")),
    ]
    return [invalid(path, new, "field is immutable") for path, new, before in pairs if new != before]


def _heavy(device: Obj) -> bool:
    lists = any(kind in value for value in (device.get("attributes") or {}).values() for kind in _LISTS)
    return bool(device.get("taints") or device.get("consumesCounters") or lists)


def _check_devices(devices: list[Obj], own_selection: bool) -> list[Cause]:
    most = _MOST_HEAVY_DEVICES if any(_heavy(device) for device in devices) else _MOST_DEVICES
    if len(devices) > most:
        return [too_many("spec.devices", len(devices), most)]
    causes = []
    seen: set[str] = set()
    for index, device in enumerate(devices):
        path = f"spec.devices[{index}]"
        name = device.get("name") or ""
        if not name:
            causes.append(required(f"{path}.name"))
        elif not formats.is_label(name):
            causes.append(invalid(f"{path}.name", name, formats.LABEL_RULE))
        elif name in seen:
            causes.append(duplicate(f"{path}.name", name))
        seen.add(name)
        causes += _check_device(device, path)
        if own_selection != any(device.get(key) for key in ("nodeName", "nodeSelector", "allNodes")):
            causes.append(_selection_of_device(device, path, own_selection))
    return causes


def _selection_of_device(device: Obj, path: str, own_selection: bool) -> Cause:
    if own_selection:
        return required(path, "exactly one of `nodeName`, `nodeSelector`, `allNodes` is required when "
                              "`perDeviceNodeSelection` is set to true in the ResourceSlice spec")  # fmt: skip
    why = "can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
    key = next(key for key in ("nodeName", "nodeSelector", "allNodes") if device.get(key))
    return invalid(f"{path}.{key}", str(device[key]), why)


def _check_device(device: Obj, path: str) -> list[Cause]:
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    causes = []
    if len(attributes) + len(capacity) > _MOST_ENTRIES:
        text = f"the total number of attributes and capacities must not exceed {_MOST_ENTRIES}"
        causes.append(invalid(path, len(attributes) + len(capacity), text))
    values = sum(len(value[kind]) if kind in _LISTS else 1 for value in attributes.values() for kind in value)
    if values + len(capacity) > _MOST_VALUES:
        causes.append(
            invalid(f"{path}.attributes", values, f"the number of attribute values must not exceed {_MOST_VALUES}")
        )
    for key, value in attributes.items():
        causes += _check_name(key, f"{path}.attributes[{key}]")
        causes += _check_attribute(value, f"{path}.attributes[{key}]")
    for key, value in capacity.items():
        causes += _check_name(key, f"{path}.capacity[{key}]")
        if not formats.is_quantity(value.get("value")):
            causes.append(invalid(f"{path}.capacity[{key}].value", value.get("value"), "must be a quantity"))
        if value.get("requestPolicy") and not device.get("allowMultipleAllocations"):
            why = "allowed only when allowMultipleAllocations is true"
            causes.append(invalid(f"{path}.capacity[{key}].requestPolicy", "", why))
    causes += _check_taints(device.get("taints") or [], f"{path}.taints")
    return causes + _check_consumption(device.get("consumesCounters") or [], f"{path}.consumesCounters")


def _check_name(key: str, path: str) -> list[Cause]:
    domain, slash, name = key.rpartition("/")
    if not slash:
        name = key
    causes = []
    if slash and not domain:
        causes.append(invalid(path, "", "the domain must not be empty"))
    if domain:
        if len(domain) > _LONGEST_DOMAIN:
            causes.append(too_long(path, _LONGEST_DOMAIN))
        if not formats.is_subdomain(domain):
            causes.append(invalid(path, domain, formats.SUBDOMAIN_RULE))
    if not name:
        causes.append(invalid(path, "", "the name must not be empty"))
    else:
        if len(name) > _LONGEST_ID:
            causes.append(too_long(path, _LONGEST_ID))
        if not formats.is_id(name):
            causes.append(invalid(path, name, formats.ID_RULE))
    return causes


def _check_attribute(value: Obj, path: str) -> list[Cause]:
    kinds = [kind for kind in (*_SINGLE, *_LISTS) if value.get(kind) is not None]
    if len(kinds) != 1:
        return [invalid(path, "", "exactly one value must be specified")]
    kind = kinds[0]
    causes = []
    for index, element in enumerate(value[kind] if kind in _LISTS else [value[kind]]):
        where = f"{path}.{kind}[{index}]" if kind in _LISTS else f"{path}.{kind}"
        if kind.startswith(("string", "version")):
            if len(str(element).encode()) > _LONGEST_TEXT:
                causes.append(too_long(where, _LONGEST_TEXT))
            if kind.startswith("version") and not formats.is_semver(str(element)):
                causes.append(invalid(where, element, "must be a string compatible with semver.org spec 2.0.0"))
    return causes


def _check_taints(taints: list[Obj], path: str) -> list[Cause]:
    if len(taints) > _MOST_TAINTS:
        return [too_many(path, len(taints), _MOST_TAINTS)]
    causes = []
    for index, taint in enumerate(taints):
        if not taint.get("key"):
            causes.append(required(f"{path}[{index}].key"))
        if not taint.get("effect"):
            causes.append(required(f"{path}[{index}].effect"))
        elif taint["effect"] not in _EFFECTS:
            listed = ", ".join(f'"{effect}"' for effect in sorted(_EFFECTS))
            text = f'Unsupported value: "{taint["effect"]}": supported values: {listed}'
            causes.append(Cause("FieldValueNotSupported", text, f"{path}[{index}].effect"))
    return causes


def _check_consumption(entries: list[Obj], path: str) -> list[Cause]:
    if len(entries) > _MOST_CONSUMED_SETS:
        return [too_many(path, len(entries), _MOST_CONSUMED_SETS)]
    causes = []
    for index, entry in enumerate(entries):
        if not entry.get("counterSet"):
            causes.append(required(f"{path}[{index}].counterSet"))
        if not entry.get("counters"):
            causes.append(required(f"{path}[{index}].counters"))
    return causes


def _check_counter_sets(sets: list[Obj]) -> list[Cause]:
    if len(sets) > _MOST_COUNTER_SETS:
        return [too_many("spec.sharedCounters", len(sets), _MOST_COUNTER_SETS)]
    causes = []
    seen: set[str] = set()
    for index, entry in enumerate(sets):
        path, name = f"spec.sharedCounters[{index}]", entry.get("name") or ""
        if not name:
            causes.append(required(f"{path}.name"))
        elif not formats.is_label(name):
            causes.append(invalid(f"{path}.name", name, formats.LABEL_RULE))
        elif name in seen:
            causes.append(duplicate(f"{path}.name", name))
        seen.add(name)
        if not entry.get("counters"):
            causes.append(required(f"{path}.counters"))
        elif len(entry["counters"]) > _MOST_COUNTERS:
            causes.append(too_many(f"{path}.counters", len(entry["counters"]), _MOST_COUNTERS))
    return causes
