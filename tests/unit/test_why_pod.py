"""`why`: what a person reads, for each situation (17.3)."""

from __future__ import annotations

import copy
import dataclasses
import random
from typing import Any

import pytest

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.render import report_text
from neuron_dra.ask.render.findings import Report
from neuron_dra.ask.why import answer
from neuron_dra.ask.why import pod as why_pod
from neuron_dra.ask.world import demand, imagined
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from tests.support import cluster_faults as faults
from tests.support import reported_clusters as reported
from tests.support import small_clusters as small
from tests.support.causes import situations
from tests.support.reported_clusters import event

PREPARE = "FailedPrepareDynamicResources"
FAILED = "Failed to prepare dynamic resources:"
LNC = "error applying config: LNC value is not configurable for instance type trn1.2xlarge"


def report(items: list[Obj], kind: str = "Pod", name: str = "p", namespace: str = "default") -> Report:
    world = World(snapshot.build(copy.deepcopy(items)))
    found = world.snapshot.get(kind, name, namespace)
    assert found is not None
    return answer.REPORTS[kind](world, found)


def broken(*which: faults.Fault) -> list[Obj]:
    items = faults.healthy()
    for fault in which:
        fault(random.Random(0), items)
    return items


def started(node: str = "a", **status: Any) -> list[Obj]:
    """The healthy cluster after the pod was scheduled."""
    items = faults.healthy()
    waiting = faults.waiting(items)
    waiting["spec"]["nodeName"] = node
    waiting["status"] = {**waiting["status"], "phase": "Pending", "conditions": [], **status}
    claim = faults.the(items, "ResourceClaim", "p-neurons-x")
    assert claim is not None
    results = [
        {"request": "neurons", "driver": "neuron.aws.com", "pool": node, "device": f"neuron-device-{n}"}
        for n in range(4, 8)
    ]
    claim["status"] = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "uid-p"}],
    }
    return items


def test_selector_that_matches_nothing_shows_what_was_there() -> None:
    assert report_text.lines(report(broken(faults.wrong_type))) == [
        "pod default/p waits for a node: the selector of request neurons matches no",
        "  device",
        "  selector    device.attributes['neuron.aws.com'].instanceType ==",
        "              'trn1.32xlarge'",
        "  available   neuron.aws.com/instanceType: 'trn2.48xlarge' (32 devices)",
        "  to change   in ResourceClaimTemplate four, request neurons, write the",
        "              selector: has(device.attributes['neuron.aws.com'].instanceType) &&",
        "              device.attributes['neuron.aws.com'].instanceType ==",
        "              'trn2.48xlarge'",
        "              kubectl apply cannot change a template: kubectl replace --force -f",
        "              FILE, then delete p and create it again; running pods keep their",
        "              claims",
        "              then p gets devices 4-7 of node a",
    ]


def test_selector_that_fails_is_named_though_all_nodes_are_reserved() -> None:
    first = report(broken(faults.reserved, faults.wrong_attribute)).findings[0]
    assert first.code == "SelectorFails"
    assert first.text.startswith(
        "the selector of request neurons fails on a device, which blocks the pod on every node"
    )


def test_other_request_of_a_pod_with_reserved_devices_is_the_cause() -> None:
    """The reservation is the pod's own, so what its class selects is there."""
    items = broken(faults.reserved)
    for name in ("four", "p-neurons-x"):
        items = [each for each in items if each["metadata"]["name"] != name]
    faults.waiting(items)["status"].pop("resourceClaimStatuses", None)
    made = small.template("four", 1)
    devices = made["spec"]["spec"]["devices"]
    devices["requests"][0]["exactly"]["deviceClassName"] = "workload.neuron.aws.com"
    selectors = [{"cel": {"expression": "device.driver == 'dra.net'"}}]
    exactly = {"deviceClassName": "neuron.aws.com", "count": 1, "selectors": selectors}
    devices["requests"].append({"name": "network", "exactly": exactly})
    first = report([*items, made]).findings[0]
    assert (first.code, first.text) == ("SelectorMatchesNothing", "the selector of request network matches no device")


def test_busy_devices_show_who_holds_them() -> None:
    lines = report_text.lines(report(broken(faults.held_in_part)))
    assert lines[0].startswith("pod default/p waits for a node: 2 nodes have too few free devices")
    assert any("devices 0-3 by default/other" in line for line in lines)
    assert any("to change" in line for line in lines)


