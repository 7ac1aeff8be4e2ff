"""The actor `ipv6`: pods have addresses of one family or of both, and the network changes under way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from neuron_dra.core.rendezvous import service_name
from neuron_dra.errors import Conflict
from neuron_dra.kube.requests import ENDPOINT_SLICES
from neuron_dra.planner.plan.rendezvous import FAMILIES, slice_name
from tests.support.fleet.mix import Actor
from tests.support.fleet.pods import Network
from tests.support.fleet.view import place

if TYPE_CHECKING:
    from tests.support.fleet.schedule import Schedule

NETWORKS: Final = (("IPv4",), ("IPv6",), ("IPv4", "IPv6"), ("IPv6", "IPv4"))
"""The address families of a pod, the main one first."""


async def begin(schedule: Schedule) -> None:
    """The cluster has one of the networks."""
    network = schedule.fleet.pods.network = Network(schedule.rng.choice(NETWORKS))
    schedule.fleet.trace(f"pods have addresses of {', '.join(network.families)}")


async def change_network(schedule: Schedule) -> str | None:
    """An administrator changes the families of the network: containers that start from now on have other addresses."""
    network = schedule.fleet.pods.network
    assert network is not None
    network.families = schedule.rng.choice(NETWORKS)
    return f"new containers have addresses of {', '.join(network.families)}"


async def former_name(schedule: Schedule) -> str | None:
    """An earlier release has made the EndpointSlice of a workload: its name is that of the Service."""
    workload = schedule.workload()
    if workload is None:
        return None
    (namespace, name), admin = place(workload), schedule.fleet.admin
    service = service_name(name)
    stored = [slice_name(service, family) for family in FAMILIES]
    stored = [each for each in stored if schedule.fleet.view.find("endpointslices", each, namespace) is not None]
    if not stored or schedule.fleet.view.find("endpointslices", service, namespace) is not None:
        return None
    found = await admin.read(ENDPOINT_SLICES, namespace, schedule.rng.choice(stored))
    meta = found["metadata"]
    kept = {key: meta[key] for key in ("namespace", "labels", "ownerReferences")}
    await admin.create(ENDPOINT_SLICES, namespace, {**found, "metadata": {**kept, "name": service}})
    try:
        await admin.delete(ENDPOINT_SLICES, namespace, meta["name"], version=meta["resourceVersion"])
    except Conflict:  # the controller has written it meanwhile
        await schedule.fleet.remove(ENDPOINT_SLICES, namespace, service)
        return None
    return f"the EndpointSlice of workload {name} has its former name"


ACTORS: Final = {
    "ipv6": Actor(
        "pods have addresses of one family or of both; rank 0 is found under its name at its main address at any time",
        {change_network: 8, former_name: 6},
        begin,
        embedded=True,
        issue="30",
    )
}
