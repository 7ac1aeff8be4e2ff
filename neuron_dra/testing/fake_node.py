"""A simulated Neuron node: the files that the kernel driver, udev and DMI make, below a folder, quirks included.

The plugin runs on it unchanged (`--host-root`), and so does the test bed, which binds these files over its nodes.
Standard library only. Facts: aws-neuron-driver, neuron_cdev.c and neuron_sysfs_metrics.c (neuron.md 1).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shutil
import stat
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from neuron_dra.core import catalogue
from neuron_dra.core.catalogue import InstanceType, Platform
from neuron_dra.errors import NeuronDraError

DEFAULT_DRIVER_VERSION = "2.30.2.0"
DEFAULT_MAJOR = 243  # what a real trn1.2xlarge had; the number is dynamic
DEFAULT_SERVER_ID = "5a7b1c2d3e4f6070"

CLASS = "sys/class/neuron_device"
DEVICES = "sys/devices/virtual/neuron_device"
DMI = "sys/devices/virtual/dmi/id"
BOOT_ID = "proc/sys/kernel/random/boot_id"

ECC_COUNTERS = ("sram_ecc_uncorrected", "mem_ecc_uncorrected", "mem_ecc_repairable_uncorrected")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node stands in its UltraServer: `node_id` 0 to 3 of `nodes`, and the ids that all share."""

    node_id: int
    server_id: str
    nodes: int = 4
    capacity_block_id: str = ""


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
) -> FakeNode:
    """Write a node below `root` and return it; what is there of an older one is removed first.

    UltraServer types without `node_id` are single nodes, as after a failed election. Device files are character
    devices for root and plain files for anybody else. Raises NeuronDraError for an unknown type.
    """
    spec = catalogue.lookup(instance_type)
    if spec is None:
        known = ", ".join(known.name for known in catalogue.all_types())
        raise NeuronDraError(f"instance type {instance_type} is not in the catalogue; it has {known}")
    if node_id is not None and not spec.whole_node:
        raise NeuronDraError(f"--node-id is for UltraServer types, {instance_type} is none; leave it out")
    if node_id is not None and not 0 <= node_id <= 3:
        raise NeuronDraError(f"--node-id {node_id}: write 0, 1, 2 or 3")
    root = Path(root)
    for part in (CLASS, DEVICES, "sys/class/dmi", DMI, "sys/module/neuron", "dev"):
        shutil.rmtree(root / part, ignore_errors=True)
    place = Place(node_id, _server_id(server_id), 4, capacity_block_id or "") if node_id is not None else None
    _put(root / DMI / "product_name", instance_type + "\n")
    _put(root / DMI / "sys_vendor", "Amazon EC2\n")
    _link(root / "sys/class/dmi/id", "../../devices/virtual/dmi/id")
    _put(root / "sys/module/neuron/version", driver_version + "\n")
    _put(root / BOOT_ID, (boot_id or str(uuid.uuid4())) + "\n")
    (root / CLASS).mkdir(parents=True, exist_ok=True)
    (root / "dev").mkdir(parents=True, exist_ok=True)
    node = FakeNode(root)
    for device_id in range(spec.device_count):
        node.write_device(spec, device_id, driver_version, major)
    node.write_class_files(spec, place, driver_version)
    return node


def _server_id(text: str | None) -> str:
    value = (text or DEFAULT_SERVER_ID).lower()
    if len(value) > 16 or any(digit not in "0123456789abcdef" for digit in value):
        raise NeuronDraError(f"--server-id {text}: write at most 16 hex digits")
    return value.rjust(16, "0")


def version_of(driver_version: str) -> tuple[int, ...]:
    """Return a kernel driver's version as numbers, for comparing; parts that are none count as 0."""
    return tuple(int(part) if part.isdigit() else 0 for part in driver_version.split("."))


