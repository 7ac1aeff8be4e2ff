"""Texts of users in messages are cut and printable (4.04)."""

from __future__ import annotations

import pytest

from neuron_dra.core import user_text

HOSTILE = "\x1b[31m\nW1127 forged log line\u202e\ud800"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("größer", "größer"),
        ("a\nb", "a\\nb"),
        ("x" * 61, "x" * 57 + "..."),
        (HOSTILE, "\\x1b[31m\\nW1127 forged log line\\u202e\\ud800"),
    ],
)
def test_text_is_cut_and_printable(text: str, expected: str) -> None:
    assert user_text.printable(text) == expected


@pytest.mark.parametrize("text", [HOSTILE * 100, "\x00" * 5000, "\U000e0001" * 30])
def test_escaped_text_is_no_longer_than_its_limit(text: str) -> None:
    shortened = user_text.printable(text, 50)
    assert (len(shortened), shortened.isprintable()) == (50, True)


def test_value_is_quoted() -> None:
    assert (user_text.shown("a\tb"), user_text.shown(3)) == (r"'a\tb'", "3")
