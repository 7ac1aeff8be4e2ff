"""Compare the simulator with kube-scheduler on random clusters: `make night ONLY=placements`.

The scheduler is Kubernetes' own, the whole of it as a Go program (hack/oracle/scheduler), with the feature gate
GenericWorkload for PodGroups. The pods of a cluster are created one after the other, or together if they are a gang.
After each step, the simulator must agree which fit, and on the nodes that the scheduler chose it must find the same
devices. Where the simulator says that the scheduler may give up, or that it gives up itself, nothing is compared.
"""

from __future__ import annotations

import copy
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hack.oracle import judge, random_clusters
from hack.oracle.judge import Scheduler
from hack.oracle.random_clusters import Case, Step
from hack.oracle.study import Options
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.simulate.simulation import Simulation
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from neuron_dra.simulate import allocator, model, semantics
from neuron_dra.simulate.failures import Failure
from neuron_dra.simulate.scheduler import Placement, Unschedulable

GATES: Final = ("GenericWorkload=true",)
REPOSITORY: Final = Path(__file__).resolve().parents[2]
TIME_OUT: Final = "timed out trying to allocate devices"
UNDECIDED: Final = ("may give up after 10 s", "gave up after trying")
"""In the simulator's message: what it does not know."""
SHOWN_EVERY: Final = 25

Devices = tuple[tuple[str, str], ...]
"""What a pod got: request and device of each result."""


class Cluster:
    """One random cluster, and what the scheduler has done in it so far."""

    def __init__(self, made: Case) -> None:
        self._objects = [*random_clusters.classes(), *made.rules]
        for node, published in made.nodes:
            status = {**node["status"], "allocatable": node["status"]["capacity"]}
            self._objects += [{**node, "status": status}, *published]
        self._placed: list[Obj] = []

    def world(self) -> World:
        """Return the cluster as the simulator sees it."""
        items = copy.deepcopy([*self._objects, *self._placed])
        return World(snapshot.build(items), proposes=False, rules=semantics.NEW)

    def take(self, scheduler: Scheduler, step: Step) -> tuple[dict[str, str | None], dict[str, Devices]]:
        """Let the scheduler decide on the pods of a step: their nodes, empty for none, None for a time-out; and devices."""
        new = [
            {**pod, "metadata": {**pod["metadata"], "uid": f"uid-{pod['metadata']['name']}"}} for pod, _ in step.pods
        ]
        claims = [claim for _, claim in step.pods if claim is not None]
        groups = [step.group] if step.group is not None else []
        [answer] = scheduler.ask([[*self._objects, *self._placed, *groups, *claims, *new]])
        where: dict[str, str | None] = {}
        devices: dict[str, Devices] = {}
        for pod in new:
            name = pod["metadata"]["name"]
            decision = answer.pods.get(f"{random_clusters.NAMESPACE}/{name}") or {}
            gave_up = TIME_OUT in str(decision.get("message"))
            where[name] = None if gave_up else str(decision.get("node") or "")
            if not where[name]:
                continue
            claim = _claim_of(name, answer.claims)
            results = claim["status"]["allocation"]["devices"]["results"]
            devices[name] = tuple((each["request"], each["device"]) for each in results)
            self._placed += [_bound(pod, str(where[name]), claim), claim]
        return where, devices


def _claim_of(pod: str, claims: Mapping[str, Obj]) -> Obj:
    """Return the claim of a pod: its own, or the one that the scheduler has made for its limits."""
    for claim in claims.values():
        owners = claim["metadata"].get("ownerReferences") or ()
        if claim["metadata"]["name"] == pod or any(each["name"] == pod for each in owners):
            return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **claim}
    raise judge.NotDecided(f"the scheduler has placed the pod {pod} and not written its claim")


def _bound(pod: Obj, node: str, claim: Obj) -> Obj:
    status: Obj = {"phase": "Running"}
    name = claim["metadata"]["name"]
    if name != pod["metadata"]["name"]:
        status["extendedResourceClaimStatus"] = {"resourceClaimName": name, "requestMappings": []}
    return {**pod, "spec": {**pod["spec"], "nodeName": node}, "status": status}


Outcome = tuple[str, bool]
"""How the simulator differs, empty if it does not, and whether it has not decided."""


def play(scheduler: Scheduler, made: Case) -> None:
    """Take all steps of a case, until one differs."""
    cluster = Cluster(made)
    for step in made.steps:
        before = cluster.world()
        where, devices = cluster.take(scheduler, step)
        compare = compare_gang if step.group is not None else compare_one
        made.wrong, undecided = compare(before, step, where, devices)
        made.undecided += undecided
        made.late += sum(node is None for node in where.values())
        made.placed += sum(bool(node) for node in where.values())
        made.refused += sum(node == "" for node in where.values())
        if made.wrong:
            return