class FakeNode:
    """A node written by `write`, or one found on disk: `FakeNode(root)`. Its methods break and repair it."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    @property
    def instance_type(self) -> str:
        """The type it was written as."""
        return (self.root / DMI / "product_name").read_text().strip()

    @property
    def driver_version(self) -> str:
        """The kernel driver's version."""
        return (self.root / "sys/module/neuron/version").read_text().strip()

    def device_ids(self) -> list[int]:
        """The devices in the class folder."""
        names = [entry.name for entry in (self.root / CLASS).iterdir()]
        return sorted(int(name[6:]) for name in names if name.startswith("neuron") and name[6:].isdigit())

    def folder(self, device_id: int) -> Path:
        """The sysfs folder of one device."""
        return self.root / DEVICES / f"neuron{device_id}"

    # Writing.

    def write_device(self, spec: InstanceType, device_id: int, driver_version: str, major: int) -> None:
        """Write one device as the driver registers it."""
        version = version_of(driver_version)
        folder = self.folder(device_id)
        readable = 0o444 if version >= (2, 28) else 0o400
        _put(folder / "dev", f"{major}:{device_id}\n")
        _put(folder / "uevent", f"MAJOR={major}\nMINOR={device_id}\nDEVNAME=neuron{device_id}\n")
        _put(folder / "core_count", str(spec.cores_per_device), readable)  # no newline: a quirk that tools rely on
        neighbours = spec.links[device_id] if spec.links else ()
        _put(folder / "connected_devices", ", ".join(map(str, neighbours)) + "\n", readable)
        _put(folder / "reset", "1\n", 0o600)
        device_arch, core_arch, family, device_name = spec.arch
        _put(folder / "info/architecture/arch_type", device_arch + "\n")
        _put(folder / "info/architecture/instance_type", family + "\n")
        _put(folder / "info/architecture/device_name", device_name + "\n")
        _put(folder / "info/notify_delay", "-1\n", 0o644)
        if spec.generation != "inf1":
            serial = hashlib.sha256(f"{self.root}/{device_id}".encode()).hexdigest()[:16]
            _put(folder / "info/serial_number", serial + "\n")
            for counter in ECC_COUNTERS:
                _put(folder / "stats/hardware" / counter, "0\n", 0o644)
        if version >= (2, 28) and spec.generation in ("trn2", "trn3"):
            status = folder / "stats/hardware/health_status"
            for name in ("hbm_ecc_err_count", "repairable_hbm_ecc_err_count", "sram_ecc_err_count", "hw_error_event"):
                _put(status / name, "0\n")
            if version >= (2, 30, 2):
                _put(status / "unhealthy_components", "\n")
                _put(status / "healthcheck_heartbeat", "1\n")
        _put(folder / "stats/power/utilization", "POWER_STATUS_NO_DATA,0,0.00,0.00,0.00\n")
        for core in range(spec.cores_per_device):
            _put(folder / f"neuron_core{core}/info/architecture/arch_type", core_arch + "\n")
        _link(self.root / CLASS / f"neuron{device_id}", f"../../devices/virtual/neuron_device/neuron{device_id}")
        self._make_device_file(device_id, major)

    def _make_device_file(self, device_id: int, major: int) -> None:
        path = self.root / "dev" / f"neuron{device_id}"
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, device_id))
            os.chmod(path, 0o666)
        except (PermissionError, AttributeError, OSError):
            path.write_text("")

    def write_class_files(self, spec: InstanceType, place: Place | None, driver_version: str) -> None:
        """Write the class attributes: older drivers have the Trn2 ones on every machine, newer ones per platform."""
        folder = self.root / CLASS
        old = version_of(driver_version) <= (2, 25, 4, 0)
        if spec.platform is Platform.ULTRASERVER or (old and spec.platform is Platform.STANDARD):
            for name, text in _trn2_files(place).items():
                _put(folder / name, text + "\n")
        elif spec.platform in (Platform.PDS, Platform.MAX):
            for name, text in _trn3_files(place).items():
                _put(folder / name, text + "\n")
        if spec.platform is Platform.STANDARD and old:
            _put(folder / "ultraserver_mode", "\n")
        if not old:
            _put(folder / "hbm_7200_capable", "0\n")
            _put(folder / "current_perf_profile", "0\n")

    # Breaking and repairing.

    def break_link(self, one: int, other: int) -> None:
        """Take a link down; the driver then lists it on neither end."""
        self.set_link(one, other, up=False)
        self.set_link(other, one, up=False)

    def repair_link(self, one: int, other: int) -> None:
        """Bring a link up again, at the place where the driver lists it."""
        self.set_link(one, other, up=True)
        self.set_link(other, one, up=True)

    def set_link(self, one: int, other: int, *, up: bool) -> None:
        """Change what one end alone reports."""
        spec = catalogue.lookup(self.instance_type)
        path = self.folder(one) / "connected_devices"
        text = path.read_text().strip()
        present = {int(part) for part in text.split(",") if part.strip()}
        present = present | {other} if up else present - {other}
        order = spec.links[one] if spec and spec.links else tuple(sorted(present))
        listed = [i for i in order if i in present] + sorted(present - set(order))
        _put(path, ", ".join(map(str, listed)) + "\n")

    def remove_device(self, device_id: int) -> None:
        """Make a device disappear, from the class, from sysfs and from /dev."""
        (self.root / CLASS / f"neuron{device_id}").unlink(missing_ok=True)
        hidden = self._hidden(device_id)
        if self.folder(device_id).exists():
            hidden.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(hidden, ignore_errors=True)
            shutil.move(self.folder(device_id), hidden)
        (self.root / "dev" / f"neuron{device_id}").unlink(missing_ok=True)

    def restore_device(self, device_id: int) -> None:
        """Bring a removed device back as it was."""
        hidden = self._hidden(device_id)
        if hidden.exists():
            shutil.move(hidden, self.folder(device_id))
        major = int((self.folder(device_id) / "dev").read_text().split(":")[0])
        link = self.root / CLASS / f"neuron{device_id}"
        if not link.is_symlink():
            _link(link, f"../../devices/virtual/neuron_device/neuron{device_id}")
        if not (self.root / "dev" / f"neuron{device_id}").exists():
            self._make_device_file(device_id, major)

    def _hidden(self, device_id: int) -> Path:
        return self.root / DEVICES / ".removed" / f"neuron{device_id}"

    def busy(self, on: bool = True) -> None:
        """Let the class attributes read `busy`, as while the election runs; off brings their values back."""
        folder = self.root / CLASS
        for name in ("node_id_2", "node_id_4", "node_id", "node_cnt", "ultraserver_mode"):
            path, kept = folder / name, folder / f".{name}"
            if on and path.exists() and not kept.exists():
                _put(kept, path.read_text())
                _put(path, "busy\n")
            elif not on and kept.exists():
                _put(path, kept.read_text())
                kept.unlink()

    def set_modes(self, modes: str) -> None:
        """Set `ultraserver_mode`, such as "1,3,4"."""
        _put(self.root / CLASS / "ultraserver_mode", modes + "\n")

    def add_ecc(self, device_id: int, counter: str = "mem_ecc_uncorrected", count: int = 1) -> None:
        """Raise an error counter; a negative count clears."""
        path = self.folder(device_id) / "stats/hardware" / counter
        if counter not in ECC_COUNTERS or not path.exists():
            raise NeuronDraError(f"neuron{device_id} has no counter {counter}; it has {', '.join(ECC_COUNTERS)}")
        _put(path, f"{max(0, int(path.read_text()) + count)}\n", 0o644)

    def set_reset_state(self, device_id: int, state: int) -> None:
        """Set what `reset` reads: 0 resetting, 1 ready, 2 invalid."""
        _put(self.folder(device_id) / "reset", f"{state}\n", 0o600)

    def set_unhealthy_components(self, device_id: int, components: str) -> None:
        """Set the comma-separated list of sick components; empty is healthy."""
        _put(self.folder(device_id) / "stats/hardware/health_status/unhealthy_components", components + "\n")

    def set_boot_id(self, boot_id: str | None = None) -> str:
        """Set the boot id, a fresh one by default, and return it."""
        value = boot_id or str(uuid.uuid4())
        _put(self.root / BOOT_ID, value + "\n")
        return value


