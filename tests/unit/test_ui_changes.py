"""What `neuron-dra ui` computes again after a change: the rows that it touches, and no others (37.1)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest

from neuron_dra.ask.read.mirror import Changes, KindChanges, Mirror
from neuron_dra.ask.read.snapshot import Snapshot, key_of
from neuron_dra.ask.ui.board import Board
from neuron_dra.ask.ui.kept_rows import KeptRows
from neuron_dra.ask.ui.table import Table
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from tests.support import shown_fleet
from tests.support import small_clusters as small

SERVERS, NODES = 6, 40
Rows = dict[str, dict[str, Any]]


class Live:
    """A page that follows a fleet, beside the rows of its snapshot as they are when all are computed."""

    def __init__(self, items: Iterable[Obj]) -> None:
        self.mirror = Mirror()
        self.board = Board()
        self.table = Table()
        self.objects = {key_of(item): item for item in items}
        snapshot = self.mirror.apply(self.changes(self.objects))
        self.table.put(self.board.show(snapshot))
        self.snapshot: Snapshot = snapshot

    def changes(self, keys: Iterable[tuple[str, str, str]], **more: Any) -> Changes:
        by_kind: dict[str, dict[tuple[str, str], Obj | None]] = {}
        for kind, namespace, name in keys:
            by_kind.setdefault(kind, {})[namespace, name] = self.objects.get((kind, namespace, name))
        return Changes([KindChanges(kind, found) for kind, found in by_kind.items()], **more)

    def change(self, *new: Obj, gone: Iterable[Obj] = (), **more: Any) -> int:
        """Change objects, and return the number of rows of nodes and UltraServers that were computed for it."""
        keys = [key_of(item) for item in (*new, *gone)]
        for item in gone:
            self.objects.pop(key_of(item))
        self.objects |= {key_of(item): item for item in new}
        before = self.board.kept.computed
        self.snapshot = self.mirror.apply(self.changes(keys, **more))
        patch = self.board.follow(self.snapshot, self.mirror.touched)
        self.table.put(patch.sections, patch.rows)
        return self.board.kept.computed - before

    def get(self, kind: str, name: str, namespace: str = "") -> Obj:
        return copy.deepcopy(self.objects[kind, namespace, name])

    def a(self, kind: str, **wanted: str) -> Obj:
        """Return a copy of the first object of a kind whose spec has these values."""
        for key, item in self.objects.items():
            if key[0] == kind and all(item["spec"].get(name) == value for name, value in wanted.items()):
                return copy.deepcopy(item)
        raise AssertionError(f"no {kind} has {wanted}")

    def shown(self) -> Rows:
        """Return the rows of the page."""
        return decoded(self.table)

    def expected(self) -> Rows:
        """Return the rows of the snapshot, all of them computed anew."""
        table = Table()
        table.put(KeptRows().whole(World(self.snapshot)))
        return decoded(table)


def decoded(table: Table) -> Rows:
    import json

    found: Rows = json.loads(table.since(0))["set"]
    return {section: dict(sorted(rows.items())) for section, rows in found.items() if section != "shapes"}


@pytest.fixture
def live() -> Live:
    return Live(shown_fleet.mixed(SERVERS, NODES))


def free_node(live: Live) -> str:
    rows = live.shown()["nodes"]
    return next(name for name, row in rows.items() if row["letter"] == "F" and not row["server"])


def claim(node: str, *devices: str, name: str = "new") -> Obj:
    """Return a claim that a pod holds devices of a node with."""
    results = [{"request": "r", "driver": "neuron.aws.com", "pool": node, "device": each} for each in devices]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "ml", "uid": name},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "neuron.aws.com"}}]}},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": f"pod-{name}", "uid": name}],
        },
    }


def test_a_claim_computes_the_row_of_its_node(live: Live) -> None:
    node = free_node(live)
    assert live.change(claim(node, "neuron-device-0", "neuron-device-1")) == 1
    assert live.shown()["nodes"][node]["state"] == "ml/pod-new"
    assert live.shown() == live.expected()
    assert live.change(gone=[claim(node)]) == 1
    assert live.shown()["nodes"][node]["state"] == "free"
    assert live.shown() == live.expected()


def test_a_node_computes_its_row_alone(live: Live) -> None:
    node = live.get("Node", free_node(live))
    node["spec"]["unschedulable"] = True
    assert live.change(node) == 1
    assert live.shown()["nodes"][node["metadata"]["name"]]["letter"] == "C"
    assert live.shown() == live.expected()


def test_a_node_of_an_ultraserver_computes_also_that_ultraserver(live: Live) -> None:
    name = next(name for name, row in live.shown()["nodes"].items() if row["server"])
    node = live.get("Node", name)
    node["status"] = {**(node.get("status") or {}), "conditions": [{"type": "Ready", "status": "False"}]}
    assert live.change(node) == 2
    assert live.shown()["nodes"][name]["letter"] == "N"
    assert live.shown() == live.expected()


def test_a_slice_computes_the_row_of_its_node(live: Live) -> None:
    node = free_node(live)
    item = live.a("ResourceSlice", nodeName=node)
    item["spec"]["devices"][3]["taints"] = [{"key": "neuron.aws.com/unhealthy", "effect": "NoSchedule"}]
    assert live.change(item) == 1
    assert live.shown()["nodes"][node]["faulty"] == 1
    assert live.shown() == live.expected()
    assert live.change(gone=[item]) == 1
    assert live.shown()["nodes"][node]["letter"] == "S"
    assert live.shown() == live.expected()


def test_a_node_comes_and_goes(live: Live) -> None:
    made = [small.node("another"), *small.slices("another")]
    assert live.change(*made) == 1
    assert live.shown() == live.expected()
    assert live.change(gone=made) == 0
    assert "another" not in live.shown()["nodes"]
    assert live.shown() == live.expected()


def test_a_pod_that_waits_computes_no_row_of_a_node(live: Live) -> None:
    pod = small.pod("late", "seventeen", namespace="ml")
    assert live.change(pod) == 0
    assert "ml/late" in live.shown()["waiting"]
    assert live.shown() == live.expected()
    assert live.change(gone=[pod]) == 0
    assert live.shown() == live.expected()


def test_an_event_computes_nothing(live: Live) -> None:
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "ml"},
             "involvedObject": {"kind": "Pod", "namespace": "ml", "name": "p"}}  # fmt: skip
    version = live.table.version
    assert live.change(event) == 0
    assert live.table.version == version


def test_an_event_about_a_node_computes_its_row_and_adds_a_fault(live: Live) -> None:
    node = live.a("Node")["metadata"]["name"]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "link", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": node},
        "reason": "NeuronMissingLink",
        "message": "a link is down",
        "type": "Warning",
    }
    assert live.change(event) >= 1
    what = "the driver reports NeuronMissingLink"
    assert [row["name"] for row in live.shown()["wrong"].values() if row["what"] == what] == [node]
    assert live.shown() == live.expected()
    live.change(gone=[event])
    assert live.shown() == live.expected()


def test_an_ultraserver_object_computes_its_row(live: Live) -> None:
    item = live.a("NeuronUltraServer")
    item.setdefault("status", {})["conditions"] = [{"type": "Degraded", "status": "True", "reason": "CRCErrors"}]
    assert live.change(item) == 1
    assert any(row["what"] == "CRCErrors" for row in live.shown()["wrong"].values())
    assert live.shown() == live.expected()


def test_a_claim_of_a_podgroup_follows_the_pods_of_the_group(live: Live) -> None:
    node = free_node(live)
    held = claim(node, "neuron-device-0")
    held["status"]["reservedFor"] = [{"resource": "podgroups", "name": "gang", "uid": "g"}]
    pod = small.pod("member", namespace="ml", schedulingGroup={"podGroupName": "gang"}, nodeName=node)
    live.change(held)
    assert live.change(pod) == 1
    assert live.shown()["holders"][f"ml/new@{node}"]["pods"] == ["member"]
    assert live.shown() == live.expected()


def test_two_claims_of_one_device_are_shown_as_when_all_is_computed(live: Live) -> None:
    node = free_node(live)
    one, other = claim(node, "neuron-device-0", name="one"), claim(node, "neuron-device-0", name="other")
    live.change(one)
    live.change(other)
    assert live.shown() == live.expected()
    live.change(gone=[other])
    assert live.shown() == live.expected()
    live.change(gone=[one])
    assert live.shown() == live.expected()


RULE = {
    "apiVersion": "resource.k8s.io/v1beta2",
    "kind": "DeviceTaintRule",
    "metadata": {"name": "all"},
    "spec": {"deviceSelector": {"driver": "neuron.aws.com"}, "taint": {"key": "maintenance", "effect": "NoSchedule"}},
}


def test_a_taint_rule_computes_every_row(live: Live) -> None:
    assert live.change(RULE) == len(live.shown()["nodes"]) + SERVERS
    assert live.shown() == live.expected()
    node = free_node(live) if any(row["letter"] == "F" for row in live.shown()["nodes"].values()) else "trn2-0"
    item = live.a("ResourceSlice", nodeName=node)
    item["spec"]["pool"]["generation"] = 2
    assert live.change(item) <= 2
    assert live.shown() == live.expected()


def test_what_may_not_be_read_any_more_computes_every_row(live: Live) -> None:
    assert live.change(left_out={"ResourceClaim": "forbidden"}) == len(live.shown()["nodes"]) + SERVERS
    assert live.shown() == live.expected()


def test_work_does_not_grow_with_the_fleet() -> None:
    computed = []
    for nodes in (10, 200):
        page = Live(shown_fleet.mixed(0, nodes))
        node = free_node(page)
        computed.append(page.change(claim(node, "neuron-device-0")))
    assert computed == [1, 1]
