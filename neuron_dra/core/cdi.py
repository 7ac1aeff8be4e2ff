"""CDI specs: what the container runtime reads to give a container its devices.

Rules: Container Device Interface 1.1.0, SPEC.md. Unknown fields make a runtime refuse the file, and so does a version
newer than it knows: we declare the lowest version that has what we use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from neuron_dra.core import names
from neuron_dra.core.claims import PreparedClaim

KIND = f"k8s.{names.DRIVER}/claim"
FILE_PREFIX = KIND.replace("/", "-") + "_"
VERSION = "0.6.0"  # annotations; 0.5.0 would do for hostPath and for device names that begin with a digit

_DEVICE_NAME = re.compile(rf"{names.DEVICE_PREFIX}\d+|{names.NODE_DEVICE}")

NAMESPACE = f"{names.DRIVER}/claim-namespace"
NAME = f"{names.DRIVER}/claim-name"
UID = f"{names.DRIVER}/claim-uid"


@dataclass(frozen=True, slots=True)
class DeviceFiles:
    """Where the device files of this node are, for the runtime.

    `host_dir` is /dev on a real host. On simulated hardware it is a folder; its entries are plain files where nobody
    was allowed to make device nodes, and are then mounted instead (`mounted`).
    """

    host_dir: str = "/dev"
    mounted: bool = False


def device_name(claim_uid: str, device: str, share_id: str | None = None) -> str:
    """Return the name of a device inside its claim's spec, unique on the node for ever."""
    return f"{claim_uid}-{device}" + (f"-{share_id}" if share_id else "")


def device_id(claim_uid: str, device: str, share_id: str | None = None) -> str:
    """Return the qualified name that the kubelet hands to the runtime."""
    return f"{KIND}={device_name(claim_uid, device, share_id)}"


def file_name(claim_uid: str) -> str:
    """Return the name of a claim's file in the CDI directory."""
    return f"{FILE_PREFIX}{claim_uid}.json"


def other_file_name(claim_uid: str) -> str:
    """Return how drivers that use CDI's Go library call a claim's file: it writes YAML unless it is told otherwise."""
    return f"{FILE_PREFIX}{claim_uid}.yaml"


def claim_uid_of(file: str) -> str | None:
    """Return the claim UID in the name of a file that is called as ours are, or None."""
    return _uid_in(file, ".json")


def other_claim_uid_of(file: str) -> str | None:
    """Return the claim UID in the name of a file that another driver of our name wrote, or None."""
    return _uid_in(file, ".yaml")


def _uid_in(file: str, suffix: str) -> str | None:
    if not (file.startswith(FILE_PREFIX) and file.endswith(suffix)):
        return None
    return file[len(FILE_PREFIX) : -len(suffix)]


def container_edits(device_ids: Sequence[int], env: Sequence[str], files: DeviceFiles) -> dict[str, Any]:
    """Return the edits that give a container these devices and this environment."""
    edits: dict[str, Any] = {}
    if env:
        edits["env"] = list(env)
    if files.mounted:
        edits["mounts"] = [
            {"hostPath": f"{files.host_dir}/neuron{i}", "containerPath": f"/dev/neuron{i}", "options": ["bind", "rw"]}
            for i in sorted(device_ids)
        ]
    else:
        edits["deviceNodes"] = [
            {"path": f"/dev/neuron{i}"}
            | ({} if files.host_dir == "/dev" else {"hostPath": f"{files.host_dir}/neuron{i}"})
            for i in sorted(device_ids)
        ]
    return edits


def spec(claim: PreparedClaim) -> dict[str, Any]:
    """Return the CDI spec of a prepared claim: one CDI device for each allocated device."""
    return {
        "cdiVersion": VERSION,
        "kind": KIND,
        "annotations": {NAMESPACE: claim.ref.namespace, NAME: claim.ref.name, UID: claim.ref.uid},
        "devices": [
            {
                "name": device_name(claim.ref.uid, device.device, device.share_id),
                "containerEdits": dict(device.edits),
            }
            for device in claim.devices
        ],
    }


def device_names(document: object, claim_uid: str) -> tuple[str, ...]:
    """Return the names of the published devices that a spec of ours delivers, as far as it can be read."""
    devices = document.get("devices") if isinstance(document, dict) else None
    found = []
    for device in devices if isinstance(devices, list) else ():
        name = device.get("name") if isinstance(device, dict) else None
        match = _DEVICE_NAME.match(name.removeprefix(f"{claim_uid}-")) if isinstance(name, str) else None
        if match is not None:
            found.append(match[0])
    return tuple(found)


def encode(document: Mapping[str, Any]) -> bytes:
    """Return the bytes of a spec; equal specs give equal bytes, whatever order their fields were read in.

    One line for each field and for each device: people read these files.
    """
    fields = []
    for name in sorted(document):
        value = document[name]
        if name == "devices" and isinstance(value, list):
            fields.append(b'"devices": [\n    ' + b",\n    ".join(map(_line, value)) + b"\n  ]")
        else:
            fields.append(_line(name) + b": " + _line(value))
    return b"{\n  " + b",\n  ".join(fields) + b"\n}\n"


_quick = msgspec.json.Encoder(order="sorted").encode


def _line(value: object) -> bytes:
    try:
        return _quick(value)
    except UnicodeEncodeError:  # half a surrogate pair, which has a spelling in JSON and none in UTF-8
        return json.dumps(value, sort_keys=True).encode()


def is_of(claim: PreparedClaim, raw: bytes) -> bool:
    """Tell whether a file says what the spec of `claim` says, be it in the spelling of another release."""
    wanted = encode(spec(claim))
    if raw == wanted:
        return True
    try:
        document = json.loads(raw)
        return isinstance(document, dict) and encode(document) == wanted
    except (ValueError, RecursionError):
        return False


def annotated_ref(document: object) -> tuple[str, str, str] | None:
    """Return namespace, name and UID of the claim that a spec of ours was written for, or None."""
    if not isinstance(document, dict):
        return None
    notes = document.get("annotations")
    if not isinstance(notes, dict):
        return None
    found = (notes.get(NAMESPACE), notes.get(NAME), notes.get(UID))
    if all(isinstance(part, str) and part for part in found):
        return found  # type: ignore[return-value]
    return None
