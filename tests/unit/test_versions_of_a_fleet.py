"""The allocator is the API server's, whatever the kubelets are; a resource's name must be known to its node (34, 2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_dra.core.wire import Obj
from tests.support import reported_clusters as reported
from tests.support import small_clusters as small
from tests.support.cluster_faults import all_of
from tests.support.questions import ask, snapshot

CONNECTED = "deviceclass.resource.kubernetes.io/connected-4.neuron.aws.com"


def kubelets(items: list[Obj], version: str) -> list[Obj]:
    for node in all_of(items, "Node"):
        node["status"]["nodeInfo"] = {"kubeletVersion": version}
    return items


def unhealthy() -> list[Obj]:
    """All devices of a fleet with kubelets of 1.35 are unhealthy, which its slices could not say on 1.35."""
    items = kubelets(small.base("a", "b"), "v1.35.3")
    for item in all_of(items, "ResourceSlice"):
        for device in item["spec"]["devices"]:
            device["taints"] = [{"key": "neuron.aws.com/unhealthy", "value": "hbm", "effect": "NoSchedule"}]
    return reported.asks(items, 4)


def test_taints_count_though_kubelets_are_old(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "why", "pod/p", "--snapshot", snapshot(tmp_path, unhealthy()))
    assert "2 nodes have too few untainted devices: neuron.aws.com/unhealthy=hbm" in found.first, found.out


def test_flag_chooses_the_allocator_of_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = snapshot(tmp_path, unhealthy())
    found = ask(capsys, "why", "pod/p", "--snapshot", file, "--kubernetes", "1.37")
    assert "2 nodes have too few untainted devices" in found.first, found.text


@pytest.mark.parametrize(
    "command",
    ["validate", "migrate", "why", "simulate", "status"],
)
def test_version_has_one_flag(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, command, "--help")
    assert ("--kubernetes VERSION" in found.text, "--kubernetes-version" in found.text) == (True, False)


def test_file_without_a_version_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = kubelets(reported.full(), "v1.35.3")
    found = ask(capsys, "why", "pod/p", "--snapshot", snapshot(tmp_path, items))
    assert "the version of the API server is unknown" in found.text, found.out
    assert "--kubernetes" in found.text


def test_newest_kubelet_proves_the_api_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = kubelets(reported.full(), "v1.36.4")
    found = ask(capsys, "why", "pod/p", "--snapshot", snapshot(tmp_path, items))
    assert "version of the API server is unknown" not in found.text


def test_old_kubelet_rejects_the_name_of_a_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The scheduler of 1.37 places the pod; the kubelet of 1.35 knows no such resource."""
    items = [*reported.sets("connected-4", kubelet="v1.35.3"), reported.limits(CONNECTED)]
    found = ask(capsys, "why", "pod/p", "--snapshot", snapshot(tmp_path, items))
    assert "kubelet v1.35.3 of node inf2-0 rejects" in found.first, found.out
    assert "1.36" in found.first


def test_simulation_runs_no_pod_on_a_kubelet_that_rejects_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = snapshot(tmp_path, reported.sets("connected-4", kubelet="v1.35.3"))
    found = ask(capsys, "simulate", "tests/data/reports/four-connected.yaml", "--snapshot", file)
    assert (found.code, "0 of 1 pods run" in found.text) == (1, True), found.out
    assert "kubelet v1.35.3 of node inf2-0 rejects" in found.text


def test_no_change_is_proposed_whose_kubelet_rejects_the_pod(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = [*reported.sets("connected-4", kubelet="v1.35.3"), reported.limits(CONNECTED)]
    for node in all_of(items, "Node"):
        node["spec"]["unschedulable"] = True
    found = ask(capsys, "why", "pod/p", "--snapshot", snapshot(tmp_path, items))
    assert ("it is cordoned" in found.first, "kubectl uncordon" in found.text) == (True, False), found.out
