"""Takes CEL selectors apart: the parts of an && chain, and the attribute and value that a part compares. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

_PAIRS: Final = {")": "(", "]": "[", "}": "{"}
_ATTRIBUTE: Final = r"device\.attributes\[(?P<quote>['\"])(?P<domain>[^'\"]+)(?P=quote)\]\.(?P<name>\w+)"
_LITERAL: Final = r"(?P<literal>'[^'\\]*'|\"[^\"\\]*\"|-?\d+|true|false)"
_COMPARISON: Final = re.compile(rf"\s*{_ATTRIBUTE}\s*(?P<operator>==|>=|<=|<|>)\s*{_LITERAL}\s*")
_READS: Final = re.compile(_ATTRIBUTE)
_CALLED: Final = re.compile(rf"{_ATTRIBUTE}\s*\.\s*(compareTo|isGreaterThan|isLessThan)\b")
_HAS: Final = re.compile(rf"has\s*\(\s*{_ATTRIBUTE}\s*\)")


@dataclass(frozen=True, slots=True)
class Comparison:
    """`device.attributes[domain].name OPERATOR value`. `start` and `end` are the literal's place in the part."""

    domain: str
    name: str
    operator: str
    value: Any
    start: int
    end: int


def parts(expression: str) -> list[tuple[int, str]]:
    """Return the operands of the outermost && with their places; the whole expression if || or ?: is outermost."""
    operands, start = [], 0
    for place, operator in _outermost(expression):
        if operator in ("||", "?"):
            return [(0, expression)]
        if operator == "&&":
            operands.append((start, expression[start:place]))
            start = place + 2
    return [*operands, (start, expression[start:])]


def _outermost(expression: str) -> Iterator[tuple[int, str]]:
    depth: list[str] = []
    quote, place = "", 0
    while place < len(expression):
        character = expression[place]
        if quote:
            if character == "\\":
                place += 1
            elif character == quote:
                quote = ""
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth.append(character)
        elif character in _PAIRS:
            if depth and depth[-1] == _PAIRS[character]:
                depth.pop()
        elif not depth:
            if expression[place : place + 2] in ("&&", "||"):
                yield place, expression[place : place + 2]
                place += 1
            elif character == "?" and expression[place - 1 : place] != "." and expression[place - 1 : place] != "[":
                yield place, "?"
        place += 1


def comparison(part: str) -> Comparison | None:
    """Return the comparison of an attribute with a literal, if the part is one and nothing else."""
    match = _COMPARISON.fullmatch(part)
    if match is None:
        return None
    literal_value = _value_of(match["literal"])
    return Comparison(match["domain"], match["name"], match["operator"], literal_value, *match.span("literal"))


def _value_of(literal: str) -> str | bool | int:
    if literal[0] in "'\"":
        return literal[1:-1]
    if literal in ("true", "false"):
        return literal == "true"
    return int(literal)


def reads(expression: str) -> list[tuple[str, str, tuple[int, int]]]:
    """Return domain, name and place of the name of each attribute that an expression reads or tests."""
    attributes_read = []
    for match in _READS.finditer(expression):
        attributes_read.append((match["domain"], match["name"], match.span("name")))
    return attributes_read


def remedy(expression: str, error: str) -> str:
    """Return what to change in an expression that fails on a device with this error; empty if that is not known.

    has() helps only if the device lacks an attribute.
    """
    if "no such key" in error:
        return "put has(...) && before it"
    if "no such overload: (string)." in error:
        match = _CALLED.search(expression)
        attribute = match["name"] if match else "the attribute"
        return f"{attribute} is a string, not a version or a quantity: compare it with == or with in [...]"
    return ""


def guarded(expression: str) -> str:
    """Return the expression with has() in front for each attribute that it reads; the same text if it has them all."""
    tested = {(match["domain"], match["name"]) for match in _HAS.finditer(expression)}
    read = dict.fromkeys((domain, name) for domain, name, _ in reads(expression))
    missing = []
    for domain, name in read:
        if (domain, name) not in tested:
            missing.append(f"has(device.attributes['{domain}'].{name})")
    if not missing:
        return expression
    whole = expression
    if len(parts(expression)) == 1 and _has_or(expression):
        whole = f"({expression})"
    return " && ".join([*missing, whole.strip()])


def _has_or(expression: str) -> bool:
    return any(operator != "&&" for _, operator in _outermost(expression))
