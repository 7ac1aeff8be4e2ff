"""Which devices are sick: what their readings say now, with a memory that is slow to forgive.

A reading is bad, well, or not there. Bad counts at once. Well counts when it has stayed so for a while: a device that
comes and goes is not handed out in between. What cannot be read leaves everything as it was.

Sources: aws-neuron-driver, neuron_sysfs_metrics.c and neuron_reset.c; Neuron SDK, sysfs user guide (neuron.md 8).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from neuron_dra.core import names
from neuron_dra.core.facts import DeviceFacts, Unread

TAINT_KEY: Final = f"{names.DRIVER}/unhealthy"
ATTRIBUTE: Final = "unhealthy"
ATTRIBUTE_BYTES: Final = 64
TAINTS: Final = 4  # of a device, up to Kubernetes 1.34

NO_EFFECT: Final = "None"
EFFECTS: Final = ("NoSchedule", "NoExecute", NO_EFFECT)
"""What the taint of a sick device does; with the last there is none."""

STALE_S: Final = 120.0  # a heartbeat that was seen to move and has stood still for so long

RESET_READY: Final = 1
RESET_INVALID: Final = 2

MISSING: Final = "missing"
INVALID: Final = "invalid"
SRAM_ECC: Final = "sram_ecc"
HBM_ECC: Final = "hbm_ecc"
HBM_REPAIR: Final = "hbm_repair"
LINK_INTERSERVER: Final = "link_interserver"
OTHER: Final = "other"

_WORST_FIRST: Final = (MISSING, INVALID, LINK_INTERSERVER, SRAM_ECC, HBM_ECC, HBM_REPAIR)
_LABEL_VALUE = re.compile(r"[a-z0-9]([a-z0-9_]{0,61}[a-z0-9])?")

ADVICE: Final[Mapping[str, str]] = {
    MISSING: "it is gone from the node; look at the kernel log, and replace the instance if it stays away",
    INVALID: "the kernel driver could not reset it; reload the kernel driver, or replace the instance",
    SRAM_ECC: "uncorrectable SRAM errors since the kernel driver was loaded; replace the instance",
    HBM_ECC: "uncorrectable HBM errors since the kernel driver was loaded; replace the instance",
    HBM_REPAIR: "HBM errors that a reload of the kernel driver repairs; reload it, or reboot the node",
}
"""What a person should know of a reason; every other reason is a component that the kernel driver names."""


class Health(enum.Enum):
    """A device's state, in the words of the kubelet's service."""

    UNKNOWN = "UNKNOWN"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"


class Signal(enum.Enum):
    """Where a fault was seen."""

    PRESENCE = "presence"
    RESET = "reset"
    SRAM = "sram"
    HBM = "hbm"
    REPAIR = "repair"
    COMPONENTS = "components"


_SIGNALS: Final = {
    MISSING: Signal.PRESENCE,
    INVALID: Signal.RESET,
    SRAM_ECC: Signal.SRAM,
    HBM_ECC: Signal.HBM,
    HBM_REPAIR: Signal.REPAIR,
}
"""Where a reason is seen; all others are components."""

_WITNESSES: Final = (Signal.RESET, Signal.SRAM, Signal.HBM, Signal.COMPONENTS)
"""Signals that tell of health; that a device is there does not."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with a device. `reason` can be a label's value, `message` is for people."""

    signal: Signal
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A problem in force. `well_since` is when it began to read well, in seconds of the caller's clock."""

    problem: Problem
    well_since: float | None = None


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat as last read, when it changed to that, and whether it was ever seen to change."""

    value: int
    since: float
    moves: bool = False

    def after(self, value: int, now: float) -> Beat:
        """Return what is known after the next reading."""
        return self if value == self.value else Beat(value, now, moves=True)

    def is_stale(self, now: float) -> bool:
        """Tell whether the health check stands still. One that never moved may be no counter: then 0 says so."""
        return self.value == 0 or (self.moves and now - self.since > STALE_S)


@dataclass(frozen=True, slots=True)
class Watched:
    """What is held against one device. `seen`: it was there once. `told`: something tells of its health now.

    `overdue`: its last reading did not end in time. `stale`: the firmware's health check, whose heartbeat is `beat`,
    does not run.
    """

    faults: tuple[Fault, ...] = ()
    seen: bool = False
    told: bool = False
    overdue: bool = False
    beat: Beat | None = field(default=None, compare=False)
    stale: bool = False


Watch = Mapping[int, Watched]
"""The devices of a node, by their ids."""


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """One published device; `message` says why it is not healthy, `reasons` say it in words for machines."""

    name: str
    status: Health
    message: str = ""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Toleration:
    """What a claim puts up with, as its allocation has it."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, reason: str, effect: str) -> bool:
        """Tell whether the taint of `reason` is put up with (kubernetes/api@v0.37, resource/v1, DeviceToleration)."""
        if self.effect not in ("", effect) or self.key not in ("", TAINT_KEY):
            return False
        return self.operator == "Exists" or (self.operator in ("", "Equal") and self.value == reason)


# Watching.


