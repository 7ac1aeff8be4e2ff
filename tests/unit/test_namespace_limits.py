"""The limit of a namespace's reserved nodes (13.15): it is never exceeded, releases nothing, and messages name it."""

from __future__ import annotations

import datetime
import itertools
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hack.bench.ultraservers import ultraserver
from neuron_dra.planner.decisions.actions import Action
from neuron_dra.planner.plan.planning import Limits
from tests.unit.failing_world import break_links
from tests.unit.ultraserver_world import World

ANNOTATION = "neuron.aws.com/max-reserved-nodes"
LIMITS = Limits(fault_grace=datetime.timedelta(seconds=30), node_failure_grace=datetime.timedelta(seconds=30))


def limit(world: World, name: str, text: str | None) -> None:
    """Add a Namespace with this limit; None: without the annotation."""
    meta = {"name": name, **({"annotations": {ANNOTATION: text}} if text is not None else {})}
    world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})


def fleet(text: str | None, count: int = 3) -> World:
    world = World([item for n in range(count) for item in ultraserver(f"u{n}")])
    limit(world, "ml", text)
    limit(world, "other", None)
    world.settle()
    return world


def resize(world: World, name: str, count: int) -> None:
    item = world.workload(name)
    item["spec"]["serverCount"] = count
    world.put(item)


def state_in(world: World, name: str, namespace: str) -> str:
    return str(world.get("NeuronUltraServerWorkload", name, namespace)["status"]["state"])


def has(world: World, namespace: str) -> int:
    """Return the number of a namespace's reserved nodes; those of one index of a workload count once."""
    slots = {
        (e["workloadUid"], e["ultraserverIndex"]): e["nodeCount"]
        for u in world.all("NeuronUltraServer")
        for e in (u.get("status") or {}).get("allocations", [])
        if e["workloadRef"].startswith(f"{namespace}/")
    }
    return sum(slots.values())


def test_workload_over_the_limit_waits() -> None:
    world = fleet("8")
    world.submit("first")
    world.settle()
    world.later(1)
    world.submit("second", count=2)
    world.settle()
    assert (world.state("first"), world.state("second")) == (("Allocated", "Allocated"), ("Pending", "NamespaceLimit"))
    assert world.message("second") == (
        "namespace ml has reserved 4 of the 8 nodes that it may reserve (annotation "
        "neuron.aws.com/max-reserved-nodes), and this needs 8 more: lower serverCount, delete another workload, or "
        "have the limit raised"
    )


def test_concurrent_workloads_respect_the_limit() -> None:
    world = fleet("4")
    world.submit("first")
    world.submit("second")
    world.settle()
    assert sorted(world.state(name)[0] for name in ("first", "second")) == ["Allocated", "Pending"]
    assert has(world, "ml") == 4


def test_growth_over_the_limit_waits() -> None:
    world = fleet("8")
    world.submit("job", count=2)
    world.settle()
    resize(world, "job", 3)
    world.settle()
    assert world.state("job") == ("PartiallyAllocated", "NamespaceLimit")
    assert world.message("job").startswith("2 of 3 groups are reserved; for the rest: namespace ml has reserved 8 of ")
    limit(world, "ml", "12")
    world.settle()
    assert world.state("job") == ("Allocated", "Allocated")


def test_workload_over_limit_blocks_no_other() -> None:
    """However long it waits, no nodes are kept for it."""
    world = fleet("4", count=2)
    world.submit("giant", count=2)
    world.settle()
    world.later(900)  # longer than the threshold, and within the limit
    world.submit("other", namespace="other", count=2)
    world.settle()
    assert (world.state("giant"), state_in(world, "other", "other")) == (("Pending", "NamespaceLimit"), "Allocated")


def test_lowered_limit_keeps_reservations() -> None:
    world = fleet("12")
    world.submit("job", count=2)
    world.settle()
    limit(world, "ml", "0")
    world.settle()
    assert (world.state("job"), has(world, "ml")) == (("Allocated", "Allocated"), 8)
    resize(world, "job", 3)
    world.settle()
    assert (world.state("job"), has(world, "ml")) == (("PartiallyAllocated", "NamespaceLimit"), 8)


