"""Faults and states of the test bed that alerts are about: each lasts until the end of its block."""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hack.bed import cgroups, hardware
from hack.bed.deployed import DATA, pod, template
from hack.bed.real_cluster import QUICK, BedError, BedNode, Namespace, TestBed, eventually
from neuron_dra.core.capacity_block import ANNOTATION
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.hanging import stopped
from tests.bed.deployed import CONTROLLER, DAEMONSET, NAMESPACE, REGISTRY, device_plugin, plugin_pod, settled
from tests.bed.fleet import (
    AWSS_CRDS,
    OUR_CRDS,
    TRN3,
    end_workloads,
    job,
    replicas,
    slots,
    submit,
    wait_available,
    wait_reason,
    wait_state,
    workload,
)

Fault = Callable[[TestBed, Namespace], contextlib.AbstractContextManager[None]]
TRN2 = "trn2.48xlarge"
ACCOUNT = "neuron-dra-driver-sa"
PLAIN = "trn2-48xlarge-0"
"""A node that is in no UltraServer, with the name that the fixture `node` gives to the first of its type."""


def on(bed: TestBed, name: str) -> BedNode:
    return BedNode(bed, name, TRN2 if name == PLAIN else TRN3)


@contextlib.contextmanager
def broken(bed: TestBed, node: str, what: str, which: str = "") -> Iterator[None]:
    """Break a part of a node with the test bed's own command."""
    one = on(bed, node)
    one.break_(what, which)
    try:
        yield
    finally:
        one.repair(what, which)


@contextlib.contextmanager
def without_rights(bed: TestBed, role: str, resource: str, verbs: tuple[str, ...]) -> Iterator[None]:
    """Take rights from a role, such as `clusterrole/a`, and wait until the API server denies them."""
    kind, _, name = role.partition("/")
    where = (kind, name, "--namespace", NAMESPACE)
    rules = json.loads(bed.kubectl("get", *where, "-o", "json"))["rules"]
    fewer = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if resource not in rule["resources"] or verb not in verbs]}
        for rule in rules
    ]
    bed.kubectl("patch", *where, "--type=merge", "--patch", patch_of([rule for rule in fewer if rule["verbs"]]))
    account = ACCOUNT if name == DAEMONSET else CONTROLLER
    asked = (f"{resource}/{CONTROLLER}", "--namespace", NAMESPACE, f"--as=system:serviceaccount:{NAMESPACE}:{account}")
    try:
        for verb in verbs:
            eventually(f"{verb} of {resource} is denied", lambda verb=verb: not may(bed, verb, *asked))
        yield
    finally:
        bed.kubectl("patch", *where, "--type=merge", "--patch", patch_of(rules))


def patch_of(rules: list[Obj]) -> str:
    return json.dumps({"rules": rules})


def may(bed: TestBed, *words: str) -> bool:
    """Return the answer of `kubectl auth can-i`."""
    try:
        return bed.kubectl("auth", "can-i", *words).strip() == "yes"
    except BedError:  # the exit status says no
        return False


# -- on a node ---------------------------------------------------------------------------------------------------------


def unhealthy_device(bed: TestBed, place: Namespace) -> contextlib.AbstractContextManager[None]:
    return broken(bed, "u2-0", "ecc", "3")


@contextlib.contextmanager
def dead_plugin(bed: TestBed, place: Namespace) -> Iterator[None]:
    """Nothing restarts a killed plugin while the kubelet is stopped."""
    with broken(bed, PLAIN, "kubelet", "stop"):
        on(bed, PLAIN).break_("plugin")
        yield
    on(bed, PLAIN).repair("plugin")


@contextlib.contextmanager
def removed_socket(bed: TestBed, place: Namespace) -> Iterator[None]:
    """Someone removes the registration socket while the kubelet is stopped, which does not find the new one."""
    with broken(bed, PLAIN, "kubelet", "stop"):
        on(bed, PLAIN).run("sh", "-c", f"rm {REGISTRY}/neuron.aws.com-*-reg.sock")
        yield


@contextlib.contextmanager
def unwritable_slices(bed: TestBed, place: Namespace) -> Iterator[None]:
    """The role no longer allows the write that a fault of a device needs."""
    with (
        without_rights(bed, f"clusterrole/{DAEMONSET}", "resourceslices", ("create", "update", "delete")),
        broken(bed, PLAIN, "ecc", "3"),
    ):
        yield


def hanging_reading(bed: TestBed, place: Namespace) -> contextlib.AbstractContextManager[None]:
    return broken(bed, PLAIN, "hang", "3")


