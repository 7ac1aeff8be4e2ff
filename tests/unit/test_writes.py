"""A plan's writes: concurrent within one kind, in order between kinds, and stopped for a workload after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from controller.apply import batches
from controller.decisions.actions import (
    Action,
    CreateTemplate,
    Evict,
    WriteUltraServerStatus,
    WriteWorkloadStatus,
)


def reservation(name: str, *owners: str) -> Action:
    return WriteUltraServerStatus(name, "1", {}, {}, owners=frozenset(owners))


def template(owner: str) -> Action:
    return CreateTemplate({"metadata": {"name": owner}}, owners=frozenset({owner}))


def status(owner: str) -> Action:
    return WriteWorkloadStatus("ml", owner, owner, "1", {}, {}, False, owners=frozenset({owner}))


class Server:
    """Performs each write after one iteration of the loop; records the order and the highest concurrency."""

    def __init__(self, refused: Iterable[Action] = ()) -> None:
        self.refused = list(refused)
        self.begun: list[Action] = []
        self.done: list[Action] = []
        self.most = 0

    async def write(self, action: Action) -> bool:
        self.begun.append(action)
        self.most = max(self.most, len(self.begun) - len(self.done))
        await asyncio.sleep(0)
        self.done.append(action)
        return action not in self.refused

    async def perform(self, *actions: Action) -> bool:
        return await batches.perform(actions, self.write, lambda: True)


async def test_writes_of_one_kind_overlap_up_to_a_bound() -> None:
    server = Server()
    assert await server.perform(*(reservation(f"us-{number}", "a") for number in range(64)))
    assert (len(server.done), server.most) == (64, batches.IN_FLIGHT)


async def test_kinds_are_written_in_order() -> None:
    server = Server()
    plan = [reservation("us-1", "a"), reservation("us-2", "a"), template("a"), status("a")]
    begun_after = []

    async def write(action: Action) -> bool:
        begun_after.append((type(action), {type(each) for each in server.done}))
        return await server.write(action)

    assert await batches.perform(plan, write, lambda: True)
    assert begun_after == [
        (WriteUltraServerStatus, set()),
        (WriteUltraServerStatus, set()),
        (CreateTemplate, {WriteUltraServerStatus}),
        (WriteWorkloadStatus, {WriteUltraServerStatus, CreateTemplate}),
    ]


async def test_failure_stops_only_its_workload() -> None:
    refused = reservation("us-1", "a")
    server = Server([refused])
    others = [reservation("us-2", "b"), template("b"), status("b")]
    clean = await server.perform(refused, others[0], template("a"), others[1], status("a"), others[2])
    assert (clean, server.done) == (False, [refused, *others])


async def test_failure_without_workload_stops_nothing() -> None:
    refused = Evict("ml", "pod", "p")
    server = Server([refused])
    assert (await server.perform(refused, status("a")), server.done) == (False, [refused, status("a")])


async def test_lost_lease_stops_writing() -> None:
    server = Server()
    plan = [*(reservation(f"us-{number}", "a") for number in range(64)), template("a")]
    clean = await batches.perform(plan, server.write, lambda: len(server.done) < 20)
    assert not clean
    assert template("a") not in server.begun
    assert len(server.begun) <= 20 + batches.IN_FLIGHT