def test_lowered_limit_keeps_pending_reservations() -> None:
    world = fleet("8")
    world.silent = {"u0-1"}
    world.submit("job", count=2)
    world.step()
    world.step()
    limit(world, "ml", "4")
    world.settle()
    assert has(world, "ml") == 8
    world.later(61)
    world.settle()  # u0-1 is given up, and another group gets its index
    assert (world.state("job"), has(world, "ml")) == (("Allocated", "Allocated"), 8)


@pytest.mark.parametrize("text", ["8", "0"])
def test_moving_group_counts_once(text: str) -> None:
    world = fleet("8")
    world.submit("job", count=2, allocationPolicy={"failureStrategy": "MigrateAffected"})
    world.settle(LIMITS)
    limit(world, "ml", text)
    for item in world.all("ResourceSlice"):
        if item["spec"]["nodeName"] == "u0-1":
            item["spec"]["devices"][0]["attributes"] |= {"ultraserverModes": {"string": "1"}}
            world.put(item)
    world.settle(LIMITS)
    world.later(31)
    world.settle(LIMITS)
    assert (world.state("job"), has(world, "ml")) == (("Allocated", "Allocated"), 8)
    assert {nodes[0][:2] for nodes in world.reserved("job").values()} == {"u1", "u2"}


def test_moving_group_leaves_the_rest_of_the_limit() -> None:
    world = fleet("12", count=5)
    world.submit("job", count=2, allocationPolicy={"failureStrategy": "MigrateAffected"})
    world.settle(LIMITS)
    (moves, _) = sorted(world.reserved("job").values())
    world.silent = {item["metadata"]["name"] for item in world.all("Node")}
    break_links(world, moves[1])
    world.settle(LIMITS)
    world.later(31)
    world.settle(LIMITS)
    held = [e for u in world.all("NeuronUltraServer") for e in u["status"]["allocations"]]
    assert sorted(e["ultraserverIndex"] for e in held) == [0, 0, 1]
    world.submit("second")
    world.settle(LIMITS)
    assert has(world, "ml") == 12


def test_nodes_are_taken_after_those_that_are_given_back() -> None:
    """The writes of two UltraServers are made at once: the one that takes nodes may be the first."""
    world = fleet("4")
    world.submit("old")
    world.settle()
    world.delete_workload("old")
    world.submit("new", size=2, count=2)
    for item in world.all("Node"):
        if item["metadata"]["name"].startswith("u0"):
            item["spec"]["unschedulable"] = True  # nothing new is reserved where the old nodes are
            world.put(item)
    for _ in range(10):
        plan = world.plan()
        for action in sorted(plan.actions, key=lambda each: "u0" in getattr(each, "name", "")):
            world.write(action)
            assert has(world, "ml") <= 4
        world.tag_nodes()
    assert world.state("new") == ("Allocated", "Allocated")


def test_draining_nodes_count_for_the_limit() -> None:
    world = fleet("4")
    world.submit("old")
    world.settle()
    world.claim("pod", [world.reserved("old")[0][0]], workload_uid=world.workload("old")["metadata"]["uid"])
    world.budget = {"pod-pod": "no"}
    world.delete_workload("old")
    world.submit("new")
    for _ in range(5):
        world.step()
    assert world.state("new") == ("Pending", "NamespaceLimit")
    world.remove("ResourceClaim", "pod", "ml")
    world.settle()
    assert world.state("new") == ("Allocated", "Allocated")


@pytest.mark.parametrize(
    ("text", "default", "state"),
    [
        (None, None, "Allocated"),
        (None, 8, "Allocated"),
        (None, 7, "Pending"),
        ("8", 0, "Allocated"),
        ("none", 0, "Allocated"),
        (" 8 ", 0, "Allocated"),
        ("", 0, "Pending"),
        ("7", None, "Pending"),
        ("0", None, "Pending"),
    ],
)
def test_annotation_overrides_the_default_limit(text: str | None, default: int | None, state: str) -> None:
    world = fleet(text)
    world.submit("job", count=2)
    world.settle(Limits(max_reserved_nodes=default))
    assert world.state("job")[0] == state
    assert ("the default of this cluster" in world.message("job")) is (state == "Pending" and not text)


