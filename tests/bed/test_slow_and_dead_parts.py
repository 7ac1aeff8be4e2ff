"""31 on a real node: kubelet, containerd and API server are dead or slow in turn, or the connection to the API server.

Pods run on, the plugin does not restart, and afterwards pods start and end as before.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from hack.bed.deployed import cdi_claims, is_ready, neurons, pod, prepared, template
from hack.bed.real_cluster import BedNode, Namespace, eventually
from neuron_dra.emulation.hanging import stopped
from tests.bed.connections import dropped, ports_of_connections, proxied
from tests.bed.deployed import all_healthy, plugin_pod, settled, slices

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

KUBELET, CONTAINERD, API_SERVER = "kubelet", "containerd", "kube-apiserver"
PARTS = (KUBELET, CONTAINERD, API_SERVER)
DEAD_S = 50  # longer than the control plane's patience with a kubelet
STOPPED_S, RUNS_S = 0.6, 0.2  # of a slow process
PIECE_S = 0.3  # of a slow proxy
BOOKMARK_S = 75  # the API server sends one a minute; the plugin counts from the first one


def process_id(node: BedNode, part: str) -> int:
    """Return the id of a part's process."""
    return node.bed.parts.processes.pid(part if part == API_SERVER else f"{node.name}/{part}")


@contextlib.contextmanager
def killed(node: BedNode, part: str) -> Iterator[None]:
    """Kill a part; it is started at the end of the block."""
    name = part if part == API_SERVER else f"{node.name}/{part}"
    node.bed.parts.processes.stop([name], signal.SIGKILL)
    try:
        yield
    finally:
        node.bed.command("up")


@contextlib.contextmanager
def slow(pid: int) -> Iterator[None]:
    """Let a process run a quarter of the time until the end of the block."""
    ends = threading.Event()

    def halt_again_and_again() -> None:
        while not ends.wait(RUNS_S):
            with stopped(pid):
                ends.wait(STOPPED_S)

    thread = threading.Thread(target=halt_again_and_again)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def state(node: BedNode) -> tuple[str, int]:
    """Return the driver's pod on a node, and how often it has restarted."""
    found = plugin_pod(node.bed, node.name)
    return found["metadata"]["name"], found["status"]["containerStatuses"][0]["restartCount"]


def works(node: BedNode, place: Namespace, name: str) -> None:
    """Start and end a pod with four devices, and wait until nothing is left of it."""
    before = prepared(node)
    place.apply(pod(name, "four", node=node.name))
    place.wait_ready(name)
    assert len(neurons(place, name)) == 4
    place.delete("pod", name)
    eventually(f"nothing is left of {name}", lambda: prepared(node) == cdi_claims(node) == before, 60)


@pytest.fixture
def running(trn2: BedNode, namespace: Namespace) -> Namespace:
    """A namespace with a pod that runs, and the template `four`."""
    namespace.apply(template("four", 4, group=4))
    namespace.apply(pod("runs", "four", node=trn2.name))
    namespace.wait_ready("runs")
    return namespace


@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize("part", PARTS)
def test_dead_part_costs_no_running_pod_and_no_restart_of_the_plugin(
    trn2: BedNode, running: Namespace, part: str, how: str
) -> None:
    before, held = state(trn2), neurons(running, "runs")
    ends = killed(trn2, part) if how == "killed" else stopped(process_id(trn2, part))
    with ends:
        time.sleep(DEAD_S)
    eventually("the node is Ready", lambda: is_ready(trn2.bed.get("node", trn2.name)), 120)
    works(trn2, running, "next")
    assert (state(trn2), neurons(running, "runs"), running.restarts("runs")) == (before, held, 0)
    eventually("all devices are healthy", lambda: all_healthy(trn2), 60)


@pytest.mark.parametrize("part", PARTS)
def test_beside_a_slow_part_pods_start_and_end(trn2: BedNode, running: Namespace, part: str) -> None:
    before = state(trn2)
    with slow(process_id(trn2, part)):
        for number in range(3):
            works(trn2, running, f"next-{number}")
    assert (state(trn2), running.restarts("runs")) == (before, 0)
    eventually("all devices are healthy", lambda: all_healthy(trn2), 60)


def test_behind_a_slow_proxy_pods_start_and_end(trn2: BedNode, running: Namespace) -> None:
    with proxied(trn2) as proxy:
        trn2.break_("plugin")  # its connections are new
        trn2.repair("plugin")
        settled(trn2)
        before, opened = state(trn2), proxy.opened
        proxy.slow_down(PIECE_S)
        for number in range(3):
            works(trn2, running, f"next-{number}")
        assert (state(trn2), opened > 0) == (before, True)
    reconnect(trn2)
    assert running.restarts("runs") == 0


def reconnect(node: BedNode) -> None:
    """Let the plugin connect without the proxy, which has gone."""
    node.break_("plugin")
    node.repair("plugin")
    settled(node)


# A connection that is dead, and says nothing


def restores_its_slices(node: BedNode) -> float:
    """Delete a node's slices, wait until its plugin has noticed and written them again, and return the seconds."""
    old = {each["metadata"]["uid"] for each in slices(node.bed, node.name)}
    node.bed.kubectl("delete", "resourceslices", f"--field-selector=spec.nodeName={node.name}")
    began = time.monotonic()

    def are_new() -> bool:
        found = {each["metadata"]["uid"] for each in slices(node.bed, node.name)}
        return bool(found) and not found & old

    eventually(f"new slices of {node.name}", are_new, 240)
    return time.monotonic() - began


def test_connection_whose_packets_are_dropped_is_noticed(trn2: BedNode, running: Namespace) -> None:
    address = plugin_pod(trn2.bed, trn2.name)["status"]["podIP"]
    ports = ports_of_connections(trn2.bed, address)
    assert ports
    before = state(trn2)
    with dropped(trn2.bed, address, ports):
        print(f"slices are there again after {restores_its_slices(trn2):.0f} s")
        works(trn2, running, "next")
    assert (state(trn2), running.restarts("runs")) == (before, 0)


def test_connection_whose_bytes_a_proxy_swallows_is_noticed(trn2: BedNode, running: Namespace) -> None:
    with proxied(trn2) as proxy:
        trn2.break_("plugin")
        trn2.repair("plugin")
        settled(trn2)
        time.sleep(BOOKMARK_S)
        before = state(trn2)
        proxy.silence()
        print(f"slices are there again after {restores_its_slices(trn2):.0f} s")
        works(trn2, running, "next")
        assert state(trn2) == before
    reconnect(trn2)
    assert running.restarts("runs") == 0
