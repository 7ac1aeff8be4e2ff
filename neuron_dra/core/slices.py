"""ResourceSlices: the desired objects, and the writes that change the current ones into them.

The rules for generations and the order of writes are those of Kubernetes' own helper
(kubernetes/dynamic-resource-allocation@3d03671, resourceslice/resourceslicecontroller.go, syncPool). Unlike there,
names are fixed, so a create that lost a race returns AlreadyExists instead of making a second slice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuron_dra.core import names
from neuron_dra.core.wire import Wire

DEVICES_PER_SLICE = 64
"""The API allows 128, but only 64 if a device has a taint; with 64 from the start, a first taint moves no device."""

NAMES = 99
"""The number of slice names of a node, far more than any node needs."""

API_VERSION = "resource.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Pool:
    """The pool of one node and driver, to which all their slices belong; it is named after the node."""

    node_name: str
    node_uid: str
    driver: str = names.DRIVER

    @property
    def owner(self) -> dict[str, Any]:
        """The owner reference: the Node owns its slices, which are deleted with it."""
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "name": self.node_name,
            "uid": self.node_uid,
            "controller": True,
        }


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """The writes, in the order in which to make them: delete, update, create.

    - `delete`: current objects.
    - `update`: objects with the resourceVersion that was read, so that a concurrent change is a conflict.
    - `create`: new objects.
    - `generation`: the pool's generation after the writes.
    """

    delete: tuple[Wire, ...] = ()
    update: tuple[Wire, ...] = ()
    create: tuple[Wire, ...] = ()
    generation: int = 0


def slice_name(node_name: str, index: int, driver: str = names.DRIVER) -> str:
    """Return the fixed name of a slice: at most 253 characters, unique per node and index.

    A node name that is too long is cut and gets a hash of the whole name.
    """
    suffix = f"-{driver}-{index:02d}"
    if len(node_name) + len(suffix) > 253:
        digest = hashlib.sha256(node_name.encode()).hexdigest()[:10]
        node_name = node_name[: 253 - len(suffix) - 11].rstrip(".-") + "-" + digest
    return node_name + suffix


def is_ours(name: str, node_name: str, driver: str = names.DRIVER) -> bool:
    """Return True if `name` is one of this driver's slice names for the node."""
    index = name[-2:]
    return index.isdecimal() and name == slice_name(node_name, int(index), driver)


def _is_of(name: str, pool: Pool) -> bool:
    return is_ours(name, pool.node_name, pool.driver)