def test_pod_that_can_move_is_named_with_its_new_node() -> None:
    """One pod moved would free the node: it is named, with the place where it fits."""
    items = small.base("a", "b")
    items += small.running(items, "big", 14, "b")
    items += small.running(items, "small", 2, "a")
    found = faults.the(items, "Pod", "small")
    assert found is not None
    found["spec"].pop("nodeSelector")
    made = small.template("whole", 16)
    items += [made, *small.created(small.pod("p", "whole"), made)]
    first = report(items).findings[0].changes[0]
    assert (first.text, first.outcome) == (
        "kubectl delete pod small -n default",
        "then p gets devices 0-15 of node a; created again, default/small fits on node b",
    )


@pytest.mark.parametrize(
    ("items", "code", "words"),
    [
        (
            [event(PREPARE, f"{FAILED} prepare claims: {LNC}")],
            "DriverRejects",
            "the driver rejects the claim: error applying config: LNC value is not configurable for instance type trn1",
        ),
        (
            [event(PREPARE, f"{FAILED} DRA driver neuron.aws.com is not registered")],
            "DriverNotRegistered",
            "the driver neuron.aws.com is not registered with the kubelet of node a",
        ),
        (
            [event("Failed", "Error: CDI device injection failed: unresolvable CDI devices k8s.neuron/claim=x")],
            "RuntimeRejects",
            "the runtime of node a finds no CDI devices of its claim",
        ),
        (
            [event("Failed", 'Error: failed to stat CDI host device "/dev/neuron5": no such file or directory')],
            "DeviceFileMissing",
            "/dev/neuron5 is missing on node a: check udev and the kernel log there",
        ),
        ([event("Pulling", "image")], "Unknown", "unknown"),
        ([], "Unknown", "the snapshot has no events"),
    ],
    ids=["driver", "unregistered", "cdi", "no-file", "unrelated-event", "no-events"],
)
def test_kubelet_refusals_come_from_events(items: list[Obj], code: str, words: str) -> None:
    found = report([*started(), *items])
    assert (found.findings[0].code, found.fine) == (code, False)
    assert words in found.findings[0].text


def test_event_of_a_former_pod_does_not_count() -> None:
    old = event("FailedPrepareDynamicResources", "Failed to prepare dynamic resources: claim a/b: busy")
    old["involvedObject"]["uid"] = "another"
    assert report([*started(), old]).findings[0].code == "Unknown"


def test_configuration_is_judged_in_the_words_of_prepare() -> None:
    items = started()
    claim = faults.the(items, "ResourceClaim", "p-neurons-x")
    assert claim is not None
    parameters = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCoreCount": 2}
    entry = {"source": "FromClaim", "opaque": {"driver": "neuron.aws.com", "parameters": parameters}}
    claim["status"]["allocation"]["devices"]["config"] = [entry]
    first = report(items).findings[0]
    assert first.code == "DriverRejects"
    assert 'unknown field "config[0].opaque.parameters.logicalNeuronCoreCount", did you mean "logicalNeur' in first.text


