"""`why` of a workload without pods says what is wrong with it, and of an absent one that it does not exist (4.08)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neuron_dra.core.wire import Obj
from tests.support import small_clusters as small
from tests.support.questions import Answer, ask, snapshot

QUOTA = 'pods "web-5d4" is forbidden: exceeded quota: team, requested: pods=1, used: pods=8, limited: pods=8'


def workload(kind: str = "Deployment", name: str = "web", version: str = "apps/v1", **parts: Any) -> Obj:
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", **parts.pop("metadata", {})}
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": {"replicas": 2}, **parts}


def condition(kind: str, message: str, status: str = "True") -> Obj:
    return {"conditions": [{"type": kind, "status": status, "reason": kind, "message": message}]}


def refused(kind: str, name: str, message: str = QUOTA) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.1", "namespace": "default"},
        "involvedObject": {"kind": kind, "name": name, "namespace": "default"},
        "reason": "FailedCreate",
        "message": message,
        "lastTimestamp": "2026-03-01T12:00:00Z",
    }


def why(capsys: pytest.CaptureFixture[str], folder: Path, what: str, *items: Obj) -> Answer:
    return ask(capsys, "why", what, "--snapshot", snapshot(folder, [*small.base("a"), *items]))


@pytest.mark.parametrize(
    ("what", "items", "text"),
    [
        (
            "deploy/web",
            [workload(status=condition("ReplicaFailure", QUOTA)), refused("ReplicaSet", "web-5d4")],
            f"Deployment default/web has no pods: condition ReplicaFailure: '{QUOTA}'",
        ),
        (
            "deploy/web",
            [workload(status=condition("ReplicaFailure", "", "False")), refused("ReplicaSet", "web-5d4")],
            f"Deployment default/web has no pods: its pods cannot be created: '{QUOTA}'",
        ),
        (
            "ds/web",
            [refused("DaemonSet", "web")],
            f"DaemonSet default/web has no pods: its pods cannot be created: '{QUOTA}'",
        ),
        (
            "ds/web",
            [workload("DaemonSet", spec={}, status={"desiredNumberScheduled": 0})],
            "DaemonSet default/web has no pods: no node matches its node selector, affinity and tolerations",
        ),
        (
            "job/web",
            [workload("Job", version="batch/v1", spec={"suspend": True})],
            "Job default/web has no pods: it is suspended (spec.suspend is true)",
        ),
        (
            "job/web",
            [
                workload(
                    "Job",
                    version="batch/v1",
                    spec={"suspend": True},
                    metadata={"labels": {"kueue.x-k8s.io/queue-name": "team"}},
                )
            ],
            "Job default/web has no pods: it is suspended (spec.suspend is true), which Kueue ends when it admits the "
            "job to queue 'team'",
        ),
        (
            "job/web",
            [workload("Job", version="batch/v1", status=condition("Failed", "Job has reached its backoff limit"))],
            "Job default/web has no pods: condition Failed: 'Job has reached its backoff limit'",
        ),
        (
            "deploy/web",
            [workload(status={"conditions": "none"}), refused("ReplicaSet", "other-5d4")],
            "Deployment default/web has no pods: unknown: there are no Events about it. Is its controller running?",
        ),
        (
            "deploy/web",
            [workload()],
            "Deployment default/web has no pods: unknown: no Events were read, which would show it",
        ),
    ],
)
def test_workload_without_pods_names_the_cause(
    what: str, items: list[Obj], text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answer = why(capsys, tmp_path, what, *items)
    assert (answer.code, answer.first) == (1, text)


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (workload(spec={"replicas": 0}), "Deployment default/web has no pods, as its spec.replicas is 0"),
        (
            workload("Job", version="batch/v1", status=condition("Complete", "")),
            "Job default/web has ended, with success",
        ),
    ],
)
def test_workload_that_needs_no_pods_is_fine(
    item: Obj, text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answer = why(capsys, tmp_path, f"{item['kind'].lower()}/web", item)
    assert (answer.code, answer.first) == (0, text)


def test_job_that_kueue_holds_back_names_its_reason(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    waits = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": "job-web",
            "namespace": "default",
            "ownerReferences": [{"kind": "Job", "name": "web", "uid": "uid-web"}],
        },
        "spec": {"queueName": "team"},
        "status": condition("QuotaReserved", "couldn't assign flavors to pod set main", "False"),
    }
    answer = why(capsys, tmp_path, "job/web", workload("Job", version="batch/v1", spec={"suspend": True}), waits)
    assert answer.first.endswith("Kueue has not admitted it: couldn't assign flavors to pod set main")


def test_absent_workload_is_named_if_its_kind_was_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = why(capsys, tmp_path, "deploy/wbe", workload())
    assert (answer.code, answer.err) == (
        2,
        "neuron-dra: there is no Deployment wbe in namespace default; did you mean web?\n",
    )


def test_file_without_the_kind_says_how_to_add_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = why(capsys, tmp_path, "deploy/web")
    assert answer.code == 2
    assert "the file has no pods of it, no Events about it, and no Deployment" in answer.err
    assert ",events,deployments.apps -A -o json" in answer.err


def test_object_of_a_kind_that_a_file_lacks_may_exist(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = why(capsys, tmp_path, "workload/train")
    assert answer.code == 2
    assert "NeuronUltraServerWorkload train: the file has none; to write one that has: kubectl get " in answer.err


def test_kind_of_another_group_is_another_kind(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Volcano has a Job of its own."""
    answer = why(capsys, tmp_path, "job/web", workload("Job", version="batch.volcano.sh/v1alpha1"))
    assert answer.code == 2


def test_hostile_message_is_cut_and_quoted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = why(capsys, tmp_path, "ds/web", refused("DaemonSet", "web", "\x1b[2J\n  to change   rm" + "x" * 9999))
    assert "\x1b" not in answer.out
    assert "\n  to change" not in answer.out
    assert len(answer.text) < 600
