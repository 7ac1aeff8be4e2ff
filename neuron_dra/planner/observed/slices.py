"""Decodes ResourceSlices into what the controller keeps of a node. What another driver publishes raises no error.

A ResourceSlice of 16 KB becomes a PublishedNode of a few hundred bytes. Most devices of a slice say the same about
their node, so what they say is looked at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from neuron_dra.core import health, names
from neuron_dra.core.ownership import referenced
from neuron_dra.core.ultraserver import TAG_ATTRIBUTES, Tag
from neuron_dra.core.wire import Wire
from neuron_dra.planner.observed.model import NODES_AT_MOST, SLOT_SIZES, PublishedNode

ATTRIBUTES: Final = (
    *TAG_ATTRIBUTES,
    health.ATTRIBUTE,
    "resourceType",
    "instanceType",
    "ultraserverId",
    "ultraserverNodeId",
    "ultraserverModes",
    "linkVertical",
    "linkHorizontal",
    "capacityBlockId",
    "serverId2",
    "serverId4",
    "reservationId",
    "nodeId2",
    "networkNodeLayer1",
    "networkNodeLayer2",
    "networkNodeLayer3",
)
"""The attributes that are read, each with or without the domain of the driver."""
QUALIFIED: Final = {name: f"{names.DRIVER}/{name}" for name in ATTRIBUTES}
_TAG: Final = (*TAG_ATTRIBUTES, *(QUALIFIED[name] for name in TAG_ATTRIBUTES))
_KIND: Final = ("resourceType", QUALIFIED["resourceType"])
_UNHEALTHY: Final = (health.ATTRIBUTE, QUALIFIED[health.ATTRIBUTE])


@dataclass(frozen=True, slots=True)
class PublishedSlice:
    """One slice of a pool, before `published_nodes` joins them."""

    generation: int
    count: int
    node: PublishedNode


def published_slice(item: Wire) -> PublishedSlice | None:
    """Return what a ResourceSlice publishes about its node; None if it is another driver's."""
    spec = item.get("spec") or {}
    if spec.get("driver") != names.DRIVER or not spec.get("nodeName"):
        return None
    devices = [_attributes(device) for device in spec.get("devices") or []]
    main_device = min(_distinct(devices, _KIND), key=_rank, default={})
    tags = {_tag(device) for device in _distinct(devices, _TAG)}
    sick = []
    for device in _distinct(devices, _UNHEALTHY):
        sick.append(_string(device, health.ATTRIBUTE) or "")
    number = _int(main_device, "ultraserverNodeId")
    modes = (_string(main_device, "ultraserverModes") or "").split("_")
    reasons = ",".join(sick).split(",")
    node = PublishedNode(
        name=str(spec["nodeName"]),
        node_uid=_node_uid(item, str(spec["nodeName"])),
        instance_type=_string(main_device, "instanceType") or "",
        kind=_string(main_device, "resourceType") or "",
        ultraserver_id=_string(main_device, "ultraserverId"),
        node_id=number if number in range(NODES_AT_MOST) else None,
        sizes=tuple(size for size in SLOT_SIZES if str(size) in modes),
        vertical=_bool(main_device, "linkVertical"),
        horizontal=_bool(main_device, "linkHorizontal"),
        unhealthy=tuple(sorted({word for word in reasons if word})),
        capacity_block=_string(main_device, "capacityBlockId"),
        server_id_2=_string(main_device, "serverId2"),
        server_id_4=_string(main_device, "serverId4"),
        reservation_id=_string(main_device, "reservationId"),
        node_id_2=_int(main_device, "nodeId2"),
        layers=(
            _string(main_device, "networkNodeLayer1"),
            _string(main_device, "networkNodeLayer2"),
            _string(main_device, "networkNodeLayer3"),
        ),
        tag=tags.pop() if len(tags) == 1 else None,
        complete=bool(devices) and not tags,
    )
    pool = spec.get("pool") or {}
    return PublishedSlice(int(pool.get("generation") or 0), int(pool.get("resourceSliceCount") or 1), node)


