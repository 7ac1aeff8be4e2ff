"""From readings to the node, and findings about differences."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dra.core import catalogue, facts, linked, topology
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.facts import DeviceFacts, NodeFacts, NodeLabels, Unread

[TORUS] = [known for known in catalogue.all_types() if known.name == "trn2.48xlarge"]


def node_of(name: str = "trn2.48xlarge") -> NodeFacts:
    known = catalogue.lookup(name)
    assert known is not None
    return NodeFacts(
        name,
        "2.30.2.0",
        tuple(
            DeviceFacts(i, known.cores_per_device, known.links[i] if known.links else (), (243, i), True)
            for i in range(known.device_count)
        ),
    )


def changed(read: NodeFacts, device_id: int, **values: Any) -> NodeFacts:
    return replace(read, devices=tuple(replace(d, **values) if d.device_id == device_id else d for d in read.devices))


def without(read: NodeFacts, *device_ids: int) -> NodeFacts:
    return replace(read, devices=tuple(d for d in read.devices if d.device_id not in device_ids))


def build(read: NodeFacts, **labels: Any) -> topology.Node:
    return topology.build(read, NodeLabels(**labels))


def kinds(node: topology.Node) -> list[str]:
    return [finding.kind for finding in node.findings]


@pytest.mark.parametrize("known", catalogue.all_types(), ids=lambda known: known.name)
def test_healthy_node_has_no_finding(known: InstanceType) -> None:
    node = build(node_of(known.name))
    assert node.findings == ()
    assert [device.device_id for device in node.devices] == list(range(known.device_count))
    assert all(device.core_count == known.cores_per_device for device in node.devices)


@pytest.mark.parametrize("known", catalogue.all_types(), ids=lambda known: known.name)
def test_links_are_symmetric(known: InstanceType) -> None:
    connected = {device.device_id: device.connected for device in build(node_of(known.name)).devices}
    assert all(one in connected[other] for one, others in connected.items() for other in others)


def test_switched_devices_are_all_connected() -> None:
    node = build(node_of("trn3.48xlarge"))
    assert all(device.connected == frozenset(range(16)) - {device.device_id} for device in node.devices)


def test_one_sided_link_is_down() -> None:
    left = tuple(i for i in TORUS.links[1] if i != 0)
    node = build(changed(node_of(), 1, connected=left))
    assert 1 not in node.devices[0].connected
    assert 0 not in node.devices[1].connected
    assert kinds(node) == ["one-sided-link"]
    assert "neuron0 reports a link to neuron1" in node.findings[0].message


def test_missing_link_is_one_finding() -> None:
    read = node_of()
    read = changed(read, 0, connected=tuple(i for i in TORUS.links[0] if i != 4))
    read = changed(read, 4, connected=tuple(i for i in TORUS.links[4] if i != 0))
    node = build(read)
    assert kinds(node) == ["missing-link"]
    assert "between neuron0 and neuron4" in node.findings[0].message
    assert 4 not in node.devices[0].connected


@pytest.mark.parametrize("reading", list(Unread))
def test_unknown_links_are_neither_up_nor_down(reading: Unread) -> None:
    node = build(changed(node_of(), 3, connected=reading))
    assert node.findings == ()
    assert node.devices[3].connected == frozenset()
    assert 3 not in node.devices[2].connected


def without_links(instance_type: str) -> NodeFacts:
    read = node_of(instance_type)
    for device in read.devices:
        read = changed(read, device.device_id, connected=())
    return read


@pytest.mark.parametrize("instance_type", ["trn1.32xlarge", "trn2.48xlarge", "inf2.24xlarge", "inf2.48xlarge"])
def test_empty_table_of_links_is_unread(instance_type: str) -> None:
    """The driver prints an empty table for all devices if one was missing when it loaded."""
    spec = catalogue.lookup(instance_type)
    assert spec is not None
    read = without_links(instance_type)
    whole, rest = build(read), build(without(read, 4))
    assert kinds(whole) == ["links-not-reported"]
    assert kinds(rest) == ["links-not-reported", "missing-device"]
    assert {device.device_id: device.connected for device in whole.devices} == {
        device_id: frozenset(others) for device_id, others in enumerate(spec.links)
    }
    assert {device.device_id: device.connected for device in rest.devices} == {
        device_id: frozenset(others) - {4} for device_id, others in enumerate(spec.links) if device_id != 4
    }
    assert linked.up_now(whole) == linked.of_type(spec)
    assert {device.reported for device in rest.devices} == {None}


@pytest.mark.parametrize("instance_type", ["trn1.2xlarge", "inf2.8xlarge", "trn2.3xlarge", "trn3.48xlarge"])
def test_types_without_links_have_an_empty_table(instance_type: str) -> None:
    assert build(without_links(instance_type)).findings == ()


@pytest.mark.parametrize(
    ("links", "resetting"),
    [
        ({0: (0, 0), 1: (0, 0), 2: (0, 0), 3: (0, 0)}, (0, 1, 2, 3)),
        ({0: (1, 0), 1: (2, 0), 2: (3, 0), 3: (0, 0)}, (3,)),
        ({0: (1, 0), 1: (2, 0), 2: (3, 1), 3: (0, 2)}, ()),
    ],
    ids=["all are reset", "one is reset", "the last one has just been reset"],
)
def test_devices_of_inf1_that_are_reset_have_their_usual_links(
    links: dict[int, tuple[int, ...]], resetting: tuple[int, ...]
) -> None:
    read = node_of("inf1.6xlarge")
    for device_id, others in links.items():
        read = changed(read, device_id, connected=others, reset_state=0 if device_id in resetting else 1)
    node = build(read)
    assert node.findings == ()
    assert [sorted(device.connected) for device in node.devices] == [[1], [0, 2], [1, 3], [2]]


def test_links_of_inf1_are_those_of_the_devices() -> None:
    """Control: a device that is not reset says which links it has, also others than the catalogue's."""
    read = node_of("inf1.6xlarge")
    for device_id, others in enumerate([(1, 3), (2, 0), (3, 1), (0, 2)]):
        read = changed(read, device_id, connected=others, reset_state=1)
    assert [sorted(device.connected) for device in build(read).devices] == [[1, 3], [0, 2], [1, 3], [0, 2]]


