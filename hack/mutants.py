"""The changes that mutation testing makes to a module: those of mutmut, and some for code that is mostly expressions.

One mutant is one change. Annotations, imports, docstrings and texts for people (strings with a space) are not changed.
A positional argument is replaced by None but not removed, because the call would always fail.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider, WhitespaceInclusivePositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_string

SHOWN = 24  # characters on both sides of a change
UNCHANGED = (cst.Annotation, cst.Import, cst.ImportFrom, cst.Decorator)
OPAQUE_CALLS = {"len", "isinstance", "cast"}  # their arguments are not changed, because the call would fail
OTHER_FUNCTION = {"any": "all", "all": "any", "min": "max", "max": "min"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed module. `function` is the outermost function's qualified name, empty for code that runs on import."""

    module: str  # path in the repository
    function: str
    line: int
    lines: tuple[int, int]  # of the statement, first and last
    change: str  # "before → after", cut to what differs
    number: int  # among equal changes of the same function
    source: str

    @property
    def key(self) -> str:
        """A name that does not depend on other parts of the module."""
        again = f" #{self.number}" if self.number else ""
        return f"{Path(self.module).name}:{self.function or 'module'}: {self.change}{again}"


@functools.cache
def mutants_of(module: str, source: str) -> list[Mutant]:
    """Return the mutants of `source` that differ from it once compiled, in its order."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    visitor = _Visitor(source)
    wrapper.visit(visitor)
    original = compile(source, module, "exec", dont_inherit=True, optimize=0)
    seen: Counter[tuple[str, str]] = Counter()
    found: list[Mutant] = []
    sources = {source}
    for function, line, lines, changed in visitor.found:
        if changed in sources or not _compiles_to_something_else(changed, module, original):
            continue
        sources.add(changed)
        change = _difference(source, changed)
        found.append(Mutant(module, function, line, lines, change, seen[function, change], changed))
        seen[function, change] += 1
    return found


def _compiles_to_something_else(changed: str, module: str, original: Any) -> bool:
    try:
        return bool(compile(changed, module, "exec", dont_inherit=True, optimize=0) != original)
    except (SyntaxError, ValueError):
        return False


def _difference(before: str, after: str) -> str:
    """Return the change on one line, with a little context."""
    begin = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    end = 0
    while end < min(len(before), len(after)) - begin and before[-1 - end] == after[-1 - end]:
        end += 1
    first = max(before.rfind("\n", 0, begin) + 1, begin - SHOWN)
    line_end = before.find("\n", len(before) - end)
    behind = max(0, min(SHOWN, (line_end if line_end >= 0 else len(before)) - (len(before) - end)))
    old, new = (text[first : len(text) - end + behind] for text in (before, after))
    return " → ".join(" ".join(text.split()) for text in (old, new))


class _Visitor(cst.CSTVisitor):
    """Collects (function, line, statement's lines, changed source)."""

    METADATA_DEPENDENCIES = (PositionProvider, WhitespaceInclusivePositionProvider)

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.found: list[tuple[str, int, tuple[int, int], str]] = []
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._stack: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, UNCHANGED) or _is_docstring(node) or _only_for_readers(node):
            return False
        self._stack.append(node)
        for changed in _changes(node):
            self._add(node, changed)
        if isinstance(node, (cst.If, cst.CompIf, cst.While)):
            self._add(node.test, _negated(node.test))
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if self._stack and self._stack[-1] is original_node:
            self._stack.pop()

    def _add(self, node: cst.CSTNode, changed: cst.CSTNode) -> None:
        whole = self.get_metadata(WhitespaceInclusivePositionProvider, node)
        begin, end = (self._starts[at.line - 1] + at.column for at in (whole.start, whole.end))
        text = self.source[:begin] + cst.Module([]).code_for_node(changed) + self.source[end:]
        line = self.get_metadata(PositionProvider, node).start.line
        self.found.append((self._function(), line, self._lines(node), text))

    def _lines(self, node: cst.CSTNode) -> tuple[int, int]:
        around = [each for each in self._stack if isinstance(each, cst.SimpleStatementLine)]
        place = self.get_metadata(PositionProvider, around[-1] if around else node)
        return place.start.line, place.end.line

    def _function(self) -> str:
        """Return the outermost function whose body holds the node; its decorators and defaults run on import."""
        names: list[str] = []
        for outer, inner in zip(self._stack, [*self._stack[1:], None], strict=True):
            if isinstance(outer, cst.ClassDef):
                names.append(outer.name.value)
            elif isinstance(outer, cst.FunctionDef):
                return ".".join([*names, outer.name.value]) if inner is outer.body else ""
        return ""


