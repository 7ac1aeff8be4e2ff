"""The codes of causes that `why`, `simulate` and `validate` report, with their meanings: for users, in `explain`."""

from __future__ import annotations

from typing import Final

PODS: Final = {
    "AllocatedElsewhere": "a claim of the pod has devices of nodes on which the pod cannot run",
    "ClaimDeleted": "a claim of the pod is being deleted",
    "ClaimMissing": "a claim that the pod names, or that was made for it, does not exist",
    "ClaimNeverCreated": "the pod is being deleted, and its kubelet waits for a claim that was never created",
    "ClaimNotAllocated": "a scheduler without dynamic resource allocation bound the pod without its claim",
    "ClaimNotCreated": "kube-controller-manager has not created a claim from its template",
    "ClaimNotReleased": "a claim holds devices for a pod that is gone or has ended",
    "ClaimNotReserved": "a claim is reserved for another pod, so the kubelet rejects this one",
    "ClaimOfAnother": "a claim belongs to a former pod of the same name",
    "DevicesInUse": "too few devices are free on nodes that would serve the pod",
    "Fragmented": "enough devices are free on a node, and too few of them are together",
    "PodsNotCreated": "the pods of a workload cannot be created",
    "RolloutWaits": "a new pod of a Deployment waits for devices of an old one, which ends only after it is ready",
    "GangWaits": "fewer pods of a PodGroup fit than must run at once",
    "GangSharesClaim": "a known fault of the scheduler with PodGroups whose pods share a claim",
    "SchedulerBypassed": "spec.nodeName keeps the pod from the scheduler, which alone allocates claims",
    "SchedulerSays": "the scheduler has a reason that is not about devices",
    "SchedulerTimeout": "the scheduler's search for devices took longer than 10 s",
    "SchedulingGate": "a scheduling gate keeps the pod from the scheduler",
    "JobSuspended": "a job is suspended, so it has no pods",
    "KueueWaits": "Kueue has not admitted the pod; the reason is that of its Workload",
    "NoScheduler": "the pod names a scheduler that has not handled it",
    "OtherScheduler": "the pod names another scheduler, which keeps it waiting, though Kubernetes' own would place it",
    "QuotaExceeded": "a ResourceQuota does not allow the pod's claim",
    "TemplateMissing": "the pod names a ResourceClaimTemplate that does not exist in its namespace",
    "WorkloadNotAllocated": "the pod's NeuronUltraServerWorkload has no reserved nodes yet",
    "NodeExcluded": "the pod may not run on nodes that would serve it: cordoned, tainted, or not selected",
    "ResourcesLacking": "nodes have the devices, and too little CPU, memory or another resource",
    "NodeReserved": "nodes are reserved for an UltraServer workload",
    "DeviceTainted": "devices are unhealthy, or a DeviceTaintRule taints them",
    "DevicePluginLimits": "the pod requests a resource of the Neuron device plugin, which no node offers",
    "DevicePluginDown": "the pod requests a resource of the Neuron device plugin, which has ended on its nodes",
    "Unknown": "nothing that was read shows the cause",
}
"""Why a pod waits."""
REQUESTS: Final = {
    "ClassMissing": "a request names a DeviceClass that does not exist",
    "ClassMatchesNothing": "the selectors of a DeviceClass match no published device",
    "CountTooLarge": "a request wants more devices of one node than any node has",
    "DriverNotSeen": "a request is for devices of another driver, which publishes no ResourceSlice",
    "GroupTooSmall": "a constraint wants more devices with one value than any node has",
    "RequestsConflict": "each request could be satisfied alone, and not all of them together",
    "RequestError": "the scheduler cannot evaluate a request",
    "SelectorFails": "a selector fails on a device, which blocks the pod on every node",
    "SelectorInvalid": "a selector is not valid CEL",
    "SelectorMatchesNothing": "a selector matches no published device",
}
"""What a claim requests and no node could serve."""
STARTING: Final = {
    "CdiFileMissing": "the CDI file of a claim is missing on the node",
    "ClaimNotNamed": "no container of the pod names a claim, so none sees its devices",
    "ContainerProblem": "a container of the pod does not start",
    "Deleted": "the object is being deleted",
    "DeviceFileMissing": "a device file is missing on the node",
    "DriverNotRegistered": "the driver is not registered with the node's kubelet",
    "DriverRejects": "the driver rejects the claim's configuration",
    "KubeletRejects": "the kubelet rejects the claim before the driver sees it",
    "KubeletRejectsName": "the kubelet or the scheduler is too old for limits that DeviceClasses serve",
    "NodeGone": "the pod's node does not exist",
    "NodeNotReady": "the node is not Ready",
    "PodFailed": "the pod has failed",
    "RuntimeRejects": "the container runtime finds no CDI devices of the claim",
    "RuntimeWithoutCdi": "the container runtime injects no CDI devices: containers get none of their devices",
}
"""Why a pod with a node does not run."""
NODES: Final = {
    "Cordoned": "the node is cordoned",
    "DevicePluginAlive": "a Neuron device plugin runs on the node, so the driver publishes nothing",
    "DevicesMissing": "fewer devices are published than the instance type has",
    "KubeletBroken": "the kubelet's version may hang while it prepares devices",
    "KubeletTooOld": "the kubelet is older than the driver supports",
    "NoDevicesPublished": "the driver publishes no devices of the node",
    "NodeUnhealthy": "an agent reports a fault of the node in one of its conditions",
    "NotServed": "the node is of EKS Auto Mode, Fargate or Hybrid Nodes, where no DRA driver serves Neuron devices",
    "NotNeuron": "the node's instance type has no Neuron devices",
    "PoolContradictory": "slices of a pool disagree on their number, so the scheduler uses none of its devices",
    "PoolIncomplete": "slices of a pool are missing, or it is not valid",
    "UltraServerFault": "an UltraServer lacks a node, or links of it are down, or its condition Degraded is True",
    "Tainted": "the node has taints that pods must tolerate",
}
"""Why pods get no Neuron devices on a node."""
CLAIMS: Final = {"NoPod": "no pod uses the claim"}
MANIFESTS: Final = {
    "AdminAccessRefused": "the namespace lacks the label that adminAccess needs",
    "ClaimNotNamed": "no container of the pod names the claim, so none sees its devices",
    "ApiRejects": "the API server rejects a value, by a rule that its OpenAPI does not contain",
    "ClaimSourceRemoved": "resourceClaims[].source was removed in Kubernetes 1.31",
    "Malformed": "a field has a value of a wrong type",
    "RequestShared": "containers see the same devices at the same time without dividing their cores",
    "RequestUnknown": "a container names a request that the claim does not have",
    "SeesAllDevices": "a container sees the files of all devices of the node, whatever its claims",
    "RequestRejected": "the API server rejects the mode or the number of a request",
    "SharedClaimUnprepared": "several pods share a claim, which kubelets before 1.37.0 may unprepare too early",
    "SharedClaimOneNode": "pods that must be on several nodes share a claim, whose devices are of one node",
    "VersionUnknown": "no supported API server has this version of the object",
    "AttributeUnknown": "a selector or a constraint reads an attribute that no driver publishes",
    "ClassUnknown": "the name of a DeviceClass resembles one of this driver, and is none",
    "ConfigRejected": "the driver rejects the configuration",
    "CoreSizesDiffer": "a container would get two sizes of logical cores, or sets another one than its claim",
    "CoresBeyondClaim": "a container names more cores than its claims have",
    "FieldType": "a field has a value of a type that the API server rejects",
    "FieldUnknown": "the API server does not know the field, or knows it at another place",
    "LongSearch": "the scheduler of Kubernetes 1.34 and 1.35 may give up on the request",
    "OneNodeForAGroup": "all pods of a PodGroup share a claim, and so one node",
    "SecondAlternative": "the scheduler of Kubernetes 1.34 and 1.35 confuses two alternatives",
    "SelectorUnsupported": "a selector uses a function that was not evaluated",
    "SetsNotPublished": "nodes publish no connected sets on this version of Kubernetes",
    "SizeNotServed": "no instance type serves this size",
    "TypeCannotServe": "the pods of a claim select an instance type that cannot serve it",
    "UnknownDriver": "configuration is addressed to a driver whose name resembles this one's",
}
"""What `validate` finds in manifests."""
OF: Final = {
    "cause of a pod that waits": PODS,
    "cause of a claim that no node serves": REQUESTS,
    "cause of a pod that does not start": STARTING,
    "cause on a node": NODES,
    "cause of a claim": CLAIMS,
    "problem of a manifest": MANIFESTS,
}
"""All codes, by what they are about."""
