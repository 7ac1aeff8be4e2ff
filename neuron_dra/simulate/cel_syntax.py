"""CEL text -> a small syntax tree. The grammar and the parser are cel-python's; this module only names the parts.

Two things are put in front of that parser: optional access (`a.?b`, `a[?k]`), which it does not know, is spelled as a
marked name, and `a-1` is spelled `a- 1`, which it would read as the two numbers `a` and `-1`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from neuron_dra.simulate.cel_values import CompileError, Uint, UnsupportedError

MAX_LENGTH: Final = 10 * 1024  # bytes; resource.k8s.io/v1 CELSelectorExpressionMaxLength
_MARK: Final = "optional__"


@dataclass(frozen=True, slots=True)
class Node:
    """One part of an expression.

    `kind` is literal, name, select, index, call, method, list, map, and, or, not, neg, cond or binary; `value` is the
    literal, the name or the operator; `optional` is set on `a.?b` and `a[?k]`.
    """

    kind: str
    value: Any = None
    parts: tuple[Node, ...] = ()
    optional: bool = False


def parse(expression: str) -> Node:
    """The tree of one expression. Raises CompileError, or UnsupportedError for syntax that only we lack."""
    if len(expression.encode()) > MAX_LENGTH:
        raise CompileError(f"the expression is longer than {MAX_LENGTH} bytes")
    from celpy.celparser import CELParseError

    try:
        tree = _parser().parse(_respell(expression))
    except CELParseError as err:
        raise CompileError(f"syntax error in {expression.strip()!r}: {_first_line(err)}") from err
    return _node(tree)


@cache
def _parser() -> Any:
    from celpy.celparser import CELParser  # loads lark; about 50 ms, so only when a selector is evaluated

    return CELParser()


def _first_line(err: Exception) -> str:
    column = getattr(err, "column", None)
    return f"near column {column}" if column else str(err).strip().splitlines()[0]


_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*)
    |(?P<string>[bB]?[rR](?:\"{3}.*?\"{3}|'{3}.*?'{3}|"[^"\n]*"|'[^'\n]*')
       |[bB]?(?:\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
    |(?P<name>[A-Za-z_]\w*)|(?P<number>\d[\w.]*)|(?P<space>\s+)
    |(?P<optional_field>\.\s*\?)|(?P<optional_index>\[\s*\?)|(?P<optional_entry>[{,]\s*\?)|(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


def _respell(expression: str) -> str:
    out: list[str] = []
    closers: list[str] = []  # what each open bracket must be closed with
    operand = False  # is the token before this one the end of an operand?
    for match in _TOKEN.finditer(expression):
        kind, text = match.lastgroup, match.group()
        if kind in ("space", "comment"):
            out.append(text)
            continue
        if kind == "optional_entry" or (kind == "optional_index" and not operand):
            raise UnsupportedError("optional list and map entries ([?x], {?k: v}) are not supported here")
        if kind == "optional_field":
            out.append(f".{_MARK}")
            operand = False
            continue
        if kind == "optional_index":
            out.append(f"[{_MARK}(")
            closers.append(")]")
            operand = False
            continue
        if text in ("(", "[", "{"):
            closers.append({"(": ")", "[": "]", "{": "}"}[text])
        elif text in (")", "]", "}") and closers:
            text = closers.pop()
        elif text == "-" and operand:
            text = "- "
        out.append(text)
        operand = kind in ("string", "number") or (kind == "name" and text != "in") or text[-1:] in ")]}"
    return "".join(out)


_BINARY = {
    "relation_lt": "<", "relation_le": "<=", "relation_gt": ">", "relation_ge": ">=", "relation_eq": "==",
    "relation_ne": "!=", "relation_in": "in", "addition_add": "+", "addition_sub": "-",
    "multiplication_mul": "*", "multiplication_div": "/", "multiplication_mod": "%",
}  # fmt: skip


def _node(tree: Any) -> Node:
    """Name one lark tree; chains of one child (the precedence levels) are passed through."""
    rule, children = str(tree.data), tree.children
    if rule in _RULES:
        return _RULES[rule](children)
    if len(children) == 1:
        return _node(children[0])
    if rule == "expr":
        return Node("cond", parts=tuple(_node(child) for child in children))
    if rule in ("conditionalor", "conditionaland"):
        return Node(rule.removeprefix("conditional"), parts=(_node(children[0]), _node(children[1])))
    if rule == "unary":
        kind = "not" if children[0].data == "unary_not" else "neg"
        return Node(kind, parts=(_node(children[1]),))
    left, right = children  # relation, addition, multiplication: the left one names the operator and holds its operand
    return Node("binary", _BINARY[str(left.data)], (_node(left.children[0]), _node(right)))


def _arguments(children: list[Any]) -> tuple[Node, ...]:
    return tuple(_node(child) for child in children[0].children) if children else ()


def _select(children: list[Any]) -> Node:
    name = str(children[1])
    return Node("select", name.removeprefix(_MARK), (_node(children[0]),), optional=name.startswith(_MARK))


def _index(children: list[Any]) -> Node:
    key = _node(children[1])
    optional = key.kind == "call" and key.value == _MARK
    return Node("index", parts=(_node(children[0]), key.parts[0] if optional else key), optional=optional)


def _method(children: list[Any]) -> Node:
    return Node("method", str(children[1]), (_node(children[0]), *_arguments(children[2:])))


def _call(children: list[Any]) -> Node:
    return Node("call", str(children[0]), _arguments(children[1:]))


def _list(children: list[Any]) -> Node:
    return Node("list", parts=_arguments(children))


def _map(children: list[Any]) -> Node:
    return Node("map", parts=_arguments(children))


def _message(children: list[Any]) -> Node:
    raise UnsupportedError("message construction (Type{field: value}) is not supported here")


def _literal(children: list[Any]) -> Node:
    from celpy.evaluation import celbytes, celstr

    token = children[0]
    text = str(token)
    try:
        match token.type:
            case "INT_LIT":
                return Node("literal", _in_range(int(text, 0 if "x" in text else 10), -(2**63), 2**63))
            case "UINT_LIT":
                return Node("literal", Uint(_in_range(int(text[:-1], 0 if "x" in text else 10), 0, 2**64)))
            case "FLOAT_LIT":
                return Node("literal", float(text))
            case "STRING_LIT" | "MLSTRING_LIT":
                return Node("literal", str(celstr(token)))
            case "BYTES_LIT":
                return Node("literal", bytes(celbytes(token)))
            case "BOOL_LIT":
                return Node("literal", text == "true")
    except ValueError as err:
        raise CompileError(f"invalid literal {text}: {err}") from err
    return Node("literal", None)


def _in_range(value: int, low: int, high: int) -> int:
    if not low <= value < high:
        raise ValueError("out of the 64 bit range")
    return value


_RULES: dict[str, Callable[[list[Any]], Node]] = {
    "member_dot": _select,
    "member_dot_arg": _method,
    "member_index": _index,
    "member_object": _message,
    "ident_arg": _call,
    "dot_ident_arg": _call,
    "ident": lambda children: Node("name", str(children[0])),
    "dot_ident": lambda children: Node("name", str(children[0])),
    "list_lit": _list,
    "map_lit": _map,
    "literal": _literal,
}
