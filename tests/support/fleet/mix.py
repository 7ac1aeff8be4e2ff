"""What a seed is made of: the steps that always may happen, and those of the actors that take part."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.support.fleet.schedule import Schedule

Wire = dict[str, Any]
Step = Callable[["Schedule"], Awaitable[str | None]]
Change = Callable[["Schedule"], Awaitable[None]]

LOUDNESS: Final = (0, 0, 1, 1, 2, 4)
"""By how much a seed multiplies the weights of an actor; 0 leaves it out."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Somebody, or something, that a seed may have: what it does, and how it ends when all is healed.

    `issue` says what it looks for. `embedded`: it needs an API server in this process. Laws that hold only where it
    takes part ask for its name.
    """

    about: str
    steps: Mapping[Step, int] = field(default_factory=dict)
    begin: Change | None = None
    heal: Change | None = None
    embedded: bool = False
    issue: str = ""


def loudness(seed: int, name: str) -> int:
    """Return how loud an actor is in a seed; each has a number of its own, whoever else there is."""
    return random.Random(f"{seed} {name}").choice(LOUDNESS)


@dataclass(frozen=True, slots=True)
class Mix:
    """The steps of a run with their weights, and what actors do at its beginning and when all is healed."""

    steps: list[Step]
    weights: list[int]
    begins: list[Change]
    heals: list[Change]

    @classmethod
    def of(cls, seed: int, actors: Mapping[str, Actor], always: Mapping[Step, int]) -> Mix:
        """Return the mix of a seed in which these actors take part."""
        weighted = dict(always)
        mine = sorted(actors.items())
        for name, actor in mine:
            weighted |= {step: weight * max(1, loudness(seed, name)) for step, weight in actor.steps.items()}
        return cls(
            list(weighted),
            list(weighted.values()),
            [actor.begin for _, actor in mine if actor.begin is not None],
            [actor.heal for _, actor in mine if actor.heal is not None],
        )