def _is_docstring(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Expr) and isinstance(node.value, cst.BaseString)


def _only_for_readers(node: cst.CSTNode) -> bool:
    """Return True for code that only type checkers and documentation use."""
    if isinstance(node, cst.If):
        return _name(node.test) == "TYPE_CHECKING"
    return isinstance(node, cst.Call) and _name(node.func) == "Described"


def _changes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    if isinstance(node, cst.BaseString):
        yield from [] if _is_prose(node) else list(operator_string(node))[:1]
        return
    for kind, operator in mutation_operators:
        if isinstance(node, kind) and not (isinstance(node, cst.Call) and _name(node.func) in OPAQUE_CALLS):
            yield from (changed for changed in operator(node) if not _lacks_positional(node, changed))
    yield from _more_changes(node)


def _is_prose(node: cst.BaseString) -> bool:
    return not isinstance(node, cst.SimpleString) or " " in node.value


def _lacks_positional(node: cst.CSTNode, changed: cst.CSTNode) -> bool:
    if not (isinstance(node, cst.Call) and isinstance(changed, cst.Call)):
        return False
    before, after = ([arg for arg in call.args if arg.keyword is None and not arg.star] for call in (node, changed))
    return len(after) < len(before) and _name(node.func) != "sorted"


def _more_changes(node: cst.CSTNode) -> Iterable[cst.CSTNode]:
    """Changes that mutmut lacks: conditions inverted or removed; filters, order, results and statements dropped."""
    match node:
        case cst.CompFor(ifs=[_, *_]):
            yield node.with_changes(ifs=[])
        case cst.BooleanOperation():
            yield _like(node, node.left)
            yield _like(node, node.right)
        case cst.BinaryOperation(operator=cst.Subtract() | cst.BitAnd() | cst.BitOr()):
            yield _like(node, node.left)
        case cst.Call(func=cst.Name(value=name)) if name in OTHER_FUNCTION:
            yield node.with_changes(func=cst.Name(OTHER_FUNCTION[name]))
        case cst.Call(func=cst.Name(value="sorted")):
            yield node.with_changes(
                func=cst.Name("list"), args=[node.args[0].with_changes(comma=cst.MaybeSentinel.DEFAULT)]
            )
        case cst.Return(value=cst.BaseExpression() as value) if _name(value) != "None":
            yield node.with_changes(value=cst.Name("None"), whitespace_after_return=cst.SimpleWhitespace(" "))
        case cst.Expr(value=cst.Call() | cst.Await()) | cst.Raise():
            yield cst.Pass()


def _negated(test: cst.BaseExpression) -> cst.BaseExpression:
    inner = test.with_changes(lpar=[cst.LeftParen(), *test.lpar], rpar=[*test.rpar, cst.RightParen()])
    return cst.UnaryOperation(cst.Not(), inner)


def _like(whole: cst.BaseExpression, part: cst.BaseExpression) -> cst.BaseExpression:
    """Return the part in the parentheses of the whole."""
    return part.with_changes(lpar=[*whole.lpar, *part.lpar], rpar=[*part.rpar, *whole.rpar])


def _name(node: cst.BaseExpression) -> str:
    return node.value if isinstance(node, cst.Name) else ""
