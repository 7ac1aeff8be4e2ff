"""What `neuron-dra top` shows: rates between two readings of the plugins' counters, by pod, device or core.

A rate of zero is believed only if it is evidence. A process may have a device open if a claim of it is prepared, or if
memory of it is in use; other processes of the node cannot be seen. While a device may be open, these zeros are unknown:

- of a counter that never moved since the kernel driver was loaded: with driver 2.26, users measured that the time and
  the operations of cores stay 0, and that most of their memory is not counted;
- of kernel drivers that count a process when it ends.
"""

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

LIVE: Final = (2, 30, 2)
"""The first kernel driver that counts executions while a process runs; older ones count them when it ends."""

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


Total = Callable[[Counters], float | None]
"""Reads a total of some counters; None if there is none."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of a node: when, its type and kernel driver, and the counters by place."""

    at: float
    instance_type: str
    driver_version: str
    unread: int
    places: Mapping[Place, Counters]

    @property
    def is_live(self) -> bool:
        """True if the kernel driver is known to count while a process runs."""
        numbers = [int(part) for part in self.driver_version.split(".")[:3] if part.isdecimal()]
        return len(numbers) == 3 and tuple(numbers) >= LIVE


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
            for metric_sample in family.samples:
                if metric_sample.name.startswith(_PREFIX):
                    yield metric_sample.name.removeprefix(_PREFIX), metric_sample.labels, metric_sample.value
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
    - `memory`: bytes of device memory by category, None if most of it is not counted; `host_memory`: of the devices.
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
    memory: Mapping[str, float] | None
    host_memory: Mapping[str, float]
    power: float | None
    ecc: float | None
    core: int = WHOLE

    def data(self) -> dict[str, Any]:
        """Return the values for JSON and YAML."""
        fields: dict[str, Any] = {"node": self.node}
        fields |= {name: getattr(self.who, name) for name in WHO}
        fields["devices"] = list(self.devices)
        if self.core != WHOLE:
            fields["core"] = self.core
        host_memory = {name: size for name, size in self.host_memory.items() if size}
        fields |= {
            "cores": self.cores,
            "busy": _rounded(self.busy),
            "executionsPerSecond": _rounded(self.executions),
            "errorsPerSecond": _rounded(self.errors),
            "flopsPerSecond": _rounded(self.flops),
            "memoryBytes": None if self.memory is None else _bytes(self.memory),
            "hostMemoryBytes": _bytes(host_memory),
            "power": _rounded(self.power),
            "eccErrors": None if self.ecc is None else int(self.ecc),
        }
        return fields


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
    for place, counters in after.places.items():
        groups.setdefault(counters.who, []).append(place)
    with_cores = {who: places for who, places in groups.items() if _cores(places)}
    places_by_user = with_cores or groups  # without counters of cores, only devices
    evidence = CounterEvidence(after)
    return [usage(node, before, after, places_by_user[who], evidence) for who in sorted(places_by_user, key=_order)]


def _order(who: User) -> tuple[bool, str, str, str]:
    return not who.claim, who.namespace, who.pod, who.claim


def by_device(node: str, before: Sample | None, after: Sample) -> list[Usage]:
    """Return the use of each device."""
    places: dict[int, list[Place]] = {}
    for place in after.places:
        places.setdefault(place[0], []).append(place)
    evidence = CounterEvidence(after)
    return [usage(node, before, after, places[device], evidence) for device in sorted(places)]


def by_core(node: str, before: Sample | None, after: Sample) -> list[Usage]:
    """Return the use of each physical core."""
    evidence = CounterEvidence(after)
    return [usage(node, before, after, [place], evidence) for place in _cores(sorted(after.places))]


def _cores(places: Iterable[Place]) -> list[Place]:
    return [place for place in places if place[1] != WHOLE]


