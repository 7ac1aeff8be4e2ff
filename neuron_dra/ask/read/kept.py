"""The fields of large kinds that commands read: the others are skipped while a file is read. Pure.

The API server's text of a Pod is ten times that of these fields, and that of a Node, with its images, more. A command
that reads another field adds it here. `doctor`, which writes objects into a report, reads all fields.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

ANY: Final = Any
"""A field that is kept as it is."""


@dataclass(frozen=True, eq=False)
class SharedField:
    """A field that many objects have in common: those with equal text share one value."""

    shape: Any = ANY


_META: Final = {
    "name": ANY,
    "namespace": ANY,
    "uid": ANY,
    "labels": ANY,
    "annotations": ANY,
    "ownerReferences": ANY,
    "finalizers": ANY,
    "creationTimestamp": ANY,
    "deletionTimestamp": ANY,
    "generation": ANY,
}
_CONTAINER: Final = {
    "name": ANY,
    "image": ANY,
    "resources": ANY,
    "restartPolicy": ANY,
    "ports": ANY,
    "command": ANY,
    "args": ANY,
}
_STATES: Final = [{"name": ANY, "state": {"waiting": ANY, "terminated": ANY}}]
_CONDITIONS: Final = [{"type": str, "status": str, "reason": str, "message": str}]
_CONTAINERS: Final = SharedField([_CONTAINER])
_RESULT: Final = {
    "request": str,
    "driver": str,
    "pool": str,
    "device": str,
    "adminAccess": ANY,
    "shareID": ANY,
    "tolerations": ANY,
    "consumedCapacity": ANY,
    "bindingConditions": ANY,
    "bindingFailureConditions": ANY,
}
_OFTEN: Final = frozenset({"request", "driver", "pool", "device"})
FIELDS: Final[Mapping[str, Any]] = {
    "Node": {
        "metadata": _META,
        "spec": {"taints": ANY, "unschedulable": ANY},
        "status": {
            "allocatable": SharedField(),
            "conditions": _CONDITIONS,
            "nodeInfo": {"kubeletVersion": ANY, "containerRuntimeVersion": ANY},
        },
    },
    "Pod": {
        "metadata": _META,
        "spec": {
            "nodeName": ANY,
            "schedulerName": ANY,
            "nodeSelector": ANY,
            "affinity": ANY,
            "tolerations": SharedField(),
            "topologySpreadConstraints": ANY,
            "priority": ANY,
            "overhead": ANY,
            "resources": ANY,
            "schedulingGates": ANY,
            "schedulingGroup": ANY,
            "restartPolicy": ANY,
            "volumes": [{"persistentVolumeClaim": {}}],
            "containers": _CONTAINERS,
            "initContainers": _CONTAINERS,
            "resourceClaims": SharedField(),
        },
        "status": {
            "phase": ANY,
            "reason": ANY,
            "message": ANY,
            "conditions": _CONDITIONS,
            "containerStatuses": _STATES,
            "initContainerStatuses": _STATES,
            "resourceClaimStatuses": ANY,
            "extendedResourceClaimStatus": ANY,
        },
    },
    "ResourceSlice": {"metadata": _META, "spec": ANY},
    "ResourceClaim": {
        "metadata": _META,
        "spec": {"devices": SharedField()},
        "status": {
            "allocation": {"devices": {"results": [_RESULT], "config": ANY}, "nodeSelector": ANY},
            "reservedFor": ANY,
        },
    },
}
"""By kind."""


class FieldReader:
    """Decodes objects of these kinds; parts that are equal become the same value, which nobody may change."""

    def __init__(self) -> None:
        self._parts: dict[tuple[SharedField, bytes], Any] = {}
        self._conditions: dict[tuple[Any, ...], Any] = {}

    def decode(self, kind: str, text: bytes) -> dict[str, Any]:
        """Return an object with the fields that are read; one of another shape is returned whole.

        Raises msgspec.DecodeError if the text is not JSON.
        """
        try:
            return self._kept(kind, text)
        except msgspec.ValidationError:
            whole: dict[str, Any] = msgspec.json.decode(text)
            return whole

    def _kept(self, kind: str, text: bytes) -> dict[str, Any]:
        decoder, shared_fields = _decoder(kind)
        read = decoder.decode(text)
        shared: list[tuple[str, str, Any]] = []
        for part, name, field in shared_fields:
            holder = getattr(read, part)
            raw = getattr(holder, name, None)
            if isinstance(raw, msgspec.Raw):
                shared.append((part, name, self._shared(field, bytes(raw))))
                setattr(holder, name, msgspec.UNSET)  # as the next line would copy it
        found: dict[str, Any] = msgspec.to_builtins(read)
        for part, name, value in shared:
            found[part][name] = value
        status = found.get("status") or {}
        if status.get("conditions"):
            status["conditions"] = [self._condition(each) for each in status["conditions"]]
        for result in ((status.get("allocation") or {}).get("devices") or {}).get("results") or ():
            for name in _OFTEN & result.keys():
                result[name] = sys.intern(result[name])  # many claims name the same ones
        return found

    def _shared(self, field: SharedField, text: bytes) -> Any:
        key = field, digest(text)
        if key not in self._parts:
            self._parts[key] = msgspec.to_builtins(_part_decoder(field).decode(text))
        return self._parts[key]

    def _condition(self, condition: dict[str, Any]) -> Any:
        return self._conditions.setdefault(tuple(condition.items()), condition)


def digest(text: bytes) -> bytes:
    """Return what stands for a text in place of the text, which may be large."""
    return hashlib.blake2b(text, digest_size=16).digest()


@functools.cache
def _decoder(kind: str) -> tuple[msgspec.json.Decoder[Any], tuple[tuple[str, str, SharedField], ...]]:
    """Return the decoder of a kind, and the fields that are shared, each after the part of the object that has it."""
    shape = {"apiVersion": ANY, "kind": ANY, **FIELDS[kind]}
    return msgspec.json.Decoder(_struct(shape)), tuple(_shared_fields(kind))


def _shared_fields(kind: str) -> Iterator[tuple[str, str, SharedField]]:
    for part, fields in FIELDS[kind].items():
        for name, field in fields.items() if isinstance(fields, Mapping) else ():
            if isinstance(field, SharedField):
                yield part, name, field


@functools.cache
def _part_decoder(field: SharedField) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_struct(field.shape) | None)


def _struct(shape: Any) -> Any:
    """Return the type that decodes the fields of a shape, and leaves absent ones out again."""
    if isinstance(shape, Mapping):
        fields = [(name, _field(each), msgspec.UNSET) for name, each in shape.items()]
        return msgspec.defstruct("Kept", fields, gc=False, omit_defaults=True)
    if isinstance(shape, list):
        return list[_struct(shape[0])]  # type: ignore[misc]
    return shape


def _field(shape: Any) -> Any:
    """Return the type of a field, which may be absent or null; one that is shared is decoded later."""
    return msgspec.Raw if isinstance(shape, SharedField) else _struct(shape) | None | msgspec.UnsetType
