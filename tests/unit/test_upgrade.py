"""`neuron-dra doctor --upgrade-to`: what an upgrade of Kubernetes does, for a cluster or a file (4.06)."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from neuron_dra import cli
from neuron_dra.ask.doctor import forecast, upgrade
from neuron_dra.ask.doctor.forecast import PodForecast
from neuron_dra.ask.doctor.lines import CheckState, Line
from neuron_dra.ask.doctor.seen import Seen
from neuron_dra.ask.doctor.upgrade import Upgrade
from neuron_dra.core import names, releases, upgrades, versions
from neuron_dra.core.upgrades import CHANGES, ChangeKind
from neuron_dra.core.wire import Obj
from tests.support import small_clusters as small

TAINT = {"key": "example.com/out", "effect": "NoSchedule"}
LIMIT = f"deviceclass.resource.kubernetes.io/{names.DRIVER}"


def cluster(*more: Obj, kubelet: str = "v1.35.4", runtime: str = "containerd://2.1.4", nodes: str = "ab") -> list[Obj]:
    items = small.base(*nodes)
    for item in items:
        if item["kind"] == "Node":
            item["status"]["nodeInfo"] = {"kubeletVersion": kubelet, "containerRuntimeVersion": runtime}
    return [*items, *more]


def answered(items: Sequence[Obj], version: str, target: str) -> Upgrade:
    seen = Seen(dataclasses.replace(small.cluster(items), version=version), version=version)
    return upgrade.answer(seen, upgrades.target(target))


def texts(answer: Upgrade, area: str, state: CheckState | None = None) -> list[str]:
    return [line.text for line in answer.lines if line.area == area and state in (None, line.state)]


def wrong(answer: Upgrade) -> list[Line]:
    return [line for line in answer.lines if line.state is CheckState.WRONG]


def apart(name: str) -> list[Obj]:
    """Return a waiting pod whose devices must have different ids, which schedulers before 1.36 reject."""
    made = small.template(f"{name}-devices", 2)
    constraint = {"requests": ["neurons"], "distinctAttribute": f"{names.DRIVER}/deviceId"}
    made["spec"]["spec"]["devices"]["constraints"] = [constraint]
    return [made, small.pod(name, f"{name}-devices")]


def limited(name: str) -> Obj:
    made = small.pod(name)
    made["spec"]["containers"][0]["resources"]["limits"] = {LIMIT: 1}
    return made


def incomplete(items: list[Obj]) -> list[Obj]:
    """Return the objects with pools of which a slice is missing."""
    for item in items:
        if item["kind"] == "ResourceSlice":
            item["spec"]["pool"]["resourceSliceCount"] += 1
    return items


def test_pods_that_only_the_newer_release_places_are_named_with_devices() -> None:
    answer = answered(cluster(*apart("train"), limited("plain")), "v1.35.4-eks-1", "1.36")
    assert answer.pods == [
        PodForecast("default/plain", False, True, "a", ("neuron-device-0",)),
        PodForecast("default/train", False, True, "a", ("neuron-device-1", "neuron-device-2")),
    ]
    assert any("2 waiting pods can run after it and not now" in text for text in texts(answer, "pods"))


def test_pods_that_the_newer_release_no_longer_places_are_wrong() -> None:
    items = incomplete(cluster(small.template("one"), small.pod("train", "one")))
    answer = answered(items, "v1.34.4", "1.35")
    [line] = [line for line in wrong(answer) if line.area == "pods"]
    assert line.code == "UpgradeStopsPods"
    assert line.text.startswith("1 waiting pod can run now and not after it: default/train (")


def test_pods_that_fit_on_both_or_neither_are_counted() -> None:
    held = small.running(cluster(), "busy", 16, "a") + small.running(cluster(), "full", 16, "b")
    items = cluster(*held, small.template("one"), small.pod("waits", "one"))
    assert "1 waiting pod waits before and after the upgrade" in texts(answered(items, "v1.36.4", "1.37"), "pods")
    free = cluster(small.template("one"), small.pod("fits", "one"))
    assert "1 waiting pod: a node can run it before and after the upgrade" in texts(
        answered(free, "v1.36.4", "1.37"), "pods"
    )


def test_allocated_claims_do_not_move() -> None:
    items = cluster(*small.running(cluster(), "busy", 4, "a"))
    assert "1 allocated claim keeps its devices: no release moves a claim" in texts(
        answered(items, "v1.35.4", "1.36"), "pods"
    )


def test_gated_pods_are_of_no_scheduler() -> None:
    gated = small.pod("queued", "one", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    answer = answered(cluster(small.template("one"), gated), "v1.35.4", "1.36")
    assert answer.pods == []
    assert "1 waiting pod with scheduling gates: no scheduler gets them" in texts(answer, "pods")


def split(items: list[Obj]) -> list[Obj]:
    """Return the objects with two slices in each pool."""
    made = []
    for item in items:
        if item["kind"] != "ResourceSlice":
            made.append(item)
            continue
        devices = item["spec"]["devices"]
        item["spec"]["pool"]["resourceSliceCount"] = 2
        for number, part in enumerate((devices[:8], devices[8:])):
            half = copy.deepcopy(item)
            half["metadata"]["name"] += f"-{number}"
            half["spec"]["devices"] = part
            made.append(half)
    return made


@pytest.mark.parametrize(("target", "devices"), [("1.35", ()), ("1.36", ("neuron-device-0",))])
def test_devices_of_several_slices_are_named_from_1_36_on(target: str, devices: tuple[str, ...]) -> None:
    items = split(cluster(small.template("one"), small.pod("train", "one")))
    [pod] = answered(items, "v1.34.4", target).pods
    assert (pod.fits_then, pod.node, pod.devices) == (True, "a", devices)


def test_search_that_an_old_scheduler_gives_up_is_unknown_before() -> None:
    held = small.running(cluster(), "busy", 1, "a") + small.running(cluster(), "other", 1, "b")
    items = cluster(*held, small.template("all", 16), small.pod("large", "all"))
    [pod] = answered(items, "v1.35.4", "1.36").pods
    assert (pod.fits_now, pod.fits_then) == (None, False)


def test_pods_that_request_sets_are_unknown_until_nodes_publish_them() -> None:
    limit = limited("sized")
    limit["spec"]["containers"][0]["resources"]["limits"] = {
        LIMIT.replace(names.DRIVER, "connected-4.neuron.aws.com"): 1
    }
    answer = answered(cluster(limit), "v1.35.4", "1.36")
    [pod] = answer.pods
    assert (pod.fits_now, pod.fits_then) == (False, None)
    assert pod.why == "it requests connected-4, which nodes publish only with scheduler.enabled"
    assert any("default/sized" in text for text in texts(answer, "pods", CheckState.UNKNOWN))


def test_pods_whose_templates_were_not_read_are_unknown() -> None:
    items = cluster(small.pod("train", "hidden"))
    known = dataclasses.replace(small.cluster(items), left_out={"ResourceClaimTemplate": "forbidden"})
    [pod] = upgrade.answer(Seen(known, version="v1.35.4"), upgrades.target("1.36")).pods
    assert (pod.fits_then, "the snapshot has no ResourceClaimTemplate" in pod.why) == (None, True)


@pytest.mark.parametrize("kind", ["Pod", "Node", "ResourceSlice"])
def test_waiting_pods_are_unknown_without_the_kinds_that_decide(kind: str) -> None:
    known = dataclasses.replace(small.cluster(cluster(limited("plain"))), left_out={kind: "forbidden"})
    answer = upgrade.answer(Seen(known, version="v1.35.4"), upgrades.target("1.36"))
    assert texts(answer, "pods", CheckState.UNKNOWN) == [f"what becomes of waiting pods is unknown: {kind}s: forbidden"]


def test_part_of_a_gang_that_runs_counts_for_the_rest() -> None:
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "gang", "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    }
    first = small.pod("first", nodeName="a", schedulingGroup={"podGroupName": "gang"})
    second = small.pod("second", "one", schedulingGroup={"podGroupName": "gang"})
    items = cluster(group, {**first, "status": {"phase": "Running"}}, second, small.template("one"))
    [pod] = answered(items, "v1.36.4", "1.37").pods
    assert pod.fits_then is True


def test_features_and_removals_on_the_way_are_named() -> None:
    answer = answered(cluster(), "v1.34.4", "1.39")
    features = " ".join(texts(answer, "features"))
    assert "from 1.36 on, the API server keeps taints" in features
    assert "connected sets from 1.36.3 on" in features
    gates = texts(answer, "gates", CheckState.UNKNOWN)
    assert any("DynamicResourceAllocation (1.38)" in text and "at all" in text for text in gates)
    apis = texts(answer, "API", CheckState.UNKNOWN)
    assert [text.split(" is ")[0] for text in apis] == ["resource.k8s.io/v1beta1", "resource.k8s.io/v1beta2"]


def test_a_patch_release_changes_no_feature() -> None:
    answer = answered(cluster(), "v1.36.1", "1.36.4")
    assert texts(answer, "features") + texts(answer, "gates") + texts(answer, "API") == []


def test_early_releases_with_faults_are_to_be_left_out() -> None:
    answer = answered(cluster(), "v1.35.10", "1.36")
    assert any(text.endswith("take 1.36.4 or later") for text in texts(answer, "faults"))
    [line] = [line for line in wrong(answered(cluster(), "v1.35.10", "1.36.2")) if line.area == "faults"]
    assert (line.code, line.todo) == ("KubernetesKnownBad", "take 1.36.4 (docs/known-faults.md)")


def test_a_fault_that_the_upgrade_ends_is_named() -> None:
    rule = {
        "apiVersion": small.API,
        "kind": "DeviceTaintRule",
        "metadata": {"name": "careless"},
        "spec": {"taint": TAINT},
    }
    items = cluster(rule, kubelet="v1.37.0")
    ended = [text for text in texts(answered(items, "v1.37.0", "1.37.2"), "faults") if "the upgrade ends" in text]
    assert [f"#{releases.RULE_FOR_ALL}" in text for text in ended] == [True]
    brought = wrong(answered(items, "v1.36.4", "1.37.0"))
    assert any("brings a fault" in line.text and line.todo == "take 1.37.1 or later" for line in brought)


def test_kubelets_that_are_too_old_are_upgraded_on_the_way() -> None:
    answer = answered(cluster(kubelet="v1.33.9"), "v1.35.4", "1.37")
    [line] = [line for line in wrong(answer) if line.code == "KubeletTooOld"]
    assert "2 nodes (a, b) with kubelet v1.33.9" in line.text
    steps = [text.split(": ")[0] for text in texts(answer, "steps")]
    assert steps[:3] == ["1. control plane 1.36", "2. 2 nodes (a, b)", "3. control plane 1.37"]
    assert "kubelet 1.36" in texts(answer, "steps")[1]


def test_containerd_1_needs_other_node_images_from_1_36_on() -> None:
    items = cluster(runtime="containerd://1.7.27")
    assert [line.code for line in wrong(answered(items, "v1.34.13", "1.35"))] == []
    assert [line.code for line in wrong(answered(items, "v1.35.10", "1.36"))] == ["ContainerdTooOld"]


def test_running_pods_are_named_that_end_with_a_drain() -> None:
    items = cluster(*small.running(cluster(), "busy", 4, "a"))
    answer = answered(items, "v1.35.10", "1.36")
    assert any("end when their node is drained: default/busy" in text for text in texts(answer, "jobs"))
    assert [line.code for line in wrong(answer)] == ["PodsNotCreatedAgain"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "busy", "uid": "1", "controller": True}
    for item in items:
        if item["kind"] == "Pod":
            item["metadata"]["ownerReferences"] = [owner]
    assert wrong(answered(items, "v1.35.10", "1.36")) == []


def test_control_plane_takes_no_minor_version_twice() -> None:
    steps = texts(answered(cluster(), "v1.34.4", "1.37"), "steps")
    assert [text.split(":")[0] for text in steps[:3]] == [f"{n}. control plane 1.3{n + 4}" for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("version", "target", "code", "states"),
    [
        ("v1.36.3", "1.35", "UpgradeTargetOlder", {CheckState.WRONG}),
        ("v1.36.3", "1.36.1", "UpgradeTargetOlder", {CheckState.WRONG}),
        ("v1.36.3", "1.36", "UpgradeDone", {CheckState.OK}),
        ("v1.34.4", "1.33", "UpgradeTargetOld", {CheckState.WRONG}),
    ],
)
def test_what_is_no_upgrade_is_one_line(version: str, target: str, code: str, states: set[CheckState]) -> None:
    answer = answered(cluster(), version, target)
    assert [line.code for line in answer.lines] == [code]
    assert {line.state for line in answer.lines} == states


def test_unknown_release_asks_for_the_version() -> None:
    answer = answered(cluster(limited("plain")), "", "1.36")
    unknown = [line for line in answer.lines if line.state is CheckState.UNKNOWN and line.area in ("upgrade", "pods")]
    assert [line.todo.split(",")[0] for line in unknown] == ["give it: --kubernetes VERSION"] * 2
    assert answer.pods == []


def test_release_after_those_that_were_tested_is_unknown() -> None:
    answer = answered(cluster(limited("plain")), "v1.37.2", "1.38")
    assert [line.area for line in answer.lines if line.state is CheckState.UNKNOWN] == [
        "driver",
        "pods",
        "gates",
        "API",
    ]
    assert texts(answer, "steps")[0] == "1. update neuron-dra to a release for 1.38"


def test_table_of_changes_is_in_order_and_has_no_gate_twice() -> None:
    assert [change.since for change in CHANGES] == sorted(change.since for change in CHANGES)
    keys = [(change.kind, change.name) for change in CHANGES]
    assert len(keys) == len(set(keys))
    assert all(bool(change.text) is (change.kind is ChangeKind.FEATURE) for change in CHANGES)


@pytest.mark.parametrize("text", ["", "1", "latest", "1.36.x", "1.36.4; rm", "1.36.4.5"])
def test_versions_that_are_none_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="write a version such as"):
        upgrades.target(text)


@pytest.mark.parametrize(
    ("text", "minor", "release"),
    [
        ("1.36", (1, 36), None),
        ("v1.36.4-eks-3c60543", (1, 36), (1, 36, 4)),
        ("1.36.4+rke2r1", (1, 36), (1, 36, 4)),
    ],
)
def test_versions_of_distributions_are_read(text: str, minor: tuple[int, int], release: Any) -> None:
    found = upgrades.target(text)
    assert (found.minor, found.release) == (minor, release)


def test_a_pre_release_has_the_faults_of_the_release_before_it() -> None:
    answer = answered(cluster(), "v1.36.4", "1.37.0-rc.1")
    assert texts(answer, "upgrade") == ["from v1.36.4 to 1.37.0-rc.1"]
    others = [text for text in texts(answer, "faults") if "nothing meets" in text]
    assert [f"#{releases.UNPREPARES_SHARED}" in text for text in others] == [True]


def test_waiting_pods_are_placed_by_priority_and_age() -> None:
    young, old, first = (small.pod(name, "one") for name in ("young", "old", "first"))
    young["metadata"]["creationTimestamp"] = "2026-11-02T00:00:00Z"
    old["metadata"]["creationTimestamp"] = "2026-11-01T00:00:00Z"
    first["metadata"]["creationTimestamp"] = "2026-11-03T00:00:00Z"
    first["spec"]["priority"] = 10
    found = forecast.waiting_pods(small.cluster([young, old, first, small.template("one")]))
    assert [pod["metadata"]["name"] for pod in found] == ["first", "old", "young"]


def command(tmp_path: Path, items: Sequence[Obj], *flags: str) -> int:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}))
    return cli.main(["doctor", "--snapshot", str(path), *flags])


def test_command_answers_for_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = cluster(*apart("train"))
    assert command(tmp_path, items, "--kubernetes", "1.35", "--upgrade-to", "1.36", "-o", "json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["upgrade"] == {
        "from": "1.35",
        "to": "1.36",
        "pods": [
            {
                "pod": "default/train",
                "fitsNow": False,
                "fitsThen": True,
                "node": "a",
                "devices": ["neuron-device-0", "neuron-device-1"],
            }
        ],
    }
    assert {check["area"] for check in found["checks"]} >= {"upgrade", "pods", "features", "faults", "nodes", "steps"}


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--upgrade-to", "soon"], "write a version such as 1.36"),
        (["--upgrade-to", "1.36", "node/a"], "leave out node"),
        (["--upgrade-to", "1.36", "--bundle", "x"], "leave out --bundle"),
    ],
)
def test_flags_that_make_no_sense_are_rejected(
    flags: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path, cluster(), *flags) == 2
    assert text in capsys.readouterr().err


def test_newest_supported_version_has_a_table_of_changes() -> None:
    """A new version of Kubernetes gets its rows when it becomes supported."""
    assert max(change.since for change in CHANGES) >= versions.NEWEST
