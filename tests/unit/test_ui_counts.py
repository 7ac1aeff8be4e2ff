"""The page counts as `neuron-dra status` does: capacity, what waits, and what is wrong (4.09)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from neuron_dra.ask.status import text as status_text
from neuron_dra.ask.ui.kept_rows import KeptRows
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from tests.support import shown_fleet
from tests.support import small_clusters as small

SEEDS = 25
AGENT = {"type": "NeuronHealth", "status": "False", "reason": "NeuronHasError", "message": "the agent saw an error"}


def random_fleet(seed: int) -> list[Obj]:
    """Return a fleet with something of everything, of which some nodes, slices, links and pods are broken."""
    chance = random.Random(seed)
    items = shown_fleet.mixed(chance.randrange(5), chance.randrange(1, 20), waiting=chance.randrange(6))
    broken: list[Obj] = []
    for item in items:
        kind, luck = item["kind"], chance.random()
        if luck < 0.05 and kind in ("Node", "ResourceSlice", "ResourceClaim", "NeuronUltraServer"):
            continue  # it is gone
        if kind == "Node" and luck < 0.2:
            item["status"] = {**item["status"], "nodeInfo": {"containerRuntimeVersion": "containerd://1.6.20"}}
        if kind == "Node" and 0.2 < luck < 0.3:
            item["status"] = {**item["status"], "conditions": [*item["status"].get("conditions", ()), AGENT]}
        if kind == "ResourceSlice" and 0.1 < luck < 0.15:
            item["spec"]["pool"] = {**item["spec"]["pool"], "resourceSliceCount": 2}
        if kind == "Pod" and item["spec"].get("nodeName") and luck < 0.3:
            item["status"] = {**item["status"], "phase": "Pending", "conditions": []}
        if kind == "Pod" and 0.3 < luck < 0.4:
            item["spec"]["containers"] = [{"name": "blind"}]
        broken.append(item)
    for number in range(chance.randrange(4)):
        state, ready = chance.choice((("Pending", False), ("Allocated", True), ("Failed", False)))
        broken.append(shown_fleet.workload(f"more-{number}", "ml", state, ready=ready, message="none is free"))
    return broken


def faults_of(found: Iterable[dict[str, Any]]) -> Counter[tuple[str, ...]]:
    return Counter((row["kind"], row["name"], row["what"], row["detail"]) for row in found)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_counts_agree_with_status(seed: int) -> None:
    snapshot = small.cluster(random_fleet(seed))
    page, status = KeptRows().whole(World(snapshot)), status_text.data(World(snapshot), "")
    for expected in status["types"]:
        row = page["types"][expected["type"]]
        assert {name: row[name] for name in expected} == expected
    assert len(page["types"]) == len(status["types"])
    assert faults_of(page["wrong"].values()) == faults_of(status["wrong"])
    waiting = [f"{row['namespace']}/{pod}" for row in page["waiting"].values() for pod in row["pods"]]
    assert sorted(waiting) == sorted(row["pod"] for row in status["waiting"])
    stuck = {name: (row["node"], row["text"]) for name, row in page["stuck"].items()}
    assert stuck == {row["pod"]: (row["node"], row["text"]) for row in status["notStarted"]}
    reservations = {key: row["reason"] for key, row in page["workloads"].items() if row["waits"]}
    assert reservations == {row["workload"]: row["reason"] for row in status["workloads"]}


def test_random_fleets_have_something_to_count() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        page = KeptRows().whole(World(small.cluster(random_fleet(seed))))
        seen.update({section: len(page[section]) for section in ("wrong", "waiting", "stuck", "workloads")})
        seen.update(row["kind"] for row in page["wrong"].values())
    assert min(seen[name] for name in ("wrong", "waiting", "stuck", "workloads", "node", "UltraServer", "pod")) > 0


def test_nodes_of_an_ultraserver_are_no_devices() -> None:
    """16 UltraServers publish 64 nodes, each as a whole: these are not 64 devices."""
    row = KeptRows().whole(World(small.cluster(shown_fleet.mixed(16, 0))))["types"]["trn2u.48xlarge"]
    assert (row["devices"], row["unit"]) == (64, "node")


def test_free_ultraservers_pairs_and_nodes_are_counted() -> None:
    """Of five UltraServers, one has a broken link, two are reserved, and a pod holds a node of another."""
    row = KeptRows().whole(World(small.cluster(shown_fleet.mixed(5, 1))))["types"]
    assert row["trn2u.48xlarge"]["freeServers"] == (1, 2, 3)
    assert row["trn2.48xlarge"]["freeServers"] == ()


def test_an_ultraserver_shows_the_nodes_that_it_lacks() -> None:
    items = [item for item in shown_fleet.mixed(1, 0) if item["metadata"]["name"] != "trn2u-2"]
    items = [item for item in items if item["kind"] != "ResourceSlice" or item["spec"]["nodeName"] != "trn2u-2"]
    server = KeptRows().whole(World(small.cluster(items)))["servers"]["trn2u-ultraserver-0"]
    assert [(node["name"], node["x"], node["y"], node["missing"]) for node in server["nodes"]] == [
        ("trn2u-0", 0, 0, False),
        ("trn2u-1", 0, 1, False),
        ("trn2u-2", 1, 1, True),
        ("trn2u-3", 1, 0, False),
    ]
