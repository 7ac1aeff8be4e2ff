"""Faults of a small cluster in which the pod default/p would run: each gives its objects and the codes of its cause."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

from neuron_dra.core import names
from neuron_dra.core.wire import Obj
from tests.support import small_clusters as small

GROUP = "resource.aws.com/devicegroup4_id"
GUARD = f"has(device.attributes['{names.DRIVER}'].instanceType) && "
SELECTOR = f"{GUARD}device.attributes['{names.DRIVER}'].instanceType == 'trn2.48xlarge'"

Fault = Callable[[random.Random, list[Obj]], None]
"""Changes the objects in place."""


def healthy() -> list[Obj]:
    """Two nodes with room, a small pod on one of them, and the waiting pod with its claim."""
    items = small.base("a", "b")
    items += small.running(items, "other", 4, "a", group=GROUP)
    made = small.template("four", 4, group=GROUP, cel=SELECTOR)
    waiting = small.pod("p", "four")
    waiting["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}
    ]
    return [*items, made, *small.created(waiting, made)]


def all_of(items: Sequence[Obj], kind: str) -> list[Obj]:
    return [item for item in items if item["kind"] == kind]


def the(items: Sequence[Obj], kind: str, name: str) -> Obj | None:
    return next((item for item in all_of(items, kind) if item["metadata"]["name"] == name), None)


def requests(items: Sequence[Obj]) -> list[Obj]:
    """The request in the template of the pod, and in its claim."""
    found = []
    for kind, name in (("ResourceClaimTemplate", "four"), ("ResourceClaim", "p-neurons-x")):
        item = the(items, kind, name)
        if item is not None:
            spec = item["spec"]["spec"] if kind == "ResourceClaimTemplate" else item["spec"]
            found.append(spec["devices"]["requests"][0]["exactly"])
    return found


def change_requests(items: Sequence[Obj], **fields: Any) -> None:
    for request in requests(items):
        request.update(copy.deepcopy(fields))


def selector(items: Sequence[Obj], text: str) -> None:
    change_requests(items, selectors=[{"cel": {"expression": text}}])


def waiting(items: Sequence[Obj]) -> Obj:
    found = the(items, "Pod", "p")
    assert found is not None
    return found


def uncreate(items: list[Obj]) -> None:
    """Remove the pod's claim, as if it had not been created yet."""
    items[:] = [item for item in items if item["metadata"]["name"] != "p-neurons-x"]
    waiting(items)["status"].pop("resourceClaimStatuses", None)


def uncreate_only(rng: random.Random, items: list[Obj]) -> None:
    uncreate(items)


def wrong_type(rng: random.Random, items: list[Obj]) -> None:
    selector(items, SELECTOR.replace("trn2.48xlarge", rng.choice(["trn2.48xlage", "trn1.32xlarge", "trn2.48"])))


def wrong_attribute(rng: random.Random, items: list[Obj]) -> None:
    name = rng.choice(["topologyx", "instancetype", "deviceid", "nothing"])
    selector(items, f"device.attributes['{names.DRIVER}'].{name} == 0")


def guarded_attribute(rng: random.Random, items: list[Obj]) -> None:
    name = rng.choice(["topology_z", "instancesType", "rowNumber"])
    attribute = f"device.attributes['{names.DRIVER}'].{name}"
    selector(items, f"has({attribute}) && {attribute} == 1")


def invalid_selector(rng: random.Random, items: list[Obj]) -> None:
    selector(items, rng.choice(["device.driver ==", "device.nothing == 1", "'a'"]))


def too_many(rng: random.Random, items: list[Obj]) -> None:
    change_requests(items, count=rng.randint(17, 32))


def group_too_small(rng: random.Random, items: list[Obj]) -> None:
    change_requests(items, count=rng.randint(5, 12))


def class_renamed(rng: random.Random, items: list[Obj]) -> None:
    change_requests(items, deviceClassName=rng.choice(["neuron.aws.co", "neurons.aws.com", "gpu.example.com"]))


def class_removed(rng: random.Random, items: list[Obj]) -> None:
    items[:] = [item for item in items if item["kind"] != "DeviceClass" or item["metadata"]["name"] != names.DRIVER]


def template_renamed(rng: random.Random, items: list[Obj]) -> None:
    uncreate(items)
    entry = waiting(items)["spec"]["resourceClaims"][0]
    entry["resourceClaimTemplateName"] = rng.choice(["fuor", "foru", "quite-another"])


def template_elsewhere(rng: random.Random, items: list[Obj]) -> None:
    uncreate(items)
    found = the(items, "ResourceClaimTemplate", "four")
    if found is not None:
        found["metadata"]["namespace"] = "ml"