def test_container_states_are_reported() -> None:
    waiting = [{"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]
    first = report(started(containerStatuses=waiting)).findings[0]
    assert (first.code, first.text) == ("ContainerProblem", "container main: ImagePullBackOff")


def test_running_pod_is_fine() -> None:
    found = report(started(phase="Running"))
    assert (found.fine, found.state) == (True, "runs on node a")


def test_running_pod_names_its_device_that_is_gone() -> None:
    items = started(phase="Running")
    for published in [item for item in items if item["kind"] == "ResourceSlice" and item["spec"]["nodeName"] == "a"]:
        left = [device for device in published["spec"]["devices"] if device["name"] != "neuron-device-5"]
        published["spec"]["devices"] = left
    found = report(items)
    (finding,) = found.findings
    assert (found.fine, found.state) == (False, "runs on node a")
    assert (finding.code, finding.text) == (
        "DevicesMissing",
        "1 device of the pod is missing, unhealthy or tainted on node a",
    )
    assert finding.facts == (
        ("neuron-device-5", "missing"),
        ("to do", "check the kernel log, and replace the instance if the device stays away"),
    )


def test_running_pod_names_its_unhealthy_device() -> None:
    items = started(phase="Running")
    for published in [item for item in items if item["kind"] == "ResourceSlice" and item["spec"]["nodeName"] == "a"]:
        for device in published["spec"]["devices"]:
            if device["name"] in ("neuron-device-5", "neuron-device-9"):
                device["attributes"]["unhealthy"] = {"string": "sram_ecc"}
    (finding,) = report(items).findings
    assert (finding.code, finding.facts) == (
        "DeviceTainted",
        (("neuron-device-5", "sram_ecc"), ("to do", "replace the instance")),
    )


def test_rejected_pod_shows_its_reason() -> None:
    found = report(started(phase="Failed", reason="UnexpectedAdmissionError", message="no neuron.aws.com"))
    assert found.findings[0].text == "UnexpectedAdmissionError: no neuron.aws.com"


@pytest.mark.parametrize(("name", "meant"), [("neuron-claim-template", False), ("efa-claim-tempalte", True)])
def test_template_for_other_devices_is_meant_only_after_a_slip(name: str, meant: bool) -> None:
    items = faults.healthy()
    faults.uncreate(items)
    faults.waiting(items)["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = name
    requests = [{"name": "efa", "exactly": {"deviceClassName": "efa.networking.k8s.aws"}}]
    four = faults.the(items, "ResourceClaimTemplate", "four")
    assert four is not None
    meta = {**four["metadata"], "name": "efa-claim-template", "uid": "uid-efa"}
    items.append({**four, "metadata": meta, "spec": {"spec": {"devices": {"requests": requests}}}})
    named = {"kind": "ResourceClaimTemplate", "namespace": "default", "name": name}
    assert demand.may_mean(snapshot.build(items), named, "efa-claim-template") is meant
    assert [change.text for finding in report(items).findings for change in finding.changes] == []


def test_workload_without_nodes_is_the_cause_of_a_missing_template() -> None:
    items = small.base("a")
    condition = {"type": "Ready", "status": "False", "reason": "NoFreeNodes", "message": "4 nodes needed, 1 is free"}
    workload = {
        "apiVersion": "neuron.aws.com/v1beta1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {"name": "job", "namespace": "default"},
        "spec": {"instanceType": "trn2u.48xlarge", "topologySize": 4, "resourceClaimTemplate": {"name": "job-rct"}},
        "status": {"state": "Pending", "conditions": [condition]},
    }
    items += [workload, small.pod("p", "job-rct")]
    first = report(items).findings[0]
    assert (first.code, first.facts) == (
        "WorkloadNotAllocated",
        (("reason", "NoFreeNodes"), ("message", "4 nodes needed, 1 is free")),
    )
    assert report(items, "NeuronUltraServerWorkload", "job").findings[0].text == "4 nodes needed, 1 is free"


def test_device_plugin_limits_point_to_migrate() -> None:
    pod = small.pod("p")
    pod["spec"]["containers"][0]["resources"]["limits"] = {"aws.amazon.com/neuron": "4"}
    first = report([*small.base("a"), pod]).findings[0]
    assert (first.code, first.facts) == ("DevicePluginLimits", (("rewrite", "neuron-dra migrate FILE"),))


def test_limits_of_a_device_class_are_simulated() -> None:
    pod = small.pod("p")
    limit = {"deviceclass.resource.kubernetes.io/neuron.aws.com": "17"}
    pod["spec"]["containers"][0]["resources"]["limits"] = limit
    assert report([*small.base("a"), pod]).findings[0].code == "CountTooLarge"


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (faults.no_slices, "NoDevicesPublished"),
        (faults.incomplete, "PoolIncomplete"),
        (faults.cordoned, "Cordoned"),
        (faults.node_taint, "Tainted"),
        (faults.unhealthy, "DeviceTainted"),
        (faults.device_rule, "DeviceTainted"),
    ],
)
def test_node_reports(fault: faults.Fault, code: str) -> None:
    assert report(broken(fault), "Node", "a", "").findings[0].code == code


TAINTED = "its devices are tainted: neuron.aws.com/unhealthy=hbm"


@pytest.mark.parametrize(
    ("lost", "also", "code", "text"),
    [
        (situations.halve, situations.reserve, "PoolIncomplete", "it is reserved for workload ml/job"),
        (situations.halve, situations.sick, "PoolIncomplete", TAINTED),
        (situations.halve, situations.close, "PoolIncomplete", "it is cordoned"),
        (situations.empty, situations.close, "NoDevicesPublished", "it is cordoned"),
    ],
    ids=["incomplete, reserved", "incomplete, tainted", "incomplete, cordoned", "empty, cordoned"],
)
def test_node_with_two_faults_comes_before_fragmentation(
    lost: situations.Change, also: situations.Change, code: str, text: str
) -> None:
    """(34, 2) That too few devices of node a are together is ordinary; what keeps node b from the pod is not."""
    items = [*reported.fragmented(), small.node("b"), *small.slices("b")]
    for change in (also, lost):
        change(random.Random(1), items, "b")
    found = report(items).findings
    assert [each.code for each in found] == [code, "Fragmented"]
    assert found[0].text.endswith(f"; also, {text}; without both the pod would fit there")


def test_node_that_the_pod_excludes_is_not_blamed() -> None:
    """(34, 2) Node b is for other pods: that it publishes nothing is not why this one waits."""
    items = [*reported.fragmented(), small.node("b", labels={"pool": "other"})]
    reported.node(items)["metadata"]["labels"]["pool"] = "mine"
    reported.pod(items)["spec"]["nodeSelector"] = {"pool": "mine"}
    assert [each.code for each in report(items).findings] == ["Fragmented"]


def test_rule_for_a_node_without_devices_comes_before_fragmentation() -> None:
    """(34, 2) Seed 1049 of the report: the rule would taint the devices that the node does not publish."""
    items = [*reported.fragmented(), small.node("b"), *small.slices("b")]
    situations.rule(random.Random(1), items, "b")
    situations.empty(random.Random(1), items, "b")
    first = report(items).findings[0]
    assert first.code == "NoDevicesPublished"
    assert first.text.startswith("node b (trn2.48xlarge) publishes no devices; also, its devices are tainted: ")


def test_node_with_a_device_plugin() -> None:
    items = small.base("a")
    node = faults.the(items, "Node", "a")
    assert node is not None
    node["status"]["allocatable"]["aws.amazon.com/neuron"] = "16"
    assert report(items, "Node", "a", "").findings[0].code == "DevicePluginAlive"


def test_healthy_node_is_fine() -> None:
    found = report(faults.healthy(), "Node", "a", "")
    assert (found.fine, found.state) == (True, "publishes 16 devices, 4 held")


def test_claim_reports_who_has_it_or_why_it_waits() -> None:
    items = faults.healthy()
    assert report(items, "ResourceClaim", "other-neurons-x").state == "has devices 0-3 of a, for other"
    waits = report(broken(faults.too_many), "ResourceClaim", "p-neurons-x")
    assert waits.findings[0].code == "CountTooLarge"
    lonely = {**faults.requests(items)[0]}
    claim = {
        "apiVersion": small.API,
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": lonely}]}},
    }
    assert report([*items, claim], "ResourceClaim", "c").findings[0].code == "NoPod"


def test_other_nodes_take_no_part_in_a_pod_with_an_allocated_claim() -> None:
    items = faults.healthy()
    shared = small.pod("p2", cpu="400")
    shared["spec"]["resourceClaims"] = [{"name": "neurons", "resourceClaimName": "other-neurons-x"}]
    found = report([*items, shared], name="p2").findings
    assert [each.code for each in found] == ["ResourcesLacking"]
    assert found[0].text == "its claim other-neurons-x has devices of node a alone, which has too little cpu"


def test_pod_affinity_is_said_not_to_be_simulated() -> None:
    items = faults.healthy()
    faults.waiting(items)["spec"]["affinity"] = {"podAffinity": {}, "podAntiAffinity": {"x": []}}
    assert report(items).notes == ("not simulated: pod affinity",)
    assert why_pod.report(World(snapshot.build(items)), faults.waiting(items)).findings[0].code == "SchedulerSays"


def ultraserver_cluster() -> list[Obj]:
    """Two UltraServers of four nodes: the first is free, and a node of the second is reserved."""
    items: list[Obj] = [*imagined.fleet("2 x ultraserver trn2u.48xlarge", "test")]
    for group in range(2):
        nodes = [{"nodeName": f"trn2u-{4 * group + n}", "nodeId": n} for n in range(4)]
        items.append(
            {
                "apiVersion": "neuron.aws.com/v1beta1",
                "kind": "NeuronUltraServer",
                "metadata": {"name": f"us-{group}", "namespace": "neuron"},
                "spec": {"instanceType": "trn2u.48xlarge", "topology": nodes},
            }
        )
    condition = {"type": "Ready", "status": "False", "reason": "NoFreeNodes", "message": "no UltraServer is free"}
    items.append(
        {
            "apiVersion": "neuron.aws.com/v1beta1",
            "kind": "NeuronUltraServerWorkload",
            "metadata": {"name": "job", "namespace": "ml"},
            "spec": {"instanceType": "trn2u.48xlarge", "topologySize": 4, "serverCount": 1},
            "status": {"state": "Pending", "conditions": [condition]},
        }
    )
    slices = [item for item in items if item["kind"] == "ResourceSlice" and item["spec"]["nodeName"] == "trn2u-4"]
    rest = [item for item in items if item not in slices]
    return [*rest, *small.reserved(slices, "other")]


def test_one_pod_moved_frees_an_ultraserver() -> None:
    items = ultraserver_cluster()
    items += small.running(items, "small", 1, "trn2u-0")
    pod = faults.the(items, "Pod", "small")
    assert pod is not None
    pod["spec"].pop("nodeSelector")
    first = report(items, "NeuronUltraServerWorkload", "job", "ml").findings[0]
    assert first.text == "no UltraServer is free"
    assert ("UltraServer", "us-0: trn2u-0: default/small; trn2u-1: free; trn2u-2: free; trn2u-3: free") in first.facts
    assert [(each.text, each.outcome) for each in first.changes] == [
        (
            "kubectl delete pod small -n default",
            "then no claim holds a device of UltraServer us-0; created again, default/small fits on node trn2u-5",
        )
    ]


def test_pod_that_fits_nowhere_else_is_not_moved() -> None:
    items = ultraserver_cluster()
    items += small.running(items, "small", 1, "trn2u-0")  # its node selector keeps it there
    assert report(items, "NeuronUltraServerWorkload", "job", "ml").findings[0].changes == ()


def test_constraint_over_several_requests_is_counted_together() -> None:
    items = small.base("a")
    made = small.template("pair", 3)
    devices = made["spec"]["spec"]["devices"]
    devices["requests"].append({"name": "more", "exactly": {"deviceClassName": "neuron.aws.com", "count": 2}})
    devices["constraints"] = [{"matchAttribute": "resource.aws.com/devicegroup4_id"}]
    items += [made, *small.created(small.pod("p", "pair"), made)]
    first = report(items).findings[0]
    assert (first.code, first.text) == (
        "GroupTooSmall",
        "requests neurons, more want 5 devices with the same resource.aws.com/devicegroup4_id; at most 4 have",
    )


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("DeviceClass", faults.gate),
        ("ResourceClaimTemplate", faults.uncreate_only),
        ("ResourceSlice", faults.no_slices),
        ("ResourceClaim", faults.gate),
    ],
)
def test_kinds_that_a_file_lacks_are_no_cause(kind: str, fault: faults.Fault) -> None:
    """A file without a kind of objects is not a cluster without them."""
    items = [item for item in broken(fault) if item["kind"] != kind]
    faults.waiting(items)["spec"].pop("schedulingGates", None)
    built = snapshot.build(items)
    whole = dataclasses.replace(built, left_out=snapshot.absent_from_file(built))
    pod = whole.get("Pod", "p", "default")
    assert pod is not None
    found = answer.report(whole, "Pod", pod)
    assert found.findings[0].code == "Unknown"
    [note] = found.notes
    assert note.startswith(f"not seen: {kind} (the file has none); to write a file with it: kubectl get ")
    assert f"{kind.lower()}{'es' if kind == 'DeviceClass' else 's'}" in note
    assert note.endswith(" -A -o json")
    assert not found.findings[0].changes


def test_changes_are_not_proposed_where_claims_could_not_be_read() -> None:
    built = snapshot.build(broken(faults.too_many))
    part = dataclasses.replace(built, left_out={"ResourceClaim": "only namespace default, the others are forbidden"})
    pod = part.get("Pod", "p", "default")
    assert pod is not None
    found = answer.report(part, "Pod", pod)
    assert (found.findings[0].code, found.findings[0].changes) == ("CountTooLarge", ())
    assert answer.report(built, "Pod", pod).findings[0].changes
