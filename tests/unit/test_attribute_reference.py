"""docs/attributes.md says what is published: nothing is missing, nothing is promised that does not come."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuron_dra.core import catalogue, devices, topology
from neuron_dra.core.devices import Device
from neuron_dra.core.facts import NodeLabels
from neuron_dra.node import sysfs
from neuron_dra.testing import fake_node

REPOSITORY = Path(__file__).resolve().parents[2]
LABELS = NodeLabels("", ("nn-1", "nn-2", "nn-3"), "cb-1")
DESCRIBED = {row.name: row for row in devices.ATTRIBUTES}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[catalogue.InstanceType, Device]]:
    """Every device of every type with all facts known, in both shapes that UltraServer nodes can have."""
    return list(publish_all(tmp_path_factory.mktemp("node")))


def publish_all(root: Path) -> Iterator[tuple[catalogue.InstanceType, Device]]:
    for spec in catalogue.all_types():
        fake_node.write(root, spec.name, node_id=1 if spec.whole_node else None)
        node = topology.build(sysfs.read_node(root), LABELS)
        for shape in ("node", "devices"):
            for device in devices.published(node, driver_version="1.2.3", ultraserver_devices=shape):
                yield spec, device


def test_every_published_attribute_is_described_with_its_type(
    everything: list[tuple[catalogue.InstanceType, Device]],
) -> None:
    published = {(name, attribute.kind) for _, device in everything for name, attribute in device.attributes.items()}
    assert published == {(row.name, row.kind) for row in devices.ATTRIBUTES}


CONDITIONS = {
    "always": lambda spec, device: True,
    "devices": lambda spec, device: device.name != "neuron-node-0",
    "when the Node is labelled so": lambda spec, device: True,
    "Trainium torus, not UltraServer": lambda spec, device: (
        spec.is_trainium and spec.shape == "torus" and spec.platform is catalogue.Platform.STANDARD
    ),
    "UltraServers": lambda spec, device: spec.whole_node,
    "Trn2 UltraServers": lambda spec, device: spec.platform is catalogue.Platform.ULTRASERVER,
    "Trn3 UltraServers": lambda spec, device: spec.platform in (catalogue.Platform.PDS, catalogue.Platform.MAX),
    "types with EFA": lambda spec, device: spec.efa is not None and device.name != "neuron-node-0",
}


@pytest.mark.parametrize("name", DESCRIBED)
def test_an_attribute_is_on_the_devices_that_the_reference_names_and_on_no_others(
    everything: list[tuple[catalogue.InstanceType, Device]], name: str
) -> None:
    promised = CONDITIONS[DESCRIBED[name].when]
    for spec, device in everything:
        assert (name in device.attributes) == promised(spec, device), (spec.name, device.name)


def test_the_page_is_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, REPOSITORY / "hack/gen_docs.py", "--check"],
        capture_output=True,
        text=True,
        timeout=30,
        env={"PYTHONPATH": str(REPOSITORY)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
