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
from neuron_dra.ask.read.device_lists import DeviceLists

CHUNK: Final = 2**20
"""Bytes that are read at a time."""
HEAD: Final = 2048
"""Bytes in which the first object of a list begins, in which an object has its kind, and by which lists of devices are
told apart."""

_BEGIN: Final = b"{\n"
"""What an object begins with."""
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
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            raise NotAsPrinted(f"object {number} of the list: {err}") from err


class _Objects:
    """The objects of a list, one after the other.

    What is read and not taken is `_text[_at:_end]`, which begins with the bracket of an object; places count from
    there. The buffer is used again and again, and objects are decoded in it: copying a file twice costs a tenth of the
    time of reading its objects.
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
        self._at = first.end() - len(_BEGIN)
        outer = bytes(first[1])
        self._kind_is_first = _KIND_OF_LIST.search(first[0]) is not None
        step = outer[: len(outer) // 2]
        # Few lines have a bracket and a comma: a search that begins with these is twice as quick.
        between = rb"\},\n" + outer + rb"\{\n"
        self._between = re.compile(between + rb"(?<=\n" + outer + between + rb")")
        self._size_of_between = len(b"\n" + outer + b"},\n" + outer + _BEGIN)
        self._closing = b"\n" + outer + b"}\n"
        self._kind = re.compile(b"^" + outer + step + rb'"kind": "(\w+)"', re.MULTILINE)
        self._devices = b"\n" + outer + step * 2 + b'"devices": '
        end = b"\n" + outer + step * 2 + b"]"
        self._devices_end = re.compile(rb"\](?<=" + re.escape(end) + b")")
        self._size_of_devices_end = len(end)
        self._lists = DeviceLists()
        self._least: dict[str, int] = {}
        """A place before the end of each object of a kind, as far as they were read."""
        self.ended = False

    def next(self) -> dict[str, Any]:
        """Return the next object. Raises msgspec.DecodeError and NotAsPrinted."""
        if self._end - self._at < 2 * HEAD:
            self._have(2 * HEAD)
        kind = self._kind.search(self._text, self._at, min(self._at + HEAD, self._end))
        name = kind[1].decode() if kind is not None else ""
        sliced = self._slice() if name == "ResourceSlice" else None
        if sliced is not None:
            return sliced
        return self._next_of(name)

    def _next_of(self, kind: str) -> dict[str, Any]:
        """Return the next object, of a kind that its text names.

        Its end is looked for behind the shortest object of the kind. Should it be shorter, what is found is the end of
        a later object: two objects in one text are no JSON, and then every line is looked at.
        """
        least = self._least.get(kind, 0)
        try:
            return self._until(kind, least)
        except (msgspec.DecodeError, NotAsPrinted):
            if not least:
                raise
        return self._until(kind, 0)

    def _until(self, kind: str, begin: int) -> dict[str, Any]:
        """Return the next object, which ends after the place `begin`."""
        end, after = self._end_of_object(begin)
        next_object = self._decoded(kind, memoryview(self._text)[self._at : self._at + end])
        least = max(0, end - self._size_of_between)
        self._least[kind] = min(least, self._least.get(kind, least))
        self._at += after
        return next_object

    def _decoded(self, kind: str, text: bytes | memoryview) -> dict[str, Any]:
        if kind in kept.FIELDS and not self._whole:
            return self._reader.decode(kind, text)
        raw_object: dict[str, Any] = msgspec.json.decode(text)
        return raw_object

    def _slice(self) -> dict[str, Any] | None:
        """Return a slice with its devices, which are known again by their text; None for one of another form."""
        start = self._text.find(self._devices, self._at, min(self._at + HEAD, self._end))
        if start < 0 or self._between.search(self._text, self._at, start) is not None:
            return None
        begin = start + len(self._devices) - self._at
        if self._part(begin, begin + 2) != b"[\n":
            return None
        devices, after_devices = self._devices_at(begin)
        end, after = self._end_of_object(after_devices)
        without_devices = self._part(0, begin) + b"null" + self._part(after_devices, end)
        raw_slice = self._decoded("ResourceSlice", without_devices)
        if not isinstance(raw_slice.get("spec"), dict) or "devices" not in raw_slice["spec"]:
            return None
        self._at += after
        raw_slice["spec"]["devices"] = devices
        return raw_slice

    def _devices_at(self, begin: int) -> tuple[Any, int]:
        """Return the list of devices that begins at a place, and the place after it."""
        mark = self._part(begin, begin + HEAD)
        marked = self._lists.marked(mark)
        if marked is not None:
            text, devices = marked
            self._have(begin + len(text))
            if self._text.startswith(text, self._at + begin, self._end):
                return devices, begin + len(text)
        devices_end = self._find(self._devices_end, self._size_of_devices_end, begin)
        if devices_end is None:
            raise NotAsPrinted("a list of devices has no end: the file is cut off")
        after = devices_end.end() - self._at
        return self._lists.read(mark, self._part(begin, after)), after

    def _end_of_object(self, begin: int) -> tuple[int, int]:
        """Return the place after the object, which is after the place `begin`, and that of the next object."""
        between = self._find(self._between, self._size_of_between, begin)
        self.ended = between is None
        if between is not None:
            return between.start() + 1 - self._at, between.end() - len(_BEGIN) - self._at
        end = self._text.find(self._closing, self._at + begin, self._end) - self._at
        if end < 0:
            raise NotAsPrinted("the list has no end: the file is cut off")
        _check_end(self._part(end, self._end - self._at), kind_is_first=self._kind_is_first)
        return end + len(self._closing) - 1, end + len(self._closing)

    def _find(self, pattern: re.Pattern[bytes], size: int, begin: int) -> re.Match[bytes] | None:
        """Return the first place of a pattern of `size` bytes from `begin` on; read what is needed."""
        while True:
            match = pattern.search(self._text, self._at + begin, self._end)
            if match is not None:
                return match
            begin = max(begin, self._end - self._at - size)
            if not self._read():
                return None

    def _have(self, size: int) -> None:
        """Read until there are so many bytes, or all of the file."""
        while self._end - self._at < size:
            if not self._read():
                return

    def _read(self) -> bool:
        """Read more of the file, after what is not taken; return False at its end."""
        untaken = self._text[self._at : self._end]
        if len(untaken) + self._chunk > len(self._text):
            self._text = bytearray(len(untaken) + self._chunk)
        self._text[: len(untaken)] = untaken
        self._at, self._end = 0, len(untaken)
        with memoryview(self._text) as view:
            number = self._file.readinto(view[self._end : self._end + self._chunk])
        self._end += number
        return number > 0

    def _part(self, begin: int, end: int) -> bytes:
        return bytes(memoryview(self._text)[self._at + begin : min(self._at + end, self._end)])


def _check_end(tail: bytes, *, kind_is_first: bool) -> None:
    """Raise NotAsPrinted unless this is the end of a list after its last object, and nothing else follows."""
    bracket, end, members = tail.partition(b"]")
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
