"""Compares what a node has: hardware, checkpoint, CDI files, slices, claims. Pure."""

from __future__ import annotations

import datetime
import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, Final

from neuron_dra.api import claims as wire
from neuron_dra.ask.doctor.lines import Line, ok, unknown, wrong
from neuron_dra.ask.inspect.state import PluginState
from neuron_dra.ask.read.node_views import KubeNodeView, SliceView
from neuron_dra.ask.render import words
from neuron_dra.core import catalogue, efa, kernel_driver, names, signals
from neuron_dra.core import slices as core_slices
from neuron_dra.core.checkpoint import Checkpoint
from neuron_dra.core.claims import PreparedClaim
from neuron_dra.core.dra_driver import EFA
from neuron_dra.core.efa import EfaReading
from neuron_dra.core.facts import NodeFacts, Unread
from neuron_dra.core.kernel_driver import DriverState
from neuron_dra.core.wire import Wire
from neuron_dra.gen.neuron.dra.v1 import inspector_pb2 as pb

SKEW_S: Final = 30.0
_ORPHANS: Final = "docs/health.md, a device held by an orphaned claim"


def hardware(facts: NodeFacts, state: PluginState | None) -> list[Line]:
    """Return whether the devices of sysfs are those that the plugin has, and readable."""
    area, problem_lines = "hardware", []
    ids = {device.device_id for device in facts.devices}
    if state is not None:
        kind = state.devices.instance_type
    else:
        kind = facts.product_name or ""
    spec = catalogue.lookup(kind)
    if facts.driver_state in (DriverState.LOADING, DriverState.CHANGING):
        is_loading = facts.driver_state is DriverState.LOADING
        text = kernel_driver.loading(facts.devices_so_far) if is_loading else kernel_driver.LEAVING
        todo = "wait until it has loaded; if that does not end, check the kernel log of the node (dmesg)"
        return [wrong(area, "DriverLoading", text, todo)]
    if facts.vanished:
        text = "there is no /sys/class/neuron_device: the kernel driver is not loaded, so the devices are unknown"
        return [wrong(area, "DriverNotLoaded", text, "load the kernel driver on the node (modprobe neuron; dmesg)")]
    if not ids:
        text = "sysfs shows no Neuron devices" + (f", and a {kind} has {spec.device_count}" if spec else "")
        return [wrong(area, "NoDevices", text, "load the kernel driver on the node (lsmod | grep neuron)")]
    if spec is not None and len(ids) < spec.device_count:
        text = f"sysfs shows {len(ids)} of the {spec.device_count} devices of a {kind}"
        problem_lines.append(wrong(area, "DevicesMissing", text, "docs/health.md has the reasons and remedies"))
    unread_ids = sorted(device.device_id for device in facts.devices if device.core_count is Unread.UNKNOWN)
    if unread_ids:
        text = f"core_count of {words.count(len(unread_ids), 'device')} cannot be read: {words.ranges(unread_ids)}"
        problem_lines.append(wrong(area, "Unreadable", text, "run as uid 0: the file is readable for root only"))
    if names_of_moved := sorted({path.rpartition("/")[2] for path in facts.found}):
        text = f"found by the names of their files, which show no device as healthy: {', '.join(names_of_moved)}"
        todo = "docs/health.md, a kernel driver that moved its files; update this driver"
        problem_lines.append(unknown(area, text, todo))
    if unseen := words.ranges({device.device_id for device in facts.devices if device.device_file is False}):
        text = f"no file in the host's /dev: neuron {unseen}"
        todo = "check udev and the kernel log of the node; load the kernel driver again, or reboot the node"
        problem_lines.append(wrong(area, "DeviceFileMissing", text, todo))
    if state is not None and (plugin_ids := {device.device_id for device in state.devices.devices}) != ids:
        only_plugin, only_sysfs = words.ranges(plugin_ids - ids), words.ranges(ids - plugin_ids)
        differences = f"only the plugin has {only_plugin or 'none'}, only sysfs {only_sysfs or 'none'}"
        text = f"sysfs and the plugin differ: {differences}"
        todo = "wait 10 s and try again; then restart the driver's pod"
        problem_lines.append(wrong(area, "HardwareDiffers", text, todo))
    version = facts.driver_version or "unknown"
    return problem_lines or [ok(area, f"{words.count(len(ids), 'device')} in sysfs, kernel driver {version}")]


def unserved_interfaces(reading: EfaReading, why_not: str) -> list[Line]:
    """Return the EFA interfaces that a driver without efa.enabled leaves to others; `why_not` names another manager."""
    total = len(reading.interfaces)
    if not total:
        return []
    manager = f"; {why_not.partition('; ')[0]}" if why_not else ""
    text = f"efa.enabled is off, so the driver serves none of {words.count(total, 'EFA interface')}{manager}"
    return [ok("EFA", text, "NotInstalled")]


