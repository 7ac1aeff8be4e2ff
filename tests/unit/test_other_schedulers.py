"""`why` of pods whose scheduler, queue or autoscaler is not Kubernetes' own: the answer starts with it (4.08)."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_dra.core import names
from neuron_dra.core.wire import Obj
from tests.support import reported_clusters as reported
from tests.support import small_clusters as small
from tests.support.questions import Answer, ask, snapshot
from tests.support.reported_clusters import event, pod

SAID = "Resources were found for 1 pods while 2 are required for gang scheduling"
NO_INSTANCE = "Failed to schedule pod, allocating dynamic resources, no instance type can satisfy the allocation"


def posted(by: str, reason: str, message: str, *, old: bool = False) -> Obj:
    """An Event about the pod, as a program posts it; old programs name themselves in `source`."""
    source = {"source": {"component": by}} if old else {"reportingComponent": by, "source": {}}
    made = {**event(reason, message), **source}
    made["metadata"] |= {"name": f"p.{reason}"}
    return made


def bound(*events: Obj, scheduler: str = "") -> list[Obj]:
    """A pod with a node and a claim that nothing allocated."""
    items = reported.asks(small.base("a", "b"), 4)
    pod(items)["spec"] |= {"nodeName": "a", **({"schedulerName": scheduler} if scheduler else {})}
    pod(items)["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
    return [*items, *events]


def waits(scheduler: str, said: str = SAID, count: int = 4) -> list[Obj]:
    """A pod that another scheduler keeps waiting."""
    items = reported.asks(small.base("a"), count, said=said, schedulerName=scheduler)
    if not said:
        pod(items)["status"]["conditions"] = []
    return items


def without_neuron_nodes(*events: Obj) -> list[Obj]:
    """A pod that waits in a cluster whose one node has the devices of another driver."""
    items = reported.asks(small.base("a"), 4)
    [interface] = [item for item in items if item["kind"] == "ResourceSlice"]
    interface["spec"] |= {"driver": "dra.net", "devices": [{"name": "eth1"}]}
    reported.node(items)["metadata"]["labels"][names.INSTANCE_TYPE_LABEL] = "m5.2xlarge"
    return [*items, *events]


def why(capsys: pytest.CaptureFixture[str], folder: Path, items: list[Obj]) -> Answer:
    return ask(capsys, "why", "pod/p", "--snapshot", snapshot(folder, items))


@pytest.mark.parametrize("old", [False, True])
def test_scheduler_that_bound_without_claims_is_named(
    old: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    items = bound(posted("volcano", "Scheduled", "Successfully assigned default/p to a", old=old), scheduler="volcano")
    answer = why(capsys, tmp_path, items)
    assert answer.first == (
        "pod default/p does not run on node a: scheduler volcano bound it to node a and did not allocate its claim "
        "p-neurons-x"
    )
    assert "whether dynamic resource allocation is turned on in volcano" in answer.text
    steps = "kubectl apply cannot change this in a pod: kubectl replace --force -f FILE"
    assert f"remove schedulerName {steps} then p gets devices 0-3 of node a" in answer.text


def test_pod_with_node_name_and_another_scheduler_has_two_causes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answer = why(capsys, tmp_path, bound(scheduler="volcano"))
    assert "scheduler volcano bound it to node a, or spec.nodeName did" in answer.first


def test_hostile_scheduler_name_is_quoted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = why(capsys, tmp_path, bound(posted("\x1b[2J" + "x" * 500, "Scheduled", "")))
    assert "\x1b" not in answer.out
    assert "x" * 100 not in answer.out


def test_waiting_pod_of_another_scheduler_starts_with_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = why(capsys, tmp_path, waits("kai-scheduler"))
    assert answer.first == (
        f"pod default/p waits for a node: its scheduler kai-scheduler, which is not simulated here, says '{SAID}'; "
        "Kubernetes' own would place it on node a"
    )
    assert answer.text.count(SAID) == 1


@pytest.mark.parametrize(
    ("said", "start"),
    [
        ("0/1 nodes", "its scheduler kai-scheduler, which is not simulated here, says '0/1 nodes'"),
        ("", "its scheduler kai-scheduler has not handled it"),
    ],
)
def test_pod_that_fits_nowhere_names_scheduler_then_cause(
    said: str, start: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answer = why(capsys, tmp_path, waits("kai-scheduler", said, 17))
    rest = "; Kubernetes' own would not place it either: request neurons wants 17 devices of one node"
    assert f"waits for a node: {start}{rest}" in answer.first


def test_missing_template_is_the_cause_under_any_scheduler(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    items = [*small.base("a"), small.template("four", 4), small.pod("p", "gone", schedulerName="kai-scheduler")]
    answer = why(capsys, tmp_path, items)
    assert answer.first.startswith("pod default/p waits for a node: there is no ResourceClaimTemplate default/gone")


@pytest.mark.parametrize(
    ("gate", "text"),
    [
        ("scheduling.volcano.sh/queue-allocation-gate", "Volcano removes it when the pod's queue has capacity"),
        ("grove.io/podgang-pending-creation", "Grove removes it when the pod's PodGang is ready"),
        ("kueue.x-k8s.io/admission", "Kueue removes it when it admits the pod"),
        ("kueue.x-k8s.io/topology", "Kueue removes it when it has chosen the pod's part of the topology"),
    ],
)
def test_gates_of_queues_say_what_they_wait_for(
    gate: str, text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    items = reported.asks(small.base("a"), 4, schedulerName="volcano", schedulingGates=[{"name": gate}])
    answer = why(capsys, tmp_path, items)
    assert answer.first.endswith(f"scheduling gates keep it from the scheduler: {gate}; {text}")


def test_unknown_gate_is_named_and_no_program_is_blamed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    gates = [{"name": "example.com/approval"}]
    answer = why(capsys, tmp_path, reported.asks(small.base("a"), 4, schedulingGates=gates))
    assert answer.first.endswith("scheduling gates keep it from the scheduler: example.com/approval")


def test_gate_beside_kueues_is_named_with_kueues_reason(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The pod waits for both programs."""
    gates = [{"name": "kueue.x-k8s.io/admission"}, {"name": "grove.io/podgang-pending-creation"}]
    items = reported.asks(small.base("a"), 4, schedulingGates=gates)
    pod = next(item for item in items if item["kind"] == "Pod")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"]}
    workload = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": "pod-p", "namespace": "default", "ownerReferences": [owner]},
        "spec": {"queueName": "team", "active": True},
        "status": {"conditions": [{"type": "QuotaReserved", "status": "False", "message": "no quota"}]},
    }
    answer = why(capsys, tmp_path, [*items, workload])
    assert answer.first.endswith("Kueue has not admitted it: no quota")
    assert "other gate grove.io/podgang-pending-creation; Grove removes it" in answer.text


