"""A simulated Neuron node: a folder with the files that the kernel driver, udev and DMI create, including quirks.

The plugin runs on it unmodified (`--host-root`), and the test bed mounts these files on its nodes. Standard library
only. Facts: aws-neuron-driver, neuron_cdev.c and neuron_sysfs_metrics.c.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import uuid
from collections.abc import Collection
from pathlib import Path

from neuron_dra.core import catalogue
from neuron_dra.core.catalogue import InstanceType, Platform
from neuron_dra.emulation import simulated_pci, simulated_tree
from neuron_dra.emulation.simulated_files import (
    TRANSITIONAL,
    SimulatedPlace,
    change,
    make_link,
    put,
)
from neuron_dra.emulation.simulated_tree import ECC_COUNTERS
from neuron_dra.errors import NeuronDraError

DEFAULT_DRIVER_VERSION = "2.30.2.0"
DEFAULT_MAJOR = 243  # seen on a trn1.2xlarge; the kernel assigns it dynamically
DEFAULT_SERVER_ID = "5a7b1c2d3e4f6070"

CLASS = "sys/class/neuron_device"
DEVICES = "sys/devices/virtual/neuron_device"
DMI = "sys/devices/virtual/dmi/id"
MODULE = "sys/module/neuron"
INITSTATE = f"{MODULE}/initstate"
BOOT_ID = "proc/sys/kernel/random/boot_id"

UNLOADED = ".unloaded"
"""Has what the driver shows, while it is not loaded."""

WRITTEN = ".fake-node"
"""Written last: marks a complete node, and holds its instance type and driver version."""

COMPONENTS = (
    "hbm",
    "sram",
    "firmware_service_api",
    "firmware_service_processor",
    "link_intraserver",
    "link_host",
    "link_efa",
    "link_interserver",
    "link_switch",
    "axi_fabric",
)
"""The values of `unhealthy_components`."""

RESET_INVALID = 2

_ONES = {"sram_ecc_uncorrected": "65535", "mem_ecc_uncorrected": "30"}
"""What the counters of a device read whose registers are all ones."""

_DRIVER_VERSION = re.compile(r"[0-9][0-9A-Za-z.+~_-]{0,63}")


def write(
    root: Path | str,
    instance_type: str,
    *,
    node_id: int | None = None,
    server_id: str | None = None,
    capacity_block_id: str | None = None,
    driver_version: str = DEFAULT_DRIVER_VERSION,
    boot_id: str | None = None,
    major: int = DEFAULT_MAJOR,
    nodes: int = 4,
    missing: Collection[int] = (),
    statistics: bool = False,
) -> SimulatedNode:
    """Write a node below `root` and return it; an older simulated node there is removed first.

    UltraServer types without `node_id` are single nodes, as after a failed election; with it they are one of `nodes`.
    The devices `missing` were not found when the driver loaded. `statistics` of all cores are 13,000 files on a Trn2.
    Device files are character devices if this runs as root, plain files otherwise.

    Raises NeuronDraError for an unknown type, for a `root` of a real machine, and for one that is not writable.
    """
    spec = catalogue.lookup(instance_type)
    if spec is None:
        near = catalogue.nearest(instance_type)
        if near:
            listed_types = ""
        else:
            listed_types = "; it has " + ", ".join(catalogue_type.name for catalogue_type in catalogue.all_types())
        raise NeuronDraError(f"instance type {instance_type} is not in the catalogue{near}{listed_types}")
    if node_id is not None and not spec.whole_node:
        raise NeuronDraError(f"--node-id: {instance_type} is not an UltraServer type; leave it out")
    if nodes not in (2, 4):
        raise NeuronDraError(f"--nodes {nodes}: write 2 or 4")
    if node_id is not None and not 0 <= node_id < nodes:
        raise NeuronDraError(f"--node-id {node_id}: write " + ("0 or 1" if nodes == 2 else "0, 1, 2 or 3"))
    if server_id is not None and node_id is None:
        raise NeuronDraError("--server-id is for nodes of an UltraServer; add --node-id")
    if unknown := sorted(set(missing) - set(simulated_tree.device_ids(spec, driver_version))):
        listed = ", ".join(map(str, unknown))
        raise NeuronDraError(f"--missing {listed}: {instance_type} has {spec.device_count} devices, from 0 on")
    if not _DRIVER_VERSION.fullmatch(driver_version):
        raise NeuronDraError(f"--driver-version {driver_version}: write a version such as {DEFAULT_DRIVER_VERSION}")
    root = Path(root)
    if node_id is not None:
        place = SimulatedPlace(node_id, _server_id(server_id, spec), nodes, capacity_block_id or "")
    else:
        place = None
    try:
        _clear(root)
        node = SimulatedNode(root)
        _write_host(root, instance_type, boot_id or str(uuid.uuid4()))
        _write_driver(node, spec, place, driver_version, major, missing=missing, statistics=statistics)
        put(root / WRITTEN, f"{instance_type} {driver_version}\n", 0o644)
        return node
    except OSError as err:
        raise NeuronDraError(f"{err.filename or root}: {err.strerror}; choose a writable folder") from err


def _clear(root: Path) -> None:
    """Remove an older simulated node. Raises NeuronDraError for the root of a real machine."""
    if root.resolve() == Path("/") or (root / "dev/null").exists() or (root / "proc/self").exists():
        raise NeuronDraError(f"{root} is the root of a real machine; choose an empty folder for the simulated node")
    (root / WRITTEN).unlink(missing_ok=True)
    for part in (CLASS, DEVICES, "sys/class/dmi", DMI, MODULE, simulated_pci.PCI, UNLOADED):
        shutil.rmtree(root / part, ignore_errors=True)
    for path in (root / "dev").glob("neuron*"):
        path.unlink()


def _write_host(root: Path, instance_type: str, boot_id: str) -> None:
    """Write what does not depend on the driver."""
    put(root / DMI / "product_name", instance_type + "\n")
    put(root / DMI / "sys_vendor", "Amazon EC2\n")
    make_link(root / "sys/class/dmi/id", "../../devices/virtual/dmi/id")
    put(root / BOOT_ID, boot_id + "\n")
    (root / "dev").mkdir(parents=True, exist_ok=True)


def _write_driver(
    node: SimulatedNode,
    spec: InstanceType,
    place: SimulatedPlace | None,
    driver_version: str,
    major: int,
    *,
    missing: Collection[int],
    statistics: bool,
) -> None:
    """Write what a loaded driver shows."""
    root = node.root
    for path, text, mode in simulated_tree.module_files(driver_version):
        put(root / MODULE / path, text, mode)
    for folder in simulated_tree.MODULE_FOLDERS:
        (root / MODULE / folder).mkdir(exist_ok=True)
    make_link(root / MODULE / "drivers/pci:neuron-driver", "../../../bus/pci/drivers/neuron-driver")
    (root / CLASS).mkdir(parents=True, exist_ok=True)
    ids = [device_id for device_id in simulated_tree.device_ids(spec, driver_version) if device_id not in missing]
    for device_id in ids:
        node.write_device(spec, device_id, driver_version, major, device_count=len(ids), statistics=statistics)
    node.write_class_files(spec, place, driver_version)
    simulated_pci.write(root, spec)
    if place is not None and place.node_id == 0 and 0 in ids:
        change(node.folder(0) / "info/serial_number", place.server_id + "\n")  # the server's id is derived from it


def _server_id(text: str | None, spec: InstanceType) -> str:
    value = DEFAULT_SERVER_ID if text is None else text.lower()
    if not re.fullmatch("[0-9a-f]{1,16}", value):
        raise NeuronDraError(f"--server-id {text}: write at most 16 hex digits")
    # The id of a pair of Trn2 nodes is one less, and zero means no UltraServer; of PDS nodes 1 is the driver's default.
    if int(value, 16) < (2 if spec.platform is Platform.ULTRASERVER else 1):
        raise NeuronDraError(f"--server-id {text} means no server; write one above 1, such as {DEFAULT_SERVER_ID}")
    return value.rjust(16, "0")


class SimulatedNode:
    """A simulated node on disk. Its methods break and repair it."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    @classmethod
    def found(cls, root: Path | str) -> SimulatedNode:
        """Return the complete simulated node below `root`. Raises NeuronDraError if there is none."""
        if not (Path(root) / WRITTEN).is_file():
            raise NeuronDraError(f"{root} has no simulated node; write one first: neuron-dra fake-node")
        return cls(root)

    @property
    def instance_type(self) -> str:
        """The node's instance type."""
        return (self.root / DMI / "product_name").read_text().strip()

    @property
    def driver_version(self) -> str:
        """The kernel driver's version, also while it is not loaded."""
        return (self.root / WRITTEN).read_text().split()[1]

    @property
    def boot_id(self) -> str:
        """The id of this boot."""
        return (self.root / BOOT_ID).read_text().strip()

    def device_ids(self) -> list[int]:
        """Return the ids of the devices in the class folder."""
        names = [path.name for path in (self.root / CLASS).iterdir()]
        ids = []
        for name in names:
            if name.startswith("neuron") and name[6:].isdigit():
                ids.append(int(name[6:]))
        return sorted(ids)

    def folder(self, device_id: int) -> Path:
        """Return the sysfs folder of one device."""
        return self.root / DEVICES / f"neuron{device_id}"

    # Writing

    def write_device(
        self,
        spec: InstanceType,
        device_id: int,
        driver_version: str,
        major: int,
        *,
        device_count: int,
        statistics: bool = False,
    ) -> None:
        """Write one device's files as the driver does when it registers one of `device_count` devices."""
        folder = self.folder(device_id)
        serial = hashlib.sha256(f"{self.root}/{device_id}".encode()).hexdigest()[:16]
        for path, text, mode in simulated_tree.device_files(
            spec, device_id, driver_version, major, serial, statistics=statistics
        ):
            put(folder / path, text, mode)
        readable = 0o444 if simulated_tree.version_of(driver_version) >= (2, 28) else 0o400
        put(folder / "connected_devices", simulated_tree.connected_devices(spec, device_id, device_count), readable)
        make_link(folder / "subsystem", "../../../../class/neuron_device")
        for empty in ("power", *(f"neuron_core{core}/stats" for core in range(spec.cores_per_device))):
            (folder / empty).mkdir(parents=True, exist_ok=True)
        make_link(self.root / CLASS / f"neuron{device_id}", f"../../devices/virtual/neuron_device/neuron{device_id}")
        self._make_device_file(device_id, major)

    def _make_device_file(self, device_id: int, major: int) -> None:
        path = self.root / "dev" / f"neuron{device_id}"
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, device_id))
            os.chmod(path, 0o666)
        except (AttributeError, OSError):  # not root, not permitted, or not supported by the system
            path.write_text("")

    def write_class_files(self, spec: InstanceType, place: SimulatedPlace | None, driver_version: str) -> None:
        """Write the class files as the driver does when it has loaded with the devices that are there."""
        folder = self.root / CLASS
        for name, text in simulated_tree.class_files(spec, place, driver_version, self.device_ids()).items():
            self._kept(name).unlink(missing_ok=True)
            put(folder / name, text + "\n")

    # Faults

    def break_link(self, device_id: int, linked_id: int) -> None:
        """Take a link down, so that the driver lists it on neither end. Raises NeuronDraError for an unknown link."""
        self._set_both_ends(device_id, linked_id, up=False)

    def repair_link(self, device_id: int, linked_id: int) -> None:
        """Bring a link up again, in its place of the driver's list."""
        self._set_both_ends(device_id, linked_id, up=True)

    def _set_both_ends(self, device_id: int, linked_id: int, *, up: bool) -> None:
        self._link_end(device_id, linked_id)
        self._link_end(linked_id, device_id)  # check both ends before writing either
        self.set_link(device_id, linked_id, up=up)
        self.set_link(linked_id, device_id, up=up)

    def set_link(self, device_id: int, linked_id: int, *, up: bool) -> None:
        """Change what one end of a link reports. Raises NeuronDraError for an unknown link or missing device."""
        path, order = self._link_end(device_id, linked_id)
        present = {int(part) for part in path.read_text().split(",") if part.strip()}
        present = present | {linked_id} if up else present - {linked_id}
        change(path, ", ".join(str(i) for i in order if i in present) + "\n")

    def _link_end(self, device_id: int, linked_id: int) -> tuple[Path, tuple[int, ...]]:
        spec = catalogue.lookup(self.instance_type)
        order = spec.links[device_id] if spec and 0 <= device_id < len(spec.links) else ()
        if linked_id not in order:
            raise NeuronDraError(
                f"neuron{device_id} and neuron{linked_id} of {self.instance_type} have no link; "
                + (f"neuron{device_id} has links to {', '.join(map(str, order))}" if order else "choose another one")
            )
        return self.device_path(device_id, "connected_devices"), order

    def remove_device(self, device_id: int) -> None:
        """Remove a device from the class, from sysfs and from /dev."""
        self.device_path(device_id, "dev")
        (self.root / CLASS / f"neuron{device_id}").unlink(missing_ok=True)
        hidden = self._hidden(device_id)
        if self.folder(device_id).exists():
            hidden.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(hidden, ignore_errors=True)
            shutil.move(self.folder(device_id), hidden)
        (self.root / "dev" / f"neuron{device_id}").unlink(missing_ok=True)

    def remove_device_file(self, device_id: int) -> None:
        """Remove a device's file from /dev, as a mistake in udev does; `restore_device` makes it again."""
        self.device_path(device_id, "dev")
        (self.root / "dev" / f"neuron{device_id}").unlink(missing_ok=True)

    def restore_device(self, device_id: int) -> None:
        """Restore a removed device, or its file."""
        hidden = self._hidden(device_id)
        if hidden.exists():
            shutil.move(hidden, self.folder(device_id))
            with contextlib.suppress(OSError):  # other removed devices
                hidden.parent.rmdir()
        self.device_path(device_id, "dev")
        major = int((self.folder(device_id) / "dev").read_text().split(":")[0])
        link = self.root / CLASS / f"neuron{device_id}"
        if not link.is_symlink():
            make_link(link, f"../../devices/virtual/neuron_device/neuron{device_id}")
        if not (self.root / "dev" / f"neuron{device_id}").exists():
            self._make_device_file(device_id, major)

    def _hidden(self, device_id: int) -> Path:
        return self.root / DEVICES / ".removed" / f"neuron{device_id}"

    def busy(self, on: bool = True) -> None:
        """Make the class attributes read as during the election; `on` False restores their values."""
        folder = self.root / CLASS
        if not (folder / "ultraserver_mode").exists():
            raise NeuronDraError(f"{self.instance_type} has no UltraServer files")
        for name, text in TRANSITIONAL.items():
            path, kept = folder / name, self._kept(name)
            if on and path.exists() and not kept.exists():
                kept.write_text(path.read_text())
                change(path, text + "\n")
            elif not on and kept.exists():
                change(path, kept.read_text())
                kept.unlink()

    def set_modes(self, modes: str) -> None:
        """Set `ultraserver_mode`, such as "1,3,4". While the node is busy, the value takes effect afterwards."""
        path = self.root / CLASS / "ultraserver_mode"
        if not path.exists():
            raise NeuronDraError(f"{self.instance_type} has no UltraServer modes")
        if not re.fullmatch("([1-4](,[1-4])*)?", modes):
            raise NeuronDraError(f"modes {modes}: write numbers from 1 to 4, separated by commas, such as 1,3,4")
        kept = self._kept("ultraserver_mode")
        change(kept if kept.exists() else path, modes + "\n")

    def _kept(self, name: str) -> Path:
        return self.root / CLASS / f".{name}"

    def device_path(self, device_id: int, name: str) -> Path:
        """Return the path of a device's file. Raises NeuronDraError if it does not exist."""
        path = self.folder(device_id) / name
        if not path.exists():
            moved = self.folder(device_id).glob(f"**/{path.name}")  # of emulation/moved_layout
            copies = {"neuron_core0", "mirror"}
            path = next((candidate for candidate in moved if copies.isdisjoint(candidate.parts)), path)
        if not path.exists():
            raise NeuronDraError(f"{self.root} has no {name} of neuron{device_id}; {self._what_it_has()}")
        return path

    def _what_it_has(self) -> str:
        ids = self.device_ids()
        if not ids:
            return "it has no devices"
        if len(ids) == 1:
            return f"it has neuron{ids[0]}"
        return f"it has neuron{ids[0]} to neuron{ids[-1]}"

    def add_ecc(self, device_id: int, counter: str = "mem_ecc_uncorrected", count: int = 1) -> None:
        """Add to an error counter; a negative count subtracts, down to 0."""
        if counter not in ECC_COUNTERS:
            raise NeuronDraError(f"{counter} is not a counter; write {', '.join(ECC_COUNTERS)}")
        path = self.device_path(device_id, f"stats/hardware/{counter}")
        change(path, f"{max(0, int(path.read_text()) + count)}\n")

    def set_reset_state(self, device_id: int, state: int) -> None:
        """Set the value of `reset`: 0 resetting, 1 ready, 2 invalid after a failed reset, which each core counts."""
        change(self.device_path(device_id, "reset"), f"{state}\n")
        if state == RESET_INVALID:
            for count in self.folder(device_id).glob("neuron_core*/stats/other_info/reset_fail_count/*"):
                change(count, f"{int(count.read_text()) + 1}\n")

    def stop_firmware(self, device_id: int, *, all_ones: bool = False) -> None:
        """Let a device's firmware not answer: no serial number, and counters of 0; `reset` stays as it was.

        With `all_ones`, the device is not on the bus any more, and every read of it returns ones.
        """
        serial = self.device_path(device_id, "info/serial_number")
        kept = serial.with_name(f".{serial.name}")
        if not kept.exists():
            put(kept, serial.read_text(), 0o600)
        change(serial, "f" * 16 + "\n" if all_ones else "\n")
        for counter in ECC_COUNTERS:
            text = _ONES.get(counter, "0") if all_ones else "0"
            change(self.device_path(device_id, f"stats/hardware/{counter}"), f"{text}\n")

    def start_firmware(self, device_id: int) -> None:
        """Let a device's firmware answer again; its counters begin at 0."""
        serial = self.device_path(device_id, "info/serial_number")
        kept = serial.with_name(f".{serial.name}")
        if kept.exists():
            change(serial, kept.read_text())
            kept.unlink()
            for counter in ECC_COUNTERS:
                change(self.device_path(device_id, f"stats/hardware/{counter}"), "0\n")

    def set_unhealthy_components(self, device_id: int, components: str) -> None:
        """Set the comma-separated list of failed components; empty is healthy.

        The file exists since driver 2.30.2.
        """
        unknown = []
        for name in components.split(","):
            if name and name not in COMPONENTS:
                unknown.append(name)
        if unknown:
            raise NeuronDraError(f"{', '.join(unknown)} is not a component; write {', '.join(COMPONENTS)}")
        self.write_unhealthy_components(device_id, components + "\n")

    def write_unhealthy_components(self, device_id: int, text: str) -> None:
        """Write any text to the list of failed components, as an unknown kernel driver might."""
        change(self.device_path(device_id, "stats/hardware/health_status/unhealthy_components"), text)

    def set_boot_id(self, boot_id: str | None = None) -> str:
        """Set the boot id, by default a new random one, and return it."""
        value = boot_id or str(uuid.uuid4())
        put(self.root / BOOT_ID, value + "\n")
        return value
