"""What an administrator and kubelets have put into the demo's API server: the Nodes, and the driver's manifests."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Final

import yaml

from neuron_dra.core import efa, names
from neuron_dra.core.dra_driver import EFA
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.admission import MUTATING, MutatingPolicies
from neuron_dra.emulation.embedded_api import EmbeddedApi

_HERE: Final = Path(__file__).parent
MANIFESTS: Final = (
    "connected-sets/20-deviceclasses.yaml",
    "connected-sets/30-admission-policy.yaml",
    "connected-sets/32-configuration-policy.yaml",
    "connected-sets/35-limits-policies.yaml",
    "connected-sets/40-daemonset.yaml",
    "ultraserver/50-ultraserver-controller.yaml",
    "ultraserver/60-ultraserver-access.yaml",
    "ultraserver/70-reservation-policies.yaml",
)
KUBELET: Final = "v1.37.0"
_ADMISSION: Final = "admissionregistration.k8s.io"
_SIZES: Final = {"trn1.2xlarge": ("8", "30Gi"), "trn2.48xlarge": ("192", "2000Gi"), "trn2u.48xlarge": ("192", "2000Gi")}
"""vCPUs and about the memory that a kubelet reports, by instance type."""


def apply(api: EmbeddedApi) -> None:
    """Install the driver's objects, and let its policy rewrite the limits of pods in the namespace default.

    The validating policies are stored, as on a cluster, but not evaluated: they judge users, and the demo has none.
    """
    api.register("", ("v1",), "ResourceQuota", "resourcequotas")
    api.register("resource.k8s.io", ("v1",), "DeviceTaintRule", "devicetaintrules", namespaced=False)
    api.register("apiextensions.k8s.io", ("v1",), "CustomResourceDefinition", "customresourcedefinitions",
                 namespaced=False, short_names=("crd", "crds"))  # fmt: skip
    for kind in (MUTATING, "ValidatingAdmissionPolicy"):
        api.register(_ADMISSION, ("v1",), kind, f"{kind.lower().removesuffix('y')}ies", namespaced=False)
        api.register(_ADMISSION, ("v1",), f"{kind}Binding", f"{kind.lower()}bindings", namespaced=False)
    api.store.mutators.append(MutatingPolicies(api.store))
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    labels = {"labels": {names.REWRITES_LIMITS: "true"}}
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", **labels}})
    for item in _manifests():
        if item["kind"] == "Deployment":
            item = {**item, "spec": {**item["spec"], "replicas": 1}}  # the demo runs one process of the controller
        if item["kind"] == "CustomResourceDefinition":
            api.publish_schema(item)
        api.apply(item)


@functools.cache
def _manifests() -> tuple[Obj, ...]:
    files = [*sorted((_HERE / "crds").glob("*.yaml")), *(_HERE / "manifests" / name for name in MANIFESTS)]
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # without it, the CRDs and policies take seconds
    return tuple(item for file in files for item in yaml.load_all(file.read_text(), loader) if item)


def node_object(name: str, instance_type: str) -> Obj:
    """Return a Node as a kubelet registers it."""
    cpu, memory = _SIZES.get(instance_type, ("96", "500Gi"))
    amounts = {"cpu": cpu, "memory": memory, "pods": "110"}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        names.INSTANCE_TYPE_LABEL: instance_type,
    }
    info = {
        "kubeletVersion": KUBELET,
        "containerRuntimeVersion": "containerd://2.1.4",
        "operatingSystem": "linux",
        "architecture": "amd64",
        "osImage": "simulated",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"conditions": [ready], "capacity": amounts, "allocatable": amounts, "nodeInfo": info},
    }


def efa_class() -> Obj:
    """Return the chart's DeviceClass of EFA interfaces."""
    domain = f"device.attributes['{EFA.name}']"
    expression = f"device.driver == '{EFA.name}' && has({domain}.pciDevice) && {domain}.pciDevice == '{efa.PCI_DEVICE}'"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": efa.CLASS},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }
