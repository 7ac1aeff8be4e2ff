"""The helper process: reads the kernel driver's files for the plugin, so that a read that never ends blocks only it.

It runs as a script and imports nothing from the plugin: it needs 3 MiB and starts in 10 ms. A request is one line. A
reply is a line with a length, followed by that many bytes (marshal: both ends run the same Python). A helper that hangs
in the kernel holds no lock, socket or file of the plugin.
"""

from __future__ import annotations

import marshal
import os
import stat
import sys
from _collections_abc import Callable, Collection, Sequence  # already loaded by Python

CLASS = "sys/class/neuron_device"
VIRTUAL = "sys/devices/virtual/neuron_device"
INITSTATE = "sys/module/neuron/initstate"
PARTIAL = (b"coming", b"going")  # values of INITSTATE with which the devices are not read: some are not there
MAX_BYTES = 4096  # a sysfs attribute has one page
BY_NAME = "?"  # begins a candidate that is the name of a file, wherever it is
DEPTH_AT_MOST = 4  # of the folders in which a file is looked for by its name
ENTRIES_AT_MOST = 1000  # of them and their files, for a device or the class
NO_FILE, A_DEVICE, A_PLAIN_FILE, UNREADABLE = 0, 1, 2, 3

Texts = list[bytes | None]
"""The contents of each file, in the order of the layout; None if none of its candidates can be read."""

Groups = Sequence[Sequence[str]]
"""For each file its candidate paths; the first that can be read is used.

A candidate `?name` is the only file of that name below the folder of the device or the class: kernel driver 2.31 moved
files, and no list of the new paths is public. A path with a folder `*` stands for the files of all PCI functions there,
a line each; all must be readable.
"""

States = tuple[bytes | None, bytes | None]
"""The driver's INITSTATE before and after everything else was read."""

Reply = tuple[Texts, list[int] | None, Texts, dict[int, tuple[int, Texts] | None], list[str], States]
"""The fields of `sysfs.FileReading`, which this process does not import."""


class Source:
    """The file system. All methods but `kind` raise OSError."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        return os.listdir(folder)

    def entries(self, folder: str) -> list[tuple[str, bool]]:
        """Return the names in a folder, but for links, and whether each is a folder."""
        with os.scandir(folder) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries if not entry.is_symlink()]

    def contents(self, path: str) -> bytes:
        """Return a file's contents, at most MAX_BYTES."""
        with open(path, "rb", buffering=0) as file:
            return file.read(MAX_BYTES)

    def kind(self, path: str) -> int:
        """Return NO_FILE, A_DEVICE or A_PLAIN_FILE; UNREADABLE if that cannot be seen, as where SELinux forbids it."""
        try:
            return A_PLAIN_FILE if stat.S_ISREG(os.stat(path).st_mode) else A_DEVICE
        except (FileNotFoundError, NotADirectoryError):
            return NO_FILE
        except (OSError, ValueError):
            return UNREADABLE


def read(
    source: Source,
    root: str,
    layout: Sequence[Groups],
    dev: str,
    may_read: Callable[[str], bool] = lambda unit: True,
    note: Callable[[str], None] = lambda path: None,
) -> Reply:
    """Return what all files below `root` contain; `layout` has the files of the node, of the class and of a device.

    `dev` is the folder with the device files.

    A unit for which `may_read` returns False is left out; a unit is a device such as `neuron3`, or the path of a file.
    `note` is called with each path before it is read.
    """
    node, of_class, of_device = layout
    reading = _Reading(source, root, dev, may_read, note)
    before = reading.text("", (INITSTATE,))
    texts = [reading.text("", candidates) for candidates in node]
    base, ids = reading.devices()
    classes = [reading.text(f"{CLASS}/", candidates) for candidates in of_class]
    devices: dict[int, tuple[int, Texts] | None]
    if ids is None:
        devices = dict.fromkeys(reading.device_files())
    elif (before or b"").strip() in PARTIAL:
        devices = dict.fromkeys(ids)
    else:
        devices = {number: reading.device(base, number, of_device) for number in ids}
    return texts, ids, classes, devices, reading.named_paths, (before, reading.text("", (INITSTATE,)))