def test_busy_device_suppresses_link_finding() -> None:
    read = node_of()
    for device in range(16):
        read = changed(read, device, connected=Unread.BUSY if device == 3 else ())
    assert build(read).findings == ()


def test_optional_links_are_not_missing() -> None:
    read = node_of("inf1.6xlarge")
    for device in range(4):
        read = changed(read, device, connected=())
    assert build(read).findings == ()


def test_missing_device_is_named() -> None:
    node = build(without(node_of(), 7))
    assert kinds(node) == ["missing-device"]
    assert "neuron7 of trn2.48xlarge's 16 devices is missing" in node.findings[0].message
    assert len(node.devices) == 15


def test_several_missing_devices_are_one_sentence() -> None:
    assert "neuron7, neuron9 of" in build(without(node_of(), 7, 9)).findings[0].message


def test_no_devices_finding_names_the_kernel_driver() -> None:
    node = build(without(node_of(), *range(16)))
    assert kinds(node) == ["no-devices"]
    assert "kernel driver" in node.findings[0].message


def test_extra_device_is_a_finding_and_kept() -> None:
    read = node_of("trn2.3xlarge")
    node = build(replace(read, devices=(*read.devices, DeviceFacts(1, 8, (), (243, 1), True))))
    assert kinds(node) == ["unexpected-device"]
    assert "neuron1 exceeds the device count of trn2.3xlarge (1)" in node.findings[0].message
    assert len(node.devices) == 2


def test_extra_devices_are_one_finding() -> None:
    read = node_of("trn2.3xlarge")
    more = tuple(DeviceFacts(i, 8, (), (243, i), True) for i in (1, 2))
    (finding,) = build(replace(read, devices=(*read.devices, *more))).findings
    assert "neuron1, neuron2 exceed the device count of trn2.3xlarge (1)" in finding.message


def test_wrong_core_count_is_a_finding_and_kept() -> None:
    node = build(changed(node_of(), 2, core_count=6))
    assert kinds(node) == ["wrong-core-count"]
    assert node.devices[2].core_count == 6


