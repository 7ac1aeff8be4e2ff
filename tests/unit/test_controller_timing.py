"""The timing of the controller and of the commands: each value has a unit, and they fit each other."""

from __future__ import annotations

from typing import Any

import pytest

from controller import timing as controller
from neuron_dra.ask.doctor import timing as doctor
from neuron_dra.ask.read import timing as inspect
from neuron_dra.ask.ui import timing as ui
from neuron_dra.demo import timing as demo
from neuron_dra.node import timing as node
from tests.support.timings import names

TIMINGS = {
    "run": controller.DEFAULT_TIMING,
    "watch-limits": controller.DEFAULT_WATCHER_TIMING,
    "inspect": inspect.DEFAULT_TIMING,
    "watched": inspect.DEFAULT_WATCHED_TIMING,
    "ui": ui.DEFAULT_TIMING,
    "doctor": doctor.DEFAULT_TIMING,
    "demo": demo.DEFAULT_TIMING,
}


@pytest.mark.parametrize("timing", TIMINGS.values(), ids=TIMINGS)
def test_names_have_units(timing: Any) -> None:
    shares = {"client.credentials.ahead_share"}
    assert [name for name in names(timing) if not name.endswith("_s") and name not in shares] == []


def test_clients_have_the_times_of_the_plugin() -> None:
    clients = [controller.DEFAULT_TIMING.client, controller.DEFAULT_WATCHER_TIMING.client]
    assert clients == [node.DEFAULT_TIMING.client] * 2


def test_leader_stops_before_another_replica_leads() -> None:
    """After its deadline, a request that is in flight may still be made."""
    lease = controller.DEFAULT_TIMING.lease
    assert lease.renew_deadline_s + lease.request_s <= lease.duration_s
    assert lease.retry_s * 1.2 + lease.request_s < lease.renew_deadline_s


def test_longest_waits_are_not_shorter_than_the_first() -> None:
    timing = controller.DEFAULT_TIMING
    assert timing.writes.first_s < timing.writes.first_eviction_s < timing.writes.longest_s < timing.writes.forgotten_s
    assert max(timing.pods.idle_s, timing.pods.suspect_s) < timing.pods.longest_s
    assert timing.rendezvous.first_s < timing.rendezvous.longest_s < timing.rendezvous.longest_of_all_s