def claim_deleted(rng: random.Random, items: list[Obj]) -> None:
    items[:] = [item for item in items if item["metadata"]["name"] != "p-neurons-x"]


def cordoned(rng: random.Random, items: list[Obj]) -> None:
    for item in all_of(items, "Node"):
        item["spec"]["unschedulable"] = True
        key = "node.kubernetes.io/unschedulable"
        item["spec"].setdefault("taints", []).append({"key": key, "effect": "NoSchedule"})


def node_taint(rng: random.Random, items: list[Obj]) -> None:
    key = rng.choice(["dedicated", "node.kubernetes.io/not-ready"])
    for item in all_of(items, "Node"):
        item["spec"].setdefault("taints", []).append({"key": key, "value": "x", "effect": "NoSchedule"})


def node_selector(rng: random.Random, items: list[Obj]) -> None:
    key = rng.choice(["node.kubernetes.io/instance-type", "pool"])
    waiting(items)["spec"]["nodeSelector"] = {key: "trn2.48xlage"}


def held(rng: random.Random, items: list[Obj]) -> None:
    for name, most in (("a", 12), ("b", 16)):
        items += small.running(items, f"busy-{name}", rng.choice([most - 2, most - 1, most]), name)


def held_in_part(rng: random.Random, items: list[Obj]) -> None:
    """Leave devices free, but no four of a group."""
    for name, groups in (("a", 3), ("b", 4)):
        for number in range(groups):
            items += small.running(
                items, f"part-{name}-{number}", 3 if number else rng.choice([3, 4]), name, group=GROUP
            )


def device_rule(rng: random.Random, items: list[Obj]) -> None:
    items.append(
        {
            "apiVersion": small.API,
            "kind": "DeviceTaintRule",
            "metadata": {"name": "maintenance"},
            "spec": {
                "deviceSelector": {"driver": names.DRIVER},
                "taint": {"key": "example.com/maintenance", "value": "x", "effect": "NoSchedule"},
            },
        }
    )


def unhealthy(rng: random.Random, items: list[Obj]) -> None:
    keep = rng.choice([0, 2])
    for item in all_of(items, "ResourceSlice"):
        for device in item["spec"]["devices"][keep:]:
            device["attributes"]["unhealthy"] = {"string": "hbm"}
            device["taints"] = [{"key": "neuron.aws.com/unhealthy", "value": "hbm", "effect": "NoSchedule"}]


def no_slices(rng: random.Random, items: list[Obj]) -> None:
    items[:] = [item for item in items if item["kind"] != "ResourceSlice"]


def incomplete(rng: random.Random, items: list[Obj]) -> None:
    for item in all_of(items, "ResourceSlice"):
        item["spec"]["pool"]["resourceSliceCount"] = 2


def reserved(rng: random.Random, items: list[Obj]) -> None:
    slices = all_of(items, "ResourceSlice")
    items[:] = [item for item in items if item["kind"] != "ResourceSlice"] + small.reserved(slices, "job")


def no_room(rng: random.Random, items: list[Obj]) -> None:
    resource, amount = rng.choice([("cpu", "400"), ("memory", "4000Gi"), ("example.com/efa", "1")])
    waiting(items)["spec"]["containers"][0]["resources"]["requests"][resource] = amount


def gate(rng: random.Random, items: list[Obj]) -> None:
    waiting(items)["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]


def quota(rng: random.Random, items: list[Obj]) -> None:
    uncreate(items)
    resource, limit = rng.choice(
        [("count/resourceclaims.resource.k8s.io", 1), (f"{names.DRIVER}.deviceclass.resource.k8s.io/devices", 6)]
    )
    used = 1 if limit == 1 else 4
    items.append(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "team", "namespace": "default"},
            "spec": {"hard": {resource: str(limit)}},
            "status": {"hard": {resource: str(limit)}, "used": {resource: str(used)}},
        }
    )


def configuration(rng: random.Random, items: list[Obj]) -> None:
    parameters = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": 2}
    parameters.update(rng.choice([{"logicalNeuronCore": 3}, {"logicalNeuronCores": 2}, {"kind": "NeuronConf"}]))
    for kind, name in (("ResourceClaimTemplate", "four"), ("ResourceClaim", "p-neurons-x")):
        item = the(items, kind, name)
        if item is not None:
            spec = item["spec"]["spec"] if kind == "ResourceClaimTemplate" else item["spec"]
            spec["devices"]["config"] = [{"opaque": {"driver": names.DRIVER, "parameters": parameters}}]


