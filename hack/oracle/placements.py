"""Compare the simulator with kube-scheduler on random clusters: `make acceptance ONLY=placements`.

etcd, API server and scheduler are real; Nodes, slices, claims and pods are objects, and no kubelet runs. All cases are in
one cluster: the nodes of a case have its label, and its pods select it. The pods of a case are created one after the
other, or together if they are a gang (PodGroup, on the newest release, whose feature gate GenericWorkload is on here).
After each step, the simulator must agree which fit, and on the nodes that the scheduler chose it must find the same
devices. A time-out of the scheduler must be predicted; where one is, the scheduler may still be fast enough.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hack.bed import build
from hack.bench import api as bench_api
from hack.bench import sets as bench_sets
from hack.oracle import random_clusters
from hack.oracle.random_clusters import NAMESPACE, POD_GROUP, Case, Step
from hack.oracle.study import Options
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.simulate.simulation import Simulation
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import from_kubeconfig
from neuron_dra.kube.requests import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from neuron_dra.simulate import allocator, model, semantics
from neuron_dra.simulate.failures import Failure
from neuron_dra.simulate.scheduler import Placement, Unschedulable

GATES: Final = ("GenericWorkload",)
WAIT_S: Final = 300.0
TIME_OUT: Final = "timed out trying to allocate devices"
PREDICTED: Final = "may give up after 10 s"


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
        for rule in made.rules:
            await self.client.create(DEVICE_TAINT_RULES, "", rule)

    async def step(self, cases: Sequence[Case], index: int) -> None:
        """Create the pods of step `index` of each case, wait until all are decided, and compare."""
        now = [made for made in cases if index < len(made.steps) and not made.wrong]
        nodes, pods, claims = [await self._items(kind) for kind in (NODES, PODS, RESOURCE_CLAIMS)]
        before = {made.number: world(made, nodes, pods, claims) for made in now}
        await self.all(self._submit(made.steps[index]) for made in now)
        decided = await self._decided([name for made in now for name in made.steps[index].names])
        after = {kind: await self._items(kind) for kind in (PODS, RESOURCE_CLAIMS)}
        for made in now:
            step = made.steps[index]
            where = {name: decided[name] for name in step.names}
            judge = compare_gang if step.group is not None else compare_one
            _count(made, where, judge(before[made.number], step, where, _results(step, after)))
            # A pod without a node would be placed later.
            await self.all(self.client.delete(PODS, NAMESPACE, name) for name, node in where.items() if not node)

    async def _submit(self, step: Step) -> None:
        if step.group is not None:
            await self.client.create(POD_GROUPS, NAMESPACE, step.group)
        for pod, claim in step.pods:
            if claim is not None:
                await self.client.create(RESOURCE_CLAIMS, NAMESPACE, claim)
            await self.client.create(PODS, NAMESPACE, pod)

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


Outcome = tuple[str, bool]
"""How the simulator differs, empty if it does not, and whether it predicted a time-out."""


def _count(made: Case, where: Mapping[str, str | None], outcome: Outcome) -> None:
    made.wrong, predicted = outcome
    made.predicted += predicted
    made.late += sum(node is None for node in where.values())
    made.placed += sum(bool(node) for node in where.values())
    made.refused += sum(node == "" for node in where.values())


def _results(step: Step, after: Mapping[Any, Mapping[str, Obj]]) -> dict[str, list[tuple[str, str]]]:
    """Return the devices of each pod of a step, with the request of each."""
    found: dict[str, list[tuple[str, str]]] = {}
    for pod, claim in step.pods:
        name = pod["metadata"]["name"]
        special = after[PODS][name]["status"].get("extendedResourceClaimStatus") or {}
        own = name if claim is not None else str(special.get("resourceClaimName"))
        status = (after[RESOURCE_CLAIMS].get(own) or {}).get("status") or {}
        results = (status.get("allocation") or {}).get("devices", {}).get("results") or ()
        found[name] = [(each["request"], each["device"]) for each in results]
    return found


def world(made: Case, nodes: Mapping[str, Obj], pods: Mapping[str, Obj], claims: Mapping[str, Obj]) -> World:
    """Return a case as it is in the cluster."""
    items: list[Obj] = [dict(each) for each in random_clusters.classes()]
    for node, published in made.nodes:
        items += [{"apiVersion": "v1", "kind": "Node", **nodes[node["metadata"]["name"]]}, *published]
    items += made.rules
    own = {name for step in made.steps for name in step.names}
    items += [{"apiVersion": "v1", "kind": "Pod", **pods[name]} for name in own & pods.keys()]
    of_api = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    items += [
        {**of_api, **claim} for claim in claims.values() if claim["metadata"]["name"] in own or own & _users(claim)
    ]
    return World(snapshot.build(items), proposes=False, rules=semantics.NEW)


def _users(claim: Obj) -> set[str]:
    """Return the pods for which a claim was made, or is reserved."""
    owners = claim["metadata"].get("ownerReferences") or ()
    reserved = (claim.get("status") or {}).get("reservedFor") or ()
    return {each["name"] for each in (*owners, *reserved)}


def compare_one(
    world: World, step: Step, where: Mapping[str, str | None], devices: Mapping[str, list[tuple[str, str]]]
) -> Outcome:
    """Compare a step of one pod."""
    pod, claim = step.pods[0]
    name = pod["metadata"]["name"]
    node = where[name]
    outcome = world.after([*([claim] if claim is not None else ()), {**pod, "status": {}}]).place(pod)
    if isinstance(outcome, Unschedulable) and PREDICTED in outcome.message:
        return "", True
    if node is None:
        return f"{name}: the scheduler has timed out, simulated: {outcome}", False
    if not node:
        return (f"{name}: simulated on {outcome.node}" if isinstance(outcome, Placement) else ""), False
    if not isinstance(outcome, Placement):
        return f"{name}: runs on {node}, simulated: {outcome.message}", False
    return _same_devices(world, step, {node: [name]}, devices), False


def compare_gang(
    world: World, step: Step, where: Mapping[str, str | None], devices: Mapping[str, list[tuple[str, str]]]
) -> Outcome:
    """Compare a step of a gang, whose pods are equal: as many of them must run, with the same devices."""
    assert step.group is not None
    group = step.group["metadata"]["name"]
    pods = [{**pod, "status": {}} for pod, _ in step.pods]
    claims = [claim for _, claim in step.pods if claim is not None]
    outcomes = Simulation(world.after([step.group, *claims, *pods])).run(pods)
    texts = [each.finding.text for each in outcomes if each.finding is not None]
    if any(PREDICTED in text for text in texts):
        return "", True
    if None in where.values():
        return f"group {group}: the scheduler has timed out, simulated: {texts}", False
    placed = sum(bool(node) for node in where.values())
    fit = sum(each.placement is not None for each in outcomes)
    if placed != fit:
        return f"group {group}: {placed} of {len(pods)} run, simulated: {fit}, {texts[:1]}", False
    on: dict[str, list[str]] = {}
    for name, node in where.items():
        if node:
            on.setdefault(node, []).append(name)
    return _same_devices(world, step, on, devices), False


def _same_devices(
    world: World, step: Step, on: Mapping[str, list[str]], devices: Mapping[str, list[tuple[str, str]]]
) -> str:
    """Return how the devices of pods differ on their nodes; pods of a node are equal, and got theirs in some order."""
    pod, claim = step.pods[0]
    after = world.after([*([claim] if claim is not None else ()), {**pod, "status": {}}])
    wanted = [model.claim(each.claim) for each in after.claims_of(pod) if each.claim is not None]
    for node, names in on.items():
        used = set(world.in_use)
        ours: Counter[tuple[tuple[str, str], ...]] = Counter()
        for _ in names:
            found = allocator.allocate(model.node(world.nodes[node]), wanted, world.inventory, world.classes, used)
            if isinstance(found, Failure):
                return f"{names}: on {node}, where they do not all fit: {found.reasons[0]}"
            results = [each for one in found.allocations for each in one["devices"]["results"]]
            used |= {model.DeviceId(each["driver"], each["pool"], each["device"]) for each in results}
            ours[tuple((each["request"], each["device"]) for each in results)] += 1
        theirs = Counter(tuple(devices[name]) for name in names)
        if theirs != ours:
            return f"{names} on {node}: have {dict(theirs)}, simulated {dict(ours)}"
    return ""


async def run(plane: bench_api.Plane, first: int, count: int, *, newest: bool) -> list[Case]:
    """Create and compare the cases; return them."""
    async with KubeClient(from_kubeconfig(plane.layout.kubeconfig), user_agent="neuron-dra-placements") as client:
        comparison = Comparison(client, plane)
        for item in random_clusters.classes():
            await client.create(DEVICE_CLASSES, "", item)
        cases = [random_clusters.case(number, newest=newest) for number in range(first, first + count)]
        await comparison.all(comparison.create(made) for made in cases)
        for index in range(max(len(made.steps) for made in cases)):
            await comparison.step(cases, index)
            print(f"step {index + 1} of each case: {sum(bool(made.wrong) for made in cases)} differ", flush=True)
    return cases


def study(options: Options) -> int:
    """Compare, print what differs, and return the exit code."""
    newest = options.kubernetes in (None, build.DEFAULT_KUBERNETES)
    gates, apis = (GATES, (POD_GROUP,)) if newest else ((), ())
    with bench_api.running(options.kubernetes, with_scheduler=True, gates=gates, apis=apis) as plane:
        cases = asyncio.run(run(plane, options.first, options.number or 500, newest=newest))
    wrong = [f"case {made.number}: {made.wrong}" for made in cases if made.wrong]
    for text in wrong:
        print(text)
    placed, refused = sum(made.placed for made in cases), sum(made.refused for made in cases)
    late, predicted = sum(made.late for made in cases), sum(made.predicted for made in cases)
    gangs = sum(step.group is not None for made in cases for step in made.steps)
    print(
        f"{'FAILED' if wrong else 'passed'}, {len(cases)} cases with {gangs} gangs and "
        f"{sum(len(made.rules) for made in cases)} taint rules: {placed} pods placed, {refused} not, {late} after a "
        f"time-out ({predicted} were predicted to be possible); {len(wrong)} differ"
    )
    return 1 if wrong else 0
