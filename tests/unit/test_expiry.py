"""A reservation that nobody uses ends after spec.ttlSecondsUnused. Issue 35, item 4."""

from __future__ import annotations

from neuron_dra.planner.observed.model import condition
from tests.unit.failing_world import LIMITS, held, running, start_pods
from tests.unit.ultraserver_world import World


def allocated() -> World:
    """An Allocated workload without pods."""
    world = running("NoOp", servers=1, count=1)
    free(world)
    world.settle(LIMITS)
    return world


def free(world: World) -> None:
    for claim in world.all("ResourceClaim"):
        world.remove("ResourceClaim", claim["metadata"]["name"], "ml")


def unused(seconds: int = 600) -> World:
    """An Allocated workload with this limit, whose nodes no pod uses."""
    world = allocated()
    item = world.workload("job")
    item["spec"]["ttlSecondsUnused"] = seconds
    world.put(item)
    world.settle(LIMITS)
    return world


def use(world: World) -> tuple[str, str]:
    found = condition(world.workload("job")["status"], "InUse")
    return str(found.get("status")), str(found.get("reason"))


def after(world: World, seconds: float) -> tuple[str, str]:
    world.later(seconds)
    world.settle(LIMITS)
    return use(world)


def test_without_a_limit_nothing_is_told_or_released() -> None:
    world = allocated()
    assert (after(world, 1e7), world.state("job")[0]) == (("None", "None"), "Allocated")


def test_unused_nodes_are_released_after_the_limit_with_a_warning_at_half_of_it() -> None:
    world = unused()
    assert use(world) == ("False", "NoClaims")
    assert after(world, 299) == ("False", "NoClaims")
    assert after(world, 1) == ("False", "ExpiresSoon")
    assert (after(world, 299), len(held(world))) == (("False", "ExpiresSoon"), 1)
    assert after(world, 1) == ("False", "Expired")
    assert (world.state("job"), held(world), world.all("ResourceClaimTemplate")) == (("Failed", "Expired"), [], [])
    assert after(world, 1e6) == ("False", "Expired")
    assert held(world) == []


def test_plan_is_due_when_the_next_step_is() -> None:
    world = unused()
    due = world.plan(LIMITS).recheck
    assert due is not None
    assert (due - world.now).total_seconds() == 300


def test_claim_starts_the_time_again() -> None:
    world = unused()
    world.later(500)
    start_pods(world)
    world.settle(LIMITS)
    assert use(world) == ("True", "ClaimsAllocated")
    assert (after(world, 1e6), world.state("job")[0]) == (("True", "ClaimsAllocated"), "Allocated")
    free(world)
    assert after(world, 0) == ("False", "NoClaims")
    assert after(world, 599) == ("False", "ExpiresSoon")
    assert after(world, 1) == ("False", "Expired")


def test_pods_that_come_in_the_last_moment_keep_the_nodes() -> None:
    world = unused()
    world.later(600)
    while use(world)[1] != "Expired":
        world.step(LIMITS)
    start_pods(world)
    world.settle(LIMITS)
    assert (use(world), world.state("job")[0]) == (("True", "ClaimsAllocated"), "Allocated")


def test_removing_the_limit_reserves_again() -> None:
    world = unused()
    after(world, 600)
    item = world.workload("job")
    del item["spec"]["ttlSecondsUnused"]
    world.put(item)
    world.settle(LIMITS)
    assert (world.state("job")[0], use(world)) == ("Allocated", ("None", "None"))