def _trn2_files(place: Place | None) -> dict[str, str]:
    if place is None:
        zeros = "0" * 16
        return {
            "node_id_2": "-1",
            "node_id_4": "-1",
            "server_id_2": zeros,
            "server_id_4": zeros,
            "ultraserver_mode": "4",
        }
    pair = int(place.server_id, 16) - (1 if place.node_id >= 2 else 0)
    return {
        "node_id_2": str(place.node_id % 2),
        "node_id_4": str(place.node_id),
        "server_id_2": f"{pair:016x}",
        "server_id_4": place.server_id,
        "ultraserver_mode": "1,3,4",
    }


def _trn3_files(place: Place | None) -> dict[str, str]:
    if place is None:
        return {"node_id": "-1", "node_cnt": "1", "reservation_id": "0" * 16, "ultraserver_mode": "4"}
    return {
        "node_id": str(place.node_id),
        "node_cnt": str(place.nodes),
        "reservation_id": place.server_id,
        "ultraserver_mode": "1,3,4",
    }


def _put(path: Path, text: str, mode: int = 0o444) -> None:
    """Write a file as sysfs shows it: in place when it is there, so that what is bound to it sees the change."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        with contextlib.suppress(PermissionError):
            path.chmod(mode | 0o200)
    path.write_text(text)
    path.chmod(mode)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    path.symlink_to(target)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra fake-node`."""
    parser.add_argument("--instance-type", required=True, help="such as trn2.48xlarge")
    parser.add_argument("--root", required=True, type=Path, help="folder to write below")
    parser.add_argument("--node-id", type=int, help="number of the node in its UltraServer, 0 to 3")
    parser.add_argument("--server-id", help="id that the UltraServer's nodes share, 16 hex digits")
    parser.add_argument("--capacity-block-id", help="id of the UltraServer's capacity block; printed as a node label")
    parser.add_argument("--driver-version", default=DEFAULT_DRIVER_VERSION, help="version of the kernel driver")
    parser.add_argument(
        "--break",
        dest="breaks",
        action="append",
        default=[],
        metavar="WHAT",
        help="link:A,B device:N busy ecc:N[,COUNTER] reset:N components:N,NAME modes:1,3,4; on a tree that is there",
    )


