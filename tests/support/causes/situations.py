"""The situations: a fleet, a fault in it, and the codes that name this fault."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from neuron_dra.core import names
from neuron_dra.core.wire import Obj
from tests.support import cluster_faults as faults
from tests.support import reported_clusters as reported
from tests.support import small_clusters as small
from tests.support.causes import fleets
from tests.support.causes.after import GAVE_UP
from tests.support.cluster_faults import Fault, all_of, the, waiting

Fleet = Callable[[random.Random], list[Obj]]
PREPARE: Final = "FailedPrepareDynamicResources"
NOT_INJECTED: Final = (
    "CDI device injection failed: unresolvable CDI devices k8s.neuron.aws.com/claim=uid-p-neuron-device-0"
)
SCHEDULER: Final = "Kubernetes' scheduler"
QUOTAS: Final = "the rule of quotas"
DRIVER: Final = "the driver's decoder"
KUBELET: Final = "the kubelet's rules"
MESSAGES: Final = "the component's own message"


@dataclass(frozen=True, slots=True)
class Situation:
    """One fault in one kind of fleet.

    - `codes`: each of them names the fault.
    - `judge`: who says that the pod does not run with the fault.
    - `places`: it adds pods that hold devices, so it needs devices that are free; at most one of these in a cluster.
    - `alone`: beside most others it cannot be, since the scheduler would not have tried the pod.
    """

    name: str
    fleet: Fleet
    fault: Fault
    codes: tuple[str, ...]
    judge: str = SCHEDULER
    places: bool = False
    alone: bool = False


# Devices that others hold.


def held(rng: random.Random, items: list[Obj]) -> None:
    """Other pods hold the free devices, all but at most three of a node."""
    for node in _nodes(items):
        free = [device for devices in fleets.free_groups(items, node).values() for device in devices]
        left = rng.randint(0, 3)
        if len(free) > left:
            items += reported.holder(f"busy-{node}", free[left:], node)


def torn(rng: random.Random, items: list[Obj]) -> None:
    """Each group of four has at most three free devices, and each node at least four."""
    for node in _nodes(items):
        for number, devices in enumerate(fleets.free_groups(items, node).values()):
            if len(devices) == 4:
                items += reported.holder(f"small-{node}-{number}", devices[: rng.randint(1, 2)], node)


def _full(items: list[Obj], name: str) -> list[Obj]:
    """Let pods of this name hold all free devices, and return the pods."""
    made = []
    for node in _nodes(items):
        free = [device for devices in fleets.free_groups(items, node).values() for device in devices]
        if free:
            template, pod, claim = reported.holder(f"{name}-{node}", free, node)
            items += [template, pod, claim]
            made.append(pod)
    return made


def zombie(rng: random.Random, items: list[Obj]) -> None:
    ended = rng.choice(["", "Succeeded", "Failed"])
    for pod in _full(items, "zombie"):
        if ended:
            pod["status"]["phase"] = ended
        else:
            items.remove(pod)


def recreated(rng: random.Random, items: list[Obj]) -> None:
    """Claims are reserved for pods of which only others of the same name are there."""
    for pod in _full(items, "again"):
        pod["metadata"]["uid"] += "-next"
        pod["spec"].pop("nodeName")
        pod["spec"]["schedulingGates"] = [{"name": "example.com/later"}]
        pod["status"] = {"phase": "Pending"}


def terminating_pods(rng: random.Random, items: list[Obj]) -> None:
    for pod in _full(items, "ending"):
        pod["metadata"]["deletionTimestamp"] = reported.SINCE


def terminating_claims(rng: random.Random, items: list[Obj]) -> None:
    for pod in _full(items, "ending"):
        claim = the(items, "ResourceClaim", f"{pod['metadata']['name']}-neurons-x")
        assert claim is not None
        claim["metadata"] |= {
            "deletionTimestamp": reported.SINCE,
            "finalizers": ["resource.kubernetes.io/delete-protection"],
        }


def less_urgent(rng: random.Random, items: list[Obj]) -> None:
    """Pods of a lower priority hold the devices: the scheduler does not preempt them."""
    _full(items, "low")
    waiting(items)["spec"] |= {"priority": 1000000, "priorityClassName": "high"}


def rollout(rng: random.Random, items: list[Obj]) -> None:
    olds = _full(items, "web-old")
    for pod in [*olds, waiting(items)]:
        own = "new" if pod not in olds else "old"
        reported.owned(pod, "ReplicaSet", f"web-{own}", app="web", **{"pod-template-hash": own})


def sets_torn(rng: random.Random, items: list[Obj]) -> None:
    """Single devices are held all over the ring, so that no four free ones are beside each other."""
    first = rng.randint(0, 2)
    for node in _nodes(items):
        for place in range(first, 12, 3):
            items += reported.holder(f"one-{node}-{place}", [f"neuron-device-{place}"], node)


def sets_held(rng: random.Random, items: list[Obj]) -> None:
    for node in _nodes(items):
        items += reported.holder(f"busy-{node}", [f"neuron-device-{place}" for place in range(12)], node)


def _nodes(items: Sequence[Obj]) -> list[str]:
    return [each["metadata"]["name"] for each in all_of(items, "Node")]


# The nodes that would serve the pod, and no others: these are fragmented or in use as before.


Change = Callable[[random.Random, list[Obj], str], None]
"""A fault of one node, by its name."""


def only(change: Change) -> Fault:
    """Return the fault of a change of each node on which the pod would fit."""

    def fault(rng: random.Random, items: list[Obj]) -> None:
        for node in _nodes(items):
            if any(len(devices) >= fleets.WANTED for devices in fleets.free_groups(items, node).values()):
                change(rng, items, node)

    return fault


def close(rng: random.Random, items: list[Obj], name: str) -> None:
    node = reported.node(items, name)
    node["spec"]["unschedulable"] = True
    node["spec"]["taints"] = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]


def taint(rng: random.Random, items: list[Obj], name: str) -> None:
    reported.node(items, name)["spec"]["taints"] = [{"key": "team", "value": "x", "effect": "NoSchedule"}]


def rule(rng: random.Random, items: list[Obj], name: str) -> None:
    faults.device_rule(rng, items)
    items[-1]["metadata"]["name"] = f"out-{name}"
    items[-1]["spec"]["deviceSelector"]["pool"] = name


def sick(rng: random.Random, items: list[Obj], name: str) -> None:
    for device in _devices(items, name):
        device["taints"] = [{"key": "neuron.aws.com/unhealthy", "value": "hbm", "effect": "NoSchedule"}]


def silence(rng: random.Random, items: list[Obj], name: str) -> None:
    items[:] = [each for each in items if each["kind"] != "ResourceSlice" or each["spec"].get("nodeName") != name]


def empty(rng: random.Random, items: list[Obj], name: str) -> None:
    _devices(items, name).clear()


def halve(rng: random.Random, items: list[Obj], name: str) -> None:
    for each in _slices(items, name):
        each["spec"]["pool"]["resourceSliceCount"] = 2


def reserve(rng: random.Random, items: list[Obj], name: str) -> None:
    own = _slices(items, name)
    items[:] = [each for each in items if each not in own] + small.reserved(own, "job")


def crowd(rng: random.Random, items: list[Obj], name: str) -> None:
    """A pod without devices has the CPU of the node."""
    made = small.pod(f"web-{name}", cpu=str(rng.randint(188, 191)), nodeName=name)
    made["status"]["phase"] = "Running"
    waiting(items)["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "5"
    items.append(made)


def _slices(items: Sequence[Obj], name: str) -> list[Obj]:
    return [each for each in all_of(items, "ResourceSlice") if each["spec"].get("nodeName") == name]


def _devices(items: Sequence[Obj], name: str) -> list[Obj]:
    found: list[Obj] = _slices(items, name)[0]["spec"]["devices"]
    return found


# Gangs.


def lonely(rng: random.Random, items: list[Obj]) -> None:
    """Of the gang only the pod itself was created."""
    items[:] = [each for each in items if not each["metadata"]["name"].startswith("q-")]


def place_taken(rng: random.Random, items: list[Obj]) -> None:
    """Another pod has the place of one pod of the gang; the pod itself fits, and not all of them."""
    node = rng.choice(_nodes(items))
    free = max(fleets.free_groups(items, node).values(), key=len)
    items += reported.holder("another", free[: rng.randint(1, 4)], node)


# The pod, its claims and what they name.


def claim_deleted(rng: random.Random, items: list[Obj]) -> None:
    """The pod's own claim is being deleted, and something keeps it."""
    claim = the(items, "ResourceClaim", "p-neurons-x")
    if claim is not None:
        claim["metadata"] |= {"deletionTimestamp": reported.SINCE, "finalizers": ["example.com/keep"]}


