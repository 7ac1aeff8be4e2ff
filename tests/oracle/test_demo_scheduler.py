"""The demo's scheduler, `simulate` and kube-scheduler on random sets of pods with claims and limits (55, acceptance 2).

kube-scheduler decides; on the node that it chose, the two others must find the same devices, and a pod that it rejects
waits with both. The demo's scheduler runs as in the demo, on an embedded API server.
"""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Iterator

import pytest

from hack.oracle import judge, placements, random_clusters
from hack.oracle.judge import CannotBuild, Scheduler
from hack.oracle.placements import Cluster
from hack.oracle.random_clusters import Case, Step
from neuron_dra.core.wire import Obj
from neuron_dra.demo.pod_scheduler import PodScheduler
from neuron_dra.emulation.embedded_api.server import EmbeddedApi

CASES = int(os.environ.get("NEURON_DRA_DEMO_CASES", "100"))  # with at least two comparable sets of pods each
ATTEMPT_S = 60


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    try:
        program = judge.build_scheduler(tmp_path_factory.mktemp("oracle") / "scheduler")
    except CannotBuild as err:
        pytest.skip(str(err))
    with Scheduler(program, placements.GATES) as made:
        yield made


async def demo_decides(objects: list[Obj], step: Step, node: str) -> tuple[str, placements.Devices]:
    """Return where the demo's scheduler runs the pod of a step, empty for nowhere, and its devices.

    `node`: the only one that it may choose, if any: several may serve a pod equally well.
    """
    pod, claim = copy.deepcopy(step.pods[0])
    if node:
        pod["spec"]["nodeSelector"] = {**pod["spec"].get("nodeSelector", {}), "kubernetes.io/hostname": node}
    name = pod["metadata"]["name"]
    async with EmbeddedApi(port=None, controllers=False) as api:
        api.register("resource.k8s.io", ("v1",), "DeviceTaintRule", "devicetaintrules", namespaced=False)
        for item in [*objects, *([claim] if claim is not None else ()), pod]:
            api.create(_unstored(item))
        task = asyncio.create_task(PodScheduler(api.client("scheduler")).run())
        try:
            await api.until("pods", lambda pods: any(_is_decided(each) for each in pods if _name(each) == name),
                            timeout_s=ATTEMPT_S)  # fmt: skip
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        bound = api.get("pods", name, random_clusters.NAMESPACE)
        where = str(bound["spec"].get("nodeName") or "")
        stored = {_name(each): each for each in api.objects("resourceclaims")}
        of_limits = (bound["status"].get("extendedResourceClaimStatus") or {}).get("resourceClaimName", "")
        results = stored[of_limits or name]["status"]["allocation"]["devices"]["results"] if where else []
        return where, tuple((each["request"], each["device"]) for each in results)


def _unstored(item: Obj) -> Obj:
    """Return an object as a client creates it: the Go program has written the UIDs and versions of its own store."""
    meta = {key: value for key, value in item["metadata"].items() if key not in ("uid", "resourceVersion")}
    return copy.deepcopy({**item, "metadata": meta})


def _is_decided(pod: Obj) -> bool:
    return bool(pod["spec"].get("nodeName") or (pod.get("status") or {}).get("conditions"))


def _name(obj: Obj) -> str:
    return str(obj["metadata"]["name"])


def disagreements(scheduler: Scheduler, made: Case) -> tuple[int, list[str]]:
    """Return how many steps of a case were compared, and what differs."""
    cluster, compared, wrong = Cluster(made), 0, []
    for step in made.steps:
        world = cluster.world()
        objects = [dict(item) for item in world.snapshot.objects.values()]
        where, devices = cluster.take(scheduler, step)
        if step.group is not None:
            continue  # the demo's scheduler knows no gangs
        name = _name(step.pods[0][0])
        simulated, is_undecided = placements.compare_one(world, step, where, devices)
        node = where[name]
        if is_undecided or node is None:
            continue
        compared += 1
        if simulated:
            wrong.append(f"case {made.number}, simulate: {simulated}")
        ours = asyncio.run(demo_decides(objects, step, node))
        if ours != (node, devices.get(name, ())):
            wrong.append(
                f"case {made.number}, {name}: the demo decides {ours}, kube-scheduler {node, devices.get(name)}"
            )
    return compared, wrong


@pytest.mark.timeout(3600)
def test_demo_simulate_and_kube_scheduler_agree(scheduler: Scheduler) -> None:
    compared, wrong = 0, []
    for number in range(CASES):
        more, differing = disagreements(scheduler, random_clusters.case(number))
        compared += more
        wrong += differing
    assert wrong == []
    assert compared >= 2 * CASES
