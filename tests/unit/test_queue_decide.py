"""What Kueue allows a workload with a queue, and what the controller writes for it. Issue 35."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from controller.queue.admission import HeldNodes, admission_of
from controller.queue.decide import (
    CreateKueueWorkload,
    LetGo,
    QueueDecision,
    RecordQueue,
    WriteSpec,
    WriteStatus,
    apply_status,
)
from controller.queue.model import IN_USE, KueueWorkload, body_for, project
from controller.timing import QueueTiming
from neuron_dra.core.wire import Obj
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import Admission, QueueRecord, Workload
from tests.support.decide_all import WholeQueueView
from tests.support.decide_all import decide_queues as decide

NOW = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
TIMING = QueueTiming(patience_s=300.0, first_return_s=60.0, longest_return_s=3600.0)
TWO_GROUPS = HeldNodes(some=True, groups=2, bound=2, nodes=8)
NOTHING = HeldNodes()
RECORD: Obj = {"localQueue": "team", "returned": 0}


def at(seconds: float) -> str:
    return (NOW - datetime.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def workload_item(
    *,
    name: str = "train",
    uid: str = "0123456789",
    queue: str = "team",
    record: Obj | None = RECORD,
    state: str = "Pending",
    priority: str = "",
    deleting: bool = False,
    **spec: Any,
) -> Obj:
    """Return a workload as the API server has it."""
    meta: Obj = {"name": name, "namespace": "ml", "uid": uid, "resourceVersion": "7"}
    if queue:
        meta["labels"] = {"kueue.x-k8s.io/queue-name": queue}
    if deleting:
        meta["deletionTimestamp"] = at(1)
    ready = {"type": "Ready", "status": "False", "reason": "InsufficientCapacity", "message": "needs 8 nodes"}
    status: Obj = {"state": state, "conditions": [{**ready, "lastTransitionTime": at(900)}]}
    if record:
        status["queue"] = record
    wanted = {"instanceType": "trn3.48xlarge", "topologySize": 4, "serverCount": 2, **spec}
    if priority:
        wanted["priorityClassName"] = priority
    return {"metadata": meta, "spec": wanted, "status": status}


def workload(**options: Any) -> Workload:
    return decode.workload(workload_item(**options))


def kueue_item(*conditions: tuple[str, bool, str], since_s: float = 60.0, of: Obj, **changes: Any) -> Obj:
    """Return Kueue's Workload of a workload, as the controller wrote it, with these conditions."""
    item = body_for(decode.workload(of), {})
    meta = {"uid": "k", "resourceVersion": "5", "generation": 1, **changes.pop("metadata", {})}
    item["metadata"] = {**item["metadata"], **meta}
    item["spec"] = {**item["spec"], **changes.pop("spec", {})}
    found = [
        {
            "type": kind,
            "status": "True" if value else "False",
            "reason": reason,
            "message": f"{reason} it is",
            "lastTransitionTime": at(since_s),
        }
        for kind, value, reason in conditions
    ]
    return {**item, "status": {"conditions": found, **changes}}


def kueue(*conditions: tuple[str, bool, str], of: Obj | None = None, **changes: Any) -> KueueWorkload:
    """Return the same as the controller reads it."""
    made = project(kueue_item(*conditions, of=of or workload_item(), **changes))
    assert made is not None
    return made


ADMISSION = {"clusterQueue": "all", "podSetAssignments": [{"name": "nodes", "count": 8}]}
QUOTA = ("QuotaReserved", True, "QuotaReserved")
ADMITTED = (QUOTA, ("Admitted", True, "Admitted"))
READY = ("PodsReady", True, "Started")
GIVEN_BACK = (
    ("QuotaReserved", False, "Pending"),
    ("Evicted", True, "NeuronNodesUnavailable"),
    ("Requeued", False, "NeuronNodesUnavailable"),
)


