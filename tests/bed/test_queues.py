"""35 with the real Kueue: reservations get quota, lose it, and give it back.

docs/kueue-protocol.md has the protocol. Each test has its own queues, which share one cohort.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from hack.bed.real_cluster import Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.fleet import (
    end_workloads,
    job,
    slots,
    wait_available,
    wait_reason,
    wait_state,
    without_policies,
    workload,
)
from tests.bed.queues import (
    API,
    LABEL,
    WORKLOADS,
    Queues,
    conditions,
    gang,
    gone,
    is_true,
    message,
    of_reservation,
    prepare,
    queued,
    recorded,
    refused,
    set_active,
)
from tests.bed.recipes import complete
from tests.bed.test_jobs_that_reserve import events_of
from tests.support import kueue_log

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

RESERVED_DEVICE = "reserved-device"
ADMITTED = {
    "QuotaReserved": ("True", "QuotaReserved"),
    "Admitted": ("True", "Admitted"),
    "PodsReady": ("True", "Started"),
}


@pytest.fixture(scope="module")
def running_queues(running_fleet: TestBed) -> Iterator[TestBed]:
    """The fleet, whose controller knows queues and jobs that reserve, and Kueue."""
    names = [f"ultraserverOperator.{part}.enabled" for part in ("queues", "jobs")]
    on = [word for name in names for word in ("--set", f"{name}=true")]
    running_fleet.command("up", "--driver", "daemonset", *on, "--with", "kueue", timeout_s=1800)
    prepare(running_fleet)
    yield running_fleet
    off = [word for name in names for word in ("--set", f"{name}=false")]
    running_fleet.command("up", "--driver", "daemonset", *off, timeout_s=600)


@pytest.fixture
def queues(running_queues: TestBed, place: Namespace, request: pytest.FixtureRequest) -> Iterator[Queues]:
    """A namespace whose jobs may reserve, without queues; what they do is recorded."""
    place.bed.kubectl("label", "namespace", place.name, "neuron.aws.com/reserve-for-jobs=true")
    place.bed.kubectl("annotate", "namespace", place.name, "neuron.aws.com/max-reserved-nodes=16")
    made = Queues(place)
    with recorded(place.bed, kueue_log.RECORDS / request.node.name):
        yield made
    place.kubectl("delete", "jobs,deployments", "--all", "--cascade=foreground", timeout_s=190)
    end_workloads(place)
    eventually("no Workloads", lambda: not place.get(WORKLOADS)["items"], 120)
    made.remove()


# The path of a workload


def test_a_workload_gets_quota_then_nodes_and_gives_both_back(fleet: TestBed, queues: Queues, place: Namespace) -> None:
    queues.add("team", 4)
    place.apply(queued("train", "team", 4, 1, template="train-rct"))
    made = wait_state(place, "train", "Allocated", 60)
    assert made["status"]["queue"]["localQueue"] == "team"
    eventually("Kueue has the whole state", lambda: conditions(of_reservation(place, "train")) == ADMITTED, 30)
    place.apply(job("train", 4, "train-rct"))
    wait_available(place, "train")
    assert queues.reserved("team") == 4
    place.kubectl("delete", "deployment", "train")
    place.kubectl("delete", "nusw", "train", "--wait=false")
    gone(place, "train")
    assert slots(fleet) == {}
    eventually("the quota is back", lambda: queues.reserved("team") == 0, 30)


def test_a_job_with_a_queue_runs_to_its_end_and_gives_both_back(
    fleet: TestBed, queues: Queues, place: Namespace
) -> None:
    queues.add("team", 8)
    place.apply(gang("train", "team", 4, 2))
    complete(place, "job/train")
    gone(place, "train")
    eventually("the nodes are free", lambda: slots(fleet) == {}, 60)
    eventually("the quota is back", lambda: queues.reserved("team") == 0, 30)


def test_a_workload_beyond_the_quota_waits_with_kueues_reason(queues: Queues, place: Namespace) -> None:
    queues.add("team", 4)
    place.apply(queued("large", "team", 4, 2))
    eventually("Kueue's reason", lambda: "insufficient quota" in wait_reason(place, "large", "WaitingForQuota"), 30)


def test_higher_priority_preempts_and_the_preempted_one_gets_its_turn_again(
    fleet: TestBed, queues: Queues, place: Namespace
) -> None:
    queues.add("team", 4)
    place.apply(queued("low", "team", 4, 1, template="low-rct", priority="low"))
    wait_state(place, "low", "Allocated", 60)
    place.apply(job("low", 4, "low-rct"))
    wait_available(place, "low")
    place.apply(queued("high", "team", 4, 1, priority="high"))
    wait_state(place, "high", "Allocated", 120)
    assert slots(fleet).keys() == {"high"}
    wait_reason(place, "low", "WaitingForQuota")
    place.kubectl("delete", "nusw", "high", timeout_s=120)
    wait_state(place, "low", "Allocated", 120)
    wait_available(place, "low", 120)


def test_a_deactivated_workload_is_released_until_it_is_active_again(
    fleet: TestBed, queues: Queues, place: Namespace
) -> None:
    queues.add("team", 4)
    place.apply(queued("train", "team", 4, 1))
    wait_state(place, "train", "Allocated", 60)
    set_active(place, "train", False)
    eventually("the nodes are free", lambda: slots(fleet) == {}, 60)
    wait_reason(place, "train", "QueueDeactivated")
    eventually("the quota is back", lambda: not is_true(of_reservation(place, "train"), "QuotaReserved"), 60)
    set_active(place, "train", True)
    wait_state(place, "train", "Allocated", 60)


def test_a_workload_that_shrinks_gives_quota_back_and_cannot_grow(
    fleet: TestBed, queues: Queues, place: Namespace
) -> None:
    queues.add("team", 8)
    place.apply(queued("train", "team", 4, 2))
    wait_state(place, "train", "Allocated", 60)
    place.kubectl("patch", "nusw", "train", "--type=merge", "--patch", json.dumps({"spec": {"serverCount": 1}}))
    eventually("quota for four nodes", lambda: queues.reserved("team") == 4, 60)
    assert len(slots(fleet)["train"]) == 1
    place.kubectl("patch", "nusw", "train", "--type=merge", "--patch", json.dumps({"spec": {"serverCount": 2}}))
    wait_reason(place, "train", "GrowthNeedsQuota")
    assert len(slots(fleet)["train"]) == 1


def test_quota_without_a_place_is_given_back_and_asked_for_again(
    fleet: TestBed, queues: Queues, place: Namespace
) -> None:
    queues.add("team", 8)
    place.apply(workload("holder", 4, 2))  # without a queue: Kueue does not know that no node is free
    wait_state(place, "holder", "Allocated", 60)
    place.apply(queued("train", "team", 4, 2))
    eventually("it has quota", lambda: queues.reserved("team") == 8, 30)
    wait_reason(place, "train", "QuotaGivenBack", timeout_s=420)
    eventually("the quota is back", lambda: queues.reserved("team") == 0, 30)
    eventually("it is counted", lambda: place.get("nusw", "train")["status"]["queue"].get("returned") == 1, 30)
    place.kubectl("delete", "nusw", "holder", timeout_s=120)
    made = wait_state(place, "train", "Allocated", 180)
    eventually("the count ends", lambda: place.get("nusw", "train")["status"]["queue"].get("returned", 0) == 0, 30)
    assert made["status"]["queue"]["localQueue"] == "team"


# Why the job itself cannot be queued


def managed(name: str, template: str, queue: str) -> Obj:
    """Return a Job that Kueue manages itself, whose pod has a claim of a template."""
    made = gang(name, queue, 1, 1)
    made["metadata"] = {"name": name, "labels": {LABEL: queue}}
    made["spec"]["template"]["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = template
    return made


def of_job(place: Namespace, name: str) -> Obj | None:
    """Return Kueue's own Workload of a Job."""
    items = place.get(WORKLOADS)["items"]
    found = [each for each in items if each["metadata"]["name"].startswith(f"job-{name}-")]
    return found[0] if found else None


