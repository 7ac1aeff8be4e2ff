"""16.6: the claims that `neuron-dra migrate` writes for Kubernetes 1.34 get the devices that the limits requested."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_dra import __version__
from neuron_dra.api import objects
from neuron_dra.ask.migrate.rewrite import Options, rewrite
from neuron_dra.core import devices, limits, topology
from neuron_dra.core.facts import NodeLabels
from neuron_dra.core.wire import Obj
from neuron_dra.emulation import simulated_node
from neuron_dra.node.hardware import sysfs
from neuron_dra.simulate import scheduler
from neuron_dra.simulate.model import DeviceId

TYPE = "node.kubernetes.io/instance-type"
FLEET = ("inf2.24xlarge", "inf2.48xlarge", "trn1.32xlarge", "trn2.48xlarge", "trn2u.48xlarge")


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory) -> list[Obj]:
    """Return what a node of each type publishes; its name is the type's."""
    found = []
    for name in FLEET:
        root = tmp_path_factory.mktemp("node") / name
        simulated_node.write(root, name)
        node = topology.build(sysfs.read_node(root), NodeLabels.from_labels({}))
        published = devices.published(node, driver_version=__version__, ultraserver_devices="node")
        found += objects.slice_objects(name, limits.check_devices(published)[0])
    return found


def place(slices: list[Obj], instance_type: str, busy: tuple[int, ...], **limits_of: int) -> Any:
    """Return the devices of a pod with these limits, or why it waits; `busy` are devices of other claims."""
    resources = {"limits": {f"aws.amazon.com/{name}": count for name, count in limits_of.items()}}
    spec = {"nodeSelector": {TYPE: instance_type}, "containers": [{"name": "a", "resources": resources}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ml"}, "spec": spec}
    [template] = rewrite(pod, Options(names=False)).templates
    claims = [{"metadata": {"name": "c", "namespace": "ml"}, "spec": template["spec"]["spec"]}]
    nodes = [{"metadata": {"name": name, "labels": {TYPE: name}}} for name in FLEET]
    used = frozenset(DeviceId("neuron.aws.com", instance_type, f"neuron-device-{number}") for number in busy)
    found = scheduler.schedule(pod, claims, nodes, slices, objects.DEVICE_CLASSES, used)
    if isinstance(found, scheduler.Unschedulable):
        return found.message
    assert found.node == instance_type
    [allocation] = found.allocations.values()
    names = [each["device"] for each in allocation["devices"]["results"]]
    return names if names == ["neuron-node-0"] else [int(name.rpartition("-")[2]) for name in names]


@pytest.mark.parametrize(
    ("instance_type", "count", "busy", "expected"),
    [
        ("trn1.32xlarge", 1, (0,), [1]),
        ("trn1.32xlarge", 4, (1,), [4, 5, 6, 7]),
        ("trn2.48xlarge", 8, (7,), [*range(8, 16)]),
        ("trn1.32xlarge", 16, (), [*range(16)]),
        ("inf2.48xlarge", 12, (), [*range(12)]),
        ("inf2.24xlarge", 1, (), [0]),
        ("trn2u.48xlarge", 16, (), ["neuron-node-0"]),
    ],
)
def test_a_claim_gets_the_devices_of_its_limit(
    instance_type: str, count: int, busy: tuple[int, ...], expected: list[Any], slices: list[Obj]
) -> None:
    assert place(slices, instance_type, busy, neuron=count) == expected


@pytest.mark.parametrize(("instance_type", "count"), [("inf2.48xlarge", 12), ("trn1.32xlarge", 16)])
def test_all_devices_wait_for_one_that_is_busy(instance_type: str, count: int, slices: list[Obj]) -> None:
    assert "cannot allocate all claims" in place(slices, instance_type, (3,), neuron=count)


def test_cores_of_whole_devices_are_devices(slices: list[Obj]) -> None:
    assert place(slices, "trn2.48xlarge", (), neuroncore=16) == [0, 1, 2, 3]
