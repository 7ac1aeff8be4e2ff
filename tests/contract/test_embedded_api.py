"""Features of the embedded API server alone: injected faults, counted requests, and direct changes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from neuron_dra.emulation.embedded_api import (
    NOT_FOUND,
    STRANGE,
    Do,
    EmbeddedApi,
    InjectedFault,
    StatusError,
    refused_watch,
)
from neuron_dra.kube.client import MERGE_PATCH, KubeClient
from neuron_dra.kube.config import KubeConfig
from tests.support.waiting import always, eventually

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
async def api() -> AsyncIterator[EmbeddedApi]:
    async with EmbeddedApi() as api:
        yield api


@pytest.fixture
async def http(api: EmbeddedApi) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(api.url, timeout=aiohttp.ClientTimeout(total=5)) as session:
        yield session


def config_map(name: str = "a", **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def device_slice(name: str = "s", **device: Any) -> dict[str, Any]:
    spec = {
        "driver": "neuron.aws.com",
        "nodeName": "a",
        "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "neuron-device-0", **device}],
    }
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


# Faults


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, "Unauthorized"),
        (409, "Conflict"),
        (410, "Expired"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
    ],
)
async def test_a_fault_answers_with_a_status(
    api: EmbeddedApi, http: aiohttp.ClientSession, status: int, reason: str
) -> None:
    fault = api.faults.add(InjectedFault(status=status, verb="get", resource="configmaps", retry_after=3))
    api.create(config_map())
    async with http.get(f"{MAPS}/a") as response:
        body = await response.json()
    assert (response.status, body["kind"], body["reason"], body["code"]) == (status, "Status", reason, status)
    assert response.headers["Retry-After"] == "3"
    assert body["details"]["retryAfterSeconds"] == 3
    async with http.get(f"{MAPS}/a") as response:
        assert response.status == 200
    assert fault.hits == 1


async def test_fault_starts_at_nth_and_ends_after_times(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    api.create(config_map())
    api.faults.add(InjectedFault(status=500, verb="get", name="a", nth=2, times=2))
    statuses = []
    for _ in range(5):
        async with http.get(f"{MAPS}/a") as response:
            statuses.append(response.status)
    assert statuses == [200, 500, 500, 200, 200]


async def test_fault_matches_verb_resource_and_name(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    api.create(config_map("a"))
    api.create(config_map("b"))
    api.faults.add(
        InjectedFault(status=500, verb="get", resource="configmaps", namespace="default", name="b", times=None)
    )
    for name, status in (("a", 200), ("b", 500)):
        async with http.get(f"{MAPS}/{name}") as response:
            assert response.status == status
    async with http.get(MAPS) as response:
        assert response.status == 200
    api.faults.clear()
    async with http.get(f"{MAPS}/b") as response:
        assert response.status == 200


async def test_fault_on_a_subresource_spares_the_object(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}})
    api.faults.add(InjectedFault(status=403, resource="nodes/status"))
    headers = {"Content-Type": "application/merge-patch+json"}
    async with http.patch("/api/v1/nodes/a", json={"metadata": {"labels": {"x": "y"}}}, headers=headers) as response:
        assert response.status == 200
    async with http.patch("/api/v1/nodes/a/status", json={"status": {}}, headers=headers) as response:
        assert response.status == 403


async def test_a_fault_can_speak_as_a_proxy_does(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    api.faults.add(InjectedFault(status=502, body=b"<html>Bad Gateway</html>"))
    async with http.get(MAPS) as response:
        assert (response.status, response.content_type) == (502, "text/plain")
        assert await response.text() == "<html>Bad Gateway</html>"


@pytest.mark.parametrize("name", STRANGE)
async def test_fault_sends_each_malformed_reply(api: EmbeddedApi, http: aiohttp.ClientSession, name: str) -> None:
    strange = STRANGE[name]
    api.faults.add(strange.fault(verb="list", resource="configmaps", retry_after="Thu, 01 Jan 2026 00:00:00 GMT"))
    async with http.get(MAPS) as response:
        assert (response.status, response.content_type) == (strange.status, strange.content_type)
        assert response.headers["Retry-After"] == "Thu, 01 Jan 2026 00:00:00 GMT"
        assert await response.read() == strange.body
    async with http.get(MAPS) as response:
        assert (await response.json())["kind"] == "ConfigMapList"


@pytest.mark.parametrize("name", NOT_FOUND)
async def test_404_can_name_no_object(api: EmbeddedApi, http: aiohttp.ClientSession, name: str) -> None:
    api.create(config_map())
    api.faults.add(NOT_FOUND[name].fault(verb="get", resource="configmaps"))
    async with http.get(f"{MAPS}/a") as response:
        assert (response.status, await response.read()) == (404, NOT_FOUND[name].body)
    async with http.get(f"{MAPS}/a") as response:
        assert response.status == 200


async def test_404_can_name_an_object_that_is_there(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    async with http.get(f"{MAPS}/a") as response:
        missing = await response.json()
    api.create(config_map())
    api.faults.add(InjectedFault(Do.NOT_FOUND, verb="get", resource="configmaps"))
    async with http.get(f"{MAPS}/a") as response:
        assert (response.status, await response.json()) == (404, missing)
    assert missing["details"] == {"name": "a", "kind": "configmaps"}
    async with http.get(f"{MAPS}/a") as response:
        assert response.status == 200


async def test_watches_are_refused_while_lists_work(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    fault = api.faults.add(refused_watch("configmaps"))
    for params, status in (({"watch": "1"}, 504), ({}, 200), ({"watch": "1"}, 504)):
        async with http.get(MAPS, params=params) as response:
            assert response.status == status
            assert (await response.json())["kind"] == ("Status" if status == 504 else "ConfigMapList")
    async with http.get(SLICES, params={"watch": "1"}) as response:
        assert response.status == 200
    assert fault.hits == 2


async def test_delayed_reply_follows_write_and_release(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    late = api.faults.add(InjectedFault(Do.ANSWER_LATE, verb="create"))
    call = asyncio.create_task(http.post(MAPS, json=config_map(a="b")))
    await eventually(lambda: api.find("configmaps", "a"))
    api.delete("configmaps", "a")
    await always(lambda: not call.done(), 0.2, "the answer is held")
    late.release()
    async with asyncio.timeout(60), await call as response:
        assert (response.status, (await response.json())["data"]) == (201, {"a": "b"})
    assert api.find("configmaps", "a") is None


async def test_dropped_connection_before_or_after_the_write(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    api.faults.add(InjectedFault(Do.DROP, verb="create"))
    with pytest.raises(aiohttp.ClientError):
        await http.post(MAPS, json=config_map())
    assert api.find("configmaps", "a") is None

    api.faults.add(InjectedFault(Do.DROP_AFTER, verb="create"))
    with pytest.raises(aiohttp.ClientError):
        await http.post(MAPS, json=config_map())
    assert api.get("configmaps", "a")["data"] == {}


async def test_a_hanging_request_is_never_answered(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    api.faults.add(InjectedFault(Do.HANG, verb="list"))
    with pytest.raises(TimeoutError):
        await http.get(MAPS, timeout=aiohttp.ClientTimeout(total=0.2))
    async with http.get(MAPS) as response:
        assert response.status == 200


async def test_a_delayed_request_is_answered_late(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    api.faults.add(InjectedFault(Do.DELAY, verb="list", delay_s=0.2))
    began = time.monotonic()
    async with http.get(MAPS) as response:
        assert response.status == 200
    assert time.monotonic() - began >= 0.2


async def test_watch_can_end_at_once(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    api.create(config_map())
    api.faults.add(InjectedFault(Do.CLOSE_WATCH, verb="watch"))
    async with http.get(MAPS, params={"watch": "1"}) as response:
        assert (response.status, await response.read()) == (200, b"")


async def test_watches_can_be_ended_expired_and_counted(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    async with http.get(MAPS, params={"watch": "1"}) as first, http.get(SLICES, params={"watch": "1"}) as second:
        assert (api.watches.count(), api.watches.count("configmaps")) == (2, 1)
        assert api.watches.close("configmaps") == 1
        assert await first.read() == b""
        assert api.watches.expire() == 1
        line = await second.content.readline()
        assert b'"ERROR"' in line
        assert b'"code":410' in line
        assert await second.read() == b""
    assert api.watches.count() == 0


async def test_a_page_from_before_a_compaction_is_410(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    for name in ("a", "b", "c"):
        api.create(config_map(name))
    async with http.get(MAPS, params={"limit": "1"}) as response:
        token = (await response.json())["metadata"]["continue"]
    api.compact()
    async with http.get(MAPS, params={"limit": "1", "continue": token}) as response:
        body = await response.json()
    assert (response.status, body["reason"]) == (410, "Expired")


async def test_silent_server_resumes(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    async with http.get(MAPS, params={"watch": "1"}) as watch:
        api.stop_answering()
        request = asyncio.create_task(http.get(MAPS))
        api.create(config_map())
        done, _ = await asyncio.wait([request], timeout=0.2)
        assert not done
        await api.resume()
        async with await request as response:
            assert response.status == 200
        assert b'"ADDED"' in await watch.content.readline()


async def test_abandoned_write_does_not_happen_later(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    api.stop_answering()
    with pytest.raises(TimeoutError):
        await http.post(MAPS, json=config_map(), timeout=aiohttp.ClientTimeout(total=0.1))
    await asyncio.sleep(0.05)
    await api.resume()
    await asyncio.sleep(0.05)
    assert api.find("configmaps", "a") is None


async def test_closed_server_resumes_on_the_same_port(api: EmbeddedApi) -> None:
    url = api.url
    await api.refuse_connections()
    async with aiohttp.ClientSession(url) as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get("/readyz")
        await api.resume()
        assert api.url == url
        async with session.get("/readyz") as response:
            assert await response.text() == "ok"


async def test_tokens_are_required_on_request(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    api.require_tokens("new")
    for token, status in (("", 401), ("old", 401), ("new", 200)):
        async with http.get(MAPS, headers={"Authorization": f"Bearer {token}"}) as response:
            assert response.status == status
    api.require_tokens()
    async with http.get(MAPS) as response:
        assert response.status == 200


# The log


async def test_every_request_is_in_the_log(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    await http.post(SLICES, json=device_slice())
    await http.get(f"{SLICES}/s", headers={"User-Agent": "neuron-dra"})
    await http.get(f"{SLICES}/missing")
    async with http.get(SLICES, params={"watch": "1", "timeoutSeconds": "1"}):
        pass
    await http.delete(SLICES, params={"fieldSelector": "spec.nodeName=a"})
    entries = [(entry.verb, entry.resource, entry.name, entry.status) for entry in api.log]
    assert entries == [
        ("create", "resourceslices", "", 201),
        ("get", "resourceslices", "s", 200),
        ("get", "resourceslices", "missing", 404),
        ("watch", "resourceslices", "", 200),
        ("deletecollection", "resourceslices", "", 200),
    ]
    assert [entry.user_agent for entry in api.requests("get", name="s")] == ["neuron-dra"]
    assert api.requests("deletecollection")[0].query == "fieldSelector=spec.nodeName%3Da"
    assert len(api.requests(resource="resourceslices")) == 5


# Dropped fields


async def test_dropped_fields_are_dropped_on_every_write(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    api.dropped_fields["resourceslices"] = {"spec.devices[*].taints", "spec.sharedCounters"}
    taints = [{"key": "neuron.aws.com/unhealthy", "effect": "NoSchedule"}]
    async with http.post(SLICES, json=device_slice(taints=taints)) as response:
        assert response.status == 201
        assert (await response.json())["spec"]["devices"] == [{"name": "neuron-device-0"}]
    async with http.put(f"{SLICES}/s", json=device_slice(taints=taints)) as response:
        assert (await response.json())["metadata"]["generation"] == 1
    api.dropped_fields.clear()
    async with http.put(f"{SLICES}/s", json=device_slice(taints=taints)) as response:
        assert (await response.json())["spec"]["devices"][0]["taints"][0]["key"] == taints[0]["key"]


# Added fields


async def test_added_fields_are_added_on_every_write(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    api.create(device_slice("before"))
    api.added_fields["resourceslices"] = {
        "metadata.labels.team": "a",
        "spec.devices[*].novelty": {"depth": 1},
        "spec.nodeName": "b",
    }
    async with http.post(SLICES, json=device_slice()) as response:
        stored = await response.json()
    assert stored["metadata"]["labels"] == {"team": "a"}
    assert stored["spec"]["devices"] == [{"name": "neuron-device-0", "novelty": {"depth": 1}}]
    assert stored["spec"]["nodeName"] == "a"
    async with http.put(f"{SLICES}/s", json=device_slice()) as response:
        assert await response.json() == stored  # an equal object is not written
    assert "labels" not in api.get("resourceslices", "before")["metadata"]
    api.added_fields.clear()
    async with http.put(f"{SLICES}/s", json=device_slice()) as response:
        assert (await response.json())["spec"]["devices"] == [{"name": "neuron-device-0"}]


# Objects, at once


async def test_dry_run_writes_nothing(api: EmbeddedApi) -> None:
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}})
    over_the_wire = KubeClient(KubeConfig(api.url))
    for client in (over_the_wire, api.client("here")):
        async with client:
            raw = await client.request(
                "PATCH",
                "/api/v1/nodes/a",
                params={"dryRun": "All"},
                body={"metadata": {"labels": {"tried": "yes"}}},
                content_type=MERGE_PATCH,
            )
            assert json.loads(raw)["metadata"]["labels"] == {"tried": "yes"}
            assert "labels" not in api.get("nodes", "a")["metadata"]


async def test_apply_merges_and_writes_status(api: EmbeddedApi) -> None:
    api.register_neuron_kinds()
    body = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronUltraServer", "metadata": {"name": "u"}}
    api.apply({**body, "spec": {"size": 4}, "status": {"state": "Ready"}})
    api.apply({**body, "spec": {"mode": 1}})
    found = api.get("neuronultraservers", "u")
    assert (found["spec"], found["status"], found["metadata"]["generation"]) == (
        {"size": 4, "mode": 1},
        {"state": "Ready"},
        2,
    )
    assert found["apiVersion"] == "neuron.aws.com/v1beta1"


async def test_returned_objects_are_copies(api: EmbeddedApi) -> None:
    made = api.create(config_map(x="1"))
    made["data"]["x"] = "2"
    api.objects("configmaps")[0]["data"]["x"] = "3"
    assert api.get("configmaps", "a")["data"] == {"x": "1"}


async def test_refusals_are_raised_to_the_test(api: EmbeddedApi) -> None:
    with pytest.raises(StatusError, match='configmaps "a" not found') as caught:
        api.get("configmaps", "a")
    assert (caught.value.code, caught.value.reason) == (404, "NotFound")
    with pytest.raises(KeyError, match="serves no 'widgets'"):
        api.objects("widgets")


async def test_until_returns_or_shows_the_objects(api: EmbeddedApi) -> None:
    asyncio.get_running_loop().call_later(0.05, api.create, config_map())
    found = await api.until("configmaps", lambda objects: len(objects) == 1)
    assert found[0]["metadata"]["name"] == "a"
    with pytest.raises(TimeoutError, match=r"configmaps after 0\.1 s"):
        await api.until("configmaps", lambda objects: len(objects) == 2, timeout_s=0.1)


async def test_a_kubeconfig_leads_to_the_server(api: EmbeddedApi, tmp_path: Path) -> None:
    config = yaml.safe_load(api.write_kubeconfig(tmp_path / "config", token="t").read_text())
    assert config["clusters"][0]["cluster"]["server"] == api.url
    assert config["users"][0]["user"] == {"token": "t"}
    assert config["current-context"] == config["contexts"][0]["name"]


async def test_server_side_apply_is_rejected_with_a_hint(api: EmbeddedApi, http: aiohttp.ClientSession) -> None:
    api.create(config_map())
    headers = {"Content-Type": "application/apply-patch+yaml"}
    async with http.patch(f"{MAPS}/a", data=b"data: {}", headers=headers, params={"fieldManager": "x"}) as response:
        body = await response.json()
    assert (response.status, body["reason"]) == (415, "UnsupportedMediaType")
    assert "no server-side apply: use a merge patch" in body["message"]


async def test_controllers_can_be_disabled() -> None:
    async with EmbeddedApi(controllers=False) as api:
        owner = {"apiVersion": "v1", "kind": "Node", "name": "gone", "uid": "0"}
        api.create({**device_slice(), "metadata": {"name": "s", "ownerReferences": [owner]}})
        await asyncio.sleep(0.05)
        assert api.find("resourceslices", "s")


async def test_pods_of_lost_nodes_are_deleted(api: EmbeddedApi) -> None:
    for name in ("a", "b"):
        api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        spec = {"nodeName": name, "containers": [{"name": "c"}]}
        api.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"on-{name}"}, "spec": spec})
    api.delete("nodes", "a")
    await api.settle()
    assert [pod["metadata"]["name"] for pod in api.objects("pods")] == ["on-b"]

    api.delete("pods", "on-b")
    await api.settle()
    assert api.find("pods", "on-b", "default")
    api.patch("nodes", "b", {"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}})
    await api.settle()
    assert api.objects("pods") == []


async def test_pod_that_a_late_scheduler_binds_to_a_deleted_node_is_deleted(api: EmbeddedApi) -> None:
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}})
    api.delete("nodes", "a")
    await api.settle()
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "late"}, "spec": {"containers": [{"name": "c"}]}}
    api.create(pod)

    binding = {"target": {"apiVersion": "v1", "kind": "Node", "name": "a"}}
    await api.client("scheduler").request("POST", "/api/v1/namespaces/default/pods/late/binding", body=binding)
    await api.settle()

    assert api.objects("pods") == []
