"""`why` about a workload, and `simulate` of what operators create (34, 5)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from neuron_dra.core.wire import Obj
from tests.support import reported_clusters as reported
from tests.support import small_clusters as small
from tests.support.questions import ask, snapshot


def job(kind: str, api: str, owner: str, *labels: tuple[str, str], pods: tuple[str, ...] = ("p",)) -> list[Obj]:
    """A workload whose pods wait for the devices of a full node, with the object that owns them."""
    items = reported.full()
    made = next(each for each in items if each["metadata"]["name"] == "wanted")
    items = [each for each in items if each["metadata"]["name"] not in ("p", "p-neurons-x")]
    for name in pods:
        waiting, own = small.created(reported.waits(small.pod(name, "wanted")), made)
        waiting["metadata"] |= {
            "labels": dict(labels),
            "ownerReferences": [{"kind": owner, "name": "train", "uid": "u"}],
        }
        items += [waiting, own]
    meta = {"name": "train", "namespace": "default", "uid": "u"}
    return [*items, {"apiVersion": api, "kind": kind, "metadata": meta, "spec": {"replicas": len(pods)}}]


@pytest.mark.parametrize(
    ("about", "kind", "api", "owner", "labels"),
    [
        ("job/train", "Job", "batch/v1", "Job", ()),
        ("sts/train", "StatefulSet", "apps/v1", "StatefulSet", ()),
        ("jobset/train", "JobSet", "jobset.x-k8s.io/v1alpha2", "Job", (("jobset.sigs.k8s.io/jobset-name", "train"),)),
        ("lws/train", "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", "StatefulSet",
         (("leaderworkerset.sigs.k8s.io/name", "train"),)),
        ("raycluster/train", "RayCluster", "ray.io/v1", "RayCluster", (("ray.io/cluster", "train"),)),
        ("trainjob/train", "TrainJob", "trainer.kubeflow.org/v1alpha1", "Job",
         (("jobset.sigs.k8s.io/jobset-name", "train"),)),
    ],
)  # fmt: skip
def test_workload_waits_for_what_its_pods_wait_for(
    about: str,
    kind: str,
    api: str,
    owner: str,
    labels: tuple[tuple[str, str], ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    items = job(kind, api, owner, *labels, pods=("p-0", "p-1", "p-2"))
    found = ask(capsys, "why", about, "--snapshot", snapshot(tmp_path, items))
    assert (found.code, "3 pods wait for a node" in found.first) == (1, True), found.text
    assert "node a has too few free devices: default/old holds 16" in found.first
    assert found.text.count("too few free devices") == 1


def test_deployment_is_known_by_its_pods_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A snapshot has no Deployments; the names of ReplicaSets show them."""
    found = ask(capsys, "why", "deploy/web", "--snapshot", snapshot(tmp_path, reported.rollout()))
    assert (found.code, "1 pod waits for a node" in found.first) == (1, True), found.text
    assert "a pod of the same Deployment web" in found.first


def pod_spec(count: int = 1) -> Obj:
    limits = {f"deviceclass.resource.kubernetes.io/connected-{count}.neuron.aws.com": "1"}
    return {"containers": [{"name": "main", "image": "train", "resources": {"limits": limits}}]}


def item(kind: str, api: str, spec: Obj) -> Obj:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "train"}, "spec": spec}


TEMPLATE = {"spec": pod_spec()}
CRON = {"schedule": "@daily", "jobTemplate": {"spec": {"parallelism": 2, "template": TEMPLATE}}}
CLIQUE = {"name": "decode", "spec": {"replicas": 2, "podSpec": pod_spec()}}
SCALED = {"jobTargetRef": {"parallelism": 2, "template": TEMPLATE}, "maxReplicaCount": 3}
GROUP = {"name": "g", "cliqueNames": ["decode"], "replicas": 2}


