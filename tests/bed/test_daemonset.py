"""The driver as users deploy it, on a real Kubernetes with simulated Neuron nodes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from bedlib import CHECKPOINT, DAEMONSET, NAMESPACE, ROOT, Bed, Place, is_ready, lnc, pod, rows, template, until

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(600)]

MANIFESTS = ROOT / "tests/bed/manifests"
EXAMPLES = ROOT / "deploy/examples"
NODES = ("--node", "a=trn2.48xlarge", "--node", "t=trn1.2xlarge", "--ultraserver", "u=trn2u.48xlarge")
ULTRASERVER = ("u-0", "u-1", "u-2", "u-3")


@pytest.fixture(scope="module")
def bed() -> Bed:
    bed = Bed()
    bed.up(*NODES)
    return bed


@pytest.fixture
def place(bed: Bed) -> Iterator[Place]:
    """A namespace of this test; its pods are gone when the test ends, and so its devices are free."""
    made = yaml.safe_dump({"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "test-"}})
    name = bed.kubectl("create", "-f", "-", "-o", "jsonpath={.metadata.name}", stdin=made)
    until(lambda: bed.get("serviceaccount", "default", name), 30, lambda: f"namespace {name} has no service account")
    place = Place(bed, name)
    yield place
    place.delete()
    bed.kubectl("delete", "namespace", name, "--wait=false")


def settled(bed: Bed, node: str) -> None:
    """Wait until the driver of a node is ready, its slices are published, and the checkpoint agrees with CDI."""

    def whole() -> bool:
        ready = [p for p in bed.get("pods", namespace=NAMESPACE) if p["spec"].get("nodeName") == node and is_ready(p)]
        return bool(ready) and bool(bed.devices(node)) and bed.prepared(node) == bed.cdi_claims(node)

    until(whole, 90, lambda: f"{node}: devices {len(bed.devices(node))}, {bed.prepared(node)}, {bed.cdi_claims(node)}")


def example(name: str) -> list[dict[str, Any]]:
    """Return the objects of an example."""
    return [d for d in yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()) if d]


# What is deployed.


def test_the_daemonset_is_ready_on_every_node(bed: Bed) -> None:
    status = bed.get("daemonset", DAEMONSET, NAMESPACE)["status"]
    assert status["desiredNumberScheduled"] == status["numberReady"] == 6


def test_each_node_publishes_what_its_instance_type_has(bed: Bed) -> None:
    published = {node: [d["name"] for d in bed.devices(node)] for node in ("a", "t", *ULTRASERVER)}
    assert published == {
        "a": [f"neuron-device-{i}" for i in range(16)],
        "t": ["neuron-device-0"],
        **{node: ["neuron-node-0"] for node in ULTRASERVER},
    }


def test_the_driver_has_no_capability_and_cannot_write_its_own_files(bed: Bed) -> None:
    name = bed.plugin_pod("a")["metadata"]["name"]
    program = "print(open('/proc/1/status').read())"
    status = bed.kubectl("exec", "--namespace", NAMESPACE, name, "--", "python3", "-c", program)
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert facts["Uid"].split() == ["0"] * 4
    assert {int(facts[key], 16) for key in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
    refused = bed.refused("exec", "--namespace", NAMESPACE, name, "--", "python3", "-c", "open('/opt/x', 'w')")
    assert "Read-only file system" in refused


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1beta2"])
def test_a_plugin_cannot_write_slices_of_another_node(bed: Bed, version: str) -> None:
    account = ("neuron-dra-driver-sa", "--namespace", NAMESPACE)
    bound = ("--bound-object-kind=Node", "--bound-object-name=a")
    token = bed.kubectl("create", "token", *account, *bound).strip()
    forged = {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceSlice",
        "metadata": {"name": "forged"},
        "spec": {
            "driver": "neuron.aws.com",
            "nodeName": "t",
            "pool": {"name": "t", "generation": 99, "resourceSliceCount": 1},
            "devices": [],
        },
    }
    words = bed.refused("create", f"--token={token}", "-f", "-", stdin=yaml.safe_dump(forged))
    assert "the plugin on node a may write slices of its own node only, not of node t" in words
    theirs = bed.slices("t")[0]["metadata"]["name"]
    words = bed.refused("delete", "resourceslice", theirs, f"--token={token}")
    assert "the plugin on node a may write slices of its own node only, not of node t" in words


# The documents' examples.


@pytest.mark.parametrize(
    ("wanted", "count", "variables"),
    [
        ("1x4-connected-neurons", 4, {}),
        ("l-trn2", 8, {}),
        ("xl-trn2", 16, {}),
        ("all-neurons-lnc-1", 16, {"NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_RT_VIRTUAL_CORE_SIZE": "1"}),
    ],
)
def test_a_template_as_the_documents_print_it(place: Place, wanted: str, count: int, variables: dict[str, str]) -> None:
    templates = yaml.safe_load_all((MANIFESTS / "documented-v1beta1.yaml").read_text())
    [chosen] = [t for t in templates if t["metadata"]["name"] == wanted]
    place.apply(chosen, pod("pod0", wanted))
    place.running("pod0")
    devices = place.devices("pod0")
    assert devices == list(range(devices[0], devices[0] + count))
    assert devices[0] % count == 0
    assert place.environment("pod0") == variables


@pytest.mark.parametrize(
    ("name", "devices", "variables"),
    [
        ("1x4-connected-devices", [0, 1, 2, 3], {}),
        ("l-trn2", list(range(8)), {}),
        ("xl-trn2", list(range(16)), {}),
        ("row-of-topology", [4, 5, 6, 7], {}),
        ("lnc-setting-trn2", list(range(16)), {"NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_RT_VIRTUAL_CORE_SIZE": "1"}),
        ("lnc-neurons", list(range(16)), {"NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_RT_VIRTUAL_CORE_SIZE": "1"}),
        ("single-neuron-device", [0], {}),
    ],
)
def test_an_example_runs_as_it_is(place: Place, name: str, devices: list[int], variables: dict[str, str]) -> None:
    place.apply((EXAMPLES / f"{name}.yaml").read_text())
    [started] = [d["metadata"]["name"] for d in example(name) if d["kind"] == "Pod"]
    place.running(started)
    assert place.devices(started) == devices
    assert place.environment(started) == variables


@pytest.mark.parametrize("name", ["2.26-driver-trn2", "neuron-with-driver-version"])
def test_a_driver_version_that_no_node_has_is_waited_for(place: Place, name: str) -> None:
    place.apply((EXAMPLES / f"{name}.yaml").read_text())
    [waiting] = [d["metadata"]["name"] for d in example(name) if d["kind"] == "Pod"]
    assert "cannot allocate all claims" in place.stays_pending(waiting)


def test_more_devices_than_a_node_has_are_waited_for(place: Place) -> None:
    place.apply(template("seventeen", 17), pod("greedy", "seventeen"))
    assert "cannot allocate all claims" in place.stays_pending("greedy")


def test_two_pods_of_one_node_have_logical_cores_of_their_own_size(place: Place) -> None:
    place.apply(template("one", 4, group=4, config=lnc(1)), pod("small", "one"))
    place.apply(template("two", 4, group=4, config=lnc(2)), pod("large", "two"))
    sizes = {}
    for name in ("small", "large"):
        place.running(name)
        sizes[name] = place.environment(name)["NEURON_LOGICAL_NC_CONFIG"]
    assert sizes == {"small": "1", "large": "2"}
    assert not set(place.devices("small")) & set(place.devices("large"))


# What is refused, and in which words.


def test_lnc_on_a_type_that_has_none_is_refused_in_the_documented_words(place: Place) -> None:
    place.apply((EXAMPLES / "neuron-lnc-1.yaml").read_text())
    words = place.refusal("neuron-lnc-1")
    assert "error applying config: LNC value is not configurable for instance type trn1.2xlarge" in words


def test_a_misspelt_field_is_named_with_the_nearest_right_one(place: Place) -> None:
    config = {"kind": "NeuronConfig", "logicalNeuronCoreCount": 1}
    place.apply(template("misspelt", 1, config=config), pod("misspelt", "misspelt"))
    words = place.refusal("misspelt")
    assert "logicalNeuronCoreCount" in words
    assert "did you mean logicalNeuronCore?" in words.replace('"', "").replace("'", "")


# Sharing a node.


def test_four_pods_fill_a_node_and_the_fifth_starts_when_one_leaves(place: Place) -> None:
    place.apply(template("four", 4, group=4), *(pod(f"pod{i}", "four") for i in range(4)))
    held = {}
    for i in range(4):
        place.running(f"pod{i}")
        held[f"pod{i}"] = place.devices(f"pod{i}")
        assert len(held[f"pod{i}"]) == 4
        assert len(rows(held[f"pod{i}"])) == 1
    assert sorted(device for devices in held.values() for device in devices) == list(range(16))
    place.apply(pod("pod4", "four"))
    place.stays_pending("pod4")
    place.delete("pod2")
    place.running("pod4")
    assert place.devices("pod4") == held["pod2"]


# With a second driver.


@pytest.fixture(scope="module")
def efa(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The EFA interfaces of node a, published by a driver of their own."""
    bed.kubectl("apply", "-f", str(MANIFESTS / "efa-deviceclass.yaml"))
    log = tmp_path_factory.mktemp("net") / "net-driver.log"
    program = f"{sys.executable} -m neuron_dra.testing.net_driver --node-name a --instance-type trn2.48xlarge"
    command = f'PYTHONPATH={ROOT} exec {program} --kubeconfig "$KUBECONFIG"'
    driver = bed.start("sh", "-c", command, node="a", log=log)
    try:
        until(lambda: bed.slices("a", "dra.net"), 60, log.read_text)
        until(lambda: "registered with the kubelet" in log.read_text(), 60, log.read_text)
        yield
    finally:
        driver.terminate()
        try:
            driver.wait(10)
        except subprocess.TimeoutExpired:
            driver.kill()
        bed.kubectl("delete", "resourceslice", "--ignore-not-found", "a-dra.net")


