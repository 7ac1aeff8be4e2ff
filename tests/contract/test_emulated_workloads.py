"""The Deployments, ReplicaSets and Jobs of the embedded API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api.server import EmbeddedApi
from neuron_dra.kube.client import MERGE_PATCH
from neuron_dra.kube.requests import Resource

DEPLOYMENTS = Resource("apps", "v1", "deployments", namespaced=True)


@pytest.fixture
async def api() -> AsyncIterator[EmbeddedApi]:
    async with EmbeddedApi(port=None, workloads=True) as made:
        yield made


def template(image: str = "one", **spec: Any) -> Obj:
    containers = [{"name": "main", "image": image}]
    return {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": containers, **spec}}


def deployment(replicas: int = 4, image: str = "one", **spec: Any) -> Obj:
    selector = {"matchLabels": {"app": "a"}}
    inner = {"replicas": replicas, "selector": selector, "template": template(image), **spec}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": inner}


def job(**spec: Any) -> Obj:
    inner = {"template": template(restartPolicy="Never"), **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": inner}


def pods(api: EmbeddedApi) -> list[Obj]:
    return [pod for pod in api.objects("pods") if not pod["metadata"].get("deletionTimestamp")]


def images(api: EmbeddedApi) -> list[str]:
    return sorted(pod["spec"]["containers"][0]["image"] for pod in pods(api))


async def run(api: EmbeddedApi, phase: str = "Running", *, only: int = 1000) -> None:
    """Do what a kubelet does: let the pods that wait reach a phase, at most `only` of them."""
    ready = [{"type": "Ready", "status": "True" if phase == "Running" else "False"}]
    waiting = [
        pod for pod in pods(api) if pod["status"]["phase"] in ("Pending", "Running" if phase != "Running" else "")
    ]
    for pod in waiting[:only]:
        api.patch("pods", pod["metadata"]["name"], {"status": {"phase": phase, "conditions": ready}}, "default")
    await api.settle()


def status(api: EmbeddedApi, kind: str = "deployments") -> Obj:
    found: Obj = api.get(kind, "a", "default").get("status") or {}
    return found


def conditions(api: EmbeddedApi, kind: str) -> dict[str, str]:
    return {
        each["type"]: each["reason"] for each in status(api, kind).get("conditions") or () if each["status"] == "True"
    }


async def test_deployment_creates_pods_and_counts_them(api: EmbeddedApi) -> None:
    api.create(deployment())
    await api.settle()
    assert images(api) == ["one"] * 4
    assert status(api)["unavailableReplicas"] == 4
    await run(api)
    assert {key: status(api)[key] for key in ("replicas", "updatedReplicas", "availableReplicas")} == {
        "replicas": 4,
        "updatedReplicas": 4,
        "availableReplicas": 4,
    }
    assert conditions(api, "deployments")["Progressing"] == "NewReplicaSetAvailable"


async def test_lost_pod_of_a_deployment_is_replaced(api: EmbeddedApi) -> None:
    api.create(deployment())
    await api.settle()
    await run(api)
    api.delete("pods", pods(api)[0]["metadata"]["name"], "default", grace_s=0)
    await api.settle()
    assert len(pods(api)) == 4


@pytest.mark.parametrize("replicas", [0, 1, 6])
async def test_scaled_deployment_has_that_many_pods(api: EmbeddedApi, replicas: int) -> None:
    api.create(deployment())
    await api.settle()
    await run(api)
    api.patch("deployments", "a", {"spec": {"replicas": replicas}}, "default")
    await api.settle()
    assert len(pods(api)) == replicas


async def test_scale_changes_the_replicas(api: EmbeddedApi) -> None:
    api.create(deployment())
    await api.settle()
    path = DEPLOYMENTS.path("default", "a", "scale")
    client = api.client()
    await client.request("PATCH", path, body={"spec": {"replicas": 2}}, content_type=MERGE_PATCH)
    await api.settle()
    scale = msgspec.json.decode(await client.request("GET", path))
    assert (scale["kind"], scale["spec"], scale["status"]["replicas"]) == ("Scale", {"replicas": 2}, 2)
    assert scale["status"]["selector"] == "app=a"
    assert len(pods(api)) == 2


async def test_rolling_update_keeps_most_pods_available(api: EmbeddedApi) -> None:
    api.create(deployment())
    await api.settle()
    await run(api)
    api.patch("deployments", "a", {"spec": {"template": template("two")}}, "default")
    await api.settle()
    for _ in range(20):
        available = sum(pod["status"]["phase"] == "Running" for pod in pods(api))
        assert available >= 3
        assert len(pods(api)) <= 5
        await run(api, only=1)
    assert images(api) == ["two"] * 4
    assert status(api)["updatedReplicas"] == status(api)["replicas"] == 4


async def test_recreate_ends_all_old_pods_first(api: EmbeddedApi) -> None:
    api.create(deployment(strategy={"type": "Recreate"}))
    await api.settle()
    await run(api)
    for pod in pods(api):  # pods that run on a node end slowly
        api.store.bind(api.get("pods", pod["metadata"]["name"], "default"), "node")
    api.patch("deployments", "a", {"spec": {"template": template("two")}}, "default")
    await api.settle()
    assert images(api) == []
    for pod in api.objects("pods"):
        api.delete("pods", pod["metadata"]["name"], "default", grace_s=0)
    await api.settle()
    assert images(api) == ["two"] * 4


async def test_earlier_template_uses_its_replica_set_again(api: EmbeddedApi) -> None:
    api.create(deployment())
    await api.settle()
    for image in ("two", "one"):
        api.patch("deployments", "a", {"spec": {"template": template(image)}}, "default")
        for _ in range(20):
            await run(api)
    assert images(api) == ["one"] * 4
    assert len(api.objects("replicasets")) == 2


@pytest.mark.parametrize("kind", ["deployments", "jobs"])
async def test_deleted_owner_takes_its_pods_along(api: EmbeddedApi, kind: str) -> None:
    api.create(deployment() if kind == "deployments" else job())
    await api.settle()
    api.delete(kind, "a", "default")
    await api.settle()
    assert (pods(api), api.objects("replicasets")) == ([], [])


async def test_job_counts_completions_in_parallel(api: EmbeddedApi) -> None:
    api.create(job(completions=3, parallelism=2))
    await api.settle()
    assert len(pods(api)) == 2
    await run(api, "Succeeded", only=1)
    assert status(api, "jobs")["succeeded"] == 1
    assert sum(pod["status"]["phase"] == "Pending" for pod in pods(api)) == 2
    await run(api, "Succeeded")
    assert conditions(api, "jobs")["Complete"] == "CompletionsReached"
    assert status(api, "jobs")["succeeded"] == 3


async def test_deleted_pod_that_succeeded_still_counts(api: EmbeddedApi) -> None:
    api.create(job(completions=2))
    await api.settle()
    await run(api, "Succeeded")
    done = next(pod for pod in pods(api) if pod["status"]["phase"] == "Succeeded")
    api.delete("pods", done["metadata"]["name"], "default")
    await api.settle()
    await run(api, "Succeeded")
    assert status(api, "jobs")["succeeded"] == 2


async def test_job_fails_after_its_backoff_limit(api: EmbeddedApi) -> None:
    api.create(job(backoffLimit=2))
    await api.settle()
    for _ in range(5):
        await run(api, "Failed")
    assert conditions(api, "jobs")["Failed"] == "BackoffLimitExceeded"
    assert status(api, "jobs")["failed"] == 3


async def test_indexed_job_repeats_the_index_that_failed(api: EmbeddedApi) -> None:
    api.create(job(completions=3, parallelism=3, completionMode="Indexed"))
    await api.settle()
    variables = [pod["spec"]["containers"][0]["env"] for pod in pods(api)]
    assert sorted(each[-1]["value"] for each in variables) == ["0", "1", "2"]
    assert sorted(pod["spec"]["hostname"] for pod in pods(api)) == ["a-0", "a-1", "a-2"]
    await run(api, "Failed", only=1)
    await run(api, "Succeeded")
    assert status(api, "jobs")["completedIndexes"] == "0-2"
    assert (status(api, "jobs")["succeeded"], status(api, "jobs")["failed"]) == (3, 1)


async def test_suspended_job_has_no_pods(api: EmbeddedApi) -> None:
    api.create(job(suspend=True))
    await api.settle()
    assert pods(api) == []
    api.patch("jobs", "a", {"spec": {"suspend": False}}, "default")
    await api.settle()
    assert len(pods(api)) == 1


async def test_pod_that_cannot_be_created_is_reported(api: EmbeddedApi) -> None:
    made = deployment()
    del made["spec"]["template"]["spec"]["containers"]
    api.create(made)
    await api.settle()
    [event] = api.objects("events")
    assert event["reason"] == "FailedCreate"
    assert "spec.containers: Required value" in event["message"]
