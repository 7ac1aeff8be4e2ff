"""Placing a pod: node, allocations, and the message of a waiting pod."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_dra.core.wire import Obj
from neuron_dra.simulate import allocator, scheduler
from neuron_dra.simulate.pools import PoolInventory
from neuron_dra.simulate.selectors import Selectors

DRIVER = "neuron.aws.com"
CLASS = {"metadata": {"name": DRIVER}, "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]}}
POD: Obj = {"metadata": {"name": "pod0"}, "spec": {}}


def node(name: str, labels: dict[str, str] | None = None, **spec: Any) -> Obj:
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}


def slices(*nodes: str, count: int = 4, instance_type: str = "trn2.48xlarge") -> list[Obj]:
    devices = [
        {
            "name": f"neuron-device-{i}",
            "attributes": {"deviceId": {"int": i}, "instanceType": {"string": instance_type}},
        }
        for i in range(count)
    ]
    return [
        {
            "metadata": {"name": f"{name}-{DRIVER}-00"},
            "spec": {
                "driver": DRIVER,
                "nodeName": name,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        }
        for name in nodes
    ]


def claim(count: int = 1, name: str = "claim", cel: str = "", allocation: Obj | None = None) -> Obj:
    exactly: Obj = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": count}
    if cel:
        exactly["selectors"] = [{"cel": {"expression": cel}}]
    status = {"allocation": allocation} if allocation else {}
    spec = {"devices": {"requests": [{"name": "neurons", "exactly": exactly}]}}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec, "status": status}


def place(
    claims: list[Obj],
    nodes: list[Obj],
    published: list[Obj] | PoolInventory,
    held: list[Obj] | None = None,
    pod: Obj = POD,
) -> scheduler.Placement | scheduler.Unschedulable:
    return scheduler.schedule(pod, claims, nodes, published, [CLASS], allocator.devices_in_use(held or []))


def placed(outcome: scheduler.Placement | scheduler.Unschedulable) -> tuple[str, list[str]]:
    assert isinstance(outcome, scheduler.Placement), outcome
    results = [r["device"] for a in outcome.allocations.values() for r in a["devices"]["results"]]
    return outcome.node, [device.removeprefix("neuron-device-") for device in results]


def refused(outcome: scheduler.Placement | scheduler.Unschedulable) -> scheduler.Unschedulable:
    assert isinstance(outcome, scheduler.Unschedulable), outcome
    return outcome


def test_pod_goes_to_the_first_fitting_node() -> None:
    nodes = [node("a"), node("b")]
    first = place([claim(3)], nodes, slices("a", "b"))
    assert placed(first) == ("a", ["0", "1", "2"])
    assert isinstance(first, scheduler.Placement)
    held = [claim(3, allocation=dict(first.allocations["claim"]))]
    assert placed(place([claim(3)], nodes, slices("a", "b"), held)) == ("b", ["0", "1", "2"])


def test_shortage_message_is_the_schedulers() -> None:
    outcome = refused(place([claim(17)], [node("a"), node("b")], slices("a", "b")))
    assert outcome.message == "0/2 nodes are available: 2 cannot allocate all claims."
    assert outcome.reasons == dict.fromkeys(("a", "b"), ("request neurons wants 17 devices: 4 match",))
    assert not outcome.error


def test_reasons_are_counted_per_node() -> None:
    taint = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
    nodes = [node("a"), node("b", taints=[taint]), node("c", unschedulable=True), node("d")]
    outcome = refused(place([claim(9)], nodes, slices("a", "b")))
    assert outcome.message == (
        "0/4 nodes are available: 1 node(s) had untolerated taint {dedicated}, 1 node(s) were unschedulable, "
        "2 cannot allocate all claims."
    )
    assert outcome.reasons["d"] == ("request neurons wants 9 devices: the node publishes no devices",)


def test_no_nodes_has_its_own_message() -> None:
    assert refused(place([claim()], [], [])).message == "no nodes available to schedule pods"


def test_failing_selector_fails_the_pod() -> None:
    untagged = slices("a", instance_type="trn1.2xlarge")
    del untagged[0]["spec"]["devices"][0]["attributes"]["instanceType"]
    picky = claim(cel=f"device.attributes['{DRIVER}'].instanceType == 'trn2.48xlarge'")
    outcome = refused(place([picky], [node("b"), node("a")], [*untagged, *slices("b")]))
    assert outcome.error
    assert "CEL runtime error: no such key: instanceType" in outcome.message
    guarded = claim(
        cel=f"has(device.attributes['{DRIVER}'].instanceType) && "
        f"device.attributes['{DRIVER}'].instanceType == 'trn2.48xlarge'"
    )
    assert placed(place([guarded], [node("a"), node("b")], [*untagged, *slices("b")])) == ("b", ["0"])


def test_allocated_claim_pins_the_pod() -> None:
    first = place([claim()], [node("b")], slices("a", "b"))
    assert isinstance(first, scheduler.Placement)
    shared = claim(allocation=dict(first.allocations["claim"]))
    second = place([shared, claim(name="own")], [node("a"), node("b")], slices("a", "b"), [shared])
    assert isinstance(second, scheduler.Placement)
    assert (second.node, list(second.allocations)) == ("b", ["own"])
    outcome = refused(place([shared], [node("a")], slices("a"), [shared]))
    assert outcome.message == "0/1 nodes are available: 1 resourceclaim not available on the node."


def test_claim_is_shared_by_at_most_256_pods() -> None:
    shared = claim(allocation={"devices": {"results": []}})
    shared["status"]["reservedFor"] = [{"resource": "pods", "name": str(i), "uid": str(i)} for i in range(256)]
    assert "in use by 256 pods" in refused(place([shared], [node("a")], slices("a"))).message


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"kind": "big"}},
        {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "size", "operator": "Gt", "values": ["8"]}]}
                        ]
                    }
                }
            }
        },
    ],
)
def test_pods_node_constraints_apply(spec: Obj) -> None:
    nodes = [node("a", {"kind": "small", "size": "4"}), node("b", {"kind": "big", "size": "16"})]
    assert placed(place([claim()], nodes, slices("a", "b"), pod={"spec": spec})) == ("b", ["0"])


@pytest.mark.contract("A3")
def test_preferred_alternative_wins_over_node_order() -> None:
    subs = [{"name": n, "deviceClassName": DRIVER, "count": c} for n, c in (("large", 8), ("small", 1))]
    wanted = claim()
    wanted["spec"]["devices"]["requests"] = [{"name": "neurons", "firstAvailable": subs}]
    outcome = place([wanted], [node("a"), node("b")], slices("a") + slices("b", count=8))
    assert placed(outcome)[0] == "b"


def test_fleet_of_300_needs_few_evaluations() -> None:
    names = [f"n{i}" for i in range(300)]
    inventory = PoolInventory(slices(*names, count=16))
    memo = Selectors()
    wanted = claim(17, cel=f"device.attributes['{DRIVER}'].instanceType == 'trn2.48xlarge'")
    outcome = scheduler.schedule(POD, [wanted], [node(n) for n in names], inventory, [CLASS], frozenset(), memo)
    assert refused(outcome).message == "0/300 nodes are available: 300 cannot allocate all claims."
    assert memo.evaluations == 2 * 16  # class and request, once per distinct device