@pytest.mark.usefixtures("efa")
def test_devices_come_with_the_interfaces_next_to_them(place: Place) -> None:
    image = "public.ecr.aws/ubuntu/ubuntu:22.04"  # the example names the reader's own
    documents = [d if d["kind"] != "Pod" else _with_image(d, image) for d in example("aligned-efa-neuron")]
    place.apply(*documents)
    place.running("neuron-inference-worker")
    devices = place.devices("neuron-inference-worker")
    assert len(devices) == 4
    assert len(rows(devices)) == 1
    functions = ["c9", "b4", "b3", "ca", "6c", "57", "56", "6d", "98", "83", "82", "99", "f5", "e0", "df", "f6"]
    interfaces = place.environment("neuron-inference-worker")["DRA_NET_DEVICES"].split(",")
    assert sorted(interfaces) == sorted(f"pci-0000-{functions[device]}-00-0" for device in devices)


@pytest.mark.usefixtures("efa")
def test_devices_of_one_group_and_interfaces_of_another_are_waited_for(place: Place) -> None:
    [claim] = [d for d in example("aligned-efa-neuron") if d["kind"] == "ResourceClaimTemplate"]
    neurons, interfaces = claim["spec"]["spec"]["devices"]["requests"]
    neurons["exactly"]["selectors"] = [{"cel": {"expression": "device.attributes['neuron.aws.com'].topology_x == 0"}}]
    other_row = "device.attributes['resource.aws.com'].devicegroup4_id != '13713e551cd37c19'"
    interfaces["exactly"]["selectors"] = [{"cel": {"expression": other_row}}]
    place.apply(claim, pod("misaligned", claim["metadata"]["name"]))
    assert "cannot allocate all claims" in place.stays_pending("misaligned")


