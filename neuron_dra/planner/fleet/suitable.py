"""Which free slots a workload may get: the block of their nodes lasts, and no test of them speaks against it. Pure."""

from __future__ import annotations

import datetime

from neuron_dra.planner.fleet.placement import Slot
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import Workload


def needed_until(workload: Workload, now: datetime.datetime) -> datetime.datetime:
    """Return when the workload ends, by its spec.expectedDuration; now without one."""
    began = workload.status.get("allocatedAt")
    return max(now, (decode.time(began) if began else now) + workload.expected)


def lasts(workload: Workload, slot: Slot, now: datetime.datetime, lead: datetime.timedelta) -> bool:
    """Return True if a slot's capacity block does not end before the workload, as far as both are known.

    `lead`: EC2 may take instances back so long before the end.
    """
    return lasts_until(slot, needed_until(workload, now) + lead)


def lasts_until(slot: Slot, moment: datetime.datetime) -> bool:
    """Return True if no capacity block of the slot's nodes ends before a moment, as far as the ends are known."""
    return slot.until is None or slot.until >= moment


def is_qualified(workload: Workload, slot: Slot, now: datetime.datetime) -> bool:
    """Return True if no test failed twice on the slot, and one passed as recently as the workload requires.

    A test itself may have every slot.
    """
    if workload.target is not None:
        return True
    if slot.unqualified:
        return False
    if not workload.qualified_within:
        return True
    # A time in the future is no proof: the clock may have been set back.
    return slot.passed_at is not None and slot.passed_at <= now <= slot.passed_at + workload.qualified_within


def is_target(workload: Workload, slot: Slot) -> bool:
    """Return True if a test's workload has to get this slot."""
    target = workload.target
    return target is not None and (slot.ultraserver, slot.first_id) == (target.ultraserver, target.first_id)
