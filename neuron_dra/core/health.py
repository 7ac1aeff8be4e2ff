"""Device health, derived from successive readings.

A reading is bad, good or absent. A bad reading counts at once. A good one counts after it has lasted for a while, so a
device that flaps is not offered in between. An absent reading changes nothing.

Sources: aws-neuron-driver, neuron_sysfs_metrics.c and neuron_reset.c; Neuron SDK, sysfs user guide.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from neuron_dra.core import names
from neuron_dra.core.facts import ALL_ONES, DeviceFacts, Unread
from neuron_dra.core.signals import (
    COMPONENT,
    DEVICE_FILE_MISSING,
    FIRMWARE,
    HBM_ECC,
    HBM_REPAIR,
    INVALID,
    LINK_INTERSERVER,
    MADE_UP,
    MISSING,
    NO_ANSWER,
    SIGNALS,
    SRAM_ECC,
    DeviceProblem,
    FaultSignal,
    by_name,
    has_serial,
    lacks_serial,
    readings,
)

TAINT_KEY: Final = f"{names.DRIVER}/unhealthy"
ATTRIBUTE: Final = "unhealthy"
ATTRIBUTE_BYTES: Final = 64
TAINTS: Final = 4  # the most that a device may have, up to Kubernetes 1.34

NO_EFFECT: Final = "None"
EFFECTS: Final = ("NoSchedule", "NoExecute", NO_EFFECT)
"""Effects of an unhealthy device's taint; with the last one the device gets no taint."""

HANGS: Final = "the kernel driver hangs or is gone"
"""Why a reading that did not end shows nothing."""

SILENT_READINGS: Final = 2  # readings in a row without a serial number that are a fault of the firmware
STALE_S: Final = 120.0  # a heartbeat that has changed before and is unchanged for this time is stale

_WORST_FIRST: Final = (MISSING, DEVICE_FILE_MISSING, INVALID, FIRMWARE, LINK_INTERSERVER, SRAM_ECC, HBM_ECC, HBM_REPAIR)
ADVICE: Final[Mapping[str, str]] = {
    MISSING: "it is gone from the node; check the kernel log, and replace the instance if the device stays away",
    DEVICE_FILE_MISSING: "its file is missing from the host's /dev; check udev and the kernel log, then load the "
    "kernel driver again, or reboot the node",
    INVALID: "the kernel driver could not reset it; reload the kernel driver, or replace the instance",
    FIRMWARE: "its firmware does not answer the kernel driver, so its errors are unknown; reboot the node, or replace "
    "the instance",
    SRAM_ECC: "uncorrectable SRAM errors; replace the instance",
    HBM_ECC: "uncorrectable HBM errors; replace the instance",
    HBM_REPAIR: "HBM errors that a reload of the kernel driver repairs; reload it, or reboot the node",
}
"""The advice for each reason; any other reason is a component that the kernel driver names."""


class Health(enum.Enum):
    """A device's state, with the names of the kubelet's health service."""

    UNKNOWN = "UNKNOWN"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"


_WITNESSES: Final = (FaultSignal.RESET, FaultSignal.SRAM, FaultSignal.HBM, FaultSignal.COMPONENTS)
"""Signals that are evidence of health; the presence of a device is not."""


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """A problem in force; `well_since` is when its readings became good, in seconds of the caller's clock."""

    problem: DeviceProblem
    well_since: float | None = None


@dataclass(frozen=True, slots=True)
class Beat:
    """The last reading of a heartbeat, the time since which it has this value, and whether it has ever changed."""

    value: int
    since: float
    moves: bool = False

    def after(self, value: int, now: float) -> Beat:
        """Return the heartbeat after the next reading, `value` at time `now`."""
        if value == self.value:
            return self
        return Beat(value, now, moves=True)

    def is_stale(self, now: float) -> bool:
        """Return True if the firmware's health check does not run.

        A heartbeat that has never changed may not be a counter; it is stale only if it is 0.
        """
        return self.value == 0 or (self.moves and now - self.since > STALE_S)


@dataclass(frozen=True, slots=True)
class WatchedDevice:
    """The health of one Neuron device.

    `seen`: it was present with its file at least once. `known`: the last reading had evidence of its health. `unread`:
    why the last reading shows nothing of it, empty if it does. `stale`: the firmware's health check, whose heartbeat is
    `beat`, does not run. `had_serial`: its firmware has given a serial number; `silent` is the number of readings in a
    row in which it did not, although this device or another one has one.
    """

    faults: tuple[DeviceFault, ...] = ()
    seen: bool = False
    known: bool = False
    unread: str = ""
    beat: Beat | None = field(default=None, compare=False)
    stale: bool = False
    had_serial: bool = field(default=False, compare=False)
    silent: int = field(default=0, compare=False)


