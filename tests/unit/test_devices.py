"""What a node publishes: names, attributes, types and conditions."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dra.core import catalogue, devices, topology
from neuron_dra.core.counters import CounterSet
from neuron_dra.core.devices import Attribute
from neuron_dra.core.facts import (
    DEFAULT_SERVER_ID,
    DeviceFacts,
    NodeFacts,
    NodeLabels,
    NumaFacts,
    UltraServerFacts,
    Unread,
)

NO_LABELS = NodeLabels()
LAYERS = NodeLabels(network_layers=("nn-1", "nn-2", "nn-3"))
COMPLETE_TRN2 = UltraServerFacts((1, 3, 4), 0, 2, "5a7b1c2d3e4f606f", "5a7b1c2d3e4f6070")
COMPLETE_TRN3 = UltraServerFacts((1, 3, 4), node_id=3, reservation_id="00000000000000ab")
BUSY = UltraServerFacts(*[Unread.BUSY] * 7)


def node_of(
    name: str = "trn2.48xlarge",
    labels: NodeLabels = NO_LABELS,
    ultraserver: UltraServerFacts | None = None,
    driver: str | None = "2.30.2.0",
    numa: NumaFacts | None = None,
) -> topology.Node:
    known = catalogue.lookup(name)
    assert known is not None
    read = tuple(
        DeviceFacts(i, known.cores_per_device, known.links[i] if known.links else (), (243, i), True)
        for i in range(known.device_count)
    )
    facts = NodeFacts(name, driver, read, ultraserver or UltraServerFacts(), numa=numa or NumaFacts())
    return topology.build(facts, labels)


def published(node: topology.Node, mode: str = "node") -> tuple[devices.Device, ...]:
    return devices.published(node, driver_version="1.2.3", ultraserver_devices=mode)


def values(device: devices.Device) -> dict[str, object]:
    return {name: attribute.value for name, attribute in device.attributes.items()}


def test_trn2_device_has_all_attributes() -> None:
    device = published(node_of(labels=LAYERS))[6]
    assert device == devices.Device(
        "neuron-device-6",
        (6,),
        {
            "deviceId": Attribute("int", 6),
            "instanceType": Attribute("string", "trn2.48xlarge"),
            "neuronDriverVersion": Attribute("string", "2.30.2.0"),
            "draDriverVersion": Attribute("version", "1.2.3"),
            "resourceType": Attribute("string", "neuron_device"),
            "networkNodeLayer1": Attribute("string", "nn-1"),
            "networkNodeLayer2": Attribute("string", "nn-2"),
            "networkNodeLayer3": Attribute("string", "nn-3"),
            "topology_x": Attribute("int", 1),
            "topology_y": Attribute("int", 2),
            "topology4_id": Attribute("int", 1),
            "topology8_id": Attribute("int", 0),
            "resource.aws.com/devicegroup1_id": Attribute("string", "0000:56:00.0"),
            "resource.aws.com/devicegroup4_id": Attribute("string", "671622785349fddf"),
            "resource.aws.com/devicegroup8_id": Attribute("string", "3593812b8066a078"),
            "resource.aws.com/devicegroup16_id": Attribute("string", "821d14afaf11327d"),
        },
        {"neuronCores": "8", "memory": "96Gi"},
    )


def test_small_node_has_no_coordinates_or_groups() -> None:
    (device,) = published(node_of("trn1.2xlarge", LAYERS))
    assert list(values(device)) == [
        "deviceId",
        "instanceType",
        "neuronDriverVersion",
        "draDriverVersion",
        "resourceType",
        "networkNodeLayer1",
        "networkNodeLayer2",
        "networkNodeLayer3",
    ]


@pytest.mark.parametrize(
    "name", ["inf1.24xlarge", "inf2.48xlarge", "trn2u.48xlarge", "trn3.48xlarge", "trn3e.24xlarge"]
)
def test_only_plain_torus_nodes_have_coordinates(name: str) -> None:
    for device in published(node_of(name), "devices"):
        assert not [attribute for attribute in device.attributes if attribute.startswith("topology")]


def test_x_is_the_row_and_y_the_column() -> None:
    rows = [(values(d)["topology_x"], values(d)["topology_y"]) for d in published(node_of("trn1.32xlarge"))]
    assert rows == [(row, column) for row in range(4) for column in range(4)]


def test_a_row_has_four_devices_and_a_pair_of_rows_eight() -> None:
    groups = [(values(d)["topology4_id"], values(d)["topology8_id"]) for d in published(node_of("trn1.32xlarge"))]
    assert groups == [(0, 0)] * 4 + [(1, 0)] * 4 + [(2, 1)] * 4 + [(3, 1)] * 4


def test_ultraserver_node_is_one_device_by_default() -> None:
    node = node_of("trn2u.48xlarge", replace(LAYERS, capacity_block_id="cr-1"), COMPLETE_TRN2)
    (device,) = devices.published(node, driver_version="1.2.3")
    assert (device.name, device.device_ids) == ("neuron-node-0", tuple(range(16)))
    assert device.capacity == {"neuronCores": "128", "memory": "1536Gi"}
    assert values(device) == {
        "deviceId": 0,
        "instanceType": "trn2u.48xlarge",
        "neuronDriverVersion": "2.30.2.0",
        "draDriverVersion": "1.2.3",
        "resourceType": "neuron_node",
        "networkNodeLayer1": "nn-1",
        "networkNodeLayer2": "nn-2",
        "networkNodeLayer3": "nn-3",
        "capacityBlockId": "cr-1",
        "ultraserverId": "cr-1",
        "ultraserverNodeId": 2,
        "ultraserverModes": "1_2_4",
        "serverId2": "5a7b1c2d3e4f606f",
        "serverId4": "5a7b1c2d3e4f6070",
        "nodeId2": 0,
        "nodeId4": 2,
        "linkVertical": True,
        "linkHorizontal": True,
    }


def test_whole_node_has_the_number_of_its_first_device() -> None:
    node = node_of("trn2u.48xlarge")
    without_first = replace(node, devices=node.devices[1:])
    assert published(without_first)[0].attributes["deviceId"] == Attribute("int", 1)


def test_trn2_ultraserver_id_without_a_capacity_block_is_the_id_of_its_four_nodes() -> None:
    described = values(published(node_of("trn2u.48xlarge", ultraserver=COMPLETE_TRN2))[0])
    assert described["ultraserverId"] == described["serverId4"] == "5a7b1c2d3e4f6070"


def test_trn3_ultraserver_id_is_its_reservation() -> None:
    described = values(published(node_of("trn3.48xlarge", ultraserver=COMPLETE_TRN3))[0])
    assert described["ultraserverId"] == described["reservationId"] == "00000000000000ab"
    assert described["ultraserverNodeId"] == 3
    assert not {"serverId2", "serverId4", "nodeId2", "nodeId4", "capacityBlockId"} & set(described)


PAIR = UltraServerFacts(modes=(3, 4), node_id_2=1, server_id_2="5a7b1c2d3e4f6070")


def test_id_of_a_pair_is_that_of_no_group_of_four() -> None:
    """A pair has no numbers of four nodes, and its bare id can be that of a former group of four."""
    described = values(published(node_of("trn2u.48xlarge", ultraserver=PAIR))[0])
    assert described["ultraserverId"] == "5a7b1c2d3e4f6070-2"
    assert (described["ultraserverNodeId"], described["nodeId2"]) == (1, 1)
    assert described["serverId2"] == "5a7b1c2d3e4f6070"
    assert devices.ultraserver_id(node_of("trn2u.48xlarge", ultraserver=COMPLETE_TRN2)) == "5a7b1c2d3e4f6070"


def test_pair_of_a_capacity_block_has_no_number_in_it() -> None:
    """Two pairs of a block would have the same numbers."""
    labels = NodeLabels(capacity_block_id="cr-1")
    described = values(published(node_of("trn2u.48xlarge", labels, PAIR))[0])
    assert described["ultraserverId"] == "cr-1"
    assert "ultraserverNodeId" not in described


@pytest.mark.parametrize(
    "default",
    [
        UltraServerFacts(modes=(1, 3, 4), node_id=1, reservation_id=DEFAULT_SERVER_ID),
        UltraServerFacts(
            modes=(1, 3, 4), node_id_2=1, node_id_4=1, server_id_2=DEFAULT_SERVER_ID, server_id_4=DEFAULT_SERVER_ID
        ),
        UltraServerFacts(modes=(3, 4), node_id_2=1, server_id_2=DEFAULT_SERVER_ID),
    ],
    ids=["reservation", "four nodes", "pair"],
)
def test_default_id_identifies_no_ultraserver(default: UltraServerFacts) -> None:
    """Every PDS node has it whose kernel driver has no parameters, so all of them would form one UltraServer."""
    described = values(published(node_of("trn3.48xlarge", ultraserver=default))[0])
    assert not {"ultraserverId", "serverId2", "serverId4", "reservationId"} & set(described)
    in_block = node_of("trn3.48xlarge", NodeLabels(capacity_block_id="cr-1"), default)
    assert devices.ultraserver_id(in_block) == "cr-1"


def test_ultraserver_node_can_publish_its_devices() -> None:
    kept = published(node_of("trn2u.48xlarge", ultraserver=COMPLETE_TRN2), "devices")
    assert [device.name for device in kept] == [f"neuron-device-{n}" for n in range(16)]
    assert all(values(device)["serverId4"] == "5a7b1c2d3e4f6070" for device in kept)
    assert values(kept[0])["resource.aws.com/devicegroup4_id"] == "13713e551cd37c19"


def test_other_nodes_always_publish_devices() -> None:
    assert published(node_of(), "node") == published(node_of(), "devices")


@pytest.mark.parametrize("unread", [BUSY, UltraServerFacts()], ids=["busy", "unknown"])
def test_unknown_values_are_absent(unread: UltraServerFacts) -> None:
    described = values(published(node_of("trn2u.48xlarge", ultraserver=unread))[0])
    assert set(described) == {"deviceId", "instanceType", "neuronDriverVersion", "draDriverVersion", "resourceType"}


@pytest.mark.parametrize("unread", Unread)
def test_ultraserver_without_source_has_no_id(unread: Unread) -> None:
    facts = UltraServerFacts(server_id_4=unread, reservation_id=unread)
    assert devices.ultraserver_id(node_of("trn2u.48xlarge", ultraserver=facts)) is None


def test_only_ultraserver_nodes_have_an_id() -> None:
    for name in ("trn2.48xlarge", "inf2.48xlarge"):
        assert devices.ultraserver_id(node_of(name, ultraserver=COMPLETE_TRN2)) is None
    unknown = NodeFacts("trn9.96xlarge", "2.30.2.0", (), COMPLETE_TRN2)
    assert devices.ultraserver_id(topology.build(unknown, NO_LABELS)) is None


def test_the_capacity_block_needs_no_driver() -> None:
    labels = NodeLabels(capacity_block_id="cr-1")
    described = values(published(node_of("trn2u.48xlarge", labels, BUSY))[0])
    assert described["ultraserverId"] == described["capacityBlockId"] == "cr-1"


def test_plain_node_has_no_capacity_block() -> None:
    labels = NodeLabels(capacity_block_id="cr-1")
    assert "capacityBlockId" not in values(published(node_of("trn2.48xlarge", labels))[0])


@pytest.mark.parametrize(
    ("modes", "sizes", "vertical", "horizontal"),
    [
        ((1, 3, 4), "1_2_4", True, True),
        ((3, 4), "1_2", True, False),
        ((2, 4), "1_2", False, True),
        ((2, 3, 4), "1_2", True, True),
        ((4,), "1", False, False),
    ],
)
def test_modes_decide_the_link_attributes(modes: tuple[int, ...], sizes: str, vertical: bool, horizontal: bool) -> None:
    described = values(published(node_of("trn2u.48xlarge", ultraserver=UltraServerFacts(modes)))[0])
    assert described["ultraserverModes"] == sizes
    assert (described["linkVertical"], described["linkHorizontal"]) == (vertical, horizontal)


def test_device_without_file_stays_published_for_its_taint() -> None:
    node = node_of()
    gone = replace(node, devices=tuple(replace(d, device_file=d.device_id != 3) for d in node.devices))
    assert [device.device_ids[0] for device in published(gone)] == list(range(16))


def test_node_device_has_the_present_devices() -> None:
    node = node_of("trn2u.48xlarge")
    gone = replace(node, devices=tuple(d for d in node.devices if d.device_id != 3))
    (device,) = published(gone)
    assert 3 not in device.device_ids
    assert device.capacity == {"neuronCores": "120", "memory": "1440Gi"}
    assert published(replace(node, devices=())) == ()


def test_unknown_type_is_published_with_known_facts() -> None:
    read = NodeFacts("trn9.48xlarge", None, (DeviceFacts(0, 16, (), (243, 0), True),))
    (device,) = published(topology.build(read, NO_LABELS))
    assert device.capacity == {"neuronCores": "16"}
    assert set(device.attributes) == {"deviceId", "instanceType", "draDriverVersion", "resourceType"}


def test_unknown_cores_are_no_capacity_of_nought() -> None:
    read = NodeFacts("trn9.48xlarge", None, (DeviceFacts(0, device_file=True),))
    (device,) = published(topology.build(read, NO_LABELS))
    assert device.capacity == {}


def test_extra_device_has_no_coordinates() -> None:
    read = NodeFacts("trn2.48xlarge", None, tuple(DeviceFacts(i, 8, (), (243, i), True) for i in range(17)))
    device = published(topology.build(read, NO_LABELS))[16]
    assert not [name for name in device.attributes if name.startswith(("topology", "resource.aws.com/"))]


@pytest.mark.parametrize(
    "node",
    [
        node_of(labels=LAYERS),
        node_of("trn1.2xlarge"),
        node_of("trn2u.48xlarge", LAYERS, COMPLETE_TRN2),
        topology.build(NodeFacts("trn9.48xlarge", None, (DeviceFacts(0, 16, (), (243, 0), True),)), NO_LABELS),
    ],
    ids=["torus", "one device", "UltraServer", "unknown type"],
)
def test_a_device_of_an_earlier_claim_is_found_whatever_is_published_now(node: topology.Node) -> None:
    single = published(node, "devices")
    assert tuple(devices.named(node, device.name, driver_version="1.2.3") for device in single) == single
    assert devices.named(node, f"neuron-device-{len(single)}", driver_version="1.2.3") is None


def test_a_whole_node_of_an_earlier_claim_is_found_while_it_has_devices() -> None:
    node = node_of("trn2u.48xlarge", LAYERS, COMPLETE_TRN2)
    (whole,) = published(node)
    assert devices.named(node, "neuron-node-0", driver_version="1.2.3") == whole
    assert devices.named(replace(node, devices=()), "neuron-node-0", driver_version="1.2.3") is None


@pytest.mark.contract("S18")
@given(st.permutations(range(16)))
def test_devices_are_published_in_id_order(order: list[int]) -> None:
    read = tuple(DeviceFacts(i, 8, (), (243, i), True) for i in order)
    kept = published(topology.build(NodeFacts("trn2.48xlarge", None, read), NO_LABELS))
    assert [device.device_ids for device in kept] == [(n,) for n in range(16)]


def test_every_attribute_is_documented_with_its_type() -> None:
    documented = {each.name: each.kind for each in devices.ATTRIBUTES}
    seen: dict[str, str] = {}
    for known in catalogue.all_types():
        for ultraserver in (COMPLETE_TRN2, COMPLETE_TRN3):
            for mode in ("node", "devices"):
                labels = replace(LAYERS, capacity_block_id="cr-1")
                for device in published(node_of(known.name, labels, ultraserver, numa=NumaFacts(neuron=0)), mode):
                    seen |= {name: attribute.kind for name, attribute in device.attributes.items()}
                    assert set(device.capacity) == {name for name, _ in devices.CAPACITIES}
    assert seen == documented


def test_the_wire_form_has_sorted_names_and_typed_values() -> None:
    device = devices.Device(
        "d",
        (0,),
        {"b": Attribute("bool", True), "a": Attribute("int", 0)},
        {"memory": "1Gi"},
        (CounterSet("cores", {"core-0": 1}),),
    )
    wire = device.to_wire()
    assert wire == {
        "name": "d",
        "attributes": {"a": {"int": 0}, "b": {"bool": True}},
        "capacity": {"memory": {"value": "1Gi"}},
        "consumesCounters": [{"counterSet": "cores", "counters": {"core-0": {"value": "1"}}}],
    }
    assert list(wire["attributes"]) == ["a", "b"]
    assert devices.Device("d", (0,)).to_wire() == {"name": "d"}


def test_memory_is_a_canonical_quantity() -> None:
    node = node_of("trn2u.48xlarge")
    bigger = replace(node, devices=tuple(replace(d, memory_bytes=64 * 1024**3) for d in node.devices))
    assert published(bigger)[0].capacity["memory"] == "1Ti"