class _Reading:
    """One reading. `named_paths` are the paths of the files that were found by their name."""

    def __init__(
        self, source: Source, root: str, dev: str, may_read: Callable[[str], bool], note: Callable[[str], None]
    ) -> None:
        self._source = source
        self._root = root
        self._dev = dev
        self._may_read = may_read
        self._note = note
        self._places: dict[str, dict[str, list[str]]] = {}
        self.named_paths: list[str] = []

    def devices(self) -> tuple[str, list[int] | None]:
        """Return the folder of the devices and their ids; None if neither folder is there."""
        for folder in (CLASS, VIRTUAL):
            self._note(folder)
            try:
                return folder, _ids(self._source.names(f"{self._root}/{folder}"))
            except OSError:
                continue
        return CLASS, None

    def device_files(self) -> list[int]:
        """Return the ids of the devices that have a file."""
        self._note("dev")
        try:
            return _ids(self._source.names(self._dev))
        except OSError:
            return []

    def device(self, base: str, number: int, files: Groups) -> tuple[int, Texts] | None:
        """Return the kind of a device's file in /dev, and its own files; None if it is left out."""
        if not self._may_read(f"neuron{number}"):
            return None
        self._note(f"dev/neuron{number}")
        kind = self._source.kind(f"{self._dev}/neuron{number}")
        return kind, [self.text(f"{base}/neuron{number}/", candidates) for candidates in files]

    def text(self, folder: str, candidates: Sequence[str]) -> bytes | None:
        """Return the contents of the first candidate in `folder` that can be read."""
        for candidate in candidates:
            by_name = candidate.startswith(BY_NAME)
            path = self._only_place(folder, candidate[1:]) if by_name else f"{folder}{candidate}"
            # A device is left out as a whole, in `device`, so only other paths are checked here.
            if not path or (_id(unit_of(path)) is None and not self._may_read(path)):
                continue
            self._note(path)
            try:
                contents = _contents(self._source, f"{self._root}/{path}")
            except (OSError, ValueError):
                continue
            if by_name:
                self.named_paths.append(path)
            return contents
        return None

    def _only_place(self, folder: str, name: str) -> str:
        """Return the path of the only file of this name below a folder; empty if there is none or another one."""
        if folder not in self._places:
            of_device = _id(unit_of(folder)) is not None
            self._places[folder] = self._walked([folder.rstrip("/")] if of_device else [CLASS, VIRTUAL])
        places = self._places[folder].get(name, [])
        return places[0] if len(places) == 1 else ""

    def _walked(self, folders: list[str]) -> dict[str, list[str]]:
        """Return the paths below `folders` by file name; none at all if there are too many to know them.

        Links are not followed. Cores repeat their files, and `power` is the kernel's own.
        """
        places: dict[str, list[str]] = {}
        entry_count = 0
        waiting = [(folder, 0) for folder in folders]
        while waiting:
            folder, depth = waiting.pop()
            self._note(folder)
            try:
                folder_entries = self._source.entries(f"{self._root}/{folder}")
            except OSError:
                continue
            entry_count += len(folder_entries)
            if entry_count > ENTRIES_AT_MOST:
                return {}
            for name, is_folder in folder_entries:
                if name.startswith((".", "neuron_core")) or name == "power" or _id(name) is not None:
                    continue
                path = f"{folder}/{name}"
                if not is_folder:
                    places.setdefault(name, []).append(path)
                elif depth < DEPTH_AT_MOST:
                    waiting.append((path, depth + 1))
        return places


def _ids(names: Collection[str]) -> list[int]:
    numbers = map(_id, names)
    return sorted(number for number in numbers if number is not None)


def _contents(source: Source, path: str) -> bytes:
    folder, has_functions, name = path.partition("/*/")
    if not has_functions:
        return source.contents(path)
    functions = sorted(name_in_folder for name_in_folder in source.names(folder) if ":" in name_in_folder)
    return b"\n".join(source.contents(f"{folder}/{function}/{name}") for function in functions)


def _id(name: str) -> int | None:
    """Return a device's id from its name in the class; the driver writes no leading zeros."""
    digits = name[6:]
    is_device_name = name.startswith("neuron") and digits.isascii() and digits.isdigit() and len(digits) <= 4
    return int(digits) if is_device_name and str(int(digits)) == digits else None


def unit_of(path: str) -> str:
    """Return the unit to leave out if a path hangs: its device, or the path itself."""
    for folder in (f"{CLASS}/", f"{VIRTUAL}/", "dev/"):
        name = path.removeprefix(folder).split("/")[0] if path.startswith(folder) else ""
        if _id(name) is not None:
            return name
    return path


def to_argument(groups: Groups) -> str:
    """Return one part of the layout as a command-line argument."""
    return ",".join("|".join(group) for group in groups)


def request(*, careful: bool, leave_out: Collection[str] = (), only: str = "") -> bytes:
    """Return the request line for a reading; a `careful` one reports each path before it reads it."""
    return " ".join(["careful" if careful else "-", only or "-", *leave_out]).encode() + b"\n"


def main(arguments: Sequence[str]) -> None:
    """Answer the requests on standard input until it ends."""
    root, dev, *parts = arguments
    layout = [[group.split("|") for group in part.split(",")] if part else [] for part in parts]
    for line in sys.stdin.buffer:
        mode, only, *left_out = line.decode().split()

        def may_read(unit: str, only: str = only, left_out: Collection[str] = left_out) -> bool:
            return unit not in left_out if only == "-" else unit == only

        note = (lambda path: _send(b"> " + path.encode() + b"\n")) if mode == "careful" else lambda path: None
        answer = marshal.dumps(read(Source(), root, layout, dev, may_read, note))
        _send(b"= %d\n" % len(answer) + answer)


def _send(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BrokenPipeError:  # the plugin has exited
        os._exit(0)