@pytest.mark.parametrize("text", ["ten", "-1", "8.0", "1e3", "9999999", "None"])
def test_invalid_limit_blocks_with_remedy(text: str) -> None:
    world = fleet(text)
    world.submit("job")
    world.settle()
    assert world.state("job") == ("Pending", "NamespaceLimit")
    assert world.message("job") == (
        f"the annotation neuron.aws.com/max-reserved-nodes of namespace ml is {text!r}: write a whole number, such as "
        '"8", or "none" for no limit'
    )


def test_unseen_namespace_gets_no_reservation() -> None:
    """The watch of workloads may be ahead of that of Namespaces; the limit would be exceeded."""
    world = fleet("8")
    world.submit("job", namespace="new")
    world.settle()
    assert state_in(world, "job", "new") == "Pending"
    assert has(world, "new") == 0
    limit(world, "new", "4")
    world.settle()
    assert state_in(world, "job", "new") == "Allocated"


class Namespaces(RuleBasedStateMachine):
    """Tenants, limits and failures in any order: a namespace's reservations grow only within its limit."""

    @initialize()
    def begin(self) -> None:
        self.world = fleet("8", count=4)
        self.allowed = {"ml": 8, "other": 99}
        self.had = {"ml": 0, "other": 0}
        self.names = 0

    @rule(
        namespace=st.sampled_from(["ml", "other"]),
        size=st.sampled_from([1, 2, 4]),
        count=st.integers(1, 3),
        strategy=st.sampled_from(["NoOp", "MigrateAffected", "RestartAll"]),
    )
    def submit(self, namespace: str, size: int, count: int, strategy: str) -> None:
        self.names += 1
        policy = {"failureStrategy": strategy}
        self.world.submit(f"w{self.names}", size=size, count=count, namespace=namespace, allocationPolicy=policy)

    @rule(data=st.data(), count=st.integers(1, 4))
    def resize(self, data: st.DataObject, count: int) -> None:
        found = self.world.all("NeuronUltraServerWorkload")
        if found:
            item = data.draw(st.sampled_from(found))
            item["spec"]["serverCount"] = count
            self.world.put(item)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        found = self.world.all("NeuronUltraServerWorkload")
        if found:
            item = data.draw(st.sampled_from(found))
            item["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
            self.world.put(item)

    @rule(namespace=st.sampled_from(["ml", "other"]), most=st.sampled_from([0, 1, 4, 7, 12, 99]))
    def limit(self, namespace: str, most: int) -> None:
        limit(self.world, namespace, str(most))
        self.allowed[namespace] = most

    @rule(node=st.sampled_from([f"u{n}-{i}" for n in range(4) for i in range(4)]), silent=st.booleans())
    def hang(self, node: str, silent: bool) -> None:
        (self.world.silent.add if silent else self.world.silent.discard)(node)

    @rule(node=st.sampled_from([f"u{n}-{i}" for n in range(4) for i in range(4)]), up=st.booleans())
    def links(self, node: str, up: bool) -> None:
        item = self.world.get("ResourceSlice", f"{node}-neuron.aws.com-00")
        item["spec"]["devices"][0]["attributes"] |= {"ultraserverModes": {"string": "1_2_4" if up else "1"}}
        self.world.put(item)

    @rule(seconds=st.sampled_from([5, 31, 61, 700]))
    def later(self, seconds: int) -> None:
        self.world.later(seconds)

    @rule(writes=st.none() | st.integers(0, 3))
    def step(self, writes: int | None) -> None:
        self.world.step(LIMITS, writes=writes)

    @rule(seed=st.integers(0, 1000), writes=st.none() | st.integers(0, 5))
    def step_in_any_order(self, seed: int, writes: int | None) -> None:
        """Writes of one kind are made at once, so any of them may come first, and the others never."""
        order = random.Random(seed)
        ordered: list[Action] = []
        for _, neighbours in itertools.groupby(self.world.plan(LIMITS).actions, key=type):
            found = list(neighbours)
            ordered += order.sample(found, len(found))
        for action in ordered[:writes]:
            self.world.write(action)
            self.what_a_namespace_has_grows_within_its_limit_only()
        self.world.tag_nodes()

    @invariant()
    def what_a_namespace_has_grows_within_its_limit_only(self) -> None:
        for namespace, before in self.had.items():
            now = has(self.world, namespace)
            assert now <= max(before, self.allowed[namespace]), (namespace, before, now)
            self.had[namespace] = now


Namespaces.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
test_namespaces_keep_within_their_limits = Namespaces.TestCase
