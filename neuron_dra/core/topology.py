"""The node that the readings describe: its devices and links, and findings where these differ from the catalogue.

Three sources are combined: sysfs and /dev for what is present, DMI or the Node's label for the instance type, and the
catalogue for what the type should have. A difference never stops the plugin: what is present and usable is published,
and the finding becomes an Event and the metric neuron_dra_findings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from neuron_dra.core import busy, catalogue, kernel_driver, names
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.facts import DeviceFacts, NodeFacts, NodeLabels, NumaFacts, UltraServerFacts, Unread
from neuron_dra.core.kernel_driver import DriverState


@dataclass(frozen=True, slots=True, order=True)
class HardwareFinding:
    """A difference between the hardware and the catalogue, shown as an Event and a metric.

    - `kind`: a stable slug, such as `missing-link`; programs and alerts match it.
    - `message`: what is wrong, its effect, and what to do, in one or two sentences.

    Findings sort by kind, then by message, so that a node's list is the same for the same hardware.
    """

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class NeuronDevice:
    """One Neuron device of the node.

    - `device_id`: N of /dev/neuronN.
    - `core_count`: physical NeuronCores; 0 if neither the kernel driver nor the catalogue has the number.
    - `memory_bytes`: device memory from the catalogue; None for an unknown instance type.
    - `connected`: ids of the devices to which both ends report a link.
    - `dev`: major and minor number of the device file; None if unread.
    - `numa_node`: of the host's CPUs and memory next to it; None if unknown.
    - `device_file`: True if /dev/neuronN exists, False if it does not and the device cannot be used, None if unknown.
    - `reported`: ids of the devices to which this end reports a link; None if unread.
    """

    device_id: int
    core_count: int
    memory_bytes: int | None
    connected: frozenset[int]
    dev: tuple[int, int] | None
    device_file: bool | None
    numa_node: int | None = None
    reported: frozenset[int] | None = None

    @property
    def name(self) -> str:
        """The name in the ResourceSlice."""
        return f"{names.DEVICE_PREFIX}{self.device_id}"


@dataclass(frozen=True, slots=True)
class Node:
    """A node as publishing and prepare see it, made by `build`.

    - `instance_type_name`: from DMI or the Node's label; None if neither has one.
    - `spec`: the catalogue's entry; None for an unknown instance type.
    - `driver_version`: the kernel driver's version as it reports it; None if unread.
    - `devices`: in the order of their ids, including those without a file in /dev.
    - `ultraserver`: the sysfs class attributes; UNKNOWN on nodes that are not part of an UltraServer.
    - `findings`: sorted; empty for a healthy node.
    """

    instance_type_name: str | None
    spec: InstanceType | None
    driver_version: str | None
    devices: tuple[NeuronDevice, ...]
    ultraserver: UltraServerFacts
    labels: NodeLabels
    findings: tuple[HardwareFinding, ...]


RESETTING: Final = 0  # the value of `reset` while a device is being reset

GONE: Final = HardwareFinding(
    "no-class-folder",
    "/sys/class/neuron_device is gone, and the kernel driver is loaded: it keeps its files elsewhere. The devices stay "
    "published, and their health is unknown. Load the kernel driver again, or update this driver",
)
ELSEWHERE: Final = HardwareFinding(
    "no-class-folder",
    "/sys/class/neuron_device does not exist, and the kernel driver is loaded: it keeps its files elsewhere. Nothing "
    "is published or prepared until it is there; what was published stays. Update this driver",
)
NOT_LOADED: Final = HardwareFinding(
    "no-class-folder",
    f"{kernel_driver.NOT_LOADED}: /sys/class/neuron_device does not exist. Until it is loaded, what was published "
    "stays, nothing else is published, health is unknown, and new claims wait. Load it (aws-neuronx-dkms)",
)


def slow_load(progress: str) -> HardwareFinding:
    """Return the finding about a load of the kernel driver that takes long; `progress` is kernel_driver.loading()."""
    return HardwareFinding(
        "driver-loading",
        f"{progress}. Until it has loaded, what was published stays, nothing else is published, health is unknown, and "
        "new claims wait. A device whose firmware does not answer holds up the driver for minutes: check the kernel "
        "log; if the load does not end, reboot the node or replace the instance",
    )


def leaving() -> HardwareFinding:
    """Return the finding about a kernel driver whose unload does not end."""
    return HardwareFinding(
        "driver-leaving",
        f"{kernel_driver.LEAVING}. Until it is loaded again, what was published stays, health is unknown, and new "
        "claims wait. Load the kernel driver, or reboot the node if it does not end",
    )


def build(facts: NodeFacts, labels: NodeLabels, busy_for_s: float = 0.0) -> Node:
    """Return the node that `facts` and `labels` describe; each difference from the catalogue is a finding.

    `busy_for_s` is for how long its kernel driver has not known the node's place in an UltraServer.

    The function is pure and never raises: absent readings give findings or unknown values, and a device that the
    catalogue does not expect is kept. An unknown instance type has no memory, groups or coordinates, because only the
    catalogue has them.
    """
    findings: list[HardwareFinding] = []
    name = _instance_type(facts, labels, findings)
    spec = catalogue.lookup(name) if name else None
    if name is None:
        findings.append(
            HardwareFinding(
                "unknown-instance-type",
                f"the instance type is unknown: there is no DMI product name and no label {names.INSTANCE_TYPE_LABEL}; "
                "devices are published without groups, coordinates and memory. Check that the host's /sys is mounted",
            )
        )
    elif spec is None:
        findings.append(
            HardwareFinding(
                "unknown-instance-type",
                f"instance type {name} is not in this driver's catalogue: its devices are published without groups, "
                "coordinates and memory; update the driver",
            )
        )
    assumed = _assumed(facts, spec)
    if assumed and len(assumed) == len(facts.devices) and spec is not None and spec.links_promised:
        findings.append(_not_reported(spec))
    read_devices = []
    for device in facts.devices:
        read_devices.append(replace(device, connected=Unread.UNKNOWN) if device.device_id in assumed else device)
    facts = replace(facts, devices=tuple(read_devices))
    linked = _links(facts, spec, assumed, findings)
    in_order = sorted(facts.devices, key=lambda device: device.device_id)
    devices = []
    for device in in_order:
        node_device = _device(device, spec, linked[device.device_id], findings)
        devices.append(replace(node_device, numa_node=_numa_node(device.device_id, spec, facts.numa)))
    _count(facts, spec, findings)
    if spec is not None and (about_place := busy.finding(facts, spec, busy_for_s)):
        findings.append(HardwareFinding(*about_place))
    findings += hangs(facts.hanging)
    _moved(facts, spec, findings)
    return Node(name, spec, facts.driver_version, tuple(devices), facts.ultraserver, labels, tuple(sorted(findings)))


def hangs(paths: Iterable[str]) -> list[HardwareFinding]:
    """Return a finding for each of `paths`, whose reads do not end.

    Paths are relative to the host's root. A hanging read is a fault of the kernel driver; the plugin keeps the last
    value.
    """
    findings = []
    for path in paths:
        text = (
            f"a read of /{path} does not end: the kernel driver hangs. Its last value is used, and the health of the "
            "devices behind it is unknown. Check the kernel log; reload the kernel driver, or reboot the node"
        )
        findings.append(HardwareFinding("reading-hangs", text))
    return findings


def _instance_type(facts: NodeFacts, labels: NodeLabels, findings: list[HardwareFinding]) -> str | None:
    """Return the instance type from DMI, which is read on the machine itself, or else from the label.

    Adds a finding if the two disagree; SageMaker's `ml.` prefix is not a disagreement. A label with a type in the
    catalogue overrides a DMI name that is not in it: some virtual machine monitors set their own product name.
    """
    dmi, label = facts.product_name, labels.instance_type
    if dmi and catalogue.lookup(dmi) is None and label and catalogue.lookup(label):
        return label  # a virtual machine monitor's own product name, such as "Standard PC"
    if dmi and label and dmi != label and label.removeprefix("ml.") != dmi:
        findings.append(
            HardwareFinding(
                "instance-type-disagreement",
                f"DMI reports {dmi}, but the label {names.INSTANCE_TYPE_LABEL} is {label}; {dmi} is used. Correct the "
                "label",
            )
        )
    return dmi or label


def _assumed(facts: NodeFacts, spec: InstanceType | None) -> frozenset[int]:
    """Return the devices whose table of links says nothing, so that the catalogue's links are assumed.

    The kernel driver prints a table that depends on the number of devices, and an empty one for all devices if one was
    missing when it loaded. Only on Inf1 it reads the links from the devices, and a neighbor that is being reset reads
    0. Seen on drivers 2.24 to 2.26.
    """
    if spec is None or not spec.links or spec.shape == "switch":
        return frozenset()
    if all(device.connected == () for device in facts.devices):
        return frozenset(device.device_id for device in facts.devices)
    if spec.generation != "inf1":
        return frozenset()
    is_resetting = any(device.reset_state == RESETTING for device in facts.devices)
    assumed = []
    for device in facts.devices:
        links = () if isinstance(device.connected, Unread) else device.connected
        is_self = device.device_id in links
        if is_self or (is_resetting and 0 in links):
            assumed.append(device.device_id)
    return frozenset(assumed)


def _not_reported(spec: InstanceType) -> HardwareFinding:
    return HardwareFinding(
        "links-not-reported",
        f"the kernel driver reports no links, although {spec.name} has links between its devices: it does so for all "
        "devices if one was missing when it loaded. The links of the instance type are assumed. Check the kernel log "
        "for devices that were not found or not reset",
    )


def _links(
    facts: NodeFacts, spec: InstanceType | None, assumed: frozenset[int], findings: list[HardwareFinding]
) -> dict[int, frozenset[int]]:
    """Return the neighbors of each device, by id; a link counts only if both ends report it.

    The ends `assumed` count as reporting the catalogue's links, if the other end does not contradict.

    On switched types the kernel driver prints a torus that does not exist: every pair is connected there.
    """
    present = {device.device_id: device for device in facts.devices}
    if spec is not None and spec.shape == "switch":
        return {device_id: frozenset(present) - {device_id} for device_id in present}

    def usual(device_id: int) -> tuple[int, ...]:
        return spec.links[device_id] if spec is not None and device_id < len(spec.links) else ()

    reported_by_id = {}
    for device_id, device in present.items():
        reported_by_id[device_id] = (
            frozenset(device.connected) - {device_id} if not isinstance(device.connected, Unread) else None
        )
    links_by_id: dict[int, frozenset[int]] = {}
    for device_id, neighbours in reported_by_id.items():
        connected_ids = set()
        for other_id in sorted((neighbours or frozenset()) - {device_id}):
            back = reported_by_id.get(other_id)
            if back is not None and device_id in back:
                connected_ids.add(other_id)
            elif back is not None:
                findings.append(
                    HardwareFinding(
                        "one-sided-link",
                        f"neuron{device_id} reports a link to neuron{other_id}, which does not report one back; the "
                        "link counts as down. Reload the kernel driver; if it stays, replace the instance",
                    )
                )
        if device_id in assumed:
            for other_id in usual(device_id):
                if other_id in assumed or device_id in (reported_by_id.get(other_id) or ()):
                    connected_ids.add(other_id)
        else:
            for other_id in neighbours or ():
                if other_id in assumed and device_id in usual(other_id):
                    connected_ids.add(other_id)
        links_by_id[device_id] = frozenset(connected_ids)
    if spec is not None and spec.links_promised:
        _missing_links(spec, reported_by_id, findings)
    return links_by_id


def _missing_links(
    spec: InstanceType, reported_by_id: dict[int, frozenset[int] | None], findings: list[HardwareFinding]
) -> None:
    """Add a finding for each link that neither end reports.

    Links of a device that is gone or unread do not count. A link that one end reports is the finding `one-sided-link`
    instead.
    """
    if not any(reported_by_id.values()):
        return
    for first_id, neighbours in enumerate(spec.links):
        for second_id in neighbours:
            links_of_first = reported_by_id.get(first_id)
            links_of_second = reported_by_id.get(second_id)
            if first_id >= second_id or links_of_first is None or links_of_second is None:
                continue
            if second_id not in links_of_first and first_id not in links_of_second:
                findings.append(
                    HardwareFinding(
                        "missing-link",
                        f"the link between neuron{first_id} and neuron{second_id} is down, but {spec.name} has it; "
                        "collectives over it will be slow or fail. Replace the instance",
                    )
                )


def _device(
    facts: DeviceFacts, spec: InstanceType | None, connected: frozenset[int], findings: list[HardwareFinding]
) -> NeuronDevice:
    """Return one device, and add the findings about its cores and its file in /dev.

    The core count that the kernel driver reports wins over the catalogue's, which is used only if the file is unread.
    """
    if isinstance(facts.core_count, Unread) or _is_other_count(facts, spec):
        cores = spec.cores_per_device if spec else 0
    else:
        cores = facts.core_count
        if spec is not None and cores != spec.cores_per_device:
            findings.append(
                HardwareFinding(
                    "wrong-core-count",
                    f"neuron{facts.device_id} has {cores} NeuronCores, but a device of {spec.name} has "
                    f"{spec.cores_per_device}; it is published with {cores}. Replace the instance",
                )
            )
    if facts.device_file is False:
        findings.append(
            HardwareFinding(
                "missing-device-file",
                f"neuron{facts.device_id} is in sysfs, but /dev/neuron{facts.device_id} is missing on the host; no new "
                "claim gets it. Check udev and the kernel driver",
            )
        )
    return NeuronDevice(
        device_id=facts.device_id,
        core_count=cores,
        memory_bytes=spec.memory_bytes_per_device if spec else None,
        connected=connected,
        dev=facts.dev,
        device_file=facts.device_file,
        reported=_reported(facts, spec),
    )


def _is_other_count(facts: DeviceFacts, spec: InstanceType | None) -> bool:
    """Return True if a core count that was found by its file's name is not the catalogue's: it may be another count."""
    return "core_count" in facts.found and (spec is None or facts.core_count != spec.cores_per_device)


def _moved(facts: NodeFacts, spec: InstanceType | None, findings: list[HardwareFinding]) -> None:
    """Add the findings about files of the kernel driver that are not where they are known."""
    version = facts.driver_version or "unknown"
    if facts.driver_state is DriverState.LOADING:
        findings.append(slow_load(kernel_driver.loading(facts.devices_so_far)))
    elif facts.driver_state is DriverState.CHANGING:
        findings.append(leaving())
    elif facts.driver_state is DriverState.NOT_LOADED:
        findings.append(NOT_LOADED)
    elif facts.vanished:
        findings.append(GONE if facts.devices else ELSEWHERE)
    if facts.found:
        names = sorted({path.rpartition("/")[2] for path in facts.found})
        findings.append(
            HardwareFinding(
                "moved-facts",
                f"kernel driver {version} has {', '.join(names)} in other places than this driver knows; they were "
                f"found by name, such as /{facts.found[0]}. They show no device as healthy. Update this driver",
            )
        )
    unread = {*facts.unread}
    if facts.devices and all(_is_other_count(device, spec) for device in facts.devices):
        unread.add("core_count")
    if missing := sorted(unread & _expected(facts, spec)):
        findings.append(
            HardwareFinding(
                "unread-facts",
                f"kernel driver {version} does not show {', '.join(missing)}, which every {spec.name if spec else ''} "
                "has: links, health or UltraServers are unknown. Update this driver",
            )
        )


def _expected(facts: NodeFacts, spec: InstanceType | None) -> set[str]:
    """Return the names of the files that the kernel driver has on this instance type."""
    if spec is None or not facts.devices:
        return set()
    expected = {"core_count", "connected_devices"}
    if spec.generation != "inf1":
        expected |= {"sram_ecc_uncorrected", "mem_ecc_uncorrected"}
    if spec.whole_node:
        expected.add("ultraserver_mode")
    numbers = []
    for part in (facts.driver_version or "").split("."):
        numbers.append(int(part) if part.isdecimal() else 0)
    if spec.generation in ("trn2", "trn3") and numbers >= [2, 30, 2]:
        expected.add("unhealthy_components")
    return expected


def _reported(facts: DeviceFacts, spec: InstanceType | None) -> frozenset[int] | None:
    """Return the devices to which one end reports a link; None if it is unread. A switch connects every pair."""
    if spec is not None and spec.shape == "switch":
        return frozenset(range(spec.device_count)) - {facts.device_id}
    if isinstance(facts.connected, Unread):
        return None
    return frozenset(facts.connected) - {facts.device_id}


def _numa_node(device_id: int, spec: InstanceType | None, numa: NumaFacts) -> int | None:
    """Return a device's NUMA node; None if it is unknown.

    Where the map of EFA interfaces is known, it is that of the device's EFA function, which is on a bus next to the
    device's own. Elsewhere nothing tells which function is which device, so it is known only if all have the same.
    """
    if spec is None or spec.efa is None:
        return numa.neuron
    function = spec.efa[device_id] if device_id < len(spec.efa) else ""
    return dict(numa.efa).get(function)


def _count(facts: NodeFacts, spec: InstanceType | None, findings: list[HardwareFinding]) -> None:
    """Add the findings about missing and unexpected devices: one for each kind, with all ids."""
    if facts.vanished or facts.driver_state is not DriverState.LOADED:
        return
    if not facts.devices and spec is not None:
        findings.append(
            HardwareFinding(
                "no-devices",
                f"{spec.name} has {spec.device_count} Neuron devices, but sysfs shows none; check that the kernel "
                "driver (aws-neuronx-dkms) is loaded",
            )
        )
    elif spec is not None:
        present = {device.device_id for device in facts.devices}
        extra = sorted(present - set(range(spec.device_count)))
        if extra:
            exceed = "exceeds" if len(extra) == 1 else "exceed"
            text = (
                f"{_listed(extra)} {exceed} the device count of {spec.name} ({spec.device_count}); published without "
                "group and coordinates. Check the instance type"
            )
            findings.append(HardwareFinding("unexpected-device", text))
        missing = sorted(set(range(spec.device_count)) - present)
        if missing:
            are = "is" if len(missing) == 1 else "are"
            text = (
                f"{_listed(missing)} of {spec.name}'s {spec.device_count} devices {are} missing; the others are "
                "published. Replace the instance"
            )
            findings.append(HardwareFinding("missing-device", text))


def _listed(device_ids: Iterable[int]) -> str:
    return ", ".join(f"neuron{device_id}" for device_id in device_ids)
