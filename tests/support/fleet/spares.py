"""A pool of spares: its setting, who asks for whole groups, and which laws it brings."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from neuron_dra.core.ultraserver import NAMESPACE, Phase, object_name
from neuron_dra.core.wire import Wire
from tests.support.fleet import block_laws, qualify_laws
from tests.support.fleet.groups import free_slots
from tests.support.fleet.known import Known
from tests.support.fleet.mix import Actor
from tests.support.fleet.nodes import MODES, FleetNode
from tests.support.fleet.view import Held, View, condition, is_test

if TYPE_CHECKING:
    from tests.support.fleet.schedule import Schedule

KEPT: Final = 1
SIZE: Final = 4


def flags(instance_type: str) -> tuple[str, ...]:
    """Return the controller's flags that keep spares."""
    return (f"--spares={instance_type}={KEPT}",)


def shown(view: View) -> set[str]:
    """Return the names of the NeuronUltraServers that are shown as spares."""
    every = view.all("neuronultraservers")
    return {str(each["metadata"]["name"]) for each in every if condition(each, "Spare").get("status") == "True"}


def takes_spares(workload: Wire, live: list[Held]) -> bool:
    """True if RestartAll has released all groups of a workload, which has to get them again."""
    return not live and bool((workload.get("status") or {}).get("restartedAt"))


def is_used(view: View, ultraserver: str) -> bool:
    """True if a claim has a node of an UltraServer: its group is no spare, and new workloads get the other nodes."""
    found = view.find("neuronultraservers", ultraserver, NAMESPACE)
    topology = found["spec"]["topology"] if found is not None else ()
    return any(view.uses().get(entry["nodeName"]) for entry in topology)


def is_unqualified(view: View, ultraserver: str) -> bool:
    """True if tests failed twice on nodes of an UltraServer."""
    item = view.find("neuronultraservers", ultraserver, NAMESPACE)
    return item is not None and any(each.unqualified for each in qualify_laws.found_of(view, item))


def is_lost(view: View, ultraserver: str, nodes: Mapping[str, FleetNode], now: datetime.datetime) -> bool:
    """True if an UltraServer is no spare any more, whatever its condition still says: a node of it is not free or well.

    No controller may have led since.
    """
    mine = [node for node in nodes.values() if object_name(node.block) == ultraserver]
    whole = all(
        node.healthy and node.ready and node.schedulable and node.modes == MODES and node.block_end is None
        for node in mine
    )
    reported = any(node.was_reported(now) or node.was_wiped(now) for node in mine)
    bad = not qualify_laws.unqualified(view).isdisjoint(node.name for node in mine)
    return not whole or reported or bad


def must_leave(view: View, new: Held, before: set[str], nodes: Mapping[str, FleetNode], now: datetime.datetime) -> bool:
    """True if a new group is on a spare, and no other group is kept in its place.

    - `before`: the UltraServers that were shown as spares until now.

    A group that only leaves may count as free already: both may be written by one plan.
    """
    if new.ultraserver not in before or is_used(view, new.ultraserver) or is_lost(view, new.ultraserver, nodes, now):
        return False
    bound = {each.ultraserver for each in view.held() if each.allocation.phase is Phase.BOUND and not is_test(each)}
    others = {str(each["metadata"]["name"]) for each in view.all("neuronultraservers")} - bound - {new.ultraserver}
    return len(others) < KEPT


def problems(
    view: View, nodes: Mapping[str, FleetNode], usable: Mapping[str, FleetNode], known: Known
) -> Iterator[str]:
    """Yield a sentence for each law of the pool that does not hold yet. `usable` are nodes that may be reserved."""
    found = shown(view) - known.unwritable
    if len(found) > KEPT:
        yield f"{len(found)} groups are shown as spares, of {KEPT}"
    yield from block_laws.spares_that_end(view, nodes, known, found)
    failed = sorted(name for name in found if is_unqualified(view, name))
    if failed:
        yield f"{', '.join(failed)} is shown as a spare, and tests failed twice on it"
    taken = {each.ultraserver for each in view.held() if not is_test(each)} & found
    if taken:
        yield f"{', '.join(sorted(taken))} is shown as a spare, and is reserved"
    bad = qualify_laws.unqualified(view)
    writable = {
        name: node
        for name, node in usable.items()
        if object_name(node.block) not in known.unwritable and name not in bad
    }
    kinds = {node.instance_type for node in usable.values()}
    free = sum(free_slots(view, writable, kind, SIZE) for kind in kinds)
    if len(found) < min(KEPT, free) and not known.unwritable:
        yield f"{len(found)} groups are kept as spares, and {free} are free"


async def submit_whole(schedule: Schedule) -> str | None:
    """A user asks for a whole UltraServer, and says what becomes of faults."""
    fleet, rng = schedule.fleet, schedule.rng
    schedule.made += 1
    name, strategy = f"whole-{schedule.made}", rng.choice(("MigrateAffected", "MigrateAffected", "RestartAll"))
    made = await fleet.submit(name, SIZE, 1, strategy)
    if made is None:
        return None
    fleet.start_job(made)
    return f"workload {name} of {SIZE} nodes, {strategy}"


ACTORS: Final[dict[str, Actor]] = {
    "spares": Actor(
        "one group is kept for groups that must move; whole UltraServers are requested",
        {submit_whole: 8},
        issue="36",
    ),
}
