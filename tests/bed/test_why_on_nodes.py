"""34 on a real cluster: the first cause that `why` names is the fault that was made."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hack.bed.deployed import pod, template
from hack.bed.real_cluster import QUICK, BedNode, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.hanging import stopped
from tests.bed.deployed import registered_pods, relabel, settled, stays_pending

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

TRN2 = "trn2.48xlarge"
RULE = "why-on-nodes"


def first_cause(place: Namespace, what: str) -> tuple[str, str]:
    """Return code and text of the first cause that `why` names."""
    done = place.bed.neuron_dra("why", what, "-n", place.name, "-o", "json")
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    causes = found["causes"]
    return (causes[0]["code"], causes[0]["text"]) if causes else ("", "")


def names(place: Namespace, what: str, code: str, *words: str) -> bool:
    """Return True if the first cause has this code and these words."""
    found, text = first_cause(place, what)
    return found == code and all(word in text for word in words)


def first_is(place: Namespace, what: str, code: str, *words: str) -> None:
    """Wait until the first cause has this code and these words: it is read from Events, too."""
    try:
        eventually(f"why {what} names {code}", lambda: names(place, what, code, *words), 60)
    except AssertionError as err:
        raise AssertionError(f"{err}: it names {first_cause(place, what)}") from err


def device(name: str, number: int) -> Obj:
    """Return a template for one device of a node, by its number."""
    made = template(name)
    [request] = made["spec"]["spec"]["devices"]["requests"]
    expression = f"device.attributes['neuron.aws.com'].deviceId == {number}"
    request["exactly"]["selectors"].append({"cel": {"expression": expression}})
    return made


def claim(name: str, finalizers: tuple[str, ...] = ()) -> Obj:
    """Return a claim for one device."""
    spec = template("unused")["spec"]["spec"]
    metadata = {"name": name, "finalizers": list(finalizers)}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def user(name: str, claim_name: str, node: BedNode) -> Obj:
    """Return a pod that uses a claim which exists."""
    made = pod(name, "unused", node=node.name)
    made["spec"]["resourceClaims"] = [{"name": "neurons", "resourceClaimName": claim_name}]
    return made


@contextlib.contextmanager
def no_controller_manager(bed: TestBed) -> Iterator[None]:
    """kube-controller-manager hangs until the end of the block."""
    with stopped(bed.parts.processes.pid("kube-controller-manager")):
        yield


@pytest.fixture
def older_kubelet(driver: TestBed) -> BedNode:
    """A node whose kubelet is of Kubernetes 1.36, under a control plane of 1.37."""
    if driver.parts.state.kubernetes != "1.37":
        pytest.skip(f"the control plane is of Kubernetes {driver.parts.state.kubernetes}")
    driver.command("up", "--node", f"old={TRN2}@1.36", timeout_s=1800)
    node = BedNode(driver, "old", TRN2)
    settled(node)
    return node


# The situations


def test_kubelet_of_an_older_version(older_kubelet: BedNode, namespace: Namespace) -> None:
    """Its version is no cause: pods run there, and a fault is found in this kubelet's own words."""
    version = older_kubelet.bed.get("node", older_kubelet.name)["status"]["nodeInfo"]["kubeletVersion"]
    assert version.startswith("v1.36.")
    namespace.apply(device("five", 5))
    namespace.apply(pod("fine", "five", node=older_kubelet.name))
    namespace.wait_ready("fine")
    assert first_cause(namespace, "pod/fine") == first_cause(namespace, f"node/{older_kubelet.name}") == ("", "")
    namespace.delete("pod", "fine")
    older_kubelet.run("mv", "/dev/neuron5", "/dev/moved-neuron5")
    try:
        namespace.apply(pod("p", "five", node=older_kubelet.name))
        first_is(namespace, "pod/p", "DeviceFileMissing", "neuron5")
    finally:
        older_kubelet.run("mv", "/dev/moved-neuron5", "/dev/neuron5")
        namespace.delete("pod", "p")
        settled(older_kubelet)


def test_node_name_in_a_pod_with_a_claim(trn2: BedNode, namespace: Namespace) -> None:
    namespace.apply(template("one"))
    made = pod("p", "one")
    made["spec"]["nodeName"] = trn2.name
    namespace.apply(made)
    first_is(namespace, "pod/p", "SchedulerBypassed", "nodeName")