def former_owner(rng: random.Random, items: list[Obj]) -> None:
    claim = the(items, "ResourceClaim", "p-neurons-x")
    if claim is not None:
        claim["metadata"]["ownerReferences"][0]["uid"] = "uid-former"


def quota_of_size(rng: random.Random, items: list[Obj]) -> None:
    resource = f"{fleets.SETS}.{names.DRIVER}.deviceclass.resource.k8s.io/devices"
    limit = str(rng.randint(0, 3))
    meta = {"name": "team", "namespace": "default"}
    status = {"hard": {resource: limit}, "used": {resource: limit}}
    items.append(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": meta,
            "spec": {"hard": {resource: limit}},
            "status": status,
        }
    )


def old_kubelets(rng: random.Random, items: list[Obj]) -> None:
    fleets.behind(rng, items, ("v1.35.5", "v1.35.0"))


def timeout(rng: random.Random, items: list[Obj]) -> None:
    message = f"0/2 nodes are available: 2 filter operation aborted: {GAVE_UP}."
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": message}
    waiting(items)["status"]["conditions"] = [condition]


def plugin_down(rng: random.Random, items: list[Obj]) -> None:
    for node in all_of(items, "Node"):
        node["status"]["allocatable"][fleets.PLUGIN] = "0"


def on_a_full_node(rng: random.Random, items: list[Obj]) -> None:
    """The shared claim has devices of node a, and the CPU of this node is used up."""
    _template, pod, claim = reported.holder("w-0", ["neuron-device-0"], "a")
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = str(rng.randint(93, 190))
    pod["spec"]["resourceClaims"] = [{"name": "neurons", "resourceClaimName": "shared"}]
    pod["status"].pop("resourceClaimStatuses", None)
    shared = the(items, "ResourceClaim", "shared")
    assert shared is not None
    shared["status"] = claim["status"]
    items.append(pod)


