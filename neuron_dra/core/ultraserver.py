"""NeuronUltraServer objects as plugin and controller read them: their names, their allocations, and the nodes' tags.

An *allocation* is one slot of a workload: 1, 2 or 4 nodes of one UltraServer. The controller writes allocations; a
node's plugin reads those that list its node, and responds with a tag on its devices.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from neuron_dra.core import user_text
from neuron_dra.core.notice import UNTOLD, Notice, Told
from neuron_dra.core.rendezvous import Rendezvous

NAMESPACE: Final = "neuron-dra-driver"
WORKLOAD_KIND: Final = "NeuronUltraServerWorkload"
"""The namespace of NeuronUltraServer objects."""

NAME_LENGTH: Final = 63
UID_LENGTH: Final = 63
"""The limit of workloadUid, from the CRD."""
TAG_BYTES: Final = 64  # an attribute's text may not be longer (kubernetes/api, resource/v1, DeviceAttribute)

GROUPS_AT_MOST: Final = 1024
"""The limit of groups in one workload, from the CRD of this release; that of AWS's chart has no limit."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_READABLE, _HASHED = "us-", "ush-"  # two prefixes, so that no readable name equals another id's hashed name


def object_name(ultraserver_id: str) -> str:
    """Return the name of the NeuronUltraServer object for a published `ultraserverId`: a DNS label, unique per id.

    It is `us-` and the id (`us-cr-0123456789abcdef0`), or else `ush-`, the valid characters of the id, and a hash.
    """
    plain = _READABLE + ultraserver_id
    if _LABEL.fullmatch(ultraserver_id) and len(plain) <= NAME_LENGTH:
        return plain
    import hashlib  # loads OpenSSL, which commands that only read tags do not need

    digest = hashlib.sha256(ultraserver_id.encode(errors="surrogatepass")).hexdigest()[:16]
    room = NAME_LENGTH - len(_HASHED) - len(digest) - 1
    legible = re.sub(r"[^a-z0-9]+", "-", ultraserver_id.lower())[:room].strip("-")
    return _HASHED + (f"{legible}-" if legible else "") + digest


class Phase(Enum):
    """The progress of an allocation; only the pods of a Bound one may start."""

    PENDING = "Pending"  # reserved: nodes reject other claims and tag their devices
    BOUND = "Bound"  # every node has its tag: the workload's pods may start
    DRAINING = "Draining"  # being released: no pod may start


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a node that breaks its slot; `since` is when the controller first saw it."""

    node: str
    reason: str
    since: str  # RFC 3339, UTC


@dataclass(frozen=True, slots=True)
class Allocation:
    """One slot of a workload; indices and ranks start at 0.

    `nodes` are names in the order of their ranks; `node_uids` are the UIDs of these Nodes, or empty.
    `world_size`, in nodes, `rank0_node` and `rendezvous` cover all slots; None if the object does not have them.
    """

    workload_namespace: str
    workload_name: str
    workload_uid: str
    allocation_id: str  # new for every reservation
    phase: Phase
    nodes: tuple[str, ...]
    node_count: int
    ultraserver_index: int
    world_size: int | None = None
    rank0_node: str | None = None
    allocated_at: str = ""  # RFC 3339, UTC
    node_uids: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
    rendezvous: Rendezvous | None = None
    notice: Notice | None = None
    only_shown: bool = False  # no object had it: a node's tag alone names the workload

    @property
    def holder(self) -> str:
        """The UID of the workload that has the slot.

        A node may show any workload's UID, so a slot that is known from tags only is no workload's. It is released.
        """
        return (_ONLY_SHOWN + self.workload_uid)[:UID_LENGTH] if self.only_shown else self.workload_uid

    @property
    def workload(self) -> str:
        """The workload as namespace/name."""
        return f"{self.workload_namespace}/{self.workload_name}"

    def is_for(self, node_name: str, node_uid: str) -> bool:
        """Return True if the slot has this Node, and not an earlier one of the same name; an unknown UID matches."""
        if node_name not in self.nodes:
            return False
        return not self.node_uids or not node_uid or self.node_uids[self.nodes.index(node_name)] == node_uid

    def rank(self, node_name: str) -> int:
        """Return a node's rank (NEURON_GLOBAL_TOPOID) in the workload. Raises ValueError if the slot lacks it."""
        return self.ultraserver_index * self.node_count + self.nodes.index(node_name)

    def to_wire(self) -> dict[str, Any]:
        """Return the allocation as an entry of `status.allocations`."""
        entry: dict[str, Any] = {
            "workloadRef": self.workload,
            "workloadUid": self.holder,
            "allocationId": self.allocation_id,
            "phase": self.phase.value,
            "nodeCount": self.node_count,
            "allocatedNodes": list(self.nodes),
            "leaderNodeName": self.nodes[0],
            "ultraserverIndex": self.ultraserver_index,
            "allocatedAt": self.allocated_at,
        }
        if self.world_size is not None:
            entry["worldSize"] = self.world_size
        if self.rank0_node is not None:
            entry["rank0Node"] = self.rank0_node
        if self.rendezvous is not None:
            entry["rendezvous"] = self.rendezvous.to_wire()
        if self.notice is not None:
            entry["notice"] = self.notice.to_wire()
        if self.node_uids:
            entry["nodeUids"] = list(self.node_uids)
        if self.faults:
            entry["faults"] = [_fault_to_wire(fault) for fault in self.faults]
        return entry


