"""`topology` and `why node` show the EFA interfaces of a node, as the driver publishes them (4.10)."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.ask.render.findings import Report
from neuron_dra.ask.topology import text as topology_text
from neuron_dra.ask.why import node as why_node
from neuron_dra.ask.world import fleet, interfaces
from neuron_dra.ask.world.world import World
from neuron_dra.core import catalogue, efa, signals
from neuron_dra.core.efa import EfaReading, Interface
from neuron_dra.core.wire import Obj
from tests.support import efa_slices
from tests.support import small_clusters as small
from tests.support.output_schema import checked
from tests.support.questions import ask, snapshot

TRN1 = "trn1.32xlarge"


def world_of(*items: Obj, instance_type: str = small.TYPE) -> World:
    return World(small.cluster([*small.base("a", instance_type=instance_type), *items]))


def with_lost(lost: Collection[str], instance_type: str = small.TYPE) -> Obj:
    """Return the driver's slice of node a after these PCI functions have vanished."""
    spec = catalogue.lookup(instance_type)
    assert spec is not None
    assert spec.efa is not None
    present = [Interface(function, f"rdma-{function[5:7]}") for function in sorted(set(spec.efa))]
    readings = [present, [interface for interface in present if interface.function not in lost]]
    watch: efa.Watch = {}
    for seen in readings:
        reading = EfaReading({interface.name: interface for interface in seen})
        watch = efa.observe(watch, reading, spec, now=0.0, hold_s=60.0)
    devices = efa.devices(watch, effect="NoSchedule", keeps_taints=True, held=())
    resource_slice = efa_slices.resource_slice("a", instance_type)
    return {**resource_slice, "spec": {**resource_slice["spec"], "devices": list(devices)}}


def of_dranet(resource_slice: Obj) -> Obj:
    """Return a slice under a name that DRANET's library generates."""
    return {**resource_slice, "metadata": {"name": "a-dra.net-x7k2p"}}


def holding(name: str, *devices: str) -> list[Obj]:
    """Return a pod that runs on node a, and its claim with these interfaces."""
    pod = small.pod(name, nodeName="a")
    pod["status"]["phase"] = "Running"
    results = [{"driver": "dra.net", "pool": "a", "device": device, "request": "efas"} for device in devices]
    reserved_for = [{"resource": "pods", "name": name, "uid": f"uid-{name}"}]
    claim: dict[str, Any] = {
        "apiVersion": small.API,
        "kind": "ResourceClaim",
        "metadata": {"name": f"{name}-efas", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "efas", "exactly": {"deviceClassName": efa.CLASS}}]}},
        "status": {"allocation": {"devices": {"results": results}}, "reservedFor": reserved_for},
    }
    return [pod, claim]


def shown(world: World) -> list[str]:
    view = fleet.view(world, "a")
    assert view is not None
    return topology_text.node(world, view)


def report(world: World) -> Report:
    return why_node.report(world, world.nodes["a"])


def test_topology_shows_interfaces_with_holders_and_faults() -> None:
    held = holding("train-0", "pci-0000-10-19-0", "pci-0000-20-19-0")
    lines = shown(world_of(with_lost(["0000:a0:19.0"], TRN1), *held, instance_type=TRN1))
    start = lines.index("  5 of 8 EFA interfaces free, 2 held, 1 unhealthy")
    assert lines[start : start + 10] == [
        "  5 of 8 EFA interfaces free, 2 held, 1 unhealthy",
        "  INTERFACE         RDMA NAME  NEXT TO        STATE",
        "  pci-0000-10-19-0  rdma-10    devices 12 13  held by default/train-0",
        "  pci-0000-10-1a-0  rdma-10    devices 0 1    free",
        "  pci-0000-20-19-0  rdma-20    devices 4 5    held by default/train-0",
        "  pci-0000-20-1a-0  rdma-20    devices 8 9    free",
        "  pci-0000-90-19-0  rdma-90    devices 6 7    free",
        "  pci-0000-90-1a-0  rdma-90    devices 10 11  free",
        "  pci-0000-a0-19-0  rdma-a0    devices 14 15  missing",
        "  pci-0000-a0-1a-0  rdma-a0    devices 2 3    free",
    ]


def test_node_without_interfaces_is_shown_as_before() -> None:
    """A network device of DRANET is not an EFA interface."""
    network_device = of_dranet(efa_slices.resource_slice("a", small.TYPE))
    network_device["spec"]["devices"] = [
        {"name": "pci-0000-20-01-0", "attributes": {"dra.net/pciDevice": {"string": "Elastic Network Adapter (ENA)"}}}
    ]
    assert shown(world_of(network_device)) == shown(world_of())
    assert report(world_of(network_device)) == report(world_of())


