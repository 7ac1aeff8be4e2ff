"""How to apply a change of a spec that the API server does not let anybody update. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.snapshot import key_of
from neuron_dra.ask.render import words
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire

REPLACE: Final = "kubectl replace --force -f FILE"
_NAMED: Final = 3


def steps(world: World, pod: Wire, replaced: Sequence[Wire]) -> str:
    """Return how a person applies a change of these objects for a pod; empty if kubectl edit or apply does it."""
    changed_kinds = {raw_object["kind"] for raw_object in replaced if _has_other_spec(world, raw_object)}
    if "ResourceClaimTemplate" in changed_kinds:
        return f"kubectl apply cannot change a template: {REPLACE}{_pods_of_template(world, pod, replaced)}"
    if "ResourceClaim" in changed_kinds:
        return f"kubectl apply cannot change a claim: {REPLACE}; its pods get the new claim"
    if "Pod" in changed_kinds:
        return _of_pod(pod, replaced)
    return ""


def _has_other_spec(world: World, raw_object: Wire) -> bool:
    stored = world.snapshot.objects.get(key_of(raw_object))
    return stored is not None and stored.get("spec") != raw_object.get("spec")


def _pods_of_template(world: World, pod: Wire, replaced: Sequence[Wire]) -> str:
    """Return what becomes of the pods that have a claim of a changed template, or wait for one."""
    template_names = {raw_object["metadata"]["name"] for raw_object in replaced}
    waiting = [PodView.of(waiting_pod) for waiting_pod in _with_old_claims(world, pod, template_names)]
    text = ""
    if waiting:
        # A claim that waits keeps the spec that it was created with.
        text = f", then delete {words.listed([waiting_pod.metadata.name for waiting_pod in waiting], _NAMED)}"
        if not all(map(controller, waiting)):
            text += f" and create {'it' if len(waiting) == 1 else 'them'} again"
    return f"{text}; running pods keep their claims"


def _with_old_claims(world: World, pod: Wire, template_names: set[str]) -> Iterator[Wire]:
    """Yield the pods without a node that have a claim of one of these templates."""
    namespace = PodView.of(pod).metadata.namespace
    for candidate in world.snapshot.all("Pod"):
        candidate_view = PodView.of(candidate)
        if candidate_view.metadata.namespace != namespace or candidate_view.spec.node_name:
            continue
        for pod_claim in world.claims_of(candidate):
            if pod_claim.exists and pod_claim.template_name in template_names:
                yield candidate
                break


def _of_pod(pod: Wire, replaced: Sequence[Wire]) -> str:
    """Return where a person writes a change of a pod. Of a pod that exists, only tolerations can be added."""
    owner = controller(PodView.of(pod))
    if owner:
        return f"write it into the pod template of {owner}"
    [changed] = [raw_object for raw_object in replaced if raw_object["kind"] == "Pod"]
    if {**changed["spec"], "tolerations": None} == {**pod["spec"], "tolerations": None}:
        return ""
    return f"kubectl apply cannot change this in a pod: {REPLACE}"


def controller(pod: PodView) -> str:
    """Return kind and name of the object that creates a pod again; empty for a bare pod."""
    for owner in pod.metadata.owner_references:
        if owner.controller is True:
            return f"{owner.kind} {owner.name}"
    return ""