def view(
    ours: Workload | None,
    *theirs: KueueWorkload,
    held: HeldNodes = NOTHING,
    unknown: str = "",
    required: Collection[str] = (),
    unsettled: Collection[str] = (),
    priorities: Mapping[str, int] = {},
) -> WholeQueueView:
    by_owner: dict[str, dict[str, KueueWorkload]] = {}
    for each in theirs:
        by_owner.setdefault(each.owner.uid, {})[each.ref] = each
    workloads = [ours] if ours is not None else []
    facts = by_owner, unknown, lambda uid, of: held, required, unsettled, priorities, TIMING, NOW
    return WholeQueueView(*facts, workloads=workloads)


def admission(found: WholeQueueView) -> Admission | None:
    (ours,) = found.workloads
    return admission_of(found, ours)


def gate(found: WholeQueueView) -> tuple[int, bool, str]:
    allowed = admission(found)
    assert allowed is not None
    return allowed.groups, allowed.revoked, allowed.reason


def write(decision: QueueDecision) -> Any:
    return next(iter(decision.writes.values()), None)


# -- what may be reserved ----------------------------------------------------------------------------------------------


def test_workload_without_a_queue_passes() -> None:
    assert admission(view(workload(queue="", record=None))) is None


@pytest.mark.parametrize("held", [NOTHING, TWO_GROUPS])
def test_namespace_may_require_a_queue_for_what_is_new(held: HeldNodes) -> None:
    found = admission(view(workload(queue="", record=None), held=held, required=["ml"]))
    assert (found is None) == held.some
    assert found is None or (found.groups, found.revoked, found.reason) == (0, False, "QueueRequired")


def test_admitted_workload_gets_the_groups_of_its_quota() -> None:
    assert gate(view(workload(), kueue(*ADMITTED, admission=ADMISSION)))[:2] == (2, False)


def test_growth_is_refused_while_there_is_quota() -> None:
    grown = workload(serverCount=3, state="Allocated")
    assert gate(view(grown, kueue(*ADMITTED), held=TWO_GROUPS)) == (2, False, "GrowthNeedsQuota")


def test_reclaimed_pods_have_no_quota() -> None:
    returned = kueue(*ADMITTED, reclaimablePods=[{"name": "nodes", "count": 4}])
    assert gate(view(workload(serverCount=1), returned, held=TWO_GROUPS))[0] == 1


def test_nothing_is_reserved_before_the_record() -> None:
    assert gate(view(workload(record=None), kueue(*ADMITTED))) == (0, False, "WaitingForQuota")


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        ([], "WaitingForQuota"),
        ([kueue()], "WaitingForQuota"),
        ([kueue(QUOTA)], "WaitingForQuota"),
        ([kueue(*ADMITTED, ("Evicted", True, "Preempted"))], "QuotaRevoked"),
        ([kueue(*ADMITTED, spec={"active": False})], "QueueDeactivated"),
        ([kueue(*ADMITTED, ("Finished", True, "Succeeded"))], "QueueFinished"),
        ([kueue(*ADMITTED, metadata={"deletionTimestamp": at(1)})], "WaitingForQuota"),
        ([kueue(*GIVEN_BACK)], "QuotaGivenBack"),
        ([kueue(*ADMITTED, metadata={"name": "forged"})], "WaitingForQuota"),
    ],
)
def test_what_is_not_admitted_is_released(theirs: list[KueueWorkload], reason: str) -> None:
    assert gate(view(workload(), *theirs, held=TWO_GROUPS)) == (0, True, reason)


@pytest.mark.parametrize("recorded_s", [60.0, 600.0], ids=["recorded", "not recorded yet"])
def test_message_has_the_time_of_this_return(recorded_s: float) -> None:
    """Two returns: the second waits for twice the first delay, before it is recorded as well."""
    record = {"localQueue": "team", "returned": 2 if recorded_s == 60.0 else 1, "returnedAt": at(recorded_s)}
    found = admission(view(workload(record=record), kueue(*GIVEN_BACK)))
    assert found is not None
    assert found.message.rpartition(" ")[2] == at(60 - 120)