def run(args: argparse.Namespace) -> int:
    """Write the node, or break the one that is there, and say what was done."""
    if args.breaks:
        node = FakeNode(args.root)
        for what in args.breaks:
            apply_break(node, what)
            print(f"{args.root}: broke {what}")
        return 0
    write(
        args.root,
        args.instance_type,
        node_id=args.node_id,
        server_id=args.server_id,
        capacity_block_id=args.capacity_block_id,
        driver_version=args.driver_version,
    )
    spec = catalogue.lookup(args.instance_type)
    count = spec.device_count if spec else 0
    print(f"{args.root}: {args.instance_type}, {count} device{'s' if count != 1 else ''}, driver {args.driver_version}")
    if args.capacity_block_id:
        print(f"label the Node: topology.k8s.aws/capacity-block-id={args.capacity_block_id}")
    return 0


def apply_break(node: FakeNode, what: str) -> None:
    """Do what one `--break` says. Raises NeuronDraError if it says nothing sensible."""
    kind, _, rest = what.partition(":")
    parts = [part for part in rest.split(",") if part]
    try:
        if kind == "link":
            node.break_link(int(parts[0]), int(parts[1]))
        elif kind == "device":
            node.remove_device(int(parts[0]))
        elif kind == "busy":
            node.busy()
        elif kind == "ecc":
            node.add_ecc(int(parts[0]), parts[1] if len(parts) > 1 else "mem_ecc_uncorrected")
        elif kind == "reset":
            node.set_reset_state(int(parts[0]), 2)
        elif kind == "components":
            node.set_unhealthy_components(int(parts[0]), ",".join(parts[1:]))
        elif kind == "modes":
            node.set_modes(rest)
        else:
            raise ValueError(kind)
    except (ValueError, IndexError, FileNotFoundError) as err:
        raise NeuronDraError(f"--break {what}: {err}; see --help for what can be broken") from err


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(_parser)
    sys.exit(run(_parser.parse_args()))
