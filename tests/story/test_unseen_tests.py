"""4.02: tests of UltraServers whose pods cannot be seen, or never come, end and say so; refused watches list again."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import InjectedFault
from tests.story.controller_cluster import Cluster, answering, running_controller
from tests.support.controller_timings import QUICK
from tests.support.timings import quicker
from tests.support.waiting import eventually

TESTS = "neuron-qualification"
WORKLOADS = "neuronultraserverworkloads"
LONG_S = 60.0
BRIEF = {"reserve_s": 1.0, "start_s": 1.0, "settle_s": 0.5, "again_s": 0.5, "longest_s": 1.0, "status_s": 0.1}
OFTEN = {"absent_s": 0.3, "look_s": 0.1, "survey_s": 0.1, "first_s": 0.1, "longest_write_s": 0.3}
TIMING = quicker(QUICK, qualify={**BRIEF, **OFTEN})


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with answering(Cluster) as made:
        made.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TESTS}})
        yield made


def ask(cluster: Cluster) -> None:
    spec = {"instanceTypes": ["trn3.48xlarge"], "topologySize": 1, "image": "i", "timeout": "1s"}
    kind = "NeuronUltraServerQualification"
    cluster.api.create({"apiVersion": "neuron.aws.com/v1beta1", "kind": kind, "metadata": {"name": "q"}, "spec": spec})


def ready(cluster: Cluster) -> Obj:
    status = cluster.api.get("neuronultraserverqualifications", "q").get("status") or {}
    found: Obj = next(iter(status.get("conditions") or ()), {})
    return found


async def test_missing_role_is_in_the_qualifications_status(cluster: Cluster) -> None:
    fault = InjectedFault(verb="list", resource="pods", namespace=TESTS, status=403, times=None)
    cluster.api.faults.add(fault)
    async with running_controller(cluster, "--qualifications", "true", timing=TIMING):
        ask(cluster)
        await eventually(lambda: ready(cluster).get("reason") == "PodsUnreadable", LONG_S, "the status says why")
        assert "apply the Role of this release" in ready(cluster)["message"]
        cluster.api.faults.clear()
        await eventually(lambda: cluster.api.objects("pods", TESTS), LONG_S, "a test begins once the Role is there")


async def test_test_whose_pods_are_never_seen_ends(cluster: Cluster) -> None:
    """A pod of an earlier test keeps the name: the POST is answered with AlreadyExists."""
    fault = InjectedFault(
        verb="create", resource="pods", namespace=TESTS, status=409, reason="AlreadyExists", times=None
    )
    cluster.api.faults.add(fault)
    async with running_controller(cluster, "--qualifications", "true", timing=TIMING):
        ask(cluster)

        def tests() -> set[str]:
            return {str(item["metadata"]["uid"]) for item in cluster.api.objects(WORKLOADS, TESTS)}

        await eventually(tests, LONG_S, "a test begins")
        first = tests()
        await eventually(lambda: not first & tests(), LONG_S, "it ends")


async def test_watch_that_is_always_refused_is_replaced_by_a_list(cluster: Cluster) -> None:
    """etcd was restored from a backup: the server knows no version that a watch has reached."""
    async with running_controller(cluster, timing=QUICK):
        cluster.submit("before", count=1)
        await eventually(lambda: cluster.state("before") == "Allocated", what="the controller works")
        text = "Too large resource version: 91234, current: 1234"
        refused = InjectedFault(verb="watch", status=504, reason="Timeout", message=text, times=None)
        cluster.api.faults.add(refused)
        await cluster.api.refuse_connections()
        await cluster.api.resume()
        await eventually(lambda: refused.hits, LONG_S, "watches are refused")
        cluster.submit("after", count=1)
        await eventually(lambda: cluster.state("after") == "Allocated", LONG_S, "it is seen")
