"""The driver as users deploy it, on a real Kubernetes with simulated Neuron nodes."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from hack.bed.deployed import cdi_claims, checkpoint, is_ready, lnc, neurons, pod, prepared, template
from hack.bed.errors import BedError
from hack.bed.real_cluster import REPOSITORY, BedNode, Namespace, TestBed, eventually
from tests.bed.deployed import (
    DAEMONSET,
    MANIFESTS,
    NAMESPACE,
    devices,
    environment,
    events,
    plugin_pod,
    refusal,
    rows,
    settled,
    slices,
    stays_pending,
)

EXAMPLES = REPOSITORY / "deploy/examples"
TRN1, TRN2 = "trn1.2xlarge", "trn2.48xlarge"

Take = Callable[[str], BedNode]


@pytest.fixture
def trn1(driver: TestBed, node: Take) -> BedNode:
    """A trn1.2xlarge with the driver on it."""
    taken = node(TRN1)
    settled(taken)
    return taken


@pytest.fixture
def ultraserver(driver: TestBed) -> list[BedNode]:
    """The four nodes of an UltraServer, in their order, with the driver on them."""
    driver.command("up", "--ultraserver", "u=trn2u.48xlarge")
    nodes = [BedNode(driver, f"u-{i}", "trn2u.48xlarge") for i in range(4)]
    for member in nodes:
        settled(member)
    return nodes


def apply(place: Namespace, *documents: dict[str, Any] | str) -> None:
    for document in documents:
        place.apply(document)


def example(name: str) -> list[dict[str, Any]]:
    """Return the objects of an example."""
    return [d for d in yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()) if d]


def pod_of(name: str) -> str:
    """Return the name of an example's pod."""
    only: str
    [only] = [d["metadata"]["name"] for d in example(name) if d["kind"] == "Pod"]
    return only


def claim_template_of(name: str) -> dict[str, Any]:
    """Return the ResourceClaimTemplate of an example."""
    [only] = [d for d in example(name) if d["kind"] == "ResourceClaimTemplate"]
    return only


# What is deployed.


def test_daemonset_is_ready_on_every_node(driver: TestBed, trn1: BedNode, trn2: BedNode) -> None:
    def counts() -> tuple[int, int]:
        status = driver.get("daemonset", DAEMONSET, "--namespace", NAMESPACE)["status"]
        return status["desiredNumberScheduled"], status["numberReady"]

    nodes = len(driver.get("nodes")["items"])
    eventually("a ready pod for each node", lambda: counts() == (nodes, nodes), 90)


def test_nodes_publish_devices_of_their_instance_type(
    driver: TestBed, trn1: BedNode, trn2: BedNode, ultraserver: list[BedNode]
) -> None:
    names = {n.instance_type: [d["name"] for d in devices(driver, n.name)] for n in (trn1, trn2, *ultraserver)}
    assert names == {
        TRN2: [f"neuron-device-{i}" for i in range(16)],
        TRN1: ["neuron-device-0"],
        "trn2u.48xlarge": ["neuron-node-0"],
    }


