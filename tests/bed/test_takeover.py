"""Replaces AWS's driver on a real node: its slices, its CDI files, and running pods with devices that it prepared.

No device is offered twice at any time; pods keep running and their devices become free; new pods get free devices.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hack.bed.deployed import DATA, cdi_claims, is_ready, neurons, pod, prepared, template
from hack.bed.errors import BedError
from hack.bed.real_cluster import REPOSITORY, TESTBED, BedNode, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.deployed import (
    REGISTRY,
    allocated,
    events,
    plugin_pod,
    python_on,
    refusal,
    registered_pods,
    relabel,
    settled,
    slices,
)

TRN2 = "trn2.48xlarge"
CDI = "/var/run/cdi"
GENERATION = 3


@pytest.fixture
def trn2(driver: TestBed, node: Callable[[str], BedNode]) -> Iterator[BedNode]:
    """A trn2.48xlarge without our driver and its files; the driver returns afterwards."""
    taken = node(TRN2)
    settled(taken)
    relabel(taken, "not-a-neuron-node")
    try:
        eventually("our driver leaves", lambda: registered_pods(taken) == set(), 60)
        taken.run("rm", "-rf", DATA)
        yield taken
    finally:
        relabel(taken, TRN2)
    settled(taken)


@pytest.fixture
def older(trn2: BedNode, tmp_path: Path) -> Iterator[contextlib.ExitStack]:
    """The older driver, with its slice in place of ours; it ends with the context."""
    [ours] = slices(trn2.bed, trn2.name)
    trn2.bed.kubectl("create", "-f", "-", stdin=json.dumps(their_slice(ours)))
    trn2.bed.kubectl("delete", "resourceslice", ours["metadata"]["name"])
    trn2.run("sh", "-c", f"echo '{json.dumps(COMMON)}' > {CDI}/k8s.neuron.aws.com-device_base.yaml")
    trn2.run("sh", "-c", f"echo gone > {CDI}/k8s.neuron.aws.com-claim_gone.yaml")
    log = tmp_path / "older.log"
    program = f"{REPOSITORY}/tests/bed/older_driver.py {DATA} {REGISTRY} {CDI}"
    with contextlib.ExitStack() as running:
        running.enter_context(python_on(trn2.name, program, log))
        eventually("the older driver is registered", lambda: "registered True" in log.read_text(), 30)
        yield running
    trn2.run("rm", "-f", f"{CDI}/k8s.neuron.aws.com-device_base.yaml")


@pytest.fixture
def place(trn2: BedNode, older: contextlib.ExitStack, namespace: Namespace) -> Iterator[Namespace]:
    """A namespace whose pods end before the driver does, which the kubelet needs for that."""
    yield namespace
    older.close()
    relabel(trn2, TRN2)


# One of its files belongs to no claim, and another one, `gone`, is not a CDI spec.
COMMON = {
    "cdiVersion": "0.5.0",
    "kind": "k8s.neuron.aws.com/device",
    "devices": [{"name": "all", "containerEdits": {"env": ["OLDER_DRIVER=1"]}}],
}


def their_slice(ours: Obj) -> Obj:
    """Return a slice as AWS's driver publishes it: a generated name, any order, no capacity."""
    devices = [{"name": d["name"], "attributes": d["attributes"]} for d in reversed(ours["spec"]["devices"])]
    node = ours["spec"]["nodeName"]
    pool = {"name": node, "generation": GENERATION, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "generateName": f"{node}-neuron.aws.com-",
            "ownerReferences": ours["metadata"]["ownerReferences"],
        },
        "spec": {"driver": "neuron.aws.com", "nodeName": node, "pool": pool, "devices": devices},
    }


# Changes of the slices


@contextlib.contextmanager
def watched_slices(log: Path) -> Iterator[Callable[[], list[Obj]]]:
    """Watch all slices; the function returns the watch events so far."""
    words = ["kubectl", "get", "resourceslices", "--watch", "--output-watch-events", "-o", "json"]
    with log.open("wb") as out:
        process = subprocess.Popen([TESTBED / "testbed", "exec", "--", *words], stdout=out)

    def changes() -> list[Obj]:
        text, found, decoder = log.read_text(), [], json.JSONDecoder()
        while text := text.lstrip():
            with contextlib.suppress(ValueError):  # the last one may be half written
                change, end = decoder.raw_decode(text)
                found.append(change)
                text = text[end:]
                continue
            break
        return found

    try:
        eventually("the watch begins", changes, 20)
        yield changes
    finally:
        process.terminate()
        process.wait(120)


def most_offers(changes: list[Obj], node: str) -> int:
    """Return the highest number of times that one device was published at once, in any slice of the node's pool."""
    now: dict[str, Obj] = {}
    most = 0
    for change in changes:
        item = change["object"]
        now.pop(item["metadata"]["name"], None)
        if change["type"] != "DELETED" and item["spec"]["pool"]["name"] == node:
            now[item["metadata"]["name"]] = item
        offers = Counter(device["name"] for each in now.values() for device in each["spec"].get("devices") or [])
        most = max(most, *offers.values(), 0)
    return most


