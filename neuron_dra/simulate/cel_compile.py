"""Syntax tree -> a Python function of one device, with the static checks that the API server makes on admission.

Types are CEL type names; "dyn" is what an attribute has before its value is known. The maps of a device have names of
their own, so that `device.attributes["d"].x` is known to be an attribute and `device.capacity["d"].x` a quantity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from neuron_dra.simulate import cel_functions as functions
from neuron_dra.simulate import cel_operators as operators
from neuron_dra.simulate.cel_syntax import Node
from neuron_dra.simulate.cel_values import CompileError, EvaluationError, UnsupportedError, type_name

Scope = dict[str, Any]
Run = Callable[[Scope], Any]

MAX_ITERATIONS: Final = 500_000  # of all macros of one evaluation; Kubernetes' cost limit allows fewer
_BUDGET: Final = "#budget"
_DEVICE_FIELDS = {
    "driver": "string",
    "allowMultipleAllocations": "bool",
    "attributes": "map of domains of attributes",
    "capacity": "map of domains of capacity",
}
_ELEMENTS = {
    "map of domains of attributes": "map of attributes",
    "map of domains of capacity": "map of capacity",
    "map of attributes": "dyn",
    "map of capacity": functions.QUANTITY,
}
_MACROS = frozenset({"all", "exists", "exists_one", "map", "filter"})


@dataclass(frozen=True, slots=True)
class _Code:
    type: str
    run: Run


class Compiler:
    """Compiles one expression. Every `_kind` method takes a node and the types of the names in scope."""

    def __init__(self, expression: str) -> None:
        self._expression = expression

    def compile(self, tree: Node) -> Run:
        """The function of a device. Raises CompileError or UnsupportedError."""
        code = self._visit(tree, {"device": "device"})
        if code.type not in ("bool", "dyn"):
            raise CompileError(f"must evaluate to bool or the unknown type, not {code.type}: {self._expression!r}")

        def run(scope: Scope) -> Any:
            return code.run({**scope, _BUDGET: [MAX_ITERATIONS]})

        return run

    def _visit(self, node: Node, types: dict[str, str]) -> _Code:
        visit: Callable[[Node, dict[str, str]], _Code] = getattr(self, f"_{node.kind}")
        return visit(node, types)

    def _parts(self, node: Node, types: dict[str, str]) -> list[_Code]:
        return [self._visit(part, types) for part in node.parts]

    def _literal(self, node: Node, types: dict[str, str]) -> _Code:
        value = node.value
        return _Code(type_name(value), lambda scope: value)

    def _name(self, node: Node, types: dict[str, str]) -> _Code:
        name = node.value
        if name not in types:
            raise CompileError(f"undeclared reference to '{name}'; a selector sees `device` only")
        return _Code(types[name], lambda scope: operators.settled(scope[name]))

    def _select(self, node: Node, types: dict[str, str]) -> _Code:
        inner, name = self._visit(node.parts[0], types), node.value
        if inner.type == "device":
            if name not in _DEVICE_FIELDS:
                raise CompileError(f"undefined field '{name}': a device has {', '.join(sorted(_DEVICE_FIELDS))}")
            return _Code(_DEVICE_FIELDS[name], lambda scope: inner.run(scope)[name])
        return self._element(inner, lambda scope: name, node.optional, f"select .{name}")

    def _index(self, node: Node, types: dict[str, str]) -> _Code:
        inner, key = self._parts(node, types)
        return self._element(inner, key.run, node.optional, "index")

    def _element(self, inner: _Code, key: Run, optional: bool, what: str) -> _Code:
        if not operators.may_hold_elements(inner.type):
            raise CompileError(f"{what}: {inner.type} has no elements, in {self._expression!r}")
        if optional or inner.type == "optional_type":
            return _Code("optional_type", lambda scope: operators.optional_element(inner.run(scope), key(scope)))
        return _Code(_ELEMENTS.get(inner.type, "dyn"), lambda scope: operators.element(inner.run(scope), key(scope)))

    def _list(self, node: Node, types: dict[str, str]) -> _Code:
        parts = self._parts(node, types)
        self._homogeneous([part.type for part in parts])
        return _Code("list", lambda scope: [part.run(scope) for part in parts])

    def _map(self, node: Node, types: dict[str, str]) -> _Code:
        parts = self._parts(node, types)
        keys, values = parts[::2], parts[1::2]
        self._homogeneous([part.type for part in keys])
        self._homogeneous([part.type for part in values])
        return _Code("map", lambda scope: {k.run(scope): v.run(scope) for k, v in zip(keys, values, strict=True)})

    def _homogeneous(self, types: list[str]) -> None:
        known = sorted({name for name in types if name != "dyn"})
        if len(known) > 1:
            raise CompileError(f"the elements of a literal have different types ({', '.join(known)})")

    def _and(self, node: Node, types: dict[str, str]) -> _Code:
        left, right = self._bools(node, types, "_&&_")
        return _Code("bool", lambda scope: operators.decide(left.run, right.run, scope, decisive=False))

    def _or(self, node: Node, types: dict[str, str]) -> _Code:
        left, right = self._bools(node, types, "_||_")
        return _Code("bool", lambda scope: operators.decide(left.run, right.run, scope, decisive=True))

    def _not(self, node: Node, types: dict[str, str]) -> _Code:
        (inner,) = self._bools(node, types, "!_")
        return _Code("bool", lambda scope: not operators.truth(inner.run(scope)))

    def _bools(self, node: Node, types: dict[str, str], operator: str) -> list[_Code]:
        parts = self._parts(node, types)
        if any(part.type not in ("bool", "dyn") for part in parts):
            raise CompileError(f"no matching overload for '{operator}' applied to {self._types(parts)}")
        return parts

    def _types(self, parts: list[_Code]) -> str:
        return f"({', '.join(part.type for part in parts)}) in {self._expression!r}"

    def _cond(self, node: Node, types: dict[str, str]) -> _Code:
        question, yes, no = self._parts(node, types)
        if question.type not in ("bool", "dyn") or (yes.type != no.type and "dyn" not in (yes.type, no.type)):
            raise CompileError(f"no matching overload for '_?_:_' applied to {self._types([question, yes, no])}")
        kind = yes.type if yes.type == no.type else "dyn"
        return _Code(kind, lambda scope: (yes if operators.truth(question.run(scope)) else no).run(scope))

    def _neg(self, node: Node, types: dict[str, str]) -> _Code:
        (inner,) = self._parts(node, types)
        if inner.type not in ("int", "double", "dyn"):
            raise CompileError(f"no matching overload for '-_' applied to {self._types([inner])}")
        return _Code(inner.type, lambda scope: operators.negative(inner.run(scope)))

    def _binary(self, node: Node, types: dict[str, str]) -> _Code:
        left, right = self._parts(node, types)
        kind = operators.result_type(node.value, left.type, right.type)
        if kind is None:
            raise CompileError(f"no matching overload for '_{node.value}_' applied to {self._types([left, right])}")
        work = operators.BINARY[node.value]
        return _Code(kind, lambda scope: work(left.run(scope), right.run(scope)))

    def _call(self, node: Node, types: dict[str, str]) -> _Code:
        if node.value == "has":
            return self._has(node, types)
        self._check_pattern(node)
        return self._function(node.value, functions.FUNCTIONS.get(node.value), self._parts(node, types))

    def _function(self, name: str, overloads: tuple[functions.Overload, ...] | None, parts: list[_Code]) -> _Code:
        if overloads is None:
            if name.rpartition(".")[2] in functions.UNSUPPORTED or name.partition(".")[0] in functions.UNSUPPORTED:
                raise UnsupportedError(f"the function {name}() is not supported here: the answer is unknown, not false")
            raise CompileError(f"undeclared reference to '{name}' in {self._expression!r}")
        given = [_static(part.type) for part in parts]
        fitting = [overload for overload in overloads if overload.accepts(given)]
        if not fitting:
            raise CompileError(f"no matching overload for '{name}' applied to {self._types(parts)}")
        results = {overload.result for overload in fitting}
        kind = results.pop() if len(results) == 1 else "dyn"
        return _Code(kind, lambda scope: functions.call(overloads, name, [part.run(scope) for part in parts]))

    def _method(self, node: Node, types: dict[str, str]) -> _Code:
        target, name = node.parts[0], node.value
        if target.kind == "name" and target.value not in types:
            full = f"{target.value}.{name}"
            if full == "cel.bind":
                return self._bind(node, types)
            if target.value in functions.NAMESPACES or target.value in functions.UNSUPPORTED:
                return self._function(full, functions.FUNCTIONS.get(full), self._parts_after_first(node, types))
        if name in _MACROS and len(node.parts) in (3, 4) and node.parts[1].kind == "name":
            return self._macro(node, types)
        self._check_pattern(node)
        return self._function(name, functions.METHODS.get(name), self._parts(node, types))

    def _check_pattern(self, node: Node) -> None:
        """A regular expression that is a literal is judged without a device."""
        if node.value in ("matches", "find", "findAll") and len(node.parts) > 1 and node.parts[1].kind == "literal":
            try:
                functions.regex(str(node.parts[1].value))
            except EvaluationError as err:
                raise CompileError(str(err)) from err

    def _parts_after_first(self, node: Node, types: dict[str, str]) -> list[_Code]:
        return [self._visit(part, types) for part in node.parts[1:]]

    def _has(self, node: Node, types: dict[str, str]) -> _Code:
        if len(node.parts) != 1 or node.parts[0].kind != "select" or node.parts[0].optional:
            raise CompileError(
                f"invalid argument to has() macro: it takes one field, as in has(a.b): {self._expression!r}"
            )
        self._visit(node.parts[0], types)  # the static checks of the selection
        name, inner = node.parts[0].value, self._visit(node.parts[0].parts[0], types)
        if inner.type == "device":
            return _Code("bool", lambda scope: True)
        return _Code("bool", lambda scope: operators.has_field(inner.run(scope), name))

    def _bind(self, node: Node, types: dict[str, str]) -> _Code:
        if len(node.parts) != 4 or node.parts[1].kind != "name":
            raise CompileError("cel.bind takes a name, its value and an expression")
        name, value = node.parts[1].value, self._visit(node.parts[2], types)
        body = self._visit(node.parts[3], {**types, name: value.type})

        def run(scope: Scope) -> Any:
            return body.run({**scope, name: operators.attempt(value.run, scope)})

        return _Code(body.type, run)

    def _macro(self, node: Node, types: dict[str, str]) -> _Code:
        source = self._visit(node.parts[0], types)
        if not operators.may_be_iterated(source.type):
            raise CompileError(f"expression of type '{source.type}' cannot be the range of a comprehension")
        name, kind = node.parts[1].value, node.value
        if len(node.parts) == 4 and kind != "map":
            raise UnsupportedError(f"the two-variable form of {kind}() is not supported here")
        element = "string" if source.type.startswith("map of") else "dyn"
        bodies = [self._visit(part, {**types, name: element}) for part in node.parts[2:]]
        if kind != "map" and bodies[0].type not in ("bool", "dyn"):
            raise CompileError(f"the condition of {kind}() has type {bodies[0].type}, expected bool")
        work = operators.MACROS[kind]

        def run(scope: Scope) -> Any:
            budget = scope[_BUDGET]
            inner = dict(scope)

            def evaluate(body: Run) -> Callable[[Any], Any]:
                def on(item: Any) -> Any:
                    budget[0] -= 1
                    if budget[0] < 0:
                        raise EvaluationError(f"cost limit exceeded: more than {MAX_ITERATIONS} iterations")
                    inner[name] = item
                    return body(inner)

                return on

            return work(operators.items(source.run(scope)), *(evaluate(body.run) for body in bodies))

        return _Code("list" if kind in ("map", "filter") else "bool", run)


def _static(kind: str) -> str:
    return "map" if kind.startswith("map of") else kind