def _with_image(document: dict[str, Any], image: str) -> dict[str, Any]:
    for container in document["spec"]["containers"]:
        container["image"] = image
        container.setdefault("command", ["sleep", "9999"])
    return document


# UltraServers.


@pytest.mark.parametrize(("name", "nodes", "mode"), [("4-node-inference-us", 4, "1"), ("2-node-inference-us", 2, "3")])
def test_nodes_of_an_ultraserver_know_their_place(bed: Bed, place: Place, name: str, nodes: int, mode: str) -> None:
    [claim] = [d for d in example(name) if d["kind"] == "ResourceClaimTemplate"]
    members = ULTRASERVER[:nodes]
    place.apply(claim, *(pod(node, claim["metadata"]["name"], node=node) for node in members))
    for node in members:
        place.running(node)
        [device] = bed.devices(node)
        facts = {key: next(iter(value.values())) for key, value in device["attributes"].items()}
        assert place.devices(node) == list(range(16))
        assert place.environment(node) == {
            "NEURON_RT_ULTRASERVER_MODE": mode,
            "NEURON_RT_ULTRASERVER_SERVER_ID": facts[f"serverId{nodes}"],
            "NEURON_RT_ULTRASERVER_NODE_ID": str(facts[f"nodeId{nodes}"]),
        }


