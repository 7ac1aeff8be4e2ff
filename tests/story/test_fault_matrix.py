"""Requests without an answer in some namespaces delay no workload of another one. Issue 4.05, ADR 16.

The rows are derived from the requests that a controller sends to a tenant's namespace, so that a new request without a
row fails. The client of these controllers waits ten minutes for an answer: what waits for one does not end in time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pytest

from controller.program import NAME
from hack.bench.ultraservers import ultraserver
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import Do, EmbeddedApi, InjectedFault
from tests.story.controller_cluster import Cluster, answering, running_controller
from tests.support.controller_timings import QUICK
from tests.support.timings import quicker
from tests.support.waiting import eventually

PATIENT: Final = quicker(QUICK, client={"request_s": 600.0})
KIND: Final = "neuronultraserverworkloads"
OBJECTS: Final = 40
BEGIN: Final = "while workloads get nodes"
END: Final = "while workloads are released"
ROWS: Final = {
    "patch neuronultraserverworkloads": (BEGIN, END),
    "patch neuronultraserverworkloads/status": (BEGIN, END),
    "create resourceclaimtemplates": (BEGIN,),
    "delete resourceclaimtemplates": (END,),
    "create pods/eviction": (END,),
    "get services": (BEGIN,),
    "create services": (BEGIN,),
    "get endpointslices": (BEGIN,),
    "create events": (BEGIN, END),
}
"""When the controller sends each request."""
ONE_NAMESPACE: Final = ("ml",)
MANY_NAMESPACES: Final = tuple(f"bad-{number}" for number in range(OBJECTS))


class LargeCluster(Cluster):
    """A cluster with room for all objects and a neighbour."""

    def __init__(self, api: EmbeddedApi) -> None:
        super().__init__(api)
        for number in range(2, OBJECTS // 4 + 2):
            self.add(ultraserver(f"u{number}"))
        for name in ("calm", *MANY_NAMESPACES):
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def ask(self, namespace: str, name: str) -> Obj:
        spec = {"instanceType": "trn3.48xlarge", "topologySize": 1, "serverCount": 1}
        meta = {"name": name, "namespace": namespace}
        kind = {"apiVersion": "neuron.aws.com/v1beta1", "kind": "NeuronUltraServerWorkload"}
        return self.api.create({**kind, "metadata": meta, "spec": spec})

    def are_allocated(self, workloads: Iterable[Obj]) -> bool:
        stored = [self.api.find(KIND, each["metadata"]["name"], each["metadata"]["namespace"]) for each in workloads]
        return all(each is not None and each.get("status", {}).get("state") == "Allocated" for each in stored)

    def delete(self, workload: Obj) -> None:
        self.api.delete(KIND, workload["metadata"]["name"], workload["metadata"]["namespace"])

    async def has_a_calm_neighbour(self) -> None:
        """A workload of another namespace gets its node, and is released."""
        workload = self.ask("calm", "neighbour")
        await eventually(lambda: self.are_allocated([workload]), 60, what="the neighbour is Allocated")
        self.delete(workload)
        await eventually(lambda: self.api.find(KIND, "neighbour", "calm") is None, 60, what="the neighbour is released")


async def test_every_request_to_a_tenant_has_a_row() -> None:
    async with answering(LargeCluster) as cluster, running_controller(cluster, timing=PATIENT):
        workload = cluster.ask("ml", "w")
        await eventually(lambda: cluster.are_allocated([workload]), 60, what="the workload is Allocated")
        [node] = cluster.tags()
        cluster.pod_with_claim("p", node, workload)
        cluster.delete(workload)
        await eventually(lambda: cluster.api.find(KIND, "w", "ml") is None, 60, what="the workload is released")
        sent = [each for each in cluster.api.log if each.user_agent == NAME and each.namespace == "ml"]
        assert {f"{each.verb} {each.resource}" for each in sent} == ROWS.keys()


SCOPES: Final = {"40 objects in one namespace": ONE_NAMESPACE, "one object in each of 40 namespaces": MANY_NAMESPACES}
SHORT: Final = ("create resourceclaimtemplates", BEGIN)
CASES: Final = [
    pytest.param(row, moment, scope, marks=() if (row, moment) == SHORT else pytest.mark.long)
    for row, moments in ROWS.items()
    for moment in moments
    for scope in SCOPES
    if row != "create pods/eviction" or SCOPES[scope] == ONE_NAMESPACE
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("row", "moment", "scope"), CASES)
async def test_requests_without_an_answer_delay_no_other_namespace(row: str, moment: str, scope: str) -> None:
    verb, resource = row.split(" ")
    namespaces = SCOPES[scope]
    faults = [
        InjectedFault(Do.HANG, verb=verb, resource=resource, namespace=namespace, times=None)
        for namespace in namespaces
    ]
    async with answering(LargeCluster) as cluster, running_controller(cluster, timing=PATIENT):
        await eventually(lambda: len(cluster.api.objects("neuronultraservers")) == OBJECTS // 4 + 2, 60)
        if moment == BEGIN:
            for fault in faults:
                cluster.api.faults.add(fault)
        workloads = [cluster.ask(namespaces[number % len(namespaces)], f"w{number}") for number in range(OBJECTS)]
        if moment == END:
            await eventually(lambda: cluster.are_allocated(workloads), 120, what="all are Allocated")
            by_name = {workload["metadata"]["name"]: workload for workload in workloads}
            if row == "create pods/eviction":
                for entry in cluster.allocations():
                    name = entry["workloadRef"].partition("/")[2]
                    cluster.pod_with_claim(f"p-{name}", entry["allocatedNodes"][0], by_name[name])
            for fault in faults:
                cluster.api.faults.add(fault)
            for workload in workloads:
                cluster.delete(workload)
        await eventually(lambda: any(fault.hits for fault in faults), 60, what="a request hangs")
        await cluster.has_a_calm_neighbour()
        if len(faults) > 1:
            await eventually(lambda: sum(fault.hits for fault in faults) > 1, 60, what="others hang, too")
