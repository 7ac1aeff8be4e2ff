"""Each program's connection to the API server, with faults: latency, cuts, kills, error bursts, old watches."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import email.utils
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

import aiohttp

from neuron_dra.core.wire import Wire
from neuron_dra.errors import AlreadyExists, ApiError, Conflict, NotFound, Unavailable, api_error
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.requests import Resource
from neuron_dra.kube.server_clock import ServerClock
from tests.support.fleet.delays import Delays

WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
LATENCY_S: Final = (0.001, 0.02)  # one way
WATCH_LAG_S: Final = (0.001, 0.05)
REFUSALS: Final = {403: "Forbidden", 422: "Invalid"}
REASONS: Final = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}

Kill = Callable[[str], None]


@dataclass(slots=True)
class Storm:
    """The next `times` writes (or requests of any kind) are answered with `status`, and not carried out."""

    status: int
    times: int
    writes_only: bool = True


@dataclass(slots=True)
class Deadly:
    """The program dies at the `nth` write from now: before it takes effect, or after and before its reply."""

    nth: int
    after: bool
    kill: Kill


@dataclass(frozen=True, slots=True)
class Policy:
    """An admission policy that rejects writes whose method and path `matches`; `name` is in traces and messages."""

    name: str
    matches: Callable[[str, str], bool]
    status: int = 422


class Ledger:
    """The controllers' ineffective writes, and all evictions. Too many retries are a violation.

    A write is ineffective if the server or a policy rejects it, or if the reply lacks what was sent. Conflicts, deleted
    objects and unavailable servers do not count. Each cause counts for itself, and a write that is accepted ends the
    count: what is tried after it is another state of the object, or another object of the name.
    """

    AT_MOST: Final = 12
    WINDOW_S: Final = 600.0

    def __init__(self) -> None:
        self._vain: dict[tuple[int, str, str], list[float]] = {}
        self.found: list[str] = []
        self.on_eviction: Callable[[str], None] = lambda path: None

    def refused(self, line: int, name: str, write: str, why: str, now: float) -> None:
        """Record an ineffective write."""
        times = [at for at in self._vain.get((line, write, why), ()) if at > now - self.WINDOW_S]
        self._vain[line, write, why] = [*times, now]
        if len(times) == self.AT_MOST:
            self.found.append(f"{name} tried {self.AT_MOST + 1} times in {now - times[0]:.0f} s to {write}: {why}")

    def accepted(self, line: int, write: str) -> None:
        """Record a write that had its effect."""
        for key in [key for key in self._vain if key[:2] == (line, write)]:
            del self._vain[key]


def kept(sent: Any, stored: Any) -> bool:
    """Return True if the server's reply contains the fields of a merge patch."""
    if not isinstance(sent, Mapping):
        return bool(sent == stored) or not (sent or stored)
    has = stored if isinstance(stored, Mapping) else {}
    return all(name not in has if value is None else kept(value, has.get(name)) for name, value in sent.items())


