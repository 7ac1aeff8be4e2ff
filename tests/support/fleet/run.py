"""One run of a virtual fleet: `run(seed=7)` returns its result."""

from __future__ import annotations

import contextlib
import datetime
import gc
import logging
import random
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.kube.client import KubeClient
from tests.support.fleet import clock as clocks
from tests.support.fleet import schedule, tenant_laws
from tests.support.fleet.actors import chosen
from tests.support.fleet.fleet import FASTER, Fleet
from tests.support.fleet.safety import Violation


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run went. `violation` is empty if there was none; `simulated_s` passed in `took_s`."""

    seed: int
    violation: str
    trace: tuple[str, ...]
    simulated_s: float
    took_s: float


def replay_command(seed: int, ultraservers: int, steps: int, actors: Collection[str] | None = None) -> str:
    """Return the command that repeats a run."""
    said = "" if actors is None else f" --actors {','.join(sorted(actors)) or 'none'}"
    return f"python -m tests.support.fleet --seed {seed} --ultraservers {ultraservers} --steps {steps}{said}"


def run(
    seed: int,
    *,
    ultraservers: int = 2,
    steps: int = 20,
    drive: Callable[[Fleet, int], Any] | None = None,
    listener: Callable[[str], None] | None = None,
    server: Callable[[str], KubeClient] | None = None,
    actors: Collection[str] | None = None,
    replicas: int = 2,
) -> Outcome:
    """Run one seed on an embedded API server, in simulated time. `drive` replaces the seeded schedule.

    `actors` are the names of those that take part (`actors.ACTORS`); without it, the seed chooses them.
    `server` makes the clients of a real API server, which has our CRDs; there time runs FASTER times as fast, and a
    seed decides what happens, but not in which order programs see it.
    """
    taking_part = chosen(seed, embedded=server is None) if actors is None else frozenset(actors)
    started = time.monotonic()
    loop = clocks.VirtualLoop() if server is None else clocks.ScaledLoop(FASTER)
    start = clocks.EPOCH if server is None else datetime.datetime.now(datetime.UTC)
    clock = clocks.Clock(loop, start)
    trace = clocks.Trace(clock, listener=listener)

    async def play(connect: Callable[[str], KubeClient], api: EmbeddedApi | None) -> None:
        fleet = Fleet(
            seed,
            Path(folder),
            clock,
            connect,
            ultraservers=ultraservers,
            trace=trace,
            api=api,
            actors=taking_part,
            replicas=replicas,
        )
        async with fleet.running():
            await (drive or schedule.drive)(fleet, steps)
            tenant_laws.judge_events(fleet.safety, fleet.view, api, fleet.namespaces)

    async def main() -> None:
        if server is not None:
            await play(server, None)
            return
        api = EmbeddedApi(port=None, seed=seed, now=lambda: clock.now().timestamp())
        api.register_neuron_kinds()
        if "queues" in taking_part:
            api.register("kueue.x-k8s.io", ("v1beta2",), "Workload", "workloads")
        async with api:
            await play(api.client, api)

    violation: Violation | None = None
    try:
        with _seeded_and_silent(seed), tempfile.TemporaryDirectory(prefix="fleet", dir=_memory()) as folder:
            clocks.run(loop, main())
    except (Violation, BaseExceptionGroup) as err:
        violation = _first(err)
        if violation is None:
            raise
    return Outcome(seed, str(violation or ""), tuple(trace.lines), clock.elapsed, time.monotonic() - started)


@contextlib.contextmanager
def _seeded_and_silent(seed: int) -> Iterator[None]:
    """Seed the programs' jitter, and disable logs and garbage collection, which took a sixth of the time."""
    jitter, level, collects = random.getstate(), logging.root.manager.disable, gc.isenabled()
    random.seed(seed)
    logging.disable(logging.CRITICAL)
    gc.disable()
    try:
        yield
    finally:
        random.setstate(jitter)
        logging.disable(level)
        if collects:
            gc.enable()


def _first(err: BaseException) -> Violation | None:
    """The violation in a group of errors."""
    if isinstance(err, Violation):
        return err
    inner = err.exceptions if isinstance(err, BaseExceptionGroup) else ()
    return next((found for each in inner if (found := _first(each)) is not None), None)


def _memory() -> str | None:
    """A folder in memory, if possible, because the nodes' disks have many small files."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
