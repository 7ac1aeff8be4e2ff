"""4.02: while nothing changes, the programs send what this table has, however many pods wait."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest

from controller.limits.watcher import LimitsWatcher
from controller.settings import WatcherSettings
from neuron_dra.core import sizes
from neuron_dra.core.wire import Obj
from neuron_dra.kube.config import KubeConfig
from tests.support.fleet.fleet import USERS, Fleet
from tests.support.fleet.network import Line
from tests.support.fleet.run import run
from tests.support.fleet.schedule import Schedule

HOUR_S: Final = 3600.0
QUIET_S: Final = 1500.0  # until all waits that grow are at their longest
WATCHER: Final = "limits watcher"


@dataclass(frozen=True, slots=True)
class Periodic:
    """A request that a program repeats without a change, for each path at most once in `period_s`."""

    request: str
    period_s: float
    reason: str


PERIODIC: Final = (
    Periodic("(GET|PUT) .*/leases/.*", 1.8, "the Lease of the leader, which the others look at"),
    Periodic("GET .*/(jobsets|leaderworkersets)", 60, "a kind that the API server may serve one day"),
    Periodic("GET /openapi/.*", 60, "the CRDs may be replaced by those of another release, and no watch shows that"),
    Periodic("GET .*/namespaces/[^/]*/pods", 90, "the pods of a workload with idle nodes may not fit on them"),
    Periodic("GET .*/(services|endpointslices|pods)/.*", 300, "rank 0 gets another address with a new sandbox"),
    Periodic("GET .*/validatingadmissionpolic.*", 60, "the policy that guards the label may be deleted"),
    Periodic("GET .*/priorityclasses/.*", 60, "a class that a workload names may be created again"),
    Periodic("PATCH .*/events/.*", 600, "the API server deletes an Event after an hour, also one that still applies"),
)


def waiting_pod(number: int, size_bytes: int, *, is_served: bool = False) -> Obj:
    """A pod that asks for a number of devices, which no node serves, and for the template of a workload."""
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/8 nodes"}
    limits = {} if is_served else {sizes.resource_name(sizes.DEVICE, 7): "1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"waits-{number}", "namespace": USERS, "annotations": {"a": "x" * size_bytes}},
        "spec": {
            "schedulerName": "default-scheduler",
            "nodeSelector": {"node.kubernetes.io/instance-type": "trn2.48xlarge"},
            "containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}],
            "resourceClaims": [{"name": "neuron", "resourceClaimTemplateName": "held-rct"}],
        },
        "status": {"phase": "Pending", "conditions": [refused]},
    }


@dataclass(frozen=True, slots=True)
class WaitingPods:
    """`unserved` of them ask for a number that no node serves, so each has an Event."""

    number: int
    unserved: int
    size_bytes: int


FEW: Final = WaitingPods(20, 20, 10 * 1024)
MANY: Final = WaitingPods(10_000, 20, 16)
"""How large the pods are is for `test_pod_memory`: here it only takes time."""


def sent_in_an_hour(monkeypatch: pytest.MonkeyPatch, pods: WaitingPods, *, change: bool) -> Mapping[str, int]:
    """Return how often the programs sent each request, a list of several pages once.

    `change`: a user creates a workload.
    """
    sent: Counter[str] = Counter()
    is_counting = False
    send = Line._send

    async def counted(self: Line, method: str, path: str, params: Any, *rest: Any, **more: Any) -> bytes:
        is_another_page = "continue" in (params or {})
        if is_counting and not is_another_page and (self.name.startswith("controller") or self.name == WATCHER):
            sent[f"{self.name} {method} {path}"] += 1
        return await send(self, method, path, params, *rest, **more)

    async def drive(fleet: Fleet, steps: int) -> None:
        nonlocal is_counting
        schedule = Schedule(fleet)
        await schedule.begin()
        assert fleet.api is not None
        for number in range(pods.number):
            fleet.api.create(waiting_pod(number, pods.size_bytes, is_served=number >= pods.unserved))
        held = await fleet.submit("held", 4, 1, "NoOp", "held-rct")
        assert held is not None
        fleet.start_job(held)
        await fleet.submit("idle", 2, 1)
        await fleet.submit("waits", 4, 3)
        settings = WatcherSettings(health_probe_bind_address="", metrics_bind_address="")
        watcher = LimitsWatcher(settings, KubeConfig("line:"), client=fleet.line(WATCHER), clock=fleet.clock.now)
        task = asyncio.create_task(watcher.run())
        await fleet.sleep(QUIET_S)
        told = [each for each in fleet.api.objects("events") if each["reason"] == "NeuronNumberNotServed"]
        assert len(told) == pods.unserved
        is_counting = True
        if change:
            await fleet.submit("more", 2, 1)
        await fleet.sleep(HOUR_S)
        is_counting = False
        watcher.stop()
        await task

    monkeypatch.setattr(Line, "_send", counted)
    assert run(1, drive=drive, actors={"jobs", "ipv6"}).violation == ""
    return sent


def beyond(sent: Mapping[str, int]) -> list[str]:
    """Return the requests that no row has, or that were sent more often than their row says."""
    found = []
    for request, times in sorted(sent.items()):
        what = re.sub("^(controller-.|limits watcher) ", "", request)
        rows = [row for row in PERIODIC if re.fullmatch(row.request, what)]
        if not rows or times > HOUR_S / rows[0].period_s + 1:
            found.append(f"{times} x {request}")
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("pods", [FEW, MANY], ids=["few", "many"])
def test_idle_programs_send_what_the_table_has(monkeypatch: pytest.MonkeyPatch, pods: WaitingPods) -> None:
    sent = sent_in_an_hour(monkeypatch, pods, change=False)
    assert beyond(sent) == []
    events = sum(times for request, times in sent.items() if "PATCH" in request)
    assert events == 2 * pods.unserved  # each Event, twice an hour


def test_change_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    assert any(
        "neuronultraserverworkloads/more" in each
        for each in beyond(sent_in_an_hour(monkeypatch, WaitingPods(1, 1, 16), change=True))
    )
