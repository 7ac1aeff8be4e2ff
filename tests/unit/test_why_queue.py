"""`why` of a job that reserves, and of a workload with a queue: reservation, place in the queue, what helps (35.5)."""

from __future__ import annotations

from typing import Any

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.render.findings import Report
from neuron_dra.ask.status import workloads
from neuron_dra.ask.why import answer, jobs
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from tests.support import small_clusters as small

WAITS = "insufficient unused quota"


def reservation(name: str, reason: str = "WaitingForQuota", *, job: str = "") -> Obj:
    """A NeuronUltraServerWorkload in a queue."""
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": f"job-{job}"}] if job else []
    ready = {"type": "Ready", "status": "False", "reason": reason, "message": WAITS}
    return {
        "apiVersion": "neuron.aws.com/v1beta1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}", "ownerReferences": owners},
        "spec": {"instanceType": "trn2u.48xlarge", "topologySize": 4, "resourceClaimTemplate": {"name": f"{name}-rct"}},
        "status": {"state": "Pending", "conditions": [ready]},
    }


def queued(name: str, *, minute: int = 0, priority: int = 0, has_quota: bool = False, queue: str = "team") -> Obj:
    """Kueue's Workload of a reservation."""
    owner = {"kind": "NeuronUltraServerWorkload", "name": name, "uid": f"uid-{name}"}
    condition = {"type": "QuotaReserved", "status": "True" if has_quota else "False", "reason": "r", "message": "m"}
    meta: Obj = {"name": f"ultraservers-{name}", "namespace": "ml", "ownerReferences": [owner]}
    meta["creationTimestamp"] = f"2026-01-01T00:{minute:02}:00Z"
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": meta,
        "spec": {"queueName": queue, "priority": priority},
        "status": {"conditions": [condition]},
    }


def refused(reason: str, message: str) -> Obj:
    """An Event of the controller on the job `train`."""
    about = {"kind": "Job", "namespace": "ml", "name": "train"}
    meta = {"name": f"train.{reason}", "namespace": "ml"}
    event = {"involvedObject": about, "reason": reason, "message": message, "type": "Warning"}
    return {"apiVersion": "v1", "kind": "Event", "metadata": meta, **event}


def world(*items: Obj) -> World:
    return World(snapshot.build([*small.base(), *items]))


def why_job(*items: Obj, kind: str = "Job", name: str = "train") -> Report | None:
    return jobs.report(world(*items), kind, name, "ml")


def facts_of(*items: Obj, name: str = "train") -> dict[str, str]:
    seen = world(*items)
    found = seen.snapshot.get("NeuronUltraServerWorkload", name, "ml")
    assert found is not None
    return dict(answer.REPORTS["NeuronUltraServerWorkload"](seen, found).findings[0].facts)


def test_a_workload_shows_its_place_in_the_queue_and_what_helps() -> None:
    others: list[Obj] = [
        queued("runs", has_quota=True),
        queued("older", minute=1),
        queued("urgent", minute=9, priority=10),
        queued("younger", minute=5),
        queued("elsewhere", queue="other"),
    ]
    assert facts_of(reservation("train"), queued("train", minute=3), *others) == {
        "to do": "wait, or raise the quota of the ClusterQueue",
        "queue": "team, place 3 of 4 that wait, after workload urgent, workload older",
        "quota": "used by workload runs",
        "helps": "the end of workload runs, a larger quota, or a spec.priorityClassName with a higher value",
    }


def test_a_first_workload_is_told_that_no_other_one_uses_the_quota() -> None:
    assert facts_of(reservation("train"), queued("train")) == {
        "to do": "wait, or raise the quota of the ClusterQueue",
        "queue": "team, place 1 of 1 that wait",
        "quota": "no other one of this queue uses it",
        "helps": "a larger quota, or a spec.priorityClassName with a higher value",
    }


def test_more_quota_does_not_help_what_was_deactivated() -> None:
    assert "helps" not in facts_of(reservation("train", "QueueDeactivated"), queued("train"))


def test_a_workload_that_has_quota_and_no_nodes_shows_both() -> None:
    found = facts_of(reservation("train", "NoFreeNodes"), queued("train", has_quota=True))
    assert found == {"queue": "team, where it has quota"}


def test_a_workload_that_kueue_does_not_know_yet_shows_its_job_alone() -> None:
    assert facts_of(reservation("train", job="train")) == {
        "to do": "wait, or raise the quota of the ClusterQueue",
        "job": "Job train",
    }


def test_a_job_shows_what_its_reservation_waits_for() -> None:
    found = why_job(reservation("train", job="train"), queued("train"))
    assert found is not None
    assert (found.subject, found.state) == ("Job ml/train, by its workload ml/train", "is Pending")
    assert (found.findings[0].code, found.findings[0].text) == ("WaitingForQuota", WAITS)
    assert dict(found.findings[0].facts)["queue"] == "team, place 1 of 1 that wait"


def test_a_job_of_another_kind_or_name_does_not_show_it() -> None:
    items: list[Any] = [reservation("train", job="train"), queued("train")]
    assert why_job(*items, kind="JobSet") is None
    assert why_job(*items, name="other") is None


def test_a_job_for_which_nothing_is_reserved_shows_the_event() -> None:
    found = why_job(refused("ManagedByKueue", "replace the label"))
    assert found is not None
    assert (found.state, [(each.code, each.text) for each in found.findings]) == (
        "reserves no nodes",
        [("ManagedByKueue", "replace the label")],
    )


def test_an_event_of_something_else_is_no_refusal() -> None:
    assert why_job(refused("SuccessfulCreate", "Created pod")) is None


def test_status_names_the_job_and_the_place_in_the_queue() -> None:
    seen = world(reservation("train", job="train"), queued("train"))
    shown = " ".join(" ".join(workloads.lines(seen, workloads.waiting(seen, ""), most_named=4)).split())
    assert f"ml/train of Job train (queue team, place 1 of 1 that wait) is Pending: WaitingForQuota: {WAITS}" in shown
