"""This driver's names and a few constants of the Neuron runtime, each defined once."""

from __future__ import annotations

from typing import Final

DRIVER: Final = "neuron.aws.com"
"""Driver, DeviceClass, config group and domain of our unqualified attributes."""

COMPUTE_TYPE_LABEL: Final = "eks.amazonaws.com/compute-type"
UNSERVED_COMPUTE: Final = {"auto": "EKS Auto Mode", "fargate": "EKS Fargate", "hybrid": "EKS Hybrid Nodes"}
"""Kinds of nodes on which the driver's DaemonSet does not run, by the label's value. EKS gives them no driver of Neuron
devices for DRA: https://docs.aws.amazon.com/eks/latest/userguide/device-management-neuron.html.
"""
WORKLOAD_CLASS: Final = f"workload.{DRIVER}"
"""DeviceClass of reserved devices, only for the claim templates that the UltraServer controller makes."""

GROUP_DOMAIN: Final = "resource.aws.com"
"""Domain of the device group ids, which the EFA driver publishes too."""

NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
"""Kubernetes' standard attribute, which drivers of CPUs and network interfaces publish too."""

DEVICE_PREFIX: Final = "neuron-device-"
OLD_DEVICE_PREFIX: Final = "neurondevice"
"""The spelling in pages about AWS's beta driver; never published, but claims from that time may be running."""
NODE_DEVICE: Final = "neuron-node-0"
"""The device that represents a whole UltraServer node."""

SET_PREFIX: Final = "neuron-set-"
"""A connected set of devices: `neuron-set-<devices>-<id of the first>`."""
REWRITES_LIMITS: Final = "neuron.aws.com/rewrite-limits"
"""The label of a namespace in which a policy rewrites limits of the device plugin in new pods."""
CORES_PREFIX: Final = "neuron-cores-"
"""A core partition: `neuron-cores-<number>-<first>`, in logical cores of the node at the type's default size."""

RUNTIME_MODE_SINGLE: Final = 4
"""The runtime's UltraServer mode X1, one node (aws-neuron-driver@fca19f7, share/neuron_driver_shared.h)."""

NO_SERVER_ID: Final = "0000000000000000"
"""The id that the kernel driver and AWS's init script use for "no UltraServer"."""

INSTANCE_TYPE_LABEL: Final = "node.kubernetes.io/instance-type"
NETWORK_LAYER_LABELS: Final = tuple(f"topology.k8s.aws/network-node-layer-{n}" for n in (1, 2, 3))
CAPACITY_BLOCK_LABEL: Final = "topology.k8s.aws/capacity-block-id"

ULTRASERVER_LABELS = "neuron.amazonaws.com/ultraserver-"
"""Prefix of the labels that an UltraServer operator puts on Nodes."""

PRESENT_LABEL: Final = "neuron.amazonaws.com/present"
PRESENT: Final = "true"
"""The label of AWS's device plugin on Nodes with Neuron devices."""

COUNT_ANNOTATION: Final = "neuron.aws.com/device-count"
"""On a claim: how many Neuron devices it must have; `neuron-dra migrate` writes it where a claim requests all."""
