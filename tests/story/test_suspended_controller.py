"""A suspended controller, as a process: what it had decided is not sent when another replica has taken over."""

from __future__ import annotations

import pytest

from neuron_dra.emulation.embedded_api import Do, EmbeddedApi, InjectedFault
from tests.story.controller_cluster import Cluster, answering
from tests.support.forked_controller import running
from tests.support.waiting import eventually

WRITES = ("create", "update", "patch", "delete", "deletecollection")
LONG_S = 120.0  # on a busy machine


def leader(api: EmbeddedApi) -> str:
    """Return the name of the replica that holds the Lease."""
    found = api.objects("leases")
    return str(found[0]["spec"].get("holderIdentity") or "").partition("_")[0] if found else ""


def writes(api: EmbeddedApi, agent: str, *, since: int) -> list[tuple[str, str, str]]:
    """Return the writes of a replica.

    Without those that only try what the API server would store, and renewals of the Lease, which its version guards.
    """
    return [
        (each.verb, each.resource, each.name)
        for each in api.log[since:]
        if each.user_agent == agent and each.verb in WRITES
        if "dryRun" not in each.query and each.resource != "leases"
    ]


def looks(api: EmbeddedApi, agent: str, *, since: int) -> int:
    """Return how often a replica has read the Lease."""
    return sum((each.user_agent, each.verb, each.resource) == (agent, "get", "leases") for each in api.log[since:])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("held", ["neuronultraserverworkloads", "neuronultraservers", "neuronultraservers/status"])
async def test_resumed_replica_sends_no_write_of_its_ended_term(held: str) -> None:
    """It is suspended in the middle of its writes for longer than the Lease lasts, and wakes while another leads."""
    async with answering(Cluster) as cluster:
        api = cluster.api
        with running(api.url, "first") as first:
            cluster.submit("before", count=1)  # with it the replica tries what the API server stores
            await eventually(lambda: cluster.state("before") == "Allocated", LONG_S, "the first workload")
            # Its last write. A replica that is suspended between the check of its term and the socket sends it later.
            await eventually(lambda: bool(api.objects("services")), LONG_S, "the Service of the first workload")
            late = api.faults.add(InjectedFault(Do.ANSWER_LATE, verb="patch", resource=held, delay_s=LONG_S))
            cluster.submit("job", count=1)
            await eventually(lambda: late.hits > 0, LONG_S, "a write of the first replica")
            first.suspend()
            with running(api.url, "second"):
                await eventually(lambda: leader(api) == "second", LONG_S, "the second replica leads")
                await eventually(lambda: cluster.state("job") == "Allocated", LONG_S, "the workload is Allocated")
                before = len(api.log)
                late.release()
                await eventually(lambda: len(writes(api, "first", since=before)) == 1, LONG_S, "the held answer")
                since = len(api.log)
                first.resume()
                await eventually(lambda: looks(api, "first", since=since) > 3, LONG_S, "the first replica follows")
                assert writes(api, "first", since=since) == []
                assert leader(api) == "second"
                assert [entry["phase"] for entry in cluster.allocations()] == ["Bound", "Bound"]
