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
    listed = ((device_id, neighbor) for device_id, neighbors in enumerate(spec.links) for neighbor in neighbors)
    return frozenset((min(pair), max(pair)) for pair in listed)


def readings(node: Node) -> dict[Pair, bool | None]:
    """Return for each pair of devices that the type or a device links whether it is linked; None if that is unread."""
    if node.spec is None:
        return {}
    reported = {device.device_id: device.reported for device in node.devices}
    named = ((device_id, neighbor) for device_id, neighbors in reported.items() for neighbor in neighbors or ())
    pairs = of_type(node.spec) | {(min(pair), max(pair)) for pair in named}
    return {pair: _reading(*pair, reported) for pair in pairs}


def _reading(first: int, second: int, reported: Mapping[int, frozenset[int] | None]) -> bool | None:
    links_of_first, links_of_second = reported.get(first), reported.get(second)
    if links_of_first is not None and second not in links_of_first:
        return False
    if links_of_second is not None and first not in links_of_second:
        return False
    if links_of_first is None or links_of_second is None:
        return None
    return True


def up_now(node: Node) -> frozenset[Pair]:
    """Return the links that are up, from one reading; one that is unread counts as the type has it."""
    usual = of_type(node.spec) if node.spec is not None else frozenset()
    links_up = set()
    for pair, is_up in readings(node).items():
        if is_up or (is_up is None and pair in usual):
            links_up.add(pair)
    return frozenset(links_up)


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

    link_by_pair: Mapping[Pair, Link] = field(default_factory=dict)
    look_at: float | None = None

    @property
    def up(self) -> frozenset[Pair]:
        """The links that count as up."""
        return frozenset(pair for pair, link in self.link_by_pair.items() if link.is_up)


def followed(before: Links, node: Node, now: float, hold_s: float) -> Links:
    """Return the links after a reading at time `now`; `hold_s` is the first time for which a link must be well."""
    usual = up_now(node)
    link_by_pair: dict[Pair, Link] = {}
    times = []
    for pair, is_up in readings(node).items():
        former = before.link_by_pair.get(pair)
        if former is not None:
            link = _followed(former, is_up, now, hold_s)
        else:
            link = _first(pair in usual, now)
        link_by_pair[pair] = link
        if link.well_since is not None:
            times.append(link.well_since + _hold_s(link, hold_s))
    return Links(link_by_pair, min(times, default=None))


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
    all_ids = set(ids)
    neighbors: dict[int, set[int]] = {device_id: set() for device_id in all_ids}
    for first, second in links:
        if first in all_ids and second in all_ids:
            neighbors[first].add(second)
            neighbors[second].add(first)
    reached: set[int] = set()
    ahead = list(all_ids)[:1]
    while ahead:
        device_id = ahead.pop()
        if device_id not in reached:
            reached.add(device_id)
            ahead += neighbors[device_id] - reached
    return reached == all_ids
