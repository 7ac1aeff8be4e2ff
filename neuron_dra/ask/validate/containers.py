"""What `validate` checks between a pod's claims and its containers (`world.container_sight`). Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.validate.specs import ManifestProblem
from neuron_dra.ask.world import container_sight, demand
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.wire import Wire


def of_pod(
    objects: Snapshot, where: str, pod: Wire, types: Callable[[], Collection[InstanceType]]
) -> Iterator[ManifestProblem]:
    """Yield what is wrong; `types` returns the instance types on which the pod may run."""
    where = str(PodView.of(pod).metadata.annotations.get("owner") or where)  # equal pods of an owner are named once
    claims = demand.claims_of(objects, pod)
    if not any(claim.claim is not None for claim in claims):
        return
    possible = types() if container_sight.names_cores(pod) else ()
    for fault in container_sight.faults(pod, claims, objects, possible):
        yield ManifestProblem(where, fault.code, fault.text, warning=fault.is_warning)
