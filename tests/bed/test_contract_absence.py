"""Outages of the plugin and the kubelet, and failures of one of its two drivers: running pods are unaffected."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.bed.deployed import cdi_claims, is_ready, neurons, pod, prepared, template
from hack.bed.errors import BedError
from hack.bed.real_cluster import BedNode, Namespace, TestBed, eventually
from tests.bed.deployed import (
    NAMESPACE,
    devices,
    healths,
    relabel,
    reports_health,
    settled,
    slices,
    sockets,
    with_efa,
    without_efa_commits,
)

TRN2 = "trn2.48xlarge"


@pytest.mark.long
@pytest.mark.contract("H6")
@pytest.mark.contract("S30")
@pytest.mark.contract("O9")
def test_slices_follow_the_plugin_while_pods_run(
    driver: TestBed, trn2: BedNode, namespace: Namespace, uninstall: Callable[[], None]
) -> None:
    """The kubelet waits 30 s before it deletes the slices of a removed driver."""
    namespace.apply(template("two", 2))
    for name in ("done", "runs"):
        namespace.apply(pod(name, "two", node=trn2.name))
        namespace.wait_ready(name)
    held = neurons(namespace, "runs")
    namespace.delete("pod", "done")
    reports = reports_health(driver)
    if reports:
        eventually("its devices are reported healthy", lambda: healths(namespace, "runs") == {"Healthy"})
    running = prepared(trn2)
    assert (len(running), len(sockets(trn2))) == (1, 2)

    uninstall()
    eventually("no socket is left", lambda: sockets(trn2) == [], 30)
    assert len(slices(driver, trn2.name)) == 1
    eventually("the kubelet deletes the slices", lambda: slices(driver, trn2.name) == [], 60)
    if reports:
        eventually("the health of its devices is unknown", lambda: healths(namespace, "runs") == {"Unknown"}, 60)
    assert cdi_claims(trn2) == prepared(trn2) == running
    assert neurons(namespace, "runs") == held

    relabel(trn2, TRN2)
    settled(trn2)
    if reports:
        eventually("its devices are reported healthy again", lambda: healths(namespace, "runs") == {"Healthy"}, 60)
    assert neurons(namespace, "runs") == held
    assert (namespace.restarts("runs"), prepared(trn2)) == (0, running)
    namespace.delete("pod", "runs")
    eventually("its claim is unprepared", lambda: prepared(trn2) == cdi_claims(trn2) == set())


@pytest.fixture
def both(trn2: BedNode) -> Iterator[BedNode]:
    """A trn2.48xlarge whose plugin serves its EFA interfaces too."""
    with with_efa(trn2.bed, [trn2.name]):
        yield trn2


@pytest.fixture
def place(both: BedNode, namespace: Namespace) -> Namespace:
    """A namespace whose pods end before the plugin stops serving interfaces."""
    return namespace


def paired(name: str) -> dict[str, Any]:
    """Return a template for one Neuron device and one EFA interface."""
    made = template(name)
    efa = {"name": "efa", "exactly": {"deviceClassName": "efa.networking.k8s.aws", "count": 1}}
    made["spec"]["spec"]["devices"]["requests"].append(efa)
    return made


def nudge(place: Namespace, name: str, count: int) -> None:
    """Change a pod, so that the kubelet syncs it now instead of in 90 s. Raises BedError."""
    place.kubectl("annotate", "pod", name, f"nudge={count}", "--overwrite")


@pytest.mark.long
@pytest.mark.contract("P25")
@pytest.mark.contract("C7")
@pytest.mark.contract("N14")
def test_claims_survive_failing_driver_and_kubelet_restart(both: BedNode, place: Namespace, tmp_path: Path) -> None:
    place.apply(template("one"))
    place.apply(paired("paired"))
    place.apply(pod("beside", "one", node=both.name))
    place.wait_ready("beside")
    nudges = iter(range(1000))

    def known() -> bool:
        nudge(place, "pair", next(nudges))
        return len(prepared(both)) == 2

    with without_efa_commits(both.name, tmp_path / "first-lock.log"):
        place.apply(pod("pair", "paired", node=both.name))
        # The kubelet calls the drivers in any order.
        eventually("the Neuron part of the pair is prepared", known, 60, 1.0)
        assert place.get("pod", "pair")["status"]["phase"] == "Pending"
        claims = prepared(both)
        both.break_("kubelet")
    place.wait_ready("pair", 90)
    assert prepared(both) == cdi_claims(both) == claims
    assert neurons(place, "pair") == [1]
    assert "uverbs" in place.exec("pair", "sh", "-c", "ls /dev/infiniband")

    with contextlib.suppress(BedError):  # the command may end with its container
        place.exec("beside", "sh", "-c", "kill 1")
    eventually(
        "its container runs again", lambda: place.restarts("beside") == 1 and is_ready(place.get("pod", "beside"))
    )
    assert neurons(place, "beside") == [0]

    def unknown() -> bool:
        nudge(place, "pair", next(nudges))
        return len(prepared(both)) == 1

    with without_efa_commits(both.name, tmp_path / "second-lock.log"):
        place.kubectl("delete", "pod", "pair", "--wait=false")
        eventually("the Neuron part is unprepared", unknown, 60, 1.0)
        assert place.get("pod", "pair")["metadata"]["deletionTimestamp"]

    def gone() -> bool:
        with contextlib.suppress(BedError):
            nudge(place, "pair", next(nudges))
            return False
        return True

    eventually("the pod is gone", gone, 60, 1.0)
    assert prepared(both) == cdi_claims(both)
    assert neurons(place, "beside") == [0]


@pytest.mark.contract("S29")
def test_plugin_writes_slices_of_its_node_only(driver: TestBed, trn2: BedNode) -> None:
    bound = ("--bound-object-kind=Node", f"--bound-object-name={trn2.name}")
    token = driver.kubectl("create", "token", "neuron-dra-driver-sa", "--namespace", NAMESPACE, *bound).strip()

    own = f"{trn2.name}-neuron.aws.com-by-hand"

    def create(where: dict[str, Any], name: str = own) -> str:
        pool = {"name": trn2.name, "generation": 1, "resourceSliceCount": 1}
        item = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": {"driver": "neuron.aws.com", "pool": pool, **where},
        }
        words = ("create", f"--token={token}", "--dry-run=server", "-f", "-")
        return driver.kubectl(*words, stdin=json.dumps(item))

    assert f"{own} created" in create({"nodeName": trn2.name})
    with pytest.raises(
        BedError, match=f"may create only slices with names {trn2.name}-neuron.aws.com-..., not by-hand"
    ):
        create({"nodeName": trn2.name}, "by-hand")
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [trn2.name]}]}]
    for where in ({"allNodes": True}, {"nodeSelector": {"nodeSelectorTerms": terms}}):
        with pytest.raises(BedError, match="may write slices of its own node only, not of several nodes"):
            create(where)


@pytest.mark.contract("S31")
def test_claim_for_all_devices_succeeds_during_changes(driver: TestBed, trn2: BedNode, namespace: Namespace) -> None:
    layer = "topology.k8s.aws/network-node-layer-1"
    before = driver.get("node", trn2.name)["metadata"]["labels"][layer]

    def published() -> set[str]:
        return {device["attributes"]["networkNodeLayer1"]["string"] for device in devices(driver, trn2.name)}

    namespace.apply(template("all", None))
    try:
        driver.kubectl("label", "node", trn2.name, f"{layer}=nn-elsewhere", "--overwrite")
        namespace.apply(pod("p", "all", node=trn2.name))
        namespace.wait_ready("p")
        eventually("the slice follows the label", lambda: published() == {"nn-elsewhere"})
        assert neurons(namespace, "p") == list(range(16))
    finally:
        driver.kubectl("label", "node", trn2.name, f"{layer}={before}", "--overwrite")
    eventually("the slice follows the label back", lambda: published() == {before})
