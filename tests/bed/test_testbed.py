"""The test bed itself: its nodes, its faults, and its cleanup."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hack.bed import network
from hack.bed.real_cluster import TESTBED, BedNode, CommandFailedError, Namespace, TestBed, eventually
from tests.bed.deployed import ONLY_PLUGINS

LOOK = "ls /sys/class/neuron_device | grep -c neuron; cat /sys/class/dmi/id/product_name /sys/module/neuron/version"
BOOT_ID_VOLUME = {"name": "boot-id", "hostPath": {"path": "/proc/sys/kernel/random/boot_id", "type": "File"}}
BOOT_ID_MOUNT = {"name": "boot-id", "mountPath": "/host/boot_id", "readOnly": True}


def neighbours(node: BedNode, device: int) -> set[int]:
    text = node.run("cat", f"/sys/class/neuron_device/neuron{device}/connected_devices")
    return {int(part) for part in text.split(",") if part.strip()}


def devices(node: BedNode) -> tuple[set[str], set[str]]:
    """The names of the devices in sysfs and in /dev."""
    in_sysfs = {name for name in node.run("ls", "/sys/class/neuron_device").split() if name.startswith("neuron")}
    return in_sysfs, {name for name in node.run("ls", "/dev").split() if name.startswith("neuron")}


# -- up ----------------------------------------------------------------------------------------------------------------


def test_second_up_starts_nothing(bed: TestBed, node: Callable[[str], BedNode]) -> None:
    one = node("trn2.48xlarge")
    before = bed.parts.state.processes
    bed.command("up", "--node", f"{one.name}=trn2.48xlarge")
    assert bed.parts.state.processes == before


def test_up_restarts_dead_processes(bed: TestBed) -> None:
    scheduler = bed.parts.state.processes["kube-scheduler"]
    os.kill(scheduler.pid, signal.SIGKILL)
    bed.command("up")
    assert bed.parts.state.processes["kube-scheduler"] != scheduler
    assert bed.parts.processes.is_running("kube-scheduler")


def test_node_restarts_if_its_namespace_died(
    bed: TestBed, node: Callable[[str], BedNode], namespace: Namespace
) -> None:
    one = node("trn2.48xlarge")
    namespace.run_pod("p", one.name)
    namespace.wait_ready("p")
    before = {name: process for name, process in bed.parts.state.processes.items() if name.startswith(one.name)}
    os.kill(before[f"{one.name}/namespace"].pid, signal.SIGKILL)
    bed.command("up")
    after = bed.parts.state.processes
    assert [name for name in before if after[name] == before[name]] == []
    eventually("container started again", lambda: namespace.restarts("p") == 1)


def test_restarted_node_drops_routes_to_old_pods(bed: TestBed, node: Callable[[str], BedNode]) -> None:
    """The kernel removes a killed pod's route late, and a new pod with its address would get none."""
    one = node("trn2.48xlarge")
    subnet = network.pod_subnet(bed.parts.state.nodes[one.name].index)
    ip = ("ip", "-n", bed.where.name, "route")
    subprocess.run([*ip, "add", "unreachable", subnet.replace(".0/24", ".200")], check=True)
    one.break_("reboot")
    routes = subprocess.run([*ip, "show", "root", subnet], check=True, capture_output=True, text=True).stdout
    assert "unreachable" not in routes


def test_up_rejects_same_name_with_another_type(bed: TestBed, node: Callable[[str], BedNode]) -> None:
    one = node("trn2.48xlarge")
    with pytest.raises(CommandFailedError, match=f"node {one.name} exists as trn2.48xlarge, not as trn1.2xlarge"):
        bed.command("up", "--node", f"{one.name}=trn1.2xlarge")


def test_unknown_type_error_lists_known_types(bed: TestBed) -> None:
    with pytest.raises(CommandFailedError, match=r"trn9.48xlarge: no such .* trn2.48xlarge"):
        bed.command("up", "--node", "x=trn9.48xlarge")


def test_the_tools_are_on_the_path_inside(bed: TestBed) -> None:
    bed.command("exec", "--", "sh", "-c", "kubectl version && grpcurl -version && helm version && command -v ctr")


