"""The decisions of the publishing loop: what a node publishes now, and when the loop looks again.

Only when a device is about to leave the slices does the loop need the cluster's claims from the API server, which is a
long list. The list is therefore kept until one time, at which the next one is read; until then no other wake-up of the
loop causes a request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from neuron_dra.core import busy, health, names, signals, ultraserver
from neuron_dra.core.claims import PreparedClaim
from neuron_dra.core.devices import Device
from neuron_dra.core.ultraserver import Tag
from neuron_dra.core.wire import Wire


@dataclass(frozen=True, slots=True)
class LeavingTiming:
    """Of devices that should leave the slices."""

    # First and longest delay before a device that should leave is checked again.
    check_s: tuple[float, float] = (5.0, 60.0)
    shape_s: float = 60.0  # the same, while a change of the shape waits for the node's claims

    # Between the taint of a device that leaves a node with connected sets, and the list of claims that decides.
    withdraw_s: float = 30.0


DEFAULT_LEAVING_TIMING: Final = LeavingTiming()


@dataclass(frozen=True, slots=True)
class Claimed:
    """The devices that claims were allocated, as listed from the API server; valid until `until`.

    `wait_s` is how long it was valid in all, in seconds; the next delay doubles it.
    """

    names: frozenset[str]
    until: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of the decision.

    `offered` and `other` are the hardware's devices in the configured shape and in the other shape. `ids` and
    `reasons` have, by device name, the Neuron devices behind it and the reasons why it is unhealthy. `keeps_taints` is
    whether the API server keeps taints, None if that is unknown.
    """

    current: Mapping[str, Wire]  # as published
    offered: tuple[Device, ...]
    other: tuple[Device, ...] = ()
    refused: bool = False  # nothing new may be published
    prepared: tuple[PreparedClaim, ...] = ()
    ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    reasons: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    effect: str = health.NO_EFFECT
    keeps_taints: bool | None = None
    tag: Tag | None = None
    is_closed: bool = False  # no program can open the devices now (core/busy.py)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The decision.

    `devices` are to be published; None means no change. `needs_allocated` means that the allocated devices are
    needed: call `decide` again with them. `claimed` is to be passed as `last` to the next decision. `keeps_shape` means
    that the published shape differs from the configured one and stays while claims use it.
    """

    devices: tuple[Wire, ...] | None = None
    needs_allocated: bool = False
    claimed: Claimed | None = None
    keeps_shape: bool = False

    @property
    def look_at(self) -> float | None:
        """When to decide again at the latest; None if only a change requires it."""
        if self.claimed is not None:
            return self.claimed.until
        return None


def decide(
    now: float,
    situation: Situation,
    last: Claimed | None,
    answer: Collection[str] | None = None,
    timing: LeavingTiming = DEFAULT_LEAVING_TIMING,
) -> Outcome:
    """Return what to publish at time `now`.

    `last` is the `claimed` of the decision before; `answer` are the names of the allocated devices, if they were just
    read because a decision had `needs_allocated`.
    """
    current = situation.current
    held_names = set()
    for claim in situation.prepared:
        for device in claim.devices:
            held_names.add(device.device)
    if situation.refused:
        return _refused(now, situation, held_names, last, answer, timing)
    offered, keeps_shape = situation.offered, False
    if offered and _is_reshaped(situation):
        allocated = _known(now, (), last, answer, timing, timing.shape_s)
        if allocated is None and not situation.prepared:
            return Outcome(needs_allocated=True)
        if situation.prepared or (allocated is not None and allocated.names):
            offered, keeps_shape = situation.other, True
            if allocated is not None:
                last = allocated
            else:
                last = Claimed(frozenset(), now + timing.shape_s, timing.shape_s)
    wire = free(situation, offered, held_names)
    claimed: Claimed | None = None
    if leaving := set(current) - set(wire) - held_names:
        allocated = _known(now, leaving, last, answer, timing, timing.check_s[0])
        if allocated is None:
            return Outcome(needs_allocated=True)
        held_names |= leaving & allocated.names
        claimed = allocated if leaving & allocated.names else None
    if keeps_shape and claimed is None:
        claimed = last
    by_name: dict[str, Wire] = {device.name: device.to_wire() for device in offered}
    for device_name in held_names - set(wire):
        if device_name in by_name or device_name in current:
            # An allocated device stays published, even if it is unhealthy or gone.
            wire[device_name] = by_name.get(device_name) or current[device_name]
    return Outcome(marked(situation, wire), claimed=claimed, keeps_shape=keeps_shape)


def _refused(
    now: float,
    situation: Situation,
    held_names: set[str],
    last: Claimed | None,
    answer: Collection[str] | None,
    timing: LeavingTiming,
) -> Outcome:
    """Return what stays published while nothing new may be: the devices that claims hold or have been allocated.

    Held devices are also published again after the slices were wiped, which every restart of the kubelet does.
    """
    current = situation.current
    claimed: Claimed | None = None
    if leaving := set(current) - held_names:
        allocated = _known(now, leaving, last, answer, timing, timing.check_s[0])
        if allocated is None:
            return Outcome(needs_allocated=True)
        held_names = held_names | (leaving & allocated.names)
        claimed = allocated if leaving & allocated.names else None
    wire_by_name: dict[str, Wire] = {}
    for device in (*situation.other, *situation.offered):
        wire_by_name[device.name] = device.to_wire()
    wire = {}
    for device_name in held_names:
        if device_name in wire_by_name or device_name in current:
            wire[device_name] = wire_by_name.get(device_name) or current[device_name]
    if not wire and not current:
        return Outcome()
    return Outcome(marked(situation, wire), claimed=claimed)


def marked(situation: Situation, wire: Mapping[str, Wire]) -> tuple[Wire, ...]:
    """Return the devices of `wire` in order, with the marks of unhealthy ones and the tag."""
    return tuple(with_marks(situation, wire[name]) for name in sorted(wire, key=order))


def with_marks(situation: Situation, device: Wire) -> dict[str, Any]:
    """Return a device with the marks of an unhealthy one and the tag, as they are now."""
    reasons = situation.reasons.get(device["name"], ())
    tagged = ultraserver.tagged(health.marked(device, reasons, situation.effect), situation.tag)
    if situation.is_closed and situation.keeps_taints is not False:
        return busy.tainted(tagged)
    return tagged


def _is_reshaped(situation: Situation) -> bool:
    """Return True if the published devices are those of the other shape.

    The setting ultraserver_devices chooses between one device for the whole node and one for each Neuron device.
    """
    current = set(situation.current)
    offered = {device.name for device in situation.offered}
    other = {device.name for device in situation.other}
    return current.isdisjoint(offered) and not current.isdisjoint(other)


def _known(
    now: float,
    about: Collection[str],
    last: Claimed | None,
    answer: Collection[str] | None,
    timing: LeavingTiming,
    first_s: float,
) -> Claimed | None:
    """Return the allocated devices, or None if they have to be read from the API server.

    The last list is enough to keep a device; removing one requires a new list.
    """
    if answer is not None:
        wait_s = first_s if last is None else min(2 * last.wait_s, timing.check_s[1])
        return Claimed(frozenset(answer), now + wait_s, wait_s)
    if last is not None and now < last.until and last.names.issuperset(about):
        return last
    return None


def free(
    situation: Situation,
    offered: Iterable[Device],
    held_names: Collection[str],
    counted: Callable[[str], bool] = lambda name: False,
) -> dict[str, Wire]:
    """Return the offered devices that may be published, by name, and those that claims hold in any case.

    `counted` returns True for the name of a device that is published with counters while a claim holds it.
    """
    offered = tuple(offered)
    offered_names = {device.name for device in offered}
    prepared_names = {device.device for claim in situation.prepared for device in claim.devices}
    counted_names = {device_name for device_name in prepared_names if counted(device_name)}
    elsewhere = held_elsewhere(situation, offered_names | counted_names)
    wire_by_name: dict[str, Wire] = {}
    for device in offered:
        is_taken = bool(elsewhere.intersection(situation.ids.get(device.name, ())))
        if device.name in held_names or not (is_taken or is_withheld(situation, device.name)):
            wire_by_name[device.name] = device.to_wire()
    return wire_by_name


def held_elsewhere(situation: Situation, offered: Collection[str]) -> set[int]:
    """Return the ids of Neuron devices that claims hold under names that are not offered, such as another driver's.

    Under the offered names the scheduler would consider them free, and prepare would reject its pods.
    """
    device_ids: set[int] = set()
    for claim in situation.prepared:
        for device in claim.devices:
            if device.device not in offered and not device.admin_access:
                device_ids.update(device.device_ids)
    return device_ids


def is_withheld(situation: Situation, name: str) -> bool:
    """Return True if a device must leave the slice unless a claim holds it, because no taint or tag protects it."""
    reasons = situation.reasons.get(name, ())
    if signals.MISSING in reasons and name != names.NODE_DEVICE:
        return True  # it has only just returned and may flap
    if situation.tag is not None:
        return False  # the tag keeps other claims away, and the controller has to see its workload's devices
    return bool(reasons) and situation.effect != health.NO_EFFECT and situation.keeps_taints is False


def order(name: str) -> tuple[int, str]:
    """Return the sort key of a device name: names of other forms first, then by number.

    So `neuron-device-10` follows `neuron-device-9`, and slices keep their devices when one is added.
    """
    suffix = name.removeprefix(names.DEVICE_PREFIX)
    if suffix.isdigit():
        return (int(suffix), name)
    return (-1, name)
