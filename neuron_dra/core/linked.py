"""The links between a node's devices over time, and whether a group of devices is connected by its own.

A link that an end does not report is down at once. It is up again when both ends have reported it for a while, which is
longer each time: so a link that flaps changes what the node publishes a bounded number of times. While an end cannot be
read, the link stays as it was.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.topology import Node

Pair = tuple[int, int]
"""Two devices, the lower id first."""

LONGEST_HOLD_S: Final = 3600.0
"""The longest time for which a link that flaps must stay up; after as long again, earlier failures are forgotten."""


def of_type(spec: InstanceType) -> frozenset[Pair]:
    """Return the links that a type has. A switch connects every pair."""
    if spec.shape == "switch":
        return frozenset(itertools.combinations(range(spec.device_count), 2))
    listed = ((one, other) for one, others in enumerate(spec.links) for other in others)
    return frozenset((min(pair), max(pair)) for pair in listed)


def readings(node: Node) -> dict[Pair, bool | None]:
    """Return for each pair of devices that the type or a device links whether it is linked; None if that is unread."""
    if node.spec is None:
        return {}
    reported = {device.device_id: device.reported for device in node.devices}
    named = ((one, other) for one, others in reported.items() for other in others or ())
    pairs = of_type(node.spec) | {(min(pair), max(pair)) for pair in named}
    return {pair: _reading(*pair, reported) for pair in pairs}


def _reading(one: int, other: int, reported: Mapping[int, frozenset[int] | None]) -> bool | None:
    here, there = reported.get(one), reported.get(other)
    if (here is not None and other not in here) or (there is not None and one not in there):
        return False
    if here is None or there is None:
        return None
    return True


def up_now(node: Node) -> frozenset[Pair]:
    """Return the links that are up, from one reading; one that is unread counts as the type has it."""
    usual = of_type(node.spec) if node.spec is not None else frozenset()
    found = set()
    for pair, is_up in readings(node).items():
        if is_up or (is_up is None and pair in usual):
            found.add(pair)
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Link:
    """One link: `downs` counts its failures; `well_since` is when it was reported again while it counts as down."""

    is_up: bool = True
    downs: int = 0
    changed: float = 0.0
    well_since: float | None = None


@dataclass(frozen=True, slots=True)
class Links:
    """The links as the node's sets count them; `look_at` is when one that is well again may count as up."""

    each: Mapping[Pair, Link] = field(default_factory=dict)
    look_at: float | None = None

    @property
    def up(self) -> frozenset[Pair]:
        """The links that count as up."""
        return frozenset(pair for pair, link in self.each.items() if link.is_up)


def followed(before: Links, node: Node, now: float, hold_s: float) -> Links:
    """Return the links after a reading at time `now`; `hold_s` is the first time for which a link must be well."""
    usual = up_now(node)
    each: dict[Pair, Link] = {}
    times = []
    for pair, is_up in readings(node).items():
        known = before.each.get(pair)
        if known is not None:
            link = _followed(known, is_up, now, hold_s)
        else:
            link = _first(pair in usual, now)
        each[pair] = link
        if link.well_since is not None:
            times.append(link.well_since + _hold_s(link, hold_s))
    return Links(each, min(times, default=None))


def _first(is_up: bool, now: float) -> Link:
    return Link(is_up, downs=0 if is_up else 1, changed=now)


def _followed(link: Link, is_up: bool | None, now: float, hold_s: float) -> Link:
    if is_up is None:
        return Link(link.is_up, link.downs, link.changed)
    if link.is_up and is_up:
        return link
    if link.is_up:
        forgotten = now - link.changed >= 2 * LONGEST_HOLD_S
        return Link(False, 1 if forgotten else link.downs + 1, now)
    if not is_up:
        return Link(False, link.downs, link.changed)
    since = now if link.well_since is None else link.well_since
    if now - since >= _hold_s(link, hold_s):
        return Link(True, link.downs, now)
    return Link(False, link.downs, link.changed, since)


def _hold_s(link: Link, hold_s: float) -> float:
    """Return for how long a link must be well: the first time once, then twice as long for each failure."""
    return float(min(hold_s * 2 ** min(max(link.downs - 1, 0), 32), max(LONGEST_HOLD_S, hold_s)))


def is_connected(ids: Collection[int], links: Iterable[Pair]) -> bool:
    """Return True if `links` between the devices `ids` themselves connect them all."""
    wanted = set(ids)
    beside: dict[int, set[int]] = {device_id: set() for device_id in wanted}
    for one, other in links:
        if one in wanted and other in wanted:
            beside[one].add(other)
            beside[other].add(one)
    reached: set[int] = set()
    ahead = list(wanted)[:1]
    while ahead:
        device_id = ahead.pop()
        if device_id not in reached:
            reached.add(device_id)
            ahead += beside[device_id] - reached
    return reached == wanted
