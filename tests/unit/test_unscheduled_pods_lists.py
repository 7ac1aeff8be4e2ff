"""Checks of unscheduled pods keep the fields that they need, of the pods that count. Issue 4.02."""

from __future__ import annotations

import tracemalloc
from datetime import timedelta

import pytest

from controller.apply.pod_checks import PAGES, PodLooks
from controller.timing import DEFAULT_TIMING
from neuron_dra.core.wire import Obj
from neuron_dra.kube.client import PAGE_SIZE
from neuron_dra.kube.events import EventRecorder
from neuron_dra.kube.requests import PODS
from neuron_dra.planner.observed.model import UNSCHEDULED, Starting
from tests.support.sending import new_sender, sent
from tests.unit.test_early_pods_lists import MOST_ABOVE_BYTES, NOW, Pods, waiting_pod

REFUSAL = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/8 nodes are available",
    "lastTransitionTime": "2026-03-01T10:00:00Z",
}
IDLE = Starting("ml", "job", "uid-job", "rct", 1, ("u0-1",), None)


def refused_pod(number: int, template: str = "rct") -> Obj:
    pod = waiting_pod(number, template, size_bytes=10_000)
    return {**pod, "status": {"phase": "Pending", "conditions": [REFUSAL]}}


async def checked(pods: Pods) -> PodLooks:
    """Check the workload's pods once its node has been idle for long enough."""
    sender = new_sender()
    looks = PodLooks(pods, EventRecorder(pods, "here"), DEFAULT_TIMING.pods, sender)
    await sent(sender, lambda: looks.look([IDLE], NOW))
    await sent(sender, lambda: looks.look([IDLE], NOW + timedelta(seconds=DEFAULT_TIMING.pods.idle_s)))
    return looks


async def test_pods_of_the_template_count_on_every_page() -> None:
    pods = [refused_pod(number, "rct" if number % 100 == 7 else "another") for number in range(600)]
    looks = await checked(Pods(pods))
    assert looks.unschedulable["uid-job"].startswith("6 pods cannot be scheduled")
    assert looks.unschedulable["uid-job"].endswith("ml/p00007: 0/8 nodes are available")


async def test_a_check_reads_so_many_pages_at_most() -> None:
    pods = Pods([refused_pod(number, "another") for number in range(PAGES * PAGE_SIZE + 1)])
    looks = await checked(pods)
    assert (pods.pages, looks.unschedulable) == (PAGES, {})


@pytest.mark.parametrize("is_control", [False, True])
async def test_a_check_of_many_pods_needs_little_memory(is_control: bool) -> None:
    """The control keeps the pods whole."""
    pods = Pods([refused_pod(number) for number in range(PAGES * PAGE_SIZE)])
    tracemalloc.start()
    try:
        if is_control:
            kept = []
            async for page in pods.list(PODS, "ml", fieldSelector=UNSCHEDULED):
                kept += page.decoded(dict).objects
        else:
            looks = await checked(pods)
            assert looks.unschedulable["uid-job"].startswith(f"{PAGES * PAGE_SIZE} pods cannot be scheduled")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (peak_bytes > MOST_ABOVE_BYTES) == is_control
