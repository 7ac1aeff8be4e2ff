"""Watches all kinds of a snapshot of a cluster: one set of watches for all who look at it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from neuron_dra.ask.read import cluster, snapshot
from neuron_dra.ask.read.cluster import OLDER, OPTIONAL, RESOURCES
from neuron_dra.ask.read.mirror import Changes, KindChanges
from neuron_dra.ask.read.snapshot import DamagedObject
from neuron_dra.ask.read.timing import DEFAULT_WATCHED_TIMING, WatchedTiming
from neuron_dra.errors import Forbidden, NeuronDraError, NotServed
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import Resource

_HEARTBEAT: Final = "lastHeartbeatTime"
"""A field of a Node's conditions that changes although the node does not."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Whether the API server answers; `kind` is "lost" or "expired", and `problem` says why, if it does not."""

    kind: str = ""
    problem: str = ""


class WatchedKind:
    """The objects of one kind, and why some of it cannot be read."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.left_out = ""
        self.api_version = ""
        self.reflector: Reflector | None = None
        self.ready = asyncio.Event()
        self._taken_from: Reflector | None = None

    def take(self) -> KindChanges:
        """Return what changed since the last call."""
        reflector = self.reflector
        if reflector is None:
            self._taken_from = None
            return KindChanges(self.kind, {}, whole=True)
        if not reflector.synced.is_set():
            return KindChanges(self.kind, {})
        whole, self._taken_from = reflector is not self._taken_from, reflector
        touched = reflector.take_touched()
        objects: dict[tuple[str, str], Mapping[str, Any] | None] = {}
        for text in reflector.items if whole else touched:
            namespace, _, name = text.partition("/")
            raw_object = reflector.items.get(text)
            if raw_object is None:
                objects[namespace, name] = None
            else:
                objects[namespace, name] = {**raw_object, "apiVersion": self.api_version}
        damaged = []
        for unread in reflector.damaged.values():
            damaged.append(DamagedObject(self.kind, unread.namespace, unread.name, unread.paths, unread.why))
        return KindChanges(self.kind, objects, whole, damaged)


class WatchedCluster:
    """Watches while `run()` runs; `on_change` is called after each change.

    `namespace` is watched where all namespaces are forbidden.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        on_change: Callable[[], None],
        timing: WatchedTiming = DEFAULT_WATCHED_TIMING,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._on_change = on_change
        self._timing = timing
        self._kinds = [WatchedKind(kind) for kind in RESOURCES]
        self._version = ""
        self.connection = Connection()

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_after(), name="look after the connection")
            for watched_kind in self._kinds:
                tasks.create_task(self._follow(watched_kind), name=f"watch {watched_kind.kind}")

    async def read_once(self) -> None:
        """Wait until all kinds were read, or are known not to be readable."""
        for watched_kind in self._kinds:
            await watched_kind.ready.wait()

    def take(self) -> Changes:
        """Return what changed since the last call."""
        left_out = {}
        for watched_kind in self._kinds:
            if watched_kind.left_out and watched_kind.kind not in OPTIONAL:
                left_out[watched_kind.kind] = watched_kind.left_out
        return Changes([watched_kind.take() for watched_kind in self._kinds], left_out, self._version)

    @property
    def readable(self) -> bool:
        """False if it is known that nothing may be read."""
        nothing = ("forbidden", snapshot.NOT_SERVED)
        needed = [watched_kind for watched_kind in self._kinds if watched_kind.kind not in OPTIONAL]
        return any(watched_kind.left_out not in nothing for watched_kind in needed)

    async def _follow(self, watched: WatchedKind) -> None:
        """Keep one kind; ask again later for one that is not served, or may not be read."""
        while True:
            await self._try(watched)
            watched.reflector = None
            watched.ready.set()
            self._on_change()
            await asyncio.sleep(self._timing.again_s)

    async def _try(self, watched: WatchedKind) -> None:
        """Watch a kind in the newest version that is served, in all namespaces or else in one, while it may be read."""
        resource = RESOURCES[watched.kind]
        for version in (resource.version, *OLDER.get(watched.kind, ())):
            served = Resource(resource.group, version, resource.plural, resource.namespaced)
            try:
                await self._watch(watched, served, "")
            except NotServed:
                watched.left_out = snapshot.NOT_SERVED
                continue
            except Forbidden as err:
                watched.left_out = "forbidden"
                if err.status == 401:
                    self._found(Connection("expired", cluster.reason(err)))
                elif resource.namespaced:
                    await self._in_one_namespace(watched, served)
                return

    async def _in_one_namespace(self, watched: WatchedKind, served: Resource) -> None:
        try:
            await self._watch(watched, served, self._namespace)
        except (NotServed, Forbidden):
            watched.left_out = "forbidden"

    async def _watch(self, watched: WatchedKind, served: Resource, namespace: str) -> None:
        """Keep a kind. Raises NotServed, or Forbidden when it may not be read."""
        limited = ""
        if namespace:
            limited = f"only namespace {namespace}, the others are forbidden"

        def changed() -> None:
            watched.left_out = limited
            watched.ready.set()
            self._on_change()

        if served.group:
            watched.api_version = f"{served.group}/{served.version}"
        else:
            watched.api_version = served.version
        watched.reflector = Reflector(
            self._client,
            served,
            namespace=namespace,
            on_change=changed,
            gives_up_on=(NotServed, Forbidden),
            project=_kept,
            gather_s=self._timing.gather_s,
        )
        await watched.reflector.run()

    async def _look_after(self) -> None:
        """Ask for the version again and again: a watch alone does not show that the server is gone."""
        while True:
            try:
                self._version = await cluster.version(self._client)
                self._found(Connection())
            except Forbidden as err:
                self._found(Connection("expired", cluster.reason(err)) if err.status == 401 else Connection())
            except NeuronDraError as err:
                self._found(Connection("lost", str(err)))
            await asyncio.sleep(self._timing.look_s)

    def _found(self, connection: Connection) -> None:
        if connection != self.connection:
            self.connection = connection
            self._on_change()


def _kept(raw_object: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of an object: neither who wrote its fields, nor images and heartbeats of a Node."""
    kept = dict(raw_object)
    meta = dict(raw_object.get("metadata") or {})
    meta.pop("managedFields", None)
    kept["metadata"] = meta
    status = raw_object.get("status")
    if isinstance(status, Mapping):
        shown = dict(status)
        shown.pop("images", None)
        if isinstance(shown.get("conditions"), list):
            shown["conditions"] = [_without_heartbeat(condition) for condition in shown["conditions"]]
        kept["status"] = shown
    return kept


def _without_heartbeat(condition: Any) -> Any:
    if not isinstance(condition, Mapping) or _HEARTBEAT not in condition:
        return condition
    return {name: value for name, value in condition.items() if name != _HEARTBEAT}
