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

from neuron_dra.ask.read import kept, printed

CHUNK: Final = 2**20
"""Bytes that are read at a time."""
HEAD: Final = 2048
"""Bytes in which the first object of a list begins, in which an object has its kind, and by which lists of devices are
told apart."""
MOST_REMEMBERED: Final = 2**26
"""Bytes of lists of devices whose text is remembered, to know the same list again."""

_KIND_OF_LIST: Final = re.compile(rb'"kind": "\w*List"')


class NotAsPrinted(ValueError):
    """The file is not one list as kubectl prints it, or is cut off: the message says where."""


def items(file: io.BufferedReader[Any], chunk: int = CHUNK, *, whole: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list as kubectl prints it, with the fields of kept.py or `whole`.

    `chunk` bytes are read at a time. Raises NotAsPrinted.
    """
    objects = _Objects(file, chunk, whole=whole)
    number = 0
    while not objects.ended:
        number += 1
        try:
            yield objects.next()
        except (msgspec.DecodeError, RecursionError) as err:
            raise NotAsPrinted(f"object {number} of the list: {err}") from err


class _Objects:
    """The objects of a list, one after the other.

    What is read and not taken is `_text[_at:_end]`; places count from there. The buffer is used again and again, as
    copying a file twice costs a tenth of the time of reading its objects.
    """

    def __init__(self, file: io.BufferedReader[Any], chunk: int, *, whole: bool) -> None:
        self._file = file
        self._whole = whole
        self._reader = kept.FieldReader()
        self._chunk = chunk
        self._text = bytearray(chunk)
        self._at = self._end = 0
        self._have(HEAD)
        first = printed.FIRST.match(self._text, 0, self._end)
        if first is None:
            raise NotAsPrinted("it is not a list as kubectl prints it")
        self._at = first.end()
        outer = bytes(first[1])
        self._kind_is_first = _KIND_OF_LIST.search(first[0]) is not None
        step = outer[: len(outer) // 2]
        self._between = b"\n" + outer + b"},\n" + outer + b"{\n"
        self._closing = b"\n" + outer + b"}\n"
        self._kind = re.compile(b"^" + outer + step + rb'"kind": "(\w+)"', re.MULTILINE)
        self._devices = b"\n" + outer + step * 2 + b'"devices": '
        self._devices_end = b"\n" + outer + step * 2 + b"]"
        self._parts = _Parts()
        self.ended = False

    def next(self) -> dict[str, Any]:
        """Return the next object. Raises msgspec.DecodeError and NotAsPrinted."""
        self._have(HEAD)
        kind = self._kind.search(self._text, self._at, min(self._at + HEAD, self._end))
        name = kind[1].decode() if kind is not None else ""
        sliced = self._slice() if name == "ResourceSlice" else None
        if sliced is not None:
            return sliced
        text = b"{" + self._take(self._end_of_object(0)) + b"}"
        return self._decoded(name, text)

    def _decoded(self, kind: str, text: bytes) -> dict[str, Any]:
        if kind in kept.FIELDS and not self._whole:
            return self._reader.decode(kind, text)
        found: dict[str, Any] = msgspec.json.decode(text)
        return found

    def _slice(self) -> dict[str, Any] | None:
        """Return a slice with its devices, which are known again by their text; None for one of another form."""
        self._have(2 * HEAD)
        start = self._text.find(self._devices, self._at, min(self._at + HEAD, self._end))
        if start < 0 or self._text.find(self._between, self._at, start) >= 0:
            return None
        begin = start + len(self._devices) - self._at
        if self._part(begin, begin + 2) != b"[\n":
            return None
        devices, after = self._devices_at(begin)
        end = self._end_of_object(after)
        rest = b"{" + self._part(0, begin) + b"null" + self._part(after, end) + b"}"
        found = self._decoded("ResourceSlice", rest)
        if not isinstance(found.get("spec"), dict) or "devices" not in found["spec"]:
            return None
        self._take(end)
        found["spec"]["devices"] = devices
        return found

    def _devices_at(self, begin: int) -> tuple[Any, int]:
        """Return the list of devices that begins at a place, and the place after it."""
        mark = self._part(begin, begin + HEAD)
        known = self._parts.marked.get(mark)
        if known is not None:
            text, devices = known
            self._have(begin + len(text))
            if self._text.startswith(text, self._at + begin, self._end):
                return devices, begin + len(text)
        after = self._find(self._devices_end, begin)
        if after < 0:
            raise NotAsPrinted("a list of devices has no end: the file is cut off")
        after += len(self._devices_end)
        return self._parts.devices(mark, self._part(begin, after)), after

    def _end_of_object(self, begin: int) -> int:
        """Return the place where the object ends, which is after the place `begin`."""
        found = self._find(self._between, begin)
        if found >= 0:
            return found
        found = self._text.find(self._closing, self._at + begin, self._end) - self._at
        if found < 0:
            raise NotAsPrinted("the list has no end: the file is cut off")
        _check_end(self._part(found, self._end - self._at), kind_is_first=self._kind_is_first)
        self.ended = True
        return found

    def _find(self, wanted: bytes, begin: int) -> int:
        """Return the first place of some bytes from `begin` on, and read what is needed; -1 if the file has none."""
        while True:
            found = self._text.find(wanted, self._at + begin, self._end)
            if found >= 0:
                return found - self._at
            begin = max(begin, self._end - self._at - len(wanted))
            if not self._read():
                return -1

    def _have(self, size: int) -> None:
        """Read until there are so many bytes, or all of the file."""
        while self._end - self._at < size:
            if not self._read():
                return

    def _read(self) -> bool:
        """Read more of the file, after what is not taken; return False at its end."""
        left = self._text[self._at : self._end]
        self._text[: len(left)] = left
        self._at, self._end = 0, len(left)
        lacking = self._end + self._chunk - len(self._text)
        if lacking > 0:
            self._text += bytes(lacking)
        with memoryview(self._text) as view:
            number = self._file.readinto(view[self._end : self._end + self._chunk])
        self._end += number
        return number > 0

    def _part(self, begin: int, end: int) -> bytes:
        return bytes(memoryview(self._text)[self._at + begin : min(self._at + end, self._end)])

    def _take(self, end: int) -> bytes:
        """Return the text up to the end of the object, and leave the object."""
        text = self._part(0, end)
        self._at += end + len(self._between)
        return text


def _check_end(rest: bytes, *, kind_is_first: bool) -> None:
    """Raise NotAsPrinted unless this is the end of a list after its last object, and nothing else follows."""
    bracket, end, members = rest.partition(b"]")
    try:
        whole = msgspec.json.decode(b'{"items": []' + members, type=_End)
    except msgspec.DecodeError as err:
        what = "the list has no end: the file is cut off"
        if end:
            what = "something follows the list"
        raise NotAsPrinted(what) from err
    is_list = kind_is_first or whole.kind.endswith("List")
    if not is_list or bracket.strip() != b"}":
        raise NotAsPrinted("it is not a list as kubectl prints it")


class _End(msgspec.Struct):
    """What is decoded of a list without its items."""

    kind: str = ""


class _Parts:
    """Parts of objects that are equal, kept once. `marked` has the last list of devices with each beginning."""

    def __init__(self) -> None:
        self.marked: dict[bytes, tuple[bytes, list[Any]]] = {}
        self._remembered = 0
        self._lists: dict[bytes, list[Any]] = {}
        self._devices: dict[bytes, Any] = {}
        self._values: dict[object, Any] = {}

    def devices(self, mark: bytes, text: bytes) -> list[Any]:
        """Return the devices: equal lists are one list, and equal devices of other lists one device."""
        key = kept.digest(text)
        found = self._lists.get(key)
        if found is None:
            raw = msgspec.json.decode(text, type=list[msgspec.Raw])
            found = self._lists[key] = [self._device(bytes(each)) for each in raw]
        self._remembered += len(text)
        if self._remembered > MOST_REMEMBERED:
            self.marked.clear()
            self._remembered = len(text)
        self.marked[mark] = text, found
        return found

    def _device(self, text: bytes) -> Any:
        key = kept.digest(text)
        if key not in self._devices:
            device = msgspec.json.decode(text)
            for part in ("attributes", "capacity"):
                if isinstance(device, dict) and isinstance(device.get(part), dict):
                    device[part] = {name: self._value(value) for name, value in device[part].items()}
            self._devices[key] = device
        return self._devices[key]

    def _value(self, value: Any) -> Any:
        """Return an equal value that is there already; 1 and true are not equal here."""
        if type(value) is not dict or len(value) != 1:
            return value
        ((name, inner),) = value.items()
        if type(inner) not in (str, int, bool):
            return value
        return self._values.setdefault((name, type(inner), inner), value)
