"""A pool of spares beside the real controller: who gets them, and what another leader keeps. Issue 36, number 3."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.planner.observed.model import condition
from tests.story.controller_cluster import Cluster, answering, running_controller
from tests.support.controller_timings import QUICK
from tests.support.waiting import eventually

FLAG = "--spares=trn3.48xlarge=1"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with answering(Cluster) as made:
        yield made


def spares(cluster: Cluster) -> list[str]:
    """Return the UltraServers that are shown as spares."""
    found = cluster.api.objects("neuronultraservers")
    return [str(each["metadata"]["name"]) for each in found if condition(each.get("status") or {}, "Spare")]


def nodes_of(cluster: Cluster, name: str) -> list[str]:
    """Return the nodes that are reserved for a workload."""
    return [
        node
        for each in cluster.api.objects("neuronultraservers")
        for entry in (each.get("status") or {}).get("allocations") or []
        for node in entry["allocatedNodes"]
        if entry["workloadRef"] == f"ml/{name}"
    ]


async def test_group_that_loses_a_node_gets_the_spare_before_a_workload_that_waits(cluster: Cluster) -> None:
    async with running_controller(cluster, FLAG, timing=QUICK):
        await eventually(lambda: len(spares(cluster)) == 1, what="a spare")
        [kept] = spares(cluster)
        cluster.submit("job", count=1)
        cluster.api.patch(
            "neuronultraserverworkloads",
            "job",
            {"spec": {"allocationPolicy": {"failureStrategy": "MigrateAffected"}}},
            "ml",
        )
        await eventually(lambda: cluster.state("job") == "Allocated", what="the other group is reserved")
        old = nodes_of(cluster, "job")
        cluster.submit("waits", count=1)
        await eventually(lambda: cluster.state("waits") == "Pending", what="a new workload waits")
        assert "4 nodes are spares, which only groups that must move may take" in cluster.reason("waits")[1]
        there = cluster.api.get("neuronultraservers", kept, NAMESPACE)["spec"]["topology"]
        cluster.api.delete("nodes", old[0])
        await eventually(
            lambda: nodes_of(cluster, "job") == [each["nodeName"] for each in there], what="only the spare is reserved"
        )
        await eventually(lambda: cluster.state("job") == "Allocated", what="the group has moved")
        assert (spares(cluster), cluster.state("waits")) == ([], "Pending")


async def test_next_leader_keeps_the_same(cluster: Cluster) -> None:
    async with running_controller(cluster, FLAG, timing=QUICK):
        await eventually(lambda: len(spares(cluster)) == 1, what="a spare")
    before = spares(cluster)
    written = [each["metadata"]["resourceVersion"] for each in cluster.api.objects("neuronultraservers")]
    async with running_controller(cluster, FLAG, timing=QUICK):
        cluster.submit("job", count=1)
        await eventually(lambda: cluster.state("job") == "Allocated", what="the other group is reserved")
        assert spares(cluster) == before
        [kept] = before
        stored = cluster.api.get("neuronultraservers", kept, NAMESPACE)
        assert stored["metadata"]["resourceVersion"] in written


async def test_without_the_setting_nothing_is_shown_as_a_spare(cluster: Cluster) -> None:
    async with running_controller(cluster, FLAG, timing=QUICK):
        await eventually(lambda: len(spares(cluster)) == 1, what="a spare")
    async with running_controller(cluster, timing=QUICK):
        await eventually(lambda: not spares(cluster), what="no spare")