def on_a_closed_node(rng: random.Random, items: list[Obj]) -> None:
    """The shared claim has devices of node a, which is cordoned."""
    on_a_full_node(rng, items)
    pod, node = the(items, "Pod", "w-0"), the(items, "Node", "a")
    assert pod is not None
    assert node is not None
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1"
    node["spec"]["unschedulable"] = True
    node["spec"]["taints"] = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]


# A pod that has a node.


def _says(reason: str, *texts: str) -> Fault:
    def fault(rng: random.Random, items: list[Obj]) -> None:
        event = reported.event(reason, rng.choice(texts))
        event["metadata"]["name"] = f"p.{len(all_of(items, 'Event'))}"
        items.append(event)

    return fault


def former_pod(rng: random.Random, items: list[Obj]) -> None:
    """The claim is still reserved for the pod of this name before the present one."""
    _says(
        PREPARE, "Failed to prepare dynamic resources: pod p (uid-p) is not allowed to use ResourceClaim p-neurons-x"
    )(rng, items)
    user = {"resource": "pods", "name": rng.choice(["p", "other"]), "uid": "uid-former"}
    reported.claim(items, "p")["status"]["reservedFor"] = [user]


def cdi_file_lost(rng: random.Random, items: list[Obj]) -> None:
    """Another pod of the node has its devices, so the runtime reads the folder."""
    _says("Failed", f"Error: {NOT_INJECTED}")(rng, items)
    items += reported.holder("other", [f"neuron-device-{number}" for number in range(8, 12)], "a")