def test_missing_device_file(trn2: BedNode, namespace: Namespace) -> None:
    """A pod gets the device before the driver has noticed; it is the node's file that is missing, not CDI."""
    trn2.run("mv", "/dev/neuron5", "/dev/moved-neuron5")
    try:
        namespace.apply(device("five", 5))
        namespace.apply(pod("p", "five", node=trn2.name))
        first_is(namespace, "pod/p", "DeviceFileMissing", "neuron5")
    finally:
        trn2.run("mv", "/dev/moved-neuron5", "/dev/neuron5")
        namespace.delete("pod", "p")
        settled(trn2)


def test_device_that_stays_without_its_file(trn2: BedNode, namespace: Namespace) -> None:
    trn2.run("mv", "/dev/neuron5", "/dev/moved-neuron5")
    try:
        namespace.apply(template("every", 16))
        eventually("the driver has noticed", lambda: names(namespace, f"node/{trn2.name}", "DeviceTainted"), 60)
        namespace.apply(pod("p", "every", node=trn2.name))
        stays_pending(namespace, "p")
        first_is(namespace, "pod/p", "DeviceTainted", "DeviceFileMissing")
    finally:
        trn2.run("mv", "/dev/moved-neuron5", "/dev/neuron5")
        settled(trn2)


def test_fragmentation(trn2: BedNode, namespace: Namespace) -> None:
    for number in (0, 4, 8, 12):  # one of each group of four
        namespace.apply(device(f"device-{number}", number))
        namespace.apply(pod(f"holds-{number}", f"device-{number}", node=trn2.name))
    for number in (0, 4, 8, 12):
        namespace.wait_ready(f"holds-{number}")
    namespace.apply(template("four", 4, group=4))
    namespace.apply(pod("p", "four", node=trn2.name))
    stays_pending(namespace, "p")
    first_is(namespace, "pod/p", "Fragmented")


def test_devices_that_others_hold(trn2: BedNode, namespace: Namespace) -> None:
    namespace.apply(template("most", 12))
    namespace.apply(pod("holds", "most", node=trn2.name))
    namespace.wait_ready("holds")
    namespace.apply(template("eight", 8))
    namespace.apply(pod("p", "eight", node=trn2.name))
    stays_pending(namespace, "p")
    first_is(namespace, "pod/p", "DevicesInUse")


def test_rollout_that_waits_for_its_own_pod(trn2: BedNode, namespace: Namespace) -> None:
    namespace.apply(template("every", 16))
    made = deployment("train", "every", trn2.name)
    namespace.apply(made)
    namespace.kubectl("rollout", "status", "deployment/train", "--timeout=180s", timeout_s=190)
    made["spec"]["template"]["metadata"]["annotations"] = {"example.com/release": "2"}
    namespace.apply(made)

    def new_pod() -> str:
        items = namespace.get("pods", "--selector=job=train")["items"]
        return next((each["metadata"]["name"] for each in items if "nodeName" not in each["spec"]), "")

    name = eventually("a pod of the new release waits", new_pod, 60)
    stays_pending(namespace, name)
    first_is(namespace, f"pod/{name}", "RolloutWaits")
    namespace.kubectl("delete", "deployment", "train", "--cascade=foreground", timeout_s=100)


def deployment(name: str, template_name: str, node: str) -> Obj:
    """Return a Deployment of one pod that is replaced only when the new one is ready."""
    spec = pod("unused", template_name, node=node)["spec"]
    spec["containers"][0] |= {"image": QUICK, "command": ["sleep", "infinity"], "args": []}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "selector": {"matchLabels": {"job": name}},
            "template": {"metadata": {"labels": {"job": name}}, "spec": spec},
        },
    }


def test_zombie_claim(trn2: BedNode, namespace: Namespace) -> None:
    """The pod that held all devices is gone; kube-controller-manager, which frees its claim, hangs."""
    namespace.apply(template("every", 16))
    namespace.apply(pod("held", "every", node=trn2.name))
    namespace.wait_ready("held")
    with no_controller_manager(namespace.bed):
        namespace.delete("pod", "held")
        made = user("p", "late", trn2)
        namespace.apply(claim("late"))
        namespace.apply(made)
        stays_pending(namespace, "p")
        first_is(namespace, "pod/p", "ClaimNotReleased")
    namespace.wait_ready("p")