_ONLY_SHOWN: Final = "shown."
"""The prefix of workloadUid of a slot that is known from tags only. An older release reads it as the UID of a workload
that is gone, and releases the slot."""


_FAULT_FIELDS: Final = ("nodeName", "reason", "since")


def _fault_to_wire(fault: Fault) -> dict[str, str]:
    return {"nodeName": fault.node, "reason": fault.reason, "since": fault.since}


@dataclass(frozen=True, slots=True)
class UnreadAllocation:
    """An entry of `status.allocations` that this release cannot read; it stays as it is and keeps its nodes reserved.

    `official` is the allocation in an entry of AWS's operator, which has no id and no UIDs; None for other entries.
    """

    entry: Any
    nodes: tuple[str, ...]
    problem: str
    official: Allocation | None = None

    def may_hold(self, node_name: str) -> bool:
        """Return True if the entry names the node, or nodes whose names cannot be read."""
        if not self.nodes or node_name in self.nodes:
            return True
        return len(self.nodes) < len(self.entry["allocatedNodes"])


@dataclass(frozen=True, slots=True)
class Reading:
    """The contents of a NeuronUltraServer; `problems` has a sentence for every entry that could not be read.

    `missing`: the object or its CRD does not exist. `written`: a controller has written its status. `replaced`: ids of
    allocations to an earlier Node of the reader's name.
    """

    allocations: tuple[Allocation, ...] = ()
    problems: tuple[str, ...] = ()
    unread: tuple[UnreadAllocation, ...] = ()
    object_uid: str = ""
    missing: bool = False
    written: bool = True
    replaced: frozenset[str] = frozenset()

    def without_predecessors_of(self, node_name: str, node_uid: str) -> Reading:
        """Return the reading without allocations of an earlier Node of this name, whose instance was replaced."""
        kept, replaced_ids = [], set()
        for allocation in self.allocations:
            if node_name in allocation.nodes and not allocation.is_for(node_name, node_uid):
                replaced_ids.add(allocation.allocation_id)
            else:
                kept.append(allocation)
        return replace(self, allocations=tuple(kept), replaced=frozenset(replaced_ids))

    def may_hold(self, node_name: str) -> bool:
        """Return True if an entry that cannot be read may reserve the node."""
        if len(self.unread) < len(self.problems):
            return True  # the list itself cannot be read
        return any(entry.may_hold(node_name) for entry in self.unread)


GONE: Final = Reading(missing=True, written=False)
"""The reading of an object that does not exist."""


def decode_allocations(obj: Mapping[str, Any]) -> tuple[Allocation, ...]:
    """Return the allocations of a NeuronUltraServer that can be read; never raises."""
    return read_allocations(obj).allocations


