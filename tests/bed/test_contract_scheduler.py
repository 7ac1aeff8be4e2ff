"""The simulator against the real scheduler, on small random clusters: which pods get which devices, and which wait.

The nodes have no kubelet, and each case has its own driver, class and node, so that all are scheduled together.
"""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest

from hack.bed.real_cluster import Namespace, TestBed, eventually
from neuron_dra.core import versions
from neuron_dra.core.wire import Obj
from neuron_dra.simulate import scheduler, semantics
from neuron_dra.simulate.pools import PoolInventory
from neuron_dra.simulate.semantics import Semantics

CASES = 48
SEED = 20260701
GROUP = "group.example.com/g"


class Case:
    """One cluster: a node, its devices, and one pod with a claim or two."""

    def __init__(self, number: int, prefix: str, newest: bool) -> None:
        self.random = random.Random(SEED + number)
        self.newest = newest
        self.name = f"{prefix}-{number:02d}"
        self.driver = f"{self.name}.example.com"

    def often(self) -> bool:
        return self.random.random() < 0.75

    def seldom(self) -> bool:
        return self.random.random() < 0.125

    @property
    def selector(self) -> str:
        of = f"device.attributes['{self.driver}']"
        choices = (
            f"{of}.n == 0",
            f"{of}.n < 2",
            f"has({of}.kind) && {of}.kind == 'x'",
            f"{of}.kind == 'x' || {of}.n == 1",
        )
        return self.random.choice(choices)

    def device(self, number: int) -> Obj:
        attributes: Obj = {"n": {"int": self.random.randrange(3)}}
        if self.often():
            attributes["kind"] = {"string": self.random.choice("xy")}
        if not self.seldom():
            attributes[GROUP] = {"string": self.random.choice(("g1", "g2"))}
        out: Obj = {"name": f"d{number}", "attributes": attributes}
        if self.newest and self.seldom():
            effect = self.random.choice(("NoSchedule", "NoExecute"))
            out["taints"] = [{"key": "example.com/bad", "value": self.random.choice("xy"), "effect": effect}]
        return out

    def slices(self) -> list[Obj]:
        count = self.random.choice((1, 1, 2))
        announced = count + self.seldom()  # sometimes one is missing, so the pool is incomplete
        return [
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": f"{self.name}-{index}"},
                "spec": {
                    "driver": self.driver,
                    "nodeName": self.name,
                    "pool": {"name": self.name, "generation": 1, "resourceSliceCount": announced},
                    "devices": [self.device(10 * index + number) for number in range(self.random.randint(3, 7))],
                },
            }
            for index in range(count)
        ]

    def device_class(self) -> Obj:
        expression = f"device.driver == '{self.driver}'"
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": self.name},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        }

    def wanted(self) -> Obj:
        out: Obj = {"deviceClassName": self.name, "allocationMode": "All"}
        if not self.seldom():
            out |= {"allocationMode": "ExactCount", "count": self.random.choice((1, 1, 2, 3))}
        if self.random.random() < 0.4:
            out["selectors"] = [{"cel": {"expression": self.selector}}]
        if self.newest and self.seldom():
            out["tolerations"] = [{"key": "example.com/bad", "operator": "Exists"}]
        return out

    def claim(self, place: str, number: int) -> Obj:
        requests: list[Obj] = []
        for index in range(self.random.choice((1, 1, 2))):
            if self.random.random() < 0.3:
                subs = [{"name": f"s{i}", **self.wanted()} for i in range(self.random.randint(1, 3))]
                requests.append({"name": f"r{index}", "firstAvailable": subs})
            else:
                requests.append({"name": f"r{index}", "exactly": self.wanted()})
        constraints = []
        if self.random.random() < 0.4:
            kind = "distinctAttribute" if self.newest and self.seldom() else "matchAttribute"
            constraints.append({kind: self.random.choice((GROUP, f"{self.driver}/n"))})
        metadata = {"name": f"{self.name}-{number}", "namespace": place}
        spec = {"devices": {"requests": requests, "constraints": constraints}}
        return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}

    def pod(self, place: str, claims: list[Obj]) -> Obj:
        names = [claim["metadata"]["name"] for claim in claims]
        container = {"name": "c", "image": "none", "resources": {"claims": [{"name": name} for name in names]}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "namespace": place},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": self.name},
                "tolerations": [{"operator": "Exists"}],
                "containers": [container],
                "resourceClaims": [{"name": name, "resourceClaimName": name} for name in names],
            },
        }

    def node(self) -> Obj:
        room = {"cpu": "8", "memory": "8Gi", "pods": "110"}
        metadata = {"name": self.name, "labels": {"kubernetes.io/hostname": self.name}}
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata,
                "status": {"capacity": room, "allocatable": room}}  # fmt: skip


