"""The optional actors of a run. The seed chooses them, unless a run names them."""

from __future__ import annotations

from typing import Final

from tests.support.fleet import (
    addresses,
    agents,
    blocks,
    delays,
    doubts,
    group_claims,
    jobs,
    mishaps,
    poison,
    qualifications,
    queues,
    servers,
    spares,
    tenants,
)
from tests.support.fleet.mix import Actor, loudness

ACTORS: Final[dict[str, Actor]] = {
    **tenants.ACTORS,
    **mishaps.ACTORS,
    **servers.ACTORS,
    **poison.ACTORS,
    **jobs.ACTORS,
    **queues.ACTORS,
    **addresses.ACTORS,
    **agents.ACTORS,
    **blocks.ACTORS,
    **spares.ACTORS,
    **group_claims.ACTORS,
    **qualifications.ACTORS,
    **doubts.ACTORS,
    **delays.ACTORS,
}


def chosen(seed: int, *, embedded: bool = True) -> frozenset[str]:
    """Return the actors of a seed: those with a weight above zero."""
    return frozenset(
        name for name, actor in ACTORS.items() if loudness(seed, name) and (embedded or not actor.embedded)
    )


def table() -> list[str]:
    """Return the lines of the actors' table in docs/virtual-fleet.md."""
    rows = [f"| `{name}` | {actor.about} | {actor.issue or '-'} |" for name, actor in ACTORS.items()]
    return [
        "| actor | what it does, or which law it brings | looks for |",
        "| --- | --- | --- |",
        *rows,
    ]
