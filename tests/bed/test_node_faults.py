"""Node failures on a real cluster: hanging reads, a device plugin beside the driver, a slice name that is taken."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hack.bed.deployed import DATA, neurons, pod, prepared, template
from hack.bed.errors import BedError
from hack.bed.real_cluster import BedNode, Namespace, TestBed, eventually
from tests.bed.deployed import (
    NAMESPACE,
    allocate,
    device_plugin,
    devices,
    healths,
    open_gate,
    plugin_pod,
    refusal,
    registered_pods,
    relabel,
    reports_health,
    settled,
    slices,
    sockets,
    waits_for_its_start,
)

TRN2 = "trn2.48xlarge"
POLICY = "neuron-dra-driver-own-resourceslices"
BINDING = f"validatingadmissionpolicybinding/{POLICY}"
SERVICE_ACCOUNT = "neuron-dra-driver-sa"
OTHER_DRIVER = "dra.example.com"  # one of our driver would be deleted by the other plugin
MADE_BY_SERVER = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "uid")


def names(node: BedNode) -> set[str]:
    """Return the names of the devices that a node publishes."""
    return {device["name"] for device in devices(node.bed, node.name)}


# A read that does not end

HUNG = 8  # devices; the driver finds one every 20 s


def held_locks(node: BedNode) -> list[str]:
    """Return the files in the driver's folder that a process has locked."""
    files = node.run("find", DATA, "-type", "f").split()
    return [file for file in files if node.run("sh", "-c", f"flock -n {file} true || echo held").strip()]


def restarts(node: BedNode, name: str) -> int:
    [status] = node.bed.get("pod", name, "--namespace", NAMESPACE)["status"]["containerStatuses"]
    return int(status["restartCount"])


def log(bed: TestBed, name: str) -> str:
    with contextlib.suppress(BedError):  # its container is about to start
        return bed.kubectl("logs", "--namespace", NAMESPACE, name)
    return ""


@pytest.mark.long
def test_hanging_read_blocks_nothing_else(
    driver: TestBed, trn2: BedNode, namespace: Namespace, uninstall: Callable[[], None]
) -> None:
    """(14.1) In a running plugin, in a restarting one, and in one that is stopped."""
    reports = reports_health(driver)
    namespace.apply(template("one"))
    namespace.apply(pod("runs", "one", node=trn2.name))
    namespace.wait_ready("runs")
    held, claims = neurons(namespace, "runs"), prepared(trn2)
    namespace.apply(pod("leaves", "one", node=trn2.name))
    namespace.wait_ready("leaves")
    if reports:
        eventually(
            "all devices are healthy",
            lambda: healths(namespace, "runs") == healths(namespace, "leaves") == {"Healthy"},
            60,
        )

    # A running plugin: the health of one device is unknown, the others are used as before.
    trn2.break_("hang", f"{held[0]}:core_count")
    if reports:
        eventually("nothing is known", lambda: healths(namespace, "leaves") == {"Unknown"}, 60)
        eventually("all but one is known", lambda: healths(namespace, "leaves") == {"Healthy"}, 90)
        assert healths(namespace, "runs") == {"Unknown"}
    assert len(names(trn2)) == 16
    namespace.apply(pod("fresh", "one", node=trn2.name))
    namespace.wait_ready("fresh")

    # A restarting plugin: it registers at once, prepared claims stay and can be unprepared.
    plugin = plugin_pod(driver, trn2.name)["metadata"]["name"]
    before = restarts(trn2, plugin)
    for number in sorted({*range(HUNG)} - {*held}):
        trn2.break_("hang", f"{number}:core_count")
    trn2.break_("plugin")
    eventually("the plugin starts again", lambda: restarts(trn2, plugin) == before + 1, 60)
    eventually("the kubelet has it", lambda: "registered with the kubelet" in log(driver, plugin), 60)
    namespace.apply(pod("early", "one", node=trn2.name))
    namespace.delete("pod", "leaves")
    namespace.delete("pod", "fresh")
    eventually("their claims are unprepared", lambda: prepared(trn2) == claims, 60)
    assert "does not end: the kernel driver hangs" in refusal(namespace, "early")
    if reports:
        eventually("nothing is known", lambda: healths(namespace, "runs") == {"Unknown"}, 60)
    namespace.delete("pod", "early")

    # A stopped plugin: sockets and locks are free.
    uninstall()
    eventually("no socket is left", lambda: sockets(trn2) == [], 60)
    eventually("no lock is held", lambda: held_locks(trn2) == [], 60)

    for what, which in [each for each in trn2.broken if each[0] == "hang"]:
        trn2.repair(what, which)
    relabel(trn2, TRN2)
    settled(trn2)
    if reports:
        eventually("all devices are healthy again", lambda: healths(namespace, "runs") == {"Healthy"}, 90)
    assert (neurons(namespace, "runs"), namespace.restarts("runs")) == (held, 0)


# A device plugin beside the driver