def test_topology_names_dranet_as_the_publisher() -> None:
    published = efa_slices.resource_slice("a", small.TYPE)
    assert "  16 of 16 EFA interfaces free" in shown(world_of(published))
    assert "  16 of 16 EFA interfaces free, published by DRANET" in shown(world_of(of_dranet(published)))


def test_topology_as_json_has_devices_and_interfaces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = holding("train-0", "pci-0000-c9-00-0")
    items = [*small.base("a"), with_lost(["0000:56:00.0"]), *held]
    file = snapshot(tmp_path, items)
    data = checked(ask(capsys, "topology", "a", "--snapshot", file, "-o", "json").out)
    assert (data["kind"], data["node"], len(data["devices"]), len(data["interfaces"])) == ("NodeTopology", "a", 16, 16)
    by_name = {interface["name"]: interface for interface in data["interfaces"]}
    assert by_name["pci-0000-c9-00-0"] == {
        "name": "pci-0000-c9-00-0",
        "rdmaName": "rdma-c9",
        "heldBy": ["default/train-0"],
        "faults": "",
        "nextTo": [0],
    }
    assert by_name["pci-0000-56-00-0"]["faults"] == signals.MISSING
    without_name = ask(capsys, "topology", "--snapshot", file, "-o", "json")
    assert (without_name.code, without_name.out) == (2, "")
    assert "have the devices of one Node: name it" in without_name.err


def test_topology_as_json_of_a_node_without_interfaces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = snapshot(tmp_path, small.base("a"))
    data = checked(ask(capsys, "topology", "a", "--snapshot", file, "-o", "json").out)
    assert (data["interfaces"], data["interfacesFault"]) == ([], "")
    assert [device["number"] for device in data["devices"]] == list(range(16))


def test_two_drivers_on_a_node_are_a_finding() -> None:
    published = efa_slices.resource_slice("a", small.TYPE)
    world = world_of(published, of_dranet(published))
    assert [finding.code for finding in report(world).findings] == ["EfaTwoManagers"]
    assert any("both publish its EFA interfaces" in line for line in shown(world))


def test_no_interface_of_a_cordoned_node_is_free() -> None:
    world = world_of(efa_slices.resource_slice("a", small.TYPE))
    world.nodes["a"]["spec"]["unschedulable"] = True
    lines = shown(World(world.snapshot))
    assert "  0 of 16 EFA interfaces free" in lines
    assert sum(line.endswith("node cordoned") and "pci-" in line for line in lines) == 16


def test_why_node_reports_interfaces_holders_and_faults() -> None:
    held = holding("train-0", "pci-0000-c9-00-0", "pci-0000-ca-00-0")
    node_report = report(world_of(with_lost(["0000:56:00.0"]), *held))
    assert node_report.state == "publishes 16 devices, 0 held, and 16 EFA interfaces, 2 held"
    assert node_report.notes == (
        "default/train-0 holds 2 EFA interfaces (pci-0000-c9-00-0, pci-0000-ca-00-0), next to devices 0 3",
    )
    [finding] = node_report.findings
    assert (finding.code, finding.text) == (
        "InterfaceTainted",
        "1 EFA interface unhealthy or tainted: no new claim gets them",
    )
    assert ("pci-0000-56-00-0", signals.MISSING) in finding.facts
    assert ("to do", "check the kernel log, and replace the instance if it stays away") in finding.facts


def test_healthy_interfaces_are_no_finding() -> None:
    node_report = report(world_of(with_lost([])))
    assert node_report.fine
    assert node_report.state == "publishes 16 devices, 0 held, and 16 EFA interfaces, 0 held"


@pytest.mark.parametrize(("is_ours", "codes"), [(True, []), (False, ["NeuronEfaStandsDown"])])
def test_slice_of_the_driver_ends_the_report_of_standing_down(is_ours: bool, codes: list[str]) -> None:
    published = efa_slices.resource_slice("a", small.TYPE)
    world = world_of(published if is_ours else of_dranet(published), stands_down())
    assert [finding.code for finding in report(world).findings] == codes


def stands_down(node: str = "a") -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{node}.1", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": node},
        "type": "Warning",
        "reason": "NeuronEfaStandsDown",
        "message": f"DRANET manages the EFA interfaces of node {node} (its socket answers)",
        "lastTimestamp": "2026-11-23T07:00:00Z",
    }


def test_interface_without_a_device_group_is_next_to_none() -> None:
    published = efa_slices.resource_slice("a", small.TYPE)
    for device in published["spec"]["devices"]:
        for name in [name for name in device["attributes"] if "devicegroup" in name]:
            del device["attributes"][name]
    assert {interface.next_to for interface in interfaces.of_node(world_of(published), "a")} == {()}
