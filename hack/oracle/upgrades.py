"""Judge `doctor --upgrade-to` by Kubernetes' own allocators of both releases, on random clusters.

The waiting pods of a cluster are placed one after the other, as `doctor` places them. For each release, its allocator
must agree whether a node can serve the pod; on the node that was simulated it must allocate the same devices, unless the
answer says that they are not predictable. Nodes are admitted by the simulator: taints, selectors and CPU are not the
allocator's. Nothing is compared where the simulation does not decide, and where a claim for all devices is beside a
pool that is being updated: that fails the pod on every node, a known fault that `doctor` names (kubernetes#141898).
"""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hack.oracle import random_clusters
from hack.oracle.judge import Oracle
from neuron_dra.ask.doctor import forecast
from neuron_dra.ask.doctor.forecast import PodForecast
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.simulate.simulation import PodOutcome
from neuron_dra.ask.world.world import World
from neuron_dra.core import upgrades, versions
from neuron_dra.core.upgrades import UpgradeTarget
from neuron_dra.core.wire import Obj, Wire
from neuron_dra.simulate import nodes

PAIRS: Final = (("1.34", "1.35"), ("1.34", "1.36.3"), ("1.35", "1.36.3"), ("1.35", "1.37"), ("1.36.3", "1.37"))
"""Releases from which and to which an upgrade is judged."""
MOST_DEVICES: Final = 6
"""Devices of a node in a cluster before 1.36."""
ALL_BESIDE_UPDATE: Final = "asks for all devices, but resource pool"
LATE: Final = ("filter operation aborted", "deadline exceeded")


@dataclass(slots=True)
class Judged:
    """What was compared: pods on each of the two releases, those that differ between them, and the disagreements."""

    pods: int = 0
    skipped: int = 0
    placed: int = 0
    devices: int = 0
    changed: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Judged) -> None:
        """Add the results of another cluster."""
        self.pods += other.pods
        self.skipped += other.skipped
        self.placed += other.placed
        self.devices += other.devices
        self.changed += other.changed
        self.wrong += other.wrong


def cluster(number: int, before: str) -> Snapshot:
    """Return a random cluster with waiting pods, as an API server of this release keeps it."""
    has_counters = _minor(before) >= versions.FIRST_WITH_COUNTERS
    made = random_clusters.case(number, sets=has_counters)
    rng = random.Random(f"upgrade {number}")
    items: list[Obj] = copy.deepcopy(random_clusters.classes())
    for node, published in made.nodes:
        status = {**node["status"], "allocatable": node["status"]["capacity"]}
        items.append({**node, "status": status})
        if not has_counters:
            _shorten(published)
            published = _split(rng, published)
        _disturb(rng, published)
        items += published
    if has_counters:
        items += made.rules
    for step in made.steps:
        for pod, claim in step.pods:
            pod["spec"].pop("schedulingGroup", None)
            if claim is None:
                continue
            if not has_counters:
                _reduce(claim)
            _constrain(rng, claim)
            items += [claim, {**pod, "status": {"phase": "Pending"}}]
    return dataclasses.replace(snapshot.build(items), version=f"v{_full(before)}")


def _shorten(slices: Sequence[Obj]) -> None:
    """Leave few devices without taints, as API servers before 1.36 keep them: with many, a vain search takes 10 s."""
    for item in slices:
        item["spec"]["devices"] = item["spec"]["devices"][:MOST_DEVICES]
        for device in item["spec"]["devices"]:
            device.pop("taints", None)


def _split(rng: random.Random, slices: Sequence[Obj]) -> list[Obj]:
    """Return slices of which some are split in two: before 1.36 the scheduler tries these in an order that changes."""
    made: list[Obj] = []
    for item in slices:
        devices = item["spec"]["devices"]
        if rng.random() > 0.25 or len(devices) < MOST_DEVICES:
            made.append(item)
            continue
        for number, part in enumerate((devices[::2], devices[1::2])):
            half = copy.deepcopy(item)
            half["metadata"]["name"] += f"-{number}"
            half["spec"]["devices"] = part
            half["spec"]["pool"]["resourceSliceCount"] = 2
            made.append(half)
    return made


def _reduce(claim: Obj) -> None:
    """Let a claim request devices that exist before 1.36, and not more than a node can have."""
    for request in claim["spec"]["devices"]["requests"]:
        for alternative in (request.get("exactly"), *request.get("firstAvailable", ())):
            if alternative is not None:
                alternative["deviceClassName"] = random_clusters.DRIVER
                if alternative.get("count", 1) > MOST_DEVICES:
                    alternative["count"] = MOST_DEVICES - 1


def _disturb(rng: random.Random, slices: Sequence[Obj]) -> None:
    """Make the pool of some nodes incomplete or invalid, as while a driver updates it.

    Its slices agree on their number: if they do not, the first one counts, in an order that changes.
    """
    chance = rng.random()
    devices = slices[0]["spec"].get("devices") or []
    if chance < 0.1:
        for item in slices:
            item["spec"]["pool"]["resourceSliceCount"] += 1
    elif chance < 0.15 and len(devices) > 1:
        devices[1] = {**devices[1], "name": devices[0]["name"]}