def cri_dockerd(rng: random.Random, items: list[Obj]) -> None:
    waiting(items)["status"] |= {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    version = rng.choice(["docker://29.4.0", "docker://24.0.7"])
    for node in _its_node(items):
        node["status"].setdefault("nodeInfo", {})["containerRuntimeVersion"] = version


def not_ready(rng: random.Random, items: list[Obj]) -> None:
    message = "Kubelet stopped posting node status."
    for node in _its_node(items):
        node["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "message": message}]


def _its_node(items: Sequence[Obj]) -> list[Obj]:
    """Return the pod's node, if another fault has not removed it."""
    return [each for each in all_of(items, "Node") if each["metadata"]["name"] == "a"]


def node_gone(rng: random.Random, items: list[Obj]) -> None:
    items[:] = [each for each in items if each not in _its_node(items)]


def image_missing(rng: random.Random, items: list[Obj]) -> None:
    state = {"waiting": {"reason": rng.choice(["ImagePullBackOff", "ErrImagePull"]), "message": "not found"}}
    waiting(items)["status"]["containerStatuses"] = [{"name": "main", "state": state}]


NO_FILE: Final = _says(
    "Failed",
    'Error: failed to stat CDI host device "/dev/neuron5": no such file or directory',
    "Error: CDI device injection failed: failed to inject devices: lstat /dev/neuron5: no such file or directory",
    'Error: while adding custom device "/dev/neuron5": no such file or directory',
)
NO_DRIVER: Final = _says(
    PREPARE,
    "Failed to prepare dynamic resources: prepare dynamic resources: DRA driver neuron.aws.com is not registered",
)
WRONG_LNC: Final = _says(
    PREPARE,
    "Failed to prepare dynamic resources: prepare claims: error applying config: LNC value is not configurable for "
    "instance type trn1.32xlarge",
)

IN_USE: Final = ("DevicesInUse", "Fragmented")
"""Whether enough devices are left on a node, and too few of them together, depends on the fleet."""


def _waiting(name: str, fault: Fault, *codes: str, **more: Any) -> Situation:
    return Situation(name, fleets.waiting, fault, codes, **more)


def _started(name: str, fault: Fault, *codes: str, judge: str = MESSAGES) -> Situation:
    return Situation(name, fleets.started, fault, codes, judge)


def _sizes(name: str, fault: Fault, *codes: str, **more: Any) -> Situation:
    return Situation(name, fleets.sizes, fault, codes, **more)


SITUATIONS: Final = (
    _waiting("selector: another instance type", faults.wrong_type, "SelectorMatchesNothing"),
    _waiting("selector: an attribute that is absent", faults.wrong_attribute, "SelectorFails"),
    _waiting("selector: the same behind has()", faults.guarded_attribute, "SelectorMatchesNothing"),
    _waiting("selector: no valid CEL", faults.invalid_selector, "SelectorInvalid"),
    _waiting("more devices than a node has", faults.too_many, "CountTooLarge"),
    _waiting("more devices than a group has", faults.group_too_small, "GroupTooSmall"),
    _waiting("a class that does not exist", faults.class_renamed, "ClassMissing"),
    _waiting("the class was deleted", faults.class_removed, "ClassMissing"),
    _waiting("a template that does not exist", faults.template_renamed, "TemplateMissing"),
    _waiting("a template in another namespace", faults.template_elsewhere, "TemplateMissing"),
    _waiting("the pod's claim was deleted", faults.claim_deleted, "ClaimMissing"),
    _waiting("the pod's claim is being deleted", claim_deleted, "ClaimDeleted"),
    _waiting("the claim of a former pod", former_owner, "ClaimOfAnother"),
    _waiting("cordoned", faults.cordoned, "NodeExcluded"),
    _waiting("tainted nodes", faults.node_taint, "NodeExcluded"),
    _waiting("node selector", faults.node_selector, "NodeExcluded"),
    _waiting("devices in use", held, *IN_USE, places=True),
    _waiting("fragmentation", torn, "Fragmented", places=True),
    _waiting("a DeviceTaintRule", faults.device_rule, "DeviceTainted"),
    _waiting("a DeviceTaintRule with an empty selector", faults.empty_rule, "DeviceTainted"),
    _waiting("unhealthy devices", faults.unhealthy, "DeviceTainted"),
    _waiting("no slices", faults.no_slices, "NoDevicesPublished"),
    _waiting("empty slices", faults.empty_slices, "NoDevicesPublished"),
    _waiting("incomplete pools", faults.incomplete, "PoolIncomplete"),
    _waiting("reserved nodes", faults.reserved, "NodeReserved"),
    _waiting("no CPU, memory or EFA", faults.no_room, "ResourcesLacking"),
    _waiting("a scheduling gate", faults.gate, "SchedulingGate"),
    _waiting("Kueue's gate", faults.kueue, "KueueWaits"),
    _waiting("quota", faults.quota, "QuotaExceeded", judge=QUOTAS),
    _waiting("configuration", faults.configuration, "DriverRejects", judge=DRIVER),
    _waiting("another scheduler", faults.no_scheduler, "NoScheduler"),
    _waiting("the scheduler's time-out", timeout, "SchedulerTimeout", judge=MESSAGES, alone=True),
    _waiting("spec.nodeName", faults.node_name, "SchedulerBypassed", judge=KUBELET),
    _waiting("zombie claims", zombie, "ClaimNotReleased", places=True),
    _waiting("zombie claims of recreated pods", recreated, "ClaimNotReleased", places=True),
    _waiting("pods that are being deleted", terminating_pods, *IN_USE, places=True),
    _waiting("claims that are being deleted", terminating_claims, *IN_USE, places=True),
    _waiting("holders of lower priority", less_urgent, *IN_USE, places=True),
    _waiting("a rollout", rollout, "RolloutWaits", places=True),
    _waiting("serving nodes: cordoned", only(close), "NodeExcluded"),
    _waiting("serving nodes: tainted", only(taint), "NodeExcluded"),
    _waiting("serving nodes: a DeviceTaintRule", only(rule), "DeviceTainted"),
    _waiting("serving nodes: unhealthy devices", only(sick), "DeviceTainted"),
    _waiting("serving nodes: no slices", only(silence), "NoDevicesPublished"),
    _waiting("serving nodes: empty slices", only(empty), "NoDevicesPublished"),
    _waiting("serving nodes: incomplete pools", only(halve), "PoolIncomplete"),
    _waiting("serving nodes: reserved", only(reserve), "NodeReserved"),
    _waiting("serving nodes: no CPU", only(crowd), "ResourcesLacking"),
    _sizes("sizes: fragmentation", sets_torn, "Fragmented", places=True),
    _sizes("sizes: devices in use", sets_held, "DevicesInUse", places=True),
    _sizes("sizes: quota", quota_of_size, "QuotaExceeded", judge=QUOTAS),
    _sizes("sizes: old kubelets", old_kubelets, "KubeletRejectsName", judge=KUBELET),
    _sizes("sizes: cordoned", faults.cordoned, "NodeExcluded"),
    _sizes("sizes: a DeviceTaintRule", faults.device_rule, "DeviceTainted"),
    Situation("gang: not all pods exist", fleets.gang, lonely, ("GangWaits",)),
    Situation("gang: not all pods fit", fleets.gang, place_taken, ("GangWaits",), places=True),
    Situation("gang: cordoned", fleets.gang, faults.cordoned, ("NodeExcluded",)),
    Situation("the device plugin is down", fleets.plugin, plugin_down, ("DevicePluginDown",)),
    Situation("device plugin: cordoned", fleets.plugin, faults.cordoned, ("NodeExcluded",)),
    Situation("a shared claim of a full node", fleets.shared, on_a_full_node, ("ResourcesLacking",), places=True),
    Situation(
        "a shared claim of a cordoned node",
        fleets.shared,
        on_a_closed_node,
        ("NodeExcluded", "AllocatedElsewhere"),
        places=True,
    ),
    Situation("shared claim: a DeviceTaintRule", fleets.shared, faults.device_rule, ("DeviceTainted",)),
    _started("started: reserved for a former pod", former_pod, "ClaimNotReserved", judge=KUBELET),
    _started("started: a missing /dev file", NO_FILE, "DeviceFileMissing"),
    _started("started: the CDI file is lost", cdi_file_lost, "CdiFileMissing"),
    _started("started: the runtime finds no CDI devices", _says("Failed", f"Error: {NOT_INJECTED}"), "RuntimeRejects"),
    _started("started: cri-dockerd", cri_dockerd, "RuntimeWithoutCdi", judge=KUBELET),
    _started("started: the driver is not registered", NO_DRIVER, "DriverNotRegistered"),
    _started("started: the driver rejects the LNC", WRONG_LNC, "DriverRejects"),
    _started("started: the node is not ready", not_ready, "NodeNotReady", judge=KUBELET),
    _started("started: the node is gone", node_gone, "NodeGone", judge=KUBELET),
    _started("started: no image", image_missing, "ContainerProblem", judge=KUBELET),
)  # fmt: skip
"""All situations; those of one fleet are combined in double faults."""
