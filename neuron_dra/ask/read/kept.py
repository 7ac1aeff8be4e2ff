"""The fields of large kinds that commands read: the others are skipped while a file is read. Pure.

The API server's text of a Pod is ten times that of these fields, and that of a Node, with its images, more. A command
that reads another field adds it here. `doctor`, which writes objects into a report, reads all fields.

The types are those that `snapshot.build` requires, so an object that fits is checked by being read. One that does not
fit is returned whole and unchecked: `build` then names the field.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import typing
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from neuron_dra.api import resource_api
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.read.snapshot import CheckedObject

ANY: Final = Any
"""A field that is kept as it is."""
OBJECT: Final = dict[str, Any]
NAME: Final = Annotated[str, msgspec.Meta(min_length=1)]
"""A text that must be there."""


@dataclass(frozen=True, eq=False)
class SharedField:
    """A field that many objects have in common: those with equal text share one value."""

    shape: Any = ANY


@dataclass(frozen=True)
class Needed:
    """A field that must be there."""

    shape: Any


@dataclass(frozen=True)
class Compared:
    """A list whose entries are compared with those of other objects."""

    entry: Mapping[str, Any]


LONG: Final = 2**12
MOST_RECENT: Final = 2**10
"""Texts of a shared field that are remembered, unless they are LONG."""


_OWNER: Final = {
    "apiVersion": ANY,
    "kind": str,
    "name": str,
    "uid": str,
    "controller": ANY,
    "blockOwnerDeletion": ANY,
}
_META: Final = Needed(
    {
        "name": NAME,
        "namespace": str,
        "uid": str,
        "labels": OBJECT,
        "annotations": OBJECT,
        "ownerReferences": [_OWNER],
        "finalizers": [str],
        "creationTimestamp": ANY,
        "deletionTimestamp": str,
        "generation": int,
    }
)
_CONTAINER: Final = {
    "name": ANY,
    "image": ANY,
    "resources": ANY,
    "restartPolicy": ANY,
    "ports": ANY,
    "command": ANY,
    "args": ANY,
}
_WAITING: Final = {"reason": str, "message": str}
_STATES: Final = [{"name": NAME, "state": {"waiting": _WAITING, "terminated": ANY}}]
_CONDITIONS: Final = Compared({"type": str, "status": str, "reason": str, "message": str})
_CONTAINERS: Final = SharedField([_CONTAINER])
_RESULT: Final = {
    "request": NAME,
    "driver": NAME,
    "pool": NAME,
    "device": NAME,
    "adminAccess": ANY,
    "shareID": ANY,
    "tolerations": ANY,
    "consumedCapacity": ANY,
    "bindingConditions": ANY,
    "bindingFailureConditions": ANY,
}
_CONFIG: Final = {"source": ANY, "requests": [str], "opaque": {"driver": str, "parameters": ANY}}
_RARE: Final = (
    ("spec", "affinity", "podAntiAffinity"),
    ("spec", "schedulingGroup"),
    ("status", "extendedResourceClaimStatus"),
)
"""Fields of pods of which only `snapshot.build` knows the whole shape: a pod with one is checked there."""
_BETA: Final = f"{resource_api.GROUP}v1beta"
_OFTEN: Final = ("request", "driver", "pool", "device")
FIELDS: Final[Mapping[str, Any]] = {
    "Node": {
        "metadata": _META,
        "spec": {
            "taints": [{"key": str, "value": str, "effect": str, "timeAdded": ANY}],
            "unschedulable": bool,
        },
        "status": {
            "allocatable": SharedField(),
            "conditions": _CONDITIONS,
            "nodeInfo": {"kubeletVersion": str, "containerRuntimeVersion": str},
        },
    },
    "Pod": {
        "metadata": _META,
        "spec": Needed(
            {
                "nodeName": str,
                "schedulerName": str,
                "nodeSelector": OBJECT,
                "affinity": {"nodeAffinity": ANY, "podAffinity": OBJECT, "podAntiAffinity": ANY},
                "tolerations": SharedField(),
                "topologySpreadConstraints": [OBJECT],
                "priority": int,
                "overhead": OBJECT,
                "resources": ANY,
                "schedulingGates": [{"name": NAME}],
                "schedulingGroup": ANY,
                "restartPolicy": ANY,
                "volumes": [{"persistentVolumeClaim": {}}],
                "containers": _CONTAINERS,
                "initContainers": _CONTAINERS,
                "resourceClaims": SharedField(),
            }
        ),
        "status": {
            "phase": str,
            "reason": str,
            "message": str,
            "conditions": _CONDITIONS,
            "containerStatuses": _STATES,
            "initContainerStatuses": _STATES,
            "resourceClaimStatuses": [{"name": NAME, "resourceClaimName": str}],
            "extendedResourceClaimStatus": ANY,
        },
    },
    "ResourceSlice": {"metadata": _META, "spec": ANY},
    "ResourceClaim": {
        "metadata": _META,
        "spec": Needed({"devices": SharedField()}),
        "status": {
            "allocation": {"devices": {"results": [_RESULT], "config": [_CONFIG]}, "nodeSelector": ANY},
            "reservedFor": [{"apiGroup": ANY, "resource": str, "name": NAME, "uid": str}],
        },
    },
}
"""By kind."""


class FieldReader:
    """Decodes objects of these kinds; parts that are equal become the same value, which nobody may change."""

    def __init__(self) -> None:
        self._parts: dict[tuple[SharedField, bytes], Any] = {}
        self._recent: dict[SharedField, dict[bytes, Any]] = defaultdict(dict)
        self._conditions: dict[tuple[Any, ...], list[Any]] = {}

    def decode(self, kind: str, text: bytes | memoryview) -> dict[str, Any]:
        """Return an object with the fields that are read, checked; one of another shape is returned whole.

        Raises msgspec.DecodeError if the text is not JSON.
        """
        try:
            return self._kept(kind, text)
        except msgspec.ValidationError:
            whole: dict[str, Any] = msgspec.json.decode(text)
            return whole

    def _kept(self, kind: str, text: bytes | memoryview) -> dict[str, Any]:
        decoder, shared_fields = _decoder(kind)
        raw_object: dict[str, Any] = decoder.decode(text)
        for part, name, field in shared_fields:
            holder = raw_object.get(part)
            if holder and name in holder:
                holder[name] = self._shared(kind, part, name, field, bytes(holder[name]))
        status = raw_object.get("status")
        if status:
            self._share_status(status)
        # A slice has devices, which are read apart; an older version is converted before it is checked.
        if kind == "ResourceSlice" or str(raw_object.get("apiVersion")).startswith(_BETA):
            return raw_object
        if kind == "Pod" and any(_at(raw_object, path) is not None for path in _RARE):
            return raw_object
        return CheckedObject(raw_object)

    def _share_status(self, status: dict[str, Any]) -> None:
        """Put shared values in place of the conditions and of the texts of an allocation."""
        conditions = status.get("conditions")
        if conditions:
            status["conditions"] = self._shared_conditions(tuple(conditions))
        allocation = status.get("allocation")
        if allocation:
            for result in (allocation.get("devices") or {}).get("results") or ():
                for name in _OFTEN:
                    result[name] = sys.intern(result[name])  # many claims name the same ones

    def _shared(self, kind: str, part: str, name: str, field: SharedField, text: bytes) -> Any:
        """Return the value of a shared field. Raises msgspec.ValidationError if it is not as `build` requires it."""
        recent = self._recent[field]
        if text in recent:
            return recent[text]
        key = field, digest(text)
        if key not in self._parts:
            value = _part_decoder(field).decode(text)
            problem = snapshot.problem({"kind": kind, part: {name: value}})
            if problem:
                raise msgspec.ValidationError(problem)
            self._parts[key] = value
        if len(text) <= LONG:
            if len(recent) == MOST_RECENT:
                recent.clear()
            recent[text] = self._parts[key]
        return self._parts[key]

    def _shared_conditions(self, conditions: tuple[Any, ...]) -> list[Any]:
        """Return a list of conditions, which many objects have in common."""
        shared_list = self._conditions.get(conditions)
        if shared_list is None:
            shared_list = self._conditions[conditions] = msgspec.to_builtins(list(conditions))
        return shared_list


def _at(raw_object: Mapping[str, Any], path: Sequence[str]) -> Any:
    """Return a field of an object; None if it is absent."""
    part: Any = raw_object
    for name in path:
        part = part.get(name) if isinstance(part, Mapping) else None
    return part


def digest(text: bytes) -> bytes:
    """Return what stands for a text in place of the text, which may be large."""
    return hashlib.blake2b(text, digest_size=16).digest()


@functools.cache
def _decoder(kind: str) -> tuple[msgspec.json.Decoder[Any], tuple[tuple[str, str, SharedField], ...]]:
    """Return the decoder of a kind, and the fields that are shared, each after the part of the object that has it."""
    shape = {"apiVersion": ANY, "kind": ANY, **FIELDS[kind]}
    return msgspec.json.Decoder(_type(shape)), tuple(_shared_fields(kind))


def _shared_fields(kind: str) -> Iterator[tuple[str, str, SharedField]]:
    for part, shape in FIELDS[kind].items():
        fields = shape.shape if isinstance(shape, Needed) else shape
        for name, field in fields.items() if isinstance(fields, Mapping) else ():
            if isinstance(field, SharedField):
                yield part, name, field


@functools.cache
def _part_decoder(field: SharedField) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_type(field.shape) | None)


def _type(shape: Any) -> Any:
    """Return the type that decodes the fields of a shape: a dictionary without those that are absent."""
    if isinstance(shape, Mapping):
        fields = {name: _field(field_shape) for name, field_shape in shape.items()}
        return typing.TypedDict("Kept", fields)  # type: ignore[operator]
    if isinstance(shape, Compared):
        fields_of_entry = []
        for name, field_type in shape.entry.items():
            fields_of_entry.append((name, field_type | None | msgspec.UnsetType, msgspec.UNSET))
        entry = msgspec.defstruct("Kept", fields_of_entry, frozen=True, gc=False, omit_defaults=True)
        return list[entry]  # type: ignore[valid-type]
    if isinstance(shape, list):
        return list[_type(shape[0])]  # type: ignore[misc]
    return shape


def _field(shape: Any) -> Any:
    """Return the type of a field: one that is not needed may be absent or null, and a shared one is decoded later."""
    if shape is NAME:
        return NAME
    if isinstance(shape, Needed):
        return _type(shape.shape)
    if isinstance(shape, SharedField):
        return typing.NotRequired[msgspec.Raw]
    return typing.NotRequired[_type(shape) | None]