Watch = Mapping[int, WatchedDevice]
"""The Neuron devices of a node, by id."""


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """The health of one published device; `message` explains it in words, `reasons` are slugs for programs."""

    name: str
    status: Health
    message: str = ""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration of a claim, from its allocation (resource/v1, DeviceToleration)."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, reason: str, effect: str) -> bool:
        """Return True if the taint of `reason` with `effect` is tolerated (kubernetes/api@v0.37, DeviceToleration)."""
        if self.effect not in ("", effect) or self.key not in ("", TAINT_KEY):
            return False
        return self.operator == "Exists" or (self.operator in ("", "Equal") and self.value == reason)


# Observing.


def observe(before: Watch, facts: Iterable[DeviceFacts], expected: Iterable[int], now: float, hold_s: float) -> Watch:
    """Return the health of each device after the reading `facts` at time `now`.

    `expected` are the device ids of the instance type. A fault ends when its readings have been good for `hold_s`
    seconds without a break. A device that appears for the first time is healthy at once, because the plugin may start
    before the kernel driver.
    """
    facts_by_id = {device.device_id: device for device in facts}
    gives_serials = any(has_serial(device) and not device.hangs for device in facts_by_id.values())
    after: dict[int, WatchedDevice] = {}
    for device_id in sorted({*before, *facts_by_id, *expected}):
        earlier = before.get(device_id, WatchedDevice())
        device = facts_by_id.get(device_id)
        if device is not None and device.hangs:
            after[device_id] = _left_out(earlier, device)
        else:
            after[device_id] = _beating(earlier, device, now, hold_s, gives_serials=gives_serials)
    return after


def _beating(
    before: WatchedDevice, facts: DeviceFacts | None, now: float, hold_s: float, *, gives_serials: bool
) -> WatchedDevice:
    """Return the health of one device; the firmware's "no unhealthy component" counts only while its check runs.

    `gives_serials`: this reading has the serial number of some device.
    """
    problems_by_signal = readings(facts)
    beat = before.beat
    silent = _silence(before, facts, gives_serials=gives_serials)
    if facts is not None and (silent or facts.serial == ALL_ONES):
        problems_by_signal = _without_firmware(problems_by_signal, silent)
    if facts is not None and not isinstance(facts.heartbeat, Unread):
        if beat is None:
            beat = Beat(facts.heartbeat, now)
        else:
            beat = beat.after(facts.heartbeat, now)
    stale = facts is not None and beat is not None and beat.is_stale(now)
    if stale and not problems_by_signal.get(FaultSignal.COMPONENTS):
        problems_by_signal.pop(FaultSignal.COMPONENTS, None)
    watched = _observed(before, problems_by_signal, now, hold_s, by_name(facts))
    has_evidence = watched.known and not stale
    had_serial = before.had_serial or (facts is not None and has_serial(facts))
    return replace(watched, beat=beat, stale=stale, known=has_evidence, had_serial=had_serial, silent=silent)


def _silence(before: WatchedDevice, facts: DeviceFacts | None, *, gives_serials: bool) -> int:
    """Return in how many readings in a row the device's firmware has not answered.

    A driver that has no serial number of any device says nothing of one. Nor does a file that cannot be read.
    """
    if facts is None or not lacks_serial(facts) or not (before.had_serial or gives_serials):
        return 0
    return min(before.silent + 1, SILENT_READINGS)


def _without_firmware(
    problems_by_signal: dict[FaultSignal, tuple[DeviceProblem, ...]], silent: int
) -> dict[FaultSignal, tuple[DeviceProblem, ...]]:
    """Return the problems of a reading in which the firmware does not answer, so that its values mean nothing.

    Counters read 0 or ones, and `reset` reads 1 as before. One such reading is no fault yet: it may be a moment.
    """
    kept: dict[FaultSignal, tuple[DeviceProblem, ...]] = {}
    for signal, problems in problems_by_signal.items():
        is_bad = bool(problems) and signal in (FaultSignal.RESET, FaultSignal.COMPONENTS)
        if is_bad or signal not in MADE_UP:
            kept[signal] = problems
    if silent >= SILENT_READINGS:
        kept[FaultSignal.FIRMWARE] = (NO_ANSWER,)
    return kept


