"""The pods that have a node and do not start there, do not end, or do not see their devices. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from neuron_dra.ask.render import words
from neuron_dra.ask.world import demand, fleet, unseen
from neuron_dra.ask.world.faults import FleetFault
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire

MOST: Final = 500
"""Pods of one kind that are explained: a fleet that restarts has thousands that start."""
UNSEEN: Final = "holds devices that none of its containers sees"
_NO_REASON: Final = ("Unknown", "Deleted")
"""Codes of pods that start, or end, as they should for all that is known."""


@dataclass(frozen=True, slots=True)
class StuckPod:
    """A pod as NAMESPACE/NAME, its node, and why it does not start or end."""

    name: str
    node: str
    code: str
    text: str

    def to_wire(self) -> dict[str, str]:
        """Return it for `-o json` and `-o yaml`."""
        return {"pod": self.name, "node": self.node, "code": self.code, "text": self.text}


def stuck(world: World, namespace: str) -> list[StuckPod]:
    """Return these pods; `namespace` limits them, empty for all."""
    placed = list(_placed(world, namespace))
    if not placed:
        return []
    from neuron_dra.ask.why import pod as why_pod

    stuck_pods = []
    for pod in placed:
        report = why_pod.report(world, pod)
        if report.fine or not report.findings:
            continue
        first = unseen.doubted(report.findings[0], world.snapshot)
        if first.code not in _NO_REASON:
            meta = pod["metadata"]
            name = f"{meta.get('namespace') or 'default'}/{meta['name']}"
            stuck_pods.append(StuckPod(name, str(pod["spec"]["nodeName"]), first.code, first.text))
    return stuck_pods


def without_devices(world: World, namespace: str) -> list[FleetFault]:
    """Return the pods with a node that hold Neuron devices which none of their containers sees."""
    pod_faults = []
    for pod, pod_place in world.placed_pods:
        if not pod_place.spec.node_name or pod_place.has_ended or demand.names_all_claims(pod):
            continue
        if namespace in ("", pod_place.metadata.namespace):
            from neuron_dra.ask.world import container_sight  # such pods are rare

            for entry in container_sight.unnamed(pod, world.claims_of(pod), world.snapshot):
                name = f"{pod_place.metadata.namespace or 'default'}/{pod_place.metadata.name}"
                pod_faults.append(FleetFault("pod", name, UNSEEN, f"no container names the claim {entry}"))
        if len(pod_faults) >= MOST:
            break
    return sorted(pod_faults, key=lambda fault: words.natural(fault.name))


def _placed(world: World, namespace: str) -> Iterator[Wire]:
    """Yield pods that have a node and devices, and have not started, or are being deleted."""
    number_yielded = 0
    for pod, pod_place in world.placed_pods:
        is_waiting = pod_place.status.phase in ("", "Pending") or pod["metadata"].get("deletionTimestamp")
        if not pod_place.spec.node_name or not is_waiting or pod_place.has_ended:
            continue
        if namespace in ("", pod["metadata"].get("namespace")) and fleet.wants_devices(pod):
            yield pod
            number_yielded += 1
        if number_yielded == MOST:
            return
