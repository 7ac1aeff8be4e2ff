"""Authentication: off by default; with bearer tokens, client certificates, or both."""

from __future__ import annotations

import calendar
import time
from typing import Any

from aiohttp import web

from neuron_dra.emulation.embedded_api.errors import StatusError


class Authentication:
    """The credentials that requests need. With `tokens` None and `certificates` False, none."""

    def __init__(self) -> None:
        self.tokens: set[str] | None = None
        self.certificates = False  # the handshake verifies the authority, `check` the dates

    def check(self, request: web.Request) -> None:
        """Raise ApiError 401 unless `request` has one of the required credentials."""
        if self.tokens is None and not self.certificates:
            return
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if self.tokens is not None and kind == "Bearer" and token in self.tokens:
            return
        if self.certificates and _is_valid(request):
            return
        raise StatusError(401, "Unauthorized", "Unauthorized")


def _is_valid(request: web.Request) -> bool:
    shown: dict[str, Any] | None = request.get_extra_info("peercert")
    if not shown:
        return False
    return _seconds(shown["notBefore"]) <= time.time() <= _seconds(shown["notAfter"])


def _seconds(text: str) -> float:
    return calendar.timegm(time.strptime(text, "%b %d %H:%M:%S %Y %Z"))
