"""EFA interfaces: which of them a node publishes, their health, and what a claim for them gets.

An EFA interface is a PCI function that is bound to the kernel driver `efa`. It has no network device: a container needs
the character device /dev/infiniband/uverbsN, and nothing else. N changes when the kernel module is loaded again, so it
is looked up for each claim, and is no part of the interface's identity.

Names and attributes are those of DRANET, the public driver for these interfaces, whose driver name this is too: with
another name, both drivers could give one interface to two pods.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from neuron_dra.core import cdi, groups, health, names, signals, tenants
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef, PreparedClaim, PreparedDevice
from neuron_dra.core.dra_driver import EFA
from neuron_dra.core.health import DeviceHealth, Health
from neuron_dra.core.wire import Wire
from neuron_dra.errors import ClaimError, DeviceInUse

CLASS: Final = "efa.networking.k8s.aws"
PCI_DEVICE: Final = "Elastic Fabric Adapter (EFA)"
PCI_VENDOR: Final = "Amazon.com, Inc."
DEVICE_PLUGIN_RESOURCE: Final = "vpc.amazonaws.com/efa"
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
UNHEALTHY: Final = f"{names.DRIVER}/{health.ATTRIBUTE}"
INTERFACES: Final = 64
"""The most interfaces of a node that are published: as many devices as a slice with taints may have."""

FUNCTION: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
RDMA_NAME: Final = re.compile(r"[A-Za-z0-9][-_.A-Za-z0-9]{0,62}", re.ASCII)
UVERBS: Final = re.compile(r"uverbs(\d{1,5})", re.ASCII)

NO_RDMA_NAME: Final = "NoRdmaName"
NO_UVERBS: Final = "NoUverbs"
DEVICE_FILE_DIFFERS: Final = "DeviceFileDiffers"
ADVICE: Final[Mapping[str, str]] = {
    signals.MISSING: "its PCI function is gone, or not bound to the kernel driver efa; check the kernel log, and "
    "replace the instance if it stays away",
    NO_RDMA_NAME: "the kernel driver efa has not registered it for RDMA; check the kernel log, and load efa again",
    NO_UVERBS: "it has no uverbs device; load the kernel module ib_uverbs",
    signals.DEVICE_FILE_MISSING: "its file is missing from the host's /dev/infiniband; check udev and the kernel log",
    DEVICE_FILE_DIFFERS: "its file in the host's /dev/infiniband has the number of another device; check udev",
}
"""The advice for each reason for which an interface is unhealthy."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A PCI function that is bound to `efa`, as it was read; `problem` is a reason of ADVICE, or empty."""

    function: str
    rdma_name: str = ""
    uverbs: int | None = None
    problem: str = ""
    numa_node: int | None = None
    subsystem: str = ""
    pcie_root: str = ""

    @property
    def name(self) -> str:
        """The device's name: `0000:c9:00.0` is `pci-0000-c9-00-0`."""
        return "pci-" + self.function.replace(":", "-").replace(".", "-")


@dataclass(frozen=True, slots=True)
class EfaReading:
    """What one look at the host found.

    `interfaces` are by device name. `has_rdma_cm`: the host has /dev/infiniband/rdma_cm. `is_exclusive`: RDMA devices
    belong to one network namespace, so the interfaces cannot be given to containers by their files alone.
    """

    interfaces: Mapping[str, Interface] = field(default_factory=dict)
    has_rdma_cm: bool = False
    is_exclusive: bool = False


# Publishing.


def published(interface: Interface, spec: InstanceType | None) -> Wire:
    """Return an interface in the form of resource.k8s.io/v1; `spec` is the node's type, whose groups it may have."""
    texts = {
        f"{EFA.name}/pciAddress": interface.function,
        f"{EFA.name}/pciDevice": PCI_DEVICE,
        f"{EFA.name}/pciSubsystem": interface.subsystem,
        f"{EFA.name}/pciVendor": PCI_VENDOR,
        f"{EFA.name}/rdmaDevice": interface.rdma_name,
        PCIE_ROOT: interface.pcie_root,
    }
    for size, group_id in _group_ids(interface.function, spec).items():
        texts[f"{names.GROUP_DOMAIN}/devicegroup{size}_id"] = group_id
    attributes: dict[str, Any] = {name: {"string": text} for name, text in texts.items() if text}
    attributes[f"{EFA.name}/rdma"] = {"bool": True}
    if interface.numa_node is not None:
        attributes[f"{EFA.name}/numaNode"] = {"int": interface.numa_node}
        attributes[names.NUMA_NODE] = {"int": interface.numa_node}
    return {"name": interface.name, "attributes": dict(sorted(attributes.items()))}


