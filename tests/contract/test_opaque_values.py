"""What the API server stores of values that no Python decoder reads: opaque ones byte by byte, on both servers."""

from __future__ import annotations

import contextlib
import json

import aiohttp
import pytest

from tests.contract.api_client import Server
from tests.contract.test_api_resources import allocation, claim

OPAQUE = (
    b'{"a":"\\ud800"}',
    b'{"a":"\xff"}',
    b'{"\\ud800\xff":1}',
    b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"a":123456789012345678901234567890}',
    b'{"a":"' + b"x" * 10_000 + b'"}',
)
REJECTED = (b'{"a":1e400}', b'{"a":"' + b"x" * 10_240 + b'"}', b'"\\ud800"', b'["\xff"]', b"null")


def poisoned(name: str, parameters: bytes) -> bytes:
    """A claim with these parameters for another driver."""
    config = [{"opaque": {"driver": "other.example.com", "parameters": "PARAMETERS"}}]
    return json.dumps(claim(name, config=config)).encode().replace(b'"PARAMETERS"', parameters)


async def _raw(server: Server, path: str) -> bytes:
    async with server.session.get(path) as response:
        assert response.status == 200
        return await response.read()


@pytest.mark.parametrize("parameters", OPAQUE, ids=range(len(OPAQUE)))
async def test_opaque_parameters_are_stored_byte_by_byte(server: Server, parameters: bytes) -> None:
    path = server.place("resourceclaims")
    assert (await server.post(path, poisoned("c", parameters))).status == 201
    assert parameters in await _raw(server, f"{path}/c")
    assert parameters in await _raw(server, path)
    assert (await server.patch(f"{path}/c", {"metadata": {"labels": {"a": "b"}}})).status == 200
    assert parameters in await _raw(server, f"{path}/c")
    assert (await server.delete(f"{path}/c")).status == 200


@pytest.mark.parametrize("parameters", REJECTED, ids=range(len(REJECTED)))
async def test_opaque_parameters_that_go_cannot_decode_are_rejected(server: Server, parameters: bytes) -> None:
    path = server.place("resourceclaims")
    with contextlib.suppress(aiohttp.ServerDisconnectedError):  # the real one ends the connection for 1e400
        answer = await server.post(path, poisoned("c", parameters))
        assert answer.status in (400, 422), answer.body
    assert (await server.get(f"{path}/c")).status == 404


async def test_data_of_a_device_is_stored_byte_by_byte(server: Server) -> None:
    path = server.place("resourceclaims")
    await server.made(path, claim())
    entry = {"driver": "neuron.aws.com", "pool": "a", "device": "neuron-device-0", "data": "DATA"}
    status = {"status": {"allocation": allocation("neuron-device-0"), "devices": [entry]}}
    body = json.dumps(status).encode().replace(b'"DATA"', b'{"a":"\\ud800\xff"}')
    answer = await server.patch(f"{path}/c/status", body)
    assert answer.status == 200, answer.body
    assert b'{"a":"\\ud800\xff"}' in await _raw(server, f"{path}/c")


async def test_other_texts_become_valid(server: Server) -> None:
    path = server.place("resourceclaims")
    body = json.dumps({**claim(), "metadata": {"name": "c", "annotations": {"a": "TEXT"}}}).encode()
    assert (await server.post(path, body.replace(b"TEXT", b"x\\ud800y\xffz"))).status == 201
    stored = (await server.get(f"{path}/c")).body
    assert stored["metadata"]["annotations"] == {"a": "x\ufffdy\ufffdz"}


@pytest.mark.parametrize("date", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
async def test_dates_at_both_ends_are_stored(server: Server, date: str) -> None:
    name = f"{server.namespace}-node"
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": date, "lastHeartbeatTime": date}
    await server.made("/api/v1/nodes", {"metadata": {"name": name}})
    answer = await server.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}})
    assert answer.status == 200, answer.body
    [stored] = (await server.get(f"/api/v1/nodes/{name}")).body["status"]["conditions"]
    assert stored["lastTransitionTime"] in (date, None)  # the first second of all is Go's "no time"
