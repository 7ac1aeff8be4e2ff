"""`why` of a pod that would fit on a node whose devices are not published, beside nodes that are full or fragmented."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_dra.ask.world import absent, demand, imagined
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from tests.support import reported_clusters as reported
from tests.support import small_clusters as small
from tests.support.cluster_faults import all_of
from tests.support.questions import Answer, ask, snapshot


def slices(items: list[Obj], node: str) -> list[Obj]:
    return [each for each in all_of(items, "ResourceSlice") if each["spec"]["nodeName"] == node]


def beside(node: str) -> list[Obj]:
    """Node a is full with the pod `old`, node b is idle."""
    return reported.asks([*small.base("a", node), *reported.whole()], 16)


def silent() -> list[Obj]:
    items = beside("b")
    return [each for each in items if each not in slices(items, "b")]


def without_devices() -> list[Obj]:
    items = beside("b")
    slices(items, "b")[0]["spec"]["devices"] = []
    return items


def incomplete() -> list[Obj]:
    items = beside("b")
    slices(items, "b")[0]["spec"]["pool"]["resourceSliceCount"] = 2
    return items


def cordoned_too() -> list[Obj]:
    items = silent()
    reported.node(items, "b")["spec"]["unschedulable"] = True
    return items


def crowded_too() -> list[Obj]:
    items = silent()
    reported.node(items, "b")["status"]["allocatable"]["cpu"] = "0"
    return items


def too_small() -> list[Obj]:
    """The silent node would have one device only."""
    items = silent()
    reported.node(items, "b")["metadata"]["labels"]["node.kubernetes.io/instance-type"] = "trn1.2xlarge"
    return items


def why(folder: Path, capsys: pytest.CaptureFixture[str], items: list[Obj]) -> Answer:
    return ask(capsys, "why", "pod/p", "--snapshot", snapshot(folder, items), "--kubernetes", "1.37")


def test_node_that_would_serve_and_publishes_nothing_comes_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = why(tmp_path, capsys, silent())
    text = "node b (trn2.48xlarge) publishes no devices; with them the pod would fit there"
    assert (text in found.first, "default/old holds 16" in found.text) == (True, True), found.out


def test_slice_without_devices_is_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = why(tmp_path, capsys, without_devices())
    assert "node b (trn2.48xlarge) publishes no devices; with them the pod would fit there" in found.first, found.out


def test_incomplete_pool_that_would_serve_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = why(tmp_path, capsys, incomplete())
    assert "pool neuron.aws.com/b of node b" in found.first, found.out
    assert "with them the pod would fit there" in found.first


@pytest.mark.parametrize("items", [cordoned_too, crowded_too, too_small])
def test_node_that_would_not_serve_is_not_the_cause(
    items: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(items)
    found = why(tmp_path, capsys, items())
    assert "node a has too few free devices: default/old holds 16" in found.first, found.out


def sick_and_cordoned() -> list[Obj]:
    items = beside("b")
    reported.node(items, "b")["spec"]["unschedulable"] = True
    for device in slices(items, "b")[0]["spec"]["devices"]:
        device["taints"] = [{"key": "neuron.aws.com/unhealthy", "value": "hbm", "effect": "NoSchedule"}]
    return items


def test_node_with_free_devices_comes_before_full_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = why(tmp_path, capsys, sick_and_cordoned())
    text = "it may not run on node b that would serve it: it is cordoned; also tainted devices"
    assert (text in found.first, "default/old holds 16" in found.text) == (True, True), found.out


def test_silent_node_is_taken_to_publish_the_sets_that_a_pod_requests() -> None:
    pod = small.pod("sized")
    pod["spec"]["containers"][0]["resources"]["limits"] = {f"{demand.IMPLICIT}connected-4.neuron.aws.com": 1}
    classes = [item for item in imagined.fleet("1 x node", "test", ["connected-4"]) if item["kind"] == "DeviceClass"]
    world = World(small.cluster([small.node("b", "inf2.48xlarge"), *classes, pod]))
    found = absent.finding(world, pod, absent.without_devices(world, pod))
    assert found is not None
    assert found.text == "node b (inf2.48xlarge) publishes no devices; with them the pod would fit there"
