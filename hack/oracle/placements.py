"""Compare the simulator with kube-scheduler on random clusters: `make acceptance ONLY=placements`.

etcd, API server and scheduler are real; Nodes, slices, claims and pods are objects, and no kubelet runs. All cases are in
one cluster: the nodes of a case have its label, and its pods select it. The pods of a case are created one after the
other. After each, the simulator must agree whether it fits, and on the node that the scheduler chose it must find the
same devices. A time-out of the scheduler must be predicted; where one is, the scheduler may still be fast enough.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hack.bench import api as bench_api
from hack.bench import sets as bench_sets
from hack.oracle.study import Options
from neuron_dra.api.objects import DEVICE_CLASSES as CLASSES
from neuron_dra.api.objects import healthy_node
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.world.world import World
from neuron_dra.core import catalogue, devices, names, slices
from neuron_dra.core.wire import Obj
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import from_kubeconfig
from neuron_dra.kube.requests import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from neuron_dra.simulate import allocator, model, semantics
from neuron_dra.simulate.failures import Failure
from neuron_dra.simulate.scheduler import Placement, Unschedulable

TYPES: Final = ("trn2.48xlarge", "trn1.32xlarge", "inf2.48xlarge", "trn1.2xlarge")
LABEL: Final = "case"
NAMESPACE: Final = "default"
WAIT_S: Final = 300.0
DRIVER: Final = names.DRIVER
TIME_OUT: Final = "timed out trying to allocate devices"
PREDICTED: Final = "may give up after 10 s"
GROUPS: Final = tuple(f"{names.GROUP_DOMAIN}/devicegroup{size}_id" for size in (4, 8))


@dataclass(slots=True)
class Case:
    """One random cluster: its nodes with their slices, and the pods with their claims, in order."""

    number: int
    nodes: list[tuple[Obj, list[Obj]]] = field(default_factory=list)
    pods: list[tuple[Obj, Obj]] = field(default_factory=list)
    wrong: str = ""
    placed: int = 0
    refused: int = 0
    late: int = 0
    predicted: int = 0


def case(number: int) -> Case:
    """Return the case of this number."""
    rng = random.Random(number)
    made = Case(number)
    for index in range(rng.randint(2, 4)):
        made.nodes.append(_node(rng, f"c{number}-n{index}", number))
    for index in range(rng.randint(2, 5)):
        made.pods.append(_pod(rng, f"c{number}-p{index}", number))
    return made


def _node(rng: random.Random, name: str, number: int) -> tuple[Obj, list[Obj]]:
    kind = rng.choice(TYPES)
    labels = {LABEL: str(number), "zone": rng.choice("ab"), names.INSTANCE_TYPE_LABEL: kind}
    spec: Obj = {}
    if rng.random() < 0.1:
        spec["unschedulable"] = True
    if rng.random() < 0.2:
        spec["taints"] = [{"key": "team", "value": rng.choice("xy"), "effect": "NoSchedule"}]
    status = {
        "capacity": {"cpu": str(rng.choice((2, 8))), "memory": "64Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    labels["kubernetes.io/hostname"] = name
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec}
    published = [
        each.to_wire()
        for each in devices.published(healthy_node(kind), driver_version="1.2.3", ultraserver_devices="devices")
    ]
    for device in published:
        if rng.random() < 0.06:
            effect = rng.choice(("NoSchedule", "NoExecute", "None"))
            device["taints"] = [{"key": "neuron.aws.com/unhealthy", "value": "x", "effect": effect}]
    published = [device for device in published if rng.random() > 0.04 or len(published) == 1]
    return {**node, "status": status}, slices.desired(slices.Pool(name, f"uid-{name}"), published, 1)


def _pod(rng: random.Random, name: str, number: int) -> tuple[Obj, Obj]:
    requests = [_request(rng, f"r{index}") for index in range(rng.choice((1, 1, 1, 2)))]
    constraints = []
    if rng.random() < 0.5:
        constraints.append({"matchAttribute": rng.choice(GROUPS), "requests": [each["name"] for each in requests]})
    spec = {"devices": {"requests": requests, "constraints": constraints}}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": spec}
    claim["metadata"] = {"name": name, "namespace": NAMESPACE}
    select = {LABEL: str(number), **({"zone": rng.choice("ab")} if rng.random() < 0.2 else {})}
    container = {
        "name": "main",
        "image": "none",
        "resources": {"requests": {"cpu": str(rng.choice((1, 1, 3)))}, "claims": [{"name": "d"}]},
    }
    inner: Obj = {
        "containers": [container],
        "nodeSelector": select,
        "resourceClaims": [{"name": "d", "resourceClaimName": name}],
    }
    if rng.random() < 0.3:
        inner["tolerations"] = [{"key": "team", "operator": "Exists"}]
    meta = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": inner}, claim


def _request(rng: random.Random, name: str) -> Obj:
    if rng.random() < 0.2:
        first = {"name": "s0", **_wanted(rng, rng.choice((8, 16)))}
        return {"name": name, "firstAvailable": [first, {"name": "s1", **_wanted(rng, rng.choice((1, 2, 4)))}]}
    if rng.random() < 0.15:
        return {"name": name, "exactly": {"deviceClassName": DRIVER, "allocationMode": "All"}}
    return {"name": name, "exactly": _wanted(rng, rng.choice((1, 1, 2, 4, 4, 8, 12, 16)))}


def _wanted(rng: random.Random, count: int) -> Obj:
    wanted: Obj = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": count}
    attribute = f"device.attributes['{DRIVER}']"
    texts = [f"{attribute}.instanceType == '{rng.choice(TYPES)}'", f"{attribute}.deviceId < {rng.choice((4, 8))}"]
    if rng.random() < 0.3:
        wanted["selectors"] = [{"cel": {"expression": rng.choice(texts)}}]
    if rng.random() < 0.2:
        wanted["tolerations"] = [{"operator": "Exists", "effect": rng.choice(("NoSchedule", "NoExecute"))}]
    return wanted


class Comparison(bench_sets.Bench):
    """The cases in one cluster."""

    async def create(self, made: Case) -> None:
        """Create the nodes of a case, with their slices."""
        for node, published in made.nodes:
            name = node["metadata"]["name"]
            uid = await self.register(node)
            for item in published:  # the garbage collector deletes slices of another UID
                owned = json.loads(json.dumps(item).replace(f"uid-{name}", uid))
                await self.client.create(RESOURCE_SLICES, "", owned)

    async def step(self, cases: Sequence[Case], index: int) -> None:
        """Create pod `index` of each case, wait until all are decided, and compare."""
        now = [made for made in cases if index < len(made.pods) and not made.wrong]

        async def submit(made: Case) -> None:
            pod, claim = made.pods[index]
            await self.client.create(RESOURCE_CLAIMS, NAMESPACE, claim)
            await self.client.create(PODS, NAMESPACE, pod)

        nodes, pods, claims = [await self._items(kind) for kind in (NODES, PODS, RESOURCE_CLAIMS)]
        before = {made.number: world(made, nodes, pods, claims) for made in now}
        await self.all(submit(made) for made in now)
        decided = await self._decided([made.pods[index][0]["metadata"]["name"] for made in now])
        after = await self._items(RESOURCE_CLAIMS)
        for made in now:
            pod, claim = made.pods[index]
            name = pod["metadata"]["name"]
            where = decided[name]
            outcome = before[made.number].after([claim, {**pod, "status": {}}]).place(pod)
            if isinstance(outcome, Unschedulable) and PREDICTED in outcome.message:
                made.predicted += 1
            elif where is None:
                made.wrong = f"{name}: the scheduler has timed out, simulated: {outcome}"
            else:
                made.wrong = compare(before[made.number], pod, claim, where, after[name], outcome)
            made.late += where is None
            made.placed += bool(where)
            made.refused += where == ""
            if not where:
                await self.client.delete(PODS, NAMESPACE, name)  # or it would be placed later

    async def _items(self, resource: Any) -> dict[str, Obj]:
        found = {}
        async for page in self.client.list(resource):
            found.update({item["metadata"]["name"]: item for item in page.decoded(dict).objects})
        return found

    async def _decided(self, pods: Sequence[str]) -> dict[str, str | None]:
        """Wait until the scheduler has decided on all pods; return their nodes: empty for none, None for a time-out."""
        until = time.monotonic() + WAIT_S
        while True:
            items = await self._items(PODS)
            found: dict[str, str | None] = {}
            for name in pods:
                item = items[name]
                reasons = {
                    each.get("reason"): str(each.get("message")) for each in item["status"].get("conditions") or ()
                }
                if item["spec"].get("nodeName"):
                    found[name] = item["spec"]["nodeName"]
                elif reasons.keys() & {"Unschedulable", "SchedulerError"}:
                    found[name] = None if TIME_OUT in " ".join(reasons.values()) else ""
            if len(found) == len(pods):
                return found
            if time.monotonic() > until:
                raise TimeoutError(f"{len(pods) - len(found)} of {len(pods)} pods are not decided after {WAIT_S:g} s")
            await asyncio.sleep(0.5)


def world(made: Case, nodes: Mapping[str, Obj], pods: Mapping[str, Obj], claims: Mapping[str, Obj]) -> World:
    """Return a case as it is in the cluster."""
    items: list[Obj] = [dict(each) for each in CLASSES]
    for node, published in made.nodes:
        items += [{"apiVersion": "v1", "kind": "Node", **nodes[node["metadata"]["name"]]}, *published]
    own = {pod["metadata"]["name"] for pod, _ in made.pods}
    items += [{"apiVersion": "v1", "kind": "Pod", **pods[name]} for name in own & pods.keys()]
    of_api = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    items += [{**of_api, **claims[name]} for name in own & claims.keys()]
    return World(snapshot.build(items), proposes=False, rules=semantics.NEW)


def compare(world: World, pod: Obj, claim: Obj, node: str, allocated: Obj, outcome: Placement | Unschedulable) -> str:
    """Return how the simulator differs from the scheduler's decision, empty if it does not."""
    if not node:
        return f"{pod['metadata']['name']}: simulated on {outcome.node}" if isinstance(outcome, Placement) else ""
    if not isinstance(outcome, Placement):
        return f"{pod['metadata']['name']}: runs on {node}, simulated: {outcome.message}"
    found = allocator.allocate(
        model.node(world.nodes[node]), [model.claim(claim)], world.inventory, world.classes, world.in_use
    )
    if isinstance(found, Failure):
        return f"{pod['metadata']['name']}: runs on {node}, where it does not fit: {found.reasons[0]}"
    theirs, ours = (
        [(each["request"], each["device"]) for each in one["devices"]["results"]]
        for one in (allocated["status"]["allocation"], found.allocations[0])
    )
    return "" if theirs == ours else f"{pod['metadata']['name']} on {node}: has {theirs}, simulated {ours}"