@pytest.mark.parametrize(
    ("made", "pods"),
    [
        (item("CronJob", "batch/v1", CRON), 2),
        (item("DaemonSet", "apps/v1", {"template": TEMPLATE}), 3),
        (item("ScaledJob", "keda.sh/v1alpha1", SCALED), 2),
        (item("PodCliqueSet", "grove.io/v1alpha1", {"replicas": 2, "template": {"cliques": [CLIQUE]}}), 4),
        (item("PodCliqueSet", "grove.io/v1alpha1",
              {"template": {"cliques": [CLIQUE], "podCliqueScalingGroups": [GROUP]}}), 4),
        (item("NodeSet", "slinky.slurm.net/v1beta1", {"replicas": 3, "template": TEMPLATE}), 3),
        (item("Service", "serving.knative.dev/v1", {"template": {
            "metadata": {"annotations": {"autoscaling.knative.dev/min-scale": "2"}}, **TEMPLATE}}), 2),
        (item("Workflow", "argoproj.io/v1alpha1",
              {"templates": [{"name": "t", "container": pod_spec()["containers"][0]}]}), 1),
    ],
    ids=lambda each: each["kind"] if isinstance(each, dict) else "",
)  # fmt: skip
def test_pods_of_operators_are_placed(made: Obj, pods: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "workload.yaml"
    file.write_text(yaml.safe_dump(made))
    found = ask(capsys, "simulate", str(file), "--fleet", "3 x inf2.48xlarge")
    assert (found.code, f"{pods} of {pods} pods run" in found.text) == (0, True), found.text


def test_kind_that_is_not_known_is_named_in_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown kind with a pod template in it may be a workload: it is said, and the answer is not `all run`."""
    file = tmp_path / "workload.yaml"
    strange = item("Trainer", "example.com/v1", {"workers": 2, "template": TEMPLATE})
    pod: Obj = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": pod_spec()}
    file.write_text(yaml.safe_dump_all([strange, pod]))
    found = ask(capsys, "simulate", str(file), "--fleet", "1 x inf2.48xlarge")
    assert "not counted: Trainer train, which has a pod template" in found.text, found.out


def gang(least: int) -> list[Obj]:
    made: list[Obj] = [
        {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": "g"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": least}}},
        }
    ]
    for number in range(3):
        spec: Any = {**pod_spec(12), "schedulingGroup": {"podGroupName": "g"}}
        made.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p-{number}"}, "spec": spec})
    return made


@pytest.mark.parametrize(("least", "runs"), [(2, 2), (3, 0)])
def test_gang_runs_whole_or_not_at_all(
    least: int, runs: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two nodes have room for two pods of three."""
    file = tmp_path / "gang.yaml"
    file.write_text(yaml.safe_dump_all(gang(least)))
    found = ask(capsys, "simulate", str(file), "--fleet", "2 x inf2.48xlarge")
    assert (found.code, f"{runs} of 3 pods run" in found.text) == (1, True), found.out
    if not runs:
        assert "PodGroup g needs 3 pods at once" in found.text


def test_workload_of_ultraservers_is_simulated_with_its_pods(capsys: pytest.CaptureFixture[str]) -> None:
    """One command answers for the flagship example: the template, the reservation, and the pods."""
    file = "deploy/examples/ultraservers/all-reduce-job.yaml"
    found = ask(capsys, "simulate", file, "--fleet", "2 x ultraserver trn2u.48xlarge")
    assert (found.code, "8 of 8 pods run" in found.text) == (0, True), found.text


@pytest.mark.parametrize("word", ["", " efa"])
def test_workload_of_several_ultraservers_is_simulated_with_their_interfaces(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each pod gets its reserved node, and all EFA interfaces of it."""
    file = "deploy/examples/ultraservers/my-training-job.yaml"
    found = ask(capsys, "simulate", file, "--fleet", f"2 x ultraserver trn2u.48xlarge{word}")
    assert (found.code, "8 of 8 pods run" in found.text) == (0, True), found.text
    assert "my-training-workload-7 trn2u-7 neuron-node-0, pci-0000-56-00-0 and 15 more" in found.text


def test_workload_without_enough_ultraservers_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    file = "deploy/examples/ultraservers/all-reduce-job.yaml"
    found = ask(capsys, "simulate", file, "--fleet", "1 x ultraserver trn2u.48xlarge")
    assert (found.code, "0 of 8 pods run" in found.text) == (1, True), found.text
    assert "not reserved: needs 2 x 4 trn2u.48xlarge nodes; 1 of 2 groups of 4 are free" in found.text


def test_fleet_without_ultraservers_names_the_word_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    file = "deploy/examples/ultraservers/all-reduce-job.yaml"
    found = ask(capsys, "simulate", file, "--fleet", "2 x trn2u.48xlarge")
    note = "note: nodes of --fleet form UltraServers with the word ultraserver before their type"
    assert note in " ".join(found.text.split())


def test_workload_of_a_type_that_the_fleet_lacks_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    file = "deploy/examples/ultraservers/leaderworkerset.yaml"
    found = ask(capsys, "simulate", file, "--fleet", "4 x ultraserver trn2u.48xlarge")
    assert "here are of type trn2u.48xlarge" in found.text


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ("topologySize: 3", "spec.topologySize is 3, spec.serverCount 2: write 1, 2 or 4 nodes for each group"),
        ("serverCount: -1", "spec.topologySize is 4, spec.serverCount -1: write 1, 2 or 4 nodes"),
        ("serverCount: 0", "spec.topologySize is 4, spec.serverCount 0: write 1, 2 or 4 nodes"),
        ("serverCount: 20000000", "spec.topologySize is 4, spec.serverCount 20000000: write 1, 2 or 4 nodes"),
    ],
)
def test_workload_that_the_api_server_refuses_reserves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, why: str
) -> None:
    text = Path("deploy/examples/ultraservers/all-reduce-job.yaml").read_text()
    name = field.partition(":")[0]
    changed = re.sub(rf"{name}: \d+", field, text)
    assert changed != text
    file = tmp_path / "odd.yaml"
    file.write_text(changed)
    found = ask(capsys, "simulate", str(file), "--fleet", "2 x ultraserver trn2u.48xlarge")
    assert (found.code, "0 of 8 pods run; 0 of 8 nodes are held" in found.text) == (1, True), found.text
    assert f"not reserved: {why}" in found.text


def test_pods_of_a_deployment_are_placed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(item("Deployment", "apps/v1", {"replicas": 2, "template": TEMPLATE})))
    found = ask(capsys, "simulate", str(file), "--fleet", "1 x inf2.48xlarge", "-o", "json")
    assert (found.code, found.out.count('"runs": true')) == (0, 2)
    assert json.loads(found.out)
