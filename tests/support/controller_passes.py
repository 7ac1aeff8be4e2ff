"""Waits for passes of a controller, where a test expects that nothing happens."""

from __future__ import annotations

import itertools
from typing import Final

from controller.program import Controller
from neuron_dra.emulation.embedded_api import EmbeddedApi
from tests.support.waiting import eventually

ENOUGH: Final = 3
"""The first of these passes may have begun before the call, and the writes of the last one may not have ended."""

_numbers = itertools.count()


async def passes(controller: Controller, api: EmbeddedApi) -> None:
    """Let the controller plan on the present state, and make that plan's writes.

    For each pass there is a change that concerns no workload: a new claim without an allocation.
    """

    def plans() -> float:
        return controller.metrics.registry.get_sample_value("neuron_ultraserver_plan_seconds_count") or 0.0

    async def another_plan(before: float) -> None:
        await eventually(lambda: plans() > before, what="another plan")

    for _ in range(ENOUGH):
        before = plans()
        meta = {"name": f"unrelated-{next(_numbers)}", "namespace": "ml"}
        devices = {"requests": [{"name": "one", "exactly": {"deviceClassName": "neuron.aws.com"}}]}
        api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": meta,
                "spec": {"devices": devices},
            }
        )
        await another_plan(before)