def test_api_server_is_reachable_from_inside_only(bed: TestBed) -> None:
    trust = ssl.create_default_context(cafile=bed.where.pki_dir / "ca.crt")
    with bed.inside(), urllib.request.urlopen(f"{bed.parts.plane.url}/healthz", context=trust, timeout=60) as answer:
        assert answer.read() == b"ok"
    if bed.where.is_root:
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"{bed.parts.plane.url}/healthz", context=trust, timeout=1)


@pytest.mark.parametrize(
    "words",
    [
        ("nodes",),
        ("node", "trn2-48xlarge-0"),
        ("nodes", "--selector=node.kubernetes.io/instance-type=trn1.2xlarge"),
        ("pods", "-n", "neuron-dra-driver"),
        ("events", "-A", "--field-selector=involvedObject.kind=Node"),
        ("leases", "--all-namespaces"),
        ("resourceslices",),
        ("nusw", "--namespace=default"),
    ],
    ids=" ".join,
)
def test_client_reads_what_kubectl_prints(
    words: tuple[str, ...], driver: TestBed, node: Callable[[str], BedNode]
) -> None:
    node("trn2.48xlarge")

    def names(found: dict[str, Any]) -> set[str]:
        return {item["metadata"]["name"] for item in found.get("items", [found])}

    def printed() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(driver.kubectl("get", *words, "-o", "json"))
        return found

    eventually("the same", lambda: names(driver.get(*words)) == names(printed()), 10)


def test_old_api_versions_are_served(bed: TestBed) -> None:
    versions = {
        entry["version"] for entry in json.loads(bed.kubectl("get", "--raw", "/apis/resource.k8s.io"))["versions"]
    }
    assert versions >= {"v1", "v1beta1", "v1beta2"}


# -- what a node shows -------------------------------------------------------------------------------------------------


def test_unprivileged_pods_see_their_nodes_hardware(node: Callable[[str], BedNode], namespace: Namespace) -> None:
    types = {"trn2.48xlarge": "16", "trn1.2xlarge": "1"}
    for instance_type in types:
        namespace.run_pod(instance_type.replace(".", "-"), node(instance_type).name, f"{LOOK}; sleep infinity")
    for instance_type, count in types.items():
        pod = instance_type.replace(".", "-")
        namespace.wait_ready(pod)
        seen = [count, instance_type, "2.30.2.0"]
        eventually(f"{pod} sees {seen}", lambda pod=pod, seen=seen: namespace.logs(pod).split() == seen)


def test_simulated_devices_are_read_only_in_pods(node: Callable[[str], BedNode], namespace: Namespace) -> None:
    namespace.run_pod("p", node("trn2.48xlarge").name)
    namespace.wait_ready("p")
    script = "cat /sys/class/neuron_device/neuron0/core_count; ! touch /sys/class/neuron_device/x 2>/dev/null"
    assert namespace.exec("p", "bash", "-c", script) == "8"


def test_labels_are_those_of_a_cloud(bed: TestBed, node: Callable[[str], BedNode]) -> None:
    one = node("trn2.48xlarge")
    labels = bed.get("node", one.name)["metadata"]["labels"]
    assert labels["node.kubernetes.io/instance-type"] == "trn2.48xlarge"
    layers = {labels[f"topology.k8s.aws/network-node-layer-{layer}"] for layer in (1, 2, 3)}
    assert len(layers) == 3
    assert "topology.k8s.aws/capacity-block-id" not in labels


def test_device_files_have_an_unused_major(node: Callable[[str], BedNode]) -> None:
    major = int(node("trn2.48xlarge").run("stat", "-c", "%t", "/dev/neuron3").strip(), 16)
    in_use = {line.split()[0] for line in Path("/proc/devices").read_text().splitlines() if line[:3].strip().isdigit()}
    assert str(major) not in in_use


# -- break and repair --------------------------------------------------------------------------------------------------


