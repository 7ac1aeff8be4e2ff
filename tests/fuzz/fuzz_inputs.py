"""Converts bytes into the inputs of the fuzz targets: nearly valid documents.

A fuzzer changes bytes; each byte here decides one thing (which document, where to change it, to what), so that small
changes of the input are small changes of the document.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, cast

from neuron_dra.node.hardware.helper import (
    A_DEVICE,
    MAX_BYTES,
    NO_FILE,
    Source,
)

Json = Any
NUMBERS = (0, 1, -1, 2, 3, 4, 8, 15, 16, 17, 64, 2**31, -(2**31), 2**63, 10**30, 1.5, -0.0, 1e308)
TEXTS = (
    "",
    " ",
    "busy",
    "0",
    "-1",
    "1",
    "00",
    "a" * 300,
    "\x00",
    "é",
    "\ud800",
    "neuron-device-1",
    "neuron-node-0",
    "neuron.aws.com",
    "../../etc",
    "uid-1",
    "Bound",
    "Draining",
    "true",
    "2026-03-01T12:00:00Z",
    "1_2_4",
)


class Bytes:
    """A reader without end: after the last byte it returns 0."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        """The number of unread bytes."""
        return max(0, len(self._data) - self._at)

    def byte(self) -> int:
        """The next byte."""
        value = self._data[self._at] if self._at < len(self._data) else 0
        self._at += 1
        return value

    def below(self, limit: int) -> int:
        """A number from 0 to limit - 1."""
        return (self.byte() if limit <= 256 else self.byte() << 8 | self.byte()) % limit if limit > 1 else 0

    def pick(self, choices: Sequence[Any]) -> Any:
        """One of several."""
        return choices[self.below(len(choices))]

    def raw(self, length: int) -> bytes:
        """The next bytes as they are."""
        part = self._data[self._at : self._at + length]
        self._at += length
        return part

    def text(self) -> str:
        """Return a text: one that caused a bug before, or any."""
        return cast(str, self.pick(TEXTS)) if self.below(2) else self.raw(self.below(24)).decode("latin-1")


def scalar(source: Bytes) -> Json:
    """Return a number, text, boolean or None."""
    return source.pick((lambda: source.pick(NUMBERS), source.text, lambda: bool(source.below(2)), lambda: None))()


def value(source: Bytes, depth: int = 2) -> Json:
    """Return any JSON value, a few levels deep."""
    kind = source.below(8)
    if kind == 6 and depth:
        return [value(source, depth - 1) for _ in range(source.below(4))]
    if kind == 7 and depth:
        return {source.text(): value(source, depth - 1) for _ in range(source.below(4))}
    return scalar(source)


def alike(source: Bytes, old: Json) -> Json:
    """Return another value of the same type, which a server with a schema accepts."""
    if isinstance(old, bool):
        return bool(source.below(2))
    if isinstance(old, int):
        return source.pick([n for n in NUMBERS if isinstance(n, int) and -(2**63) <= n < 2**63])
    if isinstance(old, str):
        return source.text()
    return type(old)()


def changed(source: Bytes, template: Json, *, typed: bool = False, most: int = 6) -> Json:
    """Return a copy of `template` with up to `most` changes; `typed` keeps the type of each field."""
    document = pickle.loads(pickle.dumps(template))  # many times faster than deepcopy
    for _ in range(source.below(most + 1)):
        holder, key = _place(source, document)
        if holder is None:
            document = document if typed else value(source)
            continue
        action = source.below(4)
        if action == 0:
            del holder[key]
        elif action == 1 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif action == 1 and not typed:
            holder[source.text()] = holder.pop(key)
        else:
            holder[key] = alike(source, holder[key]) if typed else value(source)
    return document


def _place(source: Bytes, document: Json) -> tuple[Any, Any]:
    """Choose a place in a document: return its container and key, or None at the top."""
    holder: Any = None
    key: Any = None
    while isinstance(document, dict | list) and document:
        if holder is not None and not source.below(4):
            break
        keys = sorted(document) if isinstance(document, dict) else range(len(document))
        holder, key = document, source.pick(list(keys))
        document = document[key]
    return holder, key


class MemorySource(Source):
    """A file tree in a dict: folder or file by its path. None is a folder; b"EIO" is a file that cannot be read."""

    def __init__(self, tree: Mapping[str, bytes | None]) -> None:
        self._tree = tree

    def names(self, folder: str) -> list[str]:
        """Entries of a folder. Raises FileNotFoundError."""
        if self._tree.get(folder, b"") is not None:
            raise FileNotFoundError(folder)
        return [path.rsplit("/", 1)[1] for path in self._tree if path.rsplit("/", 1)[0] == folder]

    def contents(self, path: str) -> bytes:
        """What a file says. Raises OSError."""
        contents = self._tree.get(path)
        if contents is None:
            raise FileNotFoundError(path)
        if contents == b"EIO":
            raise OSError(5, "Input/output error")
        return contents[:MAX_BYTES]

    def kind(self, path: str) -> int:
        """What is at a path."""
        return A_DEVICE if path in self._tree else NO_FILE
