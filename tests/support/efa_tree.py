"""The EFA interfaces of simulated hardware: PCI functions as the kernel modules write them into sysfs.

    tree = EfaTree.write(root, "trn1.32xlarge")
    tree.renumber(4)  # the module was loaded again

As root it creates character devices in dev/infiniband, and plain files otherwise. The paths of trn1 are those of the
published capture (10:19.0 is below pci0000:10). On trn2 and trn3 the interfaces are behind PCIe switches in pairs; the
addresses of the switches are made up.
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

UVERBS_MAJOR: Final = 231
FIRST_MINOR: Final = 192
SUBSYSTEMS: Final = {"trn1": "0xefa1", "trn2": "0xefa2", "trn3": "0xefa3"}


def rdma_name(function: str) -> str:
    """Return the name that udev gives: 0000:10:19.0 is rdmap16s25."""
    _, bus, slot = function.split(".")[0].split(":")
    return f"rdmap{int(bus, 16)}s{int(slot, 16)}"


@dataclass(frozen=True, slots=True)
class EfaTree:
    """The tree below `root`, with the PCI functions in the order of their uverbs numbers."""

    root: Path
    functions: tuple[str, ...]

    @classmethod
    def write(cls, root: Path, instance_type: str, *, rdma_cm: bool = False) -> EfaTree:
        """Write the interfaces of an instance type, whose map of EFA interfaces must be known."""
        spec = catalogue.lookup(instance_type)
        assert spec is not None
        assert spec.efa is not None
        tree = cls(root, tuple(sorted(set(spec.efa))))
        (root / "sys/bus/pci/drivers/efa").mkdir(parents=True, exist_ok=True)
        (root / "dev/infiniband").mkdir(parents=True, exist_ok=True)
        for number, function in enumerate(tree.functions):
            tree._write_function(spec, function, number)
        if rdma_cm:
            _make_device(root / "dev/infiniband/rdma_cm", 10, 58)
        return tree

    def folder(self, function: str) -> Path:
        """Return the folder of a function, which its links lead to."""
        (folder,) = (self.root / "sys/devices").glob(f"pci*/**/{function}")
        return folder

    def _write_function(self, spec: InstanceType, function: str, number: int) -> None:
        assert spec.efa is not None
        bus = function.split(":")[1]
        if spec.generation == "trn1":
            folder = self.root / f"sys/devices/pci0000:{bus}" / function
        else:
            pair = f"{int(bus, 16) - self.functions.index(function) % 2 - 2:02x}"
            folder = self.root / f"sys/devices/pci0000:{pair}/0000:{pair}:00.0" / function
        folder.mkdir(parents=True)
        node = numa_nodes(spec)[spec.efa.index(function)]
        texts = {"vendor": "0x1d0f", "device": SUBSYSTEMS[spec.generation], "class": "0x020000"}
        texts |= {"subsystem_device": SUBSYSTEMS[spec.generation], "numa_node": str(node)}
        for name, text in texts.items():
            (folder / name).write_text(f"{text}\n")
        device = self.root / "sys/bus/pci/devices" / function
        if device.is_dir() and not device.is_symlink():  # the simulated node has its NUMA node
            shutil.rmtree(device)
        device.parent.mkdir(parents=True, exist_ok=True)
        device.symlink_to(folder)
        self.bind(function)
        (folder / "infiniband" / rdma_name(function)).mkdir(parents=True)
        self._write_uverbs(function, number)

    def _write_uverbs(self, function: str, number: int) -> None:
        folder = self.folder(function) / "infiniband_verbs" / f"uverbs{number}"
        folder.mkdir(parents=True)
        (folder / "ibdev").write_text(f"{rdma_name(function)}\n")
        (folder / "dev").write_text(f"{UVERBS_MAJOR}:{FIRST_MINOR + number}\n")
        _make_device(self.file(number), UVERBS_MAJOR, FIRST_MINOR + number)

    # Changes

    def file(self, number: int) -> Path:
        """Return the path of a device file."""
        return self.root / f"dev/infiniband/uverbs{number}"

    def number_of(self, function: str) -> int:
        """Return the number of a function's uverbs device."""
        (folder,) = (self.folder(function) / "infiniband_verbs").iterdir()
        return int(folder.name.removeprefix("uverbs"))

    def bind(self, function: str) -> None:
        """Bind a function to the kernel driver."""
        (self.root / "sys/bus/pci/drivers/efa" / function).symlink_to(self.root / "sys/bus/pci/devices" / function)

    def unbind(self, function: str) -> None:
        """Unbind a function: its RDMA and uverbs devices go."""
        self.file(self.number_of(function)).unlink()
        (self.root / "sys/bus/pci/drivers/efa" / function).unlink()
        for name in ("infiniband", "infiniband_verbs"):
            shutil.rmtree(self.folder(function) / name)

    def renumber(self, shift: int) -> None:
        """Load the kernel module again: each uverbs device gets another number."""
        count = len(self.functions)
        for number in range(count):
            self.file(number).unlink()
        for number, function in enumerate(self.functions):
            shutil.rmtree(self.folder(function) / "infiniband_verbs")
            self._write_uverbs(function, (number + shift) % count)

    def set_exclusive(self, is_exclusive: bool) -> None:
        """Set the network mode of RDMA devices."""
        folder = self.root / "sys/module/ib_core/parameters"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "netns_mode").write_text("N\n" if is_exclusive else "Y\n")


def _make_device(path: Path, major: int, minor: int) -> None:
    try:
        os.mknod(path, 0o666 | 0o020000, os.makedev(major, minor))
    except PermissionError:
        path.write_bytes(b"")