def unread(before: Watch, why: str = HANGS) -> Watch:
    """Return the health of each device after a reading that shows nothing: faults stay, the present is unknown."""
    return {device_id: _unread(watched, why) for device_id, watched in before.items()}


def _left_out(before: WatchedDevice, facts: DeviceFacts) -> WatchedDevice:
    """Return the health of one device of which only its file in /dev, at most, was read."""
    watched = _unread(before, HANGS)
    missing = readings(facts).get(FaultSignal.FILE)
    if not missing or any(fault.problem.signal is FaultSignal.FILE for fault in watched.faults):
        return watched
    faults = sorted([*watched.faults, *map(DeviceFault, missing)], key=lambda fault: _severity(fault.problem.reason))
    return replace(watched, faults=tuple(faults))


def _unread(before: WatchedDevice, why: str) -> WatchedDevice:
    """Return the health of one device after a reading that shows nothing of it."""
    faults = tuple(replace(fault, well_since=None) for fault in before.faults)
    return replace(before, faults=faults, known=False, unread=why)


def recall(watch: Watch, ids: Iterable[int], reasons: Iterable[str]) -> Watch:
    """Return `watch` with the faults `reasons` added to the devices `ids`: faults persist across restarts.

    They count as seen now; the next readings decide how long they last.
    """
    recalled = dict(watch)
    reasons = list(reasons)
    for device_id in ids:
        watched = watch.get(device_id, WatchedDevice())
        present = {fault.problem.reason for fault in watched.faults}
        faults = list(watched.faults)
        for reason in reasons:
            if reason not in present:
                signal = SIGNALS.get(reason, FaultSignal.COMPONENTS)
                faults.append(DeviceFault(DeviceProblem(signal, reason, f"{reason} before the plugin restarted")))
        recalled[device_id] = replace(watched, faults=tuple(faults), seen=True)
    return recalled


def _observed(
    before: WatchedDevice,
    problems_by_signal: dict[FaultSignal, tuple[DeviceProblem, ...]],
    now: float,
    hold_s: float,
    weak: frozenset[FaultSignal] = frozenset(),
) -> WatchedDevice:
    """Return the health of one device after a reading with `problems_by_signal` at time `now`.

    Readings of the signals `weak` can show faults and that these have ended, but not that the device is healthy. A
    fault stays until its signal has been good for `hold_s` seconds. Faults are sorted, worst first.
    """
    current_faults = {}
    for problems in problems_by_signal.values():
        for problem in problems:
            current_faults[(problem.signal, problem.reason)] = DeviceFault(problem)
    lasting_faults = []
    for fault in before.faults:
        problem = fault.problem
        if (problem.signal, problem.reason) in current_faults:
            continue
        if problem.signal not in problems_by_signal:
            # Not read: the fault stays, and the hold time starts again.
            lasting_faults.append(replace(fault, well_since=None))
            continue
        if problem.signal in (FaultSignal.PRESENCE, FaultSignal.FILE) and not before.seen:
            continue
        since = now if fault.well_since is None else fault.well_since
        if now - since < hold_s:
            lasting_faults.append(replace(fault, well_since=since))
    faults = sorted([*current_faults.values(), *lasting_faults], key=lambda fault: _severity(fault.problem.reason))
    return WatchedDevice(
        faults=tuple(faults),
        seen=before.seen or not (problems_by_signal[FaultSignal.PRESENCE] or problems_by_signal.get(FaultSignal.FILE)),
        known=any(signal in problems_by_signal for signal in _WITNESSES if signal not in weak),
    )


def _severity(reason: str) -> tuple[int, str]:
    """Return the sort key of a reason: known reasons first, in their order, then components by name."""
    return (_WORST_FIRST.index(reason) if reason in _WORST_FIRST else len(_WORST_FIRST), reason)


# Judging.


