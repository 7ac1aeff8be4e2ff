"""What else a cluster has: pods with claims of another driver on every node, and workloads that wait for room.

The claims are allocated and reserved, the pods run. No kubelet and no scheduler is involved: only the objects count here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from hack.bench.cluster import PLACE, Cluster, workload
from hack.bench.shared import few_at_a_time
from neuron_dra.core.wire import Obj
from neuron_dra.kube.client import MERGE_PATCH
from neuron_dra.kube.requests import NEURON_WORKLOADS, PODS, RESOURCE_CLAIMS

DRIVER: Final = "network.example.com"
CLAIMS_OF_A_POD: Final = 4
IN_FLIGHT: Final = 32


async def pods_with_claims(cluster: Cluster, nodes: Sequence[str]) -> None:
    """Create a running pod with four allocated claims on each node."""
    slots = asyncio.Semaphore(IN_FLIGHT)
    await few_at_a_time(slots, (_one_pod(cluster, node) for node in nodes))


async def _one_pod(cluster: Cluster, node: str) -> None:
    name = f"beside-{node}"
    claims = [f"{name}-{number}" for number in range(CLAIMS_OF_A_POD)]
    stored = await cluster.client.create(PODS, PLACE, _pod(name, node, claims))
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    await cluster.client.request("PATCH", PODS.path(PLACE, name, "status"), body=running, content_type=MERGE_PATCH)
    for number, claim in enumerate(claims):
        await cluster.client.create(RESOURCE_CLAIMS, PLACE, _claim(claim))
        status = {"status": _allocated(node, number, name, stored["metadata"]["uid"])}
        await cluster.client.request(
            "PATCH", RESOURCE_CLAIMS.path(PLACE, claim, "status"), body=status, content_type=MERGE_PATCH
        )


def _pod(name: str, node: str, claims: Sequence[str]) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "serviceAccountName": "default",
            "automountServiceAccountToken": False,
            "resourceClaims": [{"name": claim[-1:].rjust(2, "c"), "resourceClaimName": claim} for claim in claims],
            "containers": [{"name": "main", "image": "registry.example/beside:1"}],
        },
    }


def _claim(name: str) -> Obj:
    request = {"name": "nic", "exactly": {"deviceClassName": DRIVER}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }


def _allocated(node: str, number: int, pod: str, uid: str) -> Obj:
    result = {"request": "nic", "driver": DRIVER, "pool": node, "device": f"nic-{number}"}
    return {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": pod, "uid": uid}],
    }


async def waiting_workloads(cluster: Cluster, count: int, ultraservers: int) -> None:
    """Create workloads that each want more than `ultraservers` UltraServers, all with different numbers."""
    slots = asyncio.Semaphore(IN_FLIGHT)
    sizes = range(ultraservers + 1, 1025)

    async def one(number: int) -> None:
        body = workload(f"waits-{number}", sizes[number % len(sizes)])
        await cluster.client.create(NEURON_WORKLOADS, PLACE, body)

    await few_at_a_time(slots, (one(number) for number in range(count)))


async def end(cluster: Cluster, names: Sequence[str]) -> None:
    """Delete workloads, and wait until they are gone."""
    slots = asyncio.Semaphore(IN_FLIGHT)
    await few_at_a_time(slots, (cluster.client.delete(NEURON_WORKLOADS, PLACE, name) for name in names))
    for name in names:
        await cluster.reaches(name, "gone", timeout_s=300)
