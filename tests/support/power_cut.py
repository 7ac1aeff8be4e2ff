"""The states that a disk may have after a power cut: each allowed combination of operations that were not flushed.

    files = RecordingFiles(root)
    ...                                   # a program uses `files`; `files.mark(...)` records its promises
    for cut in cuts(files):               # at each operation, each state that a cut may leave
        cut.restore(elsewhere)

The model is the weakest that a file system may have. The bytes of a file are safe after it was flushed; before that the
file has its former bytes, none, half, zeros, or all. Of bytes that are written in place, any block may have reached the
disk alone. A change of a folder (a name that is created, renamed or removed) is safe after the folder was flushed;
before that each change may be lost independently of the others. A change itself is all or nothing. If a folder is lost,
so are its contents.

A program that flushes little leaves too many states. So of many changes that were not flushed, some choices are taken:
all before a moment, all but one, one alone. Likewise of many files with unsafe bytes. A folder in `coarse`, of which
only the names matter, has all of its unflushed changes or none.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from neuron_dra.node.files import Files

ALL_SUBSETS_UP_TO: Final = 6  # unflushed changes of a folder; above it, only choices of one or of nearly all
BLOCK: Final = 256  # smaller than a disk's, so that also a short checkpoint has several
ALL_BYTES_UP_TO: Final = 2  # files with unsafe bytes; above it, one of them at a time has other bytes than the rest


@dataclass(frozen=True, slots=True)
class Bytes:
    """A file got these bytes."""

    inode: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Overwritten:
    """The first bytes of a file were written in place, and it now has these bytes."""

    inode: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Flushed:
    """A file was flushed."""

    inode: int


@dataclass(frozen=True, slots=True)
class Changed:
    """Names in a folder were set to files, or, with None, removed. A folder's file id is -1."""

    folder: Path
    names: tuple[tuple[str, int | None], ...]


@dataclass(frozen=True, slots=True)
class FolderFlushed:
    """A folder was flushed."""

    folder: Path


@dataclass(frozen=True, slots=True)
class Mark:
    """A promise of the program, or a request to it."""

    what: Any


Operation = Bytes | Overwritten | Flushed | Changed | FolderFlushed | Mark
A_FOLDER: Final = -1


class RecordingFiles(Files):
    """Files below `root` that record all operations. Paths are relative to `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log: list[Operation] = []
        self._inodes: dict[Path, int] = {}
        self._next = 0
        self.before = self._scan()

    def _scan(self) -> list[Operation]:
        """Return operations that create the present files."""
        made: list[Operation] = []
        for place, folders, names in os.walk(self.root):
            here = Path(place).relative_to(self.root)
            made += [Changed(here, ((name, A_FOLDER),)) for name in folders]
            for name in names:
                inode = self._inodes[here / name] = self._new()
                made += [Bytes(inode, (Path(place) / name).read_bytes()), Flushed(inode)]
                made += [Changed(here, ((name, inode),))]
            made.append(FolderFlushed(here))
        return made

    def _new(self) -> int:
        self._next += 1
        return self._next

    def mark(self, what: Any) -> None:
        """Record a promise between two operations."""
        self.log.append(Mark(what))

    def make_folder(self, folder: Path, mode: int) -> None:
        if not folder.is_dir():
            self.make_folder(folder.parent, mode)
            self.log.append(Changed(self._folder(folder), ((folder.name, A_FOLDER),)))
            super().make_folder(folder, mode)

    def write(self, path: Path, data: bytes, mode: int) -> None:
        inode = self._inodes.get(self._short(path))
        if inode is None:
            inode = self._inodes[self._short(path)] = self._new()
            self.log.append(Changed(self._folder(path), ((path.name, inode),)))
        self.log.append(Bytes(inode, data))
        super().write(path, data, mode)

    def overwrite(self, path: Path, data: bytes) -> None:
        super().overwrite(path, data)
        self.log.append(Overwritten(self._inodes[self._short(path)], path.read_bytes()))

    def sync_file(self, path: Path) -> None:
        super().sync_file(path)
        self.log.append(Flushed(self._inodes[self._short(path)]))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        inode = self._inodes[self._short(source)]
        if source.parent != target.parent:
            raise ValueError("this model does not support a rename between folders, which is two changes")
        del self._inodes[self._short(source)]
        self._inodes[self._short(target)] = inode
        self.log.append(Changed(self._folder(source), ((source.name, None), (target.name, inode))))

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self.log.append(FolderFlushed(self._short(folder)))

    def remove(self, path: Path) -> bool:
        removed = super().remove(path)
        if removed:
            del self._inodes[self._short(path)]
            self.log.append(Changed(self._folder(path), ((path.name, None),)))
        return removed

    def remove_folder(self, folder: Path) -> bool:
        removed = super().remove_folder(folder)
        if removed:
            self.log.append(Changed(self._folder(folder), ((folder.name, None),)))
        return removed

    def _short(self, path: Path) -> Path:
        return path.relative_to(self.root)

    def _folder(self, path: Path) -> Path:
        return self._short(path.parent)


Contents = frozenset[tuple[Path, bytes | None]]
"""Files and their bytes; None for a folder."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One state of the disk, and the promises made by then."""

    contents: Contents
    promises: tuple[Any, ...]
    is_whole: bool = False  # nothing is lost, as after the end of the process alone

    def restore(self, root: Path) -> None:
        """Create this state in `root`, which must be empty."""
        for path, data in sorted(self.contents, key=lambda item: (item[1] is not None, item[0])):
            if data is None:
                (root / path).mkdir(parents=True, exist_ok=True)
            else:
                (root / path).write_bytes(data)


