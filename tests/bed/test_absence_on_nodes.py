"""4.04 on real nodes: what is missing on a node gives no device out twice, and holds no device without a claim."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from hack.bed.deployed import DATA, cdi_claims, neurons, pod, prepared, template
from hack.bed.real_cluster import BedNode, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.deployed import allocated, plugin_pods, relabel, settled, slices

TRN2 = "trn2.48xlarge"
CDI = "/var/run/cdi"
NODES, ROUNDS = 4, 5
ATTACHES_S = 30
SOON_S = 120
TAINT = "example.com/maintenance"


def assert_free(node: BedNode, place: Namespace) -> None:
    """Check that a node holds nothing, and that a pod gets all of its devices."""
    eventually(f"no claim of {node.name}", lambda: not allocated(node.bed, node.name), SOON_S)
    eventually(f"{node.name} holds nothing", lambda: prepared(node) == cdi_claims(node) == set(), SOON_S)
    name = f"all-{node.name}"
    place.apply(pod(name, "all", node=node.name))
    place.wait_ready(name)
    assert len(neurons(place, name)) == 16
    place.delete("pod", name)
    eventually(f"{node.name} holds nothing again", lambda: prepared(node) == cdi_claims(node) == set(), SOON_S)


@pytest.fixture
def templates(namespace: Namespace) -> Namespace:
    """A namespace with templates for one device, and for all devices of a node."""
    namespace.apply(template("one", 1))
    namespace.apply(template("all", None))
    return namespace


# A new node.


def with_late_volume(name: str, node: str) -> Obj:
    """Return a pod that takes all devices of a node, and whose volume does not exist yet."""
    late = pod(name, "all", node=node)
    late["spec"]["volumes"] = [{"name": "late", "configMap": {"name": f"volume-of-{name}"}}]
    late["spec"]["containers"][0]["volumeMounts"] = [{"name": "late", "mountPath": "/late"}]
    return late


def forget_everything(node: BedNode) -> None:
    """Make a node a new one: no plugin has run there, and no trace of one is left."""
    relabel(node, "not-a-neuron-node")
    eventually(f"no plugin on {node.name}", lambda: not plugin_pods(node.bed, node.name), SOON_S)
    node.run("find", DATA, "-mindepth", "1", "-delete")
    node.run("sh", "-c", f"rm -f {CDI}/*neuron*")
    for resource_slice in slices(node.bed, node.name):
        node.bed.kubectl("delete", "resourceslice", resource_slice["metadata"]["name"], "--ignore-not-found")
    relabel(node, TRN2)


def delete_before_it_starts(node: BedNode, place: Namespace, round_number: int) -> None:
    """Start a pod whose volume comes late on a new node, and delete it when its claim was allocated for a while."""
    name = f"late-{node.name}-{round_number}"
    forget_everything(node)
    place.apply(with_late_volume(name, node.name))
    eventually(f"the claim of {name} is allocated", lambda: allocated(node.bed, node.name), SOON_S)
    time.sleep(ATTACHES_S)
    if round_number % 2:
        node.break_("plugin")
    place.delete("pod", name)
    settled(node)
    assert_free(node, place)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_pods_that_are_deleted_before_their_volumes_attach_leave_new_nodes_free(
    driver: TestBed, node: Callable[[str], BedNode], templates: Namespace
) -> None:
    """Twenty times. The kubelet prepares the claims of a pod only when it has the pod's volumes."""
    nodes = [node(TRN2) for _ in range(NODES)]
    for number in range(ROUNDS):
        with ThreadPoolExecutor(NODES) as pool:
            list(pool.map(lambda member, number=number: delete_before_it_starts(member, templates, number), nodes))


# Directories of the host.


@pytest.fixture
def beside_a_pod(trn2: BedNode, templates: Namespace) -> Iterator[Namespace]:
    """A namespace with a pod that runs from before a fault until after it; then everything is free."""
    templates.apply(pod("runs", "one", node=trn2.name))
    templates.wait_ready("runs")
    before = neurons(templates, "runs")
    yield templates
    assert neurons(templates, "runs") == before
    assert templates.restarts("runs") == 0
    templates.delete("pod", "runs")
    assert_free(trn2, templates)


def starts_and_ends(node: BedNode, place: Namespace, name: str) -> None:
    """Start a pod on a node, check that no other pod has its device, and end it."""
    place.apply(pod(name, "one", node=node.name))
    place.wait_ready(name, timeout_s=180)  # the kubelet tries again 90 s after a rejection
    assert not {*neurons(place, name)} & {*neurons(place, "runs")}
    place.delete("pod", name)


REMOVALS = {"removed": f"rm -rf {CDI}", "replaced": f"rm -rf {CDI} && mkdir {CDI}"}
MOVES = {"renamed": f"mv {CDI} {CDI}.before && mkdir {CDI}", "mounted over": f"mount -t tmpfs cdi {CDI}"}


@pytest.fixture
def own_cdi(trn2: BedNode) -> Iterator[BedNode]:
    """A node whose CDI directory is its own at the end."""
    yield trn2
    trn2.run("sh", "-c", f"umount {CDI} 2>/dev/null; rm -rf {CDI}.before; mkdir -p {CDI}; rm -f {CDI}/*neuron*")
    trn2.break_("containerd")  # it watches a directory that is not there any more
    settled(trn2)


@pytest.mark.parametrize("change", REMOVALS)
def test_pods_start_after_the_cdi_directory_was(own_cdi: BedNode, beside_a_pod: Namespace, change: str) -> None:
    own_cdi.run("sh", "-c", REMOVALS[change])
    starts_and_ends(own_cdi, beside_a_pod, "after")


@pytest.mark.parametrize("change", MOVES)
def test_pods_start_when_containerd_restarts_after_the_cdi_directory_was(
    own_cdi: BedNode, beside_a_pod: Namespace, change: str
) -> None:
    """containerd goes on watching the former directory, so a restart belongs to such a change."""
    own_cdi.run("sh", "-c", MOVES[change])
    own_cdi.break_("containerd")
    starts_and_ends(own_cdi, beside_a_pod, "after")


def test_pods_start_after_the_plugins_directory_was_emptied(trn2: BedNode, beside_a_pod: Namespace) -> None:
    trn2.run("find", DATA, "-mindepth", "1", "-delete")
    starts_and_ends(trn2, beside_a_pod, "after")
    trn2.break_("plugin")
    starts_and_ends(trn2, beside_a_pod, "after-restart")


# A taint.


def test_taint_that_evicts_every_pod_leaves_the_node_free(trn2: BedNode, templates: Namespace) -> None:
    templates.apply(pod("evicted", "all", node=trn2.name))
    templates.wait_ready("evicted")
    [plugin] = plugin_pods(trn2.bed, trn2.name)
    trn2.bed.kubectl("taint", "node", trn2.name, f"{TAINT}=now:NoExecute")
    try:
        templates.kubectl("wait", "--for=delete", "pod/evicted", "--timeout=120s", timeout_s=130)
        eventually("the node holds nothing", lambda: prepared(trn2) == cdi_claims(trn2) == set(), SOON_S)
        plugin_uids = [plugin_pod["metadata"]["uid"] for plugin_pod in plugin_pods(trn2.bed, trn2.name)]
        assert plugin_uids == [plugin["metadata"]["uid"]]
    finally:
        trn2.bed.kubectl("taint", "node", trn2.name, f"{TAINT}-")
    assert_free(trn2, templates)
