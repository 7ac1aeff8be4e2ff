"""The emulated scheduler with an API server that fails now and then."""

from __future__ import annotations

import asyncio

from neuron_dra.emulation.embedded_api import Do, InjectedFault
from neuron_dra.emulation.embedded_api.server import EmbeddedApi
from neuron_dra.emulation.pod_scheduler import PodScheduler
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from tests.support import small_clusters as small
from tests.support.waiting import eventually


async def test_failed_binding_is_repeated() -> None:
    """It added the pod to reservedFor a second time, which the server rejects: the pod never started."""
    async with EmbeddedApi() as api:
        failed = api.faults.add(InjectedFault(Do.RESPOND, verb="create", resource="pods/binding", status=503, times=1))
        for item in [*small.base("a"), small.template("one"), small.pod("p", "one")]:
            api.create(item)
        task = asyncio.create_task(PodScheduler(KubeClient(KubeConfig(api.url))).run())
        try:
            await eventually(lambda: api.get("pods", "p", "default")["spec"].get("nodeName") == "a", what="a node")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        (claim,) = api.objects("resourceclaims")
        assert failed.hits == 1
        assert [each["name"] for each in claim["status"]["reservedFor"]] == ["p"]
