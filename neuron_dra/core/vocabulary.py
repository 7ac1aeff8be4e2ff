"""Conditions, their reasons, and the reasons of Events, with their meanings: for users, in docs/ and in `explain`.

A reason of a condition of a NeuronUltraServerWorkload is the reason of its Event too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WORKLOAD: Final = "NeuronUltraServerWorkload"
ULTRASERVER: Final = "NeuronUltraServer"
QUALIFICATION: Final = "NeuronUltraServerQualification"
READY: Final = "Ready"
DEGRADED: Final = "Degraded"


@dataclass(frozen=True, slots=True)
class Word:
    """A condition or a reason.

    - `of`: the kind of object that has it.
    - `condition`: the condition that it is a reason of; empty for a condition itself, and for a reason of Events only.
    """

    name: str
    of: str
    text: str
    condition: str = ""


CONDITIONS: Final = (
    Word(READY, WORKLOAD, "the controller has reserved all groups and created the ResourceClaimTemplate"),
    Word("Progressing", WORKLOAD, "the controller is changing the reservation"),
    Word(
        DEGRADED,
        WORKLOAD,
        "a reserved node has a fault; the failure strategy decides what the controller does, and when",
    ),
    Word("Outage", WORKLOAD, "so many nodes are not Ready that the controller evicts no pod; absent until it happens"),
    Word("InUse", WORKLOAD, "its pods use claims on its nodes; only with spec.ttlSecondsUnused"),
    Word(
        "EndsSoon",
        WORKLOAD,
        "EC2 takes its nodes back soon; absent if no Node shows the end of a capacity block",
    ),
    Word(
        "SpecIncomplete",
        WORKLOAD,
        "the API server drops fields of its spec; absent with the CRDs of this release",
    ),
    Word(READY, ULTRASERVER, "all its nodes and links are ready"),
    Word(DEGRADED, ULTRASERVER, "the reverse of Ready"),
    Word("Allocated", ULTRASERVER, "a workload has reserved some of its nodes"),
    Word(READY, QUALIFICATION, "the controller runs its tests"),
    Word(
        "CapacityBlockEnd",
        ULTRASERVER,
        "the time at which the capacity blocks of its nodes end; absent if the controller does not know it",
    ),
    Word(
        "Spare",
        ULTRASERVER,
        "some of its nodes are spares, which only groups that must move may take; absent otherwise",
    ),
)


def _reasons(of: str, condition: str, texts: dict[str, str]) -> tuple[Word, ...]:
    return tuple(Word(name, of, text, condition) for name, text in texts.items())


_WAITS: Final = {
    "Allocated": "the controller has reserved all groups, and pods may start",
    "WaitingForNodes": "some reserved nodes do not show the reservation in their ResourceSlices yet",
    "WaitingForRelease": "the controller releases nodes first, because pods with the same ranks may still run there",
    "InsufficientCapacity": "fewer nodes of the instance type are free than it needs",
    "BlockEndsTooSoon": "enough nodes are free, and their capacity blocks end before the workload would",
    "NotQualified": "enough nodes are free, and too few passed a test as its spec.qualification requires",
    "CapacitySplit": "enough nodes are free, but not together in UltraServers, or without the links",
    "NoUltraServers": "no UltraServer of the instance type was discovered",
    "CreatingUltraServers": "the NeuronUltraServers of enough free nodes are being created",
    "ExceedsFleet": "it needs more groups than the cluster has, even if all were free; it holds no other workload back",
    "WaitsForOlder": "another workload has waited longer, and goes first until the time in the message",
    "TooManyWaiting": "more workloads of the namespace wait than the controller plans",
    "NamespaceLimit": "the namespace has reserved all nodes that its annotation allows",
    "NamespaceUnknown": "the controller cannot read the Namespace and its limit",
    "InvalidSpec": "the spec has values that cannot be reserved; the CRD of this release rejects them",
    "NameTooLong": "its name is longer than the workloadId of devices may be; the CRD of this release rejects it",
    "TemplateNameTaken": "another object owns the ResourceClaimTemplate of this name",
    "UnreadableReservation": "a reservation was written by another release and cannot be read; its nodes stay reserved",
    "CustomResourcesOutdated": "the API server drops fields that the controller writes: upgrade the CRDs",
    "ReservationNotStored": "the API server rejects the status of a NeuronUltraServer that lists its reservations",
    "FinalizerRejected": "the API server rejects the write of the workload's finalizer",
    "TemplateRejected": "the API server rejects the workload's ResourceClaimTemplate, or its deletion",
    "ReservationNotSeen": "a NeuronUltraServer was deleted, and the nodes of its reservations publish no devices",
    "InternalError": "the controller cannot plan this workload; its nodes stay as they are; see the message",
    "NoSpareGroup": "a group has a fault, and no free group can replace it; the controller evicts no pod",
    "Migrating": "the controller replaces a group with a fault",
    "Releasing": "the controller releases the reservation",
    "Draining": "the controller waits until nodes show that they start no more pods of the workload",
    "WaitingForPods": "the controller waits for the end of pods that hold devices of the nodes",
    "EvictionBlocked": "the API server evicts no pod, for example because of a PodDisruptionBudget",
    "Restarting": "the controller releases all nodes, then reserves again (failureStrategy RestartAll)",
    "Expired": "its nodes were unused for spec.ttlSecondsUnused, so the controller released them",
    "WaitingForQuota": "Kueue has not admitted it yet; the message contains Kueue's reason",
    "QuotaRevoked": "Kueue has evicted it; the controller releases its nodes, then returns its quota",
    "QuotaGivenBack": "Kueue admitted it, but no nodes were free for minutes; it queues again later",
    "QueueDeactivated": "spec.active of Kueue's Workload is false",
    "QueueFinished": "Kueue's Workload is Finished, so Kueue gives it no quota any more",
    "QueueRequired": "its namespace allows new reservations only with a queue",
    "QueueUnknown": "the controller cannot read Kueue's Workloads; reservations stay, and do not grow",
    "QueueFeatureUnsupported": "Kueue admitted it with a feature that reservations do not have",
    "GrowthNeedsQuota": "it needs more nodes than its quota, which cannot change while nodes are reserved",
}
_FAULTS: Final = {
    "NoProblem": "no fault of the reserved nodes is known",
    "NodeGone": "the Node was deleted",
    "NodeReplaced": "another Node has its name: Nodes are identified by UID",
    "NodeNotReady": "the Node is not Ready",
    "NodeUnhealthy": "an agent reports a fault in a condition of the Node; the message quotes it",
    "DeviceUnhealthy": "a device is missing, or its driver reports it unhealthy",
    "LinkDown": "links that a group of this size needs are down",
    "UltraServerChanged": "the node publishes another UltraServer",
    "TagLost": "its complete slice lacks the reservation's tag, for example because of an older driver",
    "ShapeChanged": "it publishes devices and the template requests whole nodes, or the reverse",
    "NodeCordoned": "it is cordoned, or an autoscaler's taint announces its removal",
    "NodeTainted": "it has a taint that other nodes of its group do not have",
    "SliceMissing": "a Ready node publishes no devices, because its plugin or its kubelet restarts",
    "ForeignClaim": "another workload's claim is allocated on a reserved node",
    "PodsUnschedulable": "the scheduler cannot place pods of the workload, although some of its nodes are idle",
    "ReservationNotStored": "the API server rejects the status of a NeuronUltraServer that lists its reservations",
    "FinalizerRejected": "the API server rejects the write of the workload's finalizer",
    "TemplateRejected": "the API server rejects the workload's ResourceClaimTemplate, or its deletion",
    "ReservationNotSeen": "a NeuronUltraServer was deleted, and the nodes of its reservations publish no devices",
    "InternalError": "the controller cannot plan this workload; its nodes stay as they are; see the message",
    "RestartLimitExceeded": "RestartAll restarted the workload as often as it may; the controller evicts no more pods",
    "Restarting": "the fault in the message made the workload restart",
}
_OF_ULTRASERVERS: Final = {
    "AllNodesReady": "all nodes and their links are ready",
    "NodeMissing": "some of its nodes do not exist, or reserved nodes are gone",
    "NodeNotReady": "nodes are not Ready",
    "NodeUnhealthy": "agents report faults of nodes, which cannot be reserved until 5 minutes without one",
    "NodeCordoned": "nodes are cordoned, and cannot be reserved",
    "SliceMissing": "nodes publish no ResourceSlice",
    "TopologyUnknown": "the kernel driver of some nodes has not found their place yet, and reports busy",
    "DeviceUnhealthy": "nodes with unhealthy or missing devices cannot be reserved",
    "LinkDown": "links between nodes are down",
    "MixedInstanceTypes": "nodes of another instance type publish this UltraServer",
    "DuplicateNodeId": "several nodes publish the same number in this UltraServer",
    "IdentityMismatch": "a node's label and driver differ in the capacity block, or a block has several UltraServers",
    "InvalidBlockEnd": "the annotation with the end of a node's capacity block does not contain a time",
    "Unqualified": "some nodes failed a test twice, and cannot be reserved until they pass one",
    "Quarantined": "nodes stay reserved, because a node of their group is dead and may still run pods",
    "InternalError": "the controller cannot handle the object, and reserves none of its nodes; see the message",
    "DeletionWaits": "the object is being deleted, and its reservations keep it",
    "UnreadableReservation": "reservations that this release cannot read keep their nodes",
}
REASONS: Final = (
    *_reasons(WORKLOAD, "Ready, Progressing", _WAITS),
    *_reasons(WORKLOAD, DEGRADED, _FAULTS),
    *_reasons(
        WORKLOAD,
        "Outage",
        {
            "ManyNodesAway": "too many nodes are not Ready (--outage-nodes, --outage-percent), so no pod is evicted",
            "OutageIsOver": "enough nodes are Ready again",
        },
    ),
    *_reasons(
        WORKLOAD,
        "InUse",
        {
            "ClaimsAllocated": "claims of the workload are allocated on its nodes",
            "NoClaims": "no claim is allocated on its nodes since the time in the message",
            "ExpiresSoon": "half of spec.ttlSecondsUnused has passed without a claim on its nodes",
            "Expired": "its nodes were unused for spec.ttlSecondsUnused, so the controller releases them",
        },
    ),
    *_reasons(
        WORKLOAD,
        "EndsSoon",
        {
            "CapacityBlockEnds": "EC2 takes some of its nodes back within minutes",
            "CapacityBlock": "EC2 takes some of its nodes back at the time in the message",
            "EndsBeforeWorkload": "EC2 takes some of its nodes back before spec.expectedDuration has passed",
        },
    ),
    *_reasons(
        WORKLOAD,
        "SpecIncomplete",
        {"FieldsDropped": "the fields in the message have no effect, because the CRD is of another release"},
    ),
    *_reasons(
        QUALIFICATION,
        READY,
        {
            "Testing": "groups are tested when they are free and due",
            "InvalidSpec": "the spec has values that cannot be tested; the message names them",
            "Suspended": "spec.suspend is true",
            "FailureStorm": "so many groups failed that the test is wrong, not the nodes; tests are paused",
            "Outage": "so many nodes are unavailable that no test begins",
            "PodsUnreadable": "pods of tests cannot be read, so no test begins",
            "TestsRejected": "the API server rejects the workload or the pods of a test",
        },
    ),
    *_reasons(ULTRASERVER, "CapacityBlockEnd", {"EndKnown": "the message shows the times and the nodes"}),
    *_reasons(ULTRASERVER, "Spare", {"KeptFree": "the message shows the nodes"}),
    *_reasons(ULTRASERVER, "Ready, Degraded", _OF_ULTRASERVERS),
    *_reasons(
        ULTRASERVER,
        "Allocated",
        {"Reserved": "workloads have reserved some of its nodes", "NotReserved": "no node is reserved"},
    ),
)

EVENTS: Final = (
    Word("Recovered", WORKLOAD, "the faults of the reserved nodes ended, or the controller replaced the nodes"),
    Word("TestFailed", QUALIFICATION, "a test of nodes failed, for the reason in the message"),
    Word("NoVerdict", QUALIFICATION, "a test ended without a verdict, so its nodes are tested again later"),
    Word("NoNetworkClaim", WORKLOAD, "its groups are in several UltraServers, and its pods request no EFA interfaces"),
    Word("ServiceNameTaken", WORKLOAD, "another Service or EndpointSlice uses the name of the workload's own"),
    Word("ServiceRejected", WORKLOAD, "a quota or a policy rejects the Service that leads to rank 0"),
    Word("WriteRejected", WORKLOAD, "the API server rejects its status, or another write that the message names"),
    Word("WriteRejected", ULTRASERVER, "the API server rejects the write in the message"),
    Word("WriteRejected", QUALIFICATION, "the API server rejects its status, or the end of a test of it"),
    Word("WriteRejected", "Node", "the API server rejects the labels of UltraServers"),
    Word("PodsNotWoken", WORKLOAD, "the API server rejects the condition that wakes pods which wait for its template"),
    Word("EvictionRejected", "Pod", "the pod can never start on its node, and the API server rejects its eviction"),
    Word("LeaseRejected", "Lease", "the API server rejects the Lease, so no replica of the controller does anything"),
    Word("QueueRejected", "Kueue's Workload", "the API server rejects its end; the workload that it was for is gone"),
    Word("ReleaseRejected", WORKLOAD, "the API server rejects its deletion, which its job no longer needs"),
    Word("QueueRejected", WORKLOAD, "the API server rejects its Workload of Kueue, for the reason in the message"),
    Word("JobKindUnreadable", WORKLOAD, "the controller cannot read jobs of its kind; its reservation stays"),
    Word("InvalidRendezvous", WORKLOAD, "its annotation neuron.aws.com/rendezvous is neither pod nor host"),
    Word(
        "JobsMayNotReserve", "Job", "its namespace may not reserve UltraServers for jobs, for the reason in the message"
    ),
    Word("QueueIsFixed", WORKLOAD, "its queue was changed while nodes are reserved; it counts when they are released"),
    Word("QueuesAreOff", "Job", "it names a queue, and the controller runs without ultraserverOperator.queues.enabled"),
    Word("InvalidQueue", "Job", "its annotation does not contain a valid name of a LocalQueue"),
    Word("QueueRequired", "Job", "its namespace allows new reservations only with a queue"),
    Word("ManagedElsewhere", "Job", "another program runs it (spec.managedBy), perhaps in another cluster"),
    Word("InvalidUltraServers", "Job", "its annotation neuron.aws.com/ultraservers cannot be read"),
    Word(
        "ManagedByKueue",
        "Job",
        "it carries Kueue's own label, and Kueue cannot admit a job whose nodes are reserved later",
    ),
    Word("NoTemplate", "Job", "its pods name no ResourceClaimTemplate that the reservation could make"),
    Word("SeveralTemplates", "Job", "its pods name several ResourceClaimTemplates that do not exist"),
    Word("PodsDoNotFillGroups", "Job", "the number of its pods is not a multiple of topologySize"),
    Word("TooManyGroups", "Job", "it needs more groups than a reservation can have"),
    Word(
        "InstanceTypeUnknown", "Job", "neither its annotation nor the node selector of its pods names an instance type"
    ),
    Word("WorkloadExists", "Job", "a workload that a person made serves its template, so the controller adds none"),
    Word("TemplateNameInUse", "Job", "the reservation of another job makes the template that its pods name"),
    Word("WorkloadNameTaken", "Job", "another workload has its name, which its reservation would have"),
    Word("NameTooLong", "Job", "its name is longer than the name of a workload may be"),
    Word("ReservationDiffers", "Job", "it requests other nodes than its pods use"),
    Word("JobKindUnreadable", "Namespace", "the controller cannot read jobs of a kind, so they reserve no nodes"),
    Word("ReservationRejected", "Job", "the API server rejects its reservation"),
    Word("CapacityBlockEnds", "Pod", "EC2 takes its node back within minutes"),
    Word("RefusedPodEvicted", "Pod", "the controller evicted the pod, because its node rejects it permanently"),
    Word("FormerClaimEvicted", "Pod", "the controller evicted the pod, because its claim was for an earlier workload"),
    Word("NeuronNumberNotServed", "Pod", "it waits for a number of devices or cores that no node serves"),
    Word("NeuronOldLimits", "Pod", "it waits for resources of the Neuron device plugin, which no node has"),
    Word("NeuronSchedulerMissing", "Pod", "it waits for a scheduler that handles no pods"),
    Word("NeuronDeviceUnhealthy", "Node", "a device is unhealthy; new claims get other devices"),
    Word("NeuronDeviceHealthy", "Node", "a device is healthy again"),
    Word("NeuronSliceNameTaken", "Node", "another object has the name of one of the node's ResourceSlices"),
    Word("NeuronRivalPublisher", "Node", "another program writes the node's ResourceSlices"),
    Word(
        "NeuronStateNotFlushed",
        "Node",
        "the disk did not keep the plugin's files; the plugin prepares no new claim until it does",
    ),
    Word(
        "NeuronDevicePluginAlive",
        "Node",
        "a Neuron device plugin runs on the node, or a pod uses devices of one",
    ),
    Word(
        "NeuronEfaStandsDown",
        "Node",
        "another program manages the node's EFA interfaces, so the driver does not publish or prepare them",
    ),
    Word(
        "NeuronPodsNotListed",
        "Node",
        "the driver cannot list the kubelet's pods, so it would miss pods of a device plugin",
    ),
    Word(
        "NeuronConnectedSetsOff", "Node", "connected sets of devices are not published, for the reason in the message"
    ),
    Word("NeuronUnknownInstanceType", "Node", "the catalogue lacks the instance type, or the type is unknown"),
    Word("NeuronInstanceTypeDisagreement", "Node", "the node's label and its hardware name different instance types"),
    Word("NeuronReadingHangs", "Node", "the read of a file of the kernel driver does not end"),
    Word(
        "NeuronOneSidedLink", "Node", "a device reports a link that the other device does not report; it counts as down"
    ),
    Word(
        "NeuronLinksNotReported",
        "Node",
        "the kernel driver reports no links; the driver assumes the links of the instance type",
    ),
    Word("NeuronMissingLink", "Node", "a link that the instance type has is down"),
    Word("NeuronWrongCoreCount", "Node", "a device reports another number of cores than its instance type has"),
    Word("NeuronMissingDeviceFile", "Node", "a device has no file in the host's /dev, so new claims get other devices"),
    Word("NeuronNoDevices", "Node", "the node shows no Neuron devices, but its instance type has some"),
    Word(
        "NeuronNoClassFolder",
        "Node",
        "the kernel driver is not loaded, so its folder in sysfs is missing",
    ),
    Word("NeuronDriverLoading", "Node", "the kernel driver has been loading for more than three minutes"),
    Word("NeuronDriverLeaving", "Node", "the unload of the kernel driver does not end"),
    Word(
        "NeuronUltraserverBusy",
        "Node",
        "the kernel driver does not find the node's place in its UltraServer, for the reason in the message",
    ),
    Word("NeuronUltraserverModeEmpty", "Node", "the kernel driver does not support the type as a type of UltraServers"),
    Word(
        "NeuronMovedFacts",
        "Node",
        "the kernel driver keeps files in other places; the driver found them by their names",
    ),
    Word("NeuronUnreadFacts", "Node", "the kernel driver does not show values that the instance type has"),
    Word("NeuronUnexpectedDevice", "Node", "a device that the instance type does not have"),
    Word("NeuronMissingDevice", "Node", "a device of the instance type is absent"),
    Word("KubernetesUntested", "Node", "this release was not tested with the version of the API server"),
    Word("KubeletBroken", "Node", "this version of the kubelet may hang when it prepares devices"),
    Word(
        "KubeletKnownBad",
        "Node",
        "this version of the kubelet has faults that affect some pods; the message names them",
    ),
)
"""Reasons of Events that are no reasons of conditions."""

UNHEALTHY: Final = {
    "missing": "it is gone from the node",
    "DeviceFileMissing": "its file is missing from the host's /dev",
    "invalid": "the kernel driver could not reset it",
    "link_interserver": "a link to another node of the UltraServer is unhealthy",
    "FirmwareNotResponding": "its firmware does not answer the kernel driver",
    "sram_ecc": "uncorrectable SRAM errors",
    "hbm_ecc": "uncorrectable HBM errors",
    "hbm_repair": "HBM errors that a reload of the kernel driver repairs",
    "other": "a component whose name is not a valid value of a taint; the Event contains the name",
}
"""Why a device is unhealthy: values of its attribute and taint. Others are components that the kernel driver names."""
