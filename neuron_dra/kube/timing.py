"""The waits of a client of the API server. Each program's timing has one group of these."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WatchTiming:
    """Of the lists and watches that keep a copy of objects."""

    # After which the server ends a watch; random, so that a fleet does not reconnect at once.
    length_s: tuple[int, int] = (240, 360)
    silence_s: float = 420.0  # longer than any watch lasts: this long without a byte is a dead connection

    # Counted from the first bookmark on: a kind that has not changed since the API server started may get none.
    # A proxy may keep a connection alive whose server is gone.
    bookmarks_s: float = 150.0  # the time in which two bookmarks arrive; without one, the connection is dead
    retry_s: tuple[float, float] = (0.5, 30.0)  # first and longest delay after a failure
    short_s: float = 1.0  # a watch that ends sooner counts as a failure, so that a broken server is not overloaded


@dataclass(frozen=True, slots=True)
class CredentialTiming:
    """Of the renewal of credentials."""

    look_s: float = 5.0  # interval at which files and expiry are checked
    ahead_s: float = 120.0  # credentials are renewed this long before they expire
    ahead_share: float = 0.3  # but no earlier than in this last part of their lifetime

    # First and longest delay after a renewal that failed or brought nothing newer.
    retry_s: tuple[float, float] = (5.0, 60.0)

    # First and longest delay between renewals after a 401: rights may be gone for good.
    rejected_s: tuple[float, float] = (5.0, 300.0)
    calm_s: float = 600.0  # after this long without a 401, the delays start from the first one again
    login_s: float = 60.0  # limit of a login for a renewal; the first login has none, because it may prompt a person


@dataclass(frozen=True, slots=True)
class EventTiming:
    """Of the Events that a program posts."""

    repeat_s: float = 600.0  # how often an Event that still applies is renewed
    lifetime_s: float = 3600.0  # how long the API server keeps an Event
    retry_s: tuple[float, float] = (1.0, 60.0)  # first and longest delay of a namespace whose Events cannot be posted
    slow_s: float = 1.0  # after which a request leaves its place to another namespace


@dataclass(frozen=True, slots=True)
class ClientTiming:
    """Of everything that a program does at the API server."""

    request_s: float = 10.0  # limit of a request, unless its caller sets another one
    clock_s: float = 10.0  # for so long responses must agree that the API server's clock was set
    watch: WatchTiming = WatchTiming()
    credentials: CredentialTiming = CredentialTiming()
    events: EventTiming = EventTiming()


DEFAULT_CLIENT_TIMING = ClientTiming()
