"""Credentials for the API server, renewed before they expire and after their files have changed.

A login program's token is valid for 15 minutes, a kubelet's certificate for a day, and authorities are replaced, but
this process runs for months. `Credentials` has one set in force and replaces it as a whole: before it expires, when one
of its files has changed, and when the API server returns 401.
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

from neuron_dra.core import backoff
from neuron_dra.errors import SettingsError
from neuron_dra.kube.timing import DEFAULT_CLIENT_TIMING, CredentialTiming

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Proof:
    """One set of credentials.

    `token` is called before each request and returns the bearer token. `expires` is in seconds since 1970, 0 if
    unknown. `files` are the files that the set was read from.
    """

    token: Callable[[], str] | None = None
    tls: ssl.SSLContext | None = None
    expires: float = 0.0
    files: tuple[Path, ...] = ()


class Credentials:
    """The credentials in force: `proof` is the set, `number` counts the sets since the start."""

    def __init__(
        self,
        proof: Proof,
        read: Callable[[], Awaitable[Proof]],
        now: Callable[[], float] = time.time,
        timing: CredentialTiming = DEFAULT_CLIENT_TIMING.credentials,
    ) -> None:
        """Start with the set `proof`; `read` returns a new one, or raises SettingsError or OSError."""
        self.proof = proof
        self.number = 0
        self._read = read
        self._now = now
        self._timing = timing
        self._since = now()
        self._stamps = _stamps(proof.files)
        self._lock = asyncio.Lock()
        self._due = _Pause(timing.retry_s, timing.calm_s, now)
        self._refused = _Pause(timing.rejected_s, timing.calm_s, now)

    async def keep(self) -> None:
        """Renew the credentials when they are due, until cancelled."""
        while True:
            await asyncio.sleep(self._timing.look_s * random.uniform(0.8, 1.0))
            async with self._lock:
                if self._have_files_changed() or (self._is_due() and self._due.over):
                    await self._renew()

    async def refused(self, number: int) -> bool:
        """Handle a 401 for set `number`: return True if there is a newer set to try."""
        async with self._lock:  # requests that are rejected together share one renewal
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
        ahead_s = min(self._timing.ahead_s, self._timing.ahead_share * life)
        return bool(self.proof.expires) and self._now() >= self.proof.expires - ahead_s

    async def _renew(self) -> bool:
        """Replace the set in force and return True, or False if that failed; the caller has the lock."""
        self._due.begin()
        stamps = _stamps(self.proof.files)  # taken before the files are read, so that a later change is noticed
        try:
            new_proof = await self._read()
        except (SettingsError, OSError, ValueError) as err:
            log.warning("the credentials for the API server could not be renewed", extra={"error": str(err)})
            return False
        if new_proof.expires > self.proof.expires:
            self._due = _Pause(self._timing.retry_s, self._timing.calm_s, self._now)
            self._since = self._now()
        if new_proof.files == self.proof.files:
            self._stamps = stamps
        else:
            self._stamps = _stamps(new_proof.files)
        self.proof = new_proof
        self.number += 1
        log.info("credentials for the API server renewed", extra={"expires": int(new_proof.expires)})
        return True


class _Pause:
    """A pause between attempts that grows with each attempt, until one begins `calm_s` seconds after the last pause."""

    def __init__(self, bounds_s: tuple[float, float], calm_s: float, now: Callable[[], float]) -> None:
        self._bounds_s = bounds_s
        self._calm_s = calm_s
        self._now = now
        self._until = 0.0
        self._waits = backoff.delays(*bounds_s, random.random)

    @property
    def over(self) -> bool:
        """True if the pause is over."""
        return self._now() >= self._until

    def begin(self) -> None:
        """Start a pause, longer than the last one unless that was long ago."""
        if self._now() > self._until + self._calm_s:
            self._waits = backoff.delays(*self._bounds_s, random.random)
        self._until = self._now() + next(self._waits)


def _stamps(files: tuple[Path, ...]) -> tuple[tuple[int, int] | None, ...]:
    """Return modification time and inode of each file; None for a missing one."""
    stamps: list[tuple[int, int] | None] = []
    for file in files:
        stamp = None
        with contextlib.suppress(OSError):
            stat = os.stat(file)
            stamp = (stat.st_mtime_ns, stat.st_ino)
        stamps.append(stamp)
    return tuple(stamps)
