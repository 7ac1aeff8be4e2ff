"""What a node publishes now, and when it is to look again: everything that the publishing loop decides.

Whether a claim of the cluster has a device is asked of the API server only when a device is to leave; a long answer to
a short question. So the answer is kept, with one time to ask again, which replaces the one before it: however often
something else wakes the loop, nothing is asked meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from neuron_dra.core import health, names, ultraserver
from neuron_dra.core.claims import PreparedClaim
from neuron_dra.core.devices import Device
from neuron_dra.core.slices import Wire
from neuron_dra.core.ultraserver import Tag

CLAIMED_S: Final = (5.0, 60.0)  # first and longest wait until a device that should leave is looked at again
SHAPE_S: Final = 60.0  # while another shape waits for the node's claims


@dataclass(frozen=True, slots=True)
class Claimed:
    """An answer of the API server: the devices that claims were allocated. It is good until `until`."""

    names: frozenset[str]
    until: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class Situation:
    """What the decision is made on. `offered` and `other` are the hardware's devices, in the shape that is asked for
    and in the other one; `ids` and `reasons` are, by name, the Neuron devices behind a device and why it is sick.
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """What to do. `devices` None: leave everything as it is. `asks`: decide again, with the allocated devices.

    `claimed` is what to remember of the answer, `look_at` when to look again at the latest, None for: when something
    changes. `keeps_shape`: the published shape is not the one that is asked for, and stays while claims use it.
    """

    devices: tuple[Wire, ...] | None = None
    asks: bool = False
    claimed: Claimed | None = None
    keeps_shape: bool = False

    @property
    def look_at(self) -> float | None:
        """When to look again, whatever happens."""
        return self.claimed.until if self.claimed is not None else None


def decide(now: float, situation: Situation, last: Claimed | None, answer: Collection[str] | None = None) -> Outcome:
    """Decide what to publish at `now`; `last` is what was remembered, `answer` what was asked for just now."""
    current = situation.current
    held = {device.device for claim in situation.prepared for device in claim.devices}
    if situation.refused:
        return _refused(now, situation, held, last, answer)
    offered, keeps_shape = situation.offered, False
    if offered and _is_reshaped(situation):
        known = _known(now, (), last, answer, SHAPE_S)
        if known is None and not situation.prepared:
            return Outcome(asks=True)
        if situation.prepared or (known is not None and known.names):
            offered, keeps_shape = situation.other, True
            last = known if known is not None else Claimed(frozenset(), now + SHAPE_S, SHAPE_S)
    wire = _free(situation, offered, held)
    claimed: Claimed | None = None
    if leaving := set(current) - set(wire) - held:
        known = _known(now, leaving, last, answer, CLAIMED_S[0])
        if known is None:
            return Outcome(asks=True)
        held |= leaving & known.names
        claimed = known if leaving & known.names else None
    if keeps_shape and claimed is None:
        claimed = last
    by_name: dict[str, Wire] = {device.name: device.to_wire() for device in offered}
    for name in held - set(wire):
        if name in by_name or name in current:
            wire[name] = by_name.get(name) or current[name]  # allocated: stays published, sick or gone
    return Outcome(_marked(situation, wire), claimed=claimed, keeps_shape=keeps_shape)


def _refused(
    now: float, situation: Situation, held: set[str], last: Claimed | None, answer: Collection[str] | None
) -> Outcome:
    """Decide what stays while nothing new may be published: the devices that claims hold, or have been allocated.

    Those that are held come back, too, if the slices were wiped, as every restart of the kubelet does.
    """
    current = situation.current
    claimed: Claimed | None = None
    if leaving := set(current) - held:
        known = _known(now, leaving, last, answer, CLAIMED_S[0])
        if known is None:
            return Outcome(asks=True)
        held = held | (leaving & known.names)
        claimed = known if leaving & known.names else None
    there: dict[str, Wire] = {device.name: device.to_wire() for device in (*situation.other, *situation.offered)}
    wire = {name: there.get(name) or current[name] for name in held if name in there or name in current}
    if not wire and not current:
        return Outcome()
    return Outcome(_marked(situation, wire), claimed=claimed)


def _marked(situation: Situation, wire: Mapping[str, Wire]) -> tuple[Wire, ...]:
    """Return the devices of `wire` in their order, with what is wrong with them and the tag."""
    marked = {
        name: health.marked(device, situation.reasons.get(name, ()), situation.effect) for name, device in wire.items()
    }
    return tuple(ultraserver.tagged(marked[name], situation.tag) for name in sorted(marked, key=order))


def _is_reshaped(situation: Situation) -> bool:
    """Tell whether the published devices are those of the other shape."""
    current = set(situation.current)
    return not current & {d.name for d in situation.offered} and bool(current & {d.name for d in situation.other})


def _known(
    now: float, about: Collection[str], last: Claimed | None, answer: Collection[str] | None, first_s: float
) -> Claimed | None:
    """Return which devices have been allocated, or None if that has to be asked.

    What was remembered says that a device stays. That one may leave, only a fresh answer says.
    """
    if answer is not None:
        wait_s = first_s if last is None else min(2 * last.wait_s, CLAIMED_S[1])
        return Claimed(frozenset(answer), now + wait_s, wait_s)
    if last is not None and now < last.until and last.names.issuperset(about):
        return last
    return None


def _free(situation: Situation, offered: Iterable[Device], held: Collection[str]) -> dict[str, Wire]:
    """Return the offered devices that are not kept back, and those of them that are held."""
    offered = tuple(offered)
    elsewhere = _held_elsewhere(situation, {device.name for device in offered})
    return {
        device.name: device.to_wire()
        for device in offered
        if device.name in held
        or not (_is_withheld(situation, device.name) or elsewhere.intersection(situation.ids.get(device.name, ())))
    }


def _held_elsewhere(situation: Situation, offered: Collection[str]) -> set[int]:
    """Return the Neuron devices that claims hold under another name than those that are offered: another driver's.

    Under ours they would be free for the scheduler, and its pods would wait for what is refused here.
    """
    return {
        device_id
        for claim in situation.prepared
        for device in claim.devices
        if device.device not in offered and not device.admin_access
        for device_id in device.device_ids
    }


def _is_withheld(situation: Situation, name: str) -> bool:
    """Tell whether a device must leave the slice unless somebody has it: there is no other way to keep it back."""
    reasons = situation.reasons.get(name, ())
    if health.MISSING in reasons and name != names.NODE_DEVICE:
        return True  # back since a moment, perhaps for a moment
    if situation.tag is not None:
        return False  # the tag keeps others away, and the operator is to see what its workload has
    return bool(reasons) and situation.effect != health.NO_EFFECT and situation.keeps_taints is False


def order(name: str) -> tuple[int, str]:
    """Sort devices by their numbers, whatever is none of ours first."""
    suffix = name.removeprefix(names.DEVICE_PREFIX)
    return (int(suffix), name) if suffix.isdigit() else (-1, name)
