"""Laws of tests of UltraServers: nobody waits for one, none disturbs anybody, and what they find counts."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from neuron_dra.core import durations
from neuron_dra.core.qualification import NAMESPACE
from neuron_dra.core.ultraserver import NAMESPACE as ULTRASERVERS
from neuron_dra.core.ultraserver import Phase, object_name
from neuron_dra.core.wire import Wire
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.observed import results
from neuron_dra.planner.observed.results import GroupResult
from tests.support.fleet.known import Known
from tests.support.fleet.nodes import MODES, FleetNode
from tests.support.fleet.view import Held, View, condition, is_test, workload_uid

if TYPE_CHECKING:
    from tests.support.fleet.fleet import Fleet

YIELD_S: Final = 10.0
SEEN_S: Final = 1.0  # until the plan has decided about a new workload
LOOK_S: Final = 0.5
CALM_S: Final = 20.0  # by then the controllers have repeated the writes that failed
OUTAGE: Final = 3  # unavailable nodes from which on no test begins or ends in time
SLACK_S: Final = 60.0  # between a plan and its writes
WAITS_FOR_NODES: Final = frozenset({Reason.INSUFFICIENT_CAPACITY, Reason.CAPACITY_SPLIT, Reason.NOT_QUALIFIED})


def found_of(view: View, ultraserver: Wire) -> list[GroupResult]:
    """Return what tests found of the nodes that an UltraServer has today."""
    uids = {str(node["metadata"]["name"]): str(node["metadata"]["uid"]) for node in view.all("nodes")}
    every = results.read(ultraserver.get("status") or {})
    return [each for each in every if each.is_of(uids)]


def unqualified(view: View) -> frozenset[str]:
    """Return the names of the nodes on which tests failed twice."""
    found = (each for item in view.all("neuronultraservers") for each in found_of(view, item))
    return frozenset(name for each in found if each.unqualified for name in each.nodes)


def chosen_against(view: View, new: Held, moment: datetime.datetime) -> Iterator[str]:
    """A workload gets no unqualified node, and, if it says so, only nodes that passed a test in time."""
    workload = view.workloads().get(new.allocation.holder)
    item = view.find("neuronultraservers", new.ultraserver, ULTRASERVERS)
    if is_test(new) or workload is None or item is None:
        return
    found, nodes = found_of(view, item), frozenset(new.allocation.nodes)
    bad = sorted(name for each in found if each.unqualified for name in nodes.intersection(each.nodes))
    if bad:
        yield f"is reserved, and tests failed twice on {', '.join(bad)}"
    age = (workload["spec"].get("qualification") or {}).get("maxAge")
    if age is None:
        return
    oldest = moment - durations.parse(age) - datetime.timedelta(seconds=SLACK_S)
    covering = (each for each in found if nodes <= {*each.nodes})
    fresh = [each for each in covering if each.passed and each.passed_at is not None and each.passed_at >= oldest]
    if not fresh:
        yield f"is reserved, and no test of its nodes has passed within {age}"


def in_company(view: View, nodes: Mapping[str, FleetNode], test: Held) -> Iterator[str]:
    """A group that is tested has no claim of anybody else."""
    mine = test.allocation.workload_uid
    there = {str(claim["metadata"]["uid"]): claim for claim in view.all("resourceclaims")}
    for name in test.allocation.nodes:
        prepared = nodes[name].checkpointed - nodes[name].adopted
        others = [there[uid] for uid in prepared if uid in there and workload_uid(there[uid]) != mine]
        if others:
            yield f"is tested while claim {others[0]['metadata']['name']} is prepared on {name}"


def unsaid(view: View, known: Known) -> Iterator[str]:
    """An UltraServer says that nodes of it are unqualified, and only then."""
    for item in view.all("neuronultraservers"):
        name, degraded = item["metadata"]["name"], condition(item, "Degraded")
        if known.refuses(item) or "deletionTimestamp" in item["metadata"]:
            continue
        bad = sorted({node for each in found_of(view, item) if each.unqualified for node in each.nodes})
        if bad and degraded.get("status") != "True":
            yield f"{name} is not Degraded, and tests failed twice on {', '.join(bad)}"
        if not bad and Reason.UNQUALIFIED in (degraded.get("reason"), condition(item, "Ready").get("reason")):
            yield f"{name} is Unqualified, and tests failed twice on none of its nodes"


class YieldTime:
    """Notes for how long workloads wait that would have nodes if tests ended.

    It judges what is certain: for a while nothing was wrong with the controllers, nothing was reserved for anybody, and
    a workload that says that it waits for nodes would have got groups that are free but for tests.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._since: dict[str, float] = {}  # by UID of the workload
        self._reserved: frozenset[str] = frozenset()  # allocation ids of workloads
        self._leader: object = None
        self._calm_since = 0.0

    def look(self) -> None:
        """Judge the fleet as it is now."""
        now = self._fleet.clock.elapsed
        if not self._is_calm():
            self._calm_since = now
        theirs = (held for held in self._fleet.view.held() if not is_test(held))
        reserved = frozenset(held.allocation.allocation_id for held in theirs)
        if reserved != self._reserved or now < self._calm_since + CALM_S:
            self._reserved, self._since = reserved, {}
            return
        waiting = self._waiting()
        self._since = {uid: self._since.get(uid, now) for uid in waiting}
        for uid, since in self._since.items():
            if now - since > SEEN_S + YIELD_S:
                self._fleet.safety.violated(f"workload {waiting[uid]} has waited for {now - since:g} s for tests")
                self._since = {}
                return

    def _is_calm(self) -> bool:
        """True if one controller leads, and nothing is wrong with it or the API server."""
        fleet = self._fleet
        leaders = [replica.controller for replica in fleet.replicas if replica.leads]
        same = len(leaders) == 1 and leaders[0] is self._leader
        self._leader = leaders[0] if leaders else None
        lines = [replica.line for replica in fleet.replicas if replica.leads and replica.line is not None]
        quiet = all(
            line.storm is None and line.deadly is None and line.hears_at_once and line._running.is_set()
            for line in lines
        )
        broken = sum(not node.healthy or node.reported for node in fleet.nodes.values())
        untouched = fleet.crd == "ours" and not fleet.refused and not fleet.policies and not fleet.budgets
        return same and quiet and untouched and broken < OUTAGE

    def _waiting(self) -> dict[str, str]:
        """Return the names, by UID, of the workloads that wait for nodes that only tests have."""
        fleet = self._fleet
        groups = self._but_for_tests()
        if not groups:
            return {}
        spared = 1 if "spares" in fleet.actors else 0
        found: dict[str, str] = {}
        for uid, workload in fleet.view.workloads().items():
            meta, spec = workload["metadata"], workload["spec"]
            if meta["namespace"] == NAMESPACE or "deletionTimestamp" in meta or spec.get("qualification"):
                continue
            mine = [held for held in fleet.view.of(uid) if held.allocation.phase is not Phase.DRAINING]
            needs = int(spec["serverCount"]) - len(mine)
            is_told = condition(workload, "Ready").get("reason") in WAITS_FOR_NODES
            if is_told and 0 < needs <= len(groups) - spared:
                found[uid] = str(meta["name"])
        return found

    def _but_for_tests(self) -> list[str]:
        """Return the UltraServers whose nodes are all well, and free or tested, if tests have any of them."""
        fleet, view = self._fleet, self._fleet.view
        holders, uses, bad = view.holders(), view.uses(), unqualified(view)
        tests = {name for name, held in holders.items() if is_test(held)}
        found: dict[str, bool] = {}
        for node in fleet.nodes.values():
            free = node.name not in holders and node.name not in uses
            usable = (free or node.name in tests) and node.name not in bad and self._is_well(node)
            name = object_name(node.block)
            found[name] = found.get(name, True) and usable
        return [name for name, usable in found.items() if usable] if tests else []

    def _is_well(self, node: FleetNode) -> bool:
        line = node.line
        lags = line is None or line.storm is not None or not line.hears_at_once
        reported = node.was_reported(self._fleet.clock.now())
        well = node.healthy and node.ready and node.modes == MODES and node.schedulable and node.tags_its_devices
        return well and not (lags or reported or node.adopted or node.block_end is not None)