def assigned(**assignment: Any) -> Obj:
    return {"admission": {"clusterQueue": "all", "podSetAssignments": [{"name": "nodes", **assignment}]}}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (assigned(count=8, topologyAssignment={"levels": ["rack"]}), "topology"),
        (assigned(count=4), "partial admission"),
        ({**assigned(count=8), "clusterName": "other"}, "MultiKueue"),
    ],
)
def test_features_that_reservations_lack_are_named(status: Obj, words: str) -> None:
    found = view(workload(), kueue(*ADMITTED, **status))
    assert gate(found) == (0, True, "QueueFeatureUnsupported")
    allowed = admission(found)
    assert allowed is not None
    assert words in allowed.message


def test_foreign_pods_do_not_count() -> None:
    pods = body_for(workload(), {})["spec"]["podSets"][0]
    pods["template"]["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1"}
    assert gate(view(workload(), kueue(*ADMITTED, spec={"podSets": [pods]}))) == (0, True, "QueueFeatureUnsupported")


@pytest.mark.parametrize("facts", [{"unknown": "no Kueue"}, {"unsettled": ["0123456789"]}])
def test_what_is_not_known_changes_nothing(facts: Any) -> None:
    found = view(workload(), held=TWO_GROUPS, **facts)
    assert gate(found) == (2, False, "QueueUnknown")
    assert facts.get("unsettled") or decide(found).writes == {}


def test_queue_that_comes_after_the_nodes_counts_later() -> None:
    late = view(workload(record=None), held=TWO_GROUPS)
    assert (admission(late), decide(late).writes) == (None, {})


# -- what is written ---------------------------------------------------------------------------------------------------


