"""The changes that `why` proposes, made on the embedded API server: the scheduler then places the pod (17.3)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from neuron_dra.ask.read import cluster
from neuron_dra.ask.render.findings import ProposedChange, Report
from neuron_dra.ask.why import pod as why_pod
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj, Wire
from neuron_dra.demo.pod_scheduler import PodScheduler
from neuron_dra.emulation.embedded_api.server import EmbeddedApi
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from tests.support import cluster_faults as faults
from tests.support import small_clusters as small

TIMEOUT_S = 60


@asynccontextmanager
async def scheduled_cluster() -> AsyncIterator[EmbeddedApi]:
    """An API server with a scheduler, until the end of the block."""
    async with EmbeddedApi() as api:
        task = asyncio.create_task(PodScheduler(KubeClient(KubeConfig(api.url))).run())
        try:
            yield api
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not done():
            await asyncio.sleep(0.05)


def placed(api: EmbeddedApi, name: str) -> bool:
    found = api.find("Pod", name, "default")
    return found is not None and bool(found["spec"].get("nodeName"))


def refused(api: EmbeddedApi, name: str) -> bool:
    found = api.find("Pod", name, "default")
    conditions = (found or {}).get("status", {}).get("conditions") or []
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)


def fresh(item: Wire) -> Obj:
    """An object as a person would apply it again."""
    meta = {key: item["metadata"][key] for key in ("name", "namespace", "labels") if key in item["metadata"]}
    spec = {key: value for key, value in item["spec"].items() if key != "nodeName"}
    return {"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": meta, "spec": spec}


def make(api: EmbeddedApi, change: ProposedChange) -> None:
    """Make a change as a person would: templates and pods are created again, their claims follow."""
    for kind, namespace, name in change.removed:
        if kind == "Pod":
            api.delete(kind, name, namespace, grace_s=0)
    pod = api.get("Pod", "p", "default")
    for item in change.replaced:
        kind, meta = item["kind"], item["metadata"]
        if kind == "Pod":
            pod = dict(item)
        elif kind == "Node":
            api.replace({**api.get("Node", meta["name"]), "spec": item["spec"], "metadata": item["metadata"]})
        elif kind == "ResourceClaimTemplate":
            if api.find(kind, meta["name"], meta["namespace"]):
                api.delete(kind, meta["name"], meta["namespace"])
            api.create(fresh(item))
    api.delete("Pod", "p", "default", grace_s=0)
    api.create(fresh(pod))


async def explained(api: EmbeddedApi) -> Report:
    def read() -> Report:
        world = World(cluster.read(KubeConfig(api.url), "default"))
        found = world.snapshot.get("Pod", "p", "default")
        assert found is not None
        return why_pod.report(world, found)

    return await asyncio.to_thread(read)


def start(fault: faults.Fault) -> list[Obj]:
    """The healthy cluster with a fault, without claims and status: controllers and scheduler make those."""
    items = small.base("a", "b")
    made = small.template("four", 4, group=faults.GROUP, cel=faults.SELECTOR)
    items += [made, small.pod("p", "four")]
    fault(random.Random(0), items)
    return items


def full(rng: random.Random, items: list[Obj]) -> None:
    """Pods that leave fewer than four devices of a group on each node."""
    for node in ("a", "b"):
        for number in range(4):
            made = small.template(f"part-{node}-{number}", 3 if number else 2, group=faults.GROUP)
            where = {"kubernetes.io/hostname": node}
            items += [made, small.pod(f"part-{node}-{number}", made["metadata"]["name"], nodeSelector=where)]


def create(api: EmbeddedApi, items: Sequence[Obj]) -> None:
    for item in items:
        if not api.find(item["kind"], item["metadata"]["name"], item["metadata"].get("namespace", "")):
            api.create(item)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (faults.wrong_type, "SelectorMatchesNothing"),
        (faults.too_many, "CountTooLarge"),
        (faults.group_too_small, "GroupTooSmall"),
        (faults.class_renamed, "ClassMissing"),
        (faults.cordoned, "NodeExcluded"),
        (faults.node_selector, "NodeExcluded"),
        (full, "Fragmented"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_proposed_changes_work_when_made(fault: faults.Fault, code: str) -> None:
    items = start(fault)
    last = [faults.waiting(items)]
    async with scheduled_cluster() as api:
        first = [item for item in items if item not in last]
        create(api, first)
        await until(lambda: all(placed(api, each["metadata"]["name"]) for each in faults.all_of(first, "Pod")))
        create(api, last)
        await until(lambda: refused(api, "p"))
        report = await explained(api)
        assert report.findings[0].code == code, report
        changes = report.findings[0].changes
        assert changes
        make(api, changes[0])
        await until(lambda: placed(api, "p"))


async def test_change_of_a_template_name_works_when_made() -> None:
    items = start(faults.template_renamed)
    async with scheduled_cluster() as api:
        create(api, items)
        report = await explained(api)
        assert report.findings[0].code == "TemplateMissing"
        make(api, report.findings[0].changes[0])
        await until(lambda: placed(api, "p"))