def read_allocations(obj: Mapping[str, Any]) -> Reading:
    """Return the allocations of a NeuronUltraServer, and why others are left out; {} means no object. Never raises."""
    if not obj:
        return GONE
    meta, status = obj.get("metadata"), obj.get("status")
    uid = str(meta.get("uid") or "") if isinstance(meta, Mapping) else ""
    if not isinstance(status, Mapping) or not status:
        return Reading(object_uid=uid, written=False)
    entries = status.get("allocations")
    if entries is None:
        return Reading(object_uid=uid)
    if not _is_list(entries):
        return Reading(problems=("status.allocations is not a list",), object_uid=uid)
    allocations, unread = [], []
    for index, entry in enumerate(entries):
        try:
            allocations.append(_allocation(entry))
        except ValueError as err:
            unread.append(_unread(entry, f"status.allocations[{index}] is left out: {err}"))
    return Reading(tuple(allocations), tuple(unread_entry.problem for unread_entry in unread), tuple(unread), uid)


def _unread(entry: Any, problem: str) -> UnreadAllocation:
    """Return an unreadable entry, with the fields that can be read."""
    nodes: Any = entry.get("allocatedNodes") if isinstance(entry, Mapping) else None
    if _is_list(nodes):
        named = tuple(node for node in nodes if isinstance(node, str))
    else:
        named = ()
    official = None
    if isinstance(entry, Mapping) and not entry.get("allocationId"):
        # An entry of AWS's operator has no ids: fill them in to read the rest, and take them out again.
        with contextlib.suppress(ValueError):
            allocation = _allocation({**entry, "allocationId": "-", "workloadUid": "-"})
            official = replace(allocation, allocation_id="", workload_uid=str(entry.get("workloadUid") or ""))
    return UnreadAllocation(entry, named, problem, official)


def _allocation(entry: Any) -> Allocation:
    """Return the allocation in `entry`. Raises ValueError, which says what is wrong."""
    if not isinstance(entry, Mapping):
        raise ValueError("it is not an object")
    namespace, slash, name = str(entry.get("workloadRef")).partition("/")
    if not (slash and _LABEL.fullmatch(namespace) and name):
        raise ValueError(f"workloadRef {user_text.shown(entry.get('workloadRef'))} is not namespace/name")
    nodes = entry.get("allocatedNodes")
    if not _is_list(nodes) or not nodes or not all(isinstance(node, str) and node for node in nodes):
        raise ValueError("allocatedNodes is not a list of node names")
    if len(set(nodes)) != len(nodes):
        raise ValueError("allocatedNodes lists a node twice")
    phase = entry.get("phase")
    if phase not in (phases := [member.value for member in Phase]):
        raise ValueError(f"phase {user_text.shown(phase)} is not one of {', '.join(phases)}")
    count = _number(entry, "nodeCount", at_least=1, missing=len(nodes))
    if count != len(nodes):
        raise ValueError(f"nodeCount is {count}, but allocatedNodes has {len(nodes)} nodes")
    rank0 = entry.get("rank0Node")
    uid = _tag_text("workloadUid", entry.get("workloadUid"))
    only_shown = uid.startswith(_ONLY_SHOWN) and uid != _ONLY_SHOWN
    return Allocation(
        workload_namespace=_tag_text("workloadRef's namespace", namespace),
        workload_name=_tag_text("workloadRef's name", name),
        workload_uid=uid.removeprefix(_ONLY_SHOWN) if only_shown else uid,
        allocation_id=_tag_text("allocationId", entry.get("allocationId")),
        phase=Phase(phase),
        nodes=tuple(nodes),
        node_count=count,
        ultraserver_index=_number(entry, "ultraserverIndex", at_least=0),
        world_size=None if entry.get("worldSize") is None else _number(entry, "worldSize", at_least=1),
        rank0_node=rank0 if isinstance(rank0, str) and rank0 else None,
        allocated_at=str(entry.get("allocatedAt") or ""),
        node_uids=_node_uids(entry, len(nodes)),
        faults=_faults(entry),
        rendezvous=Rendezvous.from_wire(entry.get("rendezvous")),
        notice=Notice.from_wire(entry.get("notice")),
        only_shown=only_shown,
    )