def _node_uid(item: Wire, node_name: str) -> str:
    """Return the UID of the Node that owns a slice; empty without owners. What is owned by others only is no Node's."""
    owners = (item.get("metadata") or {}).get("ownerReferences") or []
    for owner in (referenced(reference, "") for reference in owners):
        if (owner.group, owner.kind, owner.name) == ("", "Node", node_name):
            return owner.uid
    return _OF_ANOTHER if owners else ""


_OF_ANOTHER: Final = "the slice is owned by another object than its Node"
KINDS = ("neuron_node", "neuron_device")
"""The devices that describe their node, best first; connected sets and core partitions do not."""


def _kind_rank(kind: str | None) -> int:
    """Return how well a device of this kind describes its node; lower is better."""
    if kind in KINDS:
        return KINDS.index(kind)
    return len(KINDS) + (not kind)


def _rank(device: Mapping[str, Any]) -> int:
    return _kind_rank(_string(device, "resourceType"))


def published_nodes(slices: Iterable[PublishedSlice]) -> tuple[PublishedNode, ...]:
    """Join the slices of each node. Only the newest generation counts; `complete` is True if all its slices exist.

    Slices of counters, and those whose devices are all withdrawn, have no kind and describe nothing.
    """
    by_node: dict[str, list[PublishedSlice]] = {}
    for published_part in slices:
        by_node.setdefault(published_part.node.name, []).append(published_part)
    joined_nodes = []
    for parts in by_node.values():
        if len(parts) == 1 and parts[0].count == 1:
            joined_nodes.append(parts[0].node)  # the usual case, and the same object each time
            continue
        newest = max(part.generation for part in parts)
        current = [part for part in parts if part.generation == newest]
        main = min(current, key=lambda part: (_kind_rank(part.node.kind), repr(part.node)))
        nodes = [part.node for part in current if part.node.kind] or [main.node]
        whole = len(current) == main.count and all(node.complete for node in nodes)
        unhealthy = tuple(sorted({word for node in nodes for word in node.unhealthy}))
        complete = whole and len({node.tag for node in nodes}) == 1
        joined_nodes.append(replace(main.node, unhealthy=unhealthy, complete=complete))
    return tuple(joined_nodes)


def _attributes(device: Wire) -> Mapping[str, Any]:
    """Return a device's attributes; in v1beta1 they are one level deeper than in v1."""
    attributes = device.get("attributes") or (device.get("basic") or {}).get("attributes") or {}
    if isinstance(attributes, Mapping):
        return attributes
    return {}


def _distinct(devices: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the devices that say something else in these attributes than the one before."""
    if len(devices) == 1:
        yield devices[0]
        return
    before: list[Any] | None = None
    for device in devices:
        shown = [device.get(key) for key in keys]
        if shown != before:
            yield device
            before = shown


def _tag(attributes: Mapping[str, Any]) -> Tag | None:
    """Return the tag in a device's attributes; None without a complete one."""
    return Tag.from_texts({name: _string(attributes, name) for name in TAG_ATTRIBUTES})


def _value(attributes: Mapping[str, Any], name: str, kind: str) -> Any:
    """Return an attribute of this kind, with or without the domain of the driver; None without it."""
    value = attributes.get(name) or attributes.get(QUALIFIED[name])
    if value and isinstance(value, Mapping):
        return value.get(kind)
    return None


def _string(attributes: Mapping[str, Any], name: str) -> str | None:
    value = _value(attributes, name, "string")
    if value:
        return str(value)
    return None


def _int(attributes: Mapping[str, Any], name: str) -> int | None:
    value = _value(attributes, name, "int")
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return None


def _bool(attributes: Mapping[str, Any], name: str) -> bool | None:
    value = _value(attributes, name, "bool")
    if isinstance(value, bool):
        return value
    return None
