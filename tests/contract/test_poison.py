"""One object with values that no decoder reads costs no other: lists, watches and single reads of all programs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from controller.observe.caches import Caches
from controller.timing import DEFAULT_TIMING
from neuron_dra.api import claims as wire
from neuron_dra.api.objects import node_object
from neuron_dra.ask.read import cluster
from neuron_dra.core.claims import ClaimRef
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import RESOURCE_CLAIMS
from neuron_dra.node.prepare.claim_reader import ClaimReader
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from tests.support.timings import QUICK_CLIENT
from tests.support.waiting import eventually

POISON = {
    "half of a pair": b'{"a":"\\ud800"}',
    "half of a pair in a name": b'{"\\udfff":1}',
    "bytes": b'{"a":"\xff\xed\xa0\x80"}',
    "bytes in a name": b'{"\xff":1}',
    "nesting": b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
}


@pytest.fixture(params=POISON.values(), ids=list(POISON))
def poison(request: pytest.FixtureRequest) -> bytes:
    return bytes(request.param)


@pytest.fixture
async def api() -> AsyncIterator[EmbeddedApi]:
    async with EmbeddedApi(controllers=False) as server:
        server.create(node_object("node-a"))
        yield server


@pytest.fixture
async def client(api: EmbeddedApi) -> AsyncIterator[KubeClient]:
    async with KubeClient(KubeConfig(api.url), timing=QUICK_CLIENT) as made:
        yield made


def claim(name: str, parameters: object = None, driver: str = "other.example.com") -> Obj:
    """An allocated claim of node-a; with `parameters`, for another driver."""
    config = [{"opaque": {"driver": driver, "parameters": parameters}}] if parameters is not None else []
    request = {"name": "r", "exactly": {"deviceClassName": "neuron.aws.com"}}
    results = [{"request": "r", "driver": "neuron.aws.com", "pool": "node-a", "device": f"neuron-device-{name[-1]}"}]
    allocated = {"devices": {"results": results, "config": [{"source": "FromClaim", **each} for each in config]}}
    users = [{"resource": "pods", "name": f"pod-{name}", "uid": f"uid-{name}"}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request], "config": config}},
        "status": {"allocation": allocated, "reservedFor": users},
    }


def template(name: str, parameters: object) -> Obj:
    spec = claim(name, parameters)["spec"]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": spec},
    }


@contextlib.asynccontextmanager
async def running(reflector: Reflector) -> AsyncIterator[Reflector]:
    task = asyncio.create_task(reflector.run())
    try:
        async with asyncio.timeout(120):
            await reflector.synced.wait()
        yield reflector
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_list_keeps_every_object(api: EmbeddedApi, client: KubeClient, poison: bytes) -> None:
    api.apply(claim("c1"))
    api.apply(claim("c2", msgspec.Raw(poison)))
    api.apply(claim("c3"))
    claims = Reflector(client, RESOURCE_CLAIMS)
    await claims.relist()
    assert list(claims.items) == ["default/c1", "default/c2", "default/c3"]
    assert claims.items["default/c2"]["status"]["allocation"]["devices"]["results"][0]["device"] == "neuron-device-2"


async def test_watch_keeps_every_object(api: EmbeddedApi, client: KubeClient, poison: bytes) -> None:
    """ADDED, MODIFIED there and back, and DELETED, which frees."""
    api.apply(claim("c1"))
    async with running(Reflector(client, RESOURCE_CLAIMS)) as claims:
        api.apply(claim("c2", msgspec.Raw(poison)))
        api.apply(claim("c3"))
        await eventually(lambda: set(claims.items) == {"default/c1", "default/c2", "default/c3"})
        entry = {"driver": "neuron.aws.com", "pool": "node-a", "device": "neuron-device-3"}
        both: tuple[object, ...] = (msgspec.Raw(poison), {})
        for data in both:
            api.patch("resourceclaims", "c3", {"status": {"devices": [{**entry, "data": data}]}}, "default")
            version = api.get("resourceclaims", "c3", "default")["metadata"]["resourceVersion"]
            await eventually(lambda seen=version: claims.items["default/c3"]["metadata"]["resourceVersion"] == seen)
        api.delete("resourceclaims", "c2", "default")
        await eventually(lambda: set(claims.items) == {"default/c1", "default/c3"})
    assert len(api.requests("list", "resourceclaims")) == 1


async def test_controller_reads_templates_and_claims(api: EmbeddedApi, client: KubeClient, poison: bytes) -> None:
    api.apply(claim("c2", msgspec.Raw(poison)))
    api.apply(claim("c3", msgspec.Raw(poison), driver="neuron.aws.com"))
    api.apply(template("t", msgspec.Raw(poison)))
    caches = Caches(client, lambda: None, FleetIndex(), DEFAULT_TIMING.caches)
    await caches.claims.relist()
    await caches.templates.relist()
    index = caches.index()
    assert sorted((use.name, use.nodes) for use in index.claims) == [("c2", ("node-a",)), ("c3", ("node-a",))]
    assert list(caches.templates.items) == ["default/t"]


async def test_plugin_reads_its_claims(api: EmbeddedApi, client: KubeClient, poison: bytes) -> None:
    api.apply(claim("c1"))
    stored = api.apply(claim("c2", msgspec.Raw(poison)))
    reader = ClaimReader(client, "node-a")
    ref = ClaimRef("default", "c2", stored["metadata"]["uid"])
    assert [each.device for each in (await reader.fetch(ref)).devices] == ["neuron-device-2"]
    found = await reader.find(ref)
    assert found is not None
    assert wire.first_pod(found) == "pod-c2"
    assert [each.ref.name async for each in reader.allocated()] == ["c1", "c2"]


async def test_command_line_reads_and_names_it(api: EmbeddedApi, client: KubeClient, poison: bytes) -> None:
    api.apply(claim("c1"))
    api.apply(claim("c2", msgspec.Raw(poison)))
    api.apply(template("t", msgspec.Raw(poison)))
    found = await asyncio.to_thread(cluster.read, KubeConfig(api.url), "default")
    assert {each["metadata"]["name"] for each in found.all("ResourceClaim")} == {"c1", "c2"}
    assert [(each.kind, each.key) for each in found.damaged] == [
        ("ResourceClaim", "default/c2"),
        ("ResourceClaimTemplate", "default/t"),
    ]


async def test_page_that_is_too_large_is_read_in_parts(api: EmbeddedApi, client: KubeClient) -> None:
    for number in range(60):
        api.apply(claim(f"c{number:02}", {"text": "x" * 9_000} if 10 < number < 40 else None))
    pages = [page async for page in client.list(RESOURCE_CLAIMS, most_bytes=100_000)]
    names = [item["metadata"]["name"] for page in pages for item in page.decoded(dict).objects]
    assert names == [f"c{number:02}" for number in range(60)]
    assert all(len(page.raw) <= 100_000 for page in pages)


async def test_one_object_above_the_size_of_a_page_is_read(
    api: EmbeddedApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neuron_dra.kube.client.LARGE_PAGE_BYTES", 10_000)
    for name in ("c1", "c2", "c3"):
        api.apply(claim(name, {"text": "x" * 9_000}))
    pages = [page async for page in client.list(RESOURCE_CLAIMS)]
    assert [item["metadata"]["name"] for page in pages for item in page.decoded(dict).objects] == ["c1", "c2", "c3"]
