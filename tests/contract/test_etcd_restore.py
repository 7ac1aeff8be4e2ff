"""An API server whose etcd was restored from a backup: the double, and what the clients of this project make of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from neuron_dra.emulation.embedded_api import Ahead, EmbeddedApi, refused_watch
from neuron_dra.errors import Unavailable
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import NODES
from tests.support.timings import QUICK_CLIENT, quicker
from tests.support.waiting import eventually

MAPS = "/api/v1/namespaces/default/configmaps"
SWIFT = quicker(QUICK_CLIENT, watch={"length_s": (1, 1), "bookmarks_s": 0.4, "silence_s": 5.0, "retry_s": (0.01, 0.05)})


@pytest.fixture
async def api() -> AsyncIterator[EmbeddedApi]:
    async with EmbeddedApi() as api:
        api.watches.bookmark_interval_s = 0.1
        yield api


@pytest.fixture
async def http(api: EmbeddedApi) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(api.url, timeout=aiohttp.ClientTimeout(total=10)) as session:
        yield session


def config_map(name: str = "a", **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def node(label: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": {"at": label}}}


# The double


async def test_restore_brings_back_objects_and_versions(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    before = api.create(config_map("kept", at="backup"))
    deleted_later = api.create(config_map("deleted"))
    backup = api.backup()
    api.patch("configmaps", "kept", {"data": {"at": "later"}})
    api.delete("configmaps", "deleted")
    lost = api.create(config_map("lost"))
    api.restore(backup)
    assert api.objects("configmaps") == [deleted_later, before]
    async with http.get(MAPS) as response:
        version = int((await response.json())["metadata"]["resourceVersion"])
    assert version == int(deleted_later["metadata"]["resourceVersion"]) < int(lost["metadata"]["resourceVersion"])
    again = api.create(config_map("lost"))
    assert int(again["metadata"]["resourceVersion"]) == version + 1
    assert again["metadata"]["uid"] != lost["metadata"]["uid"]


async def test_backup_can_be_restored_twice(api: EmbeddedApi) -> None:
    api.create(config_map())
    backup = api.backup()
    for _ in range(2):
        api.create(config_map("later"))
        api.restore(backup)
        assert [found["metadata"]["name"] for found in api.objects("configmaps")] == ["a"]


async def test_restore_ends_watches_or_leaves_them_silent(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    backup = api.backup()
    api.create(config_map())
    version = str(api.store.revision)
    params = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "1"}
    async with http.get(MAPS, params=params) as watch:
        api.restore(backup, ends_watches=False)
        assert api.watches.count() == 1
        for _ in range(2):
            api.create(config_map(f"n{api.store.revision}"))
        first = await watch.content.readline()  # of the first version that this watch has not reached
        assert f'"resourceVersion":"{int(version) + 1}"'.encode() in first
    async with http.get(MAPS, params={**params, "resourceVersion": str(api.store.revision)}) as watch:
        api.restore(backup)
        assert b"ADDED" not in await watch.read()


@pytest.mark.parametrize(("ahead", "codes"), [(Ahead.SILENT, []), (Ahead.EXPIRED, [410])])
async def test_watch_from_the_lost_time_is_accepted(api: EmbeddedApi, ahead: Ahead, codes: list[int]) -> None:
    api.watches.ahead = ahead
    for client in clients(api):
        async with client, client.watch(NODES, "", from_the_future(api), idle_timeout_s=10.0) as watch:
            events = [json.loads(line) async for line in watch]
        assert [event["object"]["code"] for event in events] == codes


async def test_watch_from_the_lost_time_can_be_refused(api: EmbeddedApi) -> None:
    api.watches.ahead = Ahead.REFUSED
    for client in clients(api):
        async with client:
            with pytest.raises(Unavailable, match="Too large resource version") as refusal:
                async with client.watch(NODES, "", from_the_future(api), idle_timeout_s=10.0) as watch:
                    await anext(watch)
            assert (refusal.value.status, refusal.value.reason) == (504, "Timeout")


def clients(api: EmbeddedApi) -> tuple[KubeClient, KubeClient]:
    """Return a client that uses HTTP, and one that does not."""
    return KubeClient(KubeConfig(api.url)), api.client()


def from_the_future(api: EmbeddedApi) -> dict[str, str]:
    return {"resourceVersion": str(api.store.revision + 100), "timeoutSeconds": "1"}


async def test_controllers_begin_again_after_a_restore(api: EmbeddedApi) -> None:
    owner = api.create(config_map("owner"))
    backup = api.backup()
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    api.restore(backup)
    child = config_map("child")
    child["metadata"]["ownerReferences"] = [reference]
    api.create(child)
    api.delete("configmaps", "owner")
    await api.settle()
    assert api.objects("configmaps") == []


# What the reflector makes of it


@contextlib.asynccontextmanager
async def reflecting(api: EmbeddedApi) -> AsyncIterator[Reflector]:
    async with KubeClient(KubeConfig(api.url), timing=SWIFT) as client:
        reflector = Reflector(client, NODES, field_selector="metadata.name=a")
        task = asyncio.create_task(reflector.run())
        try:
            await reflector.synced.wait()
            yield reflector
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def label(reflector: Reflector) -> str:
    return str(reflector.items["/a"]["metadata"]["labels"]["at"])


async def within_watches(api: EmbeddedApi, number: int, condition: Callable[[], bool]) -> bool:
    """Return True once the condition is true, and False if it is not after so many more watches."""
    last = len(api.requests("watch", "nodes")) + number
    await eventually(lambda: condition() or len(api.requests("watch", "nodes")) > last)
    return condition()


async def restored(api: EmbeddedApi, reflector: Reflector) -> None:
    """Let the reflector get ahead, restore, and change the node once more."""
    backup = api.backup()
    for number in range(50):
        api.apply(node(f"lost-{number}"))
    await eventually(lambda: label(reflector) == "lost-49")
    api.restore(backup)
    api.apply(node("restored"))


@pytest.mark.parametrize(
    "ahead",
    [
        Ahead.SILENT,
        Ahead.REFUSED,
        Ahead.EXPIRED,
    ],
)
async def test_objects_are_listed_again_after_a_restore(api: EmbeddedApi, ahead: Ahead) -> None:
    api.watches.ahead = ahead
    api.create(node("first"))
    async with reflecting(api) as reflector:
        await restored(api, reflector)
        assert await within_watches(api, 5, lambda: label(reflector) == "restored")


async def test_silent_watch_without_earlier_bookmarks_is_replaced_by_a_list(api: EmbeddedApi) -> None:
    """A kind that has not changed since the API server started may get no bookmark."""
    api.watches.ahead = Ahead.SILENT
    api.watches.bookmark_interval_s = 3600.0
    api.create(node("first"))
    async with reflecting(api) as reflector:
        await restored(api, reflector)
        assert await within_watches(api, 5, lambda: label(reflector) == "restored")


async def test_refused_watch_is_replaced_by_lists(api: EmbeddedApi) -> None:
    api.create(node("first"))
    async with reflecting(api) as reflector:
        fault = api.faults.add(refused_watch("nodes"))
        await api.refuse_connections()
        await api.resume()
        await eventually(lambda: fault.hits > 3)
        api.apply(node("second"))
        assert await within_watches(api, 50, lambda: label(reflector) == "second")