def manager(why_not: str, unread: Sequence[str]) -> list[Line]:
    """Return why the driver stands down, or what could not be read, where another manager may be."""
    if why_not:
        todo = "keep one manager of EFA interfaces on the node (docs/efa.md)"
        return [wrong("EFA", "EfaStandsDown", f"the driver stands down: {why_not}", todo)]
    if unread:
        text = f"whether another program manages the EFA interfaces: cannot read {' and '.join(unread)}"
        return [unknown("EFA", text)]
    return []


def interfaces(reading: EfaReading, raw_slices: Sequence[Wire], node_name: str) -> list[Line]:
    """Return how many EFA interfaces of the host can be used, and why others cannot.

    `raw_slices` are those of dra.net of the node: an interface that this driver published may be gone.
    """
    area, total = "EFA", len(reading.interfaces)
    names_by_reason: dict[str, list[str]] = defaultdict(list)
    for name, interface in sorted(reading.interfaces.items()):
        if interface.problem:
            names_by_reason[interface.problem].append(name)
    usable = total - sum(map(len, names_by_reason.values()))
    if gone_names := sorted(_published_interfaces(raw_slices, node_name) - reading.interfaces.keys()):
        names_by_reason[signals.MISSING] = gone_names
    problem_lines = []
    for reason, interface_names in names_by_reason.items():
        meaning, _, todo = efa.ADVICE[reason].partition("; ")
        head = words.count(len(interface_names), "EFA interface")
        text = f"{head} cannot be used ({reason}: {meaning}): {words.listed(interface_names)}"
        problem_lines.append(wrong(area, "InterfaceUnusable", text, f"{todo} (docs/efa.md)"))
    if not total:
        text = "the host has no EFA interfaces: no PCI function is bound to the kernel driver efa"
        return [*problem_lines, ok(area, text, "NoInterfaces")]
    return [*problem_lines, ok(area, f"{usable} of {words.count(total, 'EFA interface')} of the host can be used")]


def _published_interfaces(raw_slices: Sequence[Wire], node_name: str) -> set[str]:
    """Return the names of the interfaces in slices of this driver."""
    interface_names: set[str] = set()
    for raw_slice in raw_slices:
        slice_view = SliceView.of(raw_slice)
        if core_slices.is_ours(slice_view.metadata.name, node_name, EFA.name):
            interface_names.update(device["name"] for device in slice_view.spec.published)
    return interface_names


def files(checkpoint: Checkpoint | None, boot: str, specified: Collection[str], prepared: Any) -> list[Line]:
    """Return where the checkpoint, the CDI files and the plugin differ; `prepared` are its claims, None if unknown."""
    area, problem_lines = "files", []
    if checkpoint is None:
        if prepared or specified:
            text = f"there is no checkpoint, and {words.count(len(specified), 'CDI file')} of claims"
            todo = "look at the driver's log: it rebuilds the checkpoint"
            problem_lines.append(wrong(area, "CheckpointMissing", text, todo))
        return problem_lines
    if checkpoint.boot_id != boot:
        text = "the checkpoint is of an earlier boot of the node: the driver has not started since"
        return [wrong(area, "CheckpointOld", text, "look at the log of the driver's pod")]
    kept = {uid for uid, claim in checkpoint.claims.items() if not claim.adopted}
    if missing := sorted(kept - set(specified)):
        text = f"no CDI file of {words.count(len(missing), 'prepared claim')}: UID {words.listed(missing)}"
        todo = "the driver writes it within 10 s; if not, look at its log"
        problem_lines.append(wrong(area, "CdiFileMissing", text, todo))
    if extra := sorted(set(specified) - set(checkpoint.claims)):
        text = f"CDI files of {words.count(len(extra), 'claim')} that are not prepared: UID {words.listed(extra)}"
        problem_lines.append(wrong(area, "CdiFileLeft", text, "restart the driver's pod, which removes them"))
    if prepared is not None and (differ := sorted(set(prepared) ^ set(checkpoint.claims))):
        text = (
            f"the plugin and its checkpoint differ in {words.count(len(differ), 'claim')}: UID {words.listed(differ)}"
        )
        problem_lines.append(wrong(area, "ClaimsDiffer", text, "restart the driver's pod"))
    return problem_lines


