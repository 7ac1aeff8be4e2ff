"""The actor `qualifications`: free groups are tested, by programs that hang, lie, or run on bad nodes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from neuron_dra.core.qualification import NAMESPACE
from neuron_dra.core.wire import Obj, Wire
from neuron_dra.kube.requests import NEURON_QUALIFICATIONS, NEURON_WORKLOADS, PODS
from tests.support.fleet import spares
from tests.support.fleet.mix import Actor
from tests.support.fleet.nodes import MODES
from tests.support.fleet.programs import FLOOR, KINDS, LASTS_S, ProgramsOfTests
from tests.support.fleet.view import place, state

if TYPE_CHECKING:
    from tests.support.fleet.fleet import Fleet
    from tests.support.fleet.schedule import Schedule

NAME: Final = "nightly"
YIELD_S: Final = 10.0
SEEN_S: Final = 1.0  # until the plan has decided about a new workload
SPOILT_S: Final = (20.0, 100.0, 400.0)


async def ask(schedule: Schedule) -> str | None:
    """An administrator wants free groups tested."""
    fleet, rng = schedule.fleet, schedule.rng
    if fleet.view.find("neuronultraserverqualifications", NAME) is not None:
        return None
    size, most, period = rng.choice((1, 2, 4)), rng.choice((1, 2, 4)), rng.choice(("10m", "1h"))
    await begin(schedule, topologySize=size, maxGroups=most, period=period)
    return f"groups of {size} are tested every {period}, {most} at once"


async def begin(schedule: Schedule, **spec: Any) -> None:
    """Create a qualification."""
    body: Obj = {
        "apiVersion": "neuron.aws.com/v1beta1",
        "kind": "NeuronUltraServerQualification",
        "metadata": {"name": NAME},
        "spec": {
            "instanceTypes": [schedule.fleet.instance_type],
            "image": "all-reduce",
            "timeout": "60s",
            "thresholds": [{"name": "bandwidth", "atLeast": FLOOR}],
            **spec,
        },
    }
    await schedule.fleet.ensure(NEURON_QUALIFICATIONS, "", body)


async def change(schedule: Schedule) -> str | None:
    """An administrator begins anew, pauses, or ends the tests."""
    fleet = schedule.fleet
    found = fleet.view.find("neuronultraserverqualifications", NAME)
    if found is None:
        return await ask(schedule)
    what = schedule.rng.choice(("attempt", "suspend", "delete"))
    if what == "delete":
        await fleet.remove(NEURON_QUALIFICATIONS, "", NAME)
        return "the qualification is deleted"
    spec: Obj = {"attempt": int(found["spec"].get("attempt") or 0) + 1}
    if what == "suspend":
        spec = {"suspend": not found["spec"].get("suspend")}
    await fleet.patch(NEURON_QUALIFICATIONS, "", NAME, {"spec": spec})
    return f"the qualification is changed: {spec}"


async def spoil(schedule: Schedule) -> str | None:
    """Tests on a node, or on all, fail for a while, hang, lie, or do not start."""
    fleet, rng = schedule.fleet, schedule.rng
    programs: ProgramsOfTests = fleet.programs
    names = [rng.choice(sorted(fleet.nodes))] if rng.random() < 0.8 else sorted(fleet.nodes)
    kind, seconds = rng.choice(KINDS), rng.choice(SPOILT_S)
    programs.on |= dict.fromkeys(names, kind)

    async def mend() -> None:
        await asyncio.sleep(seconds)
        for name in names:
            programs.on.pop(name, None)

    fleet.spawn(mend())
    return f"tests on {', '.join(names)}: {kind}, for {seconds:g} s"


def tests(schedule: Schedule) -> list[Wire]:
    """Return the workloads of tests in progress."""
    workloads = schedule.fleet.view.all("neuronultraserverworkloads")
    found = [each for each in workloads if each["metadata"]["namespace"] == NAMESPACE]
    return [each for each in found if "deletionTimestamp" not in each["metadata"]]


async def delete_test(schedule: Schedule) -> str | None:
    """Somebody deletes a test, or one of its pods."""
    fleet, rng = schedule.fleet, schedule.rng
    there = tests(schedule)
    if not there:
        return await ask(schedule)
    name = rng.choice(there)["metadata"]["name"]
    if rng.random() < 0.5:
        await fleet.remove(NEURON_WORKLOADS, NAMESPACE, name)
        return f"test {name} is deleted"
    await fleet.remove(PODS, NAMESPACE, f"{name}-0")
    return f"a pod of test {name} is deleted"


async def require(schedule: Schedule) -> str | None:
    """A user wants nodes on which a test has passed."""
    fleet, rng = schedule.fleet, schedule.rng
    schedule.made += 1
    name, size, age = f"sure{schedule.made}", rng.choice((1, 2, 4)), rng.choice(("10m", "2h"))
    made = await fleet.submit(name, size, 1, "NoOp", qualification={"maxAge": age})
    return None if made is None else f"workload {name} of {size} nodes wants tests of the last {age}"


async def burst(schedule: Schedule) -> str | None:
    """Users want all nodes while they are tested: if nothing else is wrong, they have them soon."""
    fleet = schedule.fleet
    for workload in fleet.workloads():
        await fleet.remove(NEURON_WORKLOADS, *place(workload))
    for job in fleet.pods.jobs.values():
        job.replicas = 0
    await ask(schedule)
    fleet.programs.lasts_s = (100.0, 100.0)
    await fleet.patch(NEURON_QUALIFICATIONS, "", NAME, {"spec": {"attempt": schedule.made + 1, "suspend": False}})
    await fleet.sleep(40.0)
    did = await yields(schedule) if is_quiet(fleet) and tests(schedule) else "users would want all nodes"
    fleet.programs.lasts_s = LASTS_S
    return did


def is_quiet(fleet: Fleet) -> bool:
    """Return True if nothing is wrong, and nobody else uses nodes."""
    there = fleet.nodes.values()
    nodes = all(node.healthy and node.schedulable and not node.reported and node.modes == MODES for node in there)
    lines = all(line.up and line.hears_at_once and line.storm is None for line in fleet.lines if not line.dead)
    users = [*fleet.workloads(), *fleet.workloads(leaving=True)]
    users += [dict(pod) for pod in fleet.view.all("pods") if pod["metadata"]["namespace"] != NAMESPACE]
    return nodes and lines and not users and any(replica.leads for replica in fleet.replicas)


async def yields(schedule: Schedule) -> str | None:
    """Submit a workload for each group, and note it if one waits for longer than tests may keep it."""
    fleet = schedule.fleet
    before = len(tests(schedule))
    number = len(fleet.nodes) // 4 - (spares.KEPT if "spares" in fleet.actors else 0)
    made = [await fleet.submit(f"burst{schedule.made}-{n}", 4, 1) for n in range(number)]
    schedule.made += 1
    await fleet.sleep(SEEN_S + YIELD_S)
    uids = [each["metadata"]["uid"] for each in made if each is not None]
    late = [uid for uid in uids if not fleet.view.of(uid)]
    mine = {each["metadata"]["uid"] for each in fleet.workloads()} <= {*uids}
    # Other actors let workloads wait for other things.
    alone = fleet.actors == {"qualifications"}
    if late and mine and alone and any(replica.leads for replica in fleet.replicas):
        states = [state(fleet.view.workloads()[uid]) for uid in late if uid in fleet.view.workloads()]
        fleet.safety.violated(f"{len(late)} of {number} workloads still wait for tests, which had {before}: {states}")
    return f"{number} workloads want all nodes during {before} tests"


async def end(schedule: Schedule) -> None:
    """Nothing is tested any more."""
    schedule.fleet.programs.on.clear()
    await schedule.fleet.remove(NEURON_QUALIFICATIONS, "", NAME)


ACTORS: Final[dict[str, Actor]] = {
    "qualifications": Actor(
        "tests of free groups hang, report false results, run on bad nodes, or are deleted; jobs request "
        "all nodes together",
        {ask: 6, spoil: 5, change: 2, delete_test: 2, require: 3, burst: 3},
        heal=end,
        embedded=True,
        issue="36",
    ),
}