@pytest.mark.parametrize(
    ("by", "reason", "message", "who", "instead"),
    [
        ("karpenter", "FailedScheduling", NO_INSTANCE, "Karpenter", "spec.replicas of a NodePool"),
        (
            "cluster-autoscaler",
            "NotTriggerScaleUp",
            "pod didn't trigger scale-up: 1 cannot allocate all claims",
            "the Cluster Autoscaler",
            "keep one node in the group",
        ),
    ],
)
def test_autoscaler_that_adds_no_node_is_named(
    by: str, reason: str, message: str, who: str, instead: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answer = why(capsys, tmp_path, without_neuron_nodes(posted(by, reason, message)))
    assert answer.first.endswith(f"no Node has a Neuron instance type; {who} adds no node for it")
    assert message in answer.text
    assert instead in answer.text


@pytest.mark.parametrize("reason", ["Nominated", "TriggeredScaleUp"])
def test_autoscaler_that_adds_a_node_is_not_blamed(
    reason: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    earlier = posted("karpenter", "FailedScheduling", NO_INSTANCE)
    earlier["lastTimestamp"] = "2026-03-01T11:00:00Z"
    answer = why(capsys, tmp_path, without_neuron_nodes(earlier, posted("karpenter", reason, "nodeclaim/x")))
    assert "adds no node" not in answer.text


def test_autoscaler_with_another_reason_gets_no_advice_about_claims(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    refused = posted("karpenter", "FailedScheduling", "all available instance types exceed limits for nodepool: trn2")
    answer = why(capsys, tmp_path, without_neuron_nodes(refused))
    assert "exceed limits for nodepool: trn2" in answer.text
    assert "docs/autoscaling.md" not in answer.text


def test_autoscaler_is_not_taken_for_the_scheduler(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    items = reported.asks(small.base("a"), 4)
    pod(items)["status"]["conditions"] = []
    answer = why(capsys, tmp_path, [*items, posted("karpenter", "FailedScheduling", NO_INSTANCE)])
    assert "the scheduler has not handled it yet" in answer.first


def test_message_of_an_event_is_cut_and_quoted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    hostile = posted(
        "karpenter", "FailedScheduling", "\x1b[2Jdynamic resources\nto change   kubectl delete" + "x" * 999
    )
    answer = why(capsys, tmp_path, without_neuron_nodes(hostile))
    assert "\x1b" not in answer.out
    assert "\n  to change" not in answer.out
    assert len(answer.text) < 1000


def test_status_shows_pods_that_wait_without_neuron_nodes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    items = without_neuron_nodes(posted("karpenter", "FailedScheduling", NO_INSTANCE))
    answer = ask(capsys, "status", "--snapshot", snapshot(tmp_path, items))
    assert answer.out.startswith("no Neuron nodes")
    assert "WAITING (1 pod) default/p: no node publishes devices" in answer.text
    assert "Karpenter adds no node for it" in answer.text


def test_control_characters_of_a_message_are_escaped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = why(capsys, tmp_path, reported.asks(small.base("a"), 4, said="\x1b[2Jgone"))
    assert "\x1b" not in answer.out
    assert "\\x1b[2Jgone" in answer.out
