"""Who may ask the server of the page, and what a browser may do with its answers. Pure."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
    "Server": "neuron-dra",
}
"""Headers of every answer."""

PAGE: Final = "/"
EXCHANGE: Final = "/api/token"
"""Gives the token for the ticket, which stands in place of the token in this one request."""
SCHEME: Final = "Bearer "


def objection(method: str, path: str, headers: Mapping[str, str], host: str, token: str) -> tuple[int, str]:
    """Return status and text of the refusal of a request; (0, "") if it may be answered.

    The page itself may be opened from anywhere, as it has no secrets; everything else only by the page.
    """
    if headers.get("Host") != host:
        return 421, f"this server is http://{host}: open it with `neuron-dra ui`"
    if method != "GET":
        return 405, "only GET: this page changes nothing"
    site = headers.get("Sec-Fetch-Site", "")
    target = headers.get("Sec-Fetch-Dest", "")
    if path == PAGE:
        is_window = target in ("", "document")
        if is_window:
            return (0, "")
        return (403, "the page is not shown inside of others")
    if site != "same-origin" or headers.get("Origin", f"http://{host}") != f"http://{host}":
        return 403, "only the page itself may ask"
    if not path.startswith("/api/"):
        return 0, ""
    given = headers.get("Authorization", "")
    if not hmac.compare_digest(given.encode(errors="replace"), f"{SCHEME}{token}".encode()):
        return 401, "the token is missing or wrong: open the page with `neuron-dra ui`"
    return 0, ""
