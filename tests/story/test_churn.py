"""4.02: what was created and deleted leaves nothing in the programs: a leader, a follower and the limits watcher."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Mapping, Sized
from typing import Any, Final

import pytest

from controller.limits.watcher import LimitsWatcher
from controller.settings import WatcherSettings
from controller.timing import DEFAULT_TIMING
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.requests import NEURON_WORKLOADS, PODS
from tests.story.test_idle_cluster import waiting_pod
from tests.support.fleet.fleet import USERS, Fleet
from tests.support.fleet.run import run
from tests.support.fleet.schedule import Schedule

NUMBER: Final = 12
CONTAINERS: Final = (dict, list, set, frozenset, tuple, deque)
OURS: Final = ("controller", "neuron_dra")
AFTER_S: Final = DEFAULT_TIMING.writes.forgotten_s + DEFAULT_TIMING.client.events.lifetime_s


def sizes_below(root: object) -> Mapping[str, int]:
    """Return the size of each container that the root reaches, by the attributes on the way; `[]` is any element."""
    sizes: dict[str, int] = defaultdict(int)
    seen: set[int] = set()
    queue: deque[tuple[str, object]] = deque([(type(root).__name__, root)])
    while queue:
        path, value = queue.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, CONTAINERS):
            assert isinstance(value, Sized)
            sizes[path] += len(value)
            inner = value.values() if isinstance(value, dict) else value
            queue.extend((f"{path}[]", each) for each in inner)
        elif type(value).__module__.split(".")[0] in OURS:
            queue.extend((f"{path}.{name}", each) for name, each in attributes(value).items())
    return sizes


def attributes(value: object) -> dict[str, Any]:
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    found = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


def after_churn(number: int, *, keeps: bool = False) -> Mapping[str, int]:
    """Return the sizes in all programs after so many workloads, with pods, were created and deleted."""
    sizes: dict[str, int] = {}

    async def drive(fleet: Fleet, steps: int) -> None:
        schedule = Schedule(fleet)
        await schedule.begin()
        settings = WatcherSettings(health_probe_bind_address="", metrics_bind_address="")
        line = fleet.line("limits watcher")
        watcher = LimitsWatcher(settings, KubeConfig("line:"), client=line, clock=fleet.clock.now)
        task = asyncio.create_task(watcher.run())
        assert fleet.api is not None
        for turn in range(number):
            made = await fleet.submit(f"w{turn}", 1, 1, priorityClassName=f"class-{turn}")
            assert made is not None
            job = fleet.start_job(made)
            fleet.api.create(waiting_pod(turn, 10))
            await fleet.sleep(10.0)
            job.replicas = 0
            await fleet.remove(PODS, USERS, f"waits-{turn}")
            await fleet.remove(NEURON_WORKLOADS, USERS, f"w{turn}")
            await fleet.sleep(10.0)
        if keeps:
            for replica in fleet.replicas:
                vars(replica.controller)["left"] = list(range(number))
        await fleet.sleep(AFTER_S)
        # What is dropped when the next one of its kind comes.
        last = await fleet.submit("last", 1, 9)
        assert last is not None
        fleet.api.create(waiting_pod(number, 10))
        await fleet.sleep(120.0)
        leaders = [replica for replica in fleet.replicas if replica.leads]
        followers = [replica for replica in fleet.replicas if not replica.leads]
        programs = {"leader": leaders[0].controller, "follower": followers[0].controller, "watcher": watcher}
        for name, program in programs.items():
            assert program is not None
            sizes.update({f"{name} {path}": size for path, size in sizes_below(program).items()})
        watcher.stop()
        await task

    assert run(1, drive=drive, actors={"jobs"}).violation == ""
    return sizes


def grown(few: Mapping[str, int], many: Mapping[str, int]) -> list[str]:
    """Return the containers that are larger by at least half of the difference of the numbers."""
    found = []
    for path, size in sorted(many.items()):
        if "_inner" not in path and size - few.get(path, 0) >= NUMBER // 2:
            found.append(f"{path}: {few.get(path, 0)}, {size}")
    return found


@pytest.mark.timeout(300)
def test_what_was_deleted_leaves_nothing() -> None:
    few, many = after_churn(NUMBER), after_churn(2 * NUMBER)
    assert few.keys() >= {"leader Controller._caches.workloads.items", "watcher LimitsWatcher.pods.items"}
    assert grown(few, many) == []


@pytest.mark.timeout(300)
def test_container_that_grows_is_found() -> None:
    """The control."""
    found = grown(after_churn(NUMBER, keeps=True), after_churn(2 * NUMBER, keeps=True))
    assert [text.split(":")[0] for text in found] == ["follower Controller.left", "leader Controller.left"]