def _group_ids(function: str, spec: InstanceType | None) -> Mapping[int, str]:
    """Return the ids of the groups of the Neuron devices next to an interface; empty if its type has no map."""
    if spec is None or spec.efa is None or function not in spec.efa:
        return {}
    return groups.group_ids(spec)[spec.efa.index(function)]


@dataclass(frozen=True, slots=True)
class WatchedInterface:
    """An interface that was published, as it was when it could be used; `reason` is why it cannot be now.

    `well_since` is when it could be used again, in seconds of the caller's clock.
    """

    device: Wire
    reason: str = ""
    well_since: float | None = None


Watch = Mapping[str, WatchedInterface]


def recalled(devices: Iterable[Wire]) -> Watch:
    """Return the interfaces in a slice of this boot: one that is gone stays tainted after a restart of the plugin."""
    watch = {}
    for device in devices:
        attributes = device.get("attributes") or {}
        kept = {name: value for name, value in attributes.items() if name != UNHEALTHY}
        text = (attributes.get(UNHEALTHY) or {}).get("string", "")
        reason = text if text in ADVICE else ""
        watch[device["name"]] = WatchedInterface({"name": device["name"], "attributes": kept}, reason)
    return watch


def observe(before: Watch, reading: EfaReading, spec: InstanceType | None, now: float, hold_s: float) -> Watch:
    """Return the interfaces after a reading.

    An interface that could never be used is left out: the scheduler would give it to pods that then never start. One
    that was published stays, and is unhealthy until it could be used for `hold_s` seconds without a break.
    """
    watch: dict[str, WatchedInterface] = {}
    usable = {name: interface for name, interface in reading.interfaces.items() if not interface.problem}
    for name in sorted({*before, *usable}):
        earlier = before.get(name)
        if name in usable:
            device = published(usable[name], spec)
            since = now if earlier is None or earlier.well_since is None else earlier.well_since
            is_held = earlier is not None and bool(earlier.reason) and now - since < hold_s
            if earlier is not None and is_held:
                watch[name] = WatchedInterface(device, earlier.reason, since)
            else:
                watch[name] = WatchedInterface(device)
        elif earlier is not None:
            interface = reading.interfaces.get(name)
            reason = interface.problem if interface is not None else signals.MISSING
            watch[name] = replace(earlier, reason=reason, well_since=None)
    return dict(list(watch.items())[:INTERFACES])


def devices(watch: Watch, *, effect: str, keeps_taints: bool | None, held: Collection[str]) -> tuple[Wire, ...]:
    """Return the devices to publish, sorted by name.

    Where the API server keeps no taints, an unhealthy interface leaves the slice unless a prepared claim holds it.
    """
    published = []
    for name, watched in sorted(watch.items()):
        if not watched.reason:
            published.append(watched.device)
            continue
        if effect != health.NO_EFFECT and keeps_taints is False and name not in held:
            continue
        marked = {**watched.device["attributes"], UNHEALTHY: {"string": watched.reason}}
        device: dict[str, Any] = {**watched.device, "attributes": dict(sorted(marked.items()))}
        if effect != health.NO_EFFECT:
            device["taints"] = [{"key": health.TAINT_KEY, "value": watched.reason, "effect": effect}]
        published.append(device)
    return tuple(published)


def judged(watch: Watch) -> tuple[DeviceHealth, ...]:
    """Return the health of each interface, for the kubelet."""
    states = []
    for name, watched in sorted(watch.items()):
        if watched.reason:
            states.append(DeviceHealth(name, Health.UNHEALTHY, ADVICE[watched.reason], (watched.reason,)))
        else:
            states.append(DeviceHealth(name, Health.HEALTHY))
    return tuple(states)


# Deciding.


def decide(
    claim: Claim,
    *,
    node_name: str,
    reading: EfaReading,
    watch: Watch,
    effect: str,
    held: Iterable[PreparedClaim],
    device_files: cdi.DeviceFiles,
    prepared_at: str = "",
) -> PreparedClaim:
    """Return the prepared claim for `claim`. `held` are the claims that are prepared; `claim` may be among them.

    Any number of pods may use the claim: the kubelet keeps its CDI devices, and passes them for each container.

    Raises ClaimError, and DeviceInUse if another claim has one of the interfaces.
    """
    if not claim.devices:
        raise ClaimError(f"claim {claim.ref} has no device of {EFA.name} in its allocation")
    other_claims = [prepared for prepared in held if prepared.ref.uid != claim.ref.uid]
    for allocated in claim.devices:
        if allocated.pool != node_name:
            raise ClaimError(
                f"claim {claim.ref}: device {allocated.device} is of pool {allocated.pool}, and this node is "
                f"{node_name}; delete the pod so that its claim is allocated again"
            )
        if not allocated.admin_access:
            _refuse_held(claim.ref, allocated, other_claims)
        _refuse_unusable(claim.ref, allocated, reading, watch, effect)
    prepared_devices = tuple(_prepared(claim.ref, allocated) for allocated in claim.devices)
    prepared = PreparedClaim(claim.ref, prepared_devices, prepared_at, claim.pod, of_its_pod=claim.of_its_pod)
    return renewed(prepared, reading, device_files)


