"""The count of the patterns that make readers stop, and the words that no page may have (4.11)."""

from __future__ import annotations

import pytest

from hack.reports import patterns

SENTENCES = {
    "passive": "It is never released under running pods by the end.",
    "telegram": "On: on nodes that already publish, this takes ten minutes.",
    "pronoun": "The driver counts those that no claim uses today.",
    "negated noun": "An unqualified group is none of the spares.",
    "what-clause": "Later, what could not be read stays unknown.",
    "colon": "It takes 1,000 s or so: the controller wakes it.",
    "person": "When a group moves, only that group is told.",
    "archaic": "The other node takes the place of this one.",
    "fronted": "Of each object the bundle contains known fields.",
    "has": "This page has the ways to install the driver.",
}


@pytest.mark.parametrize("name", patterns.PATTERNS)
def test_each_pattern_is_counted(name: str) -> None:
    assert patterns.counted(SENTENCES[name])[name] == 1


def test_code_and_plain_sentences_are_not_counted() -> None:
    figures = patterns.counted("The driver taints `what it says` in the slice.\n\n```\nnobody is told anew\n```\n")
    assert figures == dict.fromkeys(patterns.PATTERNS, 0) | {"words": 7}


def test_a_notice_is_not_a_program_that_notices() -> None:
    assert patterns.counted("The pod gets a notice, and the notice names a time.")["person"] == 0
    assert patterns.counted("The plugin notices the fault within a few seconds.")["person"] == 1


def test_no_page_has_a_banned_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(patterns.by_hand()) > 30
    assert patterns.main([]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    *_, ours, kubernetes = printed.out.splitlines()
    assert len(printed.out.splitlines()) == 2 + patterns.WORST + 2
    assert ours.startswith(f"| {len(patterns.by_hand())} pages, in 1,000 | |")
    assert ours.count("|") == kubernetes.count("|") == 3 + len(patterns.PATTERNS) + 1


def test_a_banned_word_is_named() -> None:
    assert patterns.banned("You can simply start the driver anew.") == ["simply", "anew"]