@dataclass(slots=True)
class _Disk:
    """The flushed state and the changes since."""

    names: dict[Path, dict[str, int]] = field(default_factory=dict)
    changes: dict[Path, list[Changed]] = field(default_factory=dict)
    safe: dict[int, bytes] = field(default_factory=dict)
    unsafe: dict[int, list[bytes]] = field(default_factory=dict)
    in_place: set[int] = field(default_factory=set)  # files that have been written in place
    coarse: frozenset[Path] = frozenset()

    def do(self, operation: Operation) -> None:
        match operation:
            case Bytes(inode=inode, data=data):
                self.unsafe.setdefault(inode, []).append(data)
            case Overwritten(inode=inode, data=data):
                self.unsafe.setdefault(inode, []).append(data)
                self.in_place.add(inode)
            case Flushed(inode=inode):
                if inode in self.unsafe:
                    self.safe[inode] = self.unsafe.pop(inode)[-1]
            case Changed(folder=folder):
                self.changes.setdefault(folder, []).append(operation)
            case FolderFlushed(folder=folder):
                self.names[folder] = _after(self.names.get(folder, {}), self.changes.pop(folder, []))

    @property
    def _folders(self) -> list[Path]:
        return sorted({*self.names, *self.changes, Path()})

    def whole(self) -> Contents:
        """Return the state without a cut."""
        folders = self._folders
        found = self._visible({each: _after(self.names.get(each, {}), self.changes.get(each, [])) for each in folders})
        written = {inode: data[-1] for inode, data in self.unsafe.items()}
        return _contents(found, {**self.safe, **written})

    def states(self) -> Iterator[Contents]:
        """Yield the states that a cut may leave, with duplicates."""
        choices = [
            [_after(self.names.get(folder, {}), chosen) for chosen in self._chosen(folder)] for folder in self._folders
        ]
        for picked in itertools.product(*choices):
            yield from self._with_bytes(dict(zip(self._folders, picked, strict=True)))

    def _chosen(self, folder: Path) -> Iterator[tuple[Changed, ...]]:
        changes = self.changes.get(folder, [])
        if folder in self.coarse:
            return iter({(): None, tuple(changes): None})
        return _subsets(changes)

    def _visible(self, names: Mapping[Path, Mapping[str, int]]) -> dict[Path, int]:
        found: dict[Path, int] = {}
        visible = [Path()]
        for folder in visible:
            for name, inode in names.get(folder, {}).items():
                found[folder / name] = inode
                if inode == A_FOLDER:
                    visible.append(folder / name)
        return found

    def _with_bytes(self, names: Mapping[Path, Mapping[str, int]]) -> Iterator[Contents]:
        found = self._visible(names)
        coarse = {inode for path, inode in found.items() if path.parent in self.coarse}
        doubtful = sorted({inode for inode in found.values() if inode in self.unsafe} - coarse)
        may_be = [self._may_be(inode) for inode in doubtful]
        written = {inode: data[-1] for inode, data in self.unsafe.items()}
        for data in itertools.product(*may_be) if len(doubtful) <= ALL_BYTES_UP_TO else _one_at_a_time(may_be):
            yield _contents(found, {**self.safe, **written, **dict(zip(doubtful, data, strict=True))})

    def _may_be(self, inode: int) -> list[bytes]:
        if inode in self.in_place:
            written = [self.safe.get(inode, b""), *self.unsafe[inode]]
            mixed = []
            for earlier, later in itertools.pairwise(written):
                mixed += [_mixed(earlier, later), _mixed(later, earlier)]
            return list(dict.fromkeys([*written, *mixed]))
        written = [
            part for data in self.unsafe[inode] for part in (b"", data[: len(data) // 2], bytes(len(data)), data)
        ]
        return list(dict.fromkeys([self.safe.get(inode, b""), *written]))


def _mixed(first: bytes, second: bytes) -> bytes:
    """Return a file whose even blocks are of one state, and whose odd blocks are of another."""
    starts = range(0, max(len(first), len(second)), BLOCK)
    return b"".join((second if start // BLOCK % 2 else first)[start : start + BLOCK] for start in starts)


def _after(names: Mapping[str, int], changes: Iterable[Changed]) -> dict[str, int]:
    made = dict(names)
    for change in changes:
        for name, inode in change.names:
            if inode is None:
                made.pop(name, None)
            else:
                made[name] = inode
    return made


def _contents(found: Mapping[Path, int], bytes_of: Mapping[int, bytes]) -> Contents:
    return frozenset((path, None if inode == A_FOLDER else bytes_of.get(inode, b"")) for path, inode in found.items())


def _one_at_a_time(may_be: list[list[bytes]]) -> Iterator[tuple[bytes, ...]]:
    """Yield choices in which one file has any bytes, and the others their first ones or their last."""
    for others in (0, -1):
        rest = [options[others] for options in may_be]
        for index, options in enumerate(may_be):
            for option in options:
                yield (*rest[:index], option, *rest[index + 1 :])


def _subsets(changes: list[Changed]) -> Iterator[tuple[Changed, ...]]:
    """Yield the choices of changes that reached the disk, in order: all choices if the changes are few."""
    count = len(changes)
    if count <= ALL_SUBSETS_UP_TO:
        for size in range(count + 1):
            yield from itertools.combinations(changes, size)
        return
    for length in range(count + 1):
        yield tuple(changes[:length])
    yield from itertools.combinations(changes, count - 1)
    yield from itertools.combinations(changes, 1)


def cuts(files: RecordingFiles, coarse: Iterable[Path] = ()) -> Iterator[Cut]:
    """Yield each state that a power cut may leave at each moment of the recording, without duplicates.

    Before them, at each moment, the state without a cut.
    """
    disk = _Disk(coarse=frozenset(coarse))
    for operation in files.before:
        disk.do(operation)
    promises: tuple[Any, ...] = ()
    seen: set[Contents] = set()  # since the last mark
    for operation in (Mark(None), *files.log):
        if isinstance(operation, Mark):
            promises = (*promises, operation.what) if operation.what is not None else promises
            seen.clear()
        else:
            disk.do(operation)
        yield Cut(disk.whole(), promises, is_whole=True)
        for contents in disk.states():
            if contents not in seen:
                seen.add(contents)
                yield Cut(contents, promises)
