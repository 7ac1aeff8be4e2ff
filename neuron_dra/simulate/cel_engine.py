"""Google's CEL engine, as the scheduler's selectors need it: an expression is compiled, and evaluated on a device.

The engine (cel-expr-python) parses, checks and evaluates; `cel_functions` and `cel_tree` add what Kubernetes adds to
CEL. Source: dynamic-resource-allocation/cel of Kubernetes 1.37. Kubernetes limits the cost of an expression; here its
length, its depth (32) and the iterations of its macros (10,000) are limited instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from cel_expr_python import cel

from neuron_dra.simulate import cel_functions, cel_tree, model
from neuron_dra.simulate.failures import CompileError, EvaluationError, SelectorError, UnsupportedError

MAX_LENGTH: Final = 10 * 1024  # bytes; resource.k8s.io/v1 CELSelectorExpressionMaxLength

Attributes = Mapping[str, Mapping[str, Any]]
_LISTS = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}
# Libraries of Kubernetes' environment, in its versions. What is excluded is declared by `cel_functions`.
_CONFIG: Final = """
extensions: [{name: bindings}, {name: lists}, {name: optional}, {name: sets}, {name: strings, version: 2},
             {name: two-var-comprehensions}]
stdlib: {exclude_functions: [{name: _<_}, {name: _<=_}, {name: _>_}, {name: _>=_}]}
"""
_FIELDS = ("driver", "allowMultipleAllocations", "attributes", "capacity")
_HAS_FIELD = re.compile(rf"\bhas\s*\(\s*device\s*\.\s*({'|'.join(_FIELDS)})\s*\)")
_FIELD = re.compile(r"\bdevice\s*\.\s*(\w+)")
_PROBLEM = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")
_REFERENCE = re.compile(r"undeclared reference to '(\w+)")


_WORDS = (  # of the engine, of Kubernetes
    ("No matching overloads found : <iter_range>", "expected iterable type"),
    ("No matching overloads found : ", "no such overload: "),
    ("Index error: index=", "index out of bounds: "),
    ("divide by zero", "division by zero"),
)


class Selector:
    """One compiled expression. Raises CompileError or UnsupportedError."""

    def __init__(self, expression: str) -> None:
        if len(expression.encode()) > MAX_LENGTH:
            raise CompileError(f"the expression is longer than {MAX_LENGTH} bytes")
        if _HAS_FIELD.search(expression):  # the engine ignores this has()
            raise UnsupportedError("has() of a field that every device has is not supported here: remove it")
        try:
            checked = _engine().compile(expression)
            self._run = _engine().deserialize(cel_tree.adapt(checked.serialize(), _fails))
        except RuntimeError as err:
            raise _compile_error(str(err), expression) from err
        except cel_tree.InvalidTreeError as err:
            raise CompileError(f"{err}, in {expression!r}") from err
        result = _type_name(checked.return_type())
        if result not in ("bool", "dyn"):
            raise CompileError(f"must evaluate to bool or the unknown type, not {result}: {expression!r}")

    def matches(self, device: Any) -> bool:
        """Return the result for a `device_value`. Raises EvaluationError or UnsupportedError."""
        try:
            cel_value = self._run.eval(device)
            result = cel_value.value()
        except RuntimeError as err:
            raise UnsupportedError(f"the evaluation is not supported here: {err}") from err
        except TypeError as err:  # the one type that the engine cannot return
            raise EvaluationError("CEL result of type optional_type could not be converted to bool") from err
        if isinstance(result, bool):
            return result
        if cel_value.type() == cel.Type.ERROR:
            raise EvaluationError(_explained(str(result)))
        raise EvaluationError(f"CEL result of type {_type_name(cel_value.type())} could not be converted to bool")


def environment(variables: Mapping[str, Any]) -> Any:
    """Return the engine with the libraries and functions of Kubernetes, for expressions about these variables."""
    return cel.NewEnv(
        cel_functions.POOL,
        config=cel.NewEnvConfigFromYaml(_CONFIG),
        variables=dict(variables),
        extensions=[cel_functions.extension()],
        functions=cel_functions.declarations(),
    )


@cache
def _engine() -> Any:
    kind = cel.Type
    attributes, capacity = (
        kind.Map(kind.STRING, kind.Map(kind.STRING, value_type)) for value_type in (kind.DYN, cel_functions.QUANTITY)
    )
    types = dict(zip(_FIELDS, (kind.STRING, kind.BOOL, attributes, capacity), strict=True))
    return environment({f"device.{name}": type_ for name, type_ in types.items()})


def _fails(serialized: bytes) -> bool:
    return bool(_engine().deserialize(serialized).eval().type() == cel.Type.ERROR)


def _type_name(type_: Any) -> str:
    name = str(type_.name()).partition("<")[0]
    return name.lower() if name.isupper() else name  # the engine writes CEL's types as LIST<INT>


def _compile_error(message: str, expression: str) -> SelectorError:
    problem = _PROBLEM.search(message)
    if problem is None or "recursion" in message:
        return UnsupportedError(f"an expression of this form or depth is not supported here: {message}")
    line, column, text = problem.groups()
    text = text.removesuffix(" (in container '')")
    reference = _REFERENCE.search(text)
    if reference and reference[1] == "device":
        undefined = [name for name in _FIELD.findall(expression) if name not in _FIELDS]
        if undefined:
            return CompileError(f"undefined field '{undefined[0]}': a device has {', '.join(sorted(_FIELDS))}")
        known_fields = ", ".join(f"device.{name}" for name in _FIELDS)
        return UnsupportedError(
            f"`device` without a field is not supported here; there are {known_fields}: {expression!r}"
        )
    if reference and reference[1] in cel_functions.UNSUPPORTED:
        return UnsupportedError(
            f"the function {reference[1]}() is not supported here: the result is unknown, not false"
        )
    return CompileError(f"{text[:1].lower()}{text[1:]}, at line {line}, column {column} of {expression!r}")


def _explained(message: str) -> str:
    """Return the engine's message without its code, with Kubernetes' wording where that differs."""
    text = message.partition(": ")[2]
    absent, _, key = text.partition("Key not found in map : ")
    if key and not absent:
        return (
            f"no such key: {key.strip(chr(34))}. Guard the attribute with has(), or use .? and orValue(): "
            "a device without it fails the pod on every node"
        )
    for engine, kubernetes in _WORDS:
        text = text.replace(engine, kubernetes)
    return text


def device_value(driver: str, attributes: Attributes, capacity: Mapping[str, str], *, multiple: bool = False) -> Any:
    """Return the CEL variable `device`.

    `attributes` is the API's form, {name: {"string": …}}; `capacity` is {name: quantity}. Unqualified names are in the
    driver's domain. Raises EvaluationError for an invalid value.
    """
    domains: dict[str, dict[str, Any]] = {}
    capacities: dict[str, dict[str, Any]] = {}
    for name, attribute in attributes.items():
        domain, local = model.qualified(name, driver)
        domains.setdefault(domain, {})[local] = _attribute(name, attribute)
    for name, text in capacity.items():
        domain, local = model.qualified(name, driver)
        try:
            capacities.setdefault(domain, {})[local] = cel_functions.quantity_message(text)
        except ValueError as err:
            raise EvaluationError(f"capacity {name}: {err}") from err
    values = zip(_FIELDS, (driver, multiple, domains, capacities), strict=True)
    return _engine().Activation({f"device.{name}": value for name, value in values})


def _attribute(name: str, attribute: Mapping[str, Any]) -> Any:
    for kind, value in attribute.items():
        if value is None:
            continue
        try:
            if kind in _LISTS:
                return [_scalar(_LISTS[kind], item) for item in value]
            return _scalar(kind, value)
        except ValueError as err:
            raise EvaluationError(f"attribute {name}: {err}") from err
    raise EvaluationError(f"attribute {name}: unsupported attribute value")


def _scalar(kind: str, value: Any) -> Any:
    if kind == "version":
        return cel_functions.semver_message(str(value))
    if kind in ("int", "bool", "string"):
        return value
    raise ValueError(f"unsupported attribute type {kind!r}")
