"""What is in a pod's way on each node, found by leaving one obstacle after the other out of the simulation. Pure.

On an ideal node nothing is held, tainted or reserved. A node on which the claims do not even fit then is impossible;
elsewhere each obstacle that makes the simulation fail alone is in the way.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

from neuron_dra.ask.world import drivers, relevance, selection, spec_edits
from neuron_dra.ask.world.alike import Likeness
from neuron_dra.ask.world.world import World
from neuron_dra.core import names
from neuron_dra.core.wire import Obj, Wire
from neuron_dra.simulate import allocator, model, nodes
from neuron_dra.simulate.failures import Failure
from neuron_dra.simulate.model import ClaimDemand, DeviceId

NODE: Final = "node"
"""The pod may not run on the node: cordoned, tainted, or excluded by the pod's selector."""
TAINT: Final = "taint"
RESERVED: Final = "reserved"
ROOM: Final = "room"
"""The node lacks CPU, memory or another resource."""
HELD: Final = "held"
ORDER: Final = (NODE, TAINT, RESERVED, ROOM, HELD)
"""Obstacles that are out of the ordinary come first."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """A node on which the claims would fit, and the obstacles, in the order of ORDER."""

    node: Wire
    obstacles: tuple[str, ...]
    drivers: frozenset[str] = frozenset()
    """The drivers of the devices that the claims request; empty if it is unknown."""

    @property
    def name(self) -> str:
        """The node's name."""
        return str(self.node["metadata"]["name"])


class Blockers:
    """Finds the obstacles of one pod, with the claims that are not allocated yet."""

    def __init__(self, world: World, pod: Wire, claims: Sequence[Wire]) -> None:
        self._world = world
        self._pod = pod
        self._own = [model.claim(claim) for claim in claims]
        self._tolerant = [model.claim(_tolerating(claim)) for claim in claims]
        self._fits_by_question: dict[object, bool] = {}
        self._read = relevance.names(self._own, world.classes)
        self._alike: dict[object, frozenset[str] | None] = {}
        self._drivers = _drivers(world, self._own)

    def all(self) -> list[Blocked]:
        """Return the nodes on which the claims could fit."""
        candidates = (self._of(node) for node in self._world.nodes.values())
        return [blocked for blocked in candidates if blocked is not None]

    def on(self, name: str) -> Blocked | None:
        """Return a node, by its name; None if the claims could not fit on it."""
        return self._of(self._world.nodes[name])

    def _of(self, wire: Wire) -> Blocked | None:
        node, world = self._world.decoded(wire), self._world
        of_devices = self._of_alike(node)
        if of_devices is None:
            return None
        obstacles = set(of_devices)
        if nodes.objection(self._pod, node):
            obstacles.add(NODE)
        if world.room.lacking(self._pod, wire):
            obstacles.add(ROOM)
        return Blocked(wire, tuple(obstacle for obstacle in ORDER if obstacle in obstacles), self._drivers)

    def _of_alike(self, node: model.NodeTraits) -> frozenset[str] | None:
        """Return the obstacles among the devices of a node, found once for nodes that the claims cannot tell apart."""
        if node.name in self._world.tags:
            key = None
        else:
            key = self._world.alike.key(node, self._read)
        if key is None:
            return self._of_devices(node)
        if key not in self._alike:
            self._alike[key] = self._of_devices(node)
        return self._alike[key]

    def _of_devices(self, node: model.NodeTraits) -> frozenset[str] | None:
        """Return the obstacles among the devices of a node; None if the claims do not even fit on an ideal one."""
        world = self._world
        likeness = world.likeness
        nothing: Set[DeviceId] = frozenset()
        obstacles: set[str] = set()
        if not self._fits(likeness, node, self._tolerant, nothing):
            if node.name not in world.tags or not self._fits(world.untagged_likeness, node, self._tolerant, nothing):
                return None
            likeness = world.untagged_likeness
            obstacles.add(RESERVED)
        if not self._fits(likeness, node, self._tolerant, world.in_use):
            obstacles.add(HELD)
        if not self._fits(likeness, node, self._own, nothing):
            obstacles.add(TAINT)
        if not obstacles & {HELD, TAINT} and not self._fits(likeness, node, self._own, world.in_use):
            obstacles |= {HELD, TAINT}  # neither alone, but both together
        return frozenset(obstacles)

    def _fits(
        self, likeness: Likeness, node: model.NodeTraits, claims: Sequence[ClaimDemand], used: Set[DeviceId]
    ) -> bool:
        key = likeness.key(node, used, self._read)
        question = (id(likeness), key, claims is self._own)
        if key is None or question not in self._fits_by_question:
            inventory = likeness.inventory
            outcome = allocator.allocate(node, claims, inventory, self._world.classes, used, self._world.memo)
            self._fits_by_question[question] = not isinstance(outcome, Failure)
        return self._fits_by_question[question]


def _drivers(world: World, claims: Sequence[ClaimDemand]) -> frozenset[str]:
    """Return the drivers of the devices that claims request."""
    requested_drivers = set()
    for ask in selection.asked(claims):
        device_class = world.classes.get(ask.alternative.class_name)
        of_class = device_class.selectors if device_class is not None else ()
        requested_drivers.add(drivers.foreign([*of_class, *ask.alternative.selectors]) or names.DRIVER)
    return frozenset(requested_drivers)


def _tolerating(claim: Wire) -> Wire:
    """Return the claim with requests that tolerate every taint."""
    tolerating_claim: Obj = copy.deepcopy({"metadata": claim["metadata"], "spec": claim["spec"]})
    for _, alternative in spec_edits.alternatives(tolerating_claim["spec"]):
        alternative["tolerations"] = [{"operator": "Exists"}]
    return tolerating_claim
