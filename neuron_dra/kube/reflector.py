"""A watched copy of a few objects: list, then watch, resume, and list again when told to."""

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

WATCH_S: Final = (240, 360)  # the server ends the watch; spread, so that a fleet does not come back as one
SILENCE_S: Final = 420.0  # bookmarks arrive every minute or so; no byte for this long is a dead connection
RETRY_S: Final = (0.5, 30.0)  # first and longest wait after a failure
NONSENSE: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading an answer raises that is not what an API server sends: some proxy's page, or a broken server."""
SHORT_WATCH_S: Final = 1.0  # a watch that ends sooner counts as a failure, or a broken server is hammered


class _ListMeta(msgspec.Struct):
    version: str = msgspec.field(default="", name="resourceVersion")


class _Page(msgspec.Struct):
    """A page of a list. Its items stay bytes until each is projected: as objects they take ten times as much."""

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
    """Of an object only which version of which it is."""

    metadata: _Identity


class Reflector:
    """Keeps `items` (by namespace/name) equal to what the server has. Run `run()` as a task; it never ends by itself.

    `on_change` is called, without arguments, after every change and after every complete list. `run()` raises the
    errors in `gives_up_on` instead of trying again: NotFound says that the server does not know the kind at all.
    `project` makes what is kept of an object, once, when it arrives; its `metadata` keeps namespace, name, uid and
    resourceVersion. A change of what is not kept calls nobody. `fields`, a Struct with omit_defaults, names what is
    read of an object in the first place; the rest costs next to nothing then. With `gather_s`, changes that follow one
    another closely come up to so many seconds later, together.
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
        self._version = ""
        self._meanwhile: list[list[Callable[[], None]]] = []  # for each list under way: what was done since it began
        self.items: dict[str, dict[str, Any]] = {}
        self._touched: set[str] = set()
        self.synced = asyncio.Event()

    def take_touched(self) -> set[str]:
        """Return the keys that were put in, replaced or taken out since the last call."""
        touched, self._touched = self._touched, set()
        return touched

    def remember(self, item: Mapping[str, Any]) -> None:
        """Put in what a write of our own returned, unless the watch brought something newer already.

        An answer may be late: an object that is not there, although everything up to its version has been seen, was
        deleted since.
        """
        key = _key(item)
        have = self.items.get(key)
        is_news = _version_of(item) not in _seen(self._version) if have is None else _is_older(have, item)
        if is_news:
            self.items[key] = self._project(dict(item))
            self._touched.add(key)
        self._note(lambda: self.remember(item))

    def forget(self, item: Mapping[str, Any]) -> None:
        """Take out what we deleted ourselves, unless another object has its name by now."""
        have = self.items.get(_key(item))
        if have is not None and have["metadata"].get("uid") == item["metadata"].get("uid"):
            del self.items[_key(item)]
            self._touched.add(_key(item))
        self._note(lambda: self.forget(item))

    async def relist(self) -> None:
        """Read everything again, whatever the watch believes. Raises ApiError."""
        meanwhile: list[Callable[[], None]] = []
        self._meanwhile.append(meanwhile)
        try:
            items, version = await self._list()
        finally:
            self._meanwhile = [each for each in self._meanwhile if each is not meanwhile]
        before = self.items
        self._touched |= {key for key in before.keys() | items.keys() if before.get(key) is not items.get(key)}
        self.items, self._version = items, version
        for again in meanwhile:  # the watch will not bring it a second time
            again()
        self.synced.set()
        self._on_change()

    async def _list(self) -> tuple[dict[str, dict[str, Any]], str]:
        """Return all objects and the version of the list; what is known in this version already stays as it is."""
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
        except NONSENSE as err:
            raise Unavailable(f"the list of {self._resource.plural} is not one: {err!r}") from err
        return items, version

    def _decode(self, raw: msgspec.Raw) -> dict[str, Any]:
        """Raises one of NONSENSE."""
        item: dict[str, Any]
        if self._fields is None:
            item = msgspec.json.decode(raw)
        else:
            item = msgspec.to_builtins(msgspec.json.decode(raw, type=self._fields))
        return item

    def _note(self, again: Callable[[], None]) -> None:
        for meanwhile in self._meanwhile:
            meanwhile.append(again)

    async def run(self) -> None:
        """List and watch until cancelled. Raises what `gives_up_on` says."""
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
            except NONSENSE as err:
                log.warning("watch sent nonsense", extra={"resource": self._resource.plural, "error": repr(err)})
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
            async for line in lines:
                event = msgspec.json.decode(line, type=_Event)
                plain = event.type in ("ERROR", "BOOKMARK")
                self._apply(event.type, msgspec.json.decode(event.object) if plain else self._decode(event.object))

    def _apply(self, kind: str, item: dict[str, Any]) -> None:
        if kind == "ERROR":
            message = f"{item.get('reason')}: {item.get('message')}"
            raise Gone(message) if item.get("code") == 410 else ApiError(message, status=int(item.get("code") or 0))
        self._version = item["metadata"]["resourceVersion"]
        self._note(lambda: self._apply(kind, item))
        if kind == "BOOKMARK":
            return
        have = self.items.get(_key(item))
        if have is not None and not _is_older(have, item):
            return  # the watch lags behind a write of our own, or behind a list
        self._touched.add(_key(item))
        if kind == "DELETED":
            self.items.pop(_key(item), None)
        else:
            self.items[_key(item)] = new = self._project(item)
            if have is not None and new is not item and _alike(have, new):
                # What changed is not kept, such as a kubelet's heartbeat: the same values stay.
                self.items[_key(item)] = {**have, "metadata": new["metadata"]}
                return
        self._on_change()


def _key(item: Mapping[str, Any]) -> str:
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"


def _alike(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    """Two projections that differ in nothing but their resourceVersion."""
    return all(
        one[key] == two[key]
        if key != "metadata"
        else {**one[key], "resourceVersion": ""} == {**two[key], "resourceVersion": ""}
        for key in two
    )


def _version_of(item: Mapping[str, Any]) -> int:
    """Return a resourceVersion as a number, -1 if it is none."""
    version = item["metadata"].get("resourceVersion", "")
    return int(version) if version.isdigit() else -1


def _seen(version: str) -> range:
    """Return the versions that a list or a watch which has come to `version` has shown."""
    return range(int(version) + 1) if version.isdigit() else range(0)


def _is_older(have: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Compare resourceVersions as numbers, as Kubernetes 1.35 and later guarantee and etcd always gave."""
    one, two = have["metadata"].get("resourceVersion", ""), other["metadata"].get("resourceVersion", "")
    return not (one.isdigit() and two.isdigit()) or int(one) < int(two)
