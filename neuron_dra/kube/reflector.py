"""A watched copy of a few objects: list, watch, resume the watch, and list again when that is required."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import msgspec

from neuron_dra.core import backoff
from neuron_dra.errors import ApiError, Gone, Unavailable
from neuron_dra.kube import objects
from neuron_dra.kube.client import LARGE_PAGE_BYTES, KubeClient
from neuron_dra.kube.objects import MALFORMED, Damaged, Identity
from neuron_dra.kube.requests import Resource

log = logging.getLogger(__name__)

REFUSALS: Final = 3
"""The number of rejected watches in a row after which all objects are listed again."""
OVERLOADED: Final = (429, 503)
"""The answers of a server to which a list would be one more burden."""
VERSION_DIGITS: Final = 20  # of the largest resourceVersion


Raw = bytes | msgspec.Raw
Item = dict[str, Any]
Salvage = Callable[[Raw, Item | None], Item | None]


class _Reached(msgspec.Struct, rename="camel"):
    resource_version: str


class _Bookmark(msgspec.Struct):
    metadata: _Reached


def keep_last(raw: Raw, have: Item | None) -> Item | None:
    """Return what stands in for an object that cannot be read: what was last read of it, if anything."""
    return have


class Reflector:
    """Keeps `items`, by namespace/name, equal to the server's objects while the task `run()` runs.

    `on_change` is called, without arguments, after every change and after every complete list. `run()` raises the
    errors in `gives_up_on` instead of retrying; NotServed means that the server does not have the kind at all.
    `project` is called once for each received object, and returns the part to keep, None for nothing; its `metadata`
    must keep namespace, name, uid and resourceVersion. A change outside of what is kept does not call `on_change`.
    `fields`, a Struct with omit_defaults, has the fields that are decoded at all; the others cost next to nothing. With
    `gather_s`, changes in quick succession arrive together, up to that many seconds later. A page of a list has at most
    `page_bytes`. Its waits are those of the client's timing.

    `damaged` has the objects, by namespace/name, of which values or the whole cannot be decoded. For the latter,
    `salvage` gets the text and what was last read, and returns what stands in for the object, None for nothing.
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
        project: Callable[[Item], Item | None] | None = None,
        fields: type[msgspec.Struct] | None = None,
        gather_s: float = 0.0,
        salvage: Salvage = keep_last,
        page_bytes: int = LARGE_PAGE_BYTES,
    ) -> None:
        self._client = client
        self._timing = client.timing.watch
        self._resource = resource
        self._namespace = namespace
        self._selector = {"fieldSelector": field_selector} if field_selector else {}
        self._on_change = on_change
        self._gives_up_on = gives_up_on
        self._projects = project is not None
        self._project: Callable[[Item], Item | None] = project or (lambda item: item)
        self._fields = fields
        self._gather_s = gather_s
        self._salvage = salvage
        self._page_bytes = page_bytes
        self._gets_bookmarks = False
        self._running: asyncio.Timeout | None = None  # of the watch, or of the wait for the next one
        self._reopened: asyncio.Future[None] | None = None  # `resume` waits for it
        self._has_heard = False  # whether the watch has brought anything
        self._version = ""
        self._last_version = ""  # before `_version` was given up
        self._meanwhile: list[list[Callable[[], None]]] = []  # for each list in progress, the changes since it began
        self.items: dict[str, Item] = {}
        self.damaged: dict[str, Damaged] = {}
        self._touched: dict[str, bool] = {}  # by key, whether there was an item when they were taken
        self.synced = asyncio.Event()
        self.failures = 0  # of lists and watches, in a row
        self.last_error = ""

    @property
    def unreadable(self) -> frozenset[str]:
        """The objects, by namespace/name, of which the whole cannot be decoded."""
        return frozenset(key for key, damage in self.damaged.items() if not damage.paths)

    def take_touched(self) -> set[str]:
        """Return the keys of the items that were added, replaced or removed since the last call.

        An item that was added and removed meanwhile is left out. A caller that never takes the keys, such as a
        follower, therefore keeps no more keys than there are items.
        """
        touched, self._touched = self._touched, {}
        return set(touched)

    def _touch(self, key: str, *, was_there: bool) -> None:
        """Record that an item was added, replaced or removed."""
        was_taken = self._touched.setdefault(key, was_there)
        if not was_taken and key not in self.items:
            del self._touched[key]

    def remember(self, item: Mapping[str, Any]) -> None:
        """Add an object that a write of this process returned, unless the watch has already shown a newer one.

        The response may be late. An object that is missing although the watch has shown everything up to its version
        has been deleted, and is not added.
        """
        key = _key(item)
        if self._is_news(item, self.items.get(key)):
            kept = self._project(dict(item))
            if kept is not None:
                self.put(key, kept)
        self._note(lambda: self.remember(item))

    def remember_raw(self, raw: Raw) -> None:
        """Add an object that was read alone, unless the watch has already shown a newer one. Raises MALFORMED."""
        identity = objects.identity(raw)
        have = self.items.get(identity.key)
        if self._is_news({"metadata": msgspec.to_builtins(identity)}, have):
            item = self._read(identity, raw, have)
            if item is not None:
                self.put(identity.key, item)
        self._note(lambda: self.remember_raw(raw))

    def _is_news(self, item: Mapping[str, Any], have: Item | None) -> bool:
        """Return True if the watch has not shown an object in this version, nor a later one, nor that it is gone."""
        if have is not None:
            return _is_older(have, item)
        return _version_of(item) not in _seen(self._version)

    def put(self, key: str, item: Item) -> None:
        """Replace what is kept of an object."""
        was_there = key in self.items
        self.items[key] = item
        self._touch(key, was_there=was_there)

    def forget(self, item: Mapping[str, Any]) -> None:
        """Remove an object that this process deleted, unless a new object has the same name."""
        have = self.items.get(_key(item))
        if have is not None and have["metadata"].get("uid") == item["metadata"].get("uid"):
            del self.items[_key(item)]
            self._touch(_key(item), was_there=True)
        self._note(lambda: self.forget(item))

    async def resume(self) -> None:
        """Open the watch again where it was, and list only if that fails. Raises ApiError.

        The connection may be dead without a sign of it; the new one brings what the old one has missed.
        """
        if self._running is None:
            await self.relist()
            return
        self._reopened = reopened = asyncio.get_running_loop().create_future()
        self._running.reschedule(0.0)
        try:
            async with asyncio.timeout(self._client.timing.request_s):
                await reopened
        except (TimeoutError, ApiError):
            await self.relist()

    async def relist(self) -> None:
        """List all objects again, whatever the watch has shown. Raises ApiError."""
        meanwhile: list[Callable[[], None]] = []
        self._meanwhile.append(meanwhile)
        try:
            items, version, seen_keys = await self._list()
        finally:
            self._meanwhile = [changes for changes in self._meanwhile if changes is not meanwhile]
        before = self.items
        self.damaged = {key: damage for key, damage in self.damaged.items() if key in seen_keys}
        self.items, self._version = items, version
        for key in before.keys() | items.keys():
            if before.get(key) is not items.get(key):
                self._touch(key, was_there=key in before)
        for change in meanwhile:  # the watch does not repeat these changes
            change()
        self.synced.set()
        self.failures, self.last_error = 0, ""
        self._on_change()

    def _begin_again(self) -> None:
        """Give up the version, so that all objects are listed again."""
        self._last_version, self._version = self._version, ""

    async def _list(self) -> tuple[dict[str, Item], str, set[str]]:
        """Return all objects, the version of the list, and the keys of all, read or not.

        An object whose version is already kept is not decoded again. This does not hold after etcd was restored from a
        backup, because etcd then gives the same versions to other contents.
        """
        last_version = _number(self._version or self._last_version)
        items: dict[str, Item] = {}
        seen_keys: set[str] = set()
        version = ""
        try:
            pages = self._client.list(self._resource, self._namespace, most_bytes=self._page_bytes, **self._selector)
            async for page in pages:
                version = page.version
                for raw in page.items:
                    identity = objects.identity(raw)
                    seen_keys.add(identity.key)
                    have = self.items.get(identity.key)
                    have_version = have["metadata"].get("resourceVersion") if have is not None else None
                    is_unchanged = have_version == identity.resource_version != ""
                    is_unchanged = is_unchanged and _number(version) >= last_version
                    item = have
                    if not is_unchanged or identity.key in self.damaged:
                        item = self._read(identity, raw, have)
                    if item is not None:
                        items[identity.key] = item
        except MALFORMED as err:
            raise Unavailable(f"malformed list of {self._resource.plural}: {err!r}") from err
        return items, version, seen_keys

    def _read(self, identity: Identity, raw: Raw, have: Item | None) -> Item | None:
        """Return what is kept of an object; of one that cannot be read, what stands in for it."""
        try:
            item, paths = self._decode(raw)
            kept = self._project(item)
            damage = Damaged(identity.namespace, identity.name, paths) if paths else None
        except MALFORMED as err:
            damage = Damaged(identity.namespace, identity.name, why=str(err) or repr(err))
            kept = self._salvage(raw, have)
            if kept is not None:
                kept = {**kept, "metadata": {**kept.get("metadata", {}), **msgspec.to_builtins(identity)}}
        self._report(identity.key, damage)
        return kept

    def _decode(self, raw: Raw) -> tuple[Item, tuple[str, ...]]:
        """Return an object without the values that cannot be decoded, and their paths. Raises one of MALFORMED."""
        kind: Any = dict[str, Any] if self._fields is None else self._fields
        decoded = objects.decode(raw, kind)
        if not decoded.objects:
            raise ValueError(decoded.damaged[0].why)
        paths = decoded.damaged[0].paths if decoded.damaged else ()
        return msgspec.to_builtins(decoded.objects[0]) if self._fields else decoded.objects[0], paths

    def _report(self, key: str, damage: Damaged | None) -> None:
        """Record the damage of an object, and log it once."""
        if damage is None:
            self.damaged.pop(key, None)
            return
        if self.damaged.get(key) != damage:
            facts = {"resource": self._resource.plural, "object": key, "values": ", ".join(damage.paths)}
            if damage.why:
                facts["error"] = damage.why
            log.warning("an object cannot be decoded", extra=facts)
        self.damaged[key] = damage

    def _note(self, change: Callable[[], None]) -> None:
        """Record a change for each list in progress, to repeat it on its result."""
        for meanwhile in self._meanwhile:
            meanwhile.append(change)

    async def run(self) -> None:
        """List and watch until cancelled. Raises the errors in `gives_up_on`."""
        waits = backoff.delays(*self._timing.retry_s, random.random)
        while True:
            started = asyncio.get_running_loop().time()
            try:
                if not self._version:
                    await self.relist()
                if await self._uninterrupted(self._watch()):
                    has_failed = asyncio.get_running_loop().time() - started < self._timing.short_s
                else:
                    has_failed = False
            except Gone:
                self._begin_again()
                has_failed = asyncio.get_running_loop().time() - started < self._timing.short_s
            except ApiError as err:
                self._tell(err)
                self.failures, self.last_error = self.failures + 1, str(err)
                if isinstance(err, self._gives_up_on):
                    self._begin_again()  # its objects may be others when it can be read again
                    raise
                log.warning("watch failed", extra={"resource": self._resource.plural, "error": str(err)})
                if self.failures >= REFUSALS and err.status not in (0, *OVERLOADED):
                    # List again. An example is "Too large resource version", once etcd was restored from a backup.
                    self._version, self.failures = "", 0
                has_failed = True
            except MALFORMED as err:
                log.warning("malformed watch event", extra={"resource": self._resource.plural, "error": repr(err)})
                self._begin_again()
                has_failed = True
            if has_failed:
                await self._uninterrupted(asyncio.sleep(next(waits)))
            else:
                waits = backoff.delays(*self._timing.retry_s, random.random)

    async def _uninterrupted(self, work: Coroutine[Any, Any, None]) -> bool:
        """Await `work`; return False if `resume` has ended it."""
        try:
            async with asyncio.timeout(None) as self._running:
                await work
        except TimeoutError:
            return False
        finally:
            self._running = None
        return True

    def _tell(self, err: ApiError | None) -> None:
        """End the wait of `resume`: the watch is open again, or `err` is why it is not."""
        reopened, self._reopened = self._reopened, None
        if reopened is None or reopened.done():
            return
        if err is None:
            reopened.set_result(None)
        else:
            reopened.set_exception(err)

    async def _watch(self) -> None:
        length_s = random.randint(*self._timing.length_s)
        params = {**self._selector, "resourceVersion": self._version, "timeoutSeconds": str(length_s)}
        async with self._client.watch(
            self._resource, self._namespace, params, idle_timeout_s=self._timing.silence_s, gather_s=self._gather_s
        ) as lines:
            self._tell(None)
            self.failures, self.last_error = 0, ""
            self._has_heard = False
            began = asyncio.get_running_loop().time()
            limit_s = self._timing.bookmarks_s
            try:
                async with asyncio.timeout(limit_s if self._gets_bookmarks else None) as silence:
                    async for line in lines:
                        kind, raw = objects.event(line)
                        self._receive(kind, raw)
                        self._heard(kind, silence)
            except TimeoutError as err:
                self._gets_bookmarks = False  # until the next one: a restarted server sends none before a change
                # If etcd was restored from a backup, the server sends nothing until it has reached our version again.
                self._begin_again()
                raise Unavailable(f"no bookmark for {limit_s:g} s: the connection is dead") from err
            if not self._has_heard and asyncio.get_running_loop().time() - began >= limit_s:
                self._begin_again()  # likewise, for a kind of which this client never got a bookmark

    def _heard(self, kind: str, silence: asyncio.Timeout) -> None:
        """Extend the time until the next event, once the server has shown that it sends bookmarks."""
        self._has_heard = True
        self._gets_bookmarks |= kind == "BOOKMARK"
        if self._gets_bookmarks:
            silence.reschedule(asyncio.get_running_loop().time() + self._timing.bookmarks_s)

    def _receive(self, kind: str, raw: Raw) -> None:
        """Apply one event of the watch. Raises Gone or another ApiError for an ERROR event."""
        if kind == "ERROR":
            error: Item = msgspec.json.decode(raw)
            message = f"{error.get('reason')}: {error.get('message')}"
            if error.get("code") == 410:
                raise Gone(message)
            raise ApiError(message, status=int(error.get("code") or 0))
        if kind == "BOOKMARK":
            self._reached(msgspec.json.decode(raw, type=_Bookmark).metadata.resource_version)
        else:
            self._apply(kind, raw)

    def _reached(self, version: str) -> None:
        self._version = version
        self._note(lambda: self._reached(version))

    def _apply(self, kind: str, raw: Raw) -> None:
        identity = objects.identity(raw)
        self._version = identity.resource_version
        self._note(lambda: self._apply(kind, raw))
        have = self.items.get(identity.key)
        if have is not None and not _is_older(have, {"metadata": msgspec.to_builtins(identity)}):
            return  # the watch lags behind a write of this process or behind a list
        new = None if kind == "DELETED" else self._read(identity, raw, have)
        if new is None and have is None and identity.key not in self.damaged:
            return  # nothing is kept of it, before and after
        if new is None:
            self.items.pop(identity.key, None)
        elif self._projects and have is not None and _alike(have, new):
            # The change, such as a kubelet's heartbeat, is outside of what is kept: the values stay the same.
            self.items[identity.key] = {**have, "metadata": new["metadata"]}
            self._touch(identity.key, was_there=True)
            return
        else:
            self.items[identity.key] = new
        self._touch(identity.key, was_there=have is not None)
        if kind == "DELETED":
            self.damaged.pop(identity.key, None)
        self._on_change()


def _key(item: Mapping[str, Any]) -> str:
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"


def _alike(have: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return True if two projections differ in nothing but their resourceVersion."""
    if have.keys() != new.keys():  # a field such as the series of an Event is new, or gone
        return False
    for key in new:
        if key == "metadata":
            is_same = {**have[key], "resourceVersion": ""} == {**new[key], "resourceVersion": ""}
        else:
            is_same = have[key] == new[key]
        if not is_same:
            return False
    return True


def _version_of(item: Mapping[str, Any]) -> int:
    return _number(item["metadata"].get("resourceVersion", ""))


def _seen(version: str) -> range:
    """Return the range of versions that a list or watch has shown when it has reached `version`."""
    return range(_number(version) + 1)


def _number(version: str) -> int:
    """Return a resourceVersion as a number; -1 if it is not one of at most 64 bits."""
    if version.isascii() and version.isdigit() and len(version) <= VERSION_DIGITS:
        return int(version)
    return -1


def _is_older(have: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if `have` is older than `other`, or if that is unknown.

    resourceVersions compare as numbers: Kubernetes guarantees it from 1.35 on, and etcd has always had it.
    """
    have_version, other_version = _version_of(have), _version_of(other)
    return -1 in (have_version, other_version) or have_version < other_version
