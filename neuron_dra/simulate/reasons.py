"""Explains why a node has no solution: per request, which devices match, are free, and meet the constraints."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

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
    sentences: list[str] = []
    for need in itertools.chain.from_iterable(itertools.chain.from_iterable(needs)):
        sentence = _shortage(need, pools, in_use, matcher)
        if sentence:
            sentences.append(sentence)
    if sentences:
        return tuple(sentences)
    return ("each request could be satisfied alone, but not all of them together",)


def _shortage(need: Need, pools: Sequence[ResourcePool], in_use: Set[DeviceId], matcher: Matcher) -> str:
    """Return what one alternative lacks; empty if it could be satisfied alone."""
    usable = [pool for pool in pools if pool.usable]
    devices = [device for pool in usable for device in pool.devices]
    try:
        matching = [
            device for device in devices if matcher.matches(need.claim, need.alternative, need.device_class, device)
        ]
    except AllocationError as err:
        return str(err)
    sorted_out = _sorted_out(need, matching, usable, in_use)
    if need.all_devices is not None:
        requested = "all devices"
    else:
        requested = _count(need.count, "device")
    head = f"request {need.result_name} wants {requested}"
    if not matching:
        return f"{head}: {_none_match(devices, pools)}"
    amount = f"{len(matching)} match"
    if len(matching) < len(devices):
        amount = f"{len(matching)} of {len(devices)} match"
    amount += sorted_out.why_not_free()
    if len(sorted_out.free) < need.count:
        return f"{head}: {amount}"
    for state in constraints.states(need.claim):
        if not state.applies(need.request.name, need.result_name):
            continue
        together = _together(state, sorted_out.free)
        if together < need.count:
            what = "different"
            if state.constraint.kind == "matchAttribute":
                what = "the same"
            return f"{head} with {what} {state.constraint.attribute}: {amount}, at most {together} together are free"
    return ""


@dataclass(slots=True)
class _SortedOut:
    """The devices that match a request: each is in use, overlaps one that is, is tainted, or is free."""

    used: list[PoolDevice] = field(default_factory=list)
    overlapping: list[PoolDevice] = field(default_factory=list)
    tainted: list[PoolDevice] = field(default_factory=list)
    free: list[PoolDevice] = field(default_factory=list)
    taint: str = ""  # the key of the first taint

    def why_not_free(self) -> str:
        """Return how many are not free, and why, as the end of a sentence."""
        text = ""
        if self.used:
            text += f", {len(self.used)} in use"
        if self.overlapping:
            text += f", {len(self.overlapping)} overlap devices in use"
        if self.tainted:
            text += f", {len(self.tainted)} tainted ({self.taint})"
        return text


def _sorted_out(
    need: Need, matching: Sequence[PoolDevice], usable: Sequence[ResourcePool], in_use: Set[DeviceId]
) -> _SortedOut:
    counting = Counting(usable, in_use)
    sorted_out = _SortedOut()
    for device in matching:
        taint = need.blocking_taint(device)
        if device.id in in_use and not need.alternative.admin_access:
            sorted_out.used.append(device)
        elif not counting.allows(device):
            sorted_out.overlapping.append(device)
        elif taint is not None:
            sorted_out.taint = sorted_out.taint or taint.key
            sorted_out.tainted.append(device)
        else:
            sorted_out.free.append(device)
    return sorted_out


def _none_match(devices: Sequence[PoolDevice], pools: Sequence[ResourcePool]) -> str:
    unusable = [f"{pool.driver}/{pool.name}" for pool in pools if not pool.usable]
    if unusable:
        return f"no device matches, and the pool {unusable[0]} is being updated or invalid"
    if not devices:
        return "the node publishes no devices"
    return f"none of the node's {_count(len(devices), 'device')} matches"


def _together(state: constraints.ConstraintState, free: Sequence[PoolDevice]) -> int:
    read = (constraints.attribute(device, state.constraint.attribute) for device in free)
    values = Counter(value for value in read if value is not None)
    if state.constraint.kind == "matchAttribute":
        return max(values.values(), default=0)
    return len(values)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
