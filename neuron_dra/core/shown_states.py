"""Meanings of the states that commands print, and of the codes of `doctor`: for users, in `explain`."""

from __future__ import annotations

from typing import Final

WORKLOADS: Final = {
    "Pending": "no nodes are reserved for the workload; its condition Ready has the reason",
    "Allocating": "nodes are being reserved for the workload",
    "Allocated": "all nodes of the workload are reserved, and its pods may start",
    "PartiallyAllocated": "some of the workload's groups of nodes are reserved, or one has lost a node",
    "Deallocating": "the workload's nodes are being released; pods on them have to end first",
    "Failed": "the workload has failed, and its failure strategy does nothing more",
}
PHASES: Final = {
    "Pending": "the nodes of a reservation reject claims of others, and their devices do not have its tag yet",
    "Bound": "the devices have the tag of the reservation, and the workload's pods may start",
    "Draining": "the reservation ends: no pod may start on its nodes",
}
NODES: Final = {
    "not Ready": "the kubelet of the node does not report, or reports a problem: new pods do not start",
    "silent": "the node has a Neuron instance type, and publishes no devices",
    "publishes nothing": "the node has a Neuron instance type, and publishes no devices",
    "cordoned": "the node takes no new pods: kubectl uncordon",
    "reserved": "the node is for the pods of an UltraServer workload; its devices are not free for others",
    "in a test": "a qualification tests the node; the test ends for a workload that needs the node",
    "held": "a claim has the device",
    "unhealthy": "the device is unhealthy, or tainted: new claims do not get it",
    "free": "a claim can get the device now",
    "spare": "the node is free only for groups of workloads that must move",
    "unknown": "what would show the state was not read",
}
OF: Final = {
    "state of a NeuronUltraServerWorkload": WORKLOADS,
    "phase of a reservation": PHASES,
    "state of a node or a device": NODES,
}
"""All states, by what has them."""
CHECKS: Final = {
    "Ok": "nothing is wrong",
    "Unreadable": "an object or a file cannot be read",
    "Forbidden": "the API server refuses the driver's request",
    "NotInstalled": "it is not installed, and nothing needs it",
    "KubernetesTooOld": "the API server is older than the driver supports",
    "KubernetesKnownBad": "this release of Kubernetes has a fault that concerns devices",
    "PoolNameShared": "two drivers have pools of one name, which this release of the scheduler confuses",
    "ClassEdited": "a DeviceClass differs from that of this release",
    "CrdMissing": "a custom resource that something needs does not exist",
    "CrdOutdated": "a custom resource lacks versions or fields of this release",
    "CrdNotServed": "the API server does not serve a custom resource",
    "PolicyMissing": "an admission policy does not exist",
    "PolicyNotBound": "an admission policy is not bound, and so has no effect",
    "ControllerMissing": "workloads exist, and no pod of the UltraServer controller",
    "ControllerNotReady": "the pod of the UltraServer controller is not Ready",
    "LeaseFree": "no replica of the controller holds its Lease",
    "LeaseOld": "the controller's Lease was not renewed in time",
    "ClockWrong": "a clock differs from that of the API server",
    "NoNodes": "there is no Neuron node",
    "DriverNotInstalled": "there are Neuron nodes, and no pod of the driver",
    "DriverNotReady": "pods of the driver are not Ready",
    "DriverVersions": "pods of the driver have different images",
    "ForeignSlice": "a ResourceSlice has the driver's name, and the driver did not write it",
    "SliceWithoutNode": "a ResourceSlice is of a node that does not exist",
    "PluginSilent": "the plugin on the node does not answer",
    "PluginProblem": "the plugin on the node reports a problem",
    "SocketMissing": "a socket of the plugin does not exist",
    "SocketSilent": "a socket of the plugin does not answer",
    "KubeletSilent": "the kubelet's socket of pod resources does not answer",
    "NotPublished": "the plugin has published no ResourceSlices",
    "SlicesDiffer": "the API server has other devices than the plugin publishes",
    "ClaimDiffers": "a prepared claim differs from the API server's",
    "ClaimsDiffer": "the plugin and its checkpoint have different claims",
    "OrphanedClaim": "a claim is prepared, and the API server does not have it any more",
    "DriverLoading": "the kernel driver loads or is being unloaded, so the devices are unknown",
    "DriverNotLoaded": "the node has Neuron devices, and the kernel driver is not loaded",
    "NoDevices": "the kernel driver shows no device",
    "HardwareDiffers": "sysfs and the plugin show different devices",
    "ReadingHangs": "reading a file of the kernel driver does not end",
    "CheckpointMissing": "the plugin's checkpoint does not exist",
    "CheckpointDamaged": "the plugin's checkpoint cannot be decoded",
    "CheckpointOld": "the plugin's checkpoint is of an earlier boot",
    "CdiFileLeft": "the CDI file of a claim that is not prepared is left",
    "CdiFolderUnknown": "the container runtime reads other folders of CDI files",
    "CdiNotWritable": "the folder of CDI files cannot be written",
    "CdiOff": "the container runtime has CDI off",
    "NoPermission": "the plugin lacks a right on the node",
}
"""What a line of `doctor` says; other codes of it are those of causes."""
