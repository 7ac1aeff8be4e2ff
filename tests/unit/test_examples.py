"""deploy/examples: every file works on the simulated instance types as documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_dra import __version__
from neuron_dra.api import objects
from neuron_dra.core import devices, limits, topology
from neuron_dra.core.facts import NodeLabels
from neuron_dra.core.wire import Obj
from neuron_dra.demo import examples, installation
from neuron_dra.emulation import simulated_node
from neuron_dra.node.hardware import sysfs
from neuron_dra.simulate import allocator, scheduler
from tests.support import efa_slices, fast_yaml

FLEET = {
    "trn2": ("trn2.48xlarge", "2.30.2.0", None),
    "trn2-old": ("trn2.48xlarge", "2.24.7.0", None),
    "trn1": ("trn1.2xlarge", "2.26.5.0", None),
    "trn1-large": ("trn1.32xlarge", "2.30.2.0", None),
    "inf2": ("inf2.48xlarge", "2.30.2.0", None),
    "us": ("trn2u.48xlarge", "2.30.2.0", 0),
}
CPU_CLASS: Obj = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "dra.cpu"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'dra.cpu'"}}]},
}
CLASSES = [*objects.DEVICE_CLASSES, installation.efa_class(), CPU_CLASS]
FILES = sorted(path.name for path in examples.folder().glob("*.yaml"))


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Obj]]:
    """Return the devices of each node of the fleet."""
    found = {}
    for name, (instance_type, version, number) in FLEET.items():
        root = tmp_path_factory.mktemp(name)
        simulated_node.write(root, instance_type, node_id=number, driver_version=version)
        node = topology.build(sysfs.read_node(root), NodeLabels.from_labels({}))
        published = devices.published(node, driver_version=__version__, ultraserver_devices="node")
        found[name] = objects.slice_objects(name, limits.check_devices(published)[0])
    return found


def claims_of(objects: list[Obj]) -> tuple[Obj, list[Obj]]:
    """Return the first pod of an example, and its claims as the claim controller creates them."""
    templates = [item for item in objects if item["kind"] == "ResourceClaimTemplate"]
    specs = {item["metadata"]["name"]: item["spec"]["spec"] for item in templates}
    specs |= {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "ResourceClaim"}
    pod = next(item for item in objects if item["kind"] == "Pod")
    claims = [
        {
            "metadata": {"name": f"claim-{entry['name']}", "namespace": "default"},
            "spec": specs[entry.get("resourceClaimTemplateName") or entry["resourceClaimName"]],
        }
        for entry in pod["spec"]["resourceClaims"]
    ]
    return pod, claims


def place(
    file: str, slices: dict[str, list[Obj]], names: tuple[str, ...] = tuple(FLEET), more: tuple[Obj, ...] = ()
) -> scheduler.Placement | scheduler.Unschedulable:
    pod, claims = claims_of(examples.load(file))
    nodes = [{"metadata": {"name": name}} for name in names]
    published = [wire for name in names for wire in slices[name]]
    return scheduler.schedule(pod, claims, nodes, [*published, *more], CLASSES, frozenset())


@pytest.mark.contract("A2")
@pytest.mark.parametrize(
    ("file", "node", "expected"),
    [
        ("1x4-connected-devices.yaml", "trn2", range(4)),
        ("l-trn2.yaml", "trn2", range(8)),
        ("xl-trn2.yaml", "trn2", range(16)),
        ("2.26-driver-trn2.yaml", "trn2-old", range(8)),
        ("lnc-setting-trn2.yaml", "trn2", range(16)),
        ("lnc-neurons.yaml", "trn2", range(16)),
        ("row-of-topology.yaml", "trn2", range(4, 8)),
        ("single-neuron-device.yaml", "trn1", range(1)),
        ("neuron-with-driver-version.yaml", "trn1", range(1)),
        ("neuron-lnc-1.yaml", "trn1", range(1)),
        ("4-node-inference-us.yaml", "us", None),
        ("2-node-inference-us.yaml", "us", None),
        ("us-and-lnc-config.yaml", "us", None),
    ],
)
def test_examples_get_what_their_comments_say(
    file: str, node: str, expected: range | None, slices: dict[str, list[Obj]]
) -> None:
    outcome = place(file, slices)
    assert isinstance(outcome, scheduler.Placement), outcome
    (allocation,) = outcome.allocations.values()
    names = [entry["device"] for entry in allocation["devices"]["results"]]
    assert outcome.node == node
    assert names == (["neuron-node-0"] if expected is None else [f"neuron-device-{number}" for number in expected])


@pytest.mark.contract("A2")
def test_aligned_devices_come_from_one_group(slices: dict[str, list[Obj]]) -> None:
    nics = efa_slices.resource_slice("trn2", "trn2.48xlarge")
    outcome = place("aligned-efa-neuron.yaml", slices, ("trn2",), (nics,))
    assert isinstance(outcome, scheduler.Placement), outcome
    (allocation,) = outcome.allocations.values()
    taken = [entry["device"] for entry in allocation["devices"]["results"]]
    group = {"string": "13713e551cd37c19"}
    published = [device for wire in (*slices["trn2"], nics) for device in wire["spec"]["devices"]]
    assert len(taken) == 8
    assert all(
        device["attributes"]["resource.aws.com/devicegroup4_id"] == group
        for device in published
        if device["name"] in taken
    )


def test_aligned_example_waits_if_groups_differ(slices: dict[str, list[Obj]]) -> None:
    outcome = place("aligned-efa-neuron.yaml", slices, ("trn2",), (efa_slices.resource_slice("trn2", "trn1.32xlarge"),))
    assert isinstance(outcome, scheduler.Unschedulable)
    assert outcome.message == "0/1 nodes are available: 1 cannot allocate all claims."


def cpus(node: str, per_numa_node: dict[int, int]) -> Obj:
    """Return the slice of a CPU driver: so many CPUs on each NUMA node."""
    numa_nodes = [numa for numa, number in per_numa_node.items() for _ in range(number)]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-dra.cpu-00"},
        "spec": {
            "driver": "dra.cpu",
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {"name": f"cpu-{number}", "attributes": {"resource.kubernetes.io/numaNode": {"int": numa}}}
                for number, numa in enumerate(numa_nodes)
            ],
        },
    }


@pytest.mark.parametrize(
    ("per_numa_node", "neurons", "first_cpu"),
    [({0: 16, 1: 16}, range(4), 16), ({0: 16, 1: 3}, range(4, 8), 0)],
    ids=["first-devices", "where-enough-cpus-are"],
)
def test_aligned_cpus_are_on_the_devices_numa_node(
    slices: dict[str, list[Obj]], per_numa_node: dict[int, int], neurons: range, first_cpu: int
) -> None:
    outcome = place("aligned-cpu-neuron.yaml", slices, ("trn2",), (cpus("trn2", per_numa_node),))
    assert isinstance(outcome, scheduler.Placement), outcome
    (allocation,) = outcome.allocations.values()
    assert [entry["device"] for entry in allocation["devices"]["results"]] == [
        *(f"neuron-device-{number}" for number in neurons),
        *(f"cpu-{number}" for number in range(first_cpu, first_cpu + 4)),
    ]


def test_devices_without_numa_node_match_no_cpus(slices: dict[str, list[Obj]]) -> None:
    outcome = place("aligned-cpu-neuron.yaml", slices, ("inf2",), (cpus("inf2", {0: 16, 1: 16}),))
    assert isinstance(outcome, scheduler.Unschedulable)


@pytest.mark.contract("A1")
@pytest.mark.parametrize("file", FILES)
def test_example_selectors_fail_on_no_device(file: str, slices: dict[str, list[Obj]]) -> None:
    for name in FLEET:
        outcome = place(file, slices, (name,))
        assert isinstance(outcome, scheduler.Placement) or not outcome.error, (name, outcome)


@pytest.mark.parametrize("file", FILES)
def test_example_is_a_template_and_its_user(file: str) -> None:
    template, *users = fast_yaml.load_all((examples.folder() / file).read_text())
    assert template["apiVersion"] == "resource.k8s.io/v1"
    assert len(users) == (2 if template["kind"] == "ResourceClaim" else 1)  # a claim is there to be shared
    for user in users:
        assert user["kind"] in ("Pod", "LeaderWorkerSet")
        assert template["metadata"]["name"] in str(user["spec"])


def test_sixteen_pods_of_four_fill_four_nodes(tmp_path: Path) -> None:
    simulated_node.write(tmp_path, "trn2.48xlarge")
    node = topology.build(sysfs.read_node(tmp_path), NodeLabels.from_labels({}))
    kept, _ = limits.check_devices(devices.published(node, driver_version=__version__, ultraserver_devices="node"))
    names = [f"n{number}" for number in range(4)]
    published = [wire for name in names for wire in objects.slice_objects(name, kept)]
    held: list[Obj] = []
    pod, (claim,) = claims_of(examples.load("1x4-connected-devices.yaml"))
    for number in range(17):
        outcome = scheduler.schedule(
            pod,
            [claim],
            [{"metadata": {"name": name}} for name in names],
            published,
            CLASSES,
            allocator.devices_in_use(held),
        )
        if number == 16:
            assert isinstance(outcome, scheduler.Unschedulable)
            break
        assert isinstance(outcome, scheduler.Placement)
        assert outcome.node == names[number // 4]
        held.append({"status": {"allocation": dict(outcome.allocations["claim-neurons"])}})
