"""CDI specs: the files from which a container runtime adds devices and environment to a container.

Source: Container Device Interface 1.1.0, SPEC.md. A runtime rejects a file with unknown fields or a newer version than
its own, so the lowest version that has the fields in use is declared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from neuron_dra.core import names
from neuron_dra.core.claims import PreparedClaim, PreparedDevice
from neuron_dra.core.dra_driver import NEURON, Driver
from neuron_dra.core.members import Cores

KIND = NEURON.cdi_kind
VERSION = "0.6.0"  # annotations; 0.5.0 would do for hostPath and for device names that begin with a digit

_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)

_DEVICE_FILE = re.compile(r"/dev/neuron(\d{1,4})(?!\d)", re.ASCII)

NAMESPACE = f"{names.DRIVER}/claim-namespace"
NAME = f"{names.DRIVER}/claim-name"
UID = f"{names.DRIVER}/claim-uid"

# Annotations of a device, from which a claim that only has its file is held as it was prepared.
ADMIN_ACCESS = f"{names.DRIVER}/admin-access"
SHARE_ID = f"{names.DRIVER}/share-id"
CORES = f"{names.DRIVER}/cores"  # the first and the last one: 12-15
_CORES = re.compile(r"(\d{1,5})-(\d{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ShownDevice:
    """A device in a CDI file of this driver, and what it holds."""

    name: str
    device_ids: tuple[int, ...]
    admin_access: bool = False
    share_id: str | None = None
    cores: Cores | None = None


@dataclass(frozen=True, slots=True)
class DeviceFiles:
    """Where the container runtime finds the device files of this node.

    `host_dir` is /dev on a real host and a folder on simulated hardware. If that folder has plain files, because
    device nodes could not be created without root, `mounted` is True and they are bind-mounted.
    """

    host_dir: str = "/dev"
    mounted: bool = False


def device_name(claim_uid: str, device: str, share_id: str | None = None) -> str:
    """Return the name of a device inside its claim's spec; it is unique on the node and never used again."""
    name = f"{claim_uid}-{device}"
    if share_id:
        name += f"-{share_id}"
    return name


def device_id(claim_uid: str, device: str, share_id: str | None = None, driver: Driver = NEURON) -> str:
    """Return the qualified CDI name, `vendor/class=name`, that the kubelet passes to the runtime."""
    return f"{driver.cdi_kind}={device_name(claim_uid, device, share_id)}"


def claim_uid_of_device(qualified_name: str, device: str, driver: Driver = NEURON) -> str:
    """Return the claim UID in a CDI name that `device_id` made for `device`; empty for other names."""
    kind, _, name = qualified_name.partition("=")
    uid, separator, _ = name.partition(f"-{device}")
    if kind == driver.cdi_kind and separator and _UID.fullmatch(uid):
        return uid
    return ""


def file_name(claim_uid: str, driver: Driver = NEURON) -> str:
    """Return the name of a claim's file in the CDI folder."""
    return f"{driver.cdi_file_prefix}{claim_uid}.json"


def other_file_name(claim_uid: str, driver: Driver = NEURON) -> str:
    """Return the name that drivers with CDI's Go library give to a claim's file: the library writes YAML by default."""
    return f"{driver.cdi_file_prefix}{claim_uid}.yaml"


def claim_uid_of(file: str, driver: Driver = NEURON) -> str | None:
    """Return the claim UID in a file name of this driver's form, or None if the name has another form."""
    return _uid_in(file, driver.cdi_file_prefix, ".json")


def other_claim_uid_of(file: str, driver: Driver = NEURON) -> str | None:
    """Return the claim UID in a file name of another implementation of this driver, or None for other names."""
    return _uid_in(file, driver.cdi_file_prefix, ".yaml")


def _uid_in(file: str, prefix: str, suffix: str) -> str | None:
    """Return the part of a file name between `prefix` and `suffix`, or None for other names."""
    if not (file.startswith(prefix) and file.endswith(suffix)):
        return None
    return file[len(prefix) : -len(suffix)]


def container_edits(device_ids: Sequence[int], env: Sequence[str], files: DeviceFiles) -> dict[str, Any]:
    """Return the CDI container edits for the devices `neuronN` of `device_ids` and for `env`, as NAME=value.

    Inside the container the devices keep their names on the host. Simulated hardware without device nodes is
    bind-mounted as plain files.
    """
    edits: dict[str, Any] = {}
    if env:
        edits["env"] = list(env)
    if files.mounted:
        edits["mounts"] = [
            {
                "hostPath": f"{files.host_dir}/neuron{device_id}",
                "containerPath": f"/dev/neuron{device_id}",
                "options": ["bind", "rw"],
            }
            for device_id in sorted(device_ids)
        ]
    else:
        edits["deviceNodes"] = [_device_node(i, files.host_dir) for i in sorted(device_ids)]
    return edits


def _device_node(number: int, host_dir: str) -> dict[str, str]:
    node = {"path": f"/dev/neuron{number}"}
    if host_dir != "/dev":
        node["hostPath"] = f"{host_dir}/neuron{number}"
    return node


def spec(claim: PreparedClaim, driver: Driver = NEURON) -> dict[str, Any]:
    """Return the CDI spec of a prepared claim: one CDI device for each allocated device.

    The annotations name the claim, so that a lost checkpoint can be rebuilt from the files.
    """
    return {
        "cdiVersion": VERSION,
        "kind": driver.cdi_kind,
        "annotations": {NAMESPACE: claim.ref.namespace, NAME: claim.ref.name, UID: claim.ref.uid},
        "devices": [_device(claim.ref.uid, device) for device in claim.devices],
    }


