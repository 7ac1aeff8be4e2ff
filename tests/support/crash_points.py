"""A plugin in its own process that is killed by SIGKILL at a chosen point: an operation on a file, or an API call.

    with Lives() as lives:
        life = lives.start(settings, killed_at=Point("overwrite checkpoint", 1, Moment.AFTER))

There is no list of points: a run that is not killed records those it passes, so a new write is a new point. Processes
are forked from one that has imported all modules, so each starts in a fraction of a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import neuron_dra.api.config  # noqa: F401 - the first claim with configuration would import it
from neuron_dra.kube import client as client_module
from neuron_dra.kube.config import KubeConfig
from neuron_dra.node.plugin import Plugin
from neuron_dra.node.timing import DEFAULT_TIMING
from neuron_dra.settings import PluginSettings
from tests.support import forks
from tests.support.faulty_files import DISK_ERRORS, FaultyFiles, Moment
from tests.support.timings import quicker
from tests.support.waiting import eventually

LIFE_TIMEOUT_S: Final = 20.0
START_TIMEOUT_S: Final = 120.0  # a busy machine must not fail a test
READS: Final = ("read ", "names ")
WRITES: Final = ("write ", "overwrite ")
FLUSHES: Final = ("sync_file ", "sync_folder ")
HURRIED: Final = quicker(
    DEFAULT_TIMING,
    # Also soon again if the plugin could not record that it publishes connected sets.
    publish={"gather_s": 0.02, "retry_s": (0.02, 0.1), "sets_check_s": (0.2, DEFAULT_TIMING.publish.sets_check_s[1])},
    prepare={"rebuild_retry_s": (0.02, 0.1), "flush_s": 0.0, "flush_retry_s": (0.02, 0.1)},
    ultraserver={"rejection_wait_s": 0.4, "refresh_s": 0.1, "recheck_s": 0.1, "probe_s": (0.2, 3600.0)},
)


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """The `nth` (from 1) occurrence of `what`: an operation on a file, or a request."""

    what: str
    nth: int
    moment: Moment = Moment.BEFORE
    error: int | None = None  # the operation fails with this errno; the process continues

    def __str__(self) -> str:
        how = "killed" if self.error is None else errno.errorcode[self.error]
        return f"{how} {self.moment.value} {self.what}" + (f", the {self.nth}. time" if self.nth > 1 else "")


class Passed:
    """Counts a process's operations, and selects the one at which it is killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counting = False
        self._target: Point | None = None
        self.counts: Counter[str] = Counter()

    def begin(self, target: Point | None) -> None:
        """Start to count; `target` is where the process is killed."""
        with self._lock:
            self.counts.clear()
            self._counting, self._target = True, target

    def reach(self, what: str) -> Point | None:
        """Count `what`, which is about to happen; return the target if this is it."""
        with self._lock:
            if not self._counting:
                return None
            self.counts[what] += 1
            target = self._target
            return target if target and (target.what, target.nth) == (what, self.counts[what]) else None


def die() -> None:
    """Kill this process with SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


class DeadlyFiles(FaultyFiles):
    """Files that kill the process at the target operation."""

    def __init__(self, passed: Passed) -> None:
        super().__init__()
        self._passed = passed

    def _change(self, what: str, path: Path, act: Callable[[], Any], act_half: Callable[[], Any] = lambda: None) -> Any:
        name = path.name.replace(f".{os.getpid()}.", ".")
        target = self._passed.reach(f"{what} {name}")
        if target is None:
            return act()
        if target.moment is Moment.HALF:
            act_half()
        elif target.moment is Moment.AFTER:
            with contextlib.suppress(OSError):  # such as a missing file; the process must not go on
                act()
        if target.error is not None:
            raise OSError(target.error, os.strerror(target.error), str(path))
        die()
        return None

    def read(self, path: Path) -> bytes | None:
        self._look("read", path)
        return super().read(path)

    def names(self, folder: Path) -> list[str]:
        self._look("names", folder)
        return super().names(folder)

    def _look(self, what: str, path: Path) -> None:
        """Raise the target's error. A kill during a read equals one after the change before it."""
        target = self._passed.reach(f"{what} {path.name}")
        if target is not None and target.error is not None:
            raise OSError(target.error, os.strerror(target.error), str(path))


