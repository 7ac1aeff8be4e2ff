"""What a controller remembers of agents' reports: one that comes and goes has not ended. Issue 36, number 1."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest

from neuron_dra.planner.observed.agents import Reports
from neuron_dra.planner.observed.model import ClusterNode

START = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
HOLD = datetime.timedelta(minutes=5)
WELL = ClusterNode("a", "uid-1", "", ready=True, schedulable=True, capacity_block=None)
SICK = replace(WELL, reported=(("NeuronHealth", "NeuronHealth is True, NeuronHasError_DMA_ERROR: nd3"),))


class Watched:
    """A Node that a controller follows; `at` is in seconds."""

    def __init__(self) -> None:
        self.reports = Reports(HOLD)
        self.node: ClusterNode | None = None

    def see(self, node: ClusterNode, at: float) -> ClusterNode:
        self.node = self.reports.follow(node, self.node, moment(at))
        return self.node


def moment(seconds: float) -> datetime.datetime:
    return START + datetime.timedelta(seconds=seconds)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_healthy_node_costs_nothing(watched: Watched) -> None:
    assert watched.see(WELL, 0) is WELL
    assert (watched.reports.next_due(), watched.reports.due(moment(9_999))) == (None, [])


def test_report_begins_when_it_is_first_seen(watched: Watched) -> None:
    watched.see(WELL, 0)
    assert watched.see(SICK, 10) == replace(SICK, reported_since=moment(10))
    assert watched.see(SICK, 20) == replace(SICK, reported_since=moment(10))


def test_beginning_of_an_older_report_is_unknown(watched: Watched) -> None:
    """A new leader finds it, and the reservation has the time."""
    assert watched.see(SICK, 0) == SICK


def test_node_counts_as_well_after_five_minutes_without_a_report(watched: Watched) -> None:
    watched.see(SICK, 0)
    assert watched.see(WELL, 60) == replace(SICK, recovering=True)
    assert watched.reports.next_due() == moment(360)
    assert watched.reports.due(moment(359)) == []
    assert watched.see(WELL, 359) == replace(SICK, recovering=True)
    assert watched.reports.due(moment(360)) == ["a"]
    assert watched.see(WELL, 360) is WELL
    assert watched.reports.next_due() is None


def test_report_that_comes_back_begins_anew_and_ends_the_recovery(watched: Watched) -> None:
    watched.see(SICK, 0)
    watched.see(WELL, 60)
    assert watched.see(SICK, 359) == replace(SICK, reported_since=moment(359))
    assert watched.reports.next_due() is None
    assert watched.see(WELL, 361).recovering
    assert watched.reports.next_due() == moment(661)


def test_text_that_always_changes_is_kept_as_it_was(watched: Watched) -> None:
    """Otherwise each change would be a write of the UltraServer's status, and of a workload's."""
    watched.see(SICK, 0)
    again = replace(SICK, reported=(("NeuronHealth", "NeuronHealth is True, NeuronHasError_DMA_ERROR: nd4"),))
    assert watched.see(again, 10) == SICK


def test_second_agent_adds_its_report(watched: Watched) -> None:
    watched.see(SICK, 0)
    other = ("AcceleratedHardwareReady", "AcceleratedHardwareReady is False")
    both = replace(SICK, reported=(*SICK.reported, other))
    assert {*watched.see(both, 10).reported} == {*SICK.reported, other}
    assert {*watched.see(SICK, 20).reported} == {*SICK.reported, other}


def test_another_instance_of_the_same_name_is_well(watched: Watched) -> None:
    watched.see(SICK, 0)
    new = replace(WELL, uid="uid-2")
    assert watched.see(new, 10) is new


def test_deleted_node_is_forgotten(watched: Watched) -> None:
    watched.see(SICK, 0)
    watched.reports.gone("a")
    watched.node = None
    assert watched.see(WELL, 10) is WELL


def test_clock_that_was_set_back_ends_the_wait(watched: Watched) -> None:
    watched.see(SICK, 0)
    watched.see(WELL, 60)
    watched.reports.end_waits()
    assert watched.reports.due(moment(-9_999)) == ["a"]
    assert watched.see(WELL, -9_999) is WELL