def test_broken_link_is_gone_at_both_ends(node: Callable[[str], BedNode]) -> None:
    one = node("trn2.48xlarge")
    assert 4 in neighbours(one, 0)
    one.break_("link", "0-4")
    assert (4 in neighbours(one, 0), 0 in neighbours(one, 4)) == (False, False)
    assert neighbours(one, 0) == {1, 3, 12}
    one.repair("link", "0-4")
    assert (4 in neighbours(one, 0), 0 in neighbours(one, 4)) == (True, True)


def test_unknown_link_cannot_break(node: Callable[[str], BedNode]) -> None:
    one = node("trn2.48xlarge")
    with pytest.raises(CommandFailedError, match=r"a trn2.48xlarge has no link 0-9; neighbors of 0: 12, 1, 3, 4"):
        one.bed.command("break", one.name, "link", "0-9")


def test_removed_device_is_gone_everywhere(node: Callable[[str], BedNode], namespace: Namespace) -> None:
    one = node("trn2.48xlarge")
    namespace.run_pod("p", one.name)
    namespace.wait_ready("p")
    one.break_("device", "3")
    in_sysfs, in_dev = devices(one)
    assert "neuron3" not in in_sysfs | in_dev
    assert (len(in_sysfs), len(in_dev)) == (15, 15)
    assert "neuron3" not in namespace.exec("p", "ls", "/sys/class/neuron_device").split()
    one.repair("device", "3")
    in_sysfs, in_dev = devices(one)
    assert (len(in_sysfs), len(in_dev)) == (16, 16)


def test_a_memory_error_is_counted_and_cleared(node: Callable[[str], BedNode]) -> None:
    one = node("trn2.48xlarge")
    counter = "/sys/class/neuron_device/neuron2/stats/hardware/mem_ecc_uncorrected"
    one.break_("ecc", "2")
    assert one.run("cat", counter) == "1\n"
    one.repair("ecc", "2")
    assert one.run("cat", counter) == "0\n"


@pytest.mark.parametrize("what", ["kubelet", "containerd"])
def test_containers_outlive_a_killed(
    what: str, bed: TestBed, node: Callable[[str], BedNode], namespace: Namespace
) -> None:
    one = node("trn2.48xlarge")
    namespace.run_pod("p", one.name)
    namespace.wait_ready("p")
    before = bed.parts.state.processes[f"{one.name}/{what}"]
    one.break_(what)
    assert bed.parts.state.processes[f"{one.name}/{what}"] != before
    assert namespace.exec("p", "echo", "still there") == "still there\n"
    assert namespace.restarts("p") == 0


def test_reboot_restarts_containers(bed: TestBed, node: Callable[[str], BedNode], namespace: Namespace) -> None:
    one = node("trn2.48xlarge")
    namespace.run_pod("p", one.name, volumes=[BOOT_ID_VOLUME], container={"volumeMounts": [BOOT_ID_MOUNT]})
    namespace.wait_ready("p")
    before = namespace.exec("p", "cat", "/host/boot_id")
    one.run("touch", "/var/run/cdi/left.json")
    one.break_("reboot")
    assert one.run("ls", "/var/run/cdi").split().count("left.json") == 0
    eventually("container started again", lambda: namespace.restarts("p") == 1)
    namespace.wait_ready("p")
    after = namespace.exec("p", "cat", "/host/boot_id")
    assert after != before
    assert bed.get("node", one.name)["status"]["nodeInfo"]["bootID"] == after.strip()


def test_kubelet_restarts_a_killed_plugin(driver: TestBed, node: Callable[[str], BedNode]) -> None:
    one = node("trn2.48xlarge")
    one.repair("plugin")  # waits until it is ready
    system = Namespace(driver, "neuron-dra-driver")

    def restarts() -> int:
        pods = system.get("pods", f"--field-selector=spec.nodeName={one.name}", ONLY_PLUGINS)["items"]
        return sum(status["restartCount"] for pod in pods for status in pod["status"]["containerStatuses"])

    before = restarts()
    one.break_("plugin")
    one.repair("plugin")
    eventually("one more restart", lambda: restarts() == before + 1)