def _constrain(rng: random.Random, claim: Obj) -> None:
    """Let some claims have what the releases treat differently."""
    devices = claim["spec"]["devices"]
    if rng.random() < 0.15:
        attribute = f"{random_clusters.DRIVER}/deviceId"
        devices["constraints"].append({"distinctAttribute": attribute, "requests": [devices["requests"][0]["name"]]})
    if rng.random() < 0.1:
        first = {"name": "s0", "deviceClassName": random_clusters.DRIVER, "allocationMode": "All"}
        selector = {"cel": {"expression": f"device.attributes['{random_clusters.DRIVER}'].deviceId < 4"}}
        second = {**first, "name": "s1", "selectors": [selector]}
        devices["requests"][0] = {"name": devices["requests"][0]["name"], "firstAvailable": [first, second]}
        devices["constraints"] = []


def judge(number: int, pair: tuple[str, str], oracles: Mapping[str, Oracle]) -> Judged:
    """Compare the answer about one cluster with the allocators of both releases."""
    before, after = pair
    seen = cluster(number, before)
    trial = forecast.simulated(seen, target(after))
    found = Judged()
    for release, world, outcomes in ((before, trial.world_now, trial.now), (after, trial.world_then, trial.then)):
        _judge_release(oracles[release], world, outcomes, found, f"case {number}, {before} to {after}, on {release}")
    _judge_devices(trial.forecasts(), trial.then, found, f"case {number}, {before} to {after}")
    return found


def _judge_devices(forecasts: Sequence[PodForecast], outcomes: Sequence[PodOutcome], found: Judged, where: str) -> None:
    """Compare what is printed with what was simulated, and count the pods for which the upgrade changes something."""
    for each, outcome in zip(forecasts, outcomes, strict=True):
        found.changed += None not in (each.fits_now, each.fits_then) and each.fits_now is not each.fits_then
        if each.devices and tuple(device for _, device in _devices(outcome)) != each.devices:
            found.wrong.append(f"{where}: {each.pod}: {each.devices} was not simulated")


def _judge_release(oracle: Oracle, world: World, outcomes: Sequence[PodOutcome], found: Judged, where: str) -> None:
    slices = [dict(item) for item in _tainted(world)]
    random.Random(where).shuffle(slices)  # an API server lists them in no order
    about: Obj = {"slices": slices, "classes": list(world.snapshot.all("DeviceClass"))}
    in_use: list[Obj] = []
    room = world.room.copy()
    for outcome in outcomes:
        name = outcome.pod["metadata"]["name"]
        claims = [each.claim for each in world.claims_of(outcome.pod) if each.claim is not None]
        answers: dict[str, Obj] = {}
        for node in world.nodes.values():
            if nodes.objection(outcome.pod, world.decoded(node)) or room.lacking(outcome.pod, node):
                continue
            question = {**about, "claims": claims, "node": node, "inUse": in_use}
            answers[node["metadata"]["name"]] = oracle.ask(question)
        found.pods += 1
        errors = [str(answer.get("error") or "") for answer in answers.values()]
        is_late = any(text in error for error in errors for text in LATE)
        if outcome.undecided or is_late or any(ALL_BESIDE_UPDATE in error for error in errors):
            found.skipped += 1
        else:
            if text := _difference(outcome, answers, world):
                found.wrong.append(f"{where}: pod {name}: {text}")
        if outcome.placement is None:
            continue
        found.placed += 1
        found.devices += len(_devices(outcome))
        for allocation in outcome.placement.allocations.values():
            for each in allocation["devices"]["results"]:
                in_use.append({key: each[key] for key in ("driver", "pool", "device")})
        room.add({**outcome.pod, "spec": {**outcome.pod["spec"], "nodeName": outcome.placement.node}})


def _difference(outcome: PodOutcome, answers: Mapping[str, Obj], world: World) -> str:
    """Return how the allocator's answers for the nodes differ from what was simulated; empty if they do not."""
    fails = any(answer.get("kind") == "pod" for answer in answers.values())
    serving = [node for node, answer in answers.items() if answer.get("allocations")]
    fits = bool(serving) and not fails
    if fits is not (outcome.placement is not None):
        errors = [answer["error"] for answer in answers.values() if answer.get("error")]
        return f"simulated {outcome.placement or outcome.finding}, allocated on {serving}, errors {errors[:2]}"
    if outcome.placement is None:
        return ""
    node = outcome.placement.node
    if node not in serving:
        return f"simulated on {node}, which serves it not; {serving} do"
    theirs = _results(answers[node]["allocations"])
    if not world.inventory.is_ordered(world.decoded(world.nodes[node]), {random_clusters.DRIVER}):
        return ""
    ours = _devices(outcome)
    return "" if theirs == ours else f"on {node}: allocated {theirs}, simulated {ours}"


def _devices(outcome: PodOutcome) -> list[tuple[str, str]]:
    return _results(list(outcome.placement.allocations.values())) if outcome.placement is not None else []


def _results(allocations: Sequence[Wire]) -> list[tuple[str, str]]:
    results: list[Any] = [each for one in allocations for each in one["devices"].get("results") or ()]
    return [(each["request"], each["device"]) for each in results]


def _tainted(world: World) -> Sequence[Wire]:
    from neuron_dra.ask.world.world import tainted

    slices = world.snapshot.all("ResourceSlice")
    return tainted(slices, world.snapshot) if world.rules.taints else slices


def target(release: str) -> UpgradeTarget:
    """Return the version that `--upgrade-to` gets for a release whose allocator is built."""
    return upgrades.target(release)


def _minor(release: str) -> tuple[int, int]:
    minor = versions.parse(release)
    assert minor is not None
    return minor


def _full(release: str) -> str:
    return release if release.count(".") == 2 else f"{release}.4"
