"""The fields that an update cannot change, for the kinds that controller and plugin write, on both servers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from neuron_dra.core.wire import Obj
from tests.contract.api_client import SLICES, Server
from tests.contract.test_api_resources import claim, claim_spec, device_slice

DISCOVERY = "/apis/discovery.k8s.io/v1"


def endpoint_slice(family: str = "IPv4", *addresses: str) -> Obj:
    endpoints = [{"addresses": list(addresses)}] if addresses else []
    return {"metadata": {"name": "s"}, "addressType": family, "endpoints": endpoints, "ports": []}


def template() -> Obj:
    return {"metadata": {"name": "s"}, "spec": {"spec": claim_spec()}}


def at(*path: str) -> Callable[[Obj, Any], None]:
    def change(obj: Obj, value: Any) -> None:
        place = obj
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value

    return change


def path_of(server: Server, plural: str) -> str:
    if plural == "endpointslices":
        return f"{DISCOVERY}/namespaces/{server.namespace}/{plural}"
    return SLICES if plural == "resourceslices" else server.place(plural)


MADE: dict[str, Callable[[Server], Obj]] = {
    "endpointslices": lambda _: endpoint_slice(),
    "resourceclaimtemplates": lambda _: template(),
    "resourceclaims": lambda _: claim("s"),
    "resourceslices": device_slice,
}


@pytest.mark.parametrize(
    ("plural", "change", "value"),
    [
        ("endpointslices", at("addressType"), "IPv6"),
        ("resourceclaimtemplates", at("spec", "spec", "devices", "requests"), None),
        ("resourceclaims", at("spec", "devices", "requests"), None),
        ("resourceslices", at("spec", "driver"), "other.example.com"),
        ("resourceslices", at("spec", "nodeName"), "other"),
        ("resourceslices", at("spec", "pool", "name"), "other"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_immutable_field_is_kept(
    server: Server, plural: str, change: Callable[[Obj, Any], None], value: Any
) -> None:
    path = path_of(server, plural)
    stored = await server.made(path, MADE[plural](server))
    changed = copy.deepcopy(stored)
    change(changed, value)
    where = f"{path}/{stored['metadata']['name']}"
    answer = await server.put(where, changed)
    assert (answer.status, answer.reason) == (422, "Invalid"), answer.body
    assert (await server.get(where)).body == stored


@pytest.mark.parametrize(
    ("made", "status"),
    [
        (endpoint_slice("IPv4", "10.0.0.1"), 201),
        (endpoint_slice("IPv6", "fd00::1"), 201),
        (endpoint_slice("IPv4", "fd00::1"), 422),
        (endpoint_slice("IPv6", "10.0.0.1"), 422),
        (endpoint_slice("IPv5"), 422),
        (endpoint_slice(""), 422),
    ],
)
async def test_endpoint_slice_has_addresses_of_its_family(server: Server, made: Obj, status: int) -> None:
    answer = await server.post(path_of(server, "endpointslices"), made)
    assert answer.status == status, answer.body