def test_driver_runs_without_capabilities(driver: TestBed, trn2: BedNode) -> None:
    inside = (
        "exec",
        "--namespace",
        NAMESPACE,
        plugin_pod(driver, trn2.name)["metadata"]["name"],
        "--",
        "python3",
        "-c",
    )
    status = driver.kubectl(*inside, "print(open('/proc/1/status').read())")
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert facts["Uid"].split() == ["0"] * 4
    assert {int(facts[key], 16) for key in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
    with pytest.raises(BedError, match="Read-only file system"):
        driver.kubectl(*inside, "open('/opt/x', 'w')")


def test_helm_test_gets_a_device_and_leaves_nothing(driver: TestBed, trn2: BedNode) -> None:
    """(18.5)"""
    from hack.bed import driver as installed

    output = installed.helm(driver.parts, "test", installed.RELEASE, "--namespace", NAMESPACE)
    assert re.findall(r"^Phase: +(\w+)", output, re.MULTILINE) == ["Succeeded", "Succeeded"]
    names = driver.kubectl("get", "pods,resourceclaims,resourceclaimtemplates", "--namespace", NAMESPACE, "-o", "name")
    assert [name for name in names.split() if name.endswith("-test")] == []


@pytest.mark.contract("S29")
@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1beta2"])
def test_plugin_cannot_write_slices_of_another_node(
    driver: TestBed, trn1: BedNode, trn2: BedNode, version: str
) -> None:
    account = ("neuron-dra-driver-sa", "--namespace", NAMESPACE)
    bound = ("--bound-object-kind=Node", f"--bound-object-name={trn2.name}")
    token = driver.kubectl("create", "token", *account, *bound).strip()
    forged = {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceSlice",
        "metadata": {"name": "forged"},
        "spec": {
            "driver": "neuron.aws.com",
            "nodeName": trn1.name,
            "pool": {"name": trn1.name, "generation": 99, "resourceSliceCount": 1},
        },
    }
    as_plugin = (f"--token={token}",)
    words = f"the plugin on node {trn2.name} may write slices of its own node only, not of node {trn1.name}"
    with pytest.raises(BedError, match=words):
        driver.kubectl("create", *as_plugin, "-f", "-", stdin=json.dumps(forged))
    [theirs] = slices(driver, trn1.name)
    with pytest.raises(BedError, match=words):
        driver.kubectl("delete", "resourceslice", theirs["metadata"]["name"], *as_plugin)


# The documents' examples.

LNC_1 = {"NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_RT_VIRTUAL_CORE_SIZE": "1"}


@pytest.mark.contract("S31")
@pytest.mark.parametrize(
    ("wanted", "count", "variables"),
    [
        ("1x4-connected-neurons", 4, {}),
        ("l-trn2", 8, {}),
        ("xl-trn2", 16, {}),
        ("all-neurons-lnc-1", 16, LNC_1),
    ],
)
def test_documented_templates_run(
    trn2: BedNode, namespace: Namespace, wanted: str, count: int, variables: dict[str, str]
) -> None:
    templates = yaml.safe_load_all((MANIFESTS / "documented-v1beta1.yaml").read_text())
    [chosen] = [t for t in templates if t["metadata"]["name"] == wanted]
    apply(namespace, chosen, pod("pod0", wanted))
    namespace.wait_ready("pod0")
    first, *_ = held = neurons(namespace, "pod0")
    assert held == list(range(first, first + count))
    assert first % count == 0
    assert environment(namespace, "pod0") == variables


@pytest.mark.parametrize(
    ("name", "held", "variables"),
    [
        ("1x4-connected-devices", [0, 1, 2, 3], {}),
        ("l-trn2", list(range(8)), {}),
        ("xl-trn2", list(range(16)), {}),
        ("row-of-topology", [4, 5, 6, 7], {}),
        ("lnc-setting-trn2", list(range(16)), LNC_1),
        ("lnc-neurons", list(range(16)), LNC_1),
        ("single-neuron-device", [0], {}),
    ],
)
def test_examples_run_unchanged(
    trn1: BedNode, trn2: BedNode, namespace: Namespace, name: str, held: list[int], variables: dict[str, str]
) -> None:
    namespace.apply(EXAMPLES / f"{name}.yaml")
    namespace.wait_ready(pod_of(name))
    assert neurons(namespace, pod_of(name)) == held
    assert environment(namespace, pod_of(name)) == variables


@pytest.mark.parametrize("name", ["2.26-driver-trn2", "neuron-with-driver-version"])
def test_pod_waits_for_unknown_driver_version(trn1: BedNode, trn2: BedNode, namespace: Namespace, name: str) -> None:
    namespace.apply(EXAMPLES / f"{name}.yaml")
    assert "cannot allocate all claims" in stays_pending(namespace, pod_of(name))


def test_pod_waits_for_too_many_devices(trn2: BedNode, namespace: Namespace) -> None:
    apply(namespace, template("seventeen", 17), pod("greedy", "seventeen"))
    assert "cannot allocate all claims" in stays_pending(namespace, "greedy")


def test_pods_on_one_node_have_different_lnc(trn2: BedNode, namespace: Namespace) -> None:
    for size in (1, 2):
        apply(namespace, template(f"lnc-{size}", 4, group=4, config=lnc(size)))
        apply(namespace, pod(f"pod-{size}", f"lnc-{size}", node=trn2.name))
    for size in (1, 2):
        namespace.wait_ready(f"pod-{size}")
    sizes = {size: environment(namespace, f"pod-{size}")["NEURON_LOGICAL_NC_CONFIG"] for size in (1, 2)}
    assert sizes == {1: "1", 2: "2"}
    assert not set(neurons(namespace, "pod-1")) & set(neurons(namespace, "pod-2"))


# Rejections and their messages


def test_unsupported_lnc_is_rejected_as_documented(trn1: BedNode, namespace: Namespace) -> None:
    namespace.apply(EXAMPLES / "neuron-lnc-1.yaml")
    words = refusal(namespace, pod_of("neuron-lnc-1"))
    assert "error applying config: LNC value is not configurable for instance type trn1.2xlarge" in words


def test_misspelt_field_error_suggests_the_right_one(trn2: BedNode, namespace: Namespace) -> None:
    config = {"kind": "NeuronConfig", "logicalNeuronCoreCount": 1}
    apply(namespace, template("misspelt", 1, config=config), pod("misspelt", "misspelt"))
    words = refusal(namespace, "misspelt").replace('"', "").replace("\\", "")
    assert "logicalNeuronCoreCount" in words
    assert "did you mean logicalNeuronCore?" in words


# Sharing a node.


def test_fifth_pod_starts_when_one_of_four_ends(trn2: BedNode, namespace: Namespace) -> None:
    apply(namespace, template("four", 4, group=4), *(pod(f"pod{i}", "four", node=trn2.name) for i in range(4)))
    held = {}
    for i in range(4):
        namespace.wait_ready(f"pod{i}")
        held[i] = neurons(namespace, f"pod{i}")
    assert [len(numbers) for numbers in held.values()] == [4] * 4
    assert [len(rows(numbers)) for numbers in held.values()] == [1] * 4
    assert sorted(number for numbers in held.values() for number in numbers) == list(range(16))
    apply(namespace, pod("pod4", "four", node=trn2.name))
    stays_pending(namespace, "pod4")
    namespace.delete("pod", "pod2")
    namespace.wait_ready("pod4")
    assert neurons(namespace, "pod4") == held[2]


@pytest.mark.contract("N8")
def test_replacements_of_force_deleted_pods_start(trn2: BedNode, namespace: Namespace) -> None:
    def place_of(name: str) -> dict[str, Any]:
        made = pod(name, "four", node=trn2.name)
        made["spec"]["terminationGracePeriodSeconds"] = 0
        return made

    apply(namespace, template("four", 4, group=4), *(place_of(f"before{i}") for i in range(4)))
    for i in range(4):
        namespace.wait_ready(f"before{i}")
    namespace.kubectl("delete", "pods", "--all", "--wait=false")
    apply(namespace, *(place_of(f"after{i}") for i in range(4)))
    held = []
    for i in range(4):
        namespace.wait_ready(f"after{i}")
        held += neurons(namespace, f"after{i}")
        assert events(namespace, f"after{i}", "FailedPrepareDynamicResources") == []
    assert sorted(held) == list(range(16))


# UltraServers.


@pytest.mark.parametrize(("name", "nodes", "mode"), [("4-node-inference-us", 4, "1"), ("2-node-inference-us", 2, "3")])
def test_ultraserver_nodes_publish_their_position(
    driver: TestBed, ultraserver: list[BedNode], namespace: Namespace, name: str, nodes: int, mode: str
) -> None:
    claim = claim_template_of(name)
    members = [member.name for member in ultraserver[:nodes]]
    apply(namespace, claim, *(pod(member, claim["metadata"]["name"], node=member) for member in members))
    for member in members:
        namespace.wait_ready(member)
        [device] = devices(driver, member)
        facts = {key: next(iter(value.values())) for key, value in device["attributes"].items()}
        assert neurons(namespace, member) == list(range(16))
        assert environment(namespace, member) == {
            "NEURON_RT_ULTRASERVER_MODE": mode,
            "NEURON_RT_ULTRASERVER_SERVER_ID": facts[f"serverId{nodes}"],
            "NEURON_RT_ULTRASERVER_NODE_ID": str(facts[f"nodeId{nodes}"]),
        }


# When things break.


@pytest.mark.contract("R7")
def test_pods_start_despite_plugin_kills(trn2: BedNode, namespace: Namespace) -> None:
    apply(namespace, template("two", 2), *(pod(f"pod{i}", "two", node=trn2.name) for i in range(4)))
    trn2.break_("plugin")
    for i in range(4):
        namespace.wait_ready(f"pod{i}", timeout_s=150)
    held = [number for i in range(4) for number in neurons(namespace, f"pod{i}")]
    assert len(set(held)) == len(held) == 8
    settled(trn2)
    assert len(prepared(trn2)) == 4


@pytest.mark.contract("C7")
def test_slices_return_after_kubelet_restart(driver: TestBed, trn2: BedNode, namespace: Namespace) -> None:
    apply(namespace, template("four", 4, group=4), pod("running", "four", node=trn2.name))
    namespace.wait_ready("running")
    held, before = neurons(namespace, "running"), {s["metadata"]["uid"] for s in slices(driver, trn2.name)}
    trn2.break_("kubelet")

    def fresh() -> bool:
        now = {s["metadata"]["uid"] for s in slices(driver, trn2.name)}
        return bool(now) and not now & before

    eventually("new slices", fresh, 60)
    settled(trn2)
    assert neurons(namespace, "running") == held
    apply(namespace, pod("next", "four", node=trn2.name))
    namespace.wait_ready("next")
    assert not set(neurons(namespace, "next")) & set(held)


def test_rebooted_node_prepares_its_pods_again(trn2: BedNode, namespace: Namespace) -> None:
    apply(namespace, template("four", 4, group=4, config=lnc(1)), pod("survivor", "four", node=trn2.name))
    namespace.wait_ready("survivor")
    held = neurons(namespace, "survivor")

    def boot() -> str:
        return checkpoint(trn2).boot_id

    before = boot()
    trn2.break_("reboot")
    eventually("a checkpoint of the new boot", lambda: boot() != before, 90)
    settled(trn2)
    started = eventually("the pod starts again", lambda: namespace.restarts("survivor") > 0, 180)
    assert started
    eventually("the pod is ready", lambda: is_ready(namespace.get("pod", "survivor")), 60)
    assert neurons(namespace, "survivor") == held
    assert environment(namespace, "survivor") == LNC_1


def test_deleted_cdi_file_is_rewritten(trn2: BedNode, namespace: Namespace) -> None:
    apply(namespace, template("four", 4, group=4), pod("pod0", "four", node=trn2.name))
    namespace.wait_ready("pod0")
    [uid] = prepared(trn2)
    path = f"/var/run/cdi/k8s.neuron.aws.com-claim_{uid}.json"
    before = trn2.run("cat", path)
    trn2.run("rm", path)
    eventually("the file is back", lambda: cdi_claims(trn2) == {uid}, 15)
    assert trn2.run("cat", path) == before


def test_no_files_remain_of_deleted_pods_claims(trn2: BedNode, namespace: Namespace) -> None:
    apply(namespace, template("one", 1), *(pod(f"pod{i}", "one", node=trn2.name) for i in range(3)))
    for i in range(3):
        namespace.wait_ready(f"pod{i}")
    assert len(prepared(trn2)) == 3
    namespace.delete("pod", "--all")
    eventually("an empty checkpoint", lambda: not prepared(trn2), 30)
    eventually("an empty CDI folder", lambda: not cdi_claims(trn2), 10)


# Beside a device plugin


def test_nothing_is_published_beside_device_plugin(driver: TestBed, trn1: BedNode) -> None:
    offer(trn1, 10)
    try:
        eventually("no devices", lambda: not devices(driver, trn1.name), 60)
        selector = f"--field-selector=reason=NeuronDevicePluginAlive,involvedObject.name={trn1.name}"
        found = eventually("an event", lambda: driver.get("events", "--namespace", "default", selector)["items"], 30)
        assert "aws.amazon.com/neuron: 10" in found[0]["message"]
    finally:
        offer(trn1, 0)
    eventually("devices again", lambda: len(devices(driver, trn1.name)) == 1, 90)
    settled(trn1)


def offer(node: BedNode, count: int) -> None:
    """Set the number of a device plugin's devices in a Node's status, as its kubelet does."""
    status = {name: {"aws.amazon.com/neuron": str(count)} for name in ("capacity", "allocatable")}
    patch = json.dumps({"status": status})
    node.bed.kubectl("patch", "node", node.name, "--subresource=status", "--type=merge", "--patch", patch)


# The driver's own services


def test_services_support_reflection(driver: TestBed, trn2: BedNode) -> None:
    uid = plugin_pod(driver, trn2.name)["metadata"]["uid"]
    socket = f"/var/lib/kubelet/plugins/neuron.aws.com/dra-{uid}.sock"

    def grpcurl(*words: str) -> str:
        return trn2.run("grpcurl", "-plaintext", "-unix", socket, *words)

    assert {
        "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
        "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
        "neuron.dra.v1.NodeInspector",
        "grpc.health.v1.Health",
    } <= set(grpcurl("list").split())
    assert "rpc ListDevices" in grpcurl("describe", "neuron.dra.v1.NodeInspector")
    answer = json.loads(grpcurl("neuron.dra.v1.NodeInspector/ListDevices"))
    assert answer["instance_type"] == TRN2
    assert [device["name"] for device in answer["devices"]] == [f"neuron-device-{i}" for i in range(16)]


def test_metrics_join_devices_with_pods(driver: TestBed, trn2: BedNode, namespace: Namespace) -> None:
    apply(namespace, template("four", 4, group=4), pod("trainer", "four", node=trn2.name))
    namespace.wait_ready("trainer")
    address = plugin_pod(driver, trn2.name)["status"]["podIP"]

    def holds() -> set[str]:
        with driver.inside(), urllib.request.urlopen(f"http://{address}:8080/metrics", timeout=60) as answer:
            text = answer.read().decode()
        lines = [line for line in text.splitlines() if line.startswith("neuron_dra_device_info{")]
        return {line.split('device="')[1].split('"')[0] for line in lines if 'pod="trainer"' in line}

    expected = {f"neuron{number}" for number in neurons(namespace, "trainer")}
    eventually("the metric names the pod", lambda: holds() == expected, 20)


def test_log_lines_follow_a_claim(driver: TestBed, trn2: BedNode, namespace: Namespace) -> None:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 1))
    apply(namespace, template("one", 1), pod("logged", "one", node=trn2.name))
    namespace.wait_ready("logged")
    name = plugin_pod(driver, trn2.name)["metadata"]["name"]
    log = driver.kubectl("logs", "--namespace", NAMESPACE, name, f"--since-time={since}")
    [line] = [line for line in log.splitlines() if f"claim={namespace.name}/logged-neurons-" in line]
    assert " claim prepared op=" in line
    assert " devices=neuron-device-" in line
