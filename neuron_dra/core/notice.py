"""The notice of a workload's pods: why they end, and when, in a file that their containers can read.

The controller writes it into the allocation. The node's plugin writes the file into a folder that each claim of the
workload has on the host; the claim's CDI file mounts the folder. A rename reaches a mounted folder, but no mounted
file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from neuron_dra.core.claims import PreparedClaim, PreparedDevice
from neuron_dra.core.dra_driver import NEURON

FOLDER: Final = NEURON.notices_folder
"""Folder of the claims' folders, inside the CDI folder. Like CDI files, they end with the boot."""
CONTAINER_FOLDER: Final = "/neuron-dra"
"""Where a container has its claim's folder. Of two claims in a container the last one's is there.

Not below /var/run, where a container with a read-only volume does not start: the runtime cannot create the path.
"""
FILE: Final = "notice.json"
VARIABLE: Final = "NEURON_DRA_NOTICE_FILE"
ENVIRONMENT: Final = f"{VARIABLE}={CONTAINER_FOLDER}/{FILE}"

_REASON: Final = re.compile(r"[A-Z][A-Za-z]{0,63}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z", re.ASCII)


class NoticeReason(Enum):
    """Why pods end."""

    BLOCK_ENDS = "CapacityBlockEnds"  # EC2 takes their nodes back
    MIGRATING = "Migrating"  # their group moves to other nodes
    RESTARTING = "Restarting"  # all groups are released, then reserved again
    RELEASING = "Releasing"  # the reservation, or their part of it, ends
    DRAINING = "Draining"  # the controller did not say why


@dataclass(frozen=True, slots=True)
class Notice:
    """Why pods of an allocation end, and from when on: RFC 3339, UTC; empty if the controller did not say."""

    reason: str
    time: str = ""

    @classmethod
    def from_wire(cls, value: Any) -> Notice | None:
        """Return the notice of an allocation; None without one that can be read."""
        if not isinstance(value, Mapping):
            return None
        reason, time = value.get("reason"), value.get("time")
        if not isinstance(reason, str) or not isinstance(time, str):
            return None
        return cls(reason, time) if _REASON.fullmatch(reason) and _TIME.fullmatch(time) else None

    def to_wire(self) -> dict[str, str]:
        """Return it as `notice` of an allocation, and as the contents of the file."""
        return {"reason": self.reason, **({"time": self.time} if self.time else {})}

    def encode(self) -> bytes:
        """Return the bytes of the file: one line of JSON."""
        return json.dumps(self.to_wire()).encode() + b"\n"


UNTOLD: Final = Notice(NoticeReason.DRAINING.value)
"""The notice of an allocation that is Draining and has none: its controller is of an earlier release."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the claims of one workload on this node are told; nothing, if `notice` is None."""

    namespace: str
    workload: str
    notice: Notice | None

    def concerns(self, claim: PreparedClaim) -> bool:
        """Return True if a prepared claim belongs to the workload."""
        return (claim.ref.namespace, claim.workload) == (self.namespace, self.workload)


def added(prepared: PreparedClaim, root: str) -> PreparedClaim:
    """Return `prepared` with its folder below `root`, a path on the host, in each container that uses it.

    Only claims of workloads get notices; `root` is empty where none are written.

    The first device of each request has the mount: a container may name one request of a claim.
    """
    if not prepared.workload or not root:
        return prepared
    mounted: set[str] = set()
    devices = []
    for device in prepared.devices:
        edits = {**device.edits, "env": [*device.edits.get("env", ()), ENVIRONMENT]}
        if device.request not in mounted:
            mounted.add(device.request)
            edits["mounts"] = [*device.edits.get("mounts", ()), _mount(f"{root}/{folder_name(prepared.ref.uid)}")]
        devices.append(replace(device, edits=edits))
    return replace(prepared, devices=tuple(devices))


def _mount(host_path: str) -> dict[str, Any]:
    """Return the mount of a claim's folder.

    /run is mounted nosuid, nodev and noexec: in a user namespace, a mount from there must keep these.
    """
    return {
        "hostPath": host_path,
        "containerPath": CONTAINER_FOLDER,
        "options": ["ro", "nosuid", "nodev", "noexec", "bind"],
    }


def has_folder(claim: PreparedClaim) -> bool:
    """Return True if the claim's containers mount its folder. Those that earlier releases prepared have none."""
    return any(CONTAINER_FOLDER in _targets(device) for device in claim.devices)


def _targets(device: PreparedDevice) -> Iterable[str]:
    return (str(mount.get("containerPath")) for mount in device.edits.get("mounts", ()))


def folder_name(claim_uid: str) -> str:
    """Return the name of a claim's folder."""
    return f"claim_{claim_uid}"


def claim_uid_of(folder: str) -> str:
    """Return the claim UID in the name of a folder."""
    return folder.removeprefix("claim_")
