"""4.02: time limits are measured by the API server's clock, and not by that of the machine."""

from __future__ import annotations

import datetime
import email.utils

import pytest

from neuron_dra.kube.server_clock import ServerClock

START = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
SURE_S = 10.0


class Heard:
    """A clock, and the seconds that have passed since it was made."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self.clock = ServerClock(SURE_S, lambda: 5000.0 + self.passed_s)

    def hear(self, ahead_s: float = 0.0) -> None:
        sent_at = START + datetime.timedelta(seconds=self.passed_s + ahead_s)
        self.clock.hear(email.utils.format_datetime(sent_at, usegmt=True))

    @property
    def ahead_s(self) -> float:
        now = self.clock.now()
        assert now is not None
        return (now - START).total_seconds() - self.passed_s


def test_time_is_unknown_before_the_first_response() -> None:
    assert Heard().clock.now() is None


@pytest.mark.parametrize("date", ["", "yesterday", "Sun, 99 Mar 2026 12:00:00 GMT"])
def test_unreadable_date_changes_nothing(date: str) -> None:
    heard = Heard()
    heard.hear()
    heard.clock.hear(date)
    assert heard.ahead_s == 0


def test_time_goes_on_between_responses() -> None:
    heard = Heard()
    heard.hear()
    heard.passed_s = 3600.0
    assert heard.ahead_s == 0


def test_fractions_of_seconds_do_not_set_it_back() -> None:
    heard = Heard()
    heard.hear()
    heard.passed_s = 0.9  # its response says 12:00:00
    heard.hear()
    assert heard.ahead_s == 0


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
def test_short_jump_of_the_server_is_ignored(jump_s: float) -> None:
    heard = Heard()
    heard.hear()
    for heard.passed_s in (1.0, 2.0):
        heard.hear(jump_s)
    heard.passed_s = 3.0
    heard.hear()
    assert heard.ahead_s == 0


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
def test_server_whose_clock_was_set_is_followed(jump_s: float) -> None:
    heard = Heard()
    heard.hear()
    for heard.passed_s in (1.0, 1.0 + SURE_S):
        heard.hear(jump_s)
    assert heard.ahead_s == jump_s
