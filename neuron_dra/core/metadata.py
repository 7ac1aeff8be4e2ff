"""Device metadata: files from which a container reads the attributes of its devices, and its place in the job.

Each request of a claim has one file: a stream of JSON objects with the same contents, one for each API version, the
newest first. The claim's CDI file mounts it at a path that a container derives from its pod's spec.

Source: Kubernetes' KEP-5304, and kubernetes/dynamic-resource-allocation@v0.37.0, api/metadata. There, the file on the
host is named after the claim's namespace and name; here after its UID, because a file name has at most 255 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from neuron_dra.core import cdi, config, devices, limits, names, partitions
from neuron_dra.core.claims import AllocatedDevice, Claim, PreparedClaim, PreparedDevice
from neuron_dra.core.devices import Attribute, Described
from neuron_dra.core.dra_driver import NEURON
from neuron_dra.core.reservation import NodeReservation, Place
from neuron_dra.core.topology import Node

VERSIONS: Final = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
"""The API versions in each file: readers built with Kubernetes 1.36 have only the second."""
FOLDER: Final = NEURON.metadata_folder
"""Folder of the files, inside the CDI folder; runtimes read no folder in it. Like CDI files, they end with the boot."""
CONTAINER_FOLDER: Final = "/var/run/kubernetes.io/dra-device-attributes"
RANK0_NODE: Final = f"{names.DRIVER}/rank0-node"
RANK0_ADDRESS: Final = f"{names.DRIVER}/rank0-address"

JOB: Final[tuple[Described, ...]] = (
    Described("deviceIds", "string", "always", "numbers of the /dev/neuronN behind the device, such as `4_5_6_7`"),
    Described("firstCore", "int", "core partitions", "first logical core of the node, at the type's default size"),
    Described("logicalNeuronCore", "int", "known instance types", "physical cores in a logical core (LNC)"),
    Described("rank", "int", "nodes of a workload", "NEURON_GLOBAL_TOPOID: number of this node in the job, from 0"),
    Described("worldSize", "int", "nodes of a workload", "NEURON_DRA_WORLD_SIZE: number of nodes of the job"),
    Described("ultraserverIndex", "int", "nodes of a workload", "number of this node's group in the job, from 0"),
    Described("ultraserverNodes", "int", "nodes of a workload", "number of nodes in the group: 1, 2 or 4"),
)
"""The attributes that the files have and slices do not."""

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class MetadataSource:
    """What the files are made from, besides the claim: the CDI folder on the host, and this driver's version."""

    cdi_root: str
    driver_version: str


def added(
    prepared: PreparedClaim, claim: Claim, node: Node, reservation: NodeReservation | None, source: MetadataSource
) -> PreparedClaim:
    """Return `prepared` with the metadata of its requests, and with the mounts of their files.

    The first device of each request has the mount, as in Kubernetes' library, so that a container gets the files of
    the requests that it names. A request or claim whose name cannot be part of a path gets no file: the API server
    admits no such name.
    """
    documents: dict[str, dict[str, Any]] = {}
    changed: list[PreparedDevice] = []
    for allocated, device in zip(claim.devices, prepared.devices, strict=True):
        place = _place(claim, allocated, reservation)
        target = _container_path(claim, device.request)
        if target is None:
            changed.append(device)
            continue
        if device.request not in documents:
            documents[device.request] = _document(claim, allocated, place)
            mount = _mount(f"{source.cdi_root}/{FOLDER}/{file_name(claim.ref.uid, device.request)}", target)
            device = replace(device, edits={**device.edits, "mounts": [*device.edits.get("mounts", ()), mount]})
        described = _described(claim, allocated, device, node, place, source.driver_version)
        documents[device.request]["requests"][0]["devices"].append(described)
        changed.append(device)
    texts = {}
    for request, document in documents.items():
        texts[request] = cdi.line(document).decode()
    return replace(prepared, devices=tuple(changed), metadata=texts)


def file_name(claim_uid: str, request: str) -> str:
    """Return the name of a request's file; neither a UID nor a request has an underscore."""
    return f"{claim_uid}_{request}.json"


def claim_uid_of(file: str) -> str:
    """Return the claim UID in the name of a file."""
    return file.rpartition("_")[0]


