"""Simulated EFA interfaces: PCI functions as the kernel modules efa and ib_uverbs show them in sysfs and /dev.

    tree = EfaTree.write(root, "trn1.32xlarge")
    tree.renumber(4)  # the module was loaded again

As root it creates character devices in dev/infiniband, and plain files otherwise. libibverbs lists the interfaces of a
tree too, with SYSFS_PATH. The paths of trn1 are those of the
published capture (10:19.0 is below pci0000:10). On trn2 and trn3 the interfaces are behind PCIe switches in pairs; the
addresses of the switches are made up.

Links are relative: the test bed shows these folders as a node's /sys.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuron_dra.core import catalogue
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.numa import numa_nodes
from neuron_dra.emulation.simulated_files import make_link
from neuron_dra.errors import NeuronDraError

DEVICES: Final = "sys/devices"
BUS: Final = "sys/bus/pci/devices"
DRIVER: Final = "sys/bus/pci/drivers/efa"
RDMA_CLASS: Final = "sys/class/infiniband"
VERBS_CLASS: Final = "sys/class/infiniband_verbs"
FILES: Final = "dev/infiniband"
UVERBS_MAJOR: Final = 231
FIRST_MINOR: Final = 192
RDMA_CM: Final = "rdma_cm"
SUBSYSTEMS: Final = {"trn1": "0xefa1", "trn2": "0xefa2", "trn3": "0xefa3"}


def rdma_name(function: str) -> str:
    """Return the name that udev gives: 0000:10:19.0 is rdmap16s25."""
    _, bus, slot = function.split(".")[0].split(":")
    return f"rdmap{int(bus, 16)}s{int(slot, 16)}"


@dataclass(frozen=True, slots=True)
class EfaTree:
    """The interfaces below `root`."""

    root: Path

    @classmethod
    def write(cls, root: Path, instance_type: str, *, rdma_cm: bool = False) -> EfaTree:
        """Write the interfaces of an instance type. Raises NeuronDraError if AWS publishes no map of them."""
        spec = catalogue.lookup(instance_type)
        if spec is None or spec.efa is None:
            raise NeuronDraError(f"instance type {instance_type} has no known EFA interfaces")
        tree = cls(root)
        for folder in (DRIVER, RDMA_CLASS, VERBS_CLASS, FILES):
            (root / folder).mkdir(parents=True, exist_ok=True)
        (root / VERBS_CLASS / "abi_version").write_text("6\n")
        for number, function in enumerate(sorted(set(spec.efa))):
            tree._write_function(spec, function, number, numa_nodes(spec)[spec.efa.index(function)])
        if rdma_cm:
            _make_device(root / FILES / RDMA_CM, 10, 58)
        return tree

    @property
    def functions(self) -> tuple[str, ...]:
        """The PCI functions, sorted."""
        return tuple(sorted(path.parent.name for path in (self.root / DEVICES).glob("pci*/**/subsystem_device")))

    def folder(self, function: str) -> Path:
        """Return the folder of a function, which its links lead to."""
        (folder,) = (self.root / DEVICES).glob(f"pci*/**/{function}")
        return folder

    def _write_function(self, spec: InstanceType, function: str, number: int, numa_node: int) -> None:
        bus = function.split(":")[1]
        if spec.generation == "trn1":
            folder = f"pci0000:{bus}/{function}"
        else:
            pair = f"{int(bus, 16) - number % 2 - 2:02x}"
            folder = f"pci0000:{pair}/0000:{pair}:00.0/{function}"
        path = self.root / DEVICES / folder
        path.mkdir(parents=True)
        texts = {"vendor": "0x1d0f", "device": SUBSYSTEMS[spec.generation], "class": "0x020000"}
        texts |= {"subsystem_device": SUBSYSTEMS[spec.generation], "numa_node": str(numa_node)}
        number_of_device = SUBSYSTEMS[spec.generation].removeprefix("0x").upper()
        texts["modalias"] = f"pci:v00001D0Fd0000{number_of_device}sv00001D0Fsd0000{number_of_device}bc02sc00i00"
        for name, text in texts.items():
            (path / name).write_text(f"{text}\n")
        device = self.root / BUS / function
        if device.is_dir() and not device.is_symlink():  # the simulated node has its NUMA node
            shutil.rmtree(device)
        make_link(device, f"../../../devices/{folder}")
        self.bind(function, number)

    def _write_uverbs(self, function: str, number: int) -> None:
        folder = self.folder(function) / "infiniband_verbs" / f"uverbs{number}"
        folder.mkdir(parents=True)
        (folder / "ibdev").write_text(f"{rdma_name(function)}\n")
        (folder / "dev").write_text(f"{UVERBS_MAJOR}:{FIRST_MINOR + number}\n")
        (folder / "abi_version").write_text("1\n")
        make_link(folder / "device", "../..")
        make_link(self.root / VERBS_CLASS / folder.name, os.path.relpath(folder, self.root / VERBS_CLASS))
        _make_device(self.file(number), UVERBS_MAJOR, FIRST_MINOR + number)

    # Changes

    def file(self, number: int) -> Path:
        """Return the path of a device file."""
        return self.root / FILES / f"uverbs{number}"

    def number_of(self, function: str) -> int:
        """Return the number of a function's uverbs device."""
        (folder,) = (self.folder(function) / "infiniband_verbs").iterdir()
        return int(folder.name.removeprefix("uverbs"))

    def bind(self, function: str, number: int | None = None) -> None:
        """Bind a function to the kernel driver; its uverbs device gets the lowest free number unless one is given."""
        if number is None:
            number = next(free for free in range(len(self.functions)) if not self.file(free).exists())
        rdma_device = self.folder(function) / "infiniband" / rdma_name(function)
        rdma_device.mkdir(parents=True)
        (rdma_device / "node_type").write_text("7: unspecified\n")
        (rdma_device / "node_guid").write_text(f"0000:0000:0000:{number:04x}\n")
        make_link(rdma_device / "device", "../..")
        make_link(self.root / RDMA_CLASS / rdma_device.name, os.path.relpath(rdma_device, self.root / RDMA_CLASS))
        self._write_uverbs(function, number)
        make_link(self.root / DRIVER / function, f"../../devices/{function}")

    def unbind(self, function: str) -> None:
        """Unbind a function: its RDMA and uverbs devices go."""
        self._remove_uverbs(function)
        (self.root / RDMA_CLASS / rdma_name(function)).unlink()
        (self.root / DRIVER / function).unlink()
        shutil.rmtree(self.folder(function) / "infiniband")

    def _remove_uverbs(self, function: str) -> None:
        number = self.number_of(function)
        self.file(number).unlink(missing_ok=True)
        (self.root / VERBS_CLASS / f"uverbs{number}").unlink()
        shutil.rmtree(self.folder(function) / "infiniband_verbs")

    def renumber(self, shift: int) -> None:
        """Load the kernel module again: each uverbs device gets another number."""
        functions = self.functions
        for function in functions:
            self._remove_uverbs(function)
        for number, function in enumerate(functions):
            self._write_uverbs(function, (number + shift) % len(functions))

    def set_exclusive(self, is_exclusive: bool) -> None:
        """Set the network mode of RDMA devices."""
        folder = self.root / "sys/module/ib_core/parameters"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "netns_mode").write_text("N\n" if is_exclusive else "Y\n")


def _make_device(path: Path, major: int, minor: int) -> None:
    try:
        os.mknod(path, 0o666 | 0o020000, os.makedev(major, minor))
        path.chmod(0o666)  # whatever the umask is
    except PermissionError:
        path.write_bytes(b"")
