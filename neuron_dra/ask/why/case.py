"""One waiting pod, with what its situation depends on. Pure."""

from __future__ import annotations

from functools import cached_property

from neuron_dra.ask.read.claim_views import ClaimView
from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.render.findings import ProposedChange
from neuron_dra.ask.why import creating, trials
from neuron_dra.ask.why.creating import ClaimProblem
from neuron_dra.ask.world import events
from neuron_dra.ask.world.blockers import Blocked, Blockers
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import nodes
from neuron_dra.simulate.scheduler import Placement


class Case:
    """One waiting pod. Each property is computed once, and only if a condition needs it."""

    def __init__(self, world: World, pod: Wire) -> None:
        self.world = world
        self.pod = pod
        self.seen = PodView.of(pod)
        self.namespace = self.seen.metadata.namespace

    @cached_property
    def problem(self) -> ClaimProblem | None:
        """What keeps a claim of the pod from existing, if anything does."""
        return creating.problem(self.world, self.pod)

    @cached_property
    def placed(self) -> Placement | None:
        """Where a simulation places the pod; None if nowhere."""
        outcome = self.world.place(self.pod)
        if isinstance(outcome, Placement):
            self.message, self.error = "", False
            return outcome
        self.message, self.error = outcome.message, outcome.error
        return None

    @cached_property
    def said(self) -> str:
        """The scheduler's last message about the pod, of a pod that would be placed."""
        return events.scheduler_words(self.world, self.pod)

    @property
    def foreign_scheduler(self) -> str:
        """The scheduler that the pod names, if it is not Kubernetes' own: what it decides is not simulated here."""
        name = self.seen.spec.scheduler_name
        return "" if name in ("", trials.DEFAULT_SCHEDULER) else name

    @cached_property
    def claims(self) -> list[Wire]:
        """The pod's claims, existing or as they would be created."""
        found = []
        for each in self.world.claims_of(self.pod):
            if each.claim is not None:
                found.append(each.claim)
        return found

    @cached_property
    def blocked(self) -> list[Blocked]:
        """The nodes on which the claims that are not allocated yet could fit, and what is in the way there."""
        waiting = [claim for claim in self.claims if not ClaimView.of(claim).is_allocated]
        return Blockers(self.world, self.pod, waiting).all()

    @cached_property
    def reachable(self) -> list[Blocked]:
        """Those of these nodes that can use the claims that are allocated."""
        left = self.blocked
        for claim in self.claims:
            left = self.reached(left, claim)
        return left

    def reached(self, blocked: list[Blocked], claim: Wire) -> list[Blocked]:
        """Return those of the nodes that can use a claim: all, unless it is allocated for some nodes only."""
        selector = node_selector(claim)
        if selector is None:
            return blocked
        found = []
        for each in blocked:
            if nodes.matches(selector, self.world.decoded(each.node)):
                found.append(each)
        return found

    def attempt(self, text: str, *replaced: Wire) -> ProposedChange | None:
        """Return a change of these objects, if the pod can run after it."""
        return trials.attempt(self.world, self.pod, text, replaced)


def node_selector(claim: Wire) -> Wire | None:
    """Return the nodes for which a claim is allocated, as a NodeSelector; None if it is not, or for all nodes."""
    allocation = ClaimView.of(claim).status.allocation
    selector: Wire | None = allocation.node_selector if allocation is not None else None
    return selector
