"""Lists the kubelet's pods, with the claims and devices of their containers, through its pod-resources API."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import grpc

from neuron_dra.core import cdi
from neuron_dra.core.in_use import ListedClaim, ListedPod
from neuron_dra.node.timing import DEFAULT_TIMING

_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),  # as the kubelet's own clients allow
)


async def listed(socket: Path, timeout_s: float = DEFAULT_TIMING.orphans.list_s) -> tuple[ListedPod, ...]:
    """Return all pods that the kubelet lists. Raises ConnectionError if the call fails."""
    # Imported on first use: most nodes never need it.
    from neuron_dra.gen.kubelet.podresources.v1 import podresources_pb2, podresources_pb2_grpc

    try:
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS) as channel:
            stub = podresources_pb2_grpc.PodResourcesListerStub(channel)
            answer = await stub.List(podresources_pb2.ListPodResourcesRequest(), timeout=timeout_s)
    except grpc.aio.AioRpcError as err:
        raise ConnectionError(f"{err.code().name}: {err.details()}") from err
    return tuple(_pod(pod) for pod in answer.pod_resources)


def _pod(pod: Any) -> ListedPod:
    claims: list[ListedClaim] = []
    extended_resources: set[str] = set()
    for container in pod.containers:
        for claim in container.dynamic_resources:
            claims.append(_claim(claim, container.name))
        for given in container.devices:
            if given.device_ids:
                extended_resources.add(given.resource_name)
    return ListedPod(pod.namespace, pod.name, tuple(claims), frozenset(extended_resources))


def _claim(claim: Any, container: str) -> ListedClaim:
    devices = frozenset((each.driver_name, each.pool_name, each.device_name) for each in claim.claim_resources)
    return ListedClaim(claim.claim_namespace, claim.claim_name, devices, container, _uid(claim))


def _uid(claim: Any) -> str:
    """Return the UID that this driver put into the names of the claim's CDI devices; empty if there is none.

    The kubelet repeats the CDI devices of the claims before, so the last one that fits is the claim's own.
    """
    for resource in claim.claim_resources:
        for given in reversed(resource.cdi_devices):
            if uid := cdi.claim_uid_of_device(given.name, resource.device_name):
                return uid
    return ""
