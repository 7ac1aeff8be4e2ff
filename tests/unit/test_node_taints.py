"""`why` explains taints and proposes to tolerate only those that reserve nodes for Neuron workloads (4.08)."""

from __future__ import annotations

import itertools

import pytest

from neuron_dra.ask.doctor import nodes as doctor_nodes
from neuron_dra.ask.render.findings import Finding
from neuron_dra.ask.why import node as why_node
from neuron_dra.ask.why import pod as why_pod
from neuron_dra.ask.world.world import World
from neuron_dra.core import taints
from neuron_dra.core.taints import KNOWN, KnownTaint, TaintMeaning
from neuron_dra.core.wire import Obj
from tests.support import small_clusters as small

LEAVING = (TaintMeaning.LEAVES, TaintMeaning.MAY_LEAVE)
UNKNOWN = {"key": "example.com/mystery", "value": "yes", "effect": "NoSchedule"}


def tainted(*marks: Obj, cordoned: bool = False) -> list[Obj]:
    """Return an idle node with taints, and a pod that waits for four devices."""
    items = [*small.base("a"), small.template("four", 4), small.pod("train", "four")]
    for item in items:
        if item["kind"] == "Node":
            item["spec"] = {"taints": list(marks), **({"unschedulable": True} if cordoned else {})}
    return items


def about_pod(items: list[Obj], name: str = "train") -> Finding:
    world = World(small.cluster(items))
    pod = world.snapshot.get("Pod", name, "default")
    assert pod is not None
    [finding, *_] = why_pod.report(world, pod).findings
    return finding


def about_node(items: list[Obj], name: str = "a") -> Finding:
    world = World(small.cluster(items))
    [finding, *_] = why_node.findings(world, world.nodes[name])
    return finding


def mark_of(known: KnownTaint) -> Obj:
    key = known.key + "some" if known.key.endswith("/") else known.key
    return {"key": key, "value": known.value or "true", "effect": "NoSchedule"}


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.key + known.value)
def test_why_explains_a_known_taint_and_lets_only_neuron_pods_tolerate_theirs(known: KnownTaint) -> None:
    mark = mark_of(known)
    finding = about_pod(tainted(mark))
    assert f"{mark['key']}={mark['value']}:NoSchedule ({known.says})" in finding.text
    proposed = [change.text for change in finding.changes]
    assert proposed == (
        [f"let the pod tolerate the taint {mark['key']}"] if known.meaning is TaintMeaning.NEURON else []
    )
    assert known.says in about_node(tainted(mark)).text


def test_unknown_taint_is_named_with_its_effect_and_nothing_is_proposed() -> None:
    finding = about_pod(tainted(UNKNOWN))
    assert "the pod does not tolerate its taint example.com/mystery=yes:NoSchedule" in finding.text
    assert finding.changes == ()


def test_of_an_unknown_taint_why_says_who_can_tell_and_how_to_remove_it() -> None:
    [text] = [text for label, text in about_pod(tainted(UNKNOWN)).facts if label == "to check"]
    assert text.endswith("if pods may run there: kubectl taint node a example.com/mystery:NoSchedule-")


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.key + known.value)
def test_no_taint_of_a_known_program_is_to_be_removed_by_hand(known: KnownTaint) -> None:
    for marks in ([mark_of(known)], [UNKNOWN, mark_of(known)]):
        assert not any("kubectl taint" in text for _, text in about_pod(tainted(*marks)).facts)


@pytest.mark.parametrize("known", [known for known in KNOWN if known.meaning in LEAVING], ids=lambda known: known.key)
def test_node_that_goes_away_is_not_to_be_uncordoned(known: KnownTaint) -> None:
    items = tainted({**mark_of(known), "effect": "PreferNoSchedule"}, cordoned=True)
    assert about_pod(items).changes == ()
    announced = f"goes away: {mark_of(known)['key']}" in about_node(items).text
    assert announced is taints.announces_removal(mark_of(known)["key"]) is (known.meaning is TaintMeaning.LEAVES)


def test_candidates_of_the_autoscaler_may_leave_and_announce_nothing() -> None:
    candidate = "DeletionCandidateOfClusterAutoscaler"
    assert (taints.may_leave(candidate), taints.announces_removal(candidate)) == (True, False)


def test_cordoned_node_that_stays_may_be_uncordoned() -> None:
    assert [change.text for change in about_pod(tainted(cordoned=True)).changes] == ["kubectl uncordon a"]


def test_rows_for_one_value_come_before_the_rows_that_hide_them() -> None:
    for earlier, later in itertools.combinations(KNOWN, 2):
        assert not earlier.is_of(later.key, later.value), (earlier, later)
    assert len({known.key for known in KNOWN}) <= 30
    assert all(known.source for known in KNOWN)


def owned(items: list[Obj], name: str) -> list[Obj]:
    for item in items:
        if item["kind"] == "Pod" and item["metadata"]["name"] == name:
            owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "w", "controller": True}
            item["metadata"]["ownerReferences"] = [owner]
    return items


@pytest.mark.parametrize("is_owned", [False, True])
def test_pod_that_is_created_again_is_not_to_be_deleted(is_owned: bool) -> None:
    """Another pod takes its place, and perhaps its devices."""
    items = small.base("a")
    items += small.running(items, "holder", 16, "a")
    items += [small.template("four", 4), small.pod("train", "four")]
    finding = about_pod(owned(items, "holder") if is_owned else items)
    assert finding.text.endswith("default/holder holds 16")
    assert [change.text for change in finding.changes] == ([] if is_owned else ["kubectl delete pod holder -n default"])


def test_rule_that_taints_devices_is_named_and_not_to_be_deleted() -> None:
    taint = {"key": "example.com/out", "effect": "NoSchedule"}
    rule = {
        "apiVersion": small.API,
        "kind": "DeviceTaintRule",
        "metadata": {"name": "maintenance"},
        "spec": {"deviceSelector": {"driver": "neuron.aws.com"}, "taint": taint},
    }
    finding = about_pod([*tainted(), rule])
    assert ("rule", "DeviceTaintRule maintenance") in finding.facts
    assert finding.changes == ()


@pytest.mark.parametrize(
    ("value", "kind"), [("auto", "EKS Auto Mode"), ("fargate", "EKS Fargate"), ("hybrid", "EKS Hybrid Nodes")]
)
def test_node_that_the_driver_never_serves_is_no_fault_of_the_installation(value: str, kind: str) -> None:
    labels = {"eks.amazonaws.com/compute-type": value}
    items = [*small.base("a"), small.node("b", labels=labels), small.template("all", 16), small.pod("train", "all")]
    items += small.running(small.base("a"), "holder", 16, "a")
    finding = about_node(items, "b")
    assert (finding.code, kind in finding.text, finding.changes) == ("NotServed", True, ())
    assert "node b" not in about_pod(items).text
    assert all("node b" not in line.text for line in doctor_nodes.lines(World(small.cluster(items), proposes=False)))
