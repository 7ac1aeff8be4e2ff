"""The steps of a seed: those of every run, and those of its actors."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.support.fleet.schedule import Schedule

Step = Callable[["Schedule"], Awaitable[str | None]]
Change = Callable[["Schedule"], Awaitable[None]]

LOUDNESS: Final = (0, 0, 1, 1, 2, 4)
"""The factors with which a seed multiplies the weights of an actor; 0 excludes it."""


@dataclass(frozen=True, slots=True)
class Actor:
    """An optional actor of a seed: its steps, and how it is healed at the end.

    `issue` names the issue that it tests. `embedded`: it needs an API server in this process. Invariants that apply
    only if it takes part use its name.
    """

    about: str
    steps: Mapping[Step, int] = field(default_factory=dict)
    begin: Change | None = None
    heal: Change | None = None
    embedded: bool = False
    issue: str = ""


def loudness(seed: int, name: str) -> int:
    """Return an actor's factor in a seed; it does not depend on the other actors."""
    return random.Random(f"{seed} {name}").choice(LOUDNESS)


@dataclass(frozen=True, slots=True)
class Mix:
    """The steps of a run with their weights, and the actors' actions at its beginning and end."""

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
