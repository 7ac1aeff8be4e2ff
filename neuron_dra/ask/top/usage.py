"""What `neuron-dra top` shows: rates between two readings of the plugins' counters, by pod, device or core."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from neuron_dra.core.telemetry import USERS, WHO, User

MOST_LINES: Final = 200_000  # of one node's metrics
MOST_DIGITS: Final = 10  # of a number of users
_PREFIX: Final = "neuron_dra_"

Place = tuple[int, int]
"""A device, and a physical core of it, or WHOLE for the device itself."""
WHOLE: Final = -1


@dataclass(slots=True)
class Counters:
    """The counters of one place: totals, and the present memory in bytes.

    `who` is the first of those that share the place.
    """

    who: User
    busy_s: float | None = None
    flops: float | None = None
    results: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    power: dict[str, float] = field(default_factory=dict)
    ecc: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of a node: when, its type and kernel driver, and the counters by place."""

    at: float
    instance_type: str
    driver_version: str
    unread: int
    places: Mapping[Place, Counters]


def sample(text: str) -> Sample:
    """Return the reading that a plugin's metrics show. Raises ValueError with what is wrong with them."""
    if text.count("\n") > MOST_LINES:
        raise ValueError(f"more than {MOST_LINES:,} lines")
    places: dict[Place, Counters] = {}
    at = unread = 0.0
    kind = version = ""
    for name, labels, value in _samples(text):
        match name:
            case "counters_read_timestamp_seconds":
                at = value
            case "counters_unread_devices":
                unread = value
            case "node_info":
                kind, version = labels.get("instance_type", ""), labels.get("driver_version", "")
            case _ if name in _TAKE and labels.get("neuron_device", "").isdecimal():
                core = labels.get("core", "")
                place = int(labels["neuron_device"]), int(core) if core.isdecimal() else WHOLE
                who = _user(labels)
                counters, (attribute, key) = places.setdefault(place, Counters(who)), _TAKE[name]
                if key:
                    getattr(counters, attribute)[labels.get(key, "")] = value
                else:
                    setattr(counters, attribute, value)
    if not at:
        raise ValueError(
            "no counters: the driver has just started, is older than this command, or its deviceCounters is none"
        )
    return Sample(at, kind, version, int(unread), places)


