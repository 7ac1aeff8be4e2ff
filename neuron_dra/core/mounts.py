"""Whether a folder that is mounted from the host is still the one that the host has under that name.

Source: proc_pid_mountinfo(5). The kernel appends `//deleted` to the root of a mount whose folder was removed, and shows
the present name of one that was renamed. What was mounted later is later in the list.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_DELETED: Final = "//deleted"
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class HostMount:
    """A mount: its id, the folder of the file system that it shows, and where."""

    mount_id: str
    root: str
    mount_point: str


def mount_of(mountinfo: str, folder: str) -> HostMount | None:
    """Return the topmost mount on exactly this folder; None if there is none."""
    topmost = None
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if len(fields) > 4 and _unescaped(fields[4]) == folder:
            topmost = HostMount(fields[0], _unescaped(fields[3]), folder)
    return topmost


def why_replaced(before: HostMount | None, now: HostMount | None) -> str:
    """Return why what is written to a mounted folder is not seen on the host; empty if it is.

    A mount that came later shows what the host has, so it is no reason.
    """
    if now is None:
        return ""
    if now.root.endswith(_DELETED):
        return f"{now.mount_point} was removed on the host"
    if before is not None and before.mount_id == now.mount_id and before.root != now.root:
        return f"{now.mount_point} was renamed on the host, to {now.root}"
    return ""


def _unescaped(field: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)