def judged(name: str, ids: Sequence[int], watch: Watch) -> DeviceHealth:
    """Return the health of the published device `name`: that of the worst of the Neuron devices `ids` behind it."""
    members = {}
    for device_id in ids:
        members[device_id] = watch.get(device_id) or _observed(WatchedDevice(), readings(None), 0.0, 0.0)
    faults = [(device_id, fault) for device_id, member in members.items() for fault in member.faults]
    several = name == names.NODE_DEVICE or len(ids) > 1
    if faults:
        reasons = sorted({fault.problem.reason for _, fault in faults}, key=_severity)
        return DeviceHealth(name, Health.UNHEALTHY, _message(faults, several=several), tuple(reasons))
    for member in members.values():
        if member.unread not in ("", HANGS):
            return DeviceHealth(name, Health.UNKNOWN, member.unread)  # the kernel driver is one for all devices
    hanging_ids = [device_id for device_id, member in members.items() if member.unread]
    if hanging_ids:
        which = f" of {_listed(hanging_ids)}" if several else ""
        return DeviceHealth(name, Health.UNKNOWN, f"the last reading{which} failed: {HANGS}")
    stale_ids = [device_id for device_id, member in members.items() if member.stale]
    if stale_ids:
        which = f" of {_listed(stale_ids)}" if several else ""
        return DeviceHealth(name, Health.UNKNOWN, f"the firmware's health check{which} does not run")
    if not several and not all(member.known for member in members.values()):
        return DeviceHealth(name, Health.UNKNOWN, "the kernel driver reports nothing about the device's health")
    if not members or not all(member.known for member in members.values()):
        return DeviceHealth(name, Health.UNKNOWN, "the health of some devices is unknown")
    return DeviceHealth(name, Health.HEALTHY)


def _message(faults: Iterable[tuple[int, DeviceFault]], *, several: bool) -> str:
    """Return the problems in words; with `several` devices behind the published one, those that have them."""
    texts: dict[str, list[int]] = {}
    for device_id, fault in faults:
        again = ""
        if fault.well_since is not None:
            again = " (recovering; awaiting confirmation)"
        texts.setdefault(fault.problem.message + again, []).append(device_id)
    if not several:
        return "; ".join(texts)
    return "; ".join(f"{_listed(ids)}: {text}" for text, ids in texts.items())


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(f"neuron{device_id}" for device_id in ids)


def event_message(health: DeviceHealth, effect: str) -> str:
    """Return the Event message for an unhealthy device, without counts: each new count would be a new Event."""
    advice = []
    for reason in health.reasons:
        advice.append(ADVICE.get(reason, f"the kernel driver reports its component {reason} as unhealthy"))
    consequence = {
        "NoSchedule": "New claims do not get it; running pods keep it",
        "NoExecute": "New claims do not get it; pods whose claims have it are evicted if the API server keeps taints",
    }.get(effect, "It is only reported, because of --unhealthy-device-effect")
    return f"{health.name} is unhealthy ({', '.join(health.reasons)}): {'; '.join(advice)}. {consequence}"


def why_refused(health: DeviceHealth, tolerations: Iterable[Toleration], effect: str) -> str:
    """Return why a claim is rejected because of the device's health; empty if it is tolerated or has no effect."""
    if health.status is not Health.UNHEALTHY or effect == NO_EFFECT:
        return ""
    tolerations = tuple(tolerations)
    if all(any(toleration.tolerates(reason, effect) for toleration in tolerations) for reason in health.reasons):
        return ""
    return (
        f"{health.name} is unhealthy: {health.message}; delete the pod so that it gets another device, or wait until "
        "the device is repaired: the kubelet tries again"
    )


# Publishing.


def marked(device: Mapping[str, Any], reasons: Sequence[str], effect: str) -> dict[str, Any]:
    """Return a published device with the attribute and taints of `reasons`, or without them if there are none.

    `device` has the form of resource.k8s.io/v1. Every version of the API server keeps the attribute; the taints keep
    claims away where the API server supports them.
    """
    attributes = {}
    for key, value in (device.get("attributes") or {}).items():
        if key != ATTRIBUTE:
            attributes[key] = value
    marked_device = {key: value for key, value in device.items() if key not in ("attributes", "taints")}
    if reasons:
        attributes[ATTRIBUTE] = {"string": _joined(reasons)}
    if attributes:
        marked_device["attributes"] = dict(sorted(attributes.items()))
    if reasons and effect != NO_EFFECT:
        marked_device["taints"] = [{"key": TAINT_KEY, "value": reason, "effect": effect} for reason in reasons[:TAINTS]]
    return marked_device


def reasons_on(device: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the reasons in a published device's attribute, worst first."""
    text = ((device.get("attributes") or {}).get(ATTRIBUTE) or {}).get("string")
    words = text.split(",") if isinstance(text, str) else []
    reasons = []
    for word in words:
        if word in _WORST_FIRST or COMPONENT.fullmatch(word):
            reasons.append(word)
    return tuple(reasons)


def _joined(reasons: Sequence[str]) -> str:
    """Return the reasons joined with commas, as many as fit into an attribute."""
    text = reasons[0]
    for reason in reasons[1:]:
        if len(text) + 1 + len(reason) <= ATTRIBUTE_BYTES:
            text += "," + reason
    return text