@contextlib.contextmanager
def renamed_files(bed: TestBed, place: Namespace) -> Iterator[None]:
    """A kernel driver that has another name for the list of links."""
    node = hardware.load(bed.parts.node(PLAIN).hardware_dir)
    files = [node.device_path(number, "connected_devices") for number in node.device_ids()]
    for file in files:
        file.rename(file.with_name("links"))
    try:
        yield
    finally:
        for file in files:
            file.with_name("links").rename(file)


@contextlib.contextmanager
def pods_on_the_node(place: Namespace, *pods: Obj) -> Iterator[None]:
    """Create pods, and end them."""
    for each in pods:
        place.apply(each)
    try:
        yield
    finally:
        place.kubectl("delete", "pods", "--all", "--grace-period=1", "--timeout=180s", timeout_s=190)


@contextlib.contextmanager
def misspelt_configuration(bed: TestBed, place: Namespace) -> Iterator[None]:
    place.apply(template("misspelt", config={"kind": "NeuronConfig", "logicalNeuronCoreCount": 1}))
    with pods_on_the_node(place, pod("misspelt", "misspelt", node=PLAIN)):
        yield


@contextlib.contextmanager
def unreadable_claims(bed: TestBed, place: Namespace) -> Iterator[None]:
    """The role no longer allows the plugin to read claims."""
    place.apply(template("one"))
    with (
        without_rights(bed, f"clusterrole/{DAEMONSET}", "resourceclaims", ("get",)),
        pods_on_the_node(place, *(pod(f"pod-{number}", "one", node=PLAIN) for number in range(5))),
    ):
        yield


@contextlib.contextmanager
def foreign_checkpoint(bed: TestBed, place: Namespace) -> Iterator[None]:
    """A starting plugin finds it, and cannot rebuild its own, because the role does not allow it to list claims."""
    with without_rights(bed, f"clusterrole/{DAEMONSET}", "resourceclaims", ("list",)):
        on(bed, PLAIN).run("sh", "-c", f"echo '{{}}' > {DATA}/checkpoint.json")
        bed.kubectl("delete", "pod", "--namespace", NAMESPACE, plugin_pod(bed, PLAIN)["metadata"]["name"])
        yield


@contextlib.contextmanager
def deleted_claim(bed: TestBed, place: Namespace) -> Iterator[None]:
    """The claim of a running pod is deleted by force. The plugin looks for such claims when it has started."""
    place.apply(template("one"))
    with pods_on_the_node(place, pod("holder", "one", node=PLAIN)):
        place.wait_ready("holder")
        (claim,) = [each["metadata"]["name"] for each in place.get("resourceclaims")["items"]]
        place.kubectl("delete", "resourceclaim", claim, "--wait=false")
        place.kubectl("patch", "resourceclaim", claim, "--type=merge", "--patch", '{"metadata":{"finalizers":null}}')
        on(bed, PLAIN).break_("plugin")
        yield


def other_plugin(bed: TestBed, place: Namespace) -> contextlib.AbstractContextManager[None]:
    return device_plugin(PLAIN, bed.where.log_dir / "device-plugin.log")


LINGERS_S = (11, 15, 19)
"""For so long claims wait for the devices of pods whose containers do not end; the plugin lets them wait 30 s."""


@contextlib.contextmanager
def lingering_pods(bed: TestBed, place: Namespace) -> Iterator[None]:
    """The containers of pods that were deleted by force do not end, because the container runtime hangs.

    Once a minute a kubelet unprepares the claims of deleted pods even so; a restarted one does it a minute later.
    """
    place.apply(template("four", 4, group=4))
    names = [f"before-{seconds}" for seconds in LINGERS_S]
    for name in names:
        made = pod(name, "four", node=PLAIN)
        made["spec"]["containers"][0]["args"][0] += f"  # {name}"
        place.apply(made)
    place.apply(pod("other", "four", node=PLAIN))  # so that no device is free
    for name in (*names, "other"):
        place.wait_ready(name)
    waiting = [pod(f"after-{seconds}", "four", node=PLAIN) for seconds in LINGERS_S]
    on(bed, PLAIN).break_("kubelet")
    place.exec("other", "true")  # the kubelet knows its pods
    with contextlib.ExitStack() as hanging:
        ends = [contextlib.ExitStack() for _ in names]
        for name, end in zip(names, ends, strict=True):
            hanging.enter_context(end).enter_context(stopped(runtime_of(bed, PLAIN, f"  # {name}")))
        place.kubectl("delete", "pods", *names, "--force", "--grace-period=0")
        hanging.enter_context(pods_on_the_node(place, *waiting))
        eventually("all claims wait", lambda: waits_for_devices(bed, place) == len(waiting), 120)
        began = time.monotonic()
        for seconds, end in zip(LINGERS_S, ends, strict=True):
            time.sleep(max(0.0, began + seconds - time.monotonic()))
            end.close()
        yield


