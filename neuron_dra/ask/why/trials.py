"""Tries changes of a snapshot by simulating them: only what a simulation confirms is proposed. Pure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from neuron_dra.ask.read.claim_views import AllocationView, AlternativeView
from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.snapshot import Key, key_of
from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import ProposedChange
from neuron_dra.ask.why import creating
from neuron_dra.ask.world import absent, events, gangs, immutable, placing, spec_edits
from neuron_dra.ask.world.demand import FROM_LIMITS, PodClaim
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj, Wire
from neuron_dra.simulate.scheduler import Placement

DEFAULT_SCHEDULER: Final = "default-scheduler"
Edit = Callable[[Obj], None]
"""Changes the spec of a claim in place."""


def attempt(
    world: World, pod: Wire, text: str, replaced: Iterable[Wire] = (), removed: Iterable[Key] = ()
) -> ProposedChange | None:
    """Return the change if the pod can run after it, else None.

    That means: a scheduler handles it, its claims can be created, a node fits, driver and kubelet accept it there, and
    as many pods of its gang fit as run at once.
    """
    if not world.proposes:
        return None
    new_objects, removed_keys = tuple(replaced), tuple(removed)
    after = world.after(new_objects, removed_keys)
    changed_pod = after.snapshot.get(*_place(key_of(pod)))
    if changed_pod is None or not scheduled(after, changed_pod) or creating.problem(after, changed_pod) is not None:
        return None
    outcome = after.place(changed_pod)
    if (
        not isinstance(outcome, Placement)
        or refused(after, changed_pod, outcome)
        or absent.rejected_name(after, changed_pod, outcome.node)
    ):
        return None
    if gangs.shortage(after, changed_pod) is not None:
        return None
    then = f"then {pod['metadata']['name']} {gets(after, outcome)}"
    return ProposedChange(text, then, new_objects, removed_keys, immutable.steps(world, pod, new_objects))


def is_created_again(pod: Wire) -> bool:
    """Return whether a controller creates another pod in place of this one, which may take the same devices again."""
    return bool(immutable.controller(PodView.of(pod)))


def scheduled(world: World, pod: Wire) -> bool:
    """Return True if a scheduler handles the pod: the default one, or another that has reported about it."""
    spec = PodView.of(pod).spec
    if spec.scheduling_gates:
        return False
    name = spec.scheduler_name or DEFAULT_SCHEDULER
    return name == DEFAULT_SCHEDULER or bool(events.scheduler_words(world, pod))


def _place(key: Key) -> tuple[str, str, str]:
    kind, namespace, name = key
    return kind, name, namespace


def refused(world: World, pod: Wire, outcome: Placement) -> str:
    """Return why the driver would reject one of the pod's claims, also one that others share, or an empty string."""
    from neuron_dra.ask.world import refusals

    types = refusals.instance_types(world.slices_of(outcome.node))
    before = [claim["status"]["allocation"] for claim in allocated(world, pod)]
    allocations = [*outcome.allocations.values(), *before]
    texts = (refusals.of_allocation(allocation, types) for allocation in allocations)
    return next((text for text in texts if text), "")


def allocated(world: World, pod: Wire) -> list[Wire]:
    """Return the claims of a pod that are allocated before it is placed, such as those that it shares."""
    allocated_claims = (pod_claim for pod_claim in world.claims_of(pod) if pod_claim.seen.is_allocated)
    return [pod_claim.claim for pod_claim in allocated_claims if pod_claim.claim is not None]


def gets(world: World, outcome: Placement) -> str:
    """Return what a pod gets, as in "gets devices 0-3 of node a"."""
    devices: list[str] = []
    for allocation in outcome.allocations.values():
        devices += [result.device for result in AllocationView.of(allocation).devices.results]
    if not devices:
        return f"runs on node {outcome.node}"
    return f"gets {words.devices(devices, world.type_of(outcome.node))} of node {outcome.node}"


def with_spec(claim: PodClaim, edit: Edit) -> list[Wire]:
    """Return template and claim of a pod after an edit of the claim's spec: those of the two that exist."""
    edited_objects: list[Wire] = []
    if claim.template is not None:
        template = copy.deepcopy(dict(claim.template))
        edit(template["spec"].setdefault("spec", {}))
        edited_objects.append(template)
    if claim.exists and claim.claim is not None:
        changed = copy.deepcopy(dict(claim.claim))
        edit(changed["spec"])
        edited_objects.append(changed)
    return edited_objects


def in_request(request: str, change: Callable[[Obj], Any]) -> Edit:
    """Return an edit of one request."""

    def edit(spec: Obj) -> None:
        for name, alternative in spec_edits.alternatives(spec):
            if name == request:
                change(alternative)

    return edit