def claim_of(place: Namespace, pod_name: str) -> Obj:
    [entry] = place.get("pod", pod_name)["status"]["resourceClaimStatuses"]
    return place.get("resourceclaim", entry["resourceClaimName"])


def held_by(place: Namespace, *pod_names: str) -> dict[str, list[str]]:
    """Return the allocated devices of each pod's claim, by the claim's UID."""
    found = {}
    for name in pod_names:
        claim = claim_of(place, name)
        found[claim["metadata"]["uid"]] = [r["device"] for r in claim["status"]["allocation"]["devices"]["results"]]
    return found


def their_files(node: BedNode) -> set[str]:
    """Return the UIDs of the claims that have a CDI file of the older driver."""
    names = node.run("ls", CDI).split()
    return {
        name.removeprefix("k8s.neuron.aws.com-claim_").removesuffix(".yaml")
        for name in names
        if name.startswith("k8s.neuron.aws.com-claim_") and name.endswith(".yaml")
    }


def rival(place: Namespace, running: str, node: BedNode) -> None:
    """Give a pod, without the scheduler, a claim for the devices of a running pod."""
    theirs = claim_of(place, running)
    place.apply(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "rival"},
            "spec": theirs["spec"],
        }
    )
    patch = json.dumps({"status": {"allocation": theirs["status"]["allocation"]}})
    place.kubectl("patch", "resourceclaim", "rival", "--subresource=status", "--type=merge", "--patch", patch)
    made = pod("rival", "unused")
    made["spec"]["nodeName"] = node.name
    made["spec"]["resourceClaims"] = [{"name": "neurons", "resourceClaimName": "rival"}]
    place.apply(made)


@pytest.mark.contract("S25")
@pytest.mark.contract("C5")
def test_takeover_allocates_no_device_twice(
    driver: TestBed, trn2: BedNode, older: contextlib.ExitStack, place: Namespace, tmp_path: Path
) -> None:
    place.apply(template("two", 2))
    for name in ("runs", "ends", "stops"):
        place.apply(pod(name, "two", node=trn2.name))
        place.wait_ready(name)
    before = held_by(place, "runs", "ends", "stops")
    seen = {name: neurons(place, name) for name in ("runs", "ends")}
    assert sorted(number for numbers in seen.values() for number in numbers) == [12, 13, 14, 15]
    assert their_files(trn2) == {"gone", *before}

    with watched_slices(tmp_path / "slices.json") as changes:
        older.close()
        place.kubectl("delete", "pod", "stops", "--wait=false")  # no driver runs that could unprepare its claim
        relabel(trn2, TRN2)
        plugin_pod(driver, trn2.name)
        [stopped] = set(before) - set(held_by(place, "runs", "ends"))
        del before[stopped]
        eventually("the claim of the ended pod is unprepared", lambda: prepared(trn2) == set(before), 60)
        [ours] = slices(driver, trn2.name)
        pool = {"name": trn2.name, "generation": GENERATION + 1, "resourceSliceCount": 1}
        assert ours["metadata"]["name"] == f"{trn2.name}-neuron.aws.com-00"
        assert ours["spec"]["pool"] == pool
        assert [device["name"] for device in ours["spec"]["devices"]] == [f"neuron-device-{n}" for n in range(16)]
        assert most_offers(changes(), trn2.name) == 1
    assert held_by(place, "runs", "ends") == before
    assert (their_files(trn2), cdi_claims(trn2)) == (set(before), set())
    for name, numbers in seen.items():
        assert (neurons(place, name), place.restarts(name)) == (numbers, 0)

    rival(place, "ends", trn2)
    assert f"is held by claim {place.name}/ends-neurons-" in refusal(place, "rival")
    place.apply(template("rest", 12))
    place.apply(pod("rest", "rest", node=trn2.name))
    place.wait_ready("rest")
    assert neurons(place, "rest") == list(range(12))
    assert events(place, "rest", "FailedPrepareDynamicResources") == []

    with contextlib.suppress(BedError):  # the command may end with its container
        place.exec("runs", "sh", "-c", "kill 1")
    eventually("its container runs again", lambda: place.restarts("runs") == 1 and is_ready(place.get("pod", "runs")))
    assert neurons(place, "runs") == seen["runs"]

    place.delete("pod", "ends", "rival")
    place.delete("resourceclaim", "rival")
    place.apply(pod("heir", "two", node=trn2.name))
    place.wait_ready("heir")
    assert neurons(place, "heir") == seen["ends"]
    place.delete("pod", "runs", "rest", "heir")
    eventually("nothing is held", lambda: prepared(trn2) == cdi_claims(trn2) == allocated(driver, trn2.name) == set())
    assert their_files(trn2) == set()