def layout(devices: Sequence[Wire], position: Mapping[str, int] | None = None) -> list[list[Wire]]:
    """Return the devices split over slices; without devices there is still one, empty slice.

    With `position`, each device that it names has its place in a fixed slice, so that one that comes or goes moves no
    other; the rest follow in more slices.
    """
    position = position or {}
    fixed: list[list[Wire]] = [[] for _ in range(-(-len(position) // DEVICES_PER_SLICE))]
    unplaced: list[Wire] = []
    for device in devices:
        place = position.get(device["name"])
        (unplaced if place is None else fixed[place // DEVICES_PER_SLICE]).append(device)
    more = []
    for start in range(0, len(unplaced), DEVICES_PER_SLICE):
        more.append(list(unplaced[start : start + DEVICES_PER_SLICE]))
    return [*fixed, *more] or [[]]


def slice_names(pool: Pool, count: int, *, have: Collection[str] = (), taken: Collection[str] = ()) -> list[str]:
    """Return `count` slice names of a pool, sorted: first those that it has, then the first free ones.

    Names in `taken` belong to slices of other programs. Fewer names are returned if they have taken too many.
    """
    chosen = sorted(name for name in have if name not in taken and _is_of(name, pool))[:count]
    for index in range(NAMES):
        if len(chosen) == count:
            break
        name = slice_name(pool.node_name, index, pool.driver)
        if name not in taken and name not in chosen:
            chosen.append(name)
    return sorted(chosen)


def desired(
    pool: Pool,
    devices: Sequence[Wire],
    generation: int,
    called: Sequence[str] | None = None,
    counters: Sequence[Wire] = (),
    position: Mapping[str, int] | None = None,
) -> list[dict[str, Any]]:
    """Return the slices of `pool` as they are to be sent, with the names `called`, by default the first ones.

    `counters` are the counter sets that devices consume; the API server requires a separate slice for them. `position`
    is that of `layout`.
    """
    contents = _contents(devices, counters, position)
    if called is None:
        called = slice_names(pool, len(contents))
    in_pool = {"name": pool.node_name, "generation": generation, "resourceSliceCount": len(contents)}
    slices: list[dict[str, Any]] = []
    for name, content in zip(called, contents, strict=True):
        spec = {"driver": pool.driver, "nodeName": pool.node_name, "pool": dict(in_pool), **content}
        meta = {"name": name, "ownerReferences": [pool.owner]}
        slices.append({"apiVersion": API_VERSION, "kind": "ResourceSlice", "metadata": meta, "spec": spec})
    return slices


def _contents(
    devices: Sequence[Wire], counters: Sequence[Wire], position: Mapping[str, int] | None
) -> list[dict[str, Any]]:
    """Return the part of each slice's spec in which they differ."""
    chunks: list[dict[str, Any]] = []
    for chunk in layout(devices, position):
        chunks.append({"devices": chunk} if chunk else {})
    if counters:
        chunks.append({"sharedCounters": list(counters)})
    return chunks


def diff(
    pool: Pool,
    current: Sequence[Wire],
    devices: Sequence[Wire],
    *,
    counters: Sequence[Wire] = (),
    position: Mapping[str, int] | None = None,
    known_generation: int = 0,
    accepted: Mapping[str, tuple[Sequence[Wire], Sequence[Wire]]] | None = None,
    taken: Collection[str] = (),
) -> SlicePlan:
    """Return the writes after which the slices of `pool` have `devices` and `counters`, laid out by `position`.

    One changed slice is updated at the same generation. Any larger change raises the generation of all slices:
    consumers use only the highest generation, and only if all its slices are present, so they never combine old and new
    slices.

    - `current`: all slices of this driver and node.
    - `known_generation`: the last generation written, so that it never falls, even after all slices were deleted.
    - `accepted`: by slice name, the devices that were sent last and those that the API server stored; if it drops a
      field, the same write is not repeated.
    - `taken`: names that slices of other programs have.

    Raises ValueError if `taken` leaves too few names.
    """
    current_by_name = {_name(current_slice): current_slice for current_slice in current}
    slice_count = len(_contents(devices, counters, position))
    called = slice_names(pool, slice_count, have=current_by_name, taken=taken)
    desired_slices = desired(pool, devices, generation=0, called=called, counters=counters, position=position)
    generation = max(map(_generation, current), default=0)
    desired_names = {_name(desired_slice) for desired_slice in desired_slices}
    obsolete = []
    for current_slice in current:
        has_desired_name = _name(current_slice) in desired_names
        is_in_pool = current_slice["spec"]["pool"]["name"] == pool.node_name
        if not has_desired_name or not is_in_pool or _generation(current_slice) < generation:
            obsolete.append(current_slice)
    kept_by_name = {name: kept for name, kept in current_by_name.items() if kept not in obsolete}
    matched, missing, changed = [], [], []
    for desired_slice in desired_slices:
        kept_slice = kept_by_name.get(_name(desired_slice))
        if kept_slice is None:
            missing.append(desired_slice)
            continue
        matched.append(desired_slice)
        if not _same(desired_slice, kept_slice, accepted or {}):
            changed.append(desired_slice)
    if not obsolete and not missing and len(changed) <= 1:
        target, rewritten = generation, changed
    else:
        target = max(generation, known_generation)
        if current or target == 0:
            target += 1
        rewritten = matched
    return SlicePlan(
        delete=tuple(obsolete),
        update=tuple(_merged(desired_slice, kept_by_name[_name(desired_slice)], target) for desired_slice in rewritten),
        create=tuple(_with_generation(desired_slice, target) for desired_slice in missing),
        generation=target,
    )


def _name(resource_slice: Wire) -> str:
    return str(resource_slice["metadata"]["name"])


def _generation(resource_slice: Wire) -> int:
    """Return the generation of a slice's pool; 0 if it has none."""
    return int(resource_slice["spec"]["pool"].get("generation", 0))


def _with_generation(desired_slice: Wire, generation: int) -> dict[str, Any]:
    spec = dict(desired_slice["spec"])
    spec["pool"] = {**spec["pool"], "generation": generation}
    return {**desired_slice, "spec": spec}


def _merged(desired_slice: Wire, current_slice: Wire, generation: int) -> dict[str, Any]:
    """Return the desired slice as an update that its current resourceVersion guards; times of taints stay."""
    update = _with_generation(desired_slice, generation)
    update["metadata"] = {
        **desired_slice["metadata"],
        "uid": current_slice["metadata"].get("uid"),
        "resourceVersion": current_slice["metadata"].get("resourceVersion"),
    }
    times = _taint_times(current_slice)
    if times and "devices" in update["spec"]:
        update["spec"]["devices"] = [_with_times(device, times) for device in update["spec"]["devices"]]
    return update


def _taint_times(current_slice: Wire) -> dict[tuple[str, str, str, str], str]:
    """Return when the API server added the taints of a slice's devices, by taint."""
    times_by_taint = {}
    for device in current_slice["spec"].get("devices") or ():
        for taint in device.get("taints") or ():
            if taint.get("timeAdded"):
                times_by_taint[_taint_key(device["name"], taint)] = taint["timeAdded"]
    return times_by_taint


def _taint_key(device_name: str, taint: Wire) -> tuple[str, str, str, str]:
    """Return the identity of a taint: device, key, value and effect."""
    return device_name, str(taint.get("key")), str(taint.get("value", "")), str(taint.get("effect"))


def _with_times(device: Wire, times: Mapping[tuple[str, str, str, str], str]) -> Wire:
    """Return the device with the known times of its taints, so that an update does not reset them."""
    if not device.get("taints"):
        return device
    taints = []
    for taint in device["taints"]:
        added = times.get(_taint_key(device["name"], taint))
        taints.append({**taint, "timeAdded": added} if added and "timeAdded" not in taint else taint)
    return {**device, "taints": taints}


def _same(
    desired_slice: Wire, current_slice: Wire, accepted: Mapping[str, tuple[Sequence[Wire], Sequence[Wire]]]
) -> bool:
    """Return True if `current_slice` needs no update to become `desired_slice`."""
    spec, present = desired_slice["spec"], current_slice["spec"]
    owner_uids = [owner.get("uid") for owner in current_slice["metadata"].get("ownerReferences") or []]
    desired_owner_uids = [owner["uid"] for owner in desired_slice["metadata"]["ownerReferences"]]
    devices = spec.get("devices") or []
    sent_and_stored = accepted.get(_name(desired_slice))
    if sent_and_stored and _comparable(sent_and_stored[0]) == _comparable(devices):
        devices = sent_and_stored[1]
    return (
        present["pool"].get("resourceSliceCount") == spec["pool"]["resourceSliceCount"]
        and owner_uids == desired_owner_uids
        and _has_all(_comparable(present.get("devices") or []), _comparable(devices))
        and _has_all(present.get("sharedCounters") or [], spec.get("sharedCounters") or [])
    )


def _has_all(stored: Any, sent: Any) -> bool:
    """Return True if `stored` is what was sent, with or without fields that the API server added."""
    if isinstance(sent, Mapping) and isinstance(stored, Mapping):
        return all(field in stored and _has_all(stored[field], value) for field, value in sent.items())
    if isinstance(sent, list) and isinstance(stored, list):
        return len(sent) == len(stored) and all(map(_has_all, stored, sent))
    return bool(stored == sent)


def _comparable(devices: Sequence[Wire]) -> list[Any]:
    """Return devices in a comparable form: their order counts, a taint's time, which the API server sets, does not.

    Names that we choose are in lists, so that a name too many is a difference. A device has every field that we send.
    """
    return [
        {
            **device,
            "taints": [_without_time(taint) for taint in device.get("taints") or []],
            "attributes": sorted((device.get("attributes") or {}).items()),
            "capacity": sorted((device.get("capacity") or {}).items()),
            "consumesCounters": list(device.get("consumesCounters") or []),
        }
        for device in devices
    ]


def _without_time(taint: Wire) -> dict[str, Any]:
    return {field: value for field, value in taint.items() if field != "timeAdded"}


def dropped_fields(sent: Sequence[Wire], stored: Sequence[Wire]) -> tuple[str, ...]:
    """Return the paths of device fields that the API server dropped, such as `devices[0].taints`.

    It drops the fields of features that are turned off, without an error.
    """
    sent_devices = _comparable(sent)
    stored_devices = _comparable(stored)
    if len(sent_devices) != len(stored_devices):
        return ("devices",)
    dropped_paths = []
    for index, (sent_device, stored_device) in enumerate(zip(sent_devices, stored_devices, strict=True)):
        for field, sent_value in sent_device.items():
            if not _has_all(stored_device.get(field), sent_value):
                dropped_paths.append(f"devices[{index}].{field}")
    return tuple(dropped_paths)
