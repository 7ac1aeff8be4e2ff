"""Taints of Nodes that are set by known programs: what they mean for a pod, and which of them a pod may tolerate. Pure.

The table has the taints that nodes with Neuron devices get. Each row names its source. Nothing is known about a key
that is not in it: whoever set it knows whether pods may run there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class TaintMeaning(Enum):
    """What becomes of a tainted node."""

    NEURON = "it is reserved for pods with Neuron devices"
    OTHERS = "it is reserved for other pods"
    STARTS = "the taint ends by itself"
    LEAVES = "the node goes away"
    MAY_LEAVE = "the node may go away"
    BROKEN = "the node has a fault"


@dataclass(frozen=True, slots=True)
class KnownTaint:
    """A taint. A `key` that ends with a slash stands for all keys that begin with it; an empty `value` for all values.

    - `says`: what it means, as the rest of a sentence about the node.
    - `source`: where that is documented.
    """

    key: str
    meaning: TaintMeaning
    says: str
    source: str
    value: str = ""

    def is_of(self, key: str, value: str) -> bool:
        """Return whether a taint with this key and value is one of these."""
        has_key = key.startswith(self.key) if self.key.endswith("/") else key == self.key
        return has_key and self.value in ("", value)


_KUBERNETES: Final = "https://kubernetes.io/docs/reference/labels-annotations-taints/"
_KARPENTER: Final = "https://karpenter.sh/docs/concepts/disruption/"
_AUTOSCALER: Final = "kubernetes/autoscaler, cluster-autoscaler/utils/taints"
_HYPERPOD: Final = "https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-eks-resiliency-node-labels.html"
_HEALTH: Final = "sagemaker.amazonaws.com/node-health-status"
_FOR_NEURON: Final = "it is reserved for pods with Neuron devices"
_NOT_READY: Final = "; it ends when the kubelet is well again"

KNOWN: Final = (
    KnownTaint("aws.amazon.com/neuron", TaintMeaning.NEURON, _FOR_NEURON, "AWS's examples"),
    KnownTaint(
        "aws.amazon.com/neuroncore", TaintMeaning.NEURON, _FOR_NEURON, "AWS's Neuron chart"
    ),
    KnownTaint(
        "aws.amazon.com/neurondevice", TaintMeaning.NEURON, _FOR_NEURON, "AWS's Neuron chart"
    ),
    KnownTaint(
        _HEALTH,
        TaintMeaning.STARTS,
        "HyperPod's deep health check runs on it; the taint ends if it passes, and the node is replaced if not",
        _HYPERPOD,
        "Unschedulable",
    ),
    KnownTaint(
        _HEALTH, TaintMeaning.BROKEN, "HyperPod's check found a fault, and HyperPod restarts the node", _HYPERPOD,
        "UnschedulablePendingReboot",
    ),
    KnownTaint(
        _HEALTH, TaintMeaning.BROKEN, "HyperPod's check found a fault, and HyperPod replaces the node", _HYPERPOD,
        "UnschedulablePendingReplacement",
    ),
    KnownTaint(_HEALTH, TaintMeaning.BROKEN, "HyperPod does not let pods run on it", _HYPERPOD),
    KnownTaint("karpenter.sh/disrupted", TaintMeaning.LEAVES, "Karpenter is about to remove it", _KARPENTER),
    KnownTaint("karpenter.sh/disruption", TaintMeaning.LEAVES, "Karpenter is about to remove it", _KARPENTER),
    KnownTaint(
        "karpenter.sh/unregistered", TaintMeaning.STARTS, "Karpenter registers it; that ends by itself", _KARPENTER
    ),
    KnownTaint(
        "ToBeDeletedByClusterAutoscaler", TaintMeaning.LEAVES, "the autoscaler is about to remove it", _AUTOSCALER
    ),
    KnownTaint(
        "DeletionCandidateOfClusterAutoscaler", TaintMeaning.MAY_LEAVE, "the autoscaler may remove it soon", _AUTOSCALER
    ),
    KnownTaint(
        "aws-node-termination-handler/",
        TaintMeaning.LEAVES,
        "AWS has announced an interruption of its instance",
        "aws/aws-node-termination-handler, pkg/node/node.go",
    ),
    KnownTaint(
        "node.cloudprovider.kubernetes.io/uninitialized",
        TaintMeaning.STARTS,
        "the cloud controller has not initialised it yet; that ends by itself",
        _KUBERNETES,
    ),
    KnownTaint(
        "node.cloudprovider.kubernetes.io/shutdown", TaintMeaning.LEAVES, "its instance was shut down", _KUBERNETES
    ),
    KnownTaint(
        "ebs.csi.aws.com/agent-not-ready",
        TaintMeaning.STARTS,
        "the EBS CSI driver has not started on it yet, and removes the taint when it has",
        "kubernetes-sigs/aws-ebs-csi-driver, its documentation",
    ),
    KnownTaint(
        "efs.csi.aws.com/agent-not-ready",
        TaintMeaning.STARTS,
        "the EFS CSI driver has not started on it yet, and removes the taint when it has",
        "kubernetes-sigs/aws-efs-csi-driver, its documentation",
    ),
    KnownTaint(
        "node.cilium.io/agent-not-ready",
        TaintMeaning.STARTS,
        "Cilium has not started on it yet, and removes the taint when it has",
        "https://docs.cilium.io/en/stable/installation/taints/",
    ),
    KnownTaint(
        "eks.amazonaws.com/compute-type",
        TaintMeaning.OTHERS,
        "it is a node of EKS Fargate, which has no Neuron devices",
        "https://docs.aws.amazon.com/eks/latest/userguide/fargate.html",
    ),
    KnownTaint("CriticalAddonsOnly", TaintMeaning.OTHERS, "it is reserved for the cluster's own programs", _KUBERNETES),
    KnownTaint(
        "node-role.kubernetes.io/control-plane", TaintMeaning.OTHERS, "it is of the control plane", _KUBERNETES
    ),
    KnownTaint(
        "node.kubernetes.io/out-of-service", TaintMeaning.BROKEN, "an administrator has given it up", _KUBERNETES
    ),
    KnownTaint(
        "node.kubernetes.io/unschedulable", TaintMeaning.BROKEN, "it is cordoned", _KUBERNETES
    ),
    KnownTaint("node.kubernetes.io/not-ready", TaintMeaning.BROKEN, f"it is not Ready{_NOT_READY}", _KUBERNETES),
    KnownTaint(
        "node.kubernetes.io/unreachable", TaintMeaning.BROKEN, f"its kubelet does not answer{_NOT_READY}", _KUBERNETES
    ),
    KnownTaint(
        "node.kubernetes.io/", TaintMeaning.BROKEN, "its kubelet reports a fault; the taint ends with it", _KUBERNETES
    ),
    KnownTaint("nvidia.com/gpu", TaintMeaning.OTHERS, "it is reserved for pods with GPUs", "NVIDIA/k8s-device-plugin"),
)  # fmt: skip
"""Rows for one value come before the row of their key, and a key before its prefix."""


def known(key: str, value: str = "") -> KnownTaint | None:
    """Return what is known about a taint; None for nothing."""
    return next((taint for taint in KNOWN if taint.is_of(key, value)), None)


def announces_removal(key: str) -> bool:
    """Return whether an autoscaler, or AWS, says with this taint that the node will go away soon.

    Candidates of the autoscaler may leave: it only watches them, and most of them stay.
    """
    taint = known(key)
    return taint is not None and taint.meaning is TaintMeaning.LEAVES


def may_leave(key: str, value: str = "") -> bool:
    """Return whether a node with this taint goes away soon, or may: no pod is to be moved there."""
    taint = known(key, value)
    return taint is not None and taint.meaning in (TaintMeaning.LEAVES, TaintMeaning.MAY_LEAVE)


def may_be_tolerated(key: str, value: str = "") -> bool:
    """Return whether a pod with Neuron devices may tolerate a taint: it is there for such pods."""
    taint = known(key, value)
    return taint is not None and taint.meaning is TaintMeaning.NEURON


def text(key: str, value: str, effect: str) -> str:
    """Return a taint as kubectl prints it, with what it means."""
    printed = f"{key}={value}:{effect}" if value else f"{key}:{effect}"
    taint = known(key, value)
    return f"{printed} ({taint.says})" if taint is not None else printed
