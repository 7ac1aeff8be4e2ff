"""Pods and workloads, and the results of the chart's policies about limits: one table for two API servers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from hack.oracle.limited import NEURON, one, pod, sets
from neuron_dra.core.wire import Obj

CORE: Final = "aws.amazon.com/neuroncore"
LEGACY: Final = "aws.amazon.com/neurondevice"
TYPE: Final = "node.kubernetes.io/instance-type"
OLD_TYPE: Final = "beta.kubernetes.io/instance-type"


def cores(count: int) -> str:
    return f"deviceclass.resource.kubernetes.io/cores-{count}.neuron.aws.com"


def workload(kind: str, spec: Obj, api: str = "apps/v1") -> Obj:
    """Return a workload with this pod spec as its template."""
    template: Obj = {"metadata": {"labels": {"app": "a"}}, "spec": spec}
    whole: Obj = {"template": template}
    if kind in ("Job", "CronJob"):
        template["spec"] = {**spec, "restartPolicy": "Never"}
        api = "batch/v1"
    else:
        whole["selector"] = {"matchLabels": {"app": "a"}}
    if kind == "CronJob":
        whole = {"schedule": "@daily", "jobTemplate": {"spec": whole}}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "w"}, "spec": whole}


def affinity(*terms: list[str], operator: str = "In", key: str = TYPE) -> Obj:
    listed = [{"matchExpressions": [{"key": key, "operator": operator, "values": term}]} for term in terms]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": listed}}
    return {"affinity": {"nodeAffinity": required}}


def on(instance_type: str, key: str = TYPE) -> Obj:
    return {"nodeSelector": {key: instance_type}}


def refused(instance_type: str, kind: str, count: int) -> str:
    return (
        f"Instance type {instance_type} does not support requests for {kind}: {count}. "
        f"Please request a different number of {kind}s."
    )


@dataclass(frozen=True, slots=True)
class Row:
    """A request to create `item`, in a namespace with or without the label, and its result.

    `limits` are the limits of each container that is stored, None if the object stays as it is; `denied` is the message
    of a rejection, by the policies or, with `invalid`, by Kubernetes' own validation.
    """

    name: str
    item: Obj
    limits: dict[str, Obj] | None = None
    denied: str = ""
    invalid: bool = False
    label: str = "true"
    scheduler: str = "default-scheduler"
    metadata: Obj = field(default_factory=dict)


BOTH = "container a requests aws.amazon.com/neuron and aws.amazon.com/neuroncore at once; keep one of them"
LARGER = (
    ", more than every main container; the scheduler would give it devices of its own, which the pod keeps until it "
    "ends: request fewer, or as many in a main container"
)
MIXED = "use either aws.amazon.com/neuron or aws.amazon.com/neuroncore in a pod"
NONE = ": no instance type has them. Please request a different number."
WHOLE = (
    ", because they publish the whole node as one device. Please request all, or set the chart value "
    "scheduler.ultraserverParts to on."
)
LEFT_OUT = (
    ", because they publish at most 511 devices. Please request a different number, or name the size in the chart "
    "value scheduler.sizes."
)

REWRITTEN: Final = [
    Row("three devices", pod(one({NEURON: "3"})), {"a": {sets(3): "1"}}),
    Row("one device", pod(one({NEURON: "1"})), {"a": {sets(1): "1"}}),
    Row("nine cores", pod(one({CORE: "9"})), {"a": {cores(9): "1"}}),
    Row("the legacy name", pod(one({LEGACY: "2"})), {"a": {sets(2): "1"}}),
    Row("sixteen devices", pod(one({NEURON: "16"}), **on("trn2u.48xlarge")), {"a": {sets(16): "1"}}),
    Row(
        "the pod of the extension's page",
        pod(one({"cpu": "4", "memory": "4Gi", CORE: "9"}), schedulerName="my-scheduler", restartPolicy="Never"),
        {"a": {"cpu": "4", "memory": "4Gi", cores(9): "1"}},
    ),
    Row("another resource", pod(one({NEURON: "2", "example.com/x": "1"})), {"a": {sets(2): "1", "example.com/x": "1"}}),
    Row("two containers", pod(one({NEURON: "7"}), one({NEURON: "2"}, "b")), {"a": {sets(7): "1"}, "b": {sets(2): "1"}}),
    Row(
        "devices and cores in two containers",
        pod(one({NEURON: "1"}), one({CORE: "4"}, "b")),
        {"a": {sets(1): "1"}, "b": {cores(4): "1"}},
    ),
    Row(
        "one of two containers",
        pod(one({"cpu": "1"}), one({NEURON: "2"}, "b")),
        {"a": {"cpu": "1"}, "b": {sets(2): "1"}},
    ),
    Row("zero of one, two of the other", pod(one({NEURON: "2", CORE: "0"})), {"a": {sets(2): "1", CORE: "0"}}),
    Row("one device, zero of its class", pod(one({NEURON: "1", sets(1): "0"})), {"a": {sets(1): "1"}}),
    Row("an init container", pod(one({}), initContainers=[one({NEURON: "2"}, "i")]), {"a": {}, "i": {sets(2): "1"}}),
    Row(
        "init containers without main ones",
        pod(one({}), initContainers=[one({NEURON: "1"}, "i"), one({NEURON: "4"}, "j")]),
        {"a": {}, "i": {sets(4): "1"}, "j": {sets(4): "1"}},
    ),
    Row(
        "an init container of the same size",
        pod(one({NEURON: "4"}), initContainers=[one({NEURON: "4"}, "i")]),
        {"a": {sets(4): "1"}, "i": {sets(4): "1"}},
    ),
    Row(
        "a smaller init container",
        pod(one({NEURON: "8"}), one({NEURON: "4"}, "b"), initContainers=[one({NEURON: "3"}, "i")]),
        {"a": {sets(8): "1"}, "b": {sets(4): "1"}, "i": {sets(4): "1"}},
    ),
    Row(
        "a sidecar",
        pod(one({NEURON: "4"}), initContainers=[one({NEURON: "1"}, "s", restartPolicy="Always")]),
        {"a": {sets(4): "1"}, "s": {sets(1): "1"}},
    ),
    Row(
        "a sidecar that is larger",
        pod(one({NEURON: "1"}), initContainers=[one({NEURON: "4"}, "s", restartPolicy="Always")]),
        {"a": {sets(1): "1"}, "s": {sets(4): "1"}},
    ),
    Row("a type that serves it", pod(one({NEURON: "4"}), **on("trn1.32xlarge")), {"a": {sets(4): "1"}}),
    Row("four of an UltraServer's node", pod(one({NEURON: "4"}), **on("trn2u.48xlarge")), {"a": {sets(4): "1"}}),
    Row("a core of an UltraServer's node", pod(one({CORE: "1"}), **on("trn2u.48xlarge")), {"a": {cores(1): "1"}}),
    Row("a type of SageMaker", pod(one({NEURON: "12"}), **on("ml.inf2.48xlarge")), {"a": {sets(12): "1"}}),
    Row("an unknown type", pod(one({NEURON: "7"}), **on("trn9.48xlarge")), {"a": {sets(7): "1"}}),
    Row("a type without a name", pod(one({NEURON: "7"}), **on("")), {"a": {sets(7): "1"}}),
    Row(
        "one of two types",
        pod(one({NEURON: "12"}), **affinity(["trn1.32xlarge", "inf2.48xlarge"])),
        {"a": {sets(12): "1"}},
    ),
    Row(
        "one of two terms",
        pod(one({NEURON: "12"}), **affinity(["trn1.32xlarge"], ["inf2.48xlarge"])),
        {"a": {sets(12): "1"}},
    ),
    Row(
        "not this type", pod(one({NEURON: "7"}), **affinity(["trn1.32xlarge"], operator="NotIn")), {"a": {sets(7): "1"}}
    ),
    Row(
        "a smaller init container on a type that serves only the main one's number",
        pod(one({NEURON: "4"}), initContainers=[one({NEURON: "2"}, "i")], **on("trn1.32xlarge")),
        {"a": {sets(4): "1"}, "i": {sets(4): "1"}},
    ),
    *(
        Row(
            f"one device beside {name}, another vendor's class",
            pod(one({NEURON: "1", f"deviceclass.resource.kubernetes.io/{name}": "1"})),
            {"a": {sets(1): "1", f"deviceclass.resource.kubernetes.io/{name}": "1"}},
        )
        for name in ("compute.example.com", "connected-4.example.com", "cores-4.neuron.aws.com.example.com")
    ),
    Row("a type by its old label", pod(one({NEURON: "12"}), **on("inf2.48xlarge", OLD_TYPE)), {"a": {sets(12): "1"}}),
    Row(
        "a node selector with the old label and an affinity",
        pod(one({NEURON: "12"}), **on("inf2.48xlarge", OLD_TYPE), **affinity(["trn1.32xlarge"])),
        {"a": {sets(12): "1"}},
    ),
    Row("only the scheduler's name", pod(one({"cpu": "1"}), schedulerName="my-scheduler"), {"a": {"cpu": "1"}}),
    Row("after a rewrite", pod(one({sets(3): "1"})), {"a": {sets(3): "1"}}),
]
UNTOUCHED: Final = [
    Row("nothing of Neuron", pod(one({"cpu": "1", "example.com/gpu": "1"}))),
    Row("zero devices", pod(one({NEURON: "0"}))),
    Row("zero of a class that the type does not serve", pod(one({sets(7): "0"}), **on("trn1.32xlarge"))),
    Row("another scheduler", pod(one({"cpu": "1"}), schedulerName="volcano"), scheduler="volcano"),
    Row("no label", pod(one({NEURON: "3"})), label=""),
    Row("another value", pod(one({NEURON: "3"})), label="yes"),
    Row("no label, both resources", pod(one({NEURON: "1", CORE: "1"})), label=""),
    Row(
        "no label, the extension",
        pod(one({NEURON: "3"}), schedulerName="my-scheduler"),
        label="",
        scheduler="my-scheduler",
    ),
    Row("no label, a number that the type does not serve", pod(one({NEURON: "7"}), **on("trn1.32xlarge")), label=""),
    Row("a pod with a node", pod(one({NEURON: "3"}), nodeName="n")),
    Row("a pod with a node and both resources", pod(one({NEURON: "3", CORE: "1"}), nodeName="n")),
    Row(
        "a mirror pod",
        pod(one({NEURON: "3"}), nodeName="n"),
        metadata={"annotations": {"kubernetes.io/config.mirror": "x"}},
    ),
    Row("a Deployment", workload("Deployment", pod(one({NEURON: "4"}))["spec"])),
    Row(
        "a Deployment with a smaller init container",
        workload(
            "Deployment",
            pod(one({NEURON: "4"}), initContainers=[one({NEURON: "2"}, "i")], **on("trn1.32xlarge"))["spec"],
        ),
    ),
    Row("a CronJob with a type", workload("CronJob", pod(one({NEURON: "4"}), **on("trn1.32xlarge"))["spec"])),
]
DENIED: Final = [
    Row("devices and cores", pod(one({NEURON: "1", CORE: "2"})), denied=BOTH),
    Row(
        "the name and the legacy name",
        pod(one({NEURON: "1", LEGACY: "1"})),
        denied=BOTH.replace("neuroncore", "neurondevice"),
    ),
    Row(
        "the name and the class",
        pod(one({NEURON: "1", sets(2): "1"})),
        denied=f"container a requests {NEURON} and {sets(2)} at once; keep one of them, and delete LimitRanges on "
        f"{NEURON}, which add it",
    ),
    Row(
        "a larger init container",
        pod(one({NEURON: "2"}), initContainers=[one({NEURON: "4"}, "i")]),
        denied=f"init container i requests 4 devices{LARGER}",
    ),
    Row(
        "an init container of the other kind",
        pod(one({CORE: "2"}), initContainers=[one({NEURON: "1"}, "i")]),
        denied=f"init container i and the main containers count in different resources; {MIXED}",
    ),
    Row(
        "init containers of both kinds",
        pod(one({}), initContainers=[one({NEURON: "1"}, "i"), one({CORE: "1"}, "j")]),
        denied=f"init containers request devices and cores; {MIXED}",
    ),
    Row("seven on trn1", pod(one({NEURON: "7"}), **on("trn1.32xlarge")), denied=refused("trn1.32xlarge", "device", 7)),
    Row(
        "seven on trn1 by affinity",
        pod(one({NEURON: "7"}), **affinity(["trn1.32xlarge"])),
        denied=refused("trn1.32xlarge", "device", 7),
    ),
    Row(
        "seven on trn1 by class, without the label",
        pod(one({sets(7): "1"}), **on("trn1.32xlarge")),
        denied=refused("trn1.32xlarge", "device", 7),
        label="",
    ),
    Row(
        "seven on trn1 by its old label",
        pod(one({NEURON: "7"}), **on("trn1.32xlarge", OLD_TYPE)),
        denied=refused("trn1.32xlarge", "device", 7),
    ),
    Row(
        "seven on trn1 by affinity to its old label",
        pod(one({NEURON: "7"}), **affinity(["trn1.32xlarge"], key=OLD_TYPE)),
        denied=refused("trn1.32xlarge", "device", 7),
    ),
    Row(
        "a number that no integer holds",
        pod(one({NEURON: "1E20"})),
        denied=f"No DeviceClass serves 999999999999999999 connected devices{NONE}",
    ),
    Row("nine cores on trn1", pod(one({CORE: "9"}), **on("trn1.32xlarge")), denied=refused("trn1.32xlarge", "core", 9)),
    Row(
        "two on a type with one",
        pod(one({NEURON: "2"}), **on("inf2.xlarge")),
        denied=refused("inf2.xlarge", "device", 2),
    ),
    Row(
        "neither of two types",
        pod(one({NEURON: "7"}), **affinity(["trn1.32xlarge"], ["trn2.48xlarge"])),
        denied=refused("trn1.32xlarge", "device", 7),
    ),
    Row(
        "more than any type has",
        pod(one({NEURON: "17"})),
        denied=f"No DeviceClass serves 17 connected devices{NONE}",
    ),
    Row(
        "a thousand",
        pod(one({NEURON: "1k"})),
        denied=f"No DeviceClass serves 1000 connected devices{NONE}",
    ),
    Row(
        "four billion",
        pod(one({NEURON: "4Gi"})),
        denied=f"No DeviceClass serves 4294967296 connected devices{NONE}",
    ),
    Row(
        "the largest number under two names",
        pod(one({NEURON: str(2**63 - 1), LEGACY: "1"})),
        denied=BOTH.replace("neuroncore", "neurondevice"),
    ),
    Row(
        "the largest numbers of devices and cores",
        pod(one({NEURON: str(2**63 - 1), CORE: str(2**63 - 1)})),
        denied=BOTH,
    ),
    Row(
        "a size that nodes leave out",
        pod(one({CORE: "17"}), **on("inf1.24xlarge")),
        denied=f"Nodes of instance type inf1.24xlarge do not publish 17 contiguous cores{LEFT_OUT}",
    ),
    *(
        Row(
            f"a {kind}",
            workload(kind, pod(one({NEURON: "7"}), **on("trn1.32xlarge"))["spec"]),
            denied=refused("trn1.32xlarge", "device", 7),
        )
        for kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob")
    ),
    Row("a Job with both", workload("Job", pod(one({NEURON: "1", CORE: "1"}))["spec"]), denied=BOTH),
    Row("a fraction", pod(one({NEURON: "500m"})), denied="must be an integer", invalid=True),
    Row(
        "a request that differs",
        pod({**one({NEURON: "4"}), "resources": {"limits": {NEURON: "4"}, "requests": {NEURON: "2"}}}),
        denied="must be equal to aws.amazon.com/neuron limit",
        invalid=True,
    ),
    Row(
        "a request without a limit",
        pod({**one({}), "resources": {"requests": {NEURON: "2"}}}),
        denied="Limit must be set for non overcommitable resources",
        invalid=True,
    ),
]
ROWS: Final = [*REWRITTEN, *UNTOUCHED, *DENIED]