def _refuse_held(ref: ClaimRef, allocated: AllocatedDevice, other_claims: list[PreparedClaim]) -> None:
    for other in other_claims:
        for device in other.devices:
            if device.device == allocated.device and not device.admin_access:
                shown = f"claim {other.ref}"
                if other.ref.namespace:
                    shown = tenants.shown("claim", other.ref.namespace, other.ref.name, reader=ref.namespace)
                raise DeviceInUse(
                    f"claim {ref}: {allocated.device} is in use: it is held by {shown} (UID {other.ref.uid}) until "
                    "that claim is unprepared",
                    other.ref.uid,
                )


def _refuse_unusable(ref: ClaimRef, allocated: AllocatedDevice, reading: EfaReading, watch: Watch, effect: str) -> None:
    interface = reading.interfaces.get(allocated.device)
    reason = signals.MISSING if interface is None else interface.problem
    if reason:
        raise ClaimError(
            f"claim {ref}: EFA interface {allocated.device} is allocated, and cannot be used ({reason}): "
            f"{ADVICE[reason]}; or delete the pod so that its claim is allocated again"
        )
    watched = watch.get(allocated.device)
    if watched is None or not watched.reason or allocated.admin_access:
        return
    state = DeviceHealth(allocated.device, Health.UNHEALTHY, ADVICE[watched.reason], (watched.reason,))
    if why := health.why_refused(state, allocated.tolerations, effect):
        raise ClaimError(f"claim {ref}: {why}")


def _prepared(ref: ClaimRef, allocated: AllocatedDevice) -> PreparedDevice:
    return PreparedDevice(
        request=allocated.base_request,
        pool=allocated.pool,
        device=allocated.device,
        device_ids=(),
        cdi_ids=(cdi.device_id(ref.uid, allocated.device, allocated.share_id, EFA),),
        edits={},
        admin_access=allocated.admin_access,
        share_id=allocated.share_id,
    )


def renewed(claim: PreparedClaim, reading: EfaReading, device_files: cdi.DeviceFiles) -> PreparedClaim:
    """Return a prepared claim with the device files that its interfaces have now.

    An interface that cannot be used gets the path of a file that does not exist, so that no container starts with it.
    Its former file may be that of another interface by now, and without any file a container would start, and its
    program would use TCP without a word.

    The first device of each request has rdma_cm, as a container may name one request of a claim.
    """
    prepared_devices = []
    seen: set[str] = set()
    for device in claim.devices:
        interface = reading.interfaces.get(device.device)
        if interface is None or interface.problem:
            files = [f"{device.device}-is-unusable"]
        else:
            files = [f"uverbs{interface.uverbs}"]
        if reading.has_rdma_cm and device.request not in seen:
            files.append("rdma_cm")
        seen.add(device.request)
        prepared_devices.append(replace(device, edits=_edits(files, device_files)))
    return replace(claim, devices=tuple(prepared_devices))


def _edits(files: Iterable[str], device_files: cdi.DeviceFiles) -> dict[str, Any]:
    """Return the container edits for files of /dev/infiniband. Programs derive the names from sysfs, so these stay."""
    paths = [f"infiniband/{file}" for file in files]
    if device_files.mounted:
        mounts = []
        for path in paths:
            options = ["bind", "rw"]
            mounts.append(
                {"hostPath": f"{device_files.host_dir}/{path}", "containerPath": f"/dev/{path}", "options": options}
            )
        return {"mounts": mounts}
    nodes = []
    for path in paths:
        node = {"path": f"/dev/{path}", "permissions": "rw"}
        if device_files.host_dir != "/dev":
            node["hostPath"] = f"{device_files.host_dir}/{path}"
        nodes.append(node)
    return {"deviceNodes": nodes}


# Configuration.


def why_parameters(parameters: object, path: str) -> str:
    """Return why opaque parameters at `path` are rejected; empty if there are none.

    DRANET's parameters configure network devices and an RDMA network mode, which an EFA interface does not have.
    """
    if parameters is None or parameters == {}:
        return ""
    if not isinstance(parameters, Mapping):
        return f"{path}: must be an empty object"
    field_name = sorted(map(str, parameters))[0]
    return (
        f"{path}.{field_name}: an EFA interface has no network device to configure, so driver {EFA.name} takes no "
        "parameters on this node; remove them"
    )