@pytest.mark.parametrize("reading", list(Unread))
def test_unreadable_core_count_is_the_types(reading: Unread) -> None:
    node = build(changed(node_of(), 2, core_count=reading))
    assert node.findings == ()
    assert node.devices[2].core_count == 8


def test_unknown_core_count_is_zero() -> None:
    read = replace(changed(node_of(), 2, core_count=Unread.UNKNOWN), product_name=None)
    assert build(read).devices[2].core_count == 0


def test_device_without_file_is_a_finding() -> None:
    node = build(changed(node_of(), 5, device_file=False))
    assert kinds(node) == ["missing-device-file"]
    assert "/dev/neuron5" in node.findings[0].message


def test_dmi_is_believed_before_the_label() -> None:
    node = build(node_of("trn2.48xlarge"), instance_type="trn1.32xlarge")
    assert node.instance_type_name == "trn2.48xlarge"
    assert kinds(node) == ["instance-type-disagreement"]
    assert node.findings[0].message == (
        "DMI reports trn2.48xlarge, but the label node.kubernetes.io/instance-type is trn1.32xlarge; trn2.48xlarge is "
        "used. Correct the label"
    )


@pytest.mark.parametrize("product", [None, "Standard PC (Q35 + ICH9, 2009)"])
def test_label_gives_the_type_without_dmi(product: str | None) -> None:
    node = build(replace(node_of(), product_name=product), instance_type="trn2.48xlarge")
    assert node.instance_type_name == "trn2.48xlarge"
    assert node.spec == TORUS
    assert node.findings == ()


def test_sagemakers_label_agrees_with_ec2s_dmi() -> None:
    node = build(node_of(), instance_type="ml.trn2.48xlarge")
    assert (node.instance_type_name, node.findings) == ("trn2.48xlarge", ())


def test_unknown_type_is_a_finding() -> None:
    node = build(replace(node_of(), product_name="trn9.48xlarge"))
    assert kinds(node) == ["unknown-instance-type"]
    assert "instance type trn9.48xlarge is not in this driver's catalogue" in node.findings[0].message
    assert node.spec is None
    assert len(node.devices) == 16
    assert node.devices[0].connected == frozenset(TORUS.links[0])
    assert node.devices[0].memory_bytes is None


def test_missing_type_is_a_finding() -> None:
    node = build(replace(node_of(), product_name=None))
    assert node.instance_type_name is None
    assert kinds(node) == ["unknown-instance-type"]
    assert "/sys" in node.findings[0].message


def test_empty_labels_are_none() -> None:
    labels = NodeLabels.from_labels(
        {
            "node.kubernetes.io/instance-type": "trn2u.48xlarge",
            "topology.k8s.aws/network-node-layer-1": "nn-1",
            "topology.k8s.aws/network-node-layer-2": "",
            "topology.k8s.aws/network-node-layer-3": "nn-3",
            "topology.k8s.aws/capacity-block-id": "cr-1",
            "other": "x",
        }
    )
    assert labels == NodeLabels("trn2u.48xlarge", ("nn-1", None, "nn-3"), "cr-1")


readings = st.sampled_from(list(Unread)) | st.lists(st.integers(0, 20), max_size=6).map(tuple)
cores = st.sampled_from(list(Unread)) | st.integers(1, 16)


@given(
    st.sampled_from([known.name for known in catalogue.all_types()] + ["trn9.48xlarge", None]),
    st.dictionaries(st.integers(0, 20), st.tuples(readings, cores, st.booleans()), max_size=18),
)
def test_links_are_symmetric_for_any_input(
    name: str | None, read: dict[int, tuple[tuple[int, ...] | Unread, int | Unread, bool]]
) -> None:
    devices = tuple(
        DeviceFacts(i, core_count, connected, (243, i), present)
        for i, (connected, core_count, present) in sorted(read.items())
    )
    node = topology.build(NodeFacts(name, None, devices, facts.UltraServerFacts()), NodeLabels())
    connected = {device.device_id: device.connected for device in node.devices}
    assert sorted(connected) == sorted(read)
    for one, others in connected.items():
        assert one not in others
        assert all(one in connected[other] for other in others)
    assert all(finding.message for finding in node.findings)