def test_grpcurl_describes_the_plugin(driver: TestBed, node: Callable[[str], BedNode]) -> None:
    one = node("trn2.48xlarge")
    one.repair("plugin")  # waits until it is ready
    sockets = one.run("find", "/var/lib/kubelet/plugins/neuron.aws.com", "-name", "dra*.sock").split()
    services = [one.run("grpcurl", "-plaintext", "-unix", socket, "list") for socket in sockets]
    assert any("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin" in text for text in services)


def test_ultraserver_of_four_splits_with_a_link(other_bed: TestBed) -> None:
    other_bed.command("up", "--ultraserver", "u=trn2u.48xlarge")
    nodes = [other_bed.parts.node(f"u-{position}") for position in range(4)]

    def reports(name: str) -> list[str]:
        return [node.run("cat", f"/sys/class/neuron_device/{name}").strip() for node in nodes]

    def blocks() -> set[str]:
        items = other_bed.get("nodes")["items"]
        return {item["metadata"]["labels"]["topology.k8s.aws/capacity-block-id"] for item in items}

    assert (len(set(reports("server_id_4"))), len(set(reports("server_id_2"))), len(blocks())) == (1, 2, 1)
    assert (reports("node_id_4"), reports("node_id_2")) == (["0", "1", "2", "3"], ["0", "1", "0", "1"])
    assert reports("ultraserver_mode") == ["1,3,4"] * 4
    other_bed.command("break", "u-0", "link", "right")
    assert reports("ultraserver_mode") == ["4", "2,4", "2,4", "4"]
    other_bed.command("repair", "u-3", "link", "right")
    assert reports("ultraserver_mode") == ["1,3,4"] * 4


# -- down --------------------------------------------------------------------------------------------------------------


def left_behind(bed: TestBed) -> list[str]:
    """Return the processes, mounts and interfaces of a test bed on this machine."""
    from hack.bed import cgroups, processes

    where = bed.where
    found = [f"process {process.pid}" for process in processes.marked(where.name)]
    found += [f"process {process.pid} on a node" for process in processes.inside(f"/{where.name}/nodes/")]
    found += [str(path) for path in (where.netns_file, where.state_dir) if path.exists()]
    found += [str(path / where.name) for path in cgroups.hierarchies() if (path / where.name).exists()]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return found + [line for line in mounts if f"/{where.name}/" in line or line.split()[4].endswith(where.name)]


def test_down_leaves_nothing_behind(other_bed: TestBed) -> None:
    other_bed.command("up", "--node", "x=trn2.48xlarge")
    default = Namespace(other_bed, "default")
    default.run_pod("p", "x")
    default.wait_ready("p")
    assert len(left_behind(other_bed)) > 10
    other_bed.command("down")
    assert left_behind(other_bed) == []


@pytest.mark.parametrize("moment", ["etcd", "x/namespace", "x/kubelet"])
def test_down_cleans_up_after_a_killed_up(moment: str, other_bed: TestBed) -> None:
    environment = {**os.environ, "NEURON_DRA_TESTBED_NAME": other_bed.where.name}
    with subprocess.Popen([str(TESTBED / "testbed"), "up", "--node", "x=trn2.48xlarge"], env=environment,
                          stdout=subprocess.DEVNULL, start_new_session=True) as up:  # fmt: skip
        deadline = time.monotonic() + 120
        while up.poll() is None and moment not in other_bed.parts.state.processes and time.monotonic() < deadline:
            time.sleep(0.005)
        up.kill()
    assert moment in other_bed.parts.state.processes
    other_bed.command("down")
    assert left_behind(other_bed) == []


def test_down_works_with_an_unreadable_record(other_bed: TestBed) -> None:
    other_bed.command("up", "--node", "x=trn1.2xlarge")
    other_bed.where.state_file.write_text("{")
    other_bed.command("down")
    assert left_behind(other_bed) == []


def test_down_leaves_other_test_beds_alone(
    bed: TestBed, other_bed: TestBed, node: Callable[[str], BedNode], namespace: Namespace
) -> None:
    one = node("trn2.48xlarge")
    namespace.run_pod("p", one.name)
    other_bed.command("up", "--node", "x=trn1.2xlarge")
    other_bed.command("down")
    namespace.wait_ready("p")
    assert bed.parts.node(one.name).is_ready()