def observe(before: Watch, facts: Iterable[DeviceFacts], expected: Iterable[int], now: float, hold_s: float) -> Watch:
    """Return what is held against each device after a reading at `now`.

    `expected` are the ids that the instance type has. A fault is held until it has read well for `hold_s` seconds on
    end. A device that was not there yet is not held back when it comes: a plugin may start before the kernel driver.
    """
    read = {device.device_id: device for device in facts}
    ids = sorted({*before, *read, *expected})
    return {
        i: _unread(before.get(i, Watched()))
        if i in read and read[i].hangs
        else _beating(before.get(i, Watched()), read.get(i), now, hold_s)
        for i in ids
    }


def _beating(before: Watched, facts: DeviceFacts | None, now: float, hold_s: float) -> Watched:
    """Observe one device. What its firmware's health check does not find counts only while that check runs."""
    found, beat = _readings(facts), before.beat
    if facts is not None and not isinstance(facts.heartbeat, Unread):
        beat = Beat(facts.heartbeat, now) if beat is None else beat.after(facts.heartbeat, now)
    stale = facts is not None and beat is not None and beat.is_stale(now)
    if stale and not found.get(Signal.COMPONENTS):
        found.pop(Signal.COMPONENTS, None)
    watched = _observed(before, found, now, hold_s)
    return replace(watched, beat=beat, stale=stale, told=watched.told and not stale)


def unread(before: Watch) -> Watch:
    """Return what is held against each device when a reading of all did not end: what was, and nothing is known now."""
    return {i: _unread(watched) for i, watched in before.items()}


def _unread(before: Watched) -> Watched:
    faults = tuple(replace(fault, well_since=None) for fault in before.faults)
    return replace(before, faults=faults, told=False, overdue=True)


def recall(watch: Watch, ids: Iterable[int], reasons: Iterable[str]) -> Watch:
    """Hold `reasons` against the devices `ids`, as the process before this one did: a restart forgives nothing.

    Each is held as if it had been seen now; what is read next counts.
    """
    result = dict(watch)
    reasons = list(reasons)
    for i in ids:
        known = watch.get(i, Watched())
        present = {fault.problem.reason for fault in known.faults}
        recalled = (
            Problem(_SIGNALS.get(reason, Signal.COMPONENTS), reason, f"{reason} before the plugin was started again")
            for reason in reasons
            if reason not in present
        )
        result[i] = replace(known, faults=known.faults + tuple(map(Fault, recalled)), seen=True)
    return result


def _readings(facts: DeviceFacts | None) -> dict[Signal, tuple[Problem, ...]]:
    """Return what each signal says: its problems, none if it is well. What cannot be read is left out."""
    if facts is None:
        return {Signal.PRESENCE: (Problem(Signal.PRESENCE, MISSING, "the device is gone from the node"),)}
    file = f"/dev/neuron{facts.device_id} is missing"
    found: dict[Signal, tuple[Problem, ...]] = {
        Signal.PRESENCE: () if facts.node_present else (Problem(Signal.PRESENCE, MISSING, file),)
    }
    if facts.reset_state in (RESET_READY, RESET_INVALID):
        bad = facts.reset_state == RESET_INVALID
        invalid = Problem(Signal.RESET, INVALID, "the kernel driver calls the device invalid")
        found[Signal.RESET] = (invalid,) if bad else ()
    for signal, reason, count, kind in (
        (Signal.SRAM, SRAM_ECC, facts.sram_ecc_uncorrected, "uncorrectable SRAM error"),
        (Signal.HBM, HBM_ECC, facts.mem_ecc_uncorrected, "uncorrectable HBM error"),
        (Signal.REPAIR, HBM_REPAIR, facts.mem_ecc_repairable, "repairable HBM error"),
    ):
        if not isinstance(count, Unread):
            text = f"{count} {kind}{'s' if count > 1 else ''}"
            found[signal] = (Problem(signal, reason, text),) if count else ()
    if not isinstance(facts.unhealthy_components, Unread):
        found[Signal.COMPONENTS] = tuple(
            Problem(Signal.COMPONENTS, _reason(component), f"component {component} is unhealthy")
            for component in dict.fromkeys(facts.unhealthy_components)
        )
    return found


def _reason(component: str) -> str:
    """Return a component's name, if it can be a taint's value."""
    return component if _LABEL_VALUE.fullmatch(component) else OTHER


def _observed(before: Watched, found: dict[Signal, tuple[Problem, ...]], now: float, hold_s: float) -> Watched:
    bad = {(p.signal, p.reason): Fault(p) for problems in found.values() for p in problems}
    held = []
    for fault in before.faults:
        problem = fault.problem
        if (problem.signal, problem.reason) in bad:
            continue
        if problem.signal not in found:
            held.append(replace(fault, well_since=None))  # not read: as it was, and not a moment nearer to well
            continue
        if problem.signal is Signal.PRESENCE and not before.seen:
            continue
        since = now if fault.well_since is None else fault.well_since
        if now - since < hold_s:
            held.append(replace(fault, well_since=since))
    faults = sorted([*bad.values(), *held], key=lambda fault: _severity(fault.problem.reason))
    return Watched(
        faults=tuple(faults),
        seen=before.seen or not found[Signal.PRESENCE],
        told=any(signal in found for signal in _WITNESSES),
    )


