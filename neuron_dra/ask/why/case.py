"""A pod that waits for a node, with what its situation depends on. Pure."""

from __future__ import annotations

from functools import cached_property

from neuron_dra.ask.render.findings import Change
from neuron_dra.ask.why import creating, trials
from neuron_dra.ask.why.blockers import Blocked, Blockers
from neuron_dra.ask.why.creating import ClaimProblem
from neuron_dra.ask.world import events
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import nodes
from neuron_dra.simulate.scheduler import Placement


class Case:
    """One waiting pod, with what its situation depends on, each computed once and only if a condition needs it."""

    def __init__(self, world: World, pod: Wire) -> None:
        self.world = world
        self.pod = pod
        self.namespace: str = pod["metadata"].get("namespace") or ""

    @cached_property
    def problem(self) -> ClaimProblem | None:
        """What keeps a claim of the pod from existing, if anything does."""
        return creating.problem(self.world, self.pod)

    @cached_property
    def placed(self) -> Placement | None:
        """Where a simulation places the pod; None if nowhere."""
        outcome = self.world.place(self.pod)
        self.message = "" if isinstance(outcome, Placement) else outcome.message
        self.error = not isinstance(outcome, Placement) and outcome.error
        return outcome if isinstance(outcome, Placement) else None

    @cached_property
    def said(self) -> str:
        """The scheduler's last message about the pod, of a pod that would be placed."""
        return events.scheduler_words(self.world, self.pod)

    @cached_property
    def claims(self) -> list[Wire]:
        """The pod's claims, existing or as they would be created."""
        return [each.claim for each in self.world.claims_of(self.pod) if each.claim is not None]

    @cached_property
    def blocked(self) -> list[Blocked]:
        """The nodes on which the claims that are not allocated yet could fit, and what is in the way there."""
        waiting = [claim for claim in self.claims if not allocation(claim)]
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
        selector = allocation(claim).get("nodeSelector")
        if selector is None:
            return blocked
        return [each for each in blocked if nodes.matches(selector, self.world.decoded(each.node))]

    def attempt(self, text: str, *replaced: Wire) -> Change | None:
        """Return a change of these objects, if the pod can run after it."""
        return trials.attempt(self.world, self.pod, text, replaced)


def allocation(claim: Wire) -> Wire:
    """Return the allocation of a claim; empty if it has none."""
    return (claim.get("status") or {}).get("allocation") or {}
