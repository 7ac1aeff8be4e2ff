"""`simulate` reserves what the controller then reserves, on random fleets (4.07, acceptance 4).

NEURON_DRA_LONG=1 tries 500 fleets. Kueue is not simulated, so no workload has a queue.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import random
from dataclasses import dataclass
from typing import Any

import pytest

from hack.bench.ultraservers import ultraserver
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.simulate import reserved
from neuron_dra.core.capacity_block import ANNOTATION
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.planner.fleet.limits import Limits
from tests.story.controller_cluster import Cluster, answering, running_controller
from tests.support.controller_timings import QUICK
from tests.support.waiting import eventually

SEEDS = 500 if os.environ.get("NEURON_DRA_LONG") else 8
KINDS = (
    *("nodes", "resourceslices", "resourceclaims", "resourceclaimtemplates", "deviceclasses", "namespaces"),
    *("neuronultraservers", "neuronultraserverworkloads"),
)
QUIET_LOOKS = 12
"""So many looks in a row without a change: the controller has nothing left to do."""


@dataclass(frozen=True)
class Shown:
    """What a user sees of a workload: its condition Ready, and its nodes by ultraserverIndex."""

    state: str
    reason: str
    message: str
    nodes: dict[int, tuple[str, ...]]


class RandomFleet(Cluster):
    """UltraServers with faults, claims and workloads that a seed decides."""

    def __init__(self, api: EmbeddedApi, seed: int) -> None:
        super().__init__(api)
        self.rng = random.Random(seed)
        for number in range(2, 2 + self.rng.randrange(4)):
            layers = ("l0", f"l{self.rng.randrange(2)}", f"l{self.rng.randrange(4)}")
            self.add(ultraserver(f"u{number}", group=self.rng.choice((4, 4, 4, 2)), layers=layers))
        for node in self.api.objects("nodes"):
            self._mark(node)
        for item in self.api.objects("resourceslices"):
            self._damage(item)

    def _mark(self, node: Obj) -> None:
        """Cordon, taint or fail a Node, or let its capacity block end soon."""
        chance, name = self.rng.random(), node["metadata"]["name"]
        if chance < 0.06:
            self.api.patch("nodes", name, {"spec": {"unschedulable": True}})
        elif chance < 0.1:
            failed = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-03-01T12:00:00Z"}
            self.api.patch("nodes", name, {"status": {"conditions": [failed]}})
        elif chance < 0.16:
            taint = {"key": "example.com/maintenance", "effect": "NoSchedule"}
            self.api.patch("nodes", name, {"spec": {"taints": [taint]}})
        elif chance < 0.3:
            hours = self.rng.choice((1, 5, 30))
            end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=hours, minutes=30)
            annotations = {ANNOTATION: end.strftime("%Y-%m-%dT%H:%M:%SZ")}
            self.api.patch("nodes", name, {"metadata": {"annotations": annotations}})

    def _damage(self, item: Obj) -> None:
        """Take a link down, or withdraw a slice."""
        chance = self.rng.random()
        if chance < 0.08:
            link = self.rng.choice(("linkVertical", "linkHorizontal"))
            for device in item["spec"]["devices"]:
                device["attributes"][link] = {"bool": False}
            self.api.replace(item)
        elif chance < 0.12:
            self.api.delete("resourceslices", item["metadata"]["name"])

    def claim_nodes(self) -> None:
        """Allocate a plain claim on some nodes."""
        owner = {"metadata": {"name": "nobody", "uid": ""}}
        published = {item["spec"]["nodeName"] for item in self.api.objects("resourceslices")}
        for name in sorted(published):
            if self.rng.random() < 0.1:
                self.pod_with_claim(f"pod-{name}", name, owner, plain=True)

    def random_workload(self, name: str) -> Obj:
        """Return a workload's manifest."""
        size = self.rng.choice((1, 2, 4))
        spec: dict[str, Any] = {
            "instanceType": self.rng.choice(("trn3.48xlarge",) * 9 + ("trn2u.48xlarge",)),
            "topologySize": size,
            "serverCount": self.rng.choice((1, 1, 2, 3, 5)),
        }
        if self.rng.random() < 0.2:
            spec["resourceClaimTemplate"] = {"name": self.rng.choice(("shared", f"{name}-rct"))}
        if self.rng.random() < 0.2:
            spec["expectedDuration"] = self.rng.choice(("2h", "24h"))
        return {
            "apiVersion": "neuron.aws.com/v1beta1",
            "kind": "NeuronUltraServerWorkload",
            "metadata": {"name": name, "namespace": "ml"},
            "spec": spec,
        }

    def objects(self) -> list[Obj]:
        """Return what `kubectl get` prints of the kinds that the planner reads."""
        return [item for kind in KINDS for item in self.api.objects(kind)]

    def versions(self) -> set[tuple[str, str]]:
        """Return what changes with each write."""
        return {(item["metadata"]["uid"], item["metadata"]["resourceVersion"]) for item in self.objects()}

    async def settled(self) -> None:
        """Wait until nobody writes any more."""
        quiet, before = 0, self.versions()
        while quiet < QUIET_LOOKS:
            await asyncio.sleep(0.02)
            now = self.versions()
            quiet, before = (quiet + 1 if now == before else 0), now


def shown(items: list[Obj], name: str) -> Shown:
    """Return what is stored of a workload."""
    [workload] = [item for item in items if item["metadata"]["name"] == name and "Workload" in item["kind"]]
    status = workload.get("status") or {}
    [ready] = [condition for condition in status["conditions"] if condition["type"] == "Ready"]
    nodes = {}
    for item in items:
        for entry in (item.get("status") or {}).get("allocations") or ():
            if entry.get("workloadUid") == workload["metadata"]["uid"]:
                nodes[entry["ultraserverIndex"]] = tuple(entry["allocatedNodes"])
    return Shown(status["state"], ready["reason"], ready["message"], nodes)


def simulated(items: list[Obj], manifest: Obj, limits: Limits) -> Shown:
    """Return what `simulate` says of a workload that is not submitted yet."""
    built = snapshot.build(items)
    changes = reserved.reserve([manifest], built, datetime.datetime.now(datetime.UTC), limits=limits)
    after = built.changed(changes.objects, changes.removed)
    kinds = ("NeuronUltraServer", "NeuronUltraServerWorkload")
    return shown([dict(item) for kind in kinds for item in after.all(kind)], manifest["metadata"]["name"])


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_simulate_foretells_the_controller(seed: int) -> None:
    rng = random.Random(f"flags {seed}")
    spares, most = rng.choice(((), (), (("trn3.48xlarge", 1),))), rng.choice((None, None, 8))
    flags = [*(f"--spares={kind}={number}" for kind, number in spares), f"--max-reserved-nodes={most or 'none'}"]
    async with answering(lambda api: RandomFleet(api, seed)) as fleet, running_controller(fleet, *flags, timing=QUICK):
        await eventually(lambda: fleet.api.objects("neuronultraservers"), what="the NeuronUltraServers")
        for number in range(fleet.rng.randrange(4)):
            fleet.api.create(fleet.random_workload(f"earlier-{number}"))
        await fleet.settled()
        fleet.claim_nodes()
        await fleet.settled()
        manifest = fleet.random_workload("job")
        foretold = simulated(fleet.objects(), manifest, Limits(spares=spares, max_reserved_nodes=most))
        fleet.api.create(manifest)
        await fleet.settled()
        assert shown(fleet.objects(), "job") == foretold