# When things break.


def test_pods_start_although_the_plugin_is_killed_meanwhile(bed: Bed, place: Place) -> None:
    place.apply(template("two", 2), *(pod(f"pod{i}", "two") for i in range(4)))
    bed.break_("a", "plugin")
    for i in range(4):
        place.running(f"pod{i}", timeout_s=150)
    devices = [device for i in range(4) for device in place.devices(f"pod{i}")]
    assert len(set(devices)) == 8
    settled(bed, "a")
    assert len(bed.prepared("a")) == 4


def test_the_daemonset_is_restarted_under_load_and_nobody_notices(bed: Bed, place: Place) -> None:
    place.apply(template("one", 1), pod("before", "one"))
    place.running("before")
    old = bed.plugin_pod("a")["metadata"]["uid"]
    bed.kubectl("rollout", "restart", f"daemonset/{DAEMONSET}", "--namespace", NAMESPACE)
    until(
        lambda: bed.plugin_pod("a")["metadata"]["uid"] != old,
        120,
        lambda: "the pod on node a was not replaced",
    )
    for number in range(3):
        place.apply(pod(f"during{number}", "one"))
        place.running(f"during{number}", timeout_s=150)
        assert len(bed.devices("a")) == 16
    bed.kubectl(
        "rollout", "status", f"daemonset/{DAEMONSET}", "--namespace", NAMESPACE, "--timeout=180s", timeout_s=190
    )
    settled(bed, "a")
    assert len(bed.prepared("a")) == 4
    sockets = bed.on("a", "ls", "/var/lib/kubelet/plugins_registry").split()
    assert len([name for name in sockets if name.startswith("neuron.aws.com")]) == 1


def test_a_kubelet_restarts_and_the_slices_come_back(bed: Bed, place: Place) -> None:
    place.apply(template("four", 4, group=4), pod("running", "four"))
    place.running("running")
    devices, before = place.devices("running"), bed.slices("a")
    bed.break_("a", "kubelet")
    until(
        lambda: [s for s in bed.slices("a") if s["metadata"]["uid"] != before[0]["metadata"]["uid"]],
        60,
        lambda: f"the slices of node a did not come back: {bed.slices('a')}",
    )
    settled(bed, "a")
    assert place.devices("running") == devices
    place.apply(pod("next", "four"))
    place.running("next")
    assert not set(place.devices("next")) & set(devices)


def test_a_rebooted_node_prepares_its_pods_again(bed: Bed, place: Place) -> None:
    place.apply(template("four", 4, group=4, config=lnc(1)), pod("survivor", "four"))
    place.running("survivor")
    devices = place.devices("survivor")
    boot = json.loads(bed.on("a", "cat", CHECKPOINT))["bootId"]
    bed.break_("a", "reboot")
    until(
        lambda: json.loads(bed.on("a", "cat", CHECKPOINT))["bootId"] != boot,
        90,
        lambda: "the checkpoint still has the old boot id",
    )
    settled(bed, "a")
    until(
        lambda: (
            is_ready(survivor := place.pod("survivor") or {})
            and survivor["status"]["containerStatuses"][0]["restartCount"] > 0
        ),
        180,
        lambda: f"the pod did not start again: {place.events('survivor')}",
    )
    assert place.devices("survivor") == devices
    assert place.environment("survivor")["NEURON_LOGICAL_NC_CONFIG"] == "1"


