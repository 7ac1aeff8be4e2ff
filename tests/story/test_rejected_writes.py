"""4.02: a write that is rejected for ever is shown where somebody looks, and holds up no neighbour."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from neuron_dra.emulation.embedded_api import InjectedFault
from tests.story.controller_cluster import Cluster, answering, running_controller
from tests.support.controller_timings import QUICK
from tests.support.waiting import eventually

MARKER = "exceeded quota: BECAUSE-XYZ"
WORKLOADS = "neuronultraserverworkloads"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with answering(Cluster) as made:
        yield made


def reject(cluster: Cluster, verb: str, resource: str, namespace: str = "ml") -> InjectedFault:
    fault = InjectedFault(verb=verb, resource=resource, namespace=namespace, status=403, message=MARKER, times=None)
    return cluster.api.faults.add(fault)


def shown(cluster: Cluster) -> set[str]:
    """Return the kinds of objects of which a condition or an Event has the API server's words."""
    found = set()
    for kind in (WORKLOADS, "neuronultraservers"):
        found |= {item["kind"] for item in cluster.api.objects(kind) if MARKER in str(item.get("status"))}
    found |= {
        f"Event on {e['involvedObject']['kind']}" for e in cluster.api.objects("events") if MARKER in e["message"]
    }
    return found


WORKLOAD = "NeuronUltraServerWorkload"


@pytest.mark.parametrize(
    ("verb", "resource", "namespace", "where"),
    [
        ("create", "resourceclaimtemplates", "ml", WORKLOAD),
        ("patch", WORKLOADS, "ml", WORKLOAD),
        ("patch", f"{WORKLOADS}/status", "ml", f"Event on {WORKLOAD}"),
        ("patch", "neuronultraservers/status", "", "Event on NeuronUltraServer"),
        ("patch", "neuronultraservers", "", "Event on NeuronUltraServer"),
        ("create", "neuronultraservers", "", "Event on NeuronUltraServer"),
        ("patch", "nodes", "", "Event on Node"),
        ("create", "services", "ml", f"Event on {WORKLOAD}"),
    ],
)
async def test_rejected_write_is_shown(cluster: Cluster, verb: str, resource: str, namespace: str, where: str) -> None:
    reject(cluster, verb, resource, namespace)
    async with running_controller(cluster, timing=QUICK):
        cluster.submit("train", count=1)
        await eventually(lambda: where in shown(cluster), what=f"it is shown: {where}")


@pytest.mark.parametrize(("verb", "resource"), [("delete", "resourceclaimtemplates"), ("patch", WORKLOADS)])
async def test_rejected_step_of_a_release_is_shown(cluster: Cluster, verb: str, resource: str) -> None:
    async with running_controller(cluster, timing=QUICK):
        cluster.submit("train", count=1)
        await eventually(lambda: cluster.state("train") == "Allocated", what="it is Allocated")
        reject(cluster, verb, resource)
        cluster.api.delete(WORKLOADS, "train", "ml")
        await eventually(lambda: WORKLOAD in shown(cluster), what="its condition says why")


async def test_what_is_accepted_again_is_not_shown(cluster: Cluster) -> None:
    """The control."""
    reject(cluster, "create", "resourceclaimtemplates")
    async with running_controller(cluster, timing=QUICK):
        cluster.submit("train", count=1)
        await eventually(lambda: WORKLOAD in shown(cluster), what="its condition says why")
        assert cluster.reason("train")[0] == "TemplateRejected"
        cluster.api.faults.clear()
        await eventually(lambda: cluster.state("train") == "Allocated", what="it is Allocated")
        await eventually(lambda: WORKLOAD not in shown(cluster), what="its condition says nothing of it any more")


@pytest.mark.parametrize("when", ["it reserves", "it releases"])
async def test_rejected_write_holds_up_no_neighbour(cluster: Cluster, when: str) -> None:
    cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bad"}})
    async with running_controller(cluster, timing=QUICK):
        if when == "it reserves":
            rejected = reject(cluster, "patch", WORKLOADS, "bad")
            cluster.submit("w0", size=1, count=1, namespace="bad")
        else:
            cluster.submit("w0", size=1, count=1, namespace="bad")
            await eventually(lambda: len(cluster.allocations()) == 1, what="the neighbour has its node")
            made = "its template exists"
            await eventually(lambda: cluster.api.find("resourceclaimtemplates", "w0", "bad") is not None, what=made)
            rejected = reject(cluster, "delete", "resourceclaimtemplates", "bad")
            cluster.api.delete(WORKLOADS, "w0", "bad")
        await eventually(lambda: rejected.hits, what="a write of the neighbour is rejected")
        cluster.submit("train", size=1, count=1)
        await eventually(lambda: cluster.state("train") == "Allocated", what="it is Allocated")


async def test_object_that_only_our_crd_rejects_has_its_own_reason(cluster: Cluster) -> None:
    """It was stored under AWS's CRD, which has no limit of names."""
    long_name = "a" * 64
    text = "metadata.name: write at most 63 characters, it becomes the workloadId of devices"
    for resource in (WORKLOADS, f"{WORKLOADS}/status"):
        fault = InjectedFault(verb="patch", resource=resource, name=long_name, status=422, message=text, times=None)
        cluster.api.faults.add(fault)
    cluster.submit(long_name, count=1)
    cluster.submit("b" * 63, count=1)
    async with running_controller(cluster, timing=QUICK):
        await eventually(lambda: cluster.state("b" * 63) == "Allocated", what="its neighbour is Allocated")
        await eventually(lambda: events_of(cluster, long_name), what="an Event says why")
        [(reason, message)] = events_of(cluster, long_name)
        assert reason == "NameTooLong"
        assert message.startswith("metadata.name has 64 characters, and the workloadId of devices at most 63: delete")
        assert text in message


async def test_name_that_is_too_long_is_a_condition(cluster: Cluster) -> None:
    """Without the rule of our CRD."""
    cluster.submit("a" * 64, count=1)
    async with running_controller(cluster, timing=QUICK):
        await eventually(lambda: cluster.state("a" * 64) == "Failed", what="it is Failed")
        assert cluster.reason("a" * 64)[0] == "NameTooLong"


def events_of(cluster: Cluster, name: str) -> set[tuple[str, str]]:
    """Return reason and message of the Events on a workload."""
    events = cluster.api.objects("events")
    return {(event["reason"], event["message"]) for event in events if event["involvedObject"]["name"] == name}
