"""Strange replies of the kubelet's pod-resources API: `PodResources.body` sends one of them in place of the list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from neuron_dra.emulation.pod_resources import Devices, NoPods, Pod, PodResources
from neuron_dra.gen.kubelet.podresources.v1 import podresources_pb2 as pb

__all__ = ["STRANGE_LISTS", "UNDECODABLE", "Devices", "NoPods", "Pod", "PodResources", "huge_list"]


def _one_device(device_id: bytes) -> bytes:
    """Return a list of one pod that has a device of another vendor, whose id may be any bytes, as kubelets send it."""
    device = pb.ContainerDevices(resource_name="vendor.example.com/fpga", device_ids=["X" * len(device_id)])
    container = pb.ContainerResources(name="main", devices=[device])
    pod = pb.PodResources(name="theirs", namespace="default", containers=[container])
    pods = pb.ListPodResourcesResponse(pod_resources=[pod]).SerializeToString()
    return pods.replace(b"X" * len(device_id), device_id)


STRANGE_LISTS: Final[Mapping[str, bytes]] = {
    "no pods": b"",
    "empty pods": pb.ListPodResourcesResponse(pod_resources=[pb.PodResources()] * 3).SerializeToString(),
    "unknown fields": _one_device(b"SN-01") + b"\xfa\x07\x03new",
    "no UTF-8": _one_device(b"SN\xff\xfe01"),
    "half a list": _one_device(b"SN-01")[:-4],
    "no protobuf": b"\xff" * 64,
    "a page of HTML": b"<html><body>Please log in</body></html>",
    "deeply nested groups": b"\x0b" * 100_000,
}
"""Replies by name, for parametrized tests. A kubelet that starts lists no pods until it has read them."""

UNDECODABLE: Final = ("no UTF-8", "half a list", "no protobuf", "a page of HTML", "deeply nested groups")
"""Those of STRANGE_LISTS that are no list."""


def huge_list(size_bytes: int) -> bytes:
    """Return a list of at least this size: pods of 6,000 containers that share a claim, as one user may make."""
    resource = pb.ClaimResource(driver_name="neuron.aws.com", pool_name="node-a", device_name="neuron-device-0")
    claim = pb.DynamicResource(claim_name="shared", claim_namespace="default", claim_resources=[resource])
    containers = [pb.ContainerResources(name=f"c{number}", dynamic_resources=[claim]) for number in range(6000)]
    pod = pb.PodResources(name="huge", namespace="default", containers=containers)
    pods = pb.ListPodResourcesResponse(pod_resources=[pod]).SerializeToString()
    return pods * -(-size_bytes // len(pods))  # lists of protobuf are joined by writing one after the other
