"""What the stored results of a fleet say: counts, medians, a storm of failures, which groups are due. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from controller.qualify import verdict
from controller.qualify.model import Qualification
from neuron_dra.planner.decisions.actions import WantedGroup
from neuron_dra.planner.fleet import suitable
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.placement import KINDS, Slot
from neuron_dra.planner.fleet.places import everywhere
from neuron_dra.planner.observed.model import UltraServer
from neuron_dra.planner.observed.results import RESULTS_AT_MOST, GroupResult

WINDOW: Final = 20
"""The last groups that a storm is judged by."""
STORM_PERCENT: Final = 20
STORM_AT_LEAST: Final = 2
"""One group that fails is a fault of its own, however small the fleet."""

FAILURES: Final = 2
"""The tests in a row that have to fail before nodes are not chosen."""


@dataclass(frozen=True, slots=True)
class ResultCounts:
    """The groups with a result that counts: `fresh` are those that passed within maxAge."""

    fresh: int = 0
    failed: int = 0
    unqualified: int = 0


@dataclass(frozen=True, slots=True)
class ResultSurvey:
    """What the results of one qualification say at one time.

    - `window`: the last groups that were tested, as UltraServer and result, the newest first.
    - `samples`: by instance type and figure, UltraServer and value of each group.
    - `oldest`: Unix time of the oldest result; 0 without one.
    """

    counts: ResultCounts = ResultCounts()
    window: tuple[tuple[str, GroupResult], ...] = ()
    samples: Mapping[tuple[str, str], Sequence[tuple[str, float]]] = field(default_factory=dict)
    oldest: float = 0.0

    @property
    def storm(self) -> str:
        """Why so many failures are no faults of nodes; empty if they may be."""
        failed = [result for _, result in self.window if not result.passed]
        if len(failed) < STORM_AT_LEAST or 100 * len(failed) <= STORM_PERCENT * len(self.window):
            return ""
        return f"{len(failed)} of the last {len(self.window)} groups failed"

    def medians(self, instance_type: str, without: str) -> dict[str, float]:
        """Return the medians of a type's figures; a group is not compared with its own UltraServer."""
        samples: dict[str, list[float]] = {}
        for (type_of_sample, figure), values in self.samples.items():
            if type_of_sample == instance_type:
                samples[figure] = [value for ultraserver, value in values if ultraserver != without]
        return verdict.medians(samples)


def survey(index: FleetIndex, qualification: Qualification, now: datetime.datetime) -> ResultSurvey:
    """Return what the results of a qualification say."""
    results_of_generation: list[tuple[str, GroupResult]] = []
    samples: dict[tuple[str, str], list[tuple[str, float]]] = {}
    fresh = failed = unqualified = 0
    oldest = 0.0
    for ultraserver_name, group in index.group_by_name.items():
        for result in group.results:
            is_its_own = result.is_by(qualification.name, qualification.uid)
            if not is_its_own or group.instance_type not in qualification.instance_types:
                continue
            tested = result.tested_at.timestamp()
            oldest = min(oldest, tested) if oldest else tested
            unqualified += result.unqualified
            failed += not result.passed
            fresh += bool(result.passed and result.passed_at and now < result.passed_at + qualification.max_age)
            if now < result.tested_at + qualification.max_age:
                for figure, value in result.figures.items():
                    samples.setdefault((group.instance_type, figure), []).append((ultraserver_name, value))
            if result.generation == qualification.generation:
                results_of_generation.append((ultraserver_name, result))
    results_of_generation.sort(key=lambda pair: (pair[1].tested_at, pair[0]), reverse=True)
    counts = ResultCounts(fresh, failed, unqualified)
    return ResultSurvey(counts, tuple(results_of_generation[:WINDOW]), samples, oldest)


def storm_with(surveyed: ResultSurvey, ultraserver: str, new: GroupResult) -> str:
    """Return why failures are no faults of nodes if this result is added; empty if they may be."""
    others = [(name, result) for name, result in surveyed.window if (name, result.nodes) != (ultraserver, new.nodes)]
    return replace(surveyed, window=((ultraserver, new), *others)[:WINDOW]).storm


