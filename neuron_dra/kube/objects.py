"""Decodes the API server's replies object by object, so that one that cannot be decoded affects no other.

The API server passes opaque values through as their author wrote them. A value that no decoder reads is replaced by
UNREADABLE; the rest of its object is decoded as always.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from neuron_dra.kube import scan
from neuron_dra.kube.scan import EACH, Span

T = TypeVar("T")

PASSED_THROUGH: Final = (
    ("spec", "devices", "config", EACH, "opaque", "parameters"),
    ("status", "allocation", "devices", "config", EACH, "opaque", "parameters"),
    ("status", "devices", EACH, "data"),
    ("spec", "spec", "devices", "config", EACH, "opaque", "parameters"),
    ("spec", "config", EACH, "opaque", "parameters"),
)
"""The paths of opaque values in ResourceClaims, ResourceClaimTemplates and DeviceClasses: the API server only requires
JSON objects there.
"""
UNREADABLE: Final = "(a value that cannot be decoded)"
MALFORMED: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""The errors of decoding a malformed response, such as a proxy's page or that of a broken server."""
_NESTING: Final = 64
"""Room for the brackets around a value: decoders limit the nesting of the whole text."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """An object with values that cannot be decoded: those at `paths`, or the whole object if there are none."""

    namespace: str
    name: str
    paths: tuple[str, ...] = ()
    why: str = ""

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"


class _ObjectMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    token: str = msgspec.field(default="", name="continue")


class _Head(msgspec.Struct):
    metadata: _ObjectMeta


class _Items(msgspec.Struct):
    items: list[msgspec.Raw] | None


class _ListOf(msgspec.Struct, Generic[T]):
    items: list[T] | None


class Identity(msgspec.Struct, rename="camel", omit_defaults=True):
    """The part of an object's metadata that identifies it and its version."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"


class _Identified(msgspec.Struct):
    metadata: Identity


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list. `token` is for the next page, empty on the last; `version` is the list's resourceVersion."""

    raw: bytes
    version: str
    token: str

    @property
    def items(self) -> Sequence[bytes | msgspec.Raw]:
        """The text of each object. Raises ValueError if this is no list."""
        try:
            return msgspec.json.decode(self.raw, type=_Items).items or ()
        except (ValueError, RecursionError):
            [(begin, _)] = scan.find(self.raw, ("items",))
            if self.raw[begin : begin + 1] != b"[":
                raise ValueError("items is not a list") from None
            return [self.raw[slice(*span)] for span in scan.elements(self.raw, begin)]

    def decoded(self, kind: type[T]) -> Decoded[T]:
        """Return the objects, and those that are damaged. Raises one of MALFORMED if this is no list."""
        try:
            return Decoded(msgspec.json.decode(self.raw, type=_ListOf[kind]).items or [], [])  # type: ignore[valid-type]
        except (ValueError, RecursionError):
            pass  # one of the objects cannot be decoded, or this is no list
        decoded_objects: list[T] = []
        damaged: list[Damaged] = []
        for raw in self.items:
            decoded = decode(raw, kind)
            decoded_objects += decoded.objects
            damaged += decoded.damaged
        return Decoded(decoded_objects, damaged)


@dataclass(frozen=True, slots=True)
class Decoded(Generic[T]):
    """Decoded objects. `damaged` has those of which values or the whole could not be decoded."""

    objects: list[T]
    damaged: list[Damaged]


def page(raw: bytes) -> Page:
    """Return a page of a list. Raises ValueError if it is not one."""
    try:
        meta = msgspec.json.decode(raw, type=_Head).metadata
    except (ValueError, RecursionError):
        [(begin, end)] = scan.find(raw, ("metadata",))
        meta = msgspec.json.decode(raw[begin:end], type=_ObjectMeta)
    return Page(raw, meta.resource_version, meta.token)


def decode(raw: bytes | msgspec.Raw, kind: type[T]) -> Decoded[T]:
    """Return an object of this type without the values that cannot be decoded, or what is known of one that cannot.

    Raises one of MALFORMED if it has no name.
    """
    try:
        return Decoded([msgspec.json.decode(raw, type=kind)], [])
    except (ValueError, RecursionError):
        text = bytes(raw)
    meta = identity(text)
    try:
        readable_text, paths = without_unreadable(text)
        return Decoded([msgspec.json.decode(readable_text, type=kind)], [Damaged(meta.namespace, meta.name, paths)])
    except (ValueError, RecursionError) as err:
        return Decoded([], [Damaged(meta.namespace, meta.name, why=str(err) or repr(err))])


def readable(raw: bytes) -> bytes:
    """Return the text of an object without the values that cannot be decoded; unchanged if the rest cannot be."""
    if is_readable(raw):
        return raw
    try:
        readable_text, _ = without_unreadable(raw)
    except ValueError:
        return raw
    if is_readable(readable_text):
        return readable_text
    return raw


def is_readable(raw: bytes | msgspec.Raw) -> bool:
    """Return True if the text can be decoded."""
    try:
        msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        return False
    return True


def without_unreadable(raw: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Return an object with UNREADABLE in place of each opaque value that cannot be decoded, and their paths.

    Raises NotJson.
    """
    parts, paths, position = [], [], 0
    for (begin, end), path in opaque_values(raw):
        if not is_readable(b"[" * _NESTING + raw[begin:end] + b"]" * _NESTING):
            parts += [raw[position:begin], msgspec.json.encode(UNREADABLE)]
            paths.append(path)
            position = end
    return b"".join([*parts, raw[position:]]), tuple(dict.fromkeys(paths))


def opaque_values(raw: bytes) -> list[tuple[Span, str]]:
    """Return where the values are that the API server passes through, in order, and their paths. Raises NotJson."""
    spans_and_paths = []
    for path in PASSED_THROUGH:
        for span in scan.find(raw, path):
            spans_and_paths.append((span, ".".join(path)))
    return sorted(spans_and_paths)


def identity(raw: bytes | msgspec.Raw) -> Identity:
    """Return the identity of an object of which nothing else may be readable. Raises one of MALFORMED."""
    try:
        return msgspec.json.decode(raw, type=_Identified).metadata
    except (ValueError, RecursionError):
        text = bytes(raw)
    metadata = {}
    for field in ("name", "namespace", "uid", "resourceVersion"):
        for begin, end in scan.find(text, ("metadata", field)):
            metadata[field] = msgspec.json.decode(text[begin:end], type=str)
    return msgspec.convert(metadata, Identity)


def event(line: bytes) -> tuple[str, bytes | msgspec.Raw]:
    """Return type and object of an event of a watch. Raises one of MALFORMED if it is not one."""
    try:
        watch_event = msgspec.json.decode(line, type=_Event)
        return watch_event.type, watch_event.object
    except (ValueError, RecursionError):
        [(begin, end)] = scan.find(line, ("type",))
        kind = msgspec.json.decode(line[begin:end], type=str)
        [(begin, end)] = scan.find(line, ("object",))
        return kind, line[begin:end]


def value_at(raw: bytes | msgspec.Raw, path: tuple[str, ...], kind: type[T]) -> T | None:
    """Return one value of an object of which the rest may not be readable; None if it has none.

    Raises one of MALFORMED if the value cannot be decoded.
    """
    text = bytes(raw)
    span = next(scan.find(text, path), None)
    if span is None:
        return None
    return msgspec.json.decode(text[slice(*span)], type=kind)