class Line(KubeClient):
    """One program's connection. `up` False: disconnected. `held`: the program is suspended."""

    def __init__(self, inner: KubeClient, rng: random.Random, name: str) -> None:
        super().__init__(KubeConfig("line:"), user_agent=name)
        self._inner = inner
        self._rng = rng
        self._watches: dict[_Watch, None] = {}  # in the order in which they were opened
        self._running = asyncio.Event()
        self._running.set()
        self.name = name
        self.up = True
        self.dead = False
        self.lag_s: tuple[float, float] = WATCH_LAG_S
        self.storm: Storm | None = None
        self.deadly: Deadly | None = None
        self.stall_s = 0.0  # time for which the program is suspended before a write
        self.policies: list[Policy] = []  # shared by the programs that they concern
        self.ledger: Ledger | None = None
        self.unserved = ""  # the plural of a kind for whose paths a proxy answers 404
        self.date_ahead_s = 0.0  # of the clock of the API server that answers
        self.delays: Delays | None = None
        self._slow: set[asyncio.Task[bytes]] = set()  # requests that the server carries out, answered or not
        self._date: Callable[[], datetime.datetime] | None = None

    async def __aenter__(self) -> Line:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for request in self._slow:
            request.cancel()
        await asyncio.gather(*self._slow, return_exceptions=True)
        await self._inner.__aexit__(kind, value, trace)

    # What goes wrong

    def cut(self) -> None:
        """Disconnect; watches end."""
        self.up = False
        self.break_watches()

    def reconnect(self) -> None:
        """Connect again."""
        self.up = True

    def hurry(self) -> None:
        """Let all later requests be quick."""
        self.delays = None

    def hold(self) -> None:
        """Suspend the program, as SIGSTOP does: it sends and receives nothing."""
        self._running.clear()

    def _stall(self) -> None:
        self.hold()
        asyncio.get_running_loop().call_later(self.stall_s, self.release)
        self.stall_s = 0.0

    def release(self) -> None:
        """Resume the program; it first receives what it missed."""
        self._running.set()

    @property
    def watches(self) -> tuple[_Watch, ...]:
        """The open watches."""
        return tuple(self._watches)

    @property
    def hears_at_once(self) -> bool:
        """True if its watches show changes without delay."""
        return self.lag_s[1] <= WATCH_LAG_S[1] and not any(watch.is_silent for watch in self._watches)

    def break_watches(self) -> int:
        """Break the connections of all watches; return how many."""
        for watch in self._watches:
            watch.end()
        return len(self._watches)

    def silence(self, plural: str = "") -> int:
        """Let the connections of a resource's watches (or of all) die without a sign; return how many."""
        chosen = [watch for watch in self._watches if plural in ("", watch.plural)]
        for watch in chosen:
            watch.silence()
        return len(chosen)

    def expire_watches(self, plural: str = "") -> int:
        """End the watches of a resource (or all) with a 410; return how many."""
        chosen = [watch for watch in self._watches if plural in ("", watch.plural)]
        for watch in chosen:
            watch.end(_EXPIRED)
        return len(chosen)

    # The client

    async def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        content_type: str,
        timeout_s: float,
        most_bytes: int | None = None,
    ) -> bytes:
        before_s, after_s = (0.0, 0.0) if self.delays is None else self.delays.of(path)
        is_lease = path.startswith("/apis/coordination.k8s.io/")
        if is_lease or not before_s + after_s:
            return await self._sent(method, path, params, body, content_type, timeout_s, most_bytes)

        async def late() -> bytes:
            await asyncio.sleep(before_s)
            answer = await self._sent(method, path, params, body, content_type, timeout_s, most_bytes)
            await asyncio.sleep(after_s)
            return answer

        request = asyncio.create_task(late(), name=f"{self.name}: slow {method} {path}")
        self._slow.add(request)
        request.add_done_callback(self._slow.discard)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(request)
        except TimeoutError as err:
            request.add_done_callback(_note_unread_error)
            raise Unavailable(f"{method} {path}: no answer in {timeout_s:g} s") from err

    async def _sent(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        content_type: str,
        timeout_s: float,
        most_bytes: int | None,
    ) -> bytes:
        is_trial = bool(params and params.get("dryRun"))
        is_write = method in WRITES and not path.endswith("/events") and "/events/" not in path and not is_trial
        is_lease = path.startswith("/apis/coordination.k8s.io/")
        if self.stall_s and is_write and not is_lease:
            self._stall()
        await self._way(method, path, timeout_s)
        self._struck(method, path, is_write)
        deadly = self._aims() if is_write else None
        if deadly is not None and not deadly.after:
            await self._die(deadly, f"before {method} {path}")
        if is_write and self.ledger is not None and not is_lease:
            raw = await self._written(self.ledger, method, path, params, body, content_type, timeout_s)
        else:
            self._allowed(method, path)
            raw = await self._inner._send(method, path, params, body, content_type, timeout_s, most_bytes)
        if deadly is not None:
            await self._die(deadly, f"after {method} {path}")
        await self._way(method, path, timeout_s)
        if self._date is not None:
            date = self._date() + datetime.timedelta(seconds=self.date_ahead_s)
            self.clock.hear(email.utils.format_datetime(date, usegmt=True))
        return raw

    def tell_dates(self, clock: Callable[[], datetime.datetime]) -> None:
        """Give each response a `Date` by this clock, as an HTTP server does."""
        self._date = clock
        self.clock = ServerClock(self.timing.clock_s, asyncio.get_running_loop().time)

    async def _written(
        self,
        ledger: Ledger,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: Wire | None,
        content_type: str,
        timeout_s: float,
    ) -> bytes:
        """Make a write if policies accept it, and record an ineffective one."""
        now, write = asyncio.get_running_loop().time(), f"{method} {path}"
        if path.endswith("/eviction"):
            ledger.on_eviction(path)
        try:
            self._allowed(method, path)
            raw = await self._inner._send(method, path, params, body, content_type, timeout_s)
        except ApiError as err:
            if not isinstance(err, Conflict | NotFound | AlreadyExists | Unavailable):
                ledger.refused(id(self), self.name, write, str(err), now)
            raise
        if method == "PATCH" and body is not None and not kept(_without_guard(body), json.loads(raw)):
            ledger.refused(id(self), self.name, write, "the answer has not what was sent", now)
        else:
            ledger.accepted(id(self), write)
        return raw

    def _allowed(self, method: str, path: str) -> None:
        """Raise a policy's rejection of a write or a dry run."""
        for policy in self.policies:
            if policy.matches(method, path):
                text = f"{method} {path}: admission policy {policy.name} denied the request"
                raise api_error(policy.status, REFUSALS[policy.status], text, None)

    async def _way(self, method: str, path: str, timeout_s: float) -> None:
        await asyncio.sleep(self._rng.uniform(*LATENCY_S))
        await self._running.wait()
        if not self.up or self.dead:
            await asyncio.sleep(self._rng.choice((0.01, timeout_s)))  # rejected, or without a reply
            raise Unavailable(f"{method} {path}: the API server does not answer (cut off)")

    def _struck(self, method: str, path: str, is_write: bool) -> None:
        if self.unserved and self.unserved in path.split("/"):
            raise api_error(404, "", f"{method} {path}: 404 page not found")
        storm = self.storm
        if storm is None or (storm.writes_only and not is_write):
            return
        storm.times -= 1
        if storm.times <= 0:
            self.storm = None
        reason = REASONS[storm.status]
        text = f"{method} {path}: {storm.status} {reason}: a storm"
        raise api_error(storm.status, reason, text, 1.0 if storm.status == 429 else None)

    def _aims(self) -> Deadly | None:
        deadly = self.deadly
        if deadly is None:
            return None
        deadly.nth -= 1
        return deadly if deadly.nth <= 0 else None

    async def _die(self, deadly: Deadly, where: str) -> None:
        self.deadly, self.dead = None, True
        deadly.kill(where)
        await asyncio.Event().wait()  # until it is cancelled

    @contextlib.asynccontextmanager
    async def watch(
        self, resource: Resource, namespace: str, params: Mapping[str, str], **times: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch through this connection."""
        await self._way("WATCH", resource.plural, 10.0)
        self._struck("WATCH", resource.plural, is_write=False)
        async with self._inner.watch(resource, namespace, params, **times) as lines:
            watch = _Watch(resource.plural, times["idle_timeout_s"])
            pump = asyncio.create_task(watch.pump(lines), name=f"{self.name}: watch {resource.plural}")
            self._watches[watch] = None
            try:
                yield self._delivered(watch)
            finally:
                self._watches.pop(watch, None)
                pump.cancel()
                await asyncio.gather(pump, return_exceptions=True)

    async def _delivered(self, watch: _Watch) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        while True:
            sent_at, line = await watch.queue.get()
            due = sent_at + self._rng.uniform(*self.lag_s)
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            await self._running.wait()
            if watch.ended:
                if watch.last is not None:
                    yield watch.last
                raise Unavailable(f"WATCH {watch.plural}: the connection broke")
            if watch.is_silent:
                continue
            if line is None:
                return
            yield line


def _note_unread_error(request: asyncio.Task[bytes]) -> None:
    """Read the error of a request whose client gave up, which asyncio reports otherwise."""
    if not request.cancelled():
        request.exception()


def _without_guard(body: Wire) -> Wire:
    """A patch without its preconditions, resourceVersion and UID."""
    meta = {k: v for k, v in (body.get("metadata") or {}).items() if k not in ("resourceVersion", "uid")}
    return {**body, "metadata": meta}


_EXPIRED: Final = json.dumps(
    {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}
).encode()


class _Watch:
    """An open watch, and its events that were not delivered yet."""

    def __init__(self, plural: str, idle_timeout_s: float) -> None:
        self.plural = plural
        self.is_silent = False
        self._idle_timeout_s = idle_timeout_s
        self.queue: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue()
        self.ended = False
        self.last: bytes | None = None

    def end(self, last: bytes | None = None) -> None:
        """Break it; `last` is still delivered, other pending events are not."""
        self.ended, self.last = True, last
        self.queue.put_nowait((0.0, None))

    def silence(self) -> None:
        """Deliver nothing any more. The reader notices it, at the latest by the timeout of its socket."""
        self.is_silent = True
        asyncio.get_running_loop().call_later(self._idle_timeout_s, self.end)

    async def pump(self, lines: AsyncIterator[bytes]) -> None:
        """Receive the server's events."""
        loop = asyncio.get_running_loop()
        try:
            async for line in lines:
                self.queue.put_nowait((loop.time(), line))
        except (Unavailable, aiohttp.ClientError, TimeoutError, OSError):  # silence among them
            self.ended = True
        self.queue.put_nowait((loop.time(), None))
