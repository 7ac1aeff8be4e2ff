"""Invariants of reservations under any changes of nodes, links, pods, workloads and the controller."""

from __future__ import annotations

import datetime
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hack.bench.ultraservers import ultraserver
from neuron_dra.planner.plan.planning import Limits
from tests.unit.ultraserver_world import World

LIMITS = Limits(node_failure_grace=datetime.timedelta(seconds=60), fault_grace=datetime.timedelta(seconds=30))
BLOCKS = ("u0", "u1", "u2")
NODES = [f"{block}-{n}" for block in BLOCKS for n in range(4)]
JOBS = ("a", "b", "c")
UP = {"ultraserverModes": {"string": "1_2_4"}, "linkVertical": {"bool": True}, "linkHorizontal": {"bool": True}}
DOWN = {"ultraserverModes": {"string": "1"}, "linkVertical": {"bool": False}, "linkHorizontal": {"bool": False}}

nodes = st.sampled_from(NODES)
jobs = st.sampled_from(JOBS)
sizes = st.sampled_from([1, 2, 4])
counts = st.integers(1, 3)
strategies = st.sampled_from(["NoOp", "RestartAll", "MigrateAffected"])


class Reservations(RuleBasedStateMachine):
    """A small cluster with random events; `World` acts as API server, plugins and pod garbage collector."""

    @initialize(size=sizes, count=counts, strategy=strategies)
    def begin(self, size: int, count: int, strategy: str) -> None:
        self.world = World([item for block in BLOCKS for item in ultraserver(block)])
        self.world.settle(LIMITS)
        self.submit("a", size, count, strategy)
        self.world.settle(LIMITS)
        self.start_pods()

    # What people do

    @rule(name=jobs, size=sizes, count=counts, strategy=strategies)
    def submit(self, name: str, size: int, count: int, strategy: str) -> None:
        if ("NeuronUltraServerWorkload", "ml", name) not in self.world.objects:
            self.world.submit(name, size=size, count=count, allocationPolicy={"failureStrategy": strategy})

    @rule(name=jobs, count=counts)
    def resize(self, name: str, count: int) -> None:
        if ("NeuronUltraServerWorkload", "ml", name) in self.world.objects:
            item = self.world.workload(name)
            self.world.put({**item, "spec": {**item["spec"], "serverCount": count}})

    @rule(name=jobs)
    def delete(self, name: str) -> None:
        if ("NeuronUltraServerWorkload", "ml", name) in self.world.objects:
            item = self.world.workload(name)
            if item["metadata"].get("finalizers"):
                self.world.delete_workload(name)
            else:
                self.world.remove("NeuronUltraServerWorkload", name, "ml")

    @rule(node=nodes)
    def give_up(self, node: str) -> None:
        """Delete a Node and its dependents, as Kubernetes does."""
        if ("Node", "", node) in self.world.objects:
            self.world.remove("Node", node)
            self.world.objects.pop(("ResourceSlice", "", f"{node}-neuron.aws.com-00"), None)
            for item in self.world.all("ResourceClaim"):
                if item["status"]["allocation"]["devices"]["results"][0]["pool"] == node:
                    self.world.remove("ResourceClaim", item["metadata"]["name"], "ml")

    @rule(node=nodes)
    def recreate_node(self, node: str) -> None:
        """Another instance gets the name of a deleted node."""
        if ("Node", "", node) not in self.world.objects:
            made = ultraserver(node[:2])
            at = NODES.index(node) % 4 * 2
            made[at]["metadata"]["uid"] = f"{node}-{self.world.version}"
            made[at + 1]["metadata"]["ownerReferences"][0]["uid"] = f"{node}-{self.world.version}"
            self.world.put(made[at])
            self.world.put(made[at + 1])
            self.world.silent.discard(node)

    # Faults and repairs

    @rule(node=nodes, ready=st.booleans())
    def turn(self, node: str, ready: bool) -> None:
        if ("Node", "", node) in self.world.objects:
            item = self.world.get("Node", node)
            condition = item["status"]["conditions"][0]
            if (condition["status"] == "True") != ready:
                since = self.world.now.strftime("%Y-%m-%dT%H:%M:%SZ")
                condition |= {"status": "True" if ready else "Unknown", "lastTransitionTime": since}
                self.world.put(item)
            (self.world.silent.discard if ready else self.world.silent.add)(node)

    @rule(node=nodes, attributes=st.sampled_from([UP, DOWN, {"unhealthy": {"string": "hbm_ecc"}}, {"unhealthy": None}]))
    def change(self, node: str, attributes: dict[str, Any]) -> None:
        found = self.world.objects.get(("ResourceSlice", "", f"{node}-neuron.aws.com-00"))
        if found is not None:
            device = found["spec"]["devices"][0]
            merged = {**device["attributes"], **attributes}
            device["attributes"] = {name: value for name, value in merged.items() if value is not None}
            self.world.put(found)

    @rule(node=nodes, steps=st.integers(0, 5))
    def break_for_good(self, node: str, steps: int) -> None:
        """Keep links down until strategies act, and make this many steps before the next event."""
        self.change(node, DOWN)
        self.step(None)
        self.later(31)
        for _ in range(steps):
            self.step(None)

    @rule(node=nodes)
    def hang(self, node: str) -> None:
        """The plugin hangs on a node that stays Ready."""
        self.world.silent.add(node)

    # Pods

    @rule()
    def start_pods(self) -> None:
        """Place a pod on every empty node that shows Bound; no plugin may reject it."""
        busy = self.busy()
        for item in self.world.all("ResourceSlice"):
            node, attributes = item["spec"]["nodeName"], item["spec"]["devices"][0]["attributes"]
            phase = attributes.get("workloadPhase", {}).get("string")
            if phase == "Bound" and node not in busy and node not in self.world.silent:
                uid = attributes["workloadUid"]["string"]
                self.world.claim(f"{node}-{self.world.version}", [node], workload_uid=uid)

    @rule(node=nodes)
    def foreign_pod(self, node: str) -> None:
        """Place a foreign pod on a node without a tag."""
        found = self.world.objects.get(("ResourceSlice", "", f"{node}-neuron.aws.com-00"))
        if found and node not in self.busy() and "workloadUid" not in found["spec"]["devices"][0]["attributes"]:
            self.world.claim(f"foreign-{node}-{self.world.version}", [node])

    @rule(node=nodes)
    def end_pod(self, node: str) -> None:
        for item in self.world.all("ResourceClaim"):
            if item["status"]["allocation"]["devices"]["results"][0]["pool"] == node:
                self.world.remove("ResourceClaim", item["metadata"]["name"], "ml")

    # Time, and the controller

    @rule(seconds=st.sampled_from([5, 31, 61, 700]))
    def later(self, seconds: int) -> None:
        self.world.later(seconds)

    @rule(writes=st.none() | st.integers(0, 3))
    def step(self, writes: int | None) -> None:
        """Plan and write, as the controller does; it may die after some of the writes."""
        self.world.step(LIMITS, writes=writes)

    @rule()
    def settle(self) -> None:
        """Without changes plans come to an end: `settle` fails if there is none."""
        self.world.settle(LIMITS)

    # The laws

    def busy(self) -> set[str]:
        return {
            r["pool"] for c in self.world.all("ResourceClaim") for r in c["status"]["allocation"]["devices"]["results"]
        }

    def entries(self) -> list[dict[str, Any]]:
        return [e for u in self.world.all("NeuronUltraServer") for e in (u.get("status") or {}).get("allocations", [])]

    @invariant()
    def no_node_is_in_two_reservations(self) -> None:
        held = Counter(name for entry in self.entries() for name in entry["allocatedNodes"])
        assert {name: number for name, number in held.items() if number > 1} == {}

    @invariant()
    def an_index_is_bound_once(self) -> None:
        bound = Counter((e["workloadUid"], e["ultraserverIndex"]) for e in self.entries() if e["phase"] == "Bound")
        assert {key: number for key, number in bound.items() if number > 1} == {}

    @invariant()
    def a_slot_is_whole_and_inside_of_one_ultraserver(self) -> None:
        for item in self.world.all("NeuronUltraServer"):
            for entry in (item.get("status") or {}).get("allocations", []):
                assert len(entry["allocatedNodes"]) == entry["nodeCount"] == len(entry["nodeUids"])
                assert {f"us-{name[:2]}" for name in entry["allocatedNodes"]} == {item["metadata"]["name"]}

    @invariant()
    def no_rank_runs_twice(self) -> None:
        """While pods may run in a Draining slot, no other slot with its index is Bound."""
        holders = {
            c["status"]["allocation"]["devices"]["results"][0]["pool"]: c for c in self.world.all("ResourceClaim")
        }
        bound = {(e["workloadUid"], e["ultraserverIndex"]) for e in self.entries() if e["phase"] == "Bound"}
        for entry in self.entries():
            if entry["phase"] == "Draining" and (entry["workloadUid"], entry["ultraserverIndex"]) in bound:
                config = [
                    holders[n]["status"]["allocation"]["devices"]["config"]
                    for n in entry["allocatedNodes"]
                    if n in holders
                ]
                uids = {one["opaque"]["parameters"]["workloadUid"] for each in config for one in each}
                assert entry["workloadUid"] not in uids

    @invariant()
    def a_plan_is_the_same_when_it_is_made_twice(self) -> None:
        assert self.world.plan(LIMITS) == self.world.plan(LIMITS)


Reservations.TestCase.settings = settings(
    max_examples=40, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
test_reservations_keep_their_laws = Reservations.TestCase