def results(allocation: Any) -> Any:
    """Return a claim's results in their order: request, pool and device."""
    devices = (allocation or {}).get("devices") or {}
    return [(item["request"], item["pool"], item["device"]) for item in devices.get("results") or []]


def expected(case: Case, pod: Obj, claims: list[Obj], slices: list[Obj], rules: Semantics) -> list[dict[str, Any]]:
    """Return what the claims may get: before 1.36, that of each order of the slices.

    The order decides about devices, and about a selector that fails on a device: does the search end before it?
    """
    found = []
    for order in [tuple(slices)] if rules.sorted_slices else itertools.permutations(slices):
        named = [{**item, "metadata": {"name": f"{number}"}} for number, item in enumerate(order)]
        inventory = PoolInventory(named, rules)
        outcome = scheduler.schedule(pod, claims, [case.node()], inventory, [case.device_class()], frozenset())
        given = outcome.allocations if isinstance(outcome, scheduler.Placement) else {}
        found.append({claim["metadata"]["name"]: results(given.get(claim["metadata"]["name"])) for claim in claims})
    return found


@pytest.mark.contract("A6")
@pytest.mark.contract("A3")
def test_simulator_allocates_as_the_scheduler(bed: TestBed, namespace: Namespace) -> None:
    rules = semantics.of(versions.parse(bed.parts.state.kubernetes))
    newest = rules is semantics.NEW
    cases = [Case(number, namespace.name, newest) for number in range(CASES)]
    slices = {case.name: case.slices() for case in cases}
    claims = {
        case.name: [case.claim(namespace.name, i) for i in range(case.random.choice((1, 1, 2)))] for case in cases
    }
    pods = {case.name: case.pod(namespace.name, claims[case.name]) for case in cases}
    clusters = [item for case in cases for item in (case.node(), case.device_class(), *slices[case.name])]

    def listed(items: list[Obj]) -> str:
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})

    def judged() -> bool:
        found = bed.get("pods", "--namespace", namespace.name)["items"]
        known = [{c["type"] for c in pod["status"].get("conditions", [])} for pod in found]
        return len(known) == CASES and all("PodScheduled" in conditions for conditions in known)

    try:
        bed.kubectl("create", "-f", "-", stdin=listed(clusters))
        namespace.kubectl("create", "-f", "-", stdin=listed([item for group in claims.values() for item in group]))
        namespace.kubectl("create", "-f", "-", stdin=listed(list(pods.values())))
        eventually("the scheduler has tried every pod", judged, 60, 0.5)
        stored = {item["metadata"]["name"]: item for item in namespace.get("resourceclaims")["items"]}
        theirs = {name: results(item.get("status", {}).get("allocation")) for name, item in stored.items()}
        wrong, waiting = [], 0
        for case in cases:
            possible = expected(case, pods[case.name], claims[case.name], slices[case.name], rules)
            given = {name: theirs[name] for name in possible[0]}
            waiting += not any(given.values())
            if given not in possible:
                wrong.append((case.name, given, possible))
    finally:
        namespace.kubectl("delete", "pods", "--all", "--force", "--grace-period=0", timeout_s=120)
        bed.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=listed(clusters), timeout_s=120)
    assert wrong == []
    assert 0 < waiting < len(cases) / 2, "cases in which all pods wait, or none does, test little"
