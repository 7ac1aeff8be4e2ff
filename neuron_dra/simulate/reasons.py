"""Explains why a node has no solution: per request, which devices match, are free, and meet the constraints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set

from neuron_dra.simulate import constraints
from neuron_dra.simulate.counting import Counting
from neuron_dra.simulate.failures import AllocationError
from neuron_dra.simulate.model import DeviceId, PoolDevice
from neuron_dra.simulate.pools import ResourcePool
from neuron_dra.simulate.requests import Matcher, Need


def explain(
    needs: Sequence[Sequence[Sequence[Need]]], pools: Sequence[ResourcePool], in_use: Set[DeviceId], matcher: Matcher
) -> tuple[str, ...]:
    """Return a sentence per alternative with too few devices, or one sentence if only all requests together fail."""
    every = [need for claim in needs for alternatives in claim for need in alternatives]
    shortages = [_shortage(need, pools, in_use, matcher) for need in every]
    found = tuple(sentence for sentence in shortages if sentence)
    if found:
        return found
    return ("each request could be satisfied alone, but not all of them together",)


def _shortage(need: Need, pools: Sequence[ResourcePool], in_use: Set[DeviceId], matcher: Matcher) -> str:
    devices = [device for pool in pools if pool.usable for device in pool.devices]
    try:
        matching = [d for d in devices if matcher.matches(need.claim, need.alternative, need.device_class, d)]
    except AllocationError as err:
        return str(err)
    admin = need.alternative.admin_access
    used = [] if admin else [device for device in matching if device.id in in_use]
    counting = Counting([pool for pool in pools if pool.usable], in_use)
    overlapping = [device for device in matching if device not in used and not counting.allows(device)]
    left = [device for device in matching if device not in used and device not in overlapping]
    tainted = [device for device in left if need.blocking_taint(device) is not None]
    free = [device for device in left if device not in tainted]
    wanted = "all devices" if need.all_devices is not None else _count(need.count, "device")
    head = f"request {need.result_name} wants {wanted}"
    if not matching:
        return f"{head}: {_none_match(devices, pools)}"
    amount = f"{len(matching)} of {len(devices)} match" if len(matching) < len(devices) else f"{len(matching)} match"
    if used:
        amount += f", {len(used)} in use"
    if overlapping:
        amount += f", {len(overlapping)} overlap devices in use"
    if tainted:
        taint = need.blocking_taint(tainted[0])
        amount += f", {len(tainted)} tainted{f' ({taint.key})' if taint else ''}"
    if len(free) < need.count:
        return f"{head}: {amount}"
    for state in constraints.states(need.claim):
        if state.applies(need.request.name, need.result_name):
            together = _together(state, free)
            if together < need.count:
                what = "the same" if state.constraint.kind == "matchAttribute" else "different"
                return (
                    f"{head} with {what} {state.constraint.attribute}: {amount}, at most {together} together are free"
                )
    return ""


def _none_match(devices: Sequence[PoolDevice], pools: Sequence[ResourcePool]) -> str:
    unusable = [f"{pool.driver}/{pool.name}" for pool in pools if not pool.usable]
    if unusable:
        return f"no device matches, and the pool {unusable[0]} is being updated or invalid"
    return (
        f"none of the node's {_count(len(devices), 'device')} matches" if devices else "the node publishes no devices"
    )


def _together(state: constraints.ConstraintState, free: Sequence[PoolDevice]) -> int:
    read = (constraints.attribute(device, state.constraint.attribute) for device in free)
    values = Counter(value for value in read if value is not None)
    if state.constraint.kind == "matchAttribute":
        return max(values.values(), default=0)
    return len(values)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
