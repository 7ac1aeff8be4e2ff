"""One run of the page: reads a file once or watches a cluster, and keeps the table of all pages up to date."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from neuron_dra.ask.read.mirror import Changes, Mirror
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.read.timing import DEFAULT_WATCHED_TIMING, WatchedTiming
from neuron_dra.ask.read.watched import WatchedCluster
from neuron_dra.ask.ui import server
from neuron_dra.ask.ui.board import Board
from neuron_dra.ask.ui.kept_rows import Patch
from neuron_dra.ask.ui.server import Changed, PageServer
from neuron_dra.ask.ui.table import NO_ROWS, Table
from neuron_dra.ask.ui.timing import DEFAULT_TIMING, UiTiming
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig

log = logging.getLogger(__name__)
T = TypeVar("T")
NOT_READ: Final = {"state": "reading", "text": "reading the cluster"}


class Session(ABC):
    """Serves pages while `served()` is entered; what it shows comes from `run`, in a task beside it."""

    def __init__(self, source: Mapping[str, str], timing: UiTiming = DEFAULT_TIMING) -> None:
        self.token = server.secret()
        self.ticket = server.secret()
        self._timing = timing
        self._board = Board()
        self._table = Table()
        self._published = Changed()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="world")
        self._table.put({"source": source, "connection": {"": NOT_READ}})

    @abstractmethod
    async def run(self) -> None:
        """Show what there is until cancelled."""

    @contextlib.asynccontextmanager
    async def served(self, port: int = 0) -> AsyncIterator[PageServer]:
        """Serve on a port, 0 for any. Raises OSError if it is in use."""
        server = PageServer(self._table, self._published, self._about, self.token, self._timing, self.ticket)
        async with server.listening(port):
            showing = asyncio.create_task(self._shown_until_it_fails(), name="show the fleet")
            try:
                yield server
            finally:
                showing.cancel()
                await asyncio.gather(showing, return_exceptions=True)
                self._thread.shutdown(wait=False, cancel_futures=True)

    async def _shown_until_it_fails(self) -> None:
        try:
            await self.run()
        except Exception as err:  # a page that stands still without a word would be believed
            log.exception("the page stands still")
            self._put({"connection": {"": {"state": "failed", "text": f"{type(err).__name__}: {err}"}}})

    async def _about(self, kind: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        return await self._computed(functools.partial(self._board.about, kind, namespace, name))

    async def _computed(self, function: Callable[[], T]) -> T:
        """Return what a function gives in the thread that the world belongs to."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def _put(self, sections: Mapping[str, Mapping[str, Any]], rows: Mapping[str, Mapping[str, Any]] = NO_ROWS) -> None:
        if self._table.put(sections, rows):
            self._published.tell()


class FileSession(Session):
    """Shows a snapshot that was read from a file."""

    def __init__(self, snapshot: Snapshot, name: str, timing: UiTiming = DEFAULT_TIMING, written: str = "") -> None:
        super().__init__({"name": name, "written": written}, timing)
        self._snapshot = snapshot

    async def run(self) -> None:
        """Show the snapshot."""
        rows = await self._computed(functools.partial(self._board.show, self._snapshot))
        self._put({**rows, "connection": {"": {"state": "file", "text": ""}}})


class ClusterSession(Session):
    """Shows a cluster, as long as it is watched."""

    def __init__(self, kube: KubeConfig, namespace: str, timing: UiTiming, watched: WatchedTiming) -> None:
        super().__init__({"name": kube.cluster or kube.url, "url": kube.url}, timing)
        self._watched = watched
        self._kube = kube
        self._namespace = namespace
        self._mirror = Mirror()
        self._dirty = asyncio.Event()
        self._is_first = True

    async def run(self) -> None:
        """Watch the cluster, and show it after each change, at most once in `between_s`."""
        async with KubeClient(self._kube) as client, asyncio.TaskGroup() as tasks:
            watched = WatchedCluster(client, self._namespace, self._dirty.set, self._watched)
            tasks.create_task(watched.run(), name="watch the cluster")
            await self._first(watched)
            while True:
                self._dirty.clear()
                started = asyncio.get_running_loop().time()
                changes = watched.take()
                new = await self._computed(functools.partial(self._shown, changes))
                self._put({**new.sections, "connection": {"": _connection(watched)}}, new.rows)
                took = asyncio.get_running_loop().time() - started
                # At most one update in this time. Others have the core for as long as this one took.
                # But no change waits because the first rows, which are all of them, took long.
                await asyncio.sleep(max(self._timing.between_s - took, min(took, self._timing.between_s)))
                await self._dirty.wait()

    def _shown(self, changes: Changes) -> Patch:
        snapshot = self._mirror.apply(changes)
        if self._is_first:
            self._is_first = False
            return Patch(self._board.show(snapshot))
        return self._board.follow(snapshot, self._mirror.touched)

    async def _first(self, watched: WatchedCluster) -> None:
        """Wait until everything was read; say meanwhile why it is not."""
        reading = asyncio.create_task(watched.read_once(), name="read everything once")
        try:
            while not reading.done():
                self._dirty.clear()
                changed = asyncio.create_task(self._dirty.wait())
                await asyncio.wait((reading, changed), return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if watched.connection.kind:
                    self._put({"connection": {"": _connection(watched)}})
        finally:
            reading.cancel()


def _connection(watched: WatchedCluster) -> dict[str, str]:
    if watched.connection.kind:
        return {"state": watched.connection.kind, "text": watched.connection.problem}
    if not watched.readable:
        return {"state": "denied", "text": "your account may read nothing that this page shows"}
    return {"state": "live", "text": ""}


def of_file(snapshot: Snapshot, name: str, written: str = "") -> Session:
    """Return the session of a file; `written` is the time when it was, empty if that is unknown."""
    return FileSession(snapshot, name, written=written)


def of_cluster(
    kube: KubeConfig,
    namespace: str,
    timing: UiTiming = DEFAULT_TIMING,
    watched: WatchedTiming = DEFAULT_WATCHED_TIMING,
) -> Session:
    """Return the session of a cluster; `namespace` is read where all namespaces are forbidden."""
    return ClusterSession(kube, namespace, timing, watched)