def with_class(claim: PodClaim, request: str, name: str) -> list[Wire]:
    """Return template and claim with another DeviceClass in a request."""
    return with_spec(claim, in_request(request, lambda alternative: alternative.update(deviceClassName=name)))


def with_expression(claim: PodClaim, request: str, old: str, new: str) -> list[Wire]:
    """Return template and claim with another CEL expression in a request."""

    def edit(alternative: Obj) -> None:
        for index, selector in enumerate(AlternativeView.of(alternative).selectors):
            if selector.cel.expression == old:
                alternative["selectors"][index]["cel"]["expression"] = new

    return with_spec(claim, in_request(request, edit))


def with_constraint(claim: PodClaim, kind: str, old: str, new: str) -> list[Wire]:
    """Return template and claim with another attribute in a constraint."""

    def edit(spec: Obj) -> None:
        for constraint in spec_edits.constraints(spec):
            if constraint.get(kind) == old:
                constraint[kind] = new

    return with_spec(claim, edit)


def place_of(claim: PodClaim) -> str:
    """Return where a claim's spec is written, for "in ...": the template, or the claim."""
    if claim.template is not None:
        return f"in ResourceClaimTemplate {claim.template['metadata']['name']}"
    if claim.claim is not None:
        name = claim.claim["metadata"]["name"]
    else:
        name = claim.claim_name
    if claim.entry != FROM_LIMITS:
        return f"in ResourceClaim {name}"
    return "in the pod's limits"


def moves_to(world: World, pod: Wire, ended_pod: Wire, change: ProposedChange) -> str:
    """Return the node on which a pod that ends could run again once `pod` runs; empty if there is none.

    `change` has ended it, and let `pod` run.
    """
    after = world.after(change.replaced, change.removed)
    waiting_pod = after.snapshot.get(*_place(key_of(pod)))
    outcome = after.place(waiting_pod) if waiting_pod is not None else None
    if waiting_pod is None or not isinstance(outcome, Placement):
        return ""
    placed = placing.placed_objects(after, waiting_pod, outcome)
    recreated_pod = unplaced(ended_pod)
    with_recreated_pod = after.after([*placed, recreated_pod])
    recreated_outcome = with_recreated_pod.place(recreated_pod)
    if isinstance(recreated_outcome, Placement):
        return recreated_outcome.node
    return ""


def released(world: World, pod: Wire) -> tuple[list[Wire], list[Key]]:
    """Return what is left of a pod's claims after it has ended, and what is gone with it."""
    released_claims: list[Wire] = []
    removed: list[Key] = [key_of(pod)]
    for pod_claim in world.claims_of(pod):
        alone = len(pod_claim.seen.status.reserved_for) <= 1
        if pod_claim.exists and pod_claim.claim is not None and alone:
            if pod_claim.template_name:
                removed.append(key_of(pod_claim.claim))
            else:
                released_claims.append({**pod_claim.claim, "status": {}})
    return released_claims, removed


def unplaced(pod: Wire) -> Wire:
    """Return a pod as it would be created again."""
    return {**pod, "spec": {key: value for key, value in pod["spec"].items() if key != "nodeName"}, "status": {}}


def named(change: ProposedChange, text: str) -> ProposedChange:
    """Return the change with another text."""
    return replace(change, text=text)


def fewer(world: World, pod: Wire) -> Iterator[ProposedChange | None]:
    """Try smaller counts of one request, the largest first."""
    for claim in world.claims_of(pod):
        if claim.claim is None or claim.entry == FROM_LIMITS:
            continue
        for request in claim.seen.requests:
            for name, alternative in request.named_alternatives:
                if alternative.allocation_mode in ("", "ExactCount") and alternative.number > 1:
                    yield _largest(world, pod, claim, name, min(alternative.number - 1, creating.MOST_OF_A_CLAIM))


def _largest(world: World, pod: Wire, claim: PodClaim, request: str, most: int) -> ProposedChange | None:
    """Return the change to the largest count that fits, at most `most`: if a count fits, all smaller ones do."""
    largest_change, least = None, 1
    while least <= most:
        middle = (least + most + 1) // 2 if largest_change or least == most else most
        change = _with_count(world, pod, claim, request, middle)
        if change is None:
            most = middle - 1
        else:
            largest_change, least = change, middle + 1
    return largest_change


def _with_count(world: World, pod: Wire, claim: PodClaim, request: str, count: int) -> ProposedChange | None:
    edit = in_request(request, lambda alternative: alternative.update(count=count))
    text = f"{place_of(claim)}, request {request}: count: {count}"
    return attempt(world, pod, text, with_spec(claim, edit))