def _severity(reason: str) -> tuple[int, str]:
    return (_WORST_FIRST.index(reason) if reason in _WORST_FIRST else len(_WORST_FIRST), reason)


# Judging.


def judged(name: str, ids: Sequence[int], watch: Watch) -> DeviceHealth:
    """Return the health of a published device, which is that of the worst Neuron device behind it."""
    members = {i: watch.get(i) or _observed(Watched(), _readings(None), 0.0, 0.0) for i in ids}
    faults = [(i, fault) for i, member in members.items() for fault in member.faults]
    if faults:
        reasons = sorted({fault.problem.reason for _, fault in faults}, key=_severity)
        return DeviceHealth(name, Health.UNHEALTHY, _message(name, faults), tuple(reasons))
    if any(member.overdue for member in members.values()):
        stuck = [i for i, member in members.items() if member.overdue]
        which = "" if name != names.NODE_DEVICE else f" of {', '.join(f'neuron{i}' for i in stuck)}"
        return DeviceHealth(name, Health.UNKNOWN, f"the last reading{which} did not end: the kernel driver hangs")
    if stale := [i for i, member in members.items() if member.stale]:
        which = "" if name != names.NODE_DEVICE else f" of {', '.join(f'neuron{i}' for i in stale)}"
        return DeviceHealth(name, Health.UNKNOWN, f"the firmware's health check{which} does not run")
    if name != names.NODE_DEVICE and not all(member.told for member in members.values()):
        return DeviceHealth(name, Health.UNKNOWN, "the kernel driver tells nothing about the device's health")
    if not members or not all(member.told for member in members.values()):
        return DeviceHealth(name, Health.UNKNOWN, "the health of some devices is not known")
    return DeviceHealth(name, Health.HEALTHY)


def _message(name: str, faults: Iterable[tuple[int, Fault]]) -> str:
    """Say what is wrong; of a whole node, with which of its devices."""
    texts: dict[str, list[int]] = {}
    for i, fault in faults:
        again = " (reads well again; waiting whether it stays so)" if fault.well_since is not None else ""
        texts.setdefault(fault.problem.message + again, []).append(i)
    if name != names.NODE_DEVICE:
        return "; ".join(texts)
    return "; ".join(f"{', '.join(f'neuron{i}' for i in ids)}: {text}" for text, ids in texts.items())


def told(health: DeviceHealth, effect: str) -> str:
    """Return what an Event says about a sick device: without counts, which would make a new Event of each."""
    advice = [
        ADVICE.get(reason, f"the kernel driver calls its component {reason} unhealthy") for reason in health.reasons
    ]
    happens = {
        "NoSchedule": "New claims do not get it; who has it keeps it",
        "NoExecute": "New claims do not get it; pods that have it are evicted, where the API server keeps taints",
    }.get(effect, "Nothing is done about it, as --unhealthy-device-effect says")
    return f"{health.name} is unhealthy ({', '.join(health.reasons)}): {'; '.join(advice)}. {happens}"


def why_refused(health: DeviceHealth, tolerations: Iterable[Toleration], effect: str) -> str:
    """Return why a claim must not start on a sick device; empty if it may: it says so, or all may."""
    if health.status is not Health.UNHEALTHY or effect == NO_EFFECT:
        return ""
    tolerations = tuple(tolerations)
    if all(any(each.tolerates(reason, effect) for each in tolerations) for reason in health.reasons):
        return ""
    return (
        f"{health.name} is unhealthy: {health.message}; delete the pod so that it gets another device, or wait until "
        "the device is repaired: the kubelet tries again"
    )


# Publishing.


def marked(device: Mapping[str, Any], reasons: Sequence[str], effect: str) -> dict[str, Any]:
    """Return a device as published, with the marks of `reasons`; without any if there are none.

    The attribute says it on every version of the API server, the taints keep claims away where they are known.
    """
    attributes = {key: value for key, value in (device.get("attributes") or {}).items() if key != ATTRIBUTE}
    result = {key: value for key, value in device.items() if key not in ("attributes", "taints")}
    if reasons:
        attributes[ATTRIBUTE] = {"string": _joined(reasons)}
    if attributes:
        result["attributes"] = dict(sorted(attributes.items()))
    if reasons and effect != NO_EFFECT:
        result["taints"] = [{"key": TAINT_KEY, "value": reason, "effect": effect} for reason in reasons[:TAINTS]]
    return result


def reasons_on(device: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the reasons that a published device carries."""
    text = ((device.get("attributes") or {}).get(ATTRIBUTE) or {}).get("string")
    return tuple(word for word in text.split(",") if _LABEL_VALUE.fullmatch(word)) if isinstance(text, str) else ()


def _joined(reasons: Sequence[str]) -> str:
    """Join reasons with commas, as many as fit."""
    text = reasons[0]
    for reason in reasons[1:]:
        if len(text) + 1 + len(reason) <= ATTRIBUTE_BYTES:
            text += "," + reason
    return text