def usage(node: str, before: Sample | None, after: Sample, places: Sequence[Place], evidence: CounterEvidence) -> Usage:
    """Return the use of some places. Rates are those of cores that had the same user in both readings."""
    cores = _cores(places)
    devices = tuple(sorted({device for device, _ in places}))
    seconds = after.at - before.at if before is not None else 0.0
    pairs = _same_user(before, after, cores) if seconds > 0 else []
    busy = _rates(seconds, pairs, _busy, evidence.times)
    flops = _rates(seconds, pairs, _flops, evidence.operations)
    executions = _rates(seconds, pairs, _succeeded, evidence.results)
    failures = _rates(seconds, pairs, _failed, evidence.results)
    wholes = []
    for device in devices:
        if (device, WHOLE) in after.places:
            wholes.append(after.places[device, WHOLE])
    powers = [counters.power["avg"] for counters in wholes if "avg" in counters.power]
    errors = [sum(counters.ecc.values()) for counters in wholes if counters.ecc]
    who = after.places[places[0]].who
    if len(places) > 1 and (devices[0], WHOLE) in places and len(devices) == 1:
        who = after.places[devices[0], WHOLE].who
    is_counted = all(map(evidence.memory, devices))
    return Usage(
        node=node,
        who=who,
        devices=devices,
        cores=len(cores),
        busy=_average(busy, most=1.0),
        executions=_sum(executions),
        errors=_sum(failures),
        flops=_sum(flops),
        memory=_added(after.places[place].memory for place in cores) if is_counted else None,
        host_memory=_added(counters.memory for counters in wholes),
        power=_average(powers),
        ecc=_sum(errors),
        core=cores[0][1] if len(places) == 1 and cores else WHOLE,
    )


class CounterEvidence:
    """Whether zeros of a device's counters show that it is idle, by the kind of counter, from one reading."""

    def __init__(self, sample: Sample) -> None:
        self._is_live = sample.is_live
        self._may_be_open: set[int] = set()
        self._moved: dict[Total, set[int]] = {_busy: set(), _flops: set(), _results: set()}
        for (device, _), counters in sample.places.items():
            if counters.who.claim or any(counters.memory.values()):
                self._may_be_open.add(device)
            for total, devices in self._moved.items():
                if total(counters):
                    devices.add(device)

    def times(self, device: int) -> bool:
        """Return True if no time means that the device executed nothing."""
        return self._is_evidence(device, _busy)

    def operations(self, device: int) -> bool:
        """Return True if no operations mean that the device executed nothing."""
        return self._is_evidence(device, _flops)

    def results(self, device: int) -> bool:
        """Return True if no results mean that the device executed nothing; results that are 0 have no series."""
        return self._is_evidence(device, _results, _busy)

    def memory(self, device: int) -> bool:
        """Return False for an older driver that counts nothing else of an open device: it misses most memory."""
        moved = any(device in devices for devices in self._moved.values())
        return self._is_live or moved or device not in self._may_be_open

    def _is_evidence(self, device: int, *totals: Total) -> bool:
        if device not in self._may_be_open:
            return True
        return self._is_live and any(device in self._moved[total] for total in totals)


@dataclass(frozen=True, slots=True)
class _Pair:
    """The counters of a core that the same claims and pods had in both readings."""

    device: int
    before: Counters
    after: Counters


def _same_user(before: Sample | None, after: Sample, cores: Iterable[Place]) -> list[_Pair]:
    pairs = []
    for place in cores:
        old = before.places.get(place) if before is not None else None
        new = after.places[place]
        if old is not None and old.who == new.who:
            pairs.append(_Pair(place[0], old, new))
    return pairs


def _busy(counters: Counters) -> float | None:
    return counters.busy_s


def _flops(counters: Counters) -> float | None:
    return counters.flops


def _results(counters: Counters) -> float | None:
    """Return all executions, whatever their results; None if none is counted."""
    return sum(counters.results.values()) or None


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


def _rates(seconds: float, pairs: Iterable[_Pair], total: Total, is_evidence: Callable[[int], bool]) -> list[float]:
    """Return the increase per second of a total, for each pair that has one; a counter that was reset has none.

    Nothing is returned if a zero is among them that is no evidence: the others would show a part as the whole.
    """
    rates: list[float] = []
    for pair in pairs:
        old, new = total(pair.before), total(pair.after)
        if old is None or new is None or new < old:
            continue
        if new == old and not is_evidence(pair.device):
            return []
        rates.append((new - old) / seconds)
    return rates


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