def test_device_plugin_blocks_new_claims_only(
    driver: TestBed, trn2: BedNode, namespace: Namespace, tmp_path: Path
) -> None:
    """(14.5) One claim is already prepared; the pod of another, allocated one is created later."""
    namespace.apply(template("one"))
    namespace.apply(pod("runs", "one", node=trn2.name))
    namespace.wait_ready("runs")
    [held], claims = neurons(namespace, "runs"), prepared(trn2)
    free = (held + 5) % 16
    waits_for_its_start(namespace, "waits", trn2.name)
    allocate(namespace, "waits", trn2, f"neuron-device-{free}")
    before = {each["metadata"]["uid"] for each in slices(driver, trn2.name)}

    with device_plugin(trn2.name, tmp_path / "plugin.log"):
        claimed = {f"neuron-device-{held}", f"neuron-device-{free}"}
        eventually("only devices of claims are published", lambda: names(trn2) == claimed, 60)
        open_gate(namespace, "waits")
        why = refusal(namespace, "waits")
        assert f"a Neuron device plugin is alive on node {trn2.name} (its socket neuron-devplugin.sock answers)" in why
        assert prepared(trn2) == claims
        assert names(trn2) == claimed
    # It counts for six more minutes, as it may be started again. A new pod of the driver has not seen it.
    driver.kubectl("delete", "pod", plugin_pod(driver, trn2.name)["metadata"]["name"], "--namespace", NAMESPACE)
    eventually("everything is published", lambda: len(names(trn2)) == 16, 60)
    assert {each["metadata"]["uid"] for each in slices(driver, trn2.name)} == before
    namespace.delete("pod", "waits")
    namespace.apply(pod("next", "one", node=trn2.name))
    namespace.wait_ready("next")
    assert (neurons(namespace, "runs"), namespace.restarts("runs")) == ([held], 0)


# A name that is taken.


@pytest.fixture
def neighbour(trn2: BedNode, node: Callable[[str], BedNode]) -> BedNode:
    """Another node, whose plugin writes slices with names of the first."""
    return node(TRN2)


def take_name(victim: BedNode, neighbour: BedNode, slice_of: str) -> str:
    """Let the plugin of a node create a slice with a name of another node; return the error, empty on success."""
    token = victim.bed.kubectl(
        *("create", "token", SERVICE_ACCOUNT, "--namespace", NAMESPACE),
        *("--bound-object-kind=Node", f"--bound-object-name={neighbour.name}"),
    ).strip()
    spec = {
        "driver": slice_of,
        "nodeName": neighbour.name,
        "pool": {"name": neighbour.name, "generation": 1, "resourceSliceCount": 1},
    }
    item = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": first_name(victim)}}
    try:
        victim.bed.kubectl("--token", token, "create", "-f", "-", stdin=json.dumps({**item, "spec": spec}))
    except BedError as err:
        return str(err)
    return ""


def first_name(node: BedNode) -> str:
    return f"{node.name}-neuron.aws.com-00"


@pytest.fixture
def binding(driver: TestBed) -> Iterator[Callable[[], str]]:
    """Remove the binding of the policy for slice names; it is restored at the end."""
    found = json.loads(driver.kubectl("get", BINDING, "-o", "json"))
    meta = {key: value for key, value in found["metadata"].items() if key not in MADE_BY_SERVER}
    yield lambda: driver.kubectl("delete", BINDING)
    driver.kubectl("apply", "-f", "-", stdin=json.dumps({**found, "metadata": meta}))


def test_taken_slice_name_is_avoided(
    driver: TestBed,
    trn2: BedNode,
    neighbour: BedNode,
    namespace: Namespace,
    uninstall: Callable[[], None],
    binding: Callable[[], str],
) -> None:
    """(14.10) The policy rejects it; without the policy it is reported, and another name is used."""
    uninstall()
    eventually("the driver leaves", lambda: registered_pods(trn2) == set(), 60)
    for each in slices(driver, trn2.name):
        driver.kubectl("delete", "resourceslice", each["metadata"]["name"])
    said = take_name(trn2, neighbour, "neuron.aws.com")
    assert f"may create only slices with names {neighbour.name}-neuron.aws.com-..., not {first_name(trn2)}" in said
    binding()
    try:
        eventually("the name is taken", lambda: take_name(trn2, neighbour, OTHER_DRIVER) == "", 60, 1)
        relabel(trn2, TRN2)
        eventually("the devices are published", lambda: len(names(trn2)) == 16, 120)
        assert [each["metadata"]["name"] for each in slices(driver, trn2.name)] == [f"{trn2.name}-neuron.aws.com-01"]
        text = f"ResourceSlice {first_name(trn2)} is of driver {OTHER_DRIVER} and node {neighbour.name}"
        eventually("it is reported", lambda: any(text in each for each in taken_names(trn2)), 60)
        namespace.apply(template("one"))
        namespace.apply(pod("uses", "one", node=trn2.name))
        namespace.wait_ready("uses")
    finally:
        driver.kubectl("delete", "resourceslice", "--ignore-not-found", first_name(trn2))


def taken_names(node: BedNode) -> list[str]:
    """Return the messages of Events about taken names of a node's slices."""
    chosen = f"--field-selector=involvedObject.name={node.name},reason=NeuronSliceNameTaken"
    return [item["message"] for item in node.bed.get("events", "--all-namespaces", chosen)["items"]]