def due(
    index: FleetIndex,
    qualification: Qualification,
    wanted_groups: Iterable[WantedGroup],
    now: datetime.datetime,
    lead: datetime.timedelta,
) -> list[tuple[Slot, str]]:
    """Return the free groups that should be tested, with their instance type, the most urgent first.

    `lead`: EC2 may take instances back so long before the end of their capacity block.

    First those that workloads wait for, then those whose last test failed once, then those that were tested least
    recently. One that has a result is due again after the period; one of an earlier generation at once.
    """
    groups_in_demand = list(wanted_groups)
    needed_until = now + qualification.timeout + lead
    due_slots: list[tuple[tuple[bool, bool, datetime.datetime, str, int], Slot, str]] = []
    for instance_type in qualification.instance_types:
        places = index.places(instance_type, qualification.size)
        for kind in KINDS:
            for slot in places.best(everywhere(kind)):
                if not suitable.lasts_until(slot, needed_until):
                    continue  # such a test gets no nodes, and would be made in turn with the others for ever
                group = index.group_by_name.get(slot.ultraserver)
                result = None if group is None else of_slot(group.results, qualification, slot.nodes)
                if result is None and group is not None and len(group.results) >= RESULTS_AT_MOST:
                    continue  # its result would not be kept, so it would be tested again and again
                is_wanted = any(
                    _wants(wanted_group, instance_type, qualification.size, slot, now)
                    for wanted_group in groups_in_demand
                )
                confirms = result is not None and not result.passed and result.failures < FAILURES
                last = EPOCH if result is None or result.generation != qualification.generation else result.tested_at
                if is_wanted or confirms or not last <= now < last + qualification.period:
                    key = (not is_wanted, not confirms, last, slot.ultraserver, slot.first_id)
                    due_slots.append((key, slot, instance_type))
    due_slots.sort(key=lambda keyed_slot: keyed_slot[0])
    return [(slot, instance_type) for _, slot, instance_type in due_slots]


EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def of_slot(results: Sequence[GroupResult], qualification: Qualification, nodes: Sequence[str]) -> GroupResult | None:
    """Return the result of a qualification on exactly these nodes."""
    own = (result for result in results if result.is_by(qualification.name, qualification.uid))
    return next((result for result in own if result.nodes == tuple(nodes)), None)


def _wants(wanted_group: WantedGroup, instance_type: str, size: int, slot: Slot, now: datetime.datetime) -> bool:
    if wanted_group.instance_type != instance_type or wanted_group.size > size or slot.unqualified:
        return False
    return slot.passed_at is None or not slot.passed_at <= now <= slot.passed_at + wanted_group.within


def with_result(
    stored_results: Sequence[GroupResult],
    new: GroupResult,
    qualification: Qualification,
    storm: str,
    uids: Mapping[str, str],
) -> tuple[GroupResult, ...]:
    """Return an UltraServer's results after a test.

    `new` has the verdict; its failures and faults follow from the result before. Results of nodes that are not there
    any more go. In a storm no fault is raised, and those of this qualification on the UltraServer are withdrawn. If
    there is no room for another result, none of the others goes: its group would be due again at once.
    """
    before = of_slot(stored_results, qualification, new.nodes)
    if before is not None and before.is_of(dict(zip(new.nodes, new.node_uids, strict=True))):
        failures = 0 if new.passed else before.failures + 1
        lasting = before.unqualified and not new.passed and not storm
        new = replace(
            new,
            failures=failures,
            passed_at=new.passed_at if new.passed else before.passed_at,
            unqualified=lasting or (failures >= FAILURES and not storm),
        )
    else:
        new = replace(new, failures=0 if new.passed else 1)
    replaced = (qualification.name, new.nodes)
    present = [result for result in stored_results if result.is_of(uids)]
    others = [result for result in present if (result.qualification, result.nodes) != replaced]
    return (*others, new)[:RESULTS_AT_MOST]


def withdrawn(
    qualification: Qualification, surveyed: ResultSurvey, ultraservers: Mapping[str, UltraServer]
) -> dict[str, tuple[GroupResult, ...]]:
    """Return the results to write because faults are taken back, by UltraServer."""
    results_by_ultraserver: dict[str, tuple[GroupResult, ...]] = {}
    raised = set()
    if surveyed.storm:
        raised = {ultraserver_name for ultraserver_name, result in surveyed.window if result.unqualified}
    for ultraserver_name in sorted(raised | qualification.exempt):
        results = ultraservers[ultraserver_name].results if ultraserver_name in ultraservers else ()
        is_exempt = ultraserver_name in qualification.exempt
        new_results = tuple(_without_fault(result, qualification, always=is_exempt) for result in results)
        if new_results != results:
            results_by_ultraserver[ultraserver_name] = new_results
    return results_by_ultraserver


def _without_fault(result: GroupResult, qualification: Qualification, *, always: bool) -> GroupResult:
    """Return a result without its fault, if the fault is of this qualification, and of its generation or `always`."""
    is_its_own = result.is_by(qualification.name, qualification.uid) and (
        always or result.generation == qualification.generation
    )
    return replace(result, unqualified=False) if is_its_own and result.unqualified else result
