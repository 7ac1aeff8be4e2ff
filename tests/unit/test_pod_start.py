"""Pods of a workload that are unschedulable, or have no network between groups. Issue 13, numbers 9 and 13."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import pytest

from neuron_dra.planner.observed.model import Starting
from neuron_dra.planner.plan.planning import plan
from neuron_dra.planner.plan.pod_start import lacks_network, network_advice, unschedulable
from tests.unit.failing_world import LIMITS, U1, as_aws_made_them, degraded, held, not_ready, running, start_pods
from tests.unit.ultraserver_world import World

NOW = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
JOB = Starting("ml", "job", "uid-1", "job-rct", 2, ("u1-2", "u1-3"), "job-0")
WORDS = "0/8 nodes are available: 2 Insufficient vpc.amazonaws.com/efa."
SAID = f"1 pod cannot be scheduled although reserved nodes are idle (u1-2, u1-3): other pods may have taken the CPU, \
memory or EFA interfaces there; ml/job-6: {WORDS}"


def pod(**changes: Any) -> dict[str, Any]:
    """A pod of the job that has been unschedulable for a minute."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": WORDS}
    made: dict[str, Any] = {
        "metadata": {"name": "job-6", "namespace": "ml"},
        "spec": {"resourceClaims": [{"name": "neuron", "resourceClaimTemplateName": "job-rct"}]},
        "status": {"conditions": [{**condition, "lastTransitionTime": "2026-03-01T11:59:00Z"}]},
    }
    for path, value in changes.items():
        part, name = path.split("__")
        made[part][name] = value
    return made


def starting(world: World) -> list[Starting]:
    return list(world.plan(LIMITS).starting)


def without_pods(world: World, *nodes: str) -> World:
    for name in nodes:
        world.remove("ResourceClaim", f"claim-{name}", "ml")
    return world


def test_pods_are_checked_only_if_a_node_is_idle() -> None:
    """13.9: rare, because a running job needs no check."""
    world = running("NoOp", count=1)
    assert starting(world) == []
    (found,) = starting(without_pods(world, "u0-2"))
    assert (found.name, found.template, found.idle, found.pod) == ("job", "job", ("u0-2",), None)


def test_pod_of_an_aws_template_is_read() -> None:
    world = running("NoOp")
    as_aws_made_them(world)
    assert [each.pod for each in starting(world)] == ["pod-u0-0"]


def test_pods_are_not_checked_in_other_phases() -> None:
    """13.9."""
    world = without_pods(running("NoOp", count=1), "u0-2")
    world.submit("waits", count=9)
    world.settle(LIMITS)
    assert [each.name for each in starting(world)] == ["job"]
    not_ready(world, *U1, "u0-0", "u2-0", "u2-1")
    assert starting(world) == []
    again = without_pods(running("NoOp", count=1), "u0-2")
    again.delete_workload("job")
    assert starting(again) == []


def test_unready_node_is_not_idle() -> None:
    """13.9."""
    world = without_pods(running("NoOp", count=1), "u0-2")
    not_ready(world, "u0-2")
    assert starting(world) == []


def test_unschedulable_pods_only_make_degraded() -> None:
    """13.9: Allocated did not cover EFA interfaces, CPU and memory, which other pods had used up."""
    for strategy in ("NoOp", "RestartAll", "MigrateAffected"):
        world = without_pods(running(strategy), "u1-2", "u1-3")
        before, uid = held(world), world.workload("job")["metadata"]["uid"]
        made = plan(replace(world.snapshot(), unschedulable={uid: SAID}), world.now, LIMITS)
        (verdict,) = made.verdicts.values()
        assert (verdict.state, verdict.degraded) == ("Allocated", ("PodsUnschedulable", SAID))
        for action in made.actions:
            world.write(action)
        assert (held(world), degraded(world)) == (before, ("PodsUnschedulable", SAID))
        start_pods(world)
        world.settle(LIMITS)
        assert degraded(world) == ("", "")


def test_node_faults_come_first() -> None:
    """13.9."""
    world = without_pods(running("NoOp"), "u1-3")
    not_ready(world, "u1-2")
    uid = world.workload("job")["metadata"]["uid"]
    (verdict,) = plan(replace(world.snapshot(), unschedulable={uid: SAID}), world.now, LIMITS).verdicts.values()
    assert verdict.degraded is not None
    assert (verdict.degraded[0], SAID in verdict.degraded[1]) == ("NodeNotReady", True)


def test_message_quotes_the_scheduler() -> None:
    """13.9."""
    assert unschedulable([pod()], JOB, NOW) == SAID
    two = unschedulable([pod(metadata__name="job-7"), pod()], JOB, NOW)
    assert two == SAID.replace("1 pod cannot", "2 pods cannot")


@pytest.mark.parametrize(
    "changes",
    [
        {"spec__nodeName": "u1-2"},
        {"spec__resourceClaims": [{"name": "neuron", "resourceClaimTemplateName": "another"}]},
        {"spec__resourceClaims": None},
        {"metadata__deletionTimestamp": "2026-03-01T12:00:00Z"},
        {"status__conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]},
        {"status__conditions": None},
    ],
    ids=["scheduled", "of another template", "without claims", "ends", "gated", "not looked at yet"],
)
def test_other_pods_are_ignored(changes: dict[str, Any]) -> None:
    """13.9."""
    assert unschedulable([pod(**changes)], JOB, NOW) == ""


def test_recently_unschedulable_pod_is_ignored() -> None:
    """13.9: a scheduler that has not seen the newest slices places it at its next try."""
    assert unschedulable([pod()], JOB, NOW - datetime.timedelta(seconds=1)) == ""


def test_one_pod_per_group_is_checked() -> None:
    """13.13."""
    (found,) = starting(running("NoOp", count=2))
    assert (found.idle, found.pod, found.count) == ((), "pod-u0-0", 2)


def test_pods_without_efa_claim_are_reported() -> None:
    """13.13: ranks in different groups could not reach each other, without a message."""
    assert lacks_network(pod(), "job-rct")
    assert network_advice(JOB) == (
        "serverCount is 2, and pod ml/job-0 has no claim for EFA interfaces: ranks in different groups cannot reach "
        "each other over EFA; add a claim with deviceClassName efa.networking.k8s.aws to the pods, as in "
        "deploy/examples/ultraservers/my-training-job.yaml"
    )


def test_other_claims_may_provide_efa() -> None:
    """13.13."""
    both = [*pod()["spec"]["resourceClaims"], {"name": "efa", "resourceClaimTemplateName": "efa-claim-template"}]
    assert not lacks_network(pod(spec__resourceClaims=both), "job-rct")
    asks = [{"name": "c", "resources": {"limits": {"vpc.amazonaws.com/efa": "16"}}}]
    assert not lacks_network(pod(spec__containers=asks), "job-rct")
    assert lacks_network(pod(spec__containers=[{"name": "c"}]), "job-rct")
