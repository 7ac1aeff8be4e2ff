"""Ten questions of someone on call: the first screen of one command answers each (34, acceptance 6)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neuron_dra.ask.world import imagined
from neuron_dra.core.wire import Obj
from tests.support import cluster_faults as faults
from tests.support import shown_fleet
from tests.support import small_clusters as small
from tests.support.questions import ask, snapshot
from tests.support.screens import shown

ROWS = 24
COLUMNS = 80
EIGHT = "resource.aws.com/devicegroup8_id"
TAG = {
    "workloadId": "llm-70b",
    "workloadNamespace": "ml",
    "workloadUid": "u",
    "allocationId": "x",
    "workloadPhase": "Bound",
}


def on_call() -> list[Obj]:
    """A hundred UltraServers, five of them with faults, and twenty single nodes; the upgrade of one node went wrong."""
    items = imagined.fleet("100 x ultraserver trn2u.48xlarge, 20 x trn2.48xlarge", "test")
    gone = {"trn2u-9", "trn2u-201", "trn2u-202", "trn2u-399"}
    items = [each for each in items if not gone & {each["metadata"]["name"], (each.get("spec") or {}).get("nodeName")}]
    for node in faults.all_of(items, "Node"):
        node["status"] = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "192"}}
    slices = {each["spec"]["nodeName"]: each for each in faults.all_of(items, "ResourceSlice")}
    for name in ("trn2u-68", "trn2u-69", "trn2u-70", "trn2u-71", "trn2u-300"):
        for device in slices[name]["spec"]["devices"]:
            device["attributes"].update(linkVertical={"bool": False}, ultraserverModes={"string": "1"})
    for name in ("trn2u-40", "trn2u-41", "trn2u-42", "trn2u-43"):
        for device in slices[name]["spec"]["devices"]:
            device["attributes"].update({key: {"string": value} for key, value in TAG.items()})
    for name in ("trn2-3", "trn2-7"):
        device = slices[name]["spec"]["devices"][5]
        device["attributes"]["unhealthy"] = {"string": "hbm_ecc"}
        device["taints"] = [{"key": "neuron.aws.com/unhealthy", "value": "hbm_ecc", "effect": "NoSchedule"}]
    items.remove(slices["trn2-12"])
    for number, namespace in enumerate(("ml", "ml", "research")):
        count = 8 if namespace == "ml" else 4
        items += small.running(items, f"train-{number}", count, f"trn2-{number}", namespace=namespace)
    items.append(small.template("seventeen", 17, namespace="ml"))
    for number in range(2):
        pod = small.pod(f"eval-{number}", "seventeen", namespace="ml")
        pod["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "eval", "uid": "eval"}]
        items.append(pod)
    return items


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return snapshot(tmp_path_factory.mktemp("on-call"), on_call())


def workload(number: int) -> Obj:
    spec = {"instanceType": "trn2u.48xlarge", "topologySize": 4, "serverCount": 1}
    meta = {"name": f"job-{number}", "namespace": "ml"}
    return {"apiVersion": "neuron.aws.com/v1beta1", "kind": "NeuronUltraServerWorkload", "metadata": meta, "spec": spec}


QUESTIONS = [
    (
        "which UltraServers are broken",
        ("status",),
        [
            "3 of 4 nodes: UltraServers trn2u-ultraserver-2, trn2u-ultraserver-99",
            "2 of 4 nodes: UltraServer trn2u-ultraserver-50",
            "vertical links down: UltraServers trn2u-ultraserver-17, trn2u-ultraserver-75",
        ],
    ),
    (
        "why does the job eval wait",
        ("why", "job/eval", "-n", "ml"),
        ["2 pods wait for a node: request neurons wants 17 devices of one node, and the largest node has 16"],
    ),
    ("who holds the most", ("status", "holders"), ["ml 16 devices 2", "ml/train-0 trn2-0 devices 0-7"]),
    ("how many jobs of four nodes can start now", ("status",), ["trn2u.48xlarge: 94 UltraServers,"]),
    (
        "what did the upgrade break",
        ("doctor",),
        ["node trn2-12: the driver publishes no devices of this trn2.48xlarge"],
    ),
    ("where is room for eight connected devices", ("status",), ["OF 4 OF 8 OF 16", "trn2.48xlarge 16 282 devices"]),
    ("who is on node trn2-0", ("topology", "trn2-0"), ["8 of 16 devices free, 8 held", "A ml/train-0, 8"]),
    (
        "which devices are sick",
        ("status",),
        ["unhealthy: hbm_ecc: nodes trn2-3, trn2-7"],
    ),
    (
        "who has reserved UltraServer 10",
        ("topology", "trn2u-ultraserver-10"),
        ["4 nodes", "A workload ml/llm-70b, 4 nodes"],
    ),
    ("what does hbm_ecc mean", ("explain", "hbm_ecc"), ["uncorrectable"]),
]


@pytest.mark.parametrize(("question", "words", "answers"), QUESTIONS, ids=[each[0] for each in QUESTIONS])
def test_the_first_screen_answers(
    question: str, words: tuple[str, ...], answers: list[str], file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    about = () if words[0] == "explain" else ("--snapshot", file)
    found = ask(capsys, *words, *about)
    lines = found.out.splitlines()[:ROWS]
    screen = " ".join(" ".join(lines).split())
    assert [each for each in answers if each not in screen] == [], found.out
    assert max(map(len, lines)) <= COLUMNS


@pytest.fixture(scope="module")
def long_names(tmp_path_factory: pytest.TempPathFactory) -> str:
    return snapshot(tmp_path_factory.mktemp("long"), shown_fleet.with_ec2_names(on_call()))


@pytest.mark.parametrize(("question", "words", "answers"), QUESTIONS, ids=[each[0] for each in QUESTIONS])
def test_the_first_screen_answers_with_names_as_ec2_gives_them(
    question: str, words: tuple[str, ...], answers: list[str], long_names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal of 80 columns and 24 rows."""
    names = shown_fleet.ec2_names(on_call())

    def named(text: str) -> str:
        return " ".join(names.get(word.strip(",:"), word.strip(",:")) for word in text.split())

    about = () if words[0] == "explain" else ("--snapshot", long_names)
    lines = shown(monkeypatch, COLUMNS, *map(named, words), *about)[:ROWS]
    screen = " ".join(word.strip(",:") for word in " ".join(lines).split())
    assert [each for each in answers if named(each) not in screen] == [], "\n".join(lines)
    assert max(map(len, lines)) <= COLUMNS


@pytest.mark.parametrize(("jobs", "code", "answer"), [(4, 0, "4 of 4"), (96, 1, "")])
def test_whether_jobs_of_four_nodes_can_start_now(
    jobs: int, code: int, answer: str, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """94 UltraServers are free, and the controller releases the one whose workload is gone."""
    items = [workload(number) for number in range(jobs)]
    for number in range(jobs):
        claim = {"name": "neurons", "resourceClaimTemplateName": f"job-{number}"}
        pod = {"containers": [{"name": "main", "image": "train"}], "resourceClaims": [claim]}
        meta = {"name": f"rank-{number}", "namespace": "ml"}
        items.append({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod})
    manifest = tmp_path / "jobs.json"
    manifest.write_text(json.dumps({"kind": "List", "items": items}))
    found = ask(capsys, "simulate", str(manifest), "--snapshot", file)
    assert (found.code, answer in found.text) == (code, True), found.text
