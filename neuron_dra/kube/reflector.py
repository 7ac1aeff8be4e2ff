"""A watched copy of a few objects: list, watch, resume the watch, and list again when that is required."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from neuron_dra.core import backoff
from neuron_dra.errors import ApiError, Gone, Unavailable
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.requests import Resource

log = logging.getLogger(__name__)

WATCH_S: Final = (240, 360)  # after which the server ends a watch; random, so that a fleet does not reconnect at once
SILENCE_S: Final = 420.0  # longer than any watch lasts: this long without a byte is a dead connection
BOOKMARKS_S: Final = 150.0
"""The time in which two bookmarks arrive, counted from the first one on: a kind that has not changed since the API
server started may get none. A proxy may keep a connection alive whose server is gone.
"""
RETRY_S: Final = (0.5, 30.0)  # first and longest delay after a failure
MALFORMED: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""The errors of decoding a malformed response, such as a proxy's page or that of a broken server."""
SHORT_WATCH_S: Final = 1.0  # a watch that ends sooner counts as a failure, so that a broken server is not overloaded


class _ListMeta(msgspec.Struct):
    version: str = msgspec.field(default="", name="resourceVersion")


class _Page(msgspec.Struct):
    """A page of a list, whose items stay bytes until each is projected: as objects they take ten times the memory."""

    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Identity(msgspec.Struct, rename="camel"):
    name: str
    namespace: str = ""
    resource_version: str = ""


class _Head(msgspec.Struct):
    """The part of an object that identifies it and its version."""

    metadata: _Identity