def test_a_cdi_file_that_somebody_deleted_is_written_again(bed: Bed, place: Place) -> None:
    place.apply(template("four", 4, group=4), pod("pod0", "four"))
    place.running("pod0")
    [uid] = bed.prepared("a")
    path = f"/var/run/cdi/k8s.neuron.aws.com-claim_{uid}.json"
    before = bed.on("a", "cat", path)
    bed.on("a", "rm", path)
    until(lambda: bed.cdi_claims("a") == {uid}, 15, lambda: f"{path} was not written again")
    assert bed.on("a", "cat", path) == before


def test_nothing_is_left_of_claims_whose_pods_are_gone(bed: Bed, place: Place) -> None:
    place.apply(template("one", 1), *(pod(f"pod{i}", "one") for i in range(3)))
    for i in range(3):
        place.running(f"pod{i}")
    assert len(bed.prepared("a")) >= 1
    place.delete()
    until(lambda: not bed.prepared("a") | bed.prepared("t"), 30, lambda: f"left: {bed.prepared('a')}")
    assert bed.cdi_claims("a") | bed.cdi_claims("t") == set()


# Beside a device plugin.


def test_with_a_device_plugin_on_the_node_nothing_is_published(bed: Bed) -> None:
    _offer(bed, "t", 1)
    try:
        until(lambda: not bed.devices("t"), 60, lambda: "node t still publishes")
        events = [e for e in bed.get("events", namespace="default") if e["reason"] == "NeuronDevicePluginAlive"]
        assert [e["involvedObject"]["name"] for e in events] == ["t"]
        assert "aws.amazon.com/neuron: 1" in events[0]["message"]
    finally:
        _offer(bed, "t", 0)
    until(lambda: len(bed.devices("t")) == 1, 90, lambda: "node t does not publish although the plugin is gone")
    settled(bed, "t")


def _offer(bed: Bed, node: str, count: int) -> None:
    """Let a Node offer so many devices of a device plugin, as the kubelet would tell."""
    status = {name: {"aws.amazon.com/neuron": str(count)} for name in ("capacity", "allocatable")}
    patch = json.dumps({"status": status})
    bed.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "--patch", patch)


# The driver's own services.


def test_the_drivers_services_can_be_called_without_a_proto_file(bed: Bed) -> None:
    uid = bed.plugin_pod("a")["metadata"]["uid"]
    socket = f"/var/lib/kubelet/plugins/neuron.aws.com/dra-{uid}.sock"

    def grpcurl(*words: str) -> str:
        return bed.on("a", "grpcurl", "-plaintext", "-unix", socket, *words)

    services = set(grpcurl("list").split())
    assert {
        "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
        "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
        "neuron.dra.v1.NodeInspector",
        "grpc.health.v1.Health",
    } <= services
    assert "rpc ListDevices" in grpcurl("describe", "neuron.dra.v1.NodeInspector")
    answer = json.loads(grpcurl("neuron.dra.v1.NodeInspector/ListDevices"))
    assert answer["instanceType"] == "trn2.48xlarge"
    assert [device["name"] for device in answer["devices"]] == [f"neuron-device-{i}" for i in range(16)]


def test_the_metrics_join_devices_with_the_pods_that_hold_them(bed: Bed, place: Place) -> None:
    place.apply(template("four", 4, group=4), pod("trainer", "four"))
    place.running("trainer")
    address = bed.plugin_pod("a")["status"]["podIP"]
    fetch = f"import urllib.request as u; print(u.urlopen('http://{address}:8080/metrics').read().decode())"

    def holders() -> set[str]:
        text = bed.run(sys.executable, "-c", fetch).stdout
        lines = [line for line in text.splitlines() if line.startswith("neuron_dra_device_info{")]
        return {line.split('device="')[1].split('"')[0] for line in lines if 'pod="trainer"' in line}

    expected = {f"neuron{device}" for device in place.devices("trainer")}
    until(lambda: holders() == expected, 20, lambda: f"holders are {holders()}, not {expected}")


def test_the_log_on_a_node_tells_a_claims_story(bed: Bed, place: Place) -> None:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 1))
    place.apply(template("one", 1), pod("told", "one", node="a"))
    place.running("told")
    name = bed.plugin_pod("a")["metadata"]["name"]
    log = bed.kubectl("logs", "--namespace", NAMESPACE, name, f"--since-time={since}")
    assert "claim prepared op=" in log
    assert f"claim={place.name}/told-neurons-" in log
