"""Who we are to the API server, kept valid: what expires is renewed before, what lies in files is read again.

A login program's token lives for 15 minutes, a kubelet's certificate for a day, and authorities are replaced. We run
for months. `Credentials` has one set in force, and replaces it as a whole: before it expires, when a file of it
changed, and when the API server answers 401.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuron_dra.core import backoff
from neuron_dra.errors import SettingsError

log = logging.getLogger(__name__)

LOOK_S: Final = 5.0  # how often files are looked at, and the clock
AHEAD_S: Final = 120.0  # renewed so long before the end
AHEAD_SHARE: Final = 0.3  # but no earlier than in the last third of their life
RETRY_S: Final = (5.0, 60.0)  # first and longest wait after a renewal that failed or brought nothing newer
REFUSED_S: Final = (5.0, 300.0)  # first and longest wait between renewals because of a 401: rights may be gone for good
CALM_S: Final = 600.0  # without a 401 for so long, the next one is the first one again


@dataclass(frozen=True, slots=True)
class Proof:
    """One set of credentials. `expires` is in seconds since 1970, 0 if that is not known.

    `files` are those that it was read from. `token` is asked before each request.
    """

    token: Callable[[], str] | None = None
    tls: ssl.SSLContext | None = None
    expires: float = 0.0
    files: tuple[Path, ...] = ()


class Credentials:
    """The credentials in force; `number` counts the sets."""

    def __init__(
        self, proof: Proof, read: Callable[[], Awaitable[Proof]], now: Callable[[], float] = time.time
    ) -> None:
        """`read` returns a fresh set, or raises SettingsError or OSError."""
        self.proof = proof
        self.number = 0
        self._read = read
        self._now = now
        self._since = now()
        self._stamps = _stamps(proof.files)
        self._lock = asyncio.Lock()
        self._due = _Pause(RETRY_S, now)
        self._refused = _Pause(REFUSED_S, now)

    async def keep(self) -> None:
        """Renew whenever it is time, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S * random.uniform(0.8, 1.0))
            async with self._lock:
                if self._have_files_changed() or (self._is_due() and self._due.over):
                    await self._renew()

    async def refused(self, number: int) -> bool:
        """The API server answered 401 to set `number`: return whether there is another one to try."""
        async with self._lock:  # those that are refused together wait for one renewal
            if self.number != number:
                return True
            if not (self._refused.over or self._have_files_changed()):
                return False
            self._refused.begin()
            return await self._renew()

    def _have_files_changed(self) -> bool:
        return self._stamps != _stamps(self.proof.files)

    def _is_due(self) -> bool:
        life = self.proof.expires - self._since
        return bool(self.proof.expires) and self._now() >= self.proof.expires - min(AHEAD_S, AHEAD_SHARE * life)

    async def _renew(self) -> bool:
        """Replace the set in force, under the lock; False if that failed."""
        self._due.begin()
        stamps = _stamps(self.proof.files)  # before they are read: what changes meanwhile is read once more
        try:
            fresh = await self._read()
        except (SettingsError, OSError, ValueError) as err:
            log.warning("the credentials for the API server cannot be renewed yet", extra={"error": str(err)})
            return False
        if fresh.expires > self.proof.expires:
            self._due = _Pause(RETRY_S, self._now)
            self._since = self._now()
        self._stamps = stamps if fresh.files == self.proof.files else _stamps(fresh.files)
        self.proof = fresh
        self.number += 1
        log.info("credentials for the API server renewed", extra={"expires": int(fresh.expires)})
        return True


class _Pause:
    """Waits that grow while they follow one another."""

    def __init__(self, bounds_s: tuple[float, float], now: Callable[[], float]) -> None:
        self._bounds_s = bounds_s
        self._now = now
        self._until = 0.0
        self._waits = backoff.delays(*bounds_s, random.random)

    @property
    def over(self) -> bool:
        """Nothing is to be waited for."""
        return self._now() >= self._until

    def begin(self) -> None:
        """Wait from now on, longer than the last time unless that is long ago."""
        if self._now() > self._until + CALM_S:
            self._waits = backoff.delays(*self._bounds_s, random.random)
        self._until = self._now() + next(self._waits)


def _stamps(files: tuple[Path, ...]) -> tuple[tuple[int, int] | None, ...]:
    found: list[tuple[int, int] | None] = []
    for file in files:
        stamp = None
        with contextlib.suppress(OSError):
            stat = os.stat(file)
            stamp = (stat.st_mtime_ns, stat.st_ino)
        found.append(stamp)
    return tuple(found)
