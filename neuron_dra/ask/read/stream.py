"""Reads a large snapshot as kubectl prints it, object by object, and keeps only what a command can ask for.

`kubectl get -o json` prints an object over many lines, and a line break is never inside of a JSON string. So the lines
that end an object are known by their indentation, and the file need not be in memory at once. Equal parts of objects,
such as the devices of equal nodes, are decoded once and shared: nobody may change an object of a snapshot.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

CHUNK: Final = 2**20
"""Bytes that are read at a time."""
HEAD: Final = 2048
"""Bytes in which the first object of a list begins."""

_FIRST: Final = re.compile(rb'\A\{\n[^\[\]]{0,1024}?"items": \[\n( +)\{\n')
_KIND: Final = re.compile(rb'\n +"kind": "(\w+)"')
_OF_A_NODE: Final = frozenset({"images", "volumesAttached", "volumesInUse"})
"""Fields of a Node's status that no command reads. The images alone are half of a Node."""
_OFTEN_EQUAL: Final = frozenset({"allocatable", "capacity"})
"""Fields of a Node's status that many nodes have in common."""

_Members = dict[str, msgspec.Raw]
_EMPTY: Final = msgspec.Raw(b"{}")


class NotAsPrinted(ValueError):
    """The file is not one list as kubectl prints it, or is cut off: the message says where."""


def is_printed(file: io.BufferedReader[Any]) -> bool:
    """Return True if a file begins as a list of objects that kubectl prints; nothing is taken from the file."""
    return _FIRST.match(file.peek()) is not None


def items(file: io.BufferedReader[Any], chunk: int = CHUNK) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list as kubectl prints it; `chunk` bytes are read at a time. Raises NotAsPrinted."""
    shared = _Shared()
    for number, text in enumerate(_texts(file, chunk), start=1):
        try:
            yield shared.item(text)
        except (msgspec.DecodeError, RecursionError) as err:
            raise NotAsPrinted(f"object {number} of the list: {err}") from err


def _texts(file: io.BufferedReader[Any], chunk: int) -> Iterator[bytes]:
    """Yield the text of each object."""
    waiting = file.read(max(chunk, HEAD))
    first = _FIRST.match(waiting)
    if first is None:
        raise NotAsPrinted("it is not a list as kubectl prints it")
    indent = first[1]
    between = b"\n" + indent + b"},\n" + indent + b"{\n"
    closing = b"\n" + indent + b"}\n"
    waiting = waiting[first.end() :]
    while True:
        *complete, waiting = waiting.split(between)
        for text in complete:
            yield b"{" + text + b"}"
        more = file.read(chunk)
        if not more:
            break
        waiting += more
    last, end, rest = waiting.partition(closing)
    _check_end(end + rest)
    yield b"{" + last + b"}"


def _check_end(rest: bytes) -> None:
    """Raise NotAsPrinted unless this is the end of a list after its last object, and nothing else follows."""
    bracket, end, members = rest.partition(b"]")
    try:
        whole = msgspec.json.decode(b'{"items": []' + members, type=_End)
    except msgspec.DecodeError as err:
        what = "something follows the list" if end else "the list has no end: the file is cut off"
        raise NotAsPrinted(what) from err
    if not whole.kind.endswith("List") or bracket.strip() != b"}":
        raise NotAsPrinted("it is not a list as kubectl prints it")


class _End(msgspec.Struct):
    """What is decoded of a list without its items."""

    kind: str


class _Shared:
    """Decodes objects; parts with equal text become the same value."""

    def __init__(self) -> None:
        self._parts: dict[bytes, Any] = {}

    def item(self, text: bytes) -> dict[str, Any]:
        """Return an object. Raises msgspec.DecodeError."""
        kind = _KIND.search(text)
        if kind is not None and kind[1] == b"ResourceSlice":
            return self._slice(text)
        if kind is not None and kind[1] == b"Node":
            return self._node(text)
        found: dict[str, Any] = msgspec.json.decode(text)
        return found

    def _slice(self, text: bytes) -> dict[str, Any]:
        members = msgspec.json.decode(text, type=_Members)
        spec = msgspec.json.decode(members.pop("spec", _EMPTY), type=_Members)
        devices = spec.pop("devices", None)
        found = _decoded(members)
        found["spec"] = _decoded(spec)
        if devices is not None:
            found["spec"]["devices"] = self._devices(bytes(devices))
        return found

    def _devices(self, text: bytes) -> Any:
        """Return the devices: equal lists are one list, and equal devices of other lists one device."""
        if text not in self._parts:
            try:
                devices = msgspec.json.decode(text, type=list[msgspec.Raw])
            except msgspec.ValidationError:
                return msgspec.json.decode(text)
            self._parts[text] = [self._part(bytes(device)) for device in devices]
        return self._parts[text]

    def _node(self, text: bytes) -> dict[str, Any]:
        members = msgspec.json.decode(text, type=_Members)
        status = msgspec.json.decode(members.pop("status", _EMPTY), type=_Members)
        shown = {name: raw for name, raw in status.items() if name not in _OF_A_NODE | _OFTEN_EQUAL}
        found = _decoded(members)
        found["status"] = _decoded(shown)
        for name in _OFTEN_EQUAL & status.keys():
            found["status"][name] = self._part(bytes(status[name]))
        return found

    def _part(self, text: bytes) -> Any:
        if text not in self._parts:
            self._parts[text] = msgspec.json.decode(text)
        return self._parts[text]


def _decoded(members: _Members) -> dict[str, Any]:
    return {name: msgspec.json.decode(raw) for name, raw in members.items()}