def _undecided(text: str) -> bool:
    return any(each in text for each in UNDECIDED)


def compare_one(world: World, step: Step, where: Mapping[str, str | None], devices: Mapping[str, Devices]) -> Outcome:
    """Compare a step of one pod."""
    pod, claim = step.pods[0]
    name = pod["metadata"]["name"]
    node = where[name]
    outcome = world.after([*([claim] if claim is not None else ()), {**pod, "status": {}}]).place(pod)
    if isinstance(outcome, Unschedulable) and _undecided(outcome.message):
        return "", True
    if node is None:
        return f"{name}: the scheduler has timed out, simulated: {outcome}", False
    if not node:
        return (f"{name}: simulated on {outcome.node}" if isinstance(outcome, Placement) else ""), False
    if not isinstance(outcome, Placement):
        return f"{name}: runs on {node}, simulated: {outcome.message}", False
    return _same_devices(world, step, {node: [name]}, devices), False


def compare_gang(world: World, step: Step, where: Mapping[str, str | None], devices: Mapping[str, Devices]) -> Outcome:
    """Compare a step of a gang, whose pods are equal: as many of them must run, with the same devices."""
    assert step.group is not None
    group = step.group["metadata"]["name"]
    pods = [{**pod, "status": {}} for pod, _ in step.pods]
    claims = [claim for _, claim in step.pods if claim is not None]
    outcomes = Simulation(world.after([step.group, *claims, *pods])).run(pods)
    texts = [each.finding.text for each in outcomes if each.finding is not None]
    if any(_undecided(text) for text in texts):
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


def _same_devices(world: World, step: Step, on: Mapping[str, list[str]], devices: Mapping[str, Devices]) -> str:
    """Return how the devices of pods differ on their nodes; pods of a node are equal, and got theirs in some order."""
    pod, claim = step.pods[0]
    after = world.after([*([claim] if claim is not None else ()), {**pod, "status": {}}])
    wanted = [model.claim(each.claim) for each in after.claims_of(pod) if each.claim is not None]
    for node, names in on.items():
        used = set(world.in_use)
        ours: Counter[Devices] = Counter()
        for _ in names:
            found = allocator.allocate(model.node(world.nodes[node]), wanted, world.inventory, world.classes, used)
            if isinstance(found, Failure):
                return f"{names}: on {node}, where they do not all fit: {found.reasons[0]}"
            results: list[Any] = [each for one in found.allocations for each in one["devices"]["results"]]
            used |= {model.DeviceId(each["driver"], each["pool"], each["device"]) for each in results}
            ours[tuple((each["request"], each["device"]) for each in results)] += 1
        theirs = Counter(devices[name] for name in names)
        if theirs != ours:
            return f"{names} on {node}: have {dict(theirs)}, simulated {dict(ours)}"
    return ""


def study(options: Options) -> int:
    """Compare, print what differs, and return the exit code. It needs Go."""
    program, began = judge.build_scheduler(REPOSITORY / "build" / "scheduler"), time.monotonic()
    cases: list[Case] = []
    with Scheduler(program, GATES) as scheduler:
        for number in range(options.first, options.first + (options.number or 500)):
            if time.monotonic() - began > options.minutes * 60:
                break
            made = random_clusters.case(number)
            play(scheduler, made)
            cases.append(made)
            if made.wrong:
                print(f"FAILED case {number}: {made.wrong}", flush=True)
            if len(cases) % SHOWN_EVERY == 0:
                print(f"{len(cases)} cases in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    wrong = sum(bool(made.wrong) for made in cases)
    print(f"{'FAILED' if wrong else 'passed'}, {summary(cases)}; {wrong or 'none'} differ{'s' if wrong < 2 else ''}")
    return 1 if wrong else 0


def summary(cases: Sequence[Case]) -> str:
    """Return what the cases had in them, and how their pods fared."""
    gangs = sum(step.group is not None for made in cases for step in made.steps)
    rules = sum(len(made.rules) for made in cases)
    placed = sum(made.placed for made in cases)
    refused = sum(made.refused for made in cases)
    late = sum(made.late for made in cases)
    undecided = sum(made.undecided for made in cases)
    return (
        f"{len(cases)} cases with {gangs} gangs and {rules} taint rules: {placed} pods placed, {refused} not, {late} "
        f"after a time-out; the simulator did not decide {undecided} steps"
    )
