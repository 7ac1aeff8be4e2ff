"""Reads the EFA interfaces of the host from sysfs and /dev.

All that is read is kept in memory by the kernel: no read sends a command to the device, so that one that hangs does not
hang this. Counters are not read, because `hw_counters` of another network namespace dereferences a null pointer in
kernels without the fix for CVE-2025-22089.

The tree may be anything: what is missing, malformed or too large is a reason not to use that interface.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuron_dra.core import efa, signals
from neuron_dra.core.efa import EfaReading, Interface
from neuron_dra.node.hardware.sysfs import DeviceFolder

DRIVER: Final = "sys/bus/pci/drivers/efa"
NETNS_MODE: Final = "sys/module/ib_core/parameters/netns_mode"
ENTRIES: Final = 4096  # of a folder; more is not a folder of the kernel's
MAX_BYTES: Final = 64  # of a file: a number, or a pair of numbers

_ID: Final = re.compile(r"0x([0-9a-f]{4})", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,4}", re.ASCII)
_DEVICE_NUMBER: Final = re.compile(r"(\d{1,6}):(\d{1,8})", re.ASCII)
_PCIE_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Fixed:
    """What of a function stays the same while it is there."""

    numa_node: int | None = None
    subsystem: str = ""
    pcie_root: str = ""


class InterfaceReader:
    """Reads below `root`; `dev` is the folder with the host's device files. Its methods block.

    `may_be_plain`: the device files of simulated hardware may be plain files, which are not checked.

    Paths are texts here: sixteen interfaces are read within each prepare, and Path objects take as long as the reads.
    """

    def __init__(self, root: Path, dev: DeviceFolder, *, may_be_plain: bool = False) -> None:
        self._root = str(root).rstrip("/")
        self._driver = f"{self._root}/{DRIVER}"
        self._infiniband = f"{dev.path}/infiniband"
        self._may_be_plain = may_be_plain
        self._fixed: dict[str, _Fixed] = {}  # by function, as of the last `read`
        self._last_names: dict[str, tuple[str, list[str]]] = {}  # by function: RDMA name and uverbs devices

    def read(self) -> EfaReading:
        """Return what there is now. Raises OSError if sysfs itself cannot be read."""
        self._fixed, self._last_names = {}, {}
        return self.read_files()

    def read_files(self, device_names: Collection[str] | None = None) -> EfaReading:
        """Return what there is now, of these devices alone if they are given. Raises OSError.

        What stays the same while a function is there is read once.
        """
        os.stat(f"{self._root}/sys/bus/pci/devices")
        functions = [name for name in _names(self._driver) if efa.FUNCTION.fullmatch(name)]
        if device_names is not None:
            functions = [function for function in functions if Interface(function).name in device_names]
        interfaces = [self._interface(function) for function in functions[: efa.INTERFACES]]
        return EfaReading(
            {interface.name: interface for interface in interfaces},
            has_rdma_cm=os.path.exists(f"{self._infiniband}/rdma_cm"),
            is_exclusive=_text(f"{self._root}/{NETNS_MODE}") == "N",
        )

    def _interface(self, function: str) -> Interface:
        folder = f"{self._driver}/{function}"
        fixed = self._fixed.get(function)
        if fixed is None:
            fixed = self._fixed[function] = self._read_fixed(folder)
        rdma_name, uverbs_names = self._last_names.get(function, ("", []))
        uverbs, problem = None, efa.NO_RDMA_NAME
        if rdma_name and os.path.isdir(f"{folder}/infiniband/{rdma_name}"):
            uverbs, problem = self._uverbs(f"{folder}/infiniband_verbs", rdma_name, uverbs_names)
        if problem:  # the names may be others by now; to look for them takes longer than to read the files
            rdma_name = next((name for name in _names(f"{folder}/infiniband") if efa.RDMA_NAME.fullmatch(name)), "")
            uverbs_names = _names(f"{folder}/infiniband_verbs")
            self._last_names[function] = rdma_name, uverbs_names
            if rdma_name:
                uverbs, problem = self._uverbs(f"{folder}/infiniband_verbs", rdma_name, uverbs_names)
            else:
                uverbs, problem = None, efa.NO_RDMA_NAME
        return Interface(function, rdma_name, uverbs, problem, fixed.numa_node, fixed.subsystem, fixed.pcie_root)

    def _read_fixed(self, folder: str) -> _Fixed:
        numa_node = _text(f"{folder}/numa_node")  # -1 means that the firmware names none
        subsystem = _ID.fullmatch(_text(f"{folder}/subsystem_device"))
        return _Fixed(
            int(numa_node) if _NUMBER.fullmatch(numa_node) else None,
            subsystem[1] if subsystem else "",
            self._pcie_root(Path(folder)),
        )

    def _uverbs(self, folder: str, rdma_name: str, uverbs_names: list[str]) -> tuple[int | None, str]:
        """Return the number of the uverbs device whose RDMA name this is, and why it cannot be used."""
        for name in uverbs_names:
            match = efa.UVERBS.fullmatch(name)
            if match is None or _text(f"{folder}/{name}/ibdev") != rdma_name:
                continue
            number = _DEVICE_NUMBER.fullmatch(_text(f"{folder}/{name}/dev"))
            if number is None:
                return None, efa.NO_UVERBS
            device_number = os.makedev(int(number[1]), int(number[2]))
            return int(match[1]), self._why_not(f"{self._infiniband}/{name}", device_number)
        return None, efa.NO_UVERBS

    def _why_not(self, path: str, device_number: int) -> str:
        """Return why a device file cannot be given to a container: missing, or of another device."""
        try:
            file = os.stat(path)
        except OSError:
            return signals.DEVICE_FILE_MISSING
        is_ours = stat.S_ISCHR(file.st_mode) and file.st_rdev == device_number
        if is_ours or (self._may_be_plain and stat.S_ISREG(file.st_mode)):
            return ""
        return efa.DEVICE_FILE_DIFFERS

    def _pcie_root(self, folder: Path) -> str:
        """Return the PCIe root: the first folder below sys/devices on the path that `folder` leads to."""
        with contextlib.suppress(OSError, RuntimeError, ValueError, IndexError):  # a link to itself, or elsewhere
            resolved = folder.resolve(strict=True).relative_to(Path(f"{self._root}/sys/devices").resolve())
            if _PCIE_ROOT.fullmatch(resolved.parts[0]):
                return resolved.parts[0]
        return ""


def _names(folder: str) -> list[str]:
    """Return the names in a folder, sorted; none if it cannot be read, or has too many."""
    found: list[str] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found.append(entry.name)
            if len(found) > ENTRIES:
                return []
    return sorted(found)


def _text(path: str) -> str:
    """Return the text of a small file; empty if it cannot be read. A file object would take twice as long."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(handle, MAX_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""
    finally:
        os.close(handle)
