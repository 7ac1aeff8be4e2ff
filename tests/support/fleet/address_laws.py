"""The laws of the actor `ipv6`: the name of rank 0 leads to its main address, and never to nothing on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from neuron_dra.core.rendezvous import service_name
from neuron_dra.core.ultraserver import Phase
from neuron_dra.core.wire import Wire
from neuron_dra.planner.plan.claim_pods import ENDED
from neuron_dra.planner.plan.rendezvous import OF_SERVICE, family_of
from tests.support.fleet.known import Known
from tests.support.fleet.nodes import FleetNode
from tests.support.fleet.pods import Container
from tests.support.fleet.view import View, has_lost_claim, state

Service = tuple[str, str]
"""Namespace and name."""
SEEN_AFTER_S: Final = 10.0
"""The controller reads the pod of a claim that its watch shows, which may lag."""


def resolved(view: View) -> dict[Service, set[str]]:
    """Return the addresses to which the name of each Service leads."""
    found: dict[Service, set[str]] = {}
    for item in view.all("endpointslices"):
        meta = item["metadata"]
        addresses = {address for each in item.get("endpoints") or () for address in each["addresses"]}
        service = meta["namespace"], str((meta.get("labels") or {}).get(OF_SERVICE))
        found.setdefault(service, set()).update(addresses)
    return found


def _rank_0(view: View, uid: str, running: Mapping[str, Container]) -> tuple[Container, Wire] | None:
    """Return the running container with rank 0 of a workload, and its pod; None if there is none, or it is unclear."""
    first = [each for each in view.of(uid) if each.allocation.ultraserver_index == 0]
    if len(first) != 1 or first[0].allocation.phase is not Phase.BOUND:
        return None
    node = first[0].allocation.nodes[0]
    mine = [each for each in running.values() if each.node == node and each.workload_uid == uid]
    if len(mine) != 1:
        return None
    namespace, _, name = mine[0].pod.partition("/")
    pod = view.find("pods", name, namespace)
    if pod is None or pod["metadata"]["uid"] != mine[0].uid or pod["metadata"].get("deletionTimestamp"):
        return None
    status = pod.get("status") or {}
    if not status.get("podIP") or status.get("phase") in ENDED or has_lost_claim(view, pod):
        return None
    return mine[0], pod


def problems(
    view: View, nodes: Mapping[str, FleetNode], running: Mapping[str, Container], known: Known
) -> Iterator[str]:
    """Yield a sentence for each running pod with rank 0 that is not found under its name."""
    names = resolved(view)
    for item in view.all("endpointslices"):
        for each in item.get("endpoints") or ():
            if {family_of(address) for address in each["addresses"]} != {item["addressType"]}:
                yield f"EndpointSlice {item['metadata']['name']} of {item['addressType']} has {each['addresses']}"
    for uid, workload in view.workloads().items():
        meta = workload["metadata"]
        if meta.get("deletionTimestamp") or state(workload) != "Allocated" or known.refuses(workload):
            continue
        found = _rank_0(view, uid, running)
        if found is None or not nodes[found[0].node].healthy or found[0].node in known.closed:
            continue
        address = found[1]["status"]["podIP"]
        there = names.get((meta["namespace"], service_name(meta["name"])), set())
        if there != {address}:
            yield f"rank 0 of workload {meta['name']} is at {address}, and its name leads to {sorted(there)}"


@dataclass(slots=True)
class Names:
    """Follows the EndpointSlices: while rank 0 runs where it was, its name never stops leading to it."""

    _before: dict[Service, set[str]] = field(default_factory=dict)

    def lost(self, view: View, running: Mapping[str, Container], now: float) -> Iterator[str]:
        """Yield a sentence for each name that led to the running pod with rank 0, and does not any more."""
        before, self._before = self._before, resolved(view)
        for uid, workload in view.workloads().items():
            meta = workload["metadata"]
            service = meta["namespace"], service_name(meta["name"])
            had, has = before.get(service, set()), self._before.get(service, set())
            found = _rank_0(view, uid, running) if had - has and not meta.get("deletionTimestamp") else None
            if found is None or now < found[0].started_at + SEEN_AFTER_S:
                continue
            address = found[1]["status"]["podIP"]
            if address in had - has:
                yield f"the name of rank 0 of workload {meta['name']} does not lead to {address} any more"
