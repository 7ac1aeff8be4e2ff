"""Damage one, lose one: whatever one field of one object says, the other workloads are planned as without it.

Some reservations are to be restored: their NeuronUltraServer was deleted by force, their ids were dropped, or only
tags show them. For every kind that the controller reads and every field of it: missing, another type, extreme values.
The object is damaged before the controller first reads it, or after. NEURON_DRA_DAMAGES is the number of damages that
are tried.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from controller.metrics import Metrics
from controller.observe.caches import Caches
from controller.timing import DEFAULT_TIMING
from hack.bench.ultraservers import ultraserver
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.core.wire import Obj
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.planner.decisions.actions import Action, Plan
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.plan import planning
from tests.unit.ultraserver_world import World

DAMAGES = int(os.environ.get("NEURON_DRA_DAMAGES", "600"))
ABSENT = object()
VALUES: tuple[Any, ...] = (
    ABSENT, None, True, 7, -1, 0, 2**70, 10**30, 1e308, "x", "", " ", "1" * 5000, "nan", [], {}, [None], [7], ["x"],
    [{}], [[]], {"x": None}, {"": {}}, "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00",
)  # fmt: skip
IDENTITY = {("metadata", name) for name in ("name", "namespace", "uid", "resourceVersion")} | {("kind",), ("metadata",)}
PLURALS = {
    "Node": "nodes",
    "ResourceSlice": "resourceslices",
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "NeuronUltraServer": "neuronultraservers",
    "NeuronUltraServerWorkload": "neuronultraserverworkloads",
    "Namespace": "namespaces",
    "DeviceClass": "deviceclasses",
}
Path = tuple[str | int, ...]


class Shelf(KubeClient):
    """An API server that has these objects."""

    def __init__(self, objects: Mapping[Any, Obj]) -> None:
        super().__init__(KubeConfig("shelf:"))
        self.objects = objects

    async def _send(self, method: str, path: str, *_: object) -> bytes:
        plural = path.rpartition("/")[2]
        items = [item for item in self.objects.values() if PLURALS.get(item["kind"]) == plural]
        return msgspec.json.encode({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items})


PLACES = {"one": "u0", "two": "u1", "lost": "u2", "adopted": "u3", "orphan": "u4"}
"""Each workload and its UltraServer; u5 is free."""


def world() -> World:
    """`one` and `two` run, `wide` waits for more than there is, and the reservations of three others are damaged."""
    made = World([item for n in range(6) for item in ultraserver(f"u{n}")])
    made.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
    for name in ("neuron.aws.com", "workload.neuron.aws.com"):
        made.put({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}})
    made.settle()
    for name, place in PLACES.items():
        made.submit(name, size=4)
        made.settle()
        [nodes] = made.reserved(name).values()
        assert nodes[0] == f"{place}-0"
        made.claim(f"{name}-claim", nodes, workload_uid=made.workload(name)["metadata"]["uid"])
    made.submit("wide", size=4, count=9)
    made.settle()
    made.remove("NeuronUltraServer", "us-u2", NAMESPACE)
    adopted = copy.deepcopy(made.get("NeuronUltraServer", "us-u3", NAMESPACE))
    for entry in adopted["status"]["allocations"]:
        del entry["allocationId"], entry["workloadUid"]
    made.put(adopted)
    orphaned = copy.deepcopy(made.get("NeuronUltraServer", "us-u4", NAMESPACE))
    orphaned["status"]["allocations"] = []
    made.put(orphaned)
    made.remove("NeuronUltraServerWorkload", "orphan", "ml")
    return made


def owner(item: Obj) -> str:
    """Return the workload that an object belongs to; empty for none."""
    text = repr(item)
    found = [
        name for name, place in PLACES.items() if f"{place}-" in text or f"'{place}'" in text or f"'{name}'" in text
    ]
    return found[0] if len(found) == 1 else "wide" if item["metadata"]["name"] == "wide" else ""


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    """Yield every place in an object, of lists the first entry only."""
    if at:
        yield at
    entries: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        entries = [*value.items()]
    elif isinstance(value, list):
        entries = [*enumerate(value[:1])]
    for key, entry in entries:
        yield from paths(entry, (*at, key))


def damaged(item: Obj, path: Path, value: Any) -> Obj:
    made: Any = copy.deepcopy(item)
    place = made
    for key in path[:-1]:
        place = place[key]
    if value is ABSENT:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    made["metadata"]["resourceVersion"] = "9999"
    return dict(made)


def cases() -> list[tuple[Any, Path, Any]]:
    """Some of all damages, the same each time."""
    first: dict[tuple[str, Path], Any] = {}
    for key, item in world().objects.items():
        for path in paths(item):
            if path not in IDENTITY:
                first.setdefault((f"{item['kind']} {owner(item)}", path), (key, path))
    found = [(*place, value) for place in first.values() for value in VALUES]
    return random.Random(1).sample(found, min(DAMAGES, len(found)))


async def planned(caches: Caches[FleetIndex], made: World) -> Plan:
    index = caches.index()
    plan = planning.plan_of(index, made.now)
    Metrics().planned(0.1, index, plan, made.now)
    return plan


def about(plan: Plan, uid: str) -> tuple[Any, list[Action]]:
    """Return what a plan decides about a workload, and its writes for it."""
    found = []
    for action in plan.actions:
        owners = getattr(action, "owners", None)
        if (uid in owners) if owners is not None else (uid in repr(action)):
            found.append(action)
    verdict = plan.verdicts.get(uid)
    return verdict and (verdict.state, verdict.reason, verdict.degraded), found


@pytest.fixture(scope="module")
def before() -> World:
    return world()


@pytest.mark.parametrize("known", [True, False], ids=["read before", "never read"])
async def test_damage_costs_no_other_workload(before: World, known: bool) -> None:
    uids = {name: before.workload(name)["metadata"]["uid"] for name in ("one", "two", "wide")}
    shelf = Shelf(before.objects)
    sound = Caches(shelf, lambda: None, FleetIndex(), DEFAULT_TIMING.caches)
    await sound.relist()
    expected = {name: about(await planned(sound, before), uid) for name, uid in uids.items()}
    assert [(found[0][0], found[1]) for found in expected.values()] == [
        ("Allocated", []),
        ("Allocated", []),
        ("Pending", []),
    ]
    failures = []
    for key, path, value in cases():
        item = before.objects[key]
        shelf = Shelf(before.objects)
        caches = Caches(shelf, lambda: None, FleetIndex(), DEFAULT_TIMING.caches)
        what = f"{key} {'.'.join(map(str, path))} = {'absent' if value is ABSENT else repr(value)[:40]}"
        try:
            if known:
                await caches.relist()
                await planned(caches, before)
            shelf.objects = {**before.objects, key: damaged(item, path, value)}
            await caches.relist()
            plan = await planned(caches, before)
        except Exception as err:
            failures.append(f"{what}: {err!r}")
            continue
        for name in {"one", "two"} - {owner(item)}:
            if about(plan, uids[name]) != expected[name]:
                failures.append(f"{what}: {name} is {about(plan, uids[name])}")
        if owner(item) != "wide" and (found := plan.verdicts.get(uids["wide"])) is None:
            failures.append(f"{what}: wide is {found}")
    assert not failures, "\n".join(failures)
