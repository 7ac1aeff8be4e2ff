"""Emulation mode: the plugin simulates the hardware that it reads, on a machine without Neuron devices."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from neuron_dra.core import catalogue
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.emulation.simulated_node import DEFAULT_DRIVER_VERSION, SimulatedNode, write
from neuron_dra.errors import NeuronDraError, SettingsError


def instance_type(type_or_family: str) -> InstanceType:
    """Return the instance type of `--emulation-mode`; for a family, such as trn2u, its largest type.

    Raises SettingsError for an unknown name.
    """
    spec = catalogue.lookup(type_or_family) or catalogue.largest(type_or_family)
    if spec is None:
        near = catalogue.nearest(type_or_family) or "; write one such as trn2.48xlarge or trn2u"
        raise SettingsError(f"--emulation-mode {type_or_family} is not a known instance type{near}")
    return spec


@contextlib.contextmanager
def hardware(root: Path, type_or_family: str, boot_id: str) -> Iterator[None]:
    """Provide simulated hardware below `root`. If the block raises, remove what was created, and empty folders.

    Raises SettingsError.
    """
    new_folders = [folder for folder in (root, *root.parents) if not folder.exists()]
    try:
        prepare(root, type_or_family, boot_id)
        yield
    except BaseException:
        if new_folders:
            shutil.rmtree(root, ignore_errors=True)
        for folder in new_folders[1:]:
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()
        raise


def prepare(root: Path, type_or_family: str, boot_id: str) -> InstanceType:
    """Create simulated hardware below `root` unless it exists; return its instance type. Raises SettingsError.

    Existing hardware keeps its faults, so restarting the plugin repairs nothing. `boot_id` is the real machine's, so
    that only a reboot of the machine counts as one.
    """
    spec = instance_type(type_or_family)
    try:
        node = SimulatedNode.found(root)
        if node.instance_type == spec.name and node.driver_version == DEFAULT_DRIVER_VERSION:
            if node.boot_id != boot_id:
                node.set_boot_id(boot_id)
            return spec
    except (NeuronDraError, OSError):
        pass  # missing or incomplete
    try:
        write(root, spec.name, boot_id=boot_id)
    except NeuronDraError as err:
        raise SettingsError(f"--emulation-mode {type_or_family}: {err}") from err
    return spec
