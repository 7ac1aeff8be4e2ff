"""The plugin's process is killed at each operation on its files and at each request; nothing is lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from neuron_dra.core.checkpoint import Checkpoint
from neuron_dra.core.claims import PreparedClaim
from neuron_dra.core.dra_driver import EFA, NEURON
from neuron_dra.node import plugin
from neuron_dra.node.prepare.store import Store
from tests.story.crash_scene import SLOT, Flow, Scene, failed, killed, recorded
from tests.support import slots
from tests.support.crash_points import (
    Lives,
    Point,
    disk_errors,
    points,
)

pytestmark = pytest.mark.unchecked_end("a scene checks its end itself, and its disk is of the next one too")

AT_ONCE = 3
LONG = bool(os.environ.get("NEURON_DRA_LONG"))
EVERY = 11  # without `LONG`; coprime to the period of operations, so that each kind is covered


@pytest.fixture(scope="module")
def lives() -> Iterator[Lives]:
    with Lives() as made:
        yield made


async def first_start(scene: Scene) -> None:
    await scene.published()
    await scene.must("prepare", "old")


async def old_is_allocated(scene: Scene) -> None:
    scene.allocate("old")


async def old_is_prepared(scene: Scene) -> None:
    scene.allocate("old", "new")
    await scene.must("prepare", "old")


async def both_are_prepared(scene: Scene) -> None:
    await old_is_prepared(scene)
    await scene.must("prepare", "new")


async def prepare_new(scene: Scene) -> None:
    await scene.must("prepare", "new")


async def prepare_old(scene: Scene) -> None:
    await scene.must("prepare", "old")


async def unprepare_old(scene: Scene) -> None:
    await scene.must("unprepare", "old")


async def reserve_and_give_back(scene: Scene) -> None:
    for slot in (SLOT, None):
        scene.reserve(slot)
        await scene.published()


async def both_again(scene: Scene) -> None:
    await prepare_old(scene)
    await prepare_new(scene)
    await scene.published()


def damage(scene: Scene) -> None:
    for driver in scene.drivers:
        slots.tear(slots.newest(scene.folder(driver)))
    scene.lost_the_newest_slot = True


def damage_both(scene: Scene) -> None:
    for driver in scene.drivers:
        slots.tear_all(scene.folder(driver))


OLD, BOTH = frozenset({"old"}), frozenset({"old", "new"})
DRIVERS = (NEURON, EFA)
FLOWS = [
    Flow("first start", first_start, OLD, old_is_allocated, fresh=True),
    Flow("prepare", prepare_new, BOTH, old_is_prepared),
    Flow("unprepare", unprepare_old, frozenset({"new"}), both_are_prepared),
    Flow("tag", reserve_and_give_back),
    Flow("one slot", both_again, BOTH, both_are_prepared, damage),
    Flow("rebuild", both_again, BOTH, both_are_prepared, damage_both),
    Flow("repair", both_again, BOTH, both_are_prepared, Scene.empty_cdi),
    Flow("reboot", both_again, BOTH, both_are_prepared, Scene.reboot),
    Flow("first start with sets", first_start, OLD, old_is_allocated, fresh=True, sets=True),
    Flow("prepare a set", prepare_new, BOTH, old_is_prepared, sets=True),
    Flow("unprepare cores", unprepare_old, frozenset({"new"}), both_are_prepared, sets=True),
    Flow("reboot with sets", both_again, BOTH, both_are_prepared, Scene.reboot, sets=True),
    Flow("prepare EFA", prepare_new, BOTH, old_is_prepared, drivers=(EFA,)),
    Flow("unprepare EFA", unprepare_old, frozenset({"new"}), both_are_prepared, drivers=(EFA,)),
    Flow("rebuild EFA", both_again, BOTH, both_are_prepared, damage_both, drivers=(EFA,)),
    Flow("first start of both drivers", first_start, OLD, old_is_allocated, fresh=True, drivers=DRIVERS),
    Flow("prepare of both drivers", prepare_new, BOTH, old_is_prepared, drivers=DRIVERS),
    Flow("unprepare of both drivers", unprepare_old, frozenset({"new"}), both_are_prepared, drivers=DRIVERS),
    Flow("one slot of both drivers", both_again, BOTH, both_are_prepared, damage, drivers=DRIVERS),
    Flow("rebuild of both drivers", both_again, BOTH, both_are_prepared, damage_both, drivers=DRIVERS),
    Flow("repair of both drivers", both_again, BOTH, both_are_prepared, Scene.empty_cdi, drivers=DRIVERS),
    Flow("reboot of both drivers", both_again, BOTH, both_are_prepared, Scene.reboot, drivers=DRIVERS),
]


async def each(chosen: list[Point], one: Callable[[Point], Awaitable[None]]) -> None:
    """Run these points, a few at a time. Raises AssertionError with all failures."""
    turns = asyncio.Semaphore(AT_ONCE)
    wrong: list[str] = []

    async def meet(point: Point) -> None:
        async with turns:
            try:
                await one(point)
            except (AssertionError, TimeoutError) as err:
                wrong.append(f"{point}: {err}")

    await asyncio.gather(*(meet(point) for point in chosen))
    assert not wrong, "\n".join(wrong)


def some(found: list[Point], every: int, first: int) -> list[Point]:
    return found if LONG else found[first % every :: every]


@pytest.mark.timeout(600)
@pytest.mark.contract("P18")
@pytest.mark.parametrize("rebooted", [False, True], ids=["restarted", "rebooted"])
@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
async def test_kill_at_any_point_loses_and_leaks_nothing(
    flow: Flow, rebooted: bool, lives: Lives, record_property: Callable[[str, str], None]
) -> None:
    found = points(await recorded(flow, lives))
    chosen = some(found, EVERY, 1 if rebooted else 0)
    record_property(
        "covered", f"kill, {flow.name}, {'rebooted' if rebooted else 'restarted'}: {len(chosen)} of {len(found)} points"
    )
    await each(chosen, lambda point: killed(flow, point, lives, rebooted=rebooted))


@pytest.mark.timeout(600)
@pytest.mark.contract("P22")
@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
async def test_disk_error_at_any_point_is_recovered(
    flow: Flow, lives: Lives, record_property: Callable[[str, str], None]
) -> None:
    found = disk_errors(await recorded(flow, lives))
    chosen = some(found, EVERY, 0)
    record_property("covered", f"disk error, {flow.name}: {len(chosen)} of {len(found)} points")
    await each(chosen, lambda point: failed(flow, point, lives))


# The harness detects planted bugs; test_power_cut.py covers power cuts.


def commit_before_the_cdi_file() -> None:
    write_spec, write = Store._write_spec, Store._write
    late: list[tuple[PreparedClaim, dict[str, Any]]] = []

    def write_specs_after(self: Store, checkpoint: Checkpoint) -> None:
        write(self, checkpoint)
        while late:
            claim, more = late.pop()
            write_spec(self, claim, **more)

    Store._write_spec = lambda self, claim, **more: late.append((claim, more))  # type: ignore[method-assign]  # a planted bug
    Store._write = write_specs_after  # type: ignore[method-assign]  # a planted bug


def do_not_look_at_the_boot_id() -> None:
    plugin.boot_id = lambda settings: "always the same"  # type: ignore[attr-defined]  # where the plugin finds it


@pytest.mark.parametrize(
    ("sabotage", "place", "rebooted", "complaint"),
    [
        (commit_before_the_cdi_file, "overwrite checkpoint", False, "a claim in the checkpoint has no CDI file"),
        (do_not_look_at_the_boot_id, "overwrite checkpoint", True, "claims of another boot count as prepared"),
    ],
    ids=["checkpoint before CDI", "no look at the boot id"],
)
async def test_the_kill_finds(
    sabotage: Callable[[], None], place: str, rebooted: bool, complaint: str, lives: Lives
) -> None:
    flow = next(flow for flow in FLOWS if flow.name == "prepare")
    found = [point for point in points(await recorded(flow, lives)) if str(point) == f"killed after {place}"]
    with pytest.raises(AssertionError, match=complaint):
        await each(found, lambda point: killed(flow, point, lives, rebooted=rebooted, sabotage=sabotage))
