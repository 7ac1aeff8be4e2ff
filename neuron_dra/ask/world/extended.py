"""The requests of the claim that the scheduler makes for extended resources that DeviceClasses serve. Pure.

A container that ends before the main ones start uses the devices of later containers that stay, under the same name.
What they do not have is requested once, for all such containers.

Source: kubernetes@v1.37.0 pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go,
createRequestsAndMappings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from neuron_dra.ask.read.claim_views import RequestView
from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.views import ObjectView
from neuron_dra.core.wire import Obj, Wire

_NAME: Final = re.compile(r"container-(\d{1,4})-request-(\d{1,4})", re.ASCII)


class _RequestMapping(ObjectView, frozen=True):
    container_name: str = ""
    request_name: str = ""


class _RequestMappings(ObjectView, frozen=True):
    request_mappings: tuple[_RequestMapping, ...] = ()


class _MappedStatus(ObjectView, frozen=True):
    extended_resource_claim_status: _RequestMappings = _RequestMappings()


class _MappedPod(ObjectView, frozen=True):
    status: _MappedStatus = _MappedStatus()


def requests(pod: Wire, class_of: Callable[[str], str]) -> list[Obj]:
    """Return the requests; `class_of` returns the DeviceClass that serves a resource, or an empty string."""
    spec = PodView.of(pod).spec
    inits, main = spec.init_containers, spec.containers
    ends = [*(container.restart_policy != "Always" for container in inits), *(False for _ in main)]
    resources_by_container = [container.resources.wanted for container in (*inits, *main)]
    claim_requests: list[Obj] = []
    for resource in sorted({name for container_resources in resources_by_container for name in container_resources}):
        device_class = class_of(resource)
        if device_class:
            claim_requests += _of_resource(resource, device_class, resources_by_container, ends)
    return sorted(claim_requests, key=lambda request: str(request["name"]))


def containers_of(pod: Wire, claim_requests: Sequence[RequestView]) -> list[tuple[str, str]]:
    """Return which container sees the devices of which of these requests: pairs of their names.

    The scheduler writes them into the pod's status. Before that they follow from the rule for the requests: a container
    that ends early sees those of later containers for the same resource.
    """
    pod_view = PodView.of(pod)
    written = _MappedPod.of(pod).status.extended_resource_claim_status.request_mappings
    if written:
        return [(mapping.container_name, mapping.request_name) for mapping in written]
    return [(container, request) for container, _, request in _derived(pod_view, claim_requests)]


def mappings(pod: Wire, claim_requests: Sequence[RequestView]) -> list[Obj]:
    """Return what the scheduler writes into the status of a pod: which container has the devices of which request."""
    return [
        {"containerName": container, "resourceName": resource, "requestName": request}
        for container, resource, request in _derived(PodView.of(pod), claim_requests)
    ]


def _derived(pod_view: PodView, claim_requests: Sequence[RequestView]) -> Iterator[tuple[str, str, str]]:
    """Yield which container sees the devices of which request, and for which resource."""
    listed = pod_view.spec.all_containers
    ends = [container.restart_policy != "Always" for container in pod_view.spec.init_containers]
    ends += [False] * len(pod_view.spec.containers)
    for request in claim_requests:
        match = _NAME.fullmatch(request.name)
        if match is None or int(match[1]) >= len(listed):
            continue
        owner = int(match[1])
        resources = sorted(listed[owner].resources.wanted)
        resource = resources[int(match[2])] if int(match[2]) < len(resources) else ""
        for index, container in enumerate(listed):
            shares = ends[index] and (index < owner or ends[owner]) and resource in container.resources.wanted
            if index == owner or shares:
                yield container.name, resource, request.name


def _of_resource(
    resource: str, device_class: str, resources_by_container: Sequence[dict[str, Any]], ends: Sequence[bool]
) -> list[Obj]:
    stay: list[Obj | None] = []  # the requests of the containers that do not end before others start
    for index, container_resources in enumerate(resources_by_container):
        container_request = None
        if not ends[index]:
            count = _count(container_resources, resource)
            container_request = _request(index, resource, device_class, count, container_resources)
        stay.append(container_request)
    largest: Obj | None = None
    for index, container_resources in enumerate(resources_by_container):
        if not ends[index]:
            continue
        shared = sum(int(request["exactly"]["count"]) for request in stay[index:] if request is not None)
        missing = _count(container_resources, resource) - shared
        container_request = _request(index, resource, device_class, missing, container_resources)
        if container_request is None:
            continue
        if largest is None or largest["exactly"]["count"] < container_request["exactly"]["count"]:
            largest = container_request
    return [request for request in (largest, *stay) if request is not None]


def _count(container_resources: dict[str, Any], resource: str) -> int:
    amount = str(container_resources.get(resource, 0))
    if amount.isdecimal():
        return int(amount)
    return 0


def _request(
    index: int, resource: str, device_class: str, count: int, container_resources: dict[str, Any]
) -> Obj | None:
    """Return the request of a container for more devices; None if it needs none."""
    if count <= 0:
        return None
    name = f"container-{index}-request-{sorted(container_resources).index(resource)}"
    exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
    return {"name": name, "exactly": exactly}