def no_scheduler(rng: random.Random, items: list[Obj]) -> None:
    waiting(items)["spec"]["schedulerName"] = "my-scheduler"
    waiting(items)["status"].pop("conditions", None)


def timeout(rng: random.Random, items: list[Obj]) -> None:
    message = "0/2 nodes are available: 2 filter operation aborted: context deadline exceeded."
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": message}
    waiting(items)["status"]["conditions"] = [condition]


def filled(items: list[Obj], name: str) -> list[str]:
    """Fill both nodes with pods of this name, and return the names of the pods."""
    made = []
    for node, count in (("a", 12), ("b", 16)):
        items += small.running(items, f"{name}-{node}", count, node)
        made.append(f"{name}-{node}")
    return made


def zombie(rng: random.Random, items: list[Obj]) -> None:
    """Pods that hold all devices are gone, or have ended, and their claims were not released."""
    ended = rng.choice(["", "Succeeded", "Failed"])
    for name in filled(items, "zombie"):
        pod = the(items, "Pod", name)
        assert pod is not None
        if ended:
            pod["status"]["phase"] = ended
        else:
            items.remove(pod)


def terminating(rng: random.Random, items: list[Obj]) -> None:
    for name in filled(items, "ending"):
        pod = the(items, "Pod", name)
        assert pod is not None
        pod["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"


def rollout(rng: random.Random, items: list[Obj]) -> None:
    """The pod is the new one of a Deployment, whose old pods hold all devices."""
    for name in [*filled(items, "web-old"), "p"]:
        pod = the(items, "Pod", name)
        assert pod is not None
        own = "new" if name == "p" else "old"
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"web-{own}", "uid": f"uid-{own}"}
        pod["metadata"] |= {"ownerReferences": [owner], "labels": {"app": "web", "pod-template-hash": own}}


def empty_rule(rng: random.Random, items: list[Obj]) -> None:
    """A rule whose selector selects all devices."""
    device_rule(rng, items)
    items[-1]["spec"]["deviceSelector"] = {}


def empty_slices(rng: random.Random, items: list[Obj]) -> None:
    for item in all_of(items, "ResourceSlice"):
        item["spec"]["devices"] = []


def node_name(rng: random.Random, items: list[Obj]) -> None:
    waiting(items)["spec"]["nodeName"] = rng.choice("ab")


def kueue(rng: random.Random, items: list[Obj]) -> None:
    gate(rng, items)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p"}
    condition = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "insufficient quota"}
    items.append(
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "Workload",
            "metadata": {"name": "pod-p", "namespace": "default", "ownerReferences": [owner]},
            "spec": {"queueName": "team"},
            "status": {"conditions": [condition]},
        }
    )


FAULTS: dict[Fault, tuple[str, ...]] = {
    wrong_type: ("SelectorMatchesNothing",),
    wrong_attribute: ("SelectorFails",),
    guarded_attribute: ("SelectorMatchesNothing",),
    invalid_selector: ("SelectorInvalid",),
    too_many: ("CountTooLarge",),
    group_too_small: ("GroupTooSmall",),
    class_renamed: ("ClassMissing",),
    class_removed: ("ClassMissing",),
    template_renamed: ("TemplateMissing",),
    template_elsewhere: ("TemplateMissing",),
    claim_deleted: ("ClaimMissing",),
    cordoned: ("NodeExcluded",),
    node_taint: ("NodeExcluded",),
    node_selector: ("NodeExcluded",),
    held: ("DevicesInUse",),
    held_in_part: ("Fragmented", "DevicesInUse"),
    device_rule: ("DeviceTainted",),
    unhealthy: ("DeviceTainted",),
    no_slices: ("NoDevicesPublished",),
    incomplete: ("PoolIncomplete",),
    reserved: ("NodeReserved",),
    no_room: ("ResourcesLacking",),
    gate: ("SchedulingGate",),
    quota: ("QuotaExceeded",),
    configuration: ("DriverRejects",),
    no_scheduler: ("NoScheduler",),
    timeout: ("SchedulerTimeout",),
    zombie: ("ClaimNotReleased",),
    terminating: ("DevicesInUse",),
    rollout: ("RolloutWaits",),
    empty_rule: ("DeviceTainted",),
    empty_slices: ("NoDevicesPublished",),
    node_name: ("SchedulerBypassed",),
    kueue: ("KueueWaits",),
}
"""Each fault, and the codes that name it."""
LAST = (held, held_in_part, zombie, terminating, rollout)
"""Faults that place pods of their own: they need a cluster that works, so they come first."""
