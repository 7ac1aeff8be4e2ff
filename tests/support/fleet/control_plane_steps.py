"""Steps of every run that concern the controllers and the API server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.support.fleet.network import WATCH_LAG_S, Line, Storm
from tests.support.fleet.user_steps import create, delete, resize

if TYPE_CHECKING:
    from tests.support.fleet.schedule import Schedule


async def kill_controller_at_a_write(schedule: Schedule) -> str | None:
    """The leader dies at one of its next writes, before or after the write takes effect."""
    leaders = [replica for replica in schedule.fleet.replicas if replica.leads]
    if not leaders:
        return None
    nth, after = schedule.rng.randint(1, 6), schedule.rng.random() < 0.5
    leaders[0].arm(nth, after, schedule.rng.choice((0.5, 5.0, 60.0)))
    return f"{leaders[0].name} is to die {'after' if after else 'before'} write {nth} from now"


async def partition_leader(schedule: Schedule) -> str | None:
    """The leader is disconnected, or suspended before a write: it must stop before the other replica starts."""
    leaders = [replica for replica in schedule.fleet.replicas if replica.leads]
    if not leaders or leaders[0].line is None:
        return None
    line, seconds = leaders[0].line, schedule.rng.choice((3.0, 20.0, 40.0))
    if schedule.rng.random() < 0.6:
        line.stall_s = seconds
        begun = await schedule.rng.choice((create, create, delete, resize))(schedule)
        return f"{leaders[0].name} is to stop for {seconds:g} s at its next write; {begun}"
    line.cut()
    asyncio.get_running_loop().call_later(seconds, line.reconnect)
    return f"{leaders[0].name} is cut off for {seconds:g} s"


async def server_away(schedule: Schedule) -> str | None:
    """The API server is unavailable to all programs."""
    seconds = schedule.rng.choice((1.0, 15.0, 60.0))
    cut = [line for line in schedule.fleet.lines if line.up and not line.dead]
    for line in cut:
        line.cut()
    loop = asyncio.get_running_loop()
    for line in cut:
        loop.call_later(seconds, line.reconnect)
    return f"the API server is unavailable for {seconds:g} s"


async def expire_watches(schedule: Schedule) -> str | None:
    """Watches end with a 410."""
    plural = schedule.rng.choice(("", "neuronultraservers", "resourceslices", "resourceclaims", "nodes"))
    number = sum(line.expire_watches(plural) for line in schedule.fleet.lines)
    return f"{number} watches of {plural or 'everything'} are too old"


async def lag(schedule: Schedule) -> str | None:
    """Watches of one program are late, each kind with its own delay."""
    line = schedule.rng.choice([line for line in schedule.fleet.lines if not line.dead])
    line.lag_s = (0.0, schedule.rng.choice((0.5, 5.0)))
    asyncio.get_running_loop().call_later(60.0, _reset_lag, line)
    return f"watches of {line.name} lag up to {line.lag_s[1]:g} s"


async def storm(schedule: Schedule) -> str | None:
    """Requests of the controllers or of a plugin fail for a while."""
    status, times = schedule.rng.choice((409, 429, 500, 503)), schedule.rng.choice((1, 3, 10))
    writes_only = status == 409 or schedule.rng.random() < 0.5
    chosen = [replica.line for replica in schedule.fleet.replicas if replica.line is not None]
    node = schedule.node(lambda n: n.line is not None)
    if node is not None and node.line is not None and schedule.rng.random() < 0.5:
        chosen = [node.line]
    for line in chosen:
        line.storm = Storm(status, times, writes_only)
    return f"the next {times} requests of {', '.join(line.name for line in chosen)} get a {status}"


def _reset_lag(line: Line) -> None:
    line.lag_s = WATCH_LAG_S