async def run(plane: bench_api.Plane, first: int, count: int) -> list[Case]:
    """Create and compare the cases; return them."""
    async with KubeClient(from_kubeconfig(plane.layout.kubeconfig), user_agent="neuron-dra-placements") as client:
        comparison = Comparison(client, plane)
        for item in CLASSES:
            await client.create(DEVICE_CLASSES, "", {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", **item})
        cases = [case(number) for number in range(first, first + count)]
        await comparison.all(comparison.create(made) for made in cases)
        for index in range(max(len(made.pods) for made in cases)):
            await comparison.step(cases, index)
            print(f"pod {index + 1} of each case: {sum(bool(made.wrong) for made in cases)} differ", flush=True)
    return cases


def study(options: Options) -> int:
    """Compare, print what differs, and return the exit code."""
    assert all(catalogue.lookup(kind) for kind in TYPES)
    with bench_api.running(options.kubernetes, with_scheduler=True) as plane:
        cases = asyncio.run(run(plane, options.first, options.number or 500))
    wrong = [f"case {made.number}: {made.wrong}" for made in cases if made.wrong]
    for text in wrong:
        print(text)
    placed, refused = sum(made.placed for made in cases), sum(made.refused for made in cases)
    late, predicted = sum(made.late for made in cases), sum(made.predicted for made in cases)
    print(
        f"{'FAILED' if wrong else 'passed'}, {len(cases)} cases: {placed} pods placed, {refused} not, {late} after a "
        f"time-out ({predicted} were predicted to be possible); {len(wrong)} differ"
    )
    return 1 if wrong else 0