def test_workload_with_a_queue_gets_one_of_kueue() -> None:
    ours = workload(record=None, priorityClassName="high")
    made = write(decide(view(ours, priorities={"high": 9})))
    assert isinstance(made, CreateKueueWorkload)
    assert made.body["metadata"] == {
        "name": "ultraservers-train-01234567",
        "namespace": "ml",
        "labels": {
            "app.kubernetes.io/managed-by": "neuron-ultraserver-controller",
            "neuron.aws.com/workload-uid": "0123456789",
        },
        "finalizers": ["kueue.x-k8s.io/resource-in-use"],
        "ownerReferences": [
            {
                "apiVersion": "neuron.aws.com/v1beta1",
                "kind": "NeuronUltraServerWorkload",
                "name": "train",
                "uid": "0123456789",
                "controller": True,
            }
        ],
    }
    one = {"neuron.aws.com/ultraserver-node": "1"}
    pod = {
        "restartPolicy": "Never",
        "nodeSelector": {"node.kubernetes.io/instance-type": "trn3.48xlarge"},
        "containers": [{"name": "node", "image": "none", "resources": {"requests": one, "limits": one}}],
    }
    assert made.body["spec"] == {
        "queueName": "team",
        "podSets": [{"name": "nodes", "count": 8, "template": {"spec": pod}}],
        "priorityClassRef": {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"},
        "priority": 9,
    }


def test_class_that_does_not_exist_is_left_out_with_its_value() -> None:
    made = write(decide(view(workload(record=None, priorityClassName="high"))))
    assert isinstance(made, CreateKueueWorkload)
    assert made.body["spec"].keys() == {"queueName", "podSets"}


def test_spec_follows_while_there_is_no_quota() -> None:
    smaller = workload(serverCount=1)
    changed = write(decide(view(smaller, kueue())))
    assert isinstance(changed, WriteSpec)
    assert changed.spec["podSets"][0]["count"] == 4
    assert write(decide(view(smaller, kueue(of=workload_item(serverCount=1))))) is None


def test_record_comes_before_the_nodes() -> None:
    made = write(decide(view(workload(record=None), kueue(*ADMITTED))))
    assert made == RecordQueue(workload(record=None), QueueRecord("team"))


def test_ready_when_all_groups_are_bound() -> None:
    made = write(decide(view(workload(state="Allocated"), kueue(*ADMITTED), held=TWO_GROUPS)))
    assert made.conditions["PodsReady"][:2] == (True, "Started")
    half = HeldNodes(some=True, groups=2, bound=1, nodes=8)
    lost = write(decide(view(workload(), kueue(*ADMITTED, READY), held=half)))
    assert lost.conditions["PodsReady"][:2] == (False, "WaitForRecovery")


def test_shrinking_is_reclaimed_when_the_nodes_are_free() -> None:
    smaller, there = workload(serverCount=1, state="Allocated"), kueue(*ADMITTED, READY)
    assert write(decide(view(smaller, there, held=TWO_GROUPS))) is None
    free = write(decide(view(smaller, there, held=HeldNodes(some=True, groups=1, bound=1, nodes=4))))
    assert isinstance(free, WriteStatus)
    assert free.reclaimable == 4


def test_no_quota_is_given_back_while_a_reservation_is_being_written() -> None:
    """ADR 16, rule 6: the nodes may be reserved although no object shows it yet."""
    smaller, there = workload(serverCount=1, state="Allocated"), kueue(*ADMITTED, READY)
    uncertain = HeldNodes(some=True, groups=1, bound=1, nodes=4, is_uncertain=True)
    assert write(decide(view(smaller, there, held=uncertain))) is None
    evicted = kueue(*ADMITTED, ("Evicted", True, "Preempted"))
    assert write(decide(view(workload(), evicted, held=HeldNodes(some=True, is_uncertain=True)))) is None


def test_quota_is_given_back_only_when_the_nodes_are_free() -> None:
    evicted = kueue(*ADMITTED, ("Evicted", True, "Preempted"))
    assert write(decide(view(workload(), evicted, held=TWO_GROUPS))) is None
    returned = write(decide(view(workload(), evicted)))
    assert (returned.return_quota, {k: v[:2] for k, v in returned.conditions.items()}) == (
        True,
        {
            "QuotaReserved": (False, "Pending"),
            "Admitted": (False, "NoReservation"),
            "Requeued": (True, "Preempted"),
            "PodsReady": (False, "WaitForStart"),
        },
    )


@pytest.mark.parametrize(
    ("reason", "again"),
    [
        ("Preempted", True),
        ("NodeFailures", True),
        ("PodsReadyTimeout", False),
        ("Deactivated", False),
        ("NeuronNodesUnavailable", False),
    ],
)
def test_requeued_is_as_kueues_own_reconcilers_write_it(reason: str, again: bool) -> None:
    returned = write(decide(view(workload(), kueue(*ADMITTED, ("Evicted", True, reason)))))
    assert returned.conditions["Requeued"][:2] == (again, reason)


def test_quota_that_waits_for_nodes_is_given_back() -> None:
    patient = decide(view(workload(), kueue(*ADMITTED, ("PodsReady", False, "WaitForStart"), since_s=299)))
    assert (write(patient), patient.moments) == (None, [NOW + datetime.timedelta(seconds=1)])
    tired = write(decide(view(workload(), kueue(*ADMITTED, since_s=300))))
    assert tired.conditions == {"Evicted": (True, "NeuronNodesUnavailable", "no nodes for it in 300 s: needs 8 nodes")}


@pytest.mark.parametrize(("times", "wait_s"), [(1, 60), (2, 120), (4, 480), (20, 3600)])
def test_delay_grows(times: int, wait_s: int) -> None:
    def asked(since_s: float) -> Any:
        record = {"localQueue": "team", "returned": times, "returnedAt": at(since_s)}
        return decide(view(workload(record=record), kueue(*GIVEN_BACK, since_s=since_s)))

    early, due = asked(wait_s - 1), write(asked(wait_s))
    assert (write(early), early.moments) == (None, [NOW + datetime.timedelta(seconds=1)])
    assert due.conditions["Requeued"][:2] == (True, "DelayEnded")


def test_each_return_is_recorded_once() -> None:
    record = {"localQueue": "team", "returned": 1, "returnedAt": at(4000)}
    ours = workload(record=record)
    assert write(decide(view(ours, kueue(*GIVEN_BACK)))) == RecordQueue(ours, QueueRecord("team", 2, at(60)))


def test_success_resets_the_delay() -> None:
    ours = workload(record={"localQueue": "team", "returned": 3, "returnedAt": at(400)}, state="Allocated")
    made = write(decide(view(ours, kueue(*ADMITTED), held=TWO_GROUPS)))
    assert made == RecordQueue(ours, QueueRecord("team"))


@pytest.mark.parametrize("queue", ["", "other"])
def test_queue_is_fixed_while_nodes_are_reserved(queue: str) -> None:
    ours = workload(queue=queue, state="Allocated")
    kept = decide(view(ours, kueue(*ADMITTED, READY), held=TWO_GROUPS))
    assert (write(kept), [each.reason for each in kept.notes]) == (None, ["QueueIsFixed"])
    free = write(decide(view(ours, kueue(*ADMITTED))))
    assert free.conditions["Evicted"][:2] == (True, "NeuronNodesUnavailable")


def test_workload_that_leaves_its_queue_is_forgotten() -> None:
    ours, theirs = workload(queue=""), kueue(*GIVEN_BACK)
    assert write(decide(view(ours, theirs))) == LetGo(theirs, delete=True)
    assert write(decide(view(ours))) == RecordQueue(ours, QueueRecord())


@pytest.mark.parametrize("ours", [workload(deleting=True), None], ids=["deleted", "gone"])
def test_finished_comes_after_the_nodes_are_free_and_then_the_finalizer(ours: Workload | None) -> None:
    there = kueue(*ADMITTED)
    assert decide(view(ours, there, held=TWO_GROUPS)).writes == {}
    ended = write(decide(view(ours, there)))
    assert (ended.conditions["Finished"][0], ended.gone) == (True, ours is None)
    done = kueue(*ADMITTED, ("Finished", True, "Succeeded"))
    assert write(decide(view(ours, done))) == LetGo(done)
    assert write(decide(view(ours, kueue(*ADMITTED, ("Finished", True, "x"), metadata={"finalizers": []})))) is None


def test_workload_of_kueue_that_is_deleted_is_let_go_when_the_nodes_are_free() -> None:
    leaving = kueue(*ADMITTED, metadata={"deletionTimestamp": at(1)})
    assert write(decide(view(workload(), leaving, held=TWO_GROUPS))) is None
    assert write(decide(view(workload(), leaving))) == LetGo(leaving)


def test_orphaned_workload_of_kueue_is_finished() -> None:
    item = body_for(workload(), {})
    item["metadata"] = {**item["metadata"], "uid": "k", "resourceVersion": "5", "ownerReferences": []}
    orphan = project(item)
    assert orphan is not None
    [finished] = decide(view(None, orphan)).writes.values()
    assert isinstance(finished, WriteStatus)


def test_status_keeps_what_kueue_wrote() -> None:
    item: Obj = {
        "metadata": {"name": "k", "generation": 3},
        "status": {
            "admission": ADMISSION,
            "requeueState": {"count": 2},
            "conditions": [
                {"type": "Evicted", "status": "True", "reason": "Preempted", "lastTransitionTime": at(9)},
                {"type": "Admitted", "status": "True", "reason": "Admitted", "lastTransitionTime": at(90)},
            ],
        },
    }
    returned = WriteStatus(kueue(), {"Admitted": (False, "NoReservation", "no quota")}, return_quota=True)
    assert apply_status(item, returned, NOW)["status"] == {
        "requeueState": {"count": 2},
        "conditions": [
            {"type": "Evicted", "status": "True", "reason": "Preempted", "lastTransitionTime": at(9)},
            {
                "type": "Admitted",
                "status": "False",
                "observedGeneration": 3,
                "lastTransitionTime": at(0),
                "reason": "NoReservation",
                "message": "no quota",
            },
        ],
    }


def test_workloads_of_jobs_are_not_kept() -> None:
    item = body_for(workload(), {})
    item["metadata"]["ownerReferences"][0]["kind"] = "Job"
    assert project(item) is None
    assert IN_USE == "kueue.x-k8s.io/resource-in-use"
