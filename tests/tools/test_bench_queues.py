"""What the bench of queues notes from its watches, and what its report says."""

from __future__ import annotations

import argparse

import pytest

from hack.bench.queues import Figures, Times, report
from neuron_dra.core.wire import Obj


def workload(admitted: bool) -> Obj:
    """Return an event of Kueue's Workload of `gang`."""
    condition = {"type": "Admitted", "status": str(admitted)}
    meta = {"name": "ultraservers-gang", "ownerReferences": [{"name": "gang"}]}
    return {"type": "MODIFIED", "object": {"metadata": meta, "status": {"conditions": [condition]}}}


def reservation(state: str, **queue: int) -> Obj:
    """Return an event of the NeuronUltraServerWorkload `gang`."""
    return {"type": "MODIFIED", "object": {"metadata": {"name": "gang"}, "status": {"state": state, "queue": queue}}}


@pytest.mark.parametrize(
    ("admissions", "known"), [([True], {"gang"}), ([True, False], set()), ([True, False, True], {"gang"})]
)
def test_an_admission_that_was_taken_back_does_not_count(admissions: list[bool], known: set[str]) -> None:
    times = Times()
    for each in admissions:
        times.saw_workload(workload(each))
    assert times.admitted.keys() == known


def test_the_end_of_an_allocated_gang_keeps_its_times() -> None:
    times = Times()
    times.saw_workload(workload(True))
    times.saw_reservation(reservation("Allocated"))
    found = times.admitted["gang"], times.allocated["gang"]
    times.saw_workload(workload(False))
    times.saw_reservation(reservation("Deallocating"))
    times.saw_reservation({"type": "DELETED", "object": {"metadata": {"name": "gang"}}})
    assert (times.admitted["gang"], times.allocated["gang"]) == found
    assert times.gone == {"gang"}


def test_a_gang_that_gave_its_quota_back_is_counted() -> None:
    times = Times()
    times.saw_reservation(reservation("Pending", returned=1))
    assert times.given_back == {"gang"}


def test_the_report_has_both_kinds_of_workloads() -> None:
    asked = argparse.Namespace(ultraservers=100, gangs=3, kubernetes=None)
    text = report(asked, Figures([1.0, 2.0, 3.0], [0.5], 0, 60.0, 5.0, 80.0), 2.5)
    assert "| queued: from Kueue's admission to Allocated | 3 | 2.00 s | 3.00 s | 3.00 s |" in text
    assert "| without a queue: from creation to Allocated | 1 | 0.50 s | 0.50 s | 0.50 s |" in text
    assert "its load before the run was 2.5." in text