class Reflector:
    """Keeps `items`, by namespace/name, equal to the server's objects while the task `run()` runs.

    `on_change` is called, without arguments, after every change and after every complete list. `run()` raises the
    errors in `gives_up_on` instead of retrying; NotFound means that the server does not have the kind at all.
    `project` is called once for each received object, and returns the part to keep; its `metadata` must keep namespace,
    name, uid and resourceVersion. A change outside of what is kept does not call `on_change`. `fields`, a Struct with
    omit_defaults, has the fields that are decoded at all; the others cost next to nothing. With `gather_s`, changes in
    quick succession arrive together, up to that many seconds later.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        namespace: str = "",
        field_selector: str = "",
        on_change: Callable[[], None] = lambda: None,
        gives_up_on: tuple[type[ApiError], ...] = (),
        project: Callable[[dict[str, Any]], dict[str, Any]] = lambda item: item,
        fields: type[msgspec.Struct] | None = None,
        gather_s: float = 0.0,
        bookmarks_s: float = BOOKMARKS_S,
    ) -> None:
        self._client = client
        self._resource = resource
        self._namespace = namespace
        self._selector = {"fieldSelector": field_selector} if field_selector else {}
        self._on_change = on_change
        self._gives_up_on = gives_up_on
        self._project = project
        self._fields = fields
        self._gather_s = gather_s
        self._bookmarks_s = bookmarks_s
        self._gets_bookmarks = False
        self._version = ""
        self._meanwhile: list[list[Callable[[], None]]] = []  # for each list in progress, the changes since it began
        self.items: dict[str, dict[str, Any]] = {}
        self._touched: set[str] = set()
        self.synced = asyncio.Event()

    def take_touched(self) -> set[str]:
        """Return the keys of the items that were added, replaced or removed since the last call."""
        touched, self._touched = self._touched, set()
        return touched

    def remember(self, item: Mapping[str, Any]) -> None:
        """Add an object that a write of this process returned, unless the watch has already shown a newer one.

        The response may be late: if an object is missing although everything up to its version has been seen, it has
        been deleted.
        """
        key = _key(item)
        have = self.items.get(key)
        is_news = _version_of(item) not in _seen(self._version) if have is None else _is_older(have, item)
        if is_news:
            self.items[key] = self._project(dict(item))
            self._touched.add(key)
        self._note(lambda: self.remember(item))

    def forget(self, item: Mapping[str, Any]) -> None:
        """Remove an object that this process deleted, unless a new object has the same name."""
        have = self.items.get(_key(item))
        if have is not None and have["metadata"].get("uid") == item["metadata"].get("uid"):
            del self.items[_key(item)]
            self._touched.add(_key(item))
        self._note(lambda: self.forget(item))

    async def relist(self) -> None:
        """List all objects again, whatever the watch has shown. Raises ApiError."""
        meanwhile: list[Callable[[], None]] = []
        self._meanwhile.append(meanwhile)
        try:
            items, version = await self._list()
        finally:
            self._meanwhile = [each for each in self._meanwhile if each is not meanwhile]
        before = self.items
        self._touched |= {key for key in before.keys() | items.keys() if before.get(key) is not items.get(key)}
        self.items, self._version = items, version
        for again in meanwhile:  # the watch does not repeat these changes
            again()
        self.synced.set()
        self._on_change()

    async def _list(self) -> tuple[dict[str, dict[str, Any]], str]:
        """Return all objects and the version of the list; an object of a known version is not decoded again."""
        items: dict[str, dict[str, Any]] = {}
        version = ""
        try:
            async for page in self._client.list(self._resource, self._namespace, **self._selector):
                body = msgspec.json.decode(page, type=_Page)
                version = body.metadata.version
                for raw in body.items or ():
                    meta = msgspec.json.decode(raw, type=_Head).metadata
                    key = f"{meta.namespace}/{meta.name}"
                    have = self.items.get(key)
                    known = have is not None and have["metadata"].get("resourceVersion") == meta.resource_version != ""
                    items[key] = have if have is not None and known else self._project(self._decode(raw))
        except MALFORMED as err:
            raise Unavailable(f"malformed list of {self._resource.plural}: {err!r}") from err
        return items, version

    def _decode(self, raw: msgspec.Raw) -> dict[str, Any]:
        """Return the object in `raw`. Raises one of MALFORMED if it is malformed."""
        item: dict[str, Any]
        if self._fields is None:
            item = msgspec.json.decode(raw)
        else:
            item = msgspec.to_builtins(msgspec.json.decode(raw, type=self._fields))
        return item

    def _note(self, again: Callable[[], None]) -> None:
        """Record a change for each list in progress, to repeat it on its result."""
        for meanwhile in self._meanwhile:
            meanwhile.append(again)

    async def run(self) -> None:
        """List and watch until cancelled. Raises the errors in `gives_up_on`."""
        waits = backoff.delays(*RETRY_S, random.random)
        while True:
            started = asyncio.get_running_loop().time()
            try:
                if not self._version:
                    await self.relist()
                await self._watch()
                failed = asyncio.get_running_loop().time() - started < SHORT_WATCH_S
            except Gone:
                self._version = ""
                failed = asyncio.get_running_loop().time() - started < SHORT_WATCH_S
            except ApiError as err:
                if isinstance(err, self._gives_up_on):
                    raise
                log.warning("watch failed", extra={"resource": self._resource.plural, "error": str(err)})
                failed = True
            except MALFORMED as err:
                log.warning("malformed watch event", extra={"resource": self._resource.plural, "error": repr(err)})
                self._version, failed = "", True
            if failed:
                await asyncio.sleep(next(waits))
            else:
                waits = backoff.delays(*RETRY_S, random.random)

    async def _watch(self) -> None:
        params = {**self._selector, "resourceVersion": self._version, "timeoutSeconds": str(random.randint(*WATCH_S))}
        async with self._client.watch(
            self._resource, self._namespace, params, idle_timeout_s=SILENCE_S, gather_s=self._gather_s
        ) as lines:
            try:
                async with asyncio.timeout(self._bookmarks_s if self._gets_bookmarks else None) as silence:
                    async for line in lines:
                        event = msgspec.json.decode(line, type=_Event)
                        plain = event.type in ("ERROR", "BOOKMARK")
                        self._apply(
                            event.type, msgspec.json.decode(event.object) if plain else self._decode(event.object)
                        )
                        self._heard(event.type, silence)
            except TimeoutError as err:
                self._gets_bookmarks = False  # until the next one: a restarted server sends none before a change
                raise Unavailable(f"no bookmark for {self._bookmarks_s:g} s: the connection is dead") from err

    def _receive(self, event: _Event) -> None:
        plain = event.type in ("ERROR", "BOOKMARK")
        self._apply(event.type, msgspec.json.decode(event.object) if plain else self._decode(event.object))

    def _heard(self, kind: str, silence: asyncio.Timeout) -> None:
        """Extend the time until the next event, once the server has shown that it sends bookmarks."""
        self._gets_bookmarks |= kind == "BOOKMARK"
        if self._gets_bookmarks:
            silence.reschedule(asyncio.get_running_loop().time() + self._bookmarks_s)

    def _apply(self, kind: str, item: dict[str, Any]) -> None:
        """Apply one event of the watch. Raises Gone or another ApiError for an ERROR event."""
        if kind == "ERROR":
            message = f"{item.get('reason')}: {item.get('message')}"
            raise Gone(message) if item.get("code") == 410 else ApiError(message, status=int(item.get("code") or 0))
        self._version = item["metadata"]["resourceVersion"]
        self._note(lambda: self._apply(kind, item))
        if kind == "BOOKMARK":
            return
        have = self.items.get(_key(item))
        if have is not None and not _is_older(have, item):
            return  # the watch lags behind a write of this process, or behind a list
        self._touched.add(_key(item))
        if kind == "DELETED":
            self.items.pop(_key(item), None)
        else:
            self.items[_key(item)] = new = self._project(item)
            if have is not None and new is not item and _alike(have, new):
                # The change, such as a kubelet's heartbeat, is outside of what is kept: the values stay the same.
                self.items[_key(item)] = {**have, "metadata": new["metadata"]}
                return
        self._on_change()


def _key(item: Mapping[str, Any]) -> str:
    """Return the key of an object, namespace/name."""
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"


def _alike(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    """Return True if two projections differ in nothing but their resourceVersion."""
    return all(
        one[key] == two[key]
        if key != "metadata"
        else {**one[key], "resourceVersion": ""} == {**two[key], "resourceVersion": ""}
        for key in two
    )


def _version_of(item: Mapping[str, Any]) -> int:
    """Return an object's resourceVersion as a number, -1 if it is not one."""
    version = item["metadata"].get("resourceVersion", "")
    return int(version) if version.isdigit() else -1


def _seen(version: str) -> range:
    """Return the range of versions that a list or watch has shown when it has reached `version`."""
    return range(int(version) + 1) if version.isdigit() else range(0)


def _is_older(have: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if `have` is older than `other`, or if that is unknown.

    resourceVersions compare as numbers: Kubernetes guarantees it from 1.35 on, and etcd has always had it.
    """
    one, two = have["metadata"].get("resourceVersion", ""), other["metadata"].get("resourceVersion", "")
    return not (one.isdigit() and two.isdigit()) or int(one) < int(two)
