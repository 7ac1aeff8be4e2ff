"""A cluster in which everything that `neuron-dra doctor` checks is installed, as plain objects."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from neuron_dra.ask.doctor.seen import LEASE
from neuron_dra.core.wire import Obj
from tests.support import fast_yaml
from tests.support import small_clusters as small

ROOT = Path(__file__).resolve().parents[2]
NOW = datetime.datetime(2026, 11, 23, 7, 0, tzinfo=datetime.UTC)
MANIFESTS = ROOT / "deploy/manifests"
DRIVER = ("30-admission-policy.yaml", "32-configuration-policy.yaml")
POLICY_FILES = (*DRIVER, "ultraserver/70-reservation-policies.yaml")
OWNER = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "driver", "uid": "uid-driver"}


def crds() -> list[Obj]:
    return [fast_yaml.load(path.read_text()) for path in sorted((ROOT / "deploy/crds").glob("*.yaml"))]


def manifests(*names: str) -> list[Obj]:
    return [item for name in names for item in fast_yaml.load_all((MANIFESTS / name).read_text()) if item]


def driver(node: str, image: str = "neuron-dra-driver:0.1.0", *, ready: bool = True) -> Obj:
    made = small.pod(f"driver-{node}", namespace="neuron-dra-driver", nodeName=node)
    made["metadata"] |= {
        "labels": {"app": "neuron-dra-driver-kubelet-plugin"},
        "ownerReferences": [OWNER],
    }
    made["spec"]["containers"][0]["image"] = image
    made["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
    return made


def controller(*, ready: bool = True) -> Obj:
    made = small.pod("controller-1", namespace="neuron-dra-driver", nodeName="c")
    made["metadata"]["labels"] = {"app.kubernetes.io/name": "neuron-ultraserver-controller"}
    made["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
    return made


def lease(age_s: float, holder: str = "controller-1", now: datetime.datetime = NOW) -> Obj:
    renewed = (now - datetime.timedelta(seconds=age_s)).isoformat()
    meta = {"name": LEASE, "namespace": "neuron-dra-driver"}
    spec = {"holderIdentity": holder, "renewTime": renewed}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}


def healthy() -> list[Obj]:
    """Two nodes with the driver, the controller, and everything that both need."""
    return [
        *small.base("a", "b"), driver("a"), driver("b"), controller(), lease(5), *crds(), *manifests(*POLICY_FILES)
    ]  # fmt: skip


def the(items: Sequence[Obj], kind: str, name: str) -> Obj:
    return next(item for item in items if item["kind"] == kind and item["metadata"]["name"] == name)