def _samples(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    try:
        for family in text_string_to_metric_families(text):
            for each in family.samples:
                if each.name.startswith(_PREFIX):
                    yield each.name.removeprefix(_PREFIX), each.labels, each.value
    except (ValueError, KeyError, IndexError) as err:
        raise ValueError(f"not in Prometheus' format: {err}") from err


_TAKE: Final = {
    "core_busy_seconds_total": ("busy_s", ""),
    "core_flops_total": ("flops", ""),
    "core_executions_total": ("results", "result"),
    "core_memory_bytes": ("memory", "category"),
    "device_host_memory_bytes": ("memory", "category"),
    "device_power_ratio": ("power", "statistic"),
    "device_ecc_errors_total": ("ecc", "kind"),
}
"""By series: the field of Counters, and the label that is the key in it; empty for a number."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of some cores between two readings; None for what is not known.

    - `cores`: number of physical cores; `busy`: share of the time for which they executed, 0 to 1.
    - `executions`, `errors`, `flops`: per second, of all cores together.
    - `memory`: bytes of device memory by category; `host_memory` likewise, of the devices.
    - `power`: average share of the maximum in the last minute, of the devices; `ecc`: errors since the driver's start.
    """

    node: str
    who: User
    devices: tuple[int, ...]
    cores: int
    busy: float | None
    executions: float | None
    errors: float | None
    flops: float | None
    memory: Mapping[str, float]
    host_memory: Mapping[str, float]
    power: float | None
    ecc: float | None
    core: int = WHOLE

    def data(self) -> dict[str, Any]:
        """Return the values for JSON and YAML."""
        data: dict[str, Any] = {"node": self.node}
        data |= {name: getattr(self.who, name) for name in WHO}
        data["devices"] = list(self.devices)
        if self.core != WHOLE:
            data["core"] = self.core
        host_memory = {name: size for name, size in self.host_memory.items() if size}
        data |= {
            "cores": self.cores,
            "busy": _rounded(self.busy),
            "executionsPerSecond": _rounded(self.executions),
            "errorsPerSecond": _rounded(self.errors),
            "flopsPerSecond": _rounded(self.flops),
            "memoryBytes": _bytes(self.memory),
            "hostMemoryBytes": _bytes(host_memory),
            "power": _rounded(self.power),
            "eccErrors": None if self.ecc is None else int(self.ecc),
        }
        return data


def _bytes(sizes: Mapping[str, float]) -> dict[str, int]:
    return {name: int(size) for name, size in sorted(sizes.items())}


def _user(labels: Mapping[str, str]) -> User:
    """Return the user that a series names; if others share the place, its pod is followed by their number."""
    first = User(*(labels.get(label, "") for label in WHO))
    number = labels.get(USERS, "")
    if number.isdecimal() and len(number) < MOST_DIGITS and int(number) > 1:
        return replace(first, pod=f"{first.pod or first.claim} and {int(number) - 1} more")
    return first


def _rounded(value: float | None) -> float | None:
    if value is None:
        return None
    return round(value, 4)


def by_user(node: str, before: Sample | None, after: Sample) -> list[Usage]:
    """Return the use of each set of claims, those of pods first, then what is free."""
    groups: dict[User, list[Place]] = {}
    for place, each in after.places.items():
        groups.setdefault(each.who, []).append(place)
    with_cores = {who: places for who, places in groups.items() if _cores(places)}
    found = with_cores or groups  # without counters of cores, only devices
    return [usage(node, before, after, found[who]) for who in sorted(found, key=_order)]


def _order(who: User) -> tuple[bool, str, str, str]:
    return not who.claim, who.namespace, who.pod, who.claim


def by_device(node: str, before: Sample | None, after: Sample) -> list[Usage]:
    """Return the use of each device."""
    places: dict[int, list[Place]] = {}
    for place in after.places:
        places.setdefault(place[0], []).append(place)
    return [usage(node, before, after, places[device]) for device in sorted(places)]


def by_core(node: str, before: Sample | None, after: Sample) -> list[Usage]:
    """Return the use of each physical core."""
    return [usage(node, before, after, [place]) for place in _cores(sorted(after.places))]


def _cores(places: Iterable[Place]) -> list[Place]:
    return [place for place in places if place[1] != WHOLE]


def usage(node: str, before: Sample | None, after: Sample, places: Sequence[Place]) -> Usage:
    """Return the use of some places. Rates are those of cores that had the same user in both readings."""
    cores = _cores(places)
    devices = tuple(sorted({device for device, _ in places}))
    seconds = after.at - before.at if before is not None else 0.0
    pairs = _same_user(before, after, cores) if seconds > 0 else []
    busy = _rates(seconds, pairs, _busy)
    flops = _rates(seconds, pairs, _flops)
    executions = _rates(seconds, pairs, _succeeded)
    failures = _rates(seconds, pairs, _failed)
    wholes = []
    for device in devices:
        if (device, WHOLE) in after.places:
            wholes.append(after.places[device, WHOLE])
    powers = [each.power["avg"] for each in wholes if "avg" in each.power]
    errors = [sum(each.ecc.values()) for each in wholes if each.ecc]
    who = after.places[places[0]].who
    if len(places) > 1 and (devices[0], WHOLE) in places and len(devices) == 1:
        who = after.places[devices[0], WHOLE].who
    return Usage(
        node=node,
        who=who,
        devices=devices,
        cores=len(cores),
        busy=_average(busy, most=1.0),
        executions=_sum(executions),
        errors=_sum(failures),
        flops=_sum(flops),
        memory=_added(after.places[place].memory for place in cores),
        host_memory=_added(each.memory for each in wholes),
        power=_average(powers),
        ecc=_sum(errors),
        core=cores[0][1] if len(places) == 1 and cores else WHOLE,
    )


def _same_user(before: Sample | None, after: Sample, cores: Iterable[Place]) -> list[tuple[Counters, Counters]]:
    """Return the counters of the cores that the same claims and pods had in both readings."""
    pairs = []
    for place in cores:
        old = before.places.get(place) if before is not None else None
        new = after.places[place]
        if old is not None and old.who == new.who:
            pairs.append((old, new))
    return pairs


def _busy(counters: Counters) -> float | None:
    return counters.busy_s


def _flops(counters: Counters) -> float | None:
    return counters.flops


def _succeeded(counters: Counters) -> float | None:
    """Return all successful executions; None if none is counted."""
    if counters.results:
        return counters.results.get("success", 0.0)
    return None


def _failed(counters: Counters) -> float | None:
    """Return all failed executions; None if none is counted."""
    good = _succeeded(counters)
    if good is None:
        return None
    return sum(counters.results.values()) - good


def _rates(
    seconds: float, pairs: Iterable[tuple[Counters, Counters]], total: Callable[[Counters], float | None]
) -> list[float]:
    """Return the increase per second of a total, for each pair that has one; a counter that was reset has none."""
    found = []
    for before, after in pairs:
        old, new = total(before), total(after)
        if old is not None and new is not None and new >= old:
            found.append((new - old) / seconds)
    return found


def _sum(values: Sequence[float]) -> float | None:
    if values:
        return sum(values)
    return None


def _average(values: Sequence[float], most: float = math.inf) -> float | None:
    if not values:
        return None
    return min(most, sum(values) / len(values))


def _added(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, size in part.items():
            total[name] = total.get(name, 0.0) + size
    return total
