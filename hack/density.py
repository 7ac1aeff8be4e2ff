"""Find statements that say too much at once. Such a statement is unpacked: each thought gets a name and a line.

A statement is too dense if it

- has three comprehensions or more; generators, `map` and `filter` count;
- assigns inside a comprehension with `:=`;
- has a comprehension that changes something, since a loop is the form for effects;
- has a conditional expression inside another one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

MOST_COMPREHENSIONS = 2
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_LIKE_COMPREHENSIONS = ("map", "filter")
_CHANGES_A_LIST = frozenset({"append", "appendleft", "extend", "insert", "pop", "popleft", "remove", "clear"})
_CHANGES_ANOTHER = frozenset({"add", "discard", "update", "setdefault", "put_nowait", "unlink"})
_CHANGES = _CHANGES_A_LIST | _CHANGES_ANOTHER


def dense(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the reason of each statement of a Python file that is too dense."""
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.stmt):
            for reason in _reasons(statement):
                yield statement.lineno, reason


def _reasons(statement: ast.stmt) -> Iterator[str]:
    parts = list(_expressions(statement))
    comprehensions = [part for part in parts if _is_comprehension(part)]
    if len(comprehensions) > MOST_COMPREHENSIONS:
        yield f"one statement has {len(comprehensions)} comprehensions, at most {MOST_COMPREHENSIONS}: name the parts"
    if any(_has(ast.NamedExpr, part) for part in comprehensions):
        yield "a comprehension assigns with `:=`: write a loop"
    if any(_changes_something(part) for part in comprehensions):
        yield "a comprehension changes something: write a loop"
    conditionals = [part for part in parts if isinstance(part, ast.IfExp)]
    if any(_has(ast.IfExp, inner) for part in conditionals for inner in ast.iter_child_nodes(part)):
        yield "a conditional expression is inside another one: write `if` statements"


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield every expression of a statement, but not those of the statements in its body."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            # The body of a `for`, a `def` or an `except` is statements of their own.
            if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                yield child
                waiting.append(child)


def _is_comprehension(part: ast.AST) -> bool:
    if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
        return part.func.id in _LIKE_COMPREHENSIONS
    return isinstance(part, COMPREHENSIONS)


def _has(kind: type[ast.AST], part: ast.AST) -> bool:
    return any(isinstance(inner, kind) for inner in ast.walk(part))


def _changes_something(part: ast.AST) -> bool:
    for inner in ast.walk(part):
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in _CHANGES:
            return True
    return False