def test_claim_reserved_for_a_former_pod(trn2: BedNode, namespace: Namespace) -> None:
    namespace.apply(claim("shared"))
    namespace.apply(user("p", "shared", trn2))
    namespace.wait_ready("p")
    with no_controller_manager(namespace.bed):
        namespace.delete("pod", "p")
        made = user("p", "shared", trn2)
        made["spec"] |= {"nodeName": trn2.name}
        namespace.apply(made)
        first_is(namespace, "pod/p", "ClaimNotReserved", "shared")
    namespace.delete("pod", "p")


def test_quota_on_a_class(trn2: BedNode, namespace: Namespace) -> None:
    hard = {"neuron.aws.com.deviceclass.resource.k8s.io/devices": "3"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "devices"}, "spec": {"hard": hard}}
    namespace.apply(quota)
    eventually("the quota counts", lambda: namespace.get("resourcequotas", "devices").get("status", {}).get("hard"))
    namespace.apply(template("four", 4))
    namespace.apply(pod("p", "four", node=trn2.name))
    first_is(namespace, "pod/p", "QuotaExceeded", "devices")


def test_claim_that_is_being_deleted(trn2: BedNode, namespace: Namespace) -> None:
    namespace.apply(claim("leaves", ("example.com/kept",)))
    namespace.kubectl("delete", "resourceclaim", "leaves", "--wait=false")
    namespace.apply(user("p", "leaves", trn2))
    first_is(namespace, "pod/p", "ClaimDeleted", "leaves")
    patch = json.dumps({"metadata": {"finalizers": None}})
    namespace.kubectl("patch", "resourceclaim", "leaves", "--type=merge", "-p", patch)


def test_device_taint_rule(trn2: BedNode, namespace: Namespace) -> None:
    taint = {"key": "example.com/maintenance", "effect": "NoSchedule"}
    made: dict[str, Any] = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": RULE},
        "spec": {"deviceSelector": {"driver": "neuron.aws.com", "pool": trn2.name}, "taint": taint},
    }
    namespace.bed.kubectl("create", "-f", "-", stdin=json.dumps(made))
    try:
        namespace.apply(template("one"))
        namespace.apply(pod("p", "one", node=trn2.name))
        stays_pending(namespace, "p")
        first_is(namespace, "pod/p", "DeviceTainted", "example.com/maintenance")
    finally:
        namespace.bed.kubectl("delete", "devicetaintrule", RULE)
    namespace.wait_ready("p")


def test_more_devices_than_a_node_has(trn2: BedNode, namespace: Namespace) -> None:
    namespace.apply(template("many", 17))
    namespace.apply(pod("p", "many"))
    stays_pending(namespace, "p")
    first_is(namespace, "pod/p", "CountTooLarge")


def test_template_that_does_not_exist(trn2: BedNode, namespace: Namespace) -> None:
    namespace.apply(template("train-rct"))
    namespace.apply(pod("p", "train-rtc", node=trn2.name))
    first_is(namespace, "pod/p", "TemplateMissing", "train-rtc")


def test_node_without_its_plugin(trn2: BedNode, namespace: Namespace, uninstall: Callable[[], None]) -> None:
    uninstall()
    eventually("the driver leaves", lambda: registered_pods(trn2) == set(), 60)
    namespace.apply(template("one"))
    namespace.apply(pod("p", "one", node=trn2.name))
    first_is(namespace, "pod/p", "DriverNotRegistered", trn2.name)
    relabel(trn2, TRN2)
    namespace.wait_ready("p")


def test_cordoned_node(trn2: BedNode, namespace: Namespace) -> None:
    namespace.bed.kubectl("cordon", trn2.name)
    try:
        namespace.apply(template("one"))
        namespace.apply(pod("p", "one", node=trn2.name))
        stays_pending(namespace, "p")
        first_is(namespace, "pod/p", "NodeExcluded", "cordoned")
    finally:
        namespace.bed.kubectl("uncordon", trn2.name)
    namespace.wait_ready("p")


def test_containerd_reads_another_cdi_folder(trn2: BedNode, namespace: Namespace) -> None:
    trn2.break_("cdi")
    namespace.apply(template("one"))
    namespace.apply(pod("p", "one", node=trn2.name))
    first_is(namespace, "pod/p", "RuntimeRejects", "does not read this folder")
    trn2.repair("cdi")
