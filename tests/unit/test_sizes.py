"""16.5: the numbers that a type serves are those of the sets and core partitions that its nodes publish."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_dra.core import catalogue, devices, sizes, topology
from neuron_dra.core.facts import NodeLabels
from neuron_dra.core.partitions import partitioned
from neuron_dra.emulation import simulated_node
from neuron_dra.node.hardware import sysfs


@pytest.mark.parametrize("spec", catalogue.all_types(), ids=lambda spec: spec.name)
def test_sizes_equal_published_sizes(spec: catalogue.InstanceType, tmp_path: Path) -> None:
    simulated_node.write(tmp_path / "node", spec.name)
    node = topology.build(sysfs.read_node(tmp_path / "node"), NodeLabels.from_labels({}))
    published = devices.published(node, driver_version="1.2.3", ultraserver_devices="devices")
    found = partitioned(node, published, at_most=10_000)
    assert found is not None
    whole = {len(one.device.device_ids) for one in found.partitions if "neuron-cores-" not in one.device.name}
    assert sizes.device_counts(spec) == whole
    assert sizes.core_counts(spec) == {len(one.cores) for one in found.partitions}


def test_message_is_the_scheduler_extensions() -> None:
    assert sizes.refusal("trn1.32xlarge", sizes.DEVICE, 7) == (
        "Instance type trn1.32xlarge does not support requests for device: 7. "
        "Please request a different number of devices."
    )
