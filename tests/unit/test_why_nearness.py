"""`why` names what is near, compares amounts in one unit, and shows no devices that a pod does not request (4.09)."""

from __future__ import annotations

import copy
from fractions import Fraction

import pytest

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import Report
from neuron_dra.ask.why import answer, sizes
from neuron_dra.ask.world import resources
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from tests.support import cluster_faults as faults
from tests.support import small_clusters as small


def why(items: list[Obj], name: str = "p") -> Report:
    world = World(snapshot.build(copy.deepcopy(items)))
    pod = world.snapshot.get("Pod", name, "default")
    assert pod is not None
    return answer.REPORTS["Pod"](world, pod)


@pytest.mark.parametrize(
    ("name", "free", "wanted", "texts"),
    [
        ("cpu", Fraction(191990, 1000), Fraction(5000), ("191.99", "5000")),
        ("cpu", Fraction(1, 2), Fraction(2), ("0.5", "2")),
        ("memory", Fraction(512 * 2**20), Fraction(96 * 2**30), ("0.5Gi", "96Gi")),
        ("memory", Fraction(96 * 2**30 - 2**20), Fraction(96 * 2**30), ("95.999Gi", "96Gi")),
        ("pods", Fraction(0), Fraction(1), ("0", "1")),
    ],
)
def test_amounts_are_compared_in_one_unit(name: str, free: Fraction, wanted: Fraction, texts: tuple[str, str]) -> None:
    assert resources.compared(name, free, wanted) == texts


def test_nearest_names_come_first_then_the_most_used() -> None:
    classes = ["connected-1.x", "connected-16.x", "cores-1.x", "gpu", "neuron"]
    assert words.by_nearness("connected-17.x", classes, {"neuron": 3, "gpu": 1})[:2] == [
        "connected-16.x",
        "connected-1.x",
    ]
    assert words.by_nearness("zzz", classes, {"neuron": 3, "gpu": 1})[:2] == ["neuron", "gpu"]


def test_misspelled_attribute_gets_the_nearest_name() -> None:
    items = faults.healthy()
    faults.selector(items, "device.attributes['neuron.aws.com'].topologyx == 77")
    text = why(items).findings[0].text
    assert text.endswith("no such key: topologyx; no device publishes topologyx, did you mean topology_x?")


def test_misspelled_attribute_of_a_guarded_selector_is_spelled_right() -> None:
    """Each occurrence is replaced, so that the change can be confirmed."""
    items = faults.healthy()
    attribute = "device.attributes['neuron.aws.com'].instanceTyp"
    faults.selector(items, f"has({attribute}) && {attribute} == 'trn2.48xlarge'")
    finding = why(items).findings[0]
    text = "neuron.aws.com/instanceTyp: no device publishes it, did you mean instanceType?"
    assert ("available", text) in finding.facts
    right = "device.attributes['neuron.aws.com'].instanceType"
    assert finding.changes[0].text.endswith(f"write the selector: has({right}) && {right} == 'trn2.48xlarge'")


def test_misspelled_attribute_with_an_unpublished_value_gets_the_nearest_name_and_its_values() -> None:
    """No change of the name alone helps, so that none is confirmed."""
    items = faults.healthy()
    attribute = "device.attributes['neuron.aws.com'].instanceTyp"
    faults.selector(items, f"has({attribute}) && {attribute} == 'trn9.48xlarge'")
    finding = why(items).findings[0]
    available = [text for name, text in finding.facts if name == "available"]
    assert available[0] == "neuron.aws.com/instanceTyp: no device publishes it, did you mean instanceType?"
    assert available[1].startswith("neuron.aws.com/instanceType: 'trn2.48xlarge' (")
    assert finding.changes == ()


def test_nodes_that_the_selector_excludes_are_not_blamed() -> None:
    """The taint of the pod's own node is the cause, and another instance type is no remedy for it."""
    items = faults.healthy()
    node = faults.the(items, "Node", "b")
    assert node is not None
    node["metadata"]["labels"]["pool"] = "mine"
    node["spec"]["taints"] = [{"key": "dedicated", "value": "x", "effect": "NoSchedule"}]
    faults.waiting(items)["spec"]["nodeSelector"] = {"pool": "mine"}
    [finding] = why(items).findings
    assert finding.text == (
        "it may not run on node b that would serve it: the pod does not tolerate its taint dedicated=x:NoSchedule"
    )
    assert finding.changes == ()


def test_nearest_label_is_proposed_first() -> None:
    items = [*faults.healthy(), small.node("c", "trn1.2xlarge"), *small.slices("c", "trn1.2xlarge")]
    faults.change_requests(items, count=1, selectors=[])
    faults.waiting(items)["spec"]["nodeSelector"] = {"node.kubernetes.io/instance-type": "trn2.48xlage"}
    text = why(items).findings[0].changes[0].text
    assert text == "in the pod's nodeSelector, write node.kubernetes.io/instance-type: trn2.48xlarge"


def test_pod_that_requests_more_than_a_node_has_is_told_what_fits() -> None:
    items = faults.healthy()
    faults.waiting(items)["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "400"
    [finding] = why(items).findings
    assert finding.changes[0].text == "in the pod's requests, write cpu: 192"


def test_devices_of_another_driver_are_not_shown_as_held() -> None:
    items = faults.healthy()
    items += small.running(items, "busy-a", 12, "a")
    items += small.running(items, "busy-b", 16, "b")
    network = {"resource": "efa", "driver": "dra.net", "pool": "b", "device": "pci-0000-56-00-0", "request": "r"}
    for item in items:
        if item["kind"] == "ResourceSlice" and item["spec"]["nodeName"] == "b":
            efa = {**copy.deepcopy(item), "metadata": {"name": "b-efa"}}
            efa["spec"]["driver"] = "dra.net"
            efa["spec"]["devices"] = [{"name": "pci-0000-56-00-0", "attributes": {}}]
            items.append(efa)
            break
    claim = faults.the(items, "ResourceClaim", "busy-b-neurons-x")
    assert claim is not None
    claim["status"]["allocation"]["devices"]["results"].append(network)
    held = [text for finding in why(items).findings for label, text in finding.facts if label == "held"]
    assert held
    assert "pci-" not in " ".join(held)


def test_sets_are_counted_as_sets() -> None:
    assert sizes.amount("connected-4.neuron.aws.com", 5) == "5 sets of 4 connected devices (20 devices)"
    assert sizes.amount("cores-2.neuron.aws.com", 1) == "1 part of 2 cores (2 cores)"
    assert sizes.amount("neuron.aws.com", 3) == "3 devices"
