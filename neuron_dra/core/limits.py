"""The API server's rules for published devices, checked in advance: it rejects a whole slice for one bad value.

Values come from hardware, labels and users, so any of them may be too long or malformed. A bad value costs only its own
attribute or device, and the log names it.

Source: kubernetes/api@v0.37 resource/v1/types.go and Kubernetes' validation.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from neuron_dra.core import semver
from neuron_dra.core.devices import Attribute, Device

ATTRIBUTES_AND_CAPACITIES = 32
WORKLOAD_TAGS = 5  # space kept for workloadId, workloadNamespace, workloadUid, allocationId, workloadPhase
HEALTH_MARKS = 1  # space kept for the attribute `unhealthy`
ROOM = ATTRIBUTES_AND_CAPACITIES - WORKLOAD_TAGS - HEALTH_MARKS
TEXT_BYTES = 64
NAME_LENGTH = 63

_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUANTITY = re.compile(r"\d+(\.\d+)?(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)?", re.ASCII)


def check_devices(devices: Iterable[Device]) -> tuple[tuple[Device, ...], list[str]]:
    """Return the devices that the API server accepts, and a sentence for each thing that was left out.

    For a bad attribute or capacity only that one is left out; for a bad or repeated name, the device. Of too many
    attributes the last ones are left out, so that the tags of a reservation and the mark of an unhealthy device always
    fit.

    The order of the devices stays. The sentences are for the log and name the device, the value and the rule.
    """
    kept: dict[str, Device] = {}
    problems: list[str] = []
    for device in devices:
        if len(device.name) > NAME_LENGTH or not _LABEL.fullmatch(device.name):
            problems.append(f"device name {device.name!r} is not a DNS label; the device is left out")
        elif device.name in kept:
            problems.append(f"device name {device.name!r} occurs twice; the second device is left out")
        else:
            kept[device.name] = _checked(device, problems)
    return tuple(kept.values()), problems


def _checked(device: Device, problems: list[str]) -> Device:
    """Return the device without invalid attributes and capacities.

    Adds a sentence for each to `problems`. Capacities have precedence over attributes if both do not fit.
    """
    attributes = {}
    for name, attribute in device.attributes.items():
        why = _name_problem(name) or _value_problem(attribute)
        if why:
            problems.append(f"{device.name}: attribute {name} is left out: {why}")
        else:
            attributes[name] = attribute
    capacity = {}
    for name, value in device.capacity.items():
        why = _name_problem(name) or ("" if _QUANTITY.fullmatch(value) else f"{value!r} is not a quantity")
        if why:
            problems.append(f"{device.name}: capacity {name} is left out: {why}")
        else:
            capacity[name] = value
    room = ROOM - len(capacity)
    for name in list(attributes)[room:]:
        problems.append(f"{device.name}: attribute {name} is left out: a device may have {room} with these capacities")
        del attributes[name]
    return replace(device, attributes=attributes, capacity=capacity)


def valid(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """Return the attributes whose value the API server accepts; the names are this driver's own."""
    return {name: attribute for name, attribute in attributes.items() if not _value_problem(attribute)}


def _name_problem(name: str) -> str:
    """Return what is wrong with the name of an attribute or a capacity, or an empty string."""
    domain, slash, identifier = name.rpartition("/")
    if not _ID.fullmatch(identifier):
        return f"{identifier!r} is not a C identifier of at most 32 characters"
    if slash and not (len(domain) <= NAME_LENGTH and all(_LABEL.fullmatch(part) for part in domain.split("."))):
        return f"{domain!r} is not a DNS subdomain of at most {NAME_LENGTH} characters"
    return ""


def _value_problem(attribute: Attribute) -> str:
    """Return what is wrong with an attribute's value, or an empty string.

    Text has at most 64 bytes in UTF-8, numbers have 64 bits, versions are semantic versions 2.0.0.
    """
    value = attribute.value
    if attribute.kind in ("string", "version"):
        if not isinstance(value, str) or not value:
            return "its text is empty"
        if len(value.encode(errors="surrogatepass")) > TEXT_BYTES:
            return f"its text has more than {TEXT_BYTES} bytes"
        if not value.isprintable():
            return f"{value!r} has characters that cannot be printed"
        if attribute.kind == "version":
            return _version_problem(value)
    elif attribute.kind == "bool":
        if isinstance(value, bool):
            return ""
        return f"{value!r} is neither true nor false"
    elif not isinstance(value, int) or isinstance(value, bool):
        return f"{value!r} is not a whole number"
    elif not (-(2**63) <= value < 2**63):
        return "its number needs more than 64 bits"
    return ""


def _version_problem(text: str) -> str:
    """Return why `text` is not a semantic version, or an empty string."""
    try:
        semver.parse(text)
    except ValueError as err:
        return str(err)
    return ""
