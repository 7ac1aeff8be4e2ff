"""Connected sets on a node: devices that consume shared counters, and how they are published and withdrawn.

The scheduler counts what an allocated device consumes only while that device is published. So a device leaves the
slices in three steps, whatever the setting says: a taint keeps new claims away; half a minute later, when every
allocation that began before is written, the claims are listed; a device that no allocation names and no claim holds is
removed. The other devices stay, with their counters, until this is true.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from neuron_dra.core import members, names, publication
from neuron_dra.core.claims import PreparedClaim
from neuron_dra.core.devices import Device
from neuron_dra.core.publication import DEFAULT_LEAVING_TIMING, LeavingTiming, Situation
from neuron_dra.core.wire import Wire

TAINT_KEY: Final = f"{names.DRIVER}/withdrawn"
TAINT: Final[Wire] = {"key": TAINT_KEY, "value": "true", "effect": "NoSchedule"}


@dataclass(frozen=True, slots=True)
class Division:
    """The devices that the node can publish with counters.

    `offered` are the wanted devices in the order of use, with sets if `on`; `position` is the place of each name in the
    slices. `named` returns a device with its counters by its name, or None.
    """

    on: bool
    offered: tuple[Device, ...]
    counters: tuple[Wire, ...]
    position: Mapping[str, int]
    named: Callable[[str], Device | None]


@dataclass(frozen=True, slots=True)
class Leaving:
    """The devices that are being withdrawn.

    `since` is the start, `look_at` the time of the next list of claims, `wait_s` the wait before that.
    """

    names: frozenset[str]
    since: float
    look_at: float
    wait_s: float = DEFAULT_LEAVING_TIMING.check_s[0]


@dataclass(frozen=True, slots=True)
class DividedOutcome:
    """The decision: `devices` and whether anything is still `divided`; without that, the node publishes plain devices.

    `needs_allocated` means that the names of all allocated devices are needed, reserved for a pod or not: decide again
    with them at the same time. `leaving` is to be passed as `last` to the next decision.
    """

    devices: tuple[Wire, ...] = ()
    counters: tuple[Wire, ...] = ()
    divided: bool = True
    needs_allocated: bool = False
    leaving: Leaving | None = None
    look_at: float | None = None


def is_in_play(published: Iterable[Wire], prepared: Iterable[PreparedClaim]) -> bool:
    """Return True if devices with counters are published, or a claim holds a connected set or a core partition."""
    held_names = set()
    for claim in prepared:
        for device in claim.devices:
            held_names.add(device.device)
    counted = any(device.get("consumesCounters") or members.is_partition(device["name"]) for device in published)
    return counted or any(members.is_partition(device_name) for device_name in held_names)


def is_settled(published: Iterable[Wire]) -> bool:
    """Return True if devices with counters are published, and are not being withdrawn all together.

    One set that a claim holds may be withdrawn alone, as over a dead link; then the other ones are not.
    """
    counted = [device for device in published if device.get("consumesCounters")]
    if not any(_is_withdrawn(device) for device in counted):
        return bool(counted)
    return any(members.is_partition(device["name"]) and not _is_withdrawn(device) for device in counted)


def _is_withdrawn(device: Wire) -> bool:
    return any(taint["key"] == TAINT_KEY for taint in device.get("taints") or ())


def decide(
    now: float,
    situation: Situation,
    division: Division,
    last: Leaving | None,
    answer: Collection[str] | None = None,
    timing: LeavingTiming = DEFAULT_LEAVING_TIMING,
) -> DividedOutcome:
    """Return what to publish at time `now`.

    `last` is the `leaving` of the decision before, None in a new process. `answer` are the names of the allocated
    devices, if they were listed from `now` on because a decision had `needs_allocated`.
    """
    current = situation.current
    held_names = set()
    for claim in situation.prepared:
        for device in claim.devices:
            held_names.add(device.device)
    offered = () if situation.refused else division.offered
    wire = publication.free(situation, offered, held_names, lambda name: division.named(name) is not None)
    leaving = frozenset(current) - set(wire) - held_names
    if last is None:
        unseen = not division.on or not set(division.position) <= {*wire, *current}
        if unseen and answer is None:
            # A claim may have a device that is not published, as after a wipe of the slices.
            return DividedOutcome(needs_allocated=True)
        last = Leaving(leaving, now, now + timing.withdraw_s, timing.check_s[0])
    elif not leaving <= last.names:
        last = Leaving(leaving, now, now + timing.withdraw_s, timing.check_s[0])
    else:
        last = replace(last, names=leaving)
    waits = bool(leaving) or not (division.on or held_names - set(wire))
    due = waits and now >= last.look_at
    if due and answer is None:
        return DividedOutcome(needs_allocated=True)
    allocated = frozenset(answer or ())
    # Once the claims are listed, what none of them names may go; until then all that leaves stays.
    named = allocated if due else leaving | allocated
    stay = named - set(wire) - held_names
    kept = _kept(situation, division, stay | (held_names - set(wire)))
    if due and not kept and not division.on:
        return DividedOutcome(divided=False)
    if due:
        wait_s = min(2 * last.wait_s, timing.check_s[1])
        last = Leaving(stay, last.since, now + wait_s, wait_s)
    in_order = sorted(wire, key=lambda device_name: (division.position.get(device_name, len(wire)), device_name))
    devices: list[Wire] = [publication.with_marks(situation, wire[device_name]) for device_name in in_order]
    for device_name in sorted(kept):
        devices.append(_withdrawn(publication.with_marks(situation, kept[device_name]), situation))
    counters = division.counters
    if [device["name"] for device in devices] == [names.NODE_DEVICE]:  # alone, it needs no counters
        devices = [_without_counters(devices[0])]
        counters = ()
    look_at = last.look_at if waits or stay else None
    return DividedOutcome(tuple(devices), counters, leaving=last, look_at=look_at)


def _without_counters(device: Wire) -> Wire:
    return {name: value for name, value in device.items() if name != "consumesCounters"}


def _kept(situation: Situation, division: Division, device_names: Collection[str]) -> dict[str, Wire]:
    """Return the devices with these names, as published and with their counters; unknown names are left out."""
    device_by_name: dict[str, Wire] = {}
    for device_name in device_names:
        device = division.named(device_name)
        published = situation.current.get(device_name)
        if published is not None:
            if device is not None:
                consumes = {"consumesCounters": device.to_wire()["consumesCounters"]}
            else:
                consumes = {}
            device_by_name[device_name] = {**published, **consumes}
        elif device is not None:
            device_by_name[device_name] = device.to_wire()
    return device_by_name


def _withdrawn(device: Wire, situation: Situation) -> Wire:
    """Return a device with the taint that keeps new claims away, unless the API server keeps no taints."""
    if situation.keeps_taints is False:
        return device
    taints: list[Any] = []
    for taint in device.get("taints") or ():
        if taint["key"] != TAINT_KEY:
            taints.append(taint)
    return {**device, "taints": [*taints, TAINT]}
