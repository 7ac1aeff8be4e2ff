"""An unprivileged pod's own /dev has none of the host's files, which is no evidence about devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_dra.emulation import simulated_node
from neuron_dra.node.hardware import sysfs


@pytest.fixture
def host(tmp_path: Path) -> Path:
    simulated_node.write(tmp_path, "trn2.48xlarge")
    return tmp_path


def test_empty_dev_uses_sysfs_numbers(host: Path) -> None:
    for file in (host / "dev").glob("neuron*"):
        file.unlink()
    (host / "sys/devices/virtual/neuron_device/neuron7/dev").unlink()
    present = {device.device_id: device.node_present for device in sysfs.read_node(host).devices}
    assert present == {device_id: device_id != 7 for device_id in range(16)}


def test_missing_dev_file_among_others_counts(host: Path) -> None:
    (host / "dev/neuron7").unlink()
    present = {device.device_id: device.node_present for device in sysfs.read_node(host).devices}
    assert present == {device_id: device_id != 7 for device_id in range(16)}
