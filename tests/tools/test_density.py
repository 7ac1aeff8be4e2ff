"""The lint of dense statements, on short examples of what it refuses and what it leaves."""

from __future__ import annotations

import pytest

from hack.density import dense

MANY = "one statement has 3 comprehensions, at most 2: name the parts"
ASSIGNS = "a comprehension assigns with `:=`: write a loop"
CHANGES = "a comprehension changes something: write a loop"
NESTED = "a conditional expression is inside another one: write `if` statements"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x = [a for a in b], {a for a in b}, tuple(a for a in b)", MANY),
        ("x = list(map(f, filter(g, (a for a in b))))", MANY),
        ("for x in [[[a for a in b] for b in c] for c in d]:\n    pass", MANY),
        ("x = [y for a in b if (y := f(a))]", ASSIGNS),
        ("x = [have.pop(a) for a in b]", CHANGES),
        ("x = {a for a in b if a not in seen and not seen.add(a)}", CHANGES),
        ("x = 1 if a else 2 if b else 3", NESTED),
        ("f(1 if (2 if a else b) else 3)", NESTED),
    ],
)
def test_a_dense_statement_is_found(source: str, reason: str) -> None:
    assert list(dense(source)) == [(1, reason)]


@pytest.mark.parametrize(
    "source",
    [
        "x = [a for a in b], {a for a in b}",
        "for x in [a for a in b]:\n    y = [a for a in b]\n    z = [a for a in b]",
        "if (y := f()):\n    x = [a for a in y]",
        "x = [a.upper() for a in b]",
        "x = (1 if a else 2), (3 if b else 4)",
        "def f():\n    x = 1 if a else 2\n    y = 1 if a else 2",
    ],
)
def test_a_statement_of_one_thought_is_left(source: str) -> None:
    assert list(dense(source)) == []