def _node_uids(entry: Mapping[str, Any], count: int) -> tuple[str, ...]:
    uids = entry.get("nodeUids")
    if uids is None:
        return ()
    if not _is_list(uids) or len(uids) != count or not all(isinstance(uid, str) and uid for uid in uids):
        raise ValueError(f"nodeUids is not a list of {count} UIDs, one for each of allocatedNodes")
    return tuple(uids)


def _faults(entry: Mapping[str, Any]) -> tuple[Fault, ...]:
    """Return the faults of an entry; unreadable ones are left out, because they only inform the controller."""
    entries: Any = entry.get("faults")
    if not _is_list(entries):
        return ()
    faults = []
    for fault_entry in entries:
        if isinstance(fault_entry, Mapping):
            texts = [fault_entry.get(name) for name in _FAULT_FIELDS]
        else:
            texts = [None]
        if all(isinstance(text, str) for text in texts):
            faults.append(Fault(*map(str, texts)))
    return tuple(faults)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _number(entry: Mapping[str, Any], name: str, *, at_least: int, missing: int | None = None) -> int:
    value = entry.get(name, missing)
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ValueError(f"{name} {user_text.shown(value)} is not a whole number of at least {at_least}")
    return value


def _tag_text(name: str, value: Any) -> str:
    """Return `value` if it can be the value of a device attribute. Raises ValueError otherwise."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is missing")
    if not value.isprintable() or len(value.encode(errors="surrogatepass")) > TAG_BYTES:
        raise ValueError(f"{name} {user_text.shown(value)} is not a printable text of at most {TAG_BYTES} bytes")
    return value


@dataclass(frozen=True, slots=True)
class Tag:
    """The tag of a reserved node: five attributes on each of its devices that name the allocation.

    `object_uid` is the UID of the NeuronUltraServer that the tag comes from, if known; devices do not show it.
    """

    workload_namespace: str
    workload_name: str
    workload_uid: str
    allocation_id: str
    phase: Phase
    object_uid: str = ""

    @classmethod
    def of(cls, allocation: Allocation, object_uid: str = "") -> Tag:
        """Return the tag for `allocation`, from the object with the UID `object_uid`."""
        workload = (allocation.workload_namespace, allocation.workload_name, allocation.workload_uid)
        return cls(*workload, allocation.allocation_id, allocation.phase, object_uid)

    @classmethod
    def from_texts(cls, texts: Mapping[str, Any]) -> Tag | None:
        """Return the tag in the attributes that `texts()` returned, or None if they are not a tag."""
        try:
            namespace, name, uid, allocation_id = (_tag_text(name, texts.get(name)) for name in TAG_ATTRIBUTES[:4])
            return cls(namespace, name, uid, allocation_id, Phase(texts.get(_PHASE)))
        except ValueError:
            return None

    def texts(self) -> dict[str, str]:
        """Return the values of the attributes, by name."""
        values = (self.workload_namespace, self.workload_name, self.workload_uid, self.allocation_id, self.phase.value)
        return dict(zip(TAG_ATTRIBUTES, values, strict=True))

    @property
    def workload(self) -> str:
        """The workload as namespace/name."""
        return f"{self.workload_namespace}/{self.workload_name}"


_PHASE: Final = "workloadPhase"
TAG_ATTRIBUTES: Final = ("workloadNamespace", "workloadId", "workloadUid", "allocationId", _PHASE)
"""The attributes of a tag; `workloadId` is the workload's name."""


def slot_of(reading: Reading, node_name: str, current: Tag | None) -> Allocation | None:
    """Return the allocation that lists the node, or None; of several, the one in its tag, or else the first."""
    on_node = [allocation for allocation in reading.allocations if node_name in allocation.nodes]
    for allocation in on_node:
        if current is not None and allocation.allocation_id == current.allocation_id:
            return allocation
    return next(iter(on_node), None)


