"""Sends what a part of the controller has wished, as the running controller does in the background."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from controller.apply.fence import unelected
from controller.apply.rendezvous_service import RendezvousServices
from controller.apply.sender import Sender
from controller.jobs.early_pods import EarlyPods
from controller.timing import DEFAULT_TIMING
from neuron_dra.planner.observed.model import Meeting

Moment = datetime.datetime | None


def new_sender(**outbox: Any) -> Sender:
    """Return what sends requests in a program that works without election; `outbox` replaces times of its settings."""
    return Sender(unelected(), replace(DEFAULT_TIMING.outbox, **outbox))


async def sent(sender: Sender, look: Callable[[], Moment]) -> Moment:
    """Let a part decide, until all that it wishes is sent; return when it is due again."""
    due = look()
    while not sender.is_idle:
        await sender.send_all()
        due = look()
    return due


async def looked(services: RendezvousServices, meetings: Sequence[Meeting], now: datetime.datetime) -> Moment:
    """Let the Services of workloads be brought up to date; return when they are due again."""
    return await sent(services._sender, lambda: services.look(meetings, now))


async def pods_looked_for(early: EarlyPods, now: datetime.datetime) -> Moment:
    """Let the pods of templates that are due be woken; return when others are due."""
    return await sent(early._sender, lambda: early.look(now, early._sender.fence.term))