def _watch_requests(passed: Passed) -> None:
    """Count each request and each watch as a point."""
    send, watch = client_module.KubeClient._send, client_module.KubeClient.watch

    async def counted(self: Any, method: str, path: str, params: Any, *rest: Any) -> bytes:
        target = passed.reach(_request(method, path))
        if target is not None and target.moment is Moment.BEFORE:
            die()
        answer = await send(self, method, path, params, *rest)
        if target is not None:
            die()
        return answer

    @contextlib.asynccontextmanager
    async def watched(
        self: Any, resource: Any, namespace: str, *rest: Any, **more: Any
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        target = passed.reach(_request("WATCH", resource.path(namespace)))
        if target is not None and target.moment is Moment.BEFORE:
            die()
        async with watch(self, resource, namespace, *rest, **more) as lines:
            if target is not None:
                die()
            yield lines

    client_module.KubeClient._send = counted  # type: ignore[method-assign, assignment]
    client_module.KubeClient.watch = watched  # type: ignore[method-assign]


def _request(method: str, path: str) -> str:
    parts = path.strip("/").split("/")
    skipped = {"api": 2, "apis": 3}.get(parts[0], 0)
    return f"{method} {'/'.join(parts[skipped:] or parts)}"


@dataclass(frozen=True, slots=True)
class Orders:
    """The arguments of a process."""

    settings: PluginSettings
    target: Point | None
    counting: bool
    sabotage: Callable[[], None] | None


def _live(orders: Orders, pipe: Connection) -> None:
    """Run the plugin until killed. The main function of the process."""
    gc.freeze()  # as the command does after its imports
    logging.disable()  # logs would only be about injected faults
    passed = Passed()
    if orders.counting:
        passed.begin(orders.target)
    _watch_requests(passed)
    if orders.sabotage is not None:
        orders.sabotage()

    def listen() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                verb, value = pipe.recv()
                if verb == "begin":
                    passed.begin(value)
                pipe.send(passed.counts)
        die()  # the test's process has ended

    threading.Thread(target=listen, daemon=True).start()
    kube = KubeConfig(orders.settings.kube_api_server)
    plugin = Plugin(orders.settings, kube, DeadlyFiles(passed), timing=HURRIED)
    asyncio.run(plugin.run())


class Life:
    """One process of the plugin, from start to end."""

    def __init__(self, orders: Orders, context: Any) -> None:
        self._orders = orders
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_live, args=(orders, theirs))
        self._process.start()
        theirs.close()

    async def serving(self) -> None:
        """Wait until its DRA sockets accept connections. Raises TimeoutError, or AssertionError if the process ends."""
        settings = self._orders.settings
        sockets = [str(settings.dra_socket)]
        if settings.efa_interfaces:
            sockets.append(str(settings.efa_dra_socket))
        await eventually(
            lambda: not self.alive or all(map(_connects, sockets)), START_TIMEOUT_S, f"the plugin to serve {sockets}"
        )
        if not self.alive:
            raise AssertionError(f"the plugin ended with code {self._process.exitcode}")

    @property
    def alive(self) -> bool:
        return bool(self._process.is_alive())

    def begin(self, target: Point | None = None) -> None:
        """Start to count its operations; `target` is where it is killed."""
        self._ask("begin", target)

    def passed(self) -> Counter[str]:
        """Return the operations since it began to count."""
        return self._ask("passed", None)

    def _ask(self, verb: str, value: Any) -> Counter[str]:
        self._pipe.send((verb, value))
        counts: Counter[str] = self._pipe.recv()
        return counts

    async def killed(self) -> bool:
        """Wait until it is killed at its point; return False if it is not. Raises AssertionError for another exit."""
        with contextlib.suppress(TimeoutError):
            await eventually(lambda: not self.alive, LIFE_TIMEOUT_S)
        if self.alive:
            return False
        if self._process.exitcode != -signal.SIGKILL:
            raise AssertionError(f"the plugin ended with code {self._process.exitcode}, and was not killed")
        return True

    def kill(self) -> None:
        """Kill it now if it still runs."""
        if self.alive:
            self._process.kill()
        self._process.join(LIFE_TIMEOUT_S)
        self._process.close()
        self._pipe.close()


def _connects(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


class Lives:
    """Starts processes of the plugin, and ends those that still run."""

    def __init__(self) -> None:
        self._context = forks.context()
        self._running: list[Life] = []
        self._made = contextlib.ExitStack()  # removes the folders
        self._spare: list[Path] = []

    def __enter__(self) -> Lives:
        return self

    def __exit__(self, *_: object) -> None:
        for life in self._running:
            life.kill()
        self._made.close()

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A node's folder, in memory if possible. The next block gets it again, with only its simulated hardware.

        That has a thousand files, which would take more time than a plugin's start.
        """
        if not self._spare:
            memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
            made = Path(self._made.enter_context(tempfile.TemporaryDirectory(prefix="nd", dir=memory)), "node")
            made.mkdir()
            self._spare.append(made)
        path = self._spare.pop()
        yield path
        for entry in path.iterdir():
            if entry.is_dir() and entry.name != "host":
                shutil.rmtree(entry)
            elif not entry.is_dir():
                entry.unlink()
        self._spare.append(path)

    def start(
        self,
        settings: PluginSettings,
        *,
        counting: bool = False,
        killed_at: Point | None = None,
        sabotage: Callable[[], None] | None = None,
    ) -> Life:
        """Start a process. With `counting` it counts from its start, and is killed at `killed_at`."""
        life = Life(Orders(settings, killed_at, counting or killed_at is not None, sabotage), self._context)
        self._running.append(life)
        return life

    def end(self, life: Life) -> None:
        """Kill a process and remove it."""
        life.kill()
        self._running.remove(life)


def points(passed: Mapping[str, int]) -> list[Point]:
    """Return all points of a run: before and after each operation, and in the middle of each write.

    A flush is none: it changes nothing that the end of the process alone could lose, and many writes share one. Nor is
    an Event, which is posted at some time, and at another one if an earlier process has posted it.
    """
    return [
        Point(what, nth, moment)
        for what, count in passed.items()
        if not what.startswith((*READS, *FLUSHES)) and "/events" not in what
        for nth in range(1, count + 1)
        for moment in ((*Moment,) if what.startswith(WRITES) else (Moment.BEFORE, Moment.AFTER))
    ]


def disk_errors(passed: Mapping[str, int]) -> list[Point]:
    """Return a point for each file operation of a run and each error of a disk."""
    return [
        Point(what, nth, Moment.HALF, error)
        for what, count in passed.items()
        if what[0].islower()
        for nth in range(1, count + 1)
        for error in ((errno.EIO,) if what.startswith(READS) else DISK_ERRORS)
    ]
