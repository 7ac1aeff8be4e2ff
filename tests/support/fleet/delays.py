"""The actor `delays`: requests are slow, each object with its own delay, and some are carried out unanswered."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.support.fleet.mix import Actor

if TYPE_CHECKING:
    from tests.support.fleet.schedule import Schedule

LONGEST_S: Final = 12.0
"""Longer than a client waits, so that the server carries out some requests after it gave up."""


@dataclass(frozen=True, slots=True)
class Delays:
    """How slow the API server is, by the path of the request: most objects are quick."""

    seed: str
    longest_s: float

    def of(self, path: str) -> tuple[float, float]:
        """Return for how many seconds a request waits before it is carried out, and its answer after that."""
        dice = random.Random(f"{self.seed} {path}")
        delay_s = dice.choice((0.0, 0.0, dice.uniform(0.0, self.longest_s)))
        before_s = delay_s * dice.choice((0.0, 0.5, 1.0))
        return before_s, delay_s - before_s


async def delay(schedule: Schedule) -> str | None:
    """Requests of the controllers are slow for some objects."""
    lines = [replica.line for replica in schedule.fleet.replicas if replica.line is not None]
    if not lines:
        return None
    delays = Delays(str(schedule.rng.random()), schedule.rng.choice((1.0, LONGEST_S)))
    for line in lines:
        line.delays = delays
        asyncio.get_running_loop().call_later(schedule.rng.choice((20.0, 120.0)), line.hurry)
    return f"requests of the controllers take up to {delays.longest_s:g} s for some objects"


async def hurry(schedule: Schedule) -> None:
    """All requests are quick."""
    for line in schedule.fleet.lines:
        line.hurry()


ACTORS: Final[dict[str, Actor]] = {
    "delays": Actor(
        "requests of the controllers take up to 12 s, each object with its own delay, and some are carried out after "
        "the client gave up",
        {delay: 8},
        heal=hurry,
        issue="4.05",
    ),
}