def _device(claim_uid: str, device: PreparedDevice) -> dict[str, Any]:
    cdi_device: dict[str, Any] = {
        "name": device_name(claim_uid, device.device, device.share_id),
        "containerEdits": dict(device.edits),
    }
    annotations = {}
    if device.admin_access:
        annotations[ADMIN_ACCESS] = "true"
    if device.share_id:
        annotations[SHARE_ID] = device.share_id
    if device.cores is not None:
        annotations[CORES] = f"{device.cores.all[0]}-{device.cores.all[-1]}"
    return cdi_device | ({"annotations": annotations} if annotations else {})


def devices(document: object, claim_uid: str, driver: Driver = NEURON) -> tuple[ShownDevice, ...]:
    """Return the devices in a spec of this driver.

    The spec may be from a later release, or damaged. So a device without a readable name counts as the whole Neuron
    devices of its files, one without readable files as all of the spec's, and an unreadable annotation is ignored.
    """
    entries = _listed(document, "devices")
    all_ids = sorted({number for cdi_device in entries for number in _device_ids(cdi_device)})
    shown: list[ShownDevice] = []
    for cdi_device in entries:
        name = cdi_device.get("name")
        match = driver.device_name.match(name.removeprefix(f"{claim_uid}-")) if isinstance(name, str) else None
        device_ids = _device_ids(cdi_device)
        if match is None:
            shown += [ShownDevice(f"{names.DEVICE_PREFIX}{number}", (number,)) for number in device_ids]
            continue
        annotations = cdi_device.get("annotations")
        if not isinstance(annotations, dict):
            annotations = {}
        share_id = annotations.get(SHARE_ID)
        shown.append(
            ShownDevice(
                match[0],
                tuple(device_ids or all_ids),
                admin_access=annotations.get(ADMIN_ACCESS) == "true",
                share_id=share_id if isinstance(share_id, str) and share_id else None,
                cores=_cores(annotations.get(CORES)),
            )
        )
    return tuple(shown)


def _cores(text: object) -> Cores | None:
    match = _CORES.fullmatch(text) if isinstance(text, str) else None
    if match is None or int(match[1]) > int(match[2]):
        return None
    return Cores(int(match[1]), int(match[2]) + 1 - int(match[1]))


def _listed(holder: object, field: str) -> list[dict[str, Any]]:
    """Return the objects in a field of a document; what is no object, or no list, is skipped."""
    listed = holder.get(field) if isinstance(holder, dict) else None
    if not isinstance(listed, list):
        return []
    return [entry for entry in listed if isinstance(entry, dict)]


def _device_ids(cdi_device: Mapping[str, Any]) -> list[int]:
    """Return the Neuron devices of one device in a spec; unreadable parts are skipped."""
    matches = (_DEVICE_FILE.fullmatch(path) for path in _container_paths(cdi_device.get("containerEdits")))
    return sorted({int(match[1]) for match in matches if match})


def device_files_in(text: str) -> set[int]:
    """Return the Neuron devices whose files a text of any format names."""
    return {int(number) for number in _DEVICE_FILE.findall(text)}


def _container_paths(edits: object) -> Iterator[str]:
    """Yield where container edits put device files."""
    for field, name in (("deviceNodes", "path"), ("mounts", "containerPath")):
        for edit in _listed(edits, field):
            path = edit.get(name)
            if isinstance(path, str):
                yield path


def encode(document: Mapping[str, Any]) -> bytes:
    """Return the bytes of a spec; equal specs give equal bytes, in whatever order their fields were read.

    Each field and each device has its own line, because administrators read these files.
    """
    fields = []
    for name in sorted(document):
        value = document[name]
        if name == "devices" and isinstance(value, list):
            fields.append(b'"devices": [\n    ' + b",\n    ".join(map(line, value)) + b"\n  ]")
        else:
            fields.append(line(name) + b": " + line(value))
    return b"{\n  " + b",\n  ".join(fields) + b"\n}\n"


_quick = msgspec.json.Encoder(order="sorted").encode


def line(value: object) -> bytes:
    """Return the JSON of a value on one line, with sorted keys."""
    try:
        return _quick(value)
    except UnicodeEncodeError:  # a lone surrogate, which JSON can escape but UTF-8 cannot encode
        return json.dumps(value, sort_keys=True).encode()


def is_of(claim: PreparedClaim, raw: bytes, driver: Driver = NEURON) -> bool:
    """Return True if the file contents `raw` equal the spec of `claim`, whatever their formatting."""
    expected_bytes = encode(spec(claim, driver))
    if raw == expected_bytes:
        return True
    try:
        document = json.loads(raw)
        return isinstance(document, dict) and encode(document) == expected_bytes
    except (ValueError, RecursionError):
        return False


def annotated_ref(document: object) -> tuple[str, str, str] | None:
    """Return namespace, name and UID of the claim from a spec's annotations; None if one of them is missing."""
    if not isinstance(document, dict):
        return None
    notes = document.get("annotations")
    if not isinstance(notes, dict):
        return None
    claim_ref = (notes.get(NAMESPACE), notes.get(NAME), notes.get(UID))
    if all(isinstance(part, str) and part for part in claim_ref):
        return claim_ref  # type: ignore[return-value]
    return None
