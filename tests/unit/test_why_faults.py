"""`why` on a cluster with one or two faults: the cause is true, and a proposed change works (17.3)."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence

import pytest

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.render.findings import ProposedChange, Report
from neuron_dra.ask.why import pod as why_pod
from neuron_dra.ask.world import refusals
from neuron_dra.ask.world.world import World
from neuron_dra.core import names
from neuron_dra.core.wire import Obj
from neuron_dra.errors import ClaimError
from neuron_dra.simulate import allocator, scheduler
from tests.support import cluster_faults
from tests.support.cluster_faults import FAULTS, LAST, Fault, all_of, the, waiting

SEEDS = 3
PAIRS = 150


def report(items: Sequence[Obj]) -> Report:
    world = World(snapshot.build(copy.deepcopy(list(items))))
    found = world.snapshot.get("Pod", "p", "default")
    assert found is not None
    return why_pod.report(world, found)


def after(items: Sequence[Obj], change: ProposedChange) -> list[Obj]:
    """The objects after a change, without the code that simulated it."""
    gone = {(kind, namespace, name) for kind, namespace, name in change.removed}
    gone |= {
        (each["kind"], each["metadata"].get("namespace") or "", each["metadata"]["name"]) for each in change.replaced
    }
    kept = [i for i in items if (i["kind"], i["metadata"].get("namespace") or "", i["metadata"]["name"]) not in gone]
    return [*kept, *(dict(each) for each in change.replaced)]


def objection(items: Sequence[Obj]) -> str:
    """Why the pod does not run: judged by the simulated scheduler alone, on plain objects."""
    pod = waiting(items)
    if pod["spec"].get("schedulingGates"):
        return "gated"
    if pod["spec"].get("nodeName"):
        return "past the scheduler"
    if pod["spec"].get("schedulerName", "default-scheduler") != "default-scheduler":
        return "no such scheduler"
    claims = []
    for entry in pod["spec"]["resourceClaims"]:
        here = [item for item in all_of(items, "ResourceClaimTemplate") if item["metadata"]["namespace"] == "default"]
        made = the(here, "ResourceClaimTemplate", entry["resourceClaimTemplateName"])
        if made is None:
            return "no template"
        named = [s["resourceClaimName"] for s in pod["status"].get("resourceClaimStatuses", ())]
        claim = the(items, "ResourceClaim", named[0]) if named else None
        if named and claim is None:
            return "the claim was deleted"
        if claim is None and (over := over_quota(items, made)):
            return over
        claims.append(claim or {"metadata": {"name": "new", "namespace": "default"}, "spec": made["spec"]["spec"]})
    nodes = [node for node in all_of(items, "Node") if has_room(items, node, pod)]
    outcome = scheduler.schedule(
        pod,
        claims,
        nodes,
        with_rules(items),
        all_of(items, "DeviceClass"),
        allocator.devices_in_use(all_of(items, "ResourceClaim")),
    )
    if not isinstance(outcome, scheduler.Placement):
        return outcome.message
    try:
        for claim in claims:
            refusals.decoded(claim["spec"]["devices"].get("config") or ())
    except ClaimError as err:
        return str(err)
    return ""


def over_quota(items: Sequence[Obj], made: Obj) -> str:
    request = made["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    adds = {
        "count/resourceclaims.resource.k8s.io": 1,
        f"{request['deviceClassName']}.deviceclass.resource.k8s.io/devices": request["count"],
    }
    for quota in all_of(items, "ResourceQuota"):
        for resource, hard in quota["spec"]["hard"].items():
            if int(quota["status"]["used"].get(resource, 0)) + adds.get(resource, 0) > int(hard):
                return f"quota of {resource}"
    return ""


def has_room(items: Sequence[Obj], node: Obj, pod: Obj) -> bool:
    wanted = pod["spec"]["containers"][0]["resources"]["requests"]
    here = [item for item in all_of(items, "Pod") if item["spec"].get("nodeName") == node["metadata"]["name"]]
    cpu = int(node["status"]["allocatable"]["cpu"]) - len(here)  # each requests one
    memory = int(wanted.get("memory", "0Gi").removesuffix("Gi"))
    return int(wanted["cpu"]) <= cpu and memory <= 2000 and "example.com/efa" not in wanted


def with_rules(items: Sequence[Obj]) -> list[Obj]:
    slices = copy.deepcopy(all_of(items, "ResourceSlice"))
    if all_of(items, "DeviceTaintRule"):
        for device in (device for item in slices for device in item["spec"]["devices"]):
            device["taints"] = [{"key": "example.com/maintenance", "value": "x", "effect": "NoSchedule"}]
    return slices


def broken(seed: int, faults: Sequence[Fault]) -> list[Obj]:
    rng = random.Random(seed)
    items = cluster_faults.healthy()
    for fault in sorted(faults, key=lambda each: each not in LAST):
        fault(rng, items)
    return items


def check_changes(items: list[Obj], found: Report) -> int:
    changes = [change for finding in found.findings for change in finding.changes]
    for change in changes:
        assert objection(after(items, change)) == "", f"{change.text}: {change.outcome}"
    return len(changes)


def test_pod_runs_in_the_healthy_cluster() -> None:
    items = cluster_faults.healthy()
    assert objection(items) == ""
    assert report(items).findings[0].code == "SchedulerSays"


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_single_fault_is_named_and_its_change_works(fault: Fault, seed: int) -> None:
    items = broken(seed, [fault])
    found = report(items)
    assert found.findings[0].code in FAULTS[fault], found.findings
    check_changes(items, found)


def test_two_faults_have_a_true_cause_and_no_false_change() -> None:
    rng = random.Random(17)
    wrong, changes = [], 0
    for seed in range(PAIRS):
        faults = rng.sample(list(FAULTS), 2)
        if set(faults) <= set(LAST):
            continue  # both fill the same devices
        items = broken(seed, faults)
        found = report(items)
        causes = {code for fault in faults for code in FAULTS[fault]}
        if found.findings[0].code not in {*causes, "Unknown"}:
            wrong.append((seed, [fault.__name__ for fault in faults], found.findings[0]))
        changes += check_changes(items, found)
    assert len(wrong) <= PAIRS * 0.05, wrong
    assert changes > 5


def test_changes_are_offered_for_the_usual_mistakes() -> None:
    usual = [
        cluster_faults.wrong_type,
        cluster_faults.too_many,
        cluster_faults.group_too_small,
        cluster_faults.class_renamed,
        cluster_faults.template_renamed,
        cluster_faults.template_elsewhere,
        cluster_faults.cordoned,
        cluster_faults.node_selector,
        cluster_faults.held_in_part,
        cluster_faults.quota,
        cluster_faults.no_scheduler,
    ]
    without = [
        fault.__name__ for fault in usual if not any(each.changes for each in report(broken(0, [fault])).findings)
    ]
    assert without == []
    assert names.DRIVER in report(broken(0, [cluster_faults.no_slices])).findings[0].text