def files(claim: PreparedClaim) -> dict[str, bytes]:
    """Return the bytes of a claim's files, by name; a claim that was prepared without them has none."""
    content_by_name = {}
    for request, text in (claim.metadata or {}).items():
        lines = []
        for version in VERSIONS:
            lines.append(f'{{"apiVersion":"{version}","kind":"DeviceMetadata",{text[1:]}\n')
        content_by_name[file_name(claim.ref.uid, request)] = "".join(lines).encode()
    return content_by_name


def _container_path(claim: Claim, request: str) -> str | None:
    """Return the path of a request's file in the container; None if a name cannot be part of it.

    A claim that Kubernetes made from a template is found under the pod's name for it, because its own is generated.
    That name is an annotation, which a user may have written: one that cannot be a name of a claim in a pod is ignored.
    """
    if not (_LABEL.fullmatch(request) and _SUBDOMAIN.fullmatch(claim.ref.name)):
        return None
    has_pod_claim_name = _LABEL.fullmatch(claim.pod_claim) is not None
    if has_pod_claim_name:
        folder = f"resourceclaimtemplates/{claim.pod_claim}"
    else:
        folder = f"resourceclaims/{claim.ref.name}"
    return f"{CONTAINER_FOLDER}/{folder}/{request}/{names.DRIVER}-metadata.json"


def _mount(host_path: str, container_path: str) -> dict[str, Any]:
    """Return the mount of a file.

    /run is mounted nosuid, nodev and noexec: in a user namespace, a mount from there must keep these.
    """
    return {
        "hostPath": host_path,
        "containerPath": container_path,
        "options": ["ro", "nosuid", "nodev", "noexec", "bind"],
    }


def _place(claim: Claim, allocated: AllocatedDevice, reservation: NodeReservation | None) -> Place | None:
    """Return the node's place in the workload of the claim, as for the request's environment; None without one."""
    settings = config.effective(claim.configs, allocated.request).ultraserver
    if reservation is not None and reservation.names(settings, claim.ref):
        return reservation.place
    return None


def _document(claim: Claim, allocated: AllocatedDevice, place: Place | None) -> dict[str, Any]:
    """Return a request's metadata without devices, in the form that all API versions have.

    Node and address of rank 0 are annotations, because they may be longer than the 64 bytes of an attribute.
    """
    notes = {}
    if place is not None and place.rank0_node is not None:
        notes[RANK0_NODE] = place.rank0_node
    if place is not None and place.rendezvous is not None:
        notes[RANK0_ADDRESS] = place.rendezvous.address
    about: dict[str, Any] = {
        "name": claim.ref.name,
        "namespace": claim.ref.namespace,
        "uid": claim.ref.uid,
        "generation": 1,
    }
    return {
        "metadata": about | ({"annotations": notes} if notes else {}),
        **({"podClaimName": claim.pod_claim} if _LABEL.fullmatch(claim.pod_claim) else {}),
        "requests": [{"name": allocated.request, "devices": []}],
    }


def _described(
    claim: Claim, allocated: AllocatedDevice, device: PreparedDevice, node: Node, place: Place | None, version: str
) -> dict[str, Any]:
    """Return a device: the attributes that its node publishes for it now, and those of `JOB`."""
    published = devices.named(node, allocated.device, driver_version=version)
    if published is None:
        published = partitions.named(node, allocated.device)
    values = dict(published.attributes) if published is not None else {}
    neuron_settings = config.effective(claim.configs, allocated.request).neuron
    lnc: int | None
    if neuron_settings:
        lnc = neuron_settings.logical_neuron_core
    else:
        lnc = node.spec.lnc_default if node.spec else None
    numbers: dict[str, int | None] = {
        "firstCore": device.cores.first if device.cores else None,
        "logicalNeuronCore": lnc,
        **({} if place is None else _of_job(place)),
    }
    values["deviceIds"] = Attribute("string", "_".join(map(str, device.device_ids)))
    values |= {name: Attribute("int", number) for name, number in numbers.items() if number is not None}
    attributes = {name: {attribute.kind: attribute.value} for name, attribute in limits.valid(values).items()}
    return {"driver": names.DRIVER, "pool": device.pool, "name": device.device, "attributes": attributes}


def _of_job(place: Place) -> Mapping[str, int | None]:
    return {
        "rank": place.rank,
        "worldSize": place.world_size,
        "ultraserverIndex": place.rank // place.node_count,
        "ultraserverNodes": place.node_count,
    }