def runtime_of(bed: TestBed, node: str, text: str) -> int:
    """Return the container runtime's process of the container on a node that has this text in its command."""
    for pid in cgroups.members(bed.where, node):
        with contextlib.suppress(OSError):
            if text in Path(f"/proc/{pid}/cmdline").read_text():
                (parent,) = re.findall(r"^PPid:\s*(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
                return int(parent)
    raise AssertionError(f"no container on {node} has {text!r} in its command")


def waits_for_devices(bed: TestBed, place: Namespace) -> int:
    """Return how many claims of a namespace the plugin has let wait for a device."""
    name = plugin_pod(bed, PLAIN)["metadata"]["name"]
    lines = bed.kubectl("logs", "--namespace", NAMESPACE, name).splitlines()
    return sum("waiting for a device" in line and f"{place.name}/" in line for line in lines)


# -- of UltraServers ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def no_controller(bed: TestBed, place: Namespace) -> Iterator[None]:
    replicas(bed, 0)
    try:
        yield
    finally:
        replicas(bed, 2)


def unrenewed_lease(bed: TestBed, place: Namespace) -> contextlib.AbstractContextManager[None]:
    """The role no longer allows the controller to renew its Lease."""
    return without_rights(bed, f"role/{CONTROLLER}", "leases", ("update",))


@contextlib.contextmanager
def old_crds(bed: TestBed, place: Namespace) -> Iterator[None]:
    """AWS's CRDs replace ours, and a workload is submitted."""
    bed.kubectl("replace", "-f", str(AWSS_CRDS))
    try:
        place.apply({**workload("job", 4, 1), "apiVersion": "neuron.aws.com/v1beta1"})
        yield
    finally:
        bed.kubectl("replace", "-f", str(OUR_CRDS))
    wait_state(place, "job", "Allocated", 150)
    end_workloads(place)


@contextlib.contextmanager
def cordoned_node(bed: TestBed, place: Namespace) -> Iterator[None]:
    bed.kubectl("cordon", "u2-3")
    try:
        yield
    finally:
        bed.kubectl("uncordon", "u2-3")


@contextlib.contextmanager
def reserved(place: Namespace, made: Obj, state: str) -> Iterator[str]:
    """A workload in a state; yields its first node, if it has one."""
    found = submit(place, made, state)
    try:
        groups = found["status"].get("groups") or [{"nodes": [""]}]
        yield groups[0]["nodes"][0]
    finally:
        end_workloads(place)


@contextlib.contextmanager
def degraded_workload(bed: TestBed, place: Namespace) -> Iterator[None]:
    with reserved(place, workload("degraded", 4, 1), "Allocated") as node, broken(bed, node, "ecc", "3"):
        yield


@contextlib.contextmanager
def degraded_job(bed: TestBed, place: Namespace) -> Iterator[None]:
    """The pods of a workload run, and a device of one is unhealthy."""
    with reserved(place, workload("job", 4, 1), "Allocated") as node:
        place.apply(job("job", 4, "job"))
        wait_available(place, "job")
        with broken(bed, node, "ecc", "3"):
            yield
        wait_reason(place, "job", "NoProblem", "Degraded")
        place.kubectl("delete", "deployment", "job", "--timeout=180s", timeout_s=190)


@contextlib.contextmanager
def taken_template_name(bed: TestBed, place: Namespace) -> Iterator[None]:
    place.apply(template("job"))
    with reserved(place, workload("job", 4, 1), "Failed"):
        yield


@contextlib.contextmanager
def workload_that_waits(bed: TestBed, place: Namespace) -> Iterator[None]:
    """It wants more groups than there are."""
    with reserved(place, workload("job", 4, 3), "Pending"):
        yield


@contextlib.contextmanager
def nodes_without_pods(bed: TestBed, place: Namespace) -> Iterator[None]:
    with reserved(place, workload("job", 4, 1), "Allocated"):
        yield


@contextlib.contextmanager
def queue_without_kueue(bed: TestBed, place: Namespace) -> Iterator[None]:
    """The controller uses queues, and Kueue is not installed."""
    setting = "ultraserverOperator.queues.enabled"
    bed.command("up", "--driver", "daemonset", "--set", f"{setting}=true", timeout_s=600)
    made = workload("job", 4, 1)
    made["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    try:
        place.apply(made)
        yield
    finally:
        end_workloads(place)
        bed.command("up", "--driver", "daemonset", "--set", f"{setting}=false", timeout_s=600)


@contextlib.contextmanager
def failing_tests(bed: TestBed, failing: str) -> Iterator[None]:
    """Tests fail on groups whose first node matches a pattern."""
    setting = "ultraserverOperator.qualification.enabled"
    bed.command("up", "--driver", "daemonset", "--set", f"{setting}=true", timeout_s=600)
    program = f'sleep 2; case "$NEURON_DRA_RANK0_NODE" in {failing}) exit 1;; esac'
    spec = {"instanceTypes": [TRN3], "image": QUICK, "command": ["/bin/bash", "-c", program], "maxGroups": 2}
    kind = "NeuronUltraServerQualification"
    made = {"apiVersion": "neuron.aws.com/v1beta1", "kind": kind, "metadata": {"name": "q"}, "spec": spec}
    bed.kubectl("apply", "-f", "-", stdin=json.dumps(made))
    try:
        yield
    finally:
        bed.kubectl("delete", "nusq", "q", "--timeout=120s", timeout_s=130)
        eventually("no test holds nodes", lambda: slots(bed) == {}, 120)
        bed.command("up", "--driver", "daemonset", "--set", f"{setting}=false", timeout_s=600)


def unqualified_nodes(bed: TestBed, place: Namespace) -> contextlib.AbstractContextManager[None]:
    """Tests of one UltraServer fail."""
    return failing_tests(bed, "u1-*")


def storm_of_failures(bed: TestBed, place: Namespace) -> contextlib.AbstractContextManager[None]:
    """Tests of all UltraServers fail."""
    return failing_tests(bed, "*")


@contextlib.contextmanager
def block_that_ends(bed: TestBed, place: Namespace) -> Iterator[None]:
    """EC2 takes the nodes of a workload back in ten minutes."""
    with reserved(place, workload("job", 4, 1), "Allocated"):
        [nodes] = slots(bed)["job"].values()
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=70)
        bed.kubectl("annotate", "node", *nodes, f"{ANNOTATION}={end:%Y-%m-%dT%H:%M:%SZ}")
        try:
            yield
        finally:
            bed.kubectl("annotate", "node", *nodes, f"{ANNOTATION}-")


@contextlib.contextmanager
def quota_of_templates(bed: TestBed, place: Namespace) -> Iterator[None]:
    """A quota of the namespace does not allow the workload's template."""
    quota = {"hard": {"count/resourceclaimtemplates.resource.k8s.io": "0"}}
    place.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": quota})
    eventually("the quota is in force", lambda: place.get("resourcequota", "none")["status"].get("hard"))
    place.apply(workload("job", 4, 1))
    try:
        yield
    finally:
        place.kubectl("delete", "resourcequota", "none")
    wait_state(place, "job", "Allocated", 150)
    end_workloads(place)


FAULTS: tuple[tuple[str, Fault], ...] = (
    ("NeuronPluginDown", dead_plugin),
    ("NeuronNodeNotRegistered", removed_socket),
    ("NeuronSlicesNotPublished", unwritable_slices),
    ("NeuronDeviceHealthUnknown", hanging_reading),
    ("NeuronFactsUnread", renamed_files),
    ("NeuronClaimsRejected", misspelt_configuration),
    ("NeuronClaimsFail", unreadable_claims),
    ("NeuronCheckpointDamaged", foreign_checkpoint),
    ("NeuronOrphanedClaims", deleted_claim),
    ("NeuronDevicePluginAlive", other_plugin),
    ("NeuronPrepareSlow", lingering_pods),
    ("NeuronUltraServerNoLeader", no_controller),
    ("NeuronUltraServerNoLeader", unrenewed_lease),
    ("NeuronUltraServerCRDsOutdated", old_crds),
    ("NeuronUltraServerDegraded", cordoned_node),
    ("NeuronWorkloadDegraded", degraded_workload),
    ("NeuronWorkloadFailed", taken_template_name),
    ("NeuronWorkloadWaits", workload_that_waits),
    ("NeuronUltraServerUnqualified", unqualified_nodes),
    ("NeuronQualificationStopped", storm_of_failures),
    ("NeuronReservedNodesIdle", nodes_without_pods),
    ("NeuronQueueBlocked", queue_without_kueue),
    ("NeuronBlockEnds", block_that_ends),
    ("NeuronControllerWritesHeld", quota_of_templates),
)


def all_slices(bed: TestBed) -> None:
    """Wait until every node publishes, after a test that kept some from it."""
    every = len(bed.parts.state.nodes)
    eventually("slices of all nodes", lambda: len({*publishers(bed)}) == every, 120)
    settled(on(bed, PLAIN))


def publishers(bed: TestBed) -> list[str]:
    items = bed.get("resourceslices")["items"]
    return [item["spec"]["nodeName"] for item in items if item["spec"].get("devices")]
