"""Who may ask: everybody, until bearer tokens or client certificates are required."""

from __future__ import annotations

import calendar
import time
from typing import Any

from aiohttp import web

from neuron_dra.emulation.embedded_api.errors import ApiError


class Authentication:
    """What a request must show. `tokens` None and `certificates` False: nothing."""

    def __init__(self) -> None:
        self.tokens: set[str] | None = None
        self.certificates = False  # one that has not expired; the handshake has seen whose authority it is of

    def check(self, request: web.Request) -> None:
        """Raise a 401 unless `request` shows one of what is required, if anything is."""
        if self.tokens is None and not self.certificates:
            return
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if self.tokens is not None and kind == "Bearer" and token in self.tokens:
            return
        if self.certificates and _is_valid(request):
            return
        raise ApiError(401, "Unauthorized", "Unauthorized")


def _is_valid(request: web.Request) -> bool:
    shown: dict[str, Any] | None = request.get_extra_info("peercert")
    if not shown:
        return False
    return _seconds(shown["notBefore"]) <= time.time() <= _seconds(shown["notAfter"])


def _seconds(text: str) -> float:
    return calendar.timegm(time.strptime(text, "%b %d %H:%M:%S %Y %Z"))
