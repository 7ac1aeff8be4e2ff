"""`why` of a pod that fits, of a PodGroup whose pods do not all fit, or do not all exist (34, 1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_dra.core.wire import Obj
from tests.support import reported_clusters as reported
from tests.support import small_clusters as small
from tests.support.questions import Answer, ask, snapshot

SAID = "pod group is unschedulable, minCount (2) cannot be satisfied: 1 scheduled, 0 remaining"


def gang(*pods: str, least: int = 2, count: int = 16, said: str = "") -> list[Obj]:
    """One node with 16 devices, and the pods of a gang."""
    policy = {"gang": {"minCount": least}}
    meta = {"name": "workers", "namespace": "default"}
    made = small.template("wanted", count)
    items = [*small.base("a"), made]
    items.append(
        {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "PodGroup",
            "metadata": meta,
            "spec": {"schedulingPolicy": policy},
        }
    )
    for name in pods:
        each = small.pod(name, "wanted", schedulingGroup={"podGroupName": "workers"})
        items += small.created(reported.waits(each, said) if said else each, made)
    return items


def why(folder: Path, capsys: pytest.CaptureFixture[str], items: list[Obj]) -> Answer:
    return ask(capsys, "why", "pod/p", "--snapshot", snapshot(folder, items), "--kubernetes", "1.37")


def test_gang_that_does_not_fit_is_the_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = why(tmp_path, capsys, gang("p", "q", said=SAID))
    assert "PodGroup workers needs 2 pods at once, and 1 of 2 fit" in found.first, found.out
    assert "node a has too few free devices: default/p holds 16" in found.text


def test_gang_without_enough_pods_is_the_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = why(tmp_path, capsys, gang("p", count=4))
    assert "PodGroup workers needs 2 pods at once, and 1 exists" in found.first, found.out


def test_words_of_the_scheduler_show_it_where_the_group_was_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = [each for each in gang("p", "q", said=SAID) if each["kind"] != "PodGroup"]
    found = why(tmp_path, capsys, items)
    assert "not because of its devices" not in found.text, found.out
    assert f"its PodGroup workers waits as a whole; the scheduler's reason: {SAID}" in found.first


def test_gang_that_fits_is_no_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = why(tmp_path, capsys, gang("p", "q", count=8))
    assert "the scheduler has not handled it yet, and in a simulation it fits" in found.first, found.out


def test_pods_that_run_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = gang("p", count=4)
    running = reported.holder("q", ["neuron-device-0"], "a", schedulingGroup={"podGroupName": "workers"})
    found = why(tmp_path, capsys, [*items, *running])
    assert "the scheduler has not handled it yet, and in a simulation it fits" in found.first, found.out


def test_pod_that_does_not_fit_alone_has_its_own_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = why(tmp_path, capsys, gang("p", "q", count=17))
    assert "17 devices" in found.first, found.out


@pytest.mark.parametrize("pods", [("p", "q"), ("p",)], ids=["gang that does not fit", "pods that do not exist"])
def test_no_change_is_proposed_after_which_the_gang_still_waits(
    pods: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = gang(*pods)
    reported.node(items)["spec"]["unschedulable"] = True
    found = why(tmp_path, capsys, items)
    assert ("it is cordoned" in found.first, "kubectl uncordon" in found.text) == (True, False), found.out


def test_change_after_which_the_gang_fits_is_proposed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = gang("p", "q", count=8)
    reported.node(items)["spec"]["unschedulable"] = True
    found = why(tmp_path, capsys, items)
    assert "kubectl uncordon a" in found.text, found.out
