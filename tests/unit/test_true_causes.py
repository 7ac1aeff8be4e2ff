"""`why` on reported clusters: the first line is the true cause, and changes are in Kubernetes' words (34, 1)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.core.wire import Obj
from tests.support import reported_clusters as reported
from tests.support import small_clusters as small
from tests.support.cluster_faults import all_of
from tests.support.questions import ask, snapshot
from tests.support.reported_clusters import event, pod, started

PREPARE = "FailedPrepareDynamicResources"
FAILED = "Failed to prepare dynamic resources:"
NOT_INJECTED = "CDI device injection failed: unresolvable CDI devices k8s.neuron.aws.com/claim=uid-p-neuron-device-0"


def prescheduled() -> list[Obj]:
    """A pod with spec.nodeName in its manifest: no scheduler allocates its claim, and the kubelet rejects it."""
    items = reported.asks(small.base("a", "b"), 4)
    pod(items)["spec"]["nodeName"] = "a"
    pod(items)["status"]["conditions"] = []
    text = "pod p (uid-p) is not allowed to use ResourceClaim p-neurons-x (uid-c)"
    return [*items, event(PREPARE, f"{FAILED} {text}")]


def of_a_former_pod() -> list[Obj]:
    """A claim that is still reserved for the pod of this name before the present one."""
    items = started(event(PREPARE, f"{FAILED} pod p (uid-p) is not allowed to use ResourceClaim p-neurons-x (uid-c)"))
    reported.claim(items, "p")["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "uid-former"}]
    return items


def of_a_former_owner() -> list[Obj]:
    items = reported.asks(small.base("a"), 4)
    reported.claim(items, "p")["metadata"]["ownerReferences"][0]["uid"] = "uid-former"
    return items


def no_file(text: str) -> Callable[[], list[Obj]]:
    return lambda: started(event("Failed", f"Error: {text}"))


def cdi_file_lost() -> list[Obj]:
    """Another pod of the node has its devices, so the runtime reads the folder."""
    items = started(event("Failed", f"Error: {NOT_INJECTED}"))
    others = [f"neuron-device-{number}" for number in range(8, 12)]
    return [*items, *reported.holder("other", others, "a")]


def runtime(version: str, phase: str = "Running") -> Callable[[], list[Obj]]:
    """A pod that runs on a node whose runtime injects no CDI devices."""

    def made() -> list[Obj]:
        items = started()
        pod(items)["status"] |= {"phase": phase, "conditions": [{"type": "Ready", "status": "True"}]}
        reported.node(items)["status"]["nodeInfo"] = {
            "kubeletVersion": "v1.36.0",
            "containerRuntimeVersion": version,
        }
        return items

    return made


def never_created() -> list[Obj]:
    """A pod that is deleted while its claim was never created, on a kubelet that retries for ever."""
    made = small.template("four", 4)
    waiting = small.pod("p", "four", nodeName="a")
    waiting["metadata"]["deletionTimestamp"] = reported.SINCE
    items = [*small.base("a"), made, waiting]
    reported.node(items)["status"]["nodeInfo"] = {"kubeletVersion": "v1.36.0"}
    text = 'error killing pod: unprepare dynamic resources: pod "default/p": ResourceClaim not created yet'
    return [*items, event("FailedKillPod", text)]


def terminating_holder() -> list[Obj]:
    items = reported.full()
    pod(items, "old")["metadata"]["deletionTimestamp"] = reported.SINCE
    return items


def terminating_claim() -> list[Obj]:
    items = reported.full()
    reported.claim(items, "old")["metadata"]["deletionTimestamp"] = reported.SINCE
    return items


def zombie(phase: str = "") -> Callable[[], list[Obj]]:
    """A claim whose pod is gone or has ended, and that kube-controller-manager has not released."""

    def made() -> list[Obj]:
        items = reported.full()
        if phase:
            pod(items, "old")["status"] = {**pod(items, "old")["status"], "phase": phase}
            return items
        return [each for each in items if each is not pod(items, "old")]

    return made


def recreated_holder() -> list[Obj]:
    """The claim is reserved for a pod of which only one with another UID is there."""
    items = reported.full()
    pod(items, "old")["metadata"]["uid"] = "uid-next"
    return items


def urgent() -> list[Obj]:
    return reported.full(priority=1000000, priorityClassName="high")


def quota_of_a_size() -> list[Obj]:
    """A quota on the class of a size, for a pod that requests the size by its limits."""
    resource = "connected-4.neuron.aws.com.deviceclass.resource.k8s.io/devices"
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "team", "namespace": "default"},
        "spec": {"hard": {resource: "2"}},
        "status": {"hard": {resource: "2"}, "used": {resource: "2"}},
    }
    wanted = reported.limits("deviceclass.resource.kubernetes.io/connected-4.neuron.aws.com")
    return [*reported.sets("connected-4"), quota, wanted]


def kueue(*conditions: Obj) -> Callable[[], list[Obj]]:
    def made() -> list[Obj]:
        items = reported.asks(small.base("a"), 4)
        pod(items)["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
        if not conditions:
            return items
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p"}
        workload = {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "Workload",
            "metadata": {"name": "pod-p-1", "namespace": "default", "ownerReferences": [owner]},
            "spec": {"queueName": "team"},
            "status": {"conditions": list(conditions)},
        }
        return [*items, workload]

    return made


QUOTA_RESERVED = {
    "type": "QuotaReserved",
    "status": "False",
    "reason": "Pending",
    "message": "couldn't assign flavors to pod set main: insufficient unused quota for neurons, 4 more needed",
}


def empty_rule() -> list[Obj]:
    spec = {"deviceSelector": {}, "taint": {"key": "example.com/out", "effect": "NoSchedule"}}
    rule = {"apiVersion": small.API, "kind": "DeviceTaintRule", "metadata": {"name": "all"}, "spec": spec}
    return [*reported.asks(small.base("a"), 4), rule]


def empty_slice() -> list[Obj]:
    items = reported.asks(small.base("a"), 4)
    for item in all_of(items, "ResourceSlice"):
        item["spec"]["devices"] = []
    return items


def plugin_down() -> list[Obj]:
    """The kubelet leaves 0 behind when a device plugin ends."""
    items = [*small.base("a"), reported.limits("aws.amazon.com/neuron")]
    reported.node(items)["status"]["allocatable"]["aws.amazon.com/neuron"] = "0"
    reported.node(items)["status"]["capacity"] = {"aws.amazon.com/neuron": "16"}
    return [each for each in items if each["kind"] != "ResourceSlice"]


def gang() -> list[Obj]:
    """Pods of a group that share one claim, which a known fault of the scheduler keeps from all of them."""
    said = "0/2 nodes are available: resource claim default/single is in the process of being allocated."
    items = small.base("a", "b")
    spec = {
        "devices": {"requests": [{"name": "neurons", "exactly": {"deviceClassName": "neuron.aws.com", "count": 4}}]}
    }
    meta = {"name": "single", "namespace": "default"}
    items.append({"apiVersion": small.API, "kind": "ResourceClaim", "metadata": meta, "spec": spec})
    for name in ("p", "q"):
        made = small.pod(name, schedulingGroup={"podGroupName": "g"})
        made["spec"]["resourceClaims"] = [{"name": "neurons", "resourceClaimName": "single"}]
        items.append(reported.waits(made, said))
    return items


def shared_claim_of_one_node() -> list[Obj]:
    """Pods that want a whole node each, and share a claim, whose devices are on one node."""
    items = [*small.base("a", "b"), *reported.holder("w-0", ["neuron-device-0"], "a")]
    pod(items, "w-0")["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "190"
    reported.claim(items, "w-0")["metadata"] = {"name": "shared", "namespace": "default"}
    made = small.pod("p", cpu="100")
    made["spec"]["resourceClaims"] = [{"name": "neurons", "resourceClaimName": "shared"}]
    return [*items, reported.waits(made, "0/2 nodes are available: 1 Insufficient cpu, 1 cannot allocate all claims.")]


def pod_group() -> list[Obj]:
    """A claim that is reserved for a PodGroup: one pod of it runs, and the other waits for CPU."""
    items = small.base("a")
    reported.node(items)["status"]["allocatable"]["cpu"] = "1"
    group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "workers", "uid": "uid-group"}
    owner = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "name": "workers", "uid": "uid-group"}
    made, first, own = reported.holder("p-0", [f"neuron-device-{number}" for number in range(4)], "a")
    own["metadata"] = {"name": "workers-neurons", "namespace": "default", "ownerReferences": [owner]}
    own["status"]["reservedFor"] = [group]
    items += [made, first, own]
    for name in ("p", "p-0"):
        if name == "p":
            said = "0/1 nodes are available: 1 Insufficient cpu."
            items.append(reported.waits(small.pod(name, "p-0-devices"), said))
        found = pod(items, name)
        found["spec"]["schedulingGroup"] = {"podGroupName": "workers"}
        found["status"]["resourceClaimStatuses"] = [{"name": "neurons", "resourceClaimName": "workers-neurons"}]
    return items


def counts_disagree() -> list[Obj]:
    items = small.base("a")
    first = all_of(items, "ResourceSlice")[0]
    second = {**first, "metadata": {"name": "a-second"}, "spec": {**first["spec"]}}
    devices = first["spec"]["devices"]
    first["spec"] = {
        **first["spec"],
        "devices": devices[:8],
        "pool": {**first["spec"]["pool"], "resourceSliceCount": 2},
    }
    second["spec"] = {
        **second["spec"],
        "devices": devices[8:],
        "pool": {**first["spec"]["pool"], "resourceSliceCount": 3},
    }
    text = "ResourceSlices in the pool generation declare inconsistent resourceSliceCount"
    return reported.asks(
        [*items, second], 4, said=f"invalid resource pools were encountered (neuron.aws.com/a: {text})"
    )


def fragmented_sets() -> list[Obj]:
    """Single devices are held all over the ring: eight are free, no four beside each other."""
    items = reported.sets("connected-1", "connected-4")
    for place in (0, 3, 6, 9):
        items += reported.holder(f"one-{place}", [f"neuron-device-{place}"], "inf2-0")
    return [*items, reported.limits("deviceclass.resource.kubernetes.io/connected-4.neuron.aws.com")]


def unclaimed() -> list[Obj]:
    """A claim that has devices and that no pod uses, with the pods in the file."""
    items = reported.full()
    reported.claim(items, "old")["status"].pop("reservedFor")
    reported.claim(items, "old")["metadata"].pop("ownerReferences")
    return [each for each in items if each is not pod(items, "old")]


def row(name: str, items: Callable[[], list[Obj]], text: str, change: str = "", about: str = "pod/p") -> Any:
    return pytest.param(about, items, text, change, id=name)


CAUSES = [
    row(
        "fragmentation",
        reported.fragmented,
        "8 devices of node a are free, and no 4 of them have the same resource.aws.com/devicegroup4_id",
        "kubectl delete pod small-",
    ),
    row("fragmented sets", fragmented_sets, "8 devices of node inf2-0 are free, and no 4 of them are connected",
        "kubectl delete pod one-"),
    row("devices in use", reported.full, "node a has too few free devices: default/old holds 16",
        "kubectl delete pod old -n default"),
    row("spec.nodeName", prescheduled, "its spec.nodeName keeps it from the scheduler, so nothing allocates its claim",
        "nodeSelector"),
    row("reserved for a former pod", of_a_former_pod,
        "the kubelet of node a rejects it: the claim p-neurons-x is reserved for a former pod p"),
    row("claim of a former pod", of_a_former_owner, "belongs to a former pod of this name"),
    row("no /dev file, containerd",
        no_file('failed to stat CDI host device "/dev/neuron5": no such file or directory'),
        "/dev/neuron5 is missing on node a"),
    row("no /dev file, CRI-O",
        no_file("CDI device injection failed: failed to inject devices: lstat /dev/neuron5: no such file or directory"),
        "/dev/neuron5 is missing on node a"),
    row("no /dev file, runc",
        no_file('while adding custom device "/dev/neuron5": no such file or directory'),
        "/dev/neuron5 is missing on node a"),
    row("CDI file lost", cdi_file_lost, "the CDI file of its claim is missing on node a"),
    row("CDI file lost, or runtime", lambda: started(event("Failed", f"Error: {NOT_INJECTED}")),
        "the runtime of node a finds no CDI devices of its claim"),
    row("cri-dockerd", runtime("docker://29.4.0"), "docker://29.4.0 of node a injects no CDI devices"),
    row("containerd 1.6", runtime("containerd://1.6.36"), "containerd://1.6.36 of node a injects no CDI devices"),
    row("node with cri-dockerd", runtime("docker://29.4.0"), "docker://29.4.0 injects no CDI devices", about="node/a"),
    row("claim never created", never_created,
        "its claim neurons was never created, and kubelet v1.36.0 of node a waits for it forever"),
    row("terminating holder", terminating_holder,
        "default/old holds 16, and is being deleted since 2026-03-01T12:00:00Z"),
    row("zombie claim", zombie(),
        "the claim default/old-neurons-x holds 16 devices of node a for pod old, which no longer exists: "
        "kube-controller-manager has not released it"),
    row("zombie claim of a pod that ended", zombie("Succeeded"),
        "the claim default/old-neurons-x holds 16 devices of node a for pod old, which has ended: "
        "kube-controller-manager has not released it"),
    row("zombie claim of a pod that was recreated", recreated_holder,
        "for pod old, which no longer exists"),
    row("rollout", reported.rollout, "it waits for devices of old, a pod of the same Deployment web",
        "kubectl patch deployment web -n default"),
    row("quota on a size", quota_of_a_size,
        "ResourceQuota default/team allows 2 of connected-4.neuron.aws.com.deviceclass.resource.k8s.io/devices: "
        "2 used, 1 more needed", "raise connected-4"),
    row("Kueue", kueue(QUOTA_RESERVED),
        "Kueue has not admitted it: couldn't assign flavors to pod set main: insufficient unused quota for neurons"),
    row("Kueue, not seen", kueue(), "kueue.x-k8s.io/admission"),
    row("empty taint rule", empty_rule, "node a has too few untainted devices: example.com/out",
        "DeviceTaintRule all"),
    row("empty slice", empty_slice, "publishes no devices"),
    row("node with an empty slice", empty_slice, "its slice has no devices", about="node/a"),
    row("device plugin down", plugin_down, "the Neuron device plugin of node a does not run"),
    row("gang that shares a claim", gang,
        "a known fault of the scheduler: pods of a PodGroup that share a new claim keep it from each other "
        "(kubernetes/kubernetes#137617)"),
    row("shared claim of one node", shared_claim_of_one_node,
        "its claim shared has devices of node a alone, which has too little cpu"),
    row("PodGroup", pod_group, "its claim workers-neurons has devices of node a alone, which has too little cpu"),
    row("claim of a PodGroup", pod_group, "has devices 0-3 of a, for PodGroup workers (pods p, p-0)",
        about="claim/workers-neurons"),
    row("claim of no pod", unclaimed, "and no pod uses it", about="claim/old-neurons-x"),
    row("slices disagree", counts_disagree, "a-second"),
]  # fmt: skip


@pytest.mark.parametrize(("about", "items", "text", "change"), CAUSES)
def test_first_line_is_the_true_cause(
    about: str,
    items: Callable[[], list[Obj]],
    text: str,
    change: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = ask(capsys, "why", about, "-n", "default", "--snapshot", snapshot(tmp_path, items()))
    assert text in found.first, found.out
    assert change in found.text, found.out


def test_priority_is_said_not_to_help(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "why", "pod/p", "--snapshot", snapshot(tmp_path, urgent()))
    assert "the scheduler does not preempt pods for their devices" in found.text, found.out


@pytest.mark.parametrize(
    ("items", "wrong"),
    [
        pytest.param(terminating_holder, "kubectl delete pod old", id="pod that is being deleted"),
        pytest.param(zombie(), "kubectl delete", id="claim that only a controller releases"),
        pytest.param(reported.full, "move pod", id="Kubernetes moves no pods"),
    ],
)  # fmt: skip
def test_changes_that_do_not_help_are_not_proposed(
    items: Callable[[], list[Obj]], wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ask(capsys, "why", "pod/p", "--snapshot", snapshot(tmp_path, items()))
    assert wrong not in found.text, found.out


def test_pods_that_were_not_read_may_use_a_claim(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = [each for each in unclaimed() if each["kind"] != "Pod"]
    found = ask(capsys, "why", "claim/old-neurons-x", "--snapshot", snapshot(tmp_path, items))
    assert "no pod uses it" not in found.text, found.out


def test_pod_in_deletion_that_has_its_claim_waits_for_its_kubelet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = reported.full()
    pod(items, "old")["metadata"]["deletionTimestamp"] = reported.SINCE
    found = ask(capsys, "why", "pod/old", "--snapshot", snapshot(tmp_path, items))
    assert "ends when the kubelet of node a has stopped it" in found.first
