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
MAX_BYTES = 4096  # a sysfs attribute has one page
NO_FILE, A_DEVICE, A_PLAIN_FILE, UNREADABLE = 0, 1, 2, 3

Texts = list[bytes | None]
"""The contents of each file, in the order of the layout; None if none of its candidates can be read."""

Groups = Sequence[Sequence[str]]
"""For each file its candidate paths; the first that can be read is used."""

Raw = tuple[Texts, list[int], Texts, dict[int, tuple[int, Texts] | None]]
"""The node's files, the device ids, the class's files, and for each device the kind of its file in /dev and its own
files, or None if it was left out."""


class Source:
    """The file system. All methods but `kind` raise OSError."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        return os.listdir(folder)

    def contents(self, path: str) -> bytes:
        """Return a file's contents, at most MAX_BYTES."""
        with open(path, "rb", buffering=0) as file:
            return file.read(MAX_BYTES)

    def kind(self, path: str) -> int:
        """Return NO_FILE, A_DEVICE, A_PLAIN_FILE, or UNREADABLE if that cannot be seen, as where SELinux forbids it."""
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
    wanted: Callable[[str], bool] = lambda unit: True,
    note: Callable[[str], None] = lambda path: None,
) -> Raw:
    """Return what all files below `root` contain; `layout` has the files of the node, of the class and of a device.

    `dev` is the folder with the device files.

    Units that are not `wanted` are left out; a unit is a device such as `neuron3`, or the path of a file. `note` is
    called with each path before it is read.
    """
    node, of_class, of_device = layout

    def text(folder: str, candidates: Sequence[str]) -> bytes | None:
        for candidate in candidates:
            path = f"{folder}{candidate}"
            if not folder.startswith(_DEVICE) and not wanted(path):
                continue
            note(path)
            try:
                return source.contents(f"{root}/{path}")
            except (OSError, ValueError):
                continue
        return None

    def device(number: int) -> tuple[int, Texts] | None:
        if not wanted(f"neuron{number}"):
            return None
        note(f"dev/neuron{number}")
        kind = source.kind(f"{dev}/neuron{number}")
        return kind, [text(f"{CLASS}/neuron{number}/", candidates) for candidates in of_device]

    texts = [text("", candidates) for candidates in node]
    note(CLASS)
    try:
        ids = sorted(number for name in source.names(f"{root}/{CLASS}") if (number := _id(name)) is not None)
    except OSError:
        ids = []
    classes = [text(f"{CLASS}/", candidates) for candidates in of_class]
    return texts, ids, classes, {number: device(number) for number in ids}


_DEVICE = f"{CLASS}/neuron"


def _id(name: str) -> int | None:
    """Return a device's id from its name in the class; the driver writes no leading zeros."""
    digits = name[6:]
    ok = name.startswith("neuron") and digits.isascii() and digits.isdigit() and len(digits) <= 4
    return int(digits) if ok and str(int(digits)) == digits else None


def unit_of(path: str) -> str:
    """Return the unit to leave out if a path hangs: its device, or the path itself."""
    for folder in (f"{CLASS}/", "dev/"):
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

        def wanted(unit: str, only: str = only, left_out: Collection[str] = left_out) -> bool:
            return unit not in left_out if only == "-" else unit == only

        note = (lambda path: _send(b"> " + path.encode() + b"\n")) if mode == "careful" else lambda path: None
        answer = marshal.dumps(read(Source(), root, layout, dev, wanted, note))
        _send(b"= %d\n" % len(answer) + answer)


def _send(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BrokenPipeError:  # the plugin has exited
        os._exit(0)