def official_slot(reading: Reading, node_name: str, current: Tag | None) -> Allocation | None:
    """Return the allocation by AWS's operator that lists the node, or None; its workload UID is in the node's tag."""
    for allocation in (unread_entry.official for unread_entry in reading.unread):
        if allocation is not None and node_name in allocation.nodes:
            if current is not None and current.workload == allocation.workload:
                own_tag = current
            else:
                own_tag = None
            if own_tag is None:
                return allocation
            return replace(allocation, workload_uid=own_tag.workload_uid)
    return None


def outlives(current: Tag | None, reading: Reading) -> bool:
    """Return True if the tag stays although the object does not list it, because another object made the tag.

    Deleting a NeuronUltraServer by force removes the object of the reservation, but none of its pods.
    """
    if current is None or current.phase is Phase.PENDING or current.allocation_id in reading.replaced:
        return False
    is_other = bool(current.object_uid and reading.object_uid) and current.object_uid != reading.object_uid
    return reading.missing or not reading.written or is_other


def next_tag(
    current: Tag | None, reading: Reading, node_name: str, *, occupied: bool, given_up: bool = False
) -> Tag | None:
    """Return the next tag of the node's devices, or None for no tag.

    Only allocation ids are compared. Closing the node is always allowed: a node without a tag gets one at once, and a
    tag that is to be replaced becomes Draining. The tag of another reservation replaces it when no claim is prepared
    and none of its workload allocated (not `occupied`). An unreadable entry of the node keeps its tag. A tag that
    `outlives` its object stays while `occupied`; a Bound one also until the node is reserved again, or `given_up`.
    """
    slot = slot_of(reading, node_name, current)
    if current is None:
        if slot is None:
            return None
        return Tag.of(slot, reading.object_uid)
    if slot is not None and slot.allocation_id == current.allocation_id:
        return Tag.of(slot, reading.object_uid)
    if reading.may_hold(node_name):
        return current
    if slot is None:
        kept = occupied or (current.phase is Phase.BOUND and not given_up)
        if kept and outlives(current, reading):
            return current
        return None
    if occupied:
        return replace(current, phase=Phase.DRAINING)
    return Tag.of(slot, reading.object_uid)


def told(tag: Tag | None, reading: Reading) -> Told | None:
    """Return what the claims of a tag's workload are told, by the object and the tag; None while that is not known.

    Each Draining tag has a notice, because the controller evicts the pods of nodes that show it.
    """
    if tag is None:
        return None
    own = (allocation for allocation in reading.allocations if allocation.allocation_id == tag.allocation_id)
    allocation = next(own, None)
    notice = allocation.notice if allocation is not None else None
    if notice is None and tag.phase is Phase.DRAINING:
        notice = UNTOLD
    if notice is None and allocation is None:
        return None
    return Told(tag.workload_namespace, tag.workload_name, notice)


def waits_for_claims(current: Tag | None, reading: Reading, node_name: str, *, given_up: bool = False) -> bool:
    """Return True if the next tag depends on whether claims are left on the node."""
    either = set()
    for is_occupied in (True, False):
        either.add(next_tag(current, reading, node_name, occupied=is_occupied, given_up=given_up))
    return len(either) > 1


def tagged(device: Mapping[str, Any], tag: Tag | None) -> dict[str, Any]:
    """Return a device, in the form of resource.k8s.io/v1, with `tag` in place of its own; None removes it."""
    attributes = {}
    for name, value in (device.get("attributes") or {}).items():
        if name not in TAG_ATTRIBUTES:
            attributes[name] = value
    if tag is not None:
        attributes |= {name: {"string": text} for name, text in tag.texts().items()}
    device_fields = {name: value for name, value in device.items() if name != "attributes"}
    if attributes:
        return {**device_fields, "attributes": dict(sorted(attributes.items()))}
    return device_fields


def tag_on(devices: Sequence[Mapping[str, Any]]) -> Tag | None:
    """Return the first complete tag on devices in the form of resource.k8s.io/v1, or None."""
    for device in devices:
        attributes = device.get("attributes") or {}
        if _PHASE not in attributes:
            continue
        tag = Tag.from_texts({name: attribute.get("string") for name, attribute in attributes.items()})
        if tag is not None:
            return tag
    return None
