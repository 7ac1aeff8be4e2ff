"""Lists the kubelet's pods, with the claims and devices of their containers, through its pod-resources API."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import grpc

from neuron_dra.core import cdi, dra_driver
from neuron_dra.core.in_use import ListedClaim, ListedPod
from neuron_dra.node.timing import DEFAULT_TIMING

_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),  # as the kubelet's own clients allow
)


_LIST: Final = "/v1.PodResourcesLister/List"
_NAME, _NAMESPACE, _CONTAINERS = 1, 2, 3  # of PodResources
_PODS: Final = 1  # of ListPodResourcesResponse
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of protobuf
_VARINT_BYTES: Final = 10  # of a number with 64 bits, 7 in each byte

_one_at_a_time = threading.Lock()  # a list may take many times its size in memory while it is decoded


async def listed(socket: Path, timeout_s: float = DEFAULT_TIMING.orphans.list_s) -> tuple[ListedPod, ...]:
    """Return all pods that the kubelet lists. Raises ConnectionError if the call fails or the list cannot be decoded.

    Users decide how long the list is, because it has an entry for each container of each pod. It is therefore decoded
    in a thread, container by container, and a claim is kept once for each pod.
    """
    try:
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS) as channel:
            call: Any = channel.unary_unary(_LIST)  # without a decoder: grpc returns None for what it cannot decode
            response = await call(b"", timeout=timeout_s)
    except grpc.aio.AioRpcError as err:
        raise ConnectionError(f"{err.code().name}: {err.details()}") from err
    return await asyncio.to_thread(_decoded, response)


def _decoded(response: bytes) -> tuple[ListedPod, ...]:
    """Return the pods of a list. Raises ConnectionError."""
    # Imported on first use: most nodes never need it.
    from google.protobuf.message import DecodeError

    with _one_at_a_time:
        try:
            return tuple(_pod(value) for number, value in _fields(memoryview(response)) if number == _PODS)
        except (DecodeError, ValueError) as err:
            raise ConnectionError(f"the list of {len(response)} bytes cannot be decoded: {err}") from err


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the numbers and values of those fields of a message that are messages or texts. Raises ValueError."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        match tag & 7:
            case wire_type if wire_type == _VARINT:
                _, end = _varint(message, position)
            case wire_type if wire_type == _BYTES:
                size, position = _varint(message, position)
                end = position + size
            case wire_type if wire_type in (_FIXED32, _FIXED64):
                end = position + (4 if wire_type == _FIXED32 else 8)
            case wire_type:
                raise ValueError(f"wire type {wire_type} at byte {position}")
        if end > len(message):
            raise ValueError(f"the message ends within a field, at byte {position}")
        if tag & 7 == _BYTES:
            yield tag >> 3, message[position:end]
        position = end


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """Return a number, and the position after it. Raises ValueError."""
    number = 0
    for count, byte in enumerate(message[position : position + _VARINT_BYTES]):
        number |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return number, position + count + 1
    raise ValueError(f"no number at byte {position}")


def _pod(message: memoryview) -> ListedPod:
    """Return a pod. Raises ValueError, DecodeError."""
    from neuron_dra.gen.kubelet.podresources.v1 import podresources_pb2

    texts = {_NAME: "", _NAMESPACE: ""}
    claims: dict[tuple[str, str], ListedClaim] = {}
    plugin_resources: set[str] = set()
    for number, value in _fields(message):
        if number in texts:
            texts[number] = str(value, "utf-8")
        if number != _CONTAINERS:
            continue
        container = podresources_pb2.ContainerResources.FromString(bytes(value))
        for wire_claim in container.dynamic_resources:
            claim = _claim(wire_claim, container.name)
            key = (claim.namespace, claim.name)
            earlier = claims.setdefault(key, claim)
            if not earlier.devices >= claim.devices:
                claims[key] = replace(earlier, devices=earlier.devices | claim.devices)
        for plugin_devices in container.devices:
            if plugin_devices.device_ids:
                plugin_resources.add(plugin_devices.resource_name)
    return ListedPod(texts[_NAMESPACE], texts[_NAME], tuple(claims.values()), frozenset(plugin_resources))


def _claim(claim: Any, container: str) -> ListedClaim:
    devices = frozenset(
        (resource.driver_name, resource.pool_name, resource.device_name) for resource in claim.claim_resources
    )
    return ListedClaim(claim.claim_namespace, claim.claim_name, devices, container, _uid(claim))


def _uid(claim: Any) -> str:
    """Return the UID that this driver put into the names of the claim's CDI devices; empty if there is none.

    The kubelet repeats the CDI devices of earlier claims, so the last device that fits is the claim's own.
    """
    for resource in claim.claim_resources:
        driver = dra_driver.BY_NAME.get(resource.driver_name, dra_driver.NEURON)
        for cdi_device in reversed(resource.cdi_devices):
            if uid := cdi.claim_uid_of_device(cdi_device.name, resource.device_name, driver):
                return uid
    return ""