def runtime(node: Wire | None, configuration: str, folder: str) -> Line:
    """Return whether the container runtime reads the CDI folder, as far as that can be seen from a container."""
    area = "runtime"
    name = KubeNodeView.of(node).status.node_info.container_runtime_version
    todo = f"containerd 1.7: enable_cdi = true and cdi_spec_dirs with {folder} in /etc/containerd/config.toml"
    if re.search(r"^\s*enable_cdi\s*=\s*false", configuration, re.MULTILINE):
        return wrong(area, "CdiOff", "CDI is off in the configuration of containerd", todo)
    listed = re.search(r"^\s*cdi_spec_dirs\s*=\s*\[([^\]]*)\]", configuration, re.MULTILINE)
    if listed is not None and f'"{folder}"' not in listed[1].replace("'", '"'):
        return wrong(area, "CdiFolderUnknown", f"the runtime reads CDI specs from {listed[1]}, not from {folder}", todo)
    if configuration and re.search(r"^\s*enable_cdi\s*=\s*true", configuration, re.MULTILINE):
        return ok(area, f"CDI is on in the configuration of {name or 'the runtime'}")
    version_match = re.match(r"(containerd|cri-o)://v?(\d+)\.(\d+)", name)
    if version_match is not None and (version_match[1] == "cri-o" or int(version_match[2]) >= 2):
        return ok(area, f"{name} has CDI on unless its configuration, which is not visible here, turns it off")
    return unknown(area, f"whether {name or 'the runtime'} has CDI on is not visible from this container", todo)


def published(slices: Sequence[Wire], node: str, state: PluginState | None) -> list[Line]:
    """Return whether the slices have the devices that the plugin publishes."""
    area = "slices"
    specs = [SliceView.of(raw_slice).spec for raw_slice in slices]
    own_specs = [spec for spec in specs if spec.is_ours]
    have = set()
    for spec in own_specs:
        for raw_device in spec.published:
            have.add(str(raw_device.get("name")))
    if state is None:
        return [unknown(area, f"{words.count(len(have), 'device')} in slices; the plugin does not say which it has")]
    if len(have) != state.status.devices or len(own_specs) != state.status.slices:
        text = (
            f"the API server has {len(have)} devices in {len(own_specs)} slices of node {node}, the plugin published "
            f"{state.status.devices} in {state.status.slices}"
        )
        return [wrong(area, "SlicesDiffer", text, "wait a minute and try again; then look at the driver's log")]
    on_node = {device.name for device in state.devices.devices}
    held_names = {device.name for device in state.devices.devices if device.claim_uid}
    whole_devices = {name for name in have if name.startswith(names.DEVICE_PREFIX)}
    only_published = sorted(whole_devices - on_node - held_names)
    healthy = []
    for device in state.devices.devices:
        if device.published and device.health == pb.HEALTH_HEALTHY:
            healthy.append(device.name)
    unpublished = sorted(name for name in healthy if name not in have)
    if unpublished:
        text = f"healthy devices are not in the slices: {words.devices(unpublished)}"
        return [wrong(area, "NotPublished", text, "look at the driver's log")]
    if only_published:
        text = f"published and not on the node, which is right only while a claim has them: {only_published}"
        return [unknown(area, text)]
    return [ok(area, f"{words.count(len(have), 'device')} in the API server, as published")]


def clock(server: datetime.datetime | None, now: datetime.datetime) -> Line:
    """Return whether this node's clock is that of the API server; the header has whole seconds."""
    if server is None:
        return unknown("clock", "the API server's answer has no time")
    ahead = (now - server).total_seconds()
    if abs(ahead) > SKEW_S:
        way = "ahead of" if ahead > 0 else "behind"
        text = f"this node's clock is {abs(ahead):.0f} s {way} the API server's"
        return wrong("clock", "ClockWrong", text, "correct the clock of the node (chrony): tokens expire by it")
    return ok("clock", f"within {SKEW_S:g} s of the API server's")


def same_devices(claim: PreparedClaim, api_claim: wire.ResourceClaim, node: str) -> bool:
    """Return whether a prepared claim has the devices of this node that the API server has allocated to it."""
    allocated = set()
    for device in wire.allocated_devices(api_claim):
        if device.pool == node:
            allocated.add(device.device)
    return allocated == {device.device for device in claim.devices}


def claims(number: int, missing: Sequence[str], differing: Sequence[str]) -> Line:
    """Return whether the prepared claims are those of the API server."""
    if missing:
        text = f"{words.count(len(missing), 'prepared claim')} not in the API server: {words.listed(missing)}"
        return wrong("claims", "OrphanedClaim", text, f"{_ORPHANS}; it is normal while their pods end")
    if differing:
        text = f"prepared with other devices than the API server has allocated: {words.listed(differing)}"
        return wrong("claims", "ClaimDiffers", text, "delete the pods of these claims, so that they are prepared again")
    return ok("claims", f"{words.count(number, 'prepared claim')}, each in the API server with its devices")
