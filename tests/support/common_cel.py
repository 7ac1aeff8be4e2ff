"""The part of CEL in which Kubernetes and cel-python agree, as a predicate on an expression's syntax.

cel-python has neither Kubernetes' libraries nor a type checker, and no result where two types are compared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from celpy.celparser import CELParser
from lark import Token, Tree

FEATURES: Final = {
    "optional values": r"\.\?|\[\?|\boptional\.",
    "`cel.bind`": r"\bcel\.bind\(",
    "macros with two variables": r"\.(all|exists|existsOne)\(\w+, \w+,",
    "versions": r"\b(is)?[sS]emver\(|\.(version|versions|candidate)\b",
    "quantities": r"\b(is)?[qQ]uantity\(|\bdevice\.capacity\[",
    "`includes`": r"\.includes\(",
    "the library of sets": r"\bsets\.",
    "the libraries of strings and regular expressions": r"\.(indexOf|lastIndexOf|lowerAscii|upperAscii|trim|replace"
    r"|substring|charAt|join|split|find|findAll)\(",
    "the library of lists": r"\.(sum|min|max|sort|isSorted)\(",
}
"""What cel-python does not have: the reason to leave an expression out, and a pattern that finds it."""
TWO_NUMBERS: Final = "an int beside a double: no result in cel-python"
TYPES: Final = "types that do not fit: not checked or no result in cel-python"
CONTAINS: Final = "`contains` of joined strings: an error in cel-python"
CONSTANTS: Final = "a constant that Kubernetes reads when it compiles: read on the device in cel-python"
INDEX: Final = "a computed index: from the end in cel-python where it is negative"
STRING_OF_BOOL: Final = "`string` of a bool: `True` in cel-python"
BODY: Final = "`map` or `filter` of what can fail: not absorbed by logical operators in cel-python"
REASONS: Final = (*FEATURES, TWO_NUMBERS, TYPES, CONTAINS, CONSTANTS, INDEX, STRING_OF_BOOL, BODY)

Names = Mapping[str, str]
"""The types of the variables of the macros around an expression."""
_ABSENT: Final = "absent"  # of an attribute that no device has: its value is an error, which fits any type
_LITERALS: Final = {
    "BOOL_LIT": "bool", "INT_LIT": "int", "FLOAT_LIT": "double", "STRING_LIT": "string", "MLSTRING_LIT": "string",
    "NULL_LIT": "null",
}  # fmt: skip
_CONVERSIONS: Final = {"bool": "bool", "int": "int", "double": "double", "string": "string", "size": "int"}
_FIELDS: Final = {
    "driver": "string", "allowMultipleAllocations": "bool", "attributes": "map of domains",
    "capacity": "map of domains",
}  # fmt: skip
_MAPS: Final = ("map of domains", "map of attributes")
_COMPUTES: Final = ("addition_add", "addition_sub", "multiplication_mul", "multiplication_div", "multiplication_mod")
_ORDERED: Final = ("int", "double", "string", "bool")


class LeftOutError(Exception):
    """The expression is not in the common part; the message is one of REASONS."""


def parse(expression: str) -> Tree[Token]:
    """Return the tree of an expression of the common part. Raises CELParseError."""
    return CELParser().parse(expression)


def left_out(expression: str, attributes: Names) -> str | None:
    """Return why an expression is not in the common part, or None; `attributes` has their types by local name."""
    for reason, pattern in FEATURES.items():
        if re.search(pattern, expression):
            return reason
    try:
        _require(_Types(attributes).of(parse(expression), {}), "bool")
    except LeftOutError as err:
        return str(err)
    return None


def _require(found: str, *wanted: str) -> None:
    if found != _ABSENT and found not in wanted:
        raise LeftOutError(TYPES)


def _common(left: str, right: str) -> str:
    """Return the type of both."""
    if {left, right} == {"int", "double"}:
        raise LeftOutError(TWO_NUMBERS)
    if left == _ABSENT:
        return right
    if left.startswith("list of ") and right.startswith("list of "):
        return f"list of {_common(_element(left), _element(right))}"
    _require(right, left)
    return left


def _element(kind: str) -> str:
    if kind in _MAPS:
        return "string"
    if not kind.startswith("list of ") and kind != _ABSENT:
        raise LeftOutError(TYPES)
    return kind.removeprefix("list of ")


def _literal(tree: Tree[Token]) -> str | None:
    """Return the text of a string literal, None for another expression."""
    token = _only_token(tree, "STRING_LIT", "MLSTRING_LIT")
    return None if token is None else token.lstrip("rR").strip("'\"")


def _only_token(tree: Tree[Token], *types: str) -> str | None:
    """Return the text of an expression that is one token of one of the types, without a sign; else None."""
    tokens = list(tree.scan_values(lambda token: True))
    if len(tokens) != 1 or tokens[0].type not in types or tokens[0].startswith("-") or _has(tree, "unary_neg"):
        return None
    return str(tokens[0])


def _has(tree: Tree[Token], *rules: str) -> bool:
    return next(tree.find_pred(lambda node: node.data in rules), None) is not None


def _can_fail(body: Tree[Token]) -> bool:
    """Return True if the body reads an attribute, calls a function, indexes or computes."""
    return _has(body, "member_dot", "member_dot_arg", "member_index", "ident_arg", "unary_neg", *_COMPUTES)


def _is_valid(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


class _Types:
    """Finds the type of each part of an expression."""

    def __init__(self, attributes: Names) -> None:
        self._attributes = attributes

    def of(self, tree: Tree[Token], names: Names) -> str:
        """Return the type of a tree. Raises LeftOutError."""
        rule = str(tree.data)
        children = [child for child in tree.children if isinstance(child, Tree)]
        if rule == "literal":
            return _LITERALS[self._token(tree).type]
        if rule == "ident":
            return {"device": "device", **names}[str(self._token(tree))]
        if rule == "ident_arg":
            return self._function(str(self._token(tree)), self._arguments(children), names)
        if rule == "list_lit":
            return self._list(self._arguments(children), names)
        if rule == "member_dot":
            return self._field(self.of(children[0], names), str(self._token(tree)))
        if rule == "member_dot_arg":
            return self._method(children[0], str(self._token(tree)), self._arguments(children[1:]), names)
        if rule == "member_index":
            return self._index(self.of(children[0], names), children[1], names)
        if len(children) == 1:
            return self.of(children[0], names)
        return self._operation(rule, children, names)

    def _operation(self, rule: str, children: list[Tree[Token]], names: Names) -> str:
        if rule == "unary":
            wanted = ("bool",) if children[0].data == "unary_not" else ("int", "double")
            found = self.of(children[1], names)
            _require(found, *wanted)
            return found
        if rule == "expr":
            _require(self.of(children[0], names), "bool")
            return _common(self.of(children[1], names), self.of(children[2], names))
        left, right = self.of(children[0], names), self.of(children[1], names)
        if rule in ("conditionalor", "conditionaland"):
            _require(left, "bool")
            _require(right, "bool")
            return "bool"
        if children[0].data == "relation_in":
            _common(left, _element(right))
            return "bool"
        both = _common(left, right)
        if rule == "relation":
            if children[0].data not in ("relation_eq", "relation_ne"):
                _require(both, *_ORDERED)
            return "bool"
        if children[0].data != "addition_add":
            _require(both, "int", "double")
        elif not both.startswith("list of "):
            _require(both, "int", "double", "string")
        return both

    def _function(self, name: str, arguments: list[Tree[Token]], names: Names) -> str:
        found = self.of(arguments[0], names)
        if name == "has":
            return "bool"
        if name == "size" and found != "string":
            _element(found)
        constant = _literal(arguments[0])
        if name in ("int", "double") and constant is not None:
            raise LeftOutError(CONSTANTS)
        if name == "bool" and constant not in (None, "true", "false"):
            raise LeftOutError(CONSTANTS)
        if name == "string" and found == "bool":
            raise LeftOutError(STRING_OF_BOOL)
        return _CONVERSIONS[name]

    def _list(self, items: list[Tree[Token]], names: Names) -> str:
        kind = _ABSENT
        for item in items:
            kind = _common(kind, self.of(item, names))
        return f"list of {kind}"

    def _field(self, holder: str, name: str) -> str:
        if holder == "device":
            return _FIELDS[name]
        if holder == "map of domains":
            return "map of attributes"
        _require(holder, "map of attributes")
        return self._attributes.get(name, _ABSENT)

    def _index(self, holder: str, index: Tree[Token], names: Names) -> str:
        key = self.of(index, names)
        if holder in _MAPS:
            _require(key, "string")
            return self._field(holder, _literal(index) or "")
        _require(key, "int")
        if _only_token(index, "INT_LIT") is None:
            raise LeftOutError(INDEX)
        return _element(holder)

    def _method(self, target: Tree[Token], name: str, arguments: list[Tree[Token]], names: Names) -> str:
        holder = self.of(target, names)
        if name == "size":
            return self._function(name, [target], names)
        if name in ("all", "exists", "exists_one", "filter", "map"):
            element = _element(holder)
            variable = str(next(arguments[0].scan_values(lambda token: True)))
            body = self.of(arguments[1], {**names, variable: element})
            if name in ("map", "filter") and _can_fail(arguments[1]):
                raise LeftOutError(BODY)
            if name == "map":
                return f"list of {body}"
            _require(body, "bool")
            return holder if name == "filter" else "bool"
        _require(holder, "string")
        _require(self.of(arguments[0], names), "string")
        if name == "contains" and _has(target, "addition_add"):
            raise LeftOutError(CONTAINS)
        pattern = _literal(arguments[0])
        if name == "matches" and pattern is not None and not _is_valid(pattern):
            raise LeftOutError(CONSTANTS)
        return "bool"

    @staticmethod
    def _arguments(children: list[Tree[Token]]) -> list[Tree[Token]]:
        lists = [child for child in children if child.data == "exprlist"]
        return [item for each in lists for item in each.children if isinstance(item, Tree)]

    @staticmethod
    def _token(tree: Tree[Token]) -> Token:
        return next(child for child in tree.children if isinstance(child, Token))