def template_like(place: Namespace, name: str, new: str, uid: str) -> Obj:
    """Return a template as the controller writes it, for one device of nodes that are Bound to the workload `uid`."""
    found = place.get("resourceclaimtemplates", name)
    [owner] = found["metadata"]["ownerReferences"]
    spec = json.loads(json.dumps(found["spec"]).replace(owner["uid"], uid))
    [request] = spec["spec"]["devices"]["requests"]
    request["exactly"] |= {"allocationMode": "ExactCount", "count": 1}
    metadata = {"name": new, "namespace": place.name}
    return {"apiVersion": found["apiVersion"], "kind": found["kind"], "metadata": metadata, "spec": spec}


def asked(item: Obj | None) -> list[str]:
    """Return the AdmissionChecks that a Workload of Kueue waits for."""
    listed = (item or {}).get("status", {}).get("admissionChecks") or []
    return [str(each["name"]) for each in listed]


@pytest.fixture
def admission_check(running_queues: TestBed, place: Namespace) -> Iterator[str]:
    """An AdmissionCheck that is active, and never answers."""
    meta = {"name": place.name}
    check = {
        "apiVersion": API,
        "kind": "AdmissionCheck",
        "metadata": meta,
        "spec": {"controllerName": "test.local/waits"},
    }
    running_queues.kubectl("apply", "-f", "-", stdin=json.dumps(check))
    active = {"type": "Active", "status": "True", "reason": "Active", "message": "it is"}
    status = {"status": {"conditions": [{**active, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}
    words = ("admissionchecks.kueue.x-k8s.io", place.name)
    running_queues.kubectl("patch", *words, "--subresource=status", "--type=merge", "--patch", json.dumps(status))
    yield place.name
    running_queues.kubectl("delete", *words, "--wait=false")  # it stays until its queue is gone


def test_a_job_whose_template_selects_bound_nodes_gets_no_quota_before_they_are(
    fleet: TestBed, queues: Queues, place: Namespace, admission_check: str
) -> None:
    """What the decision of docs/adr/0012 depends on."""
    more = {"name": RESERVED_DEVICE, "nominalQuota": 8}
    others = {"name": "cpu", "nominalQuota": 8}
    flavor = {"name": "trn3", "resources": [more, others]}
    groups = [{"coveredResources": [RESERVED_DEVICE, "cpu"], "flavors": [flavor]}]
    checks = {"admissionChecks": [{"name": admission_check}]}
    queues.add("jobs", 0, resourceGroups=groups, admissionChecksStrategy=checks)
    place.apply(workload("bound", 4, 1, template="bound-rct"))
    bound = wait_state(place, "bound", "Allocated", 60)
    with without_policies(fleet):
        for name, uid in (("none-rct", "nobody"), ("some-rct", bound["metadata"]["uid"])):
            made = template_like(place, "bound-rct", name, uid)
            eventually(f"{name} is created", lambda made=made: not refused(place, made), 60)
    for name in ("none", "some", "absent"):
        place.apply(managed(name, f"{name}-rct", "jobs"))
    words = {
        "none": "0 device(s) match in the cluster but 1 requested",
        "absent": 'ResourceClaimTemplate.resource.k8s.io "absent-rct" not found',
    }
    for name, said in words.items():
        waits = lambda name=name, said=said: said in message(of_job(place, name), "QuotaReserved")  # noqa: E731
        eventually(f"Kueue says {said!r}", waits, 60)
    eventually("with Bound nodes it has quota", lambda: is_true(of_job(place, "some"), "QuotaReserved"), 60)
    eventually("its AdmissionCheck is asked", lambda: asked(of_job(place, "some")) == [admission_check], 60)
    assert [asked(of_job(place, name)) for name in words] == [[], []]
    assert not any(is_true(of_job(place, name), "QuotaReserved") for name in words)


def test_a_job_that_kueue_manages_itself_is_refused(fleet: TestBed, queues: Queues, place: Namespace) -> None:
    queues.add("team", 8)
    both = gang("both", "team", 4, 1)
    both["metadata"]["labels"] = {LABEL: "team"}
    place.apply(both)
    eventually("an Event says so", lambda: "ManagedByKueue" in events_of(place, "Job", "both"), 60)
    assert slots(fleet) == {}
    assert place.get("nusw")["items"] == []


# Three teams


def test_three_teams_borrow_and_get_their_own_quota_back(fleet: TestBed, queues: Queues, place: Namespace) -> None:
    for name, quota in (("red", 4), ("green", 2), ("blue", 2)):
        queues.add(name, quota)
    for number in (1, 2):  # the second one borrows what green and blue do not use
        place.apply(queued(f"red-{number}", "red", 4, 1))
        wait_state(place, f"red-{number}", "Allocated", 60)
    place.apply(gang("green", "green", 2, 1, seconds=20))
    eventually("the borrower is evicted", lambda: len(slots(fleet).keys() & {"red-1", "red-2"}) == 1, 120)
    place.apply(gang("blue", "blue", 2, 1, seconds=20))
    for name in ("green", "blue"):
        wait_state(place, name, "Allocated", 120)
    assert (queues.reserved("red"), queues.reserved("green"), queues.reserved("blue")) == (4, 2, 2)
    for name in ("green", "blue"):
        complete(place, f"job/{name}")
    for number in (1, 2):
        wait_state(place, f"red-{number}", "Allocated", 120)
    assert queues.reserved("red") == 8
