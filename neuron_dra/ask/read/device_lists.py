"""The lists of devices of a large snapshot: equal ones are kept once, and one that differs little is made of another.

The nodes of one type publish the same devices, but for a few values, such as the network nodes above them. A list is
compared with one before it, line by line, and only the values that differ are decoded. Nobody may change a device of a
snapshot: lists share them.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from neuron_dra.ask.read import kept

MOST_REMEMBERED: Final = 2**26
"""Bytes of lists whose text is remembered, to know the same list again."""
MOST_PATTERNS: Final = 64
"""Lists that others are compared with, one for each number of lines."""
_PARTS: Final = ("attributes", "capacity")
_SCALARS: Final = (str, int, bool)


class DeviceLists:
    """Lists of devices by their text."""

    def __init__(self) -> None:
        self._marked: dict[bytes, tuple[bytes, list[Any]]] = {}
        self._remembered = 0
        self._lists: dict[tuple[int, ...], list[Any]] = {}  # by the identities of their devices
        self._patterns: dict[int, _Pattern] = {}
        self._devices: dict[object, Any] = {}
        self._values: dict[object, Any] = {}

    def marked(self, mark: bytes) -> tuple[bytes, list[Any]] | None:
        """Return the text of the last list with this beginning, and its devices."""
        return self._marked.get(mark)

    def read(self, mark: bytes, text: bytes) -> list[Any]:
        """Return the devices of a text that begins with `mark`. Raises msgspec.DecodeError."""
        devices = self._new(text)
        shared_devices = self._lists.setdefault(tuple(map(id, devices)), devices)
        self._remembered += len(text)
        if self._remembered > MOST_REMEMBERED:
            self._marked.clear()
            self._remembered = len(text)
        self._marked[mark] = text, shared_devices
        return shared_devices

    def _new(self, text: bytes) -> list[Any]:
        lines = text.split(b"\n")
        pattern = self._patterns.get(len(lines))
        matched = None if pattern is None else self._like(pattern, lines)
        if matched is not None:
            return matched
        raw = msgspec.json.decode(text, type=list[msgspec.Raw])
        devices = [self._device(bytes(raw_device)) for raw_device in raw]
        if len(self._patterns) == MOST_PATTERNS:
            self._patterns.clear()
        self._patterns[len(lines)] = _Pattern(lines, devices)
        return devices

    def _device(self, text: bytes) -> Any:
        """Return the device of a text: one device for equal texts."""
        key = kept.digest(text)
        if key not in self._devices:
            device = msgspec.json.decode(text)
            for part in _PARTS:
                if isinstance(device, dict) and isinstance(device.get(part), dict):
                    device[part] = {name: self._value(value) for name, value in device[part].items()}
            self._devices[key] = device
        return self._devices[key]

    def _value(self, value: Any) -> Any:
        """Return an equal value that is there already; 1 and true are not equal here."""
        if not _is_scalar(value):
            return value
        ((name, inner),) = value.items()
        return self._values.setdefault((name, type(inner), inner), value)

    def _like(self, pattern: _Pattern, lines: Sequence[bytes]) -> list[Any] | None:
        """Return the devices of lines that differ from the pattern's in values only; None of others."""
        changes: dict[int, list[int]] = {}
        for number in pattern.different(lines):
            place = pattern.places.get(number)
            if place is None:
                return None
            changes.setdefault(place.device, []).append(number)
        devices = list(pattern.devices)
        for index, numbers in changes.items():
            device = self._changed(pattern, index, [(number, lines[number]) for number in numbers])
            if device is None:
                return None
            devices[index] = device
        return devices

    def _changed(self, pattern: _Pattern, index: int, changes: Iterable[tuple[int, bytes]]) -> Any:
        """Return a device of the pattern with the values of these lines; None if one is no value of one type."""
        before = pattern.devices[index]
        key = id(before), *changes
        if key in self._devices:
            return self._devices[key]
        device = dict(before)
        for number, line in changes:
            value = self._of_line(line)
            if value is None:
                return None
            place = pattern.places[number]
            if device[place.part] is before[place.part]:
                device[place.part] = dict(before[place.part])
            device[place.part][place.name] = value
        self._devices[key] = device
        return device

    def _of_line(self, line: bytes) -> Any:
        """Return the value whose only member is on this line; None if it is something else."""
        if line not in self._values:
            try:
                value = msgspec.json.decode(b"{" + line + b"}")
            except (msgspec.DecodeError, UnicodeDecodeError):
                return None
            self._values[line] = self._value(value) if _is_scalar(value) else None
        return self._values[line]


class _Place(NamedTuple):
    """Where a value is in a list of devices: the place of its device, the part of the device, and the value's name."""

    device: int
    part: str
    name: str


class _Pattern:
    """A list of devices that others are compared with."""

    def __init__(self, lines: Sequence[bytes], devices: Sequence[Any]) -> None:
        self._lines = lines
        self._outer = _indentation(lines[-1])
        self._step = _indentation(lines[min(1, len(lines) - 1)]) - self._outer
        self.devices = devices
        self._places: dict[int, _Place] | None = None

    def different(self, lines: Sequence[bytes]) -> Iterable[int]:
        """Return the numbers of the lines that are not those of the pattern."""
        return itertools.compress(range(len(lines)), map(operator.ne, lines, self._lines))

    @property
    def places(self) -> dict[int, _Place]:
        """The lines that have the only member of a value; none unless the text is indented as kubectl does it."""
        if self._places is None:
            self._places = self._found() if self._is_printed() else {}
        return self._places

    def _is_printed(self) -> bool:
        if self._step < 1 or not all(type(device) is dict for device in self.devices):
            return False
        try:
            printed = msgspec.json.format(msgspec.json.encode(self.devices), indent=self._step)
        except (OverflowError, RecursionError):  # such as a number of 40 digits
            return False
        return printed.replace(b"\n", b"\n" + b" " * self._outer) == b"\n".join(self._lines)

    def _found(self) -> dict[int, _Place]:
        """Return the lines with values: a printer writes a line for each bracket and each member."""
        places: dict[int, _Place] = {}
        index, part, name = -1, "", None
        for number, line in enumerate(self._lines):
            text = line.lstrip(b" ")
            depth = (len(line) - len(text) - self._outer) // self._step
            begins = _name(text)
            if depth == 1 and not text.startswith(b"}"):
                index += 1
            elif depth == 2:
                part = begins or ""
            elif depth == 3:
                name = begins
            elif depth == 4 and part in _PARTS and name is not None and _is_scalar(self.devices[index][part][name]):
                places[number] = _Place(index, part, name)
        return places


def _name(text: bytes) -> str | None:
    """Return the name of the object that begins on a line; None if none does, or one without a name."""
    key, begins, _ = text.rpartition(b": {")
    if not begins or not text.endswith(b"{"):
        return None
    name: str = msgspec.json.decode(key)
    return name


def _is_scalar(value: Any) -> bool:
    """Return True for a value that has one member, as those of attributes and capacity do."""
    return type(value) is dict and len(value) == 1 and type(next(iter(value.values()))) in _SCALARS


def _indentation(line: bytes) -> int:
    return len(line) - len(line.lstrip(b" "))
