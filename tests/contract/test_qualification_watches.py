"""The watches of qualifications on clusters that do not have the kind, or do not allow to read it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from controller.qualify.watches import QualifyWatches
from controller.timing import QualifyTiming
from neuron_dra.core.qualification import NAMESPACE
from neuron_dra.emulation.embedded_api import EmbeddedApi, InjectedFault
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from tests.support.waiting import eventually

KIND = "NeuronUltraServerQualification"
ASKED = {
    "apiVersion": "neuron.aws.com/v1beta1",
    "kind": KIND,
    "metadata": {"name": "nightly"},
    "spec": {"instanceTypes": ["trn3.48xlarge"], "image": "i"},
}
TIMING = QualifyTiming(absent_s=0.1)


@contextlib.asynccontextmanager
async def watching(api: EmbeddedApi) -> AsyncIterator[QualifyWatches]:
    async with KubeClient(KubeConfig(api.url)) as client:
        watches = QualifyWatches(client, lambda: None, TIMING)
        tasks = [asyncio.create_task(run()) for run in watches.tasks().values()]
        try:
            yield watches
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def register(api: EmbeddedApi) -> None:
    api.register("neuron.aws.com", ("v1beta1",), KIND, f"{KIND.lower()}s", namespaced=False)


async def test_cluster_without_the_kind_has_no_qualifications_until_it_comes() -> None:
    async with EmbeddedApi() as api, watching(api) as watches:
        await eventually(lambda: watches.settled, what="it is known that there are none")
        assert (watches.qualifications(), watches.sees_pods) == ({}, False)
        register(api)
        api.create(ASKED)
        await eventually(lambda: list(watches.qualifications()) == ["nightly"], what="the kind is found")


async def test_pods_are_watched_once_there_is_something_to_test() -> None:
    async with EmbeddedApi() as api, watching(api) as watches:
        register(api)
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        spec = {"containers": [{"name": "c", "image": "i"}]}
        api.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "t-0", "namespace": NAMESPACE}, "spec": spec}
        )
        await eventually(lambda: watches.settled, what="qualifications are listed")
        assert not watches.sees_pods
        watches.watch_pods()
        await eventually(lambda: [pod.name for pod in watches.pods()] == ["t-0"], what="pods are listed")


async def test_without_the_right_nothing_is_known_and_nothing_is_tested() -> None:
    async with EmbeddedApi() as api:
        register(api)
        refusal = api.faults.add(InjectedFault(resource=f"{KIND.lower()}s", status=403, times=None))
        async with watching(api) as watches:
            await eventually(lambda: refusal.hits > 1, what="it is tried again")
            assert (watches.settled, watches.qualifications()) == (False, {})
