"""Label and field selectors of list, watch and deletecollection."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api.errors import ApiError, bad_request

Predicate = Callable[[Obj], bool]

_SET = re.compile(r"^(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)$")
_EQUAL = re.compile(r"^(?P<key>[^\s!=,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s!=,()]*)$")
_KEY = re.compile(r"^(?P<not>!?)\s*(?P<key>[^\s!=,()]+)$")


def everything(obj: Obj) -> bool:
    return True


def field(obj: Obj, path: str) -> str:
    """Return the text at a dotted path, "" if it is absent."""
    value: object = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def by_fields(text: str, selectable: Iterable[str]) -> Predicate:
    """Compile a field selector. Raises ApiError 400 for a field that this kind does not support."""
    allowed = {"metadata.name", "metadata.namespace", *selectable}
    tests: list[tuple[str, bool, str]] = []
    for term in filter(None, (part.strip() for part in text.split(","))):
        found = re.match(r"^([^=!]+?)(==|=|!=)(.*)$", term)
        if not found:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        path, operator, value = found.groups()
        if path not in allowed:
            raise bad_request(f"field label not supported: {path}")
        tests.append((path, operator != "!=", value))
    if not tests:
        return everything
    return lambda obj: all((field(obj, path) == value) is wanted for path, wanted, value in tests)


def _terms(text: str) -> list[str]:
    """Split at commas that are not inside parentheses."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def by_labels(text: str) -> Predicate:
    """Compile a label selector: equality, `in`, `notin`, `key` and `!key`. Raises ApiError 400 for other operators."""
    tests: list[Callable[[Mapping[str, str]], bool]] = []
    for term in _terms(text):
        if found := _SET.match(term):
            values = {value.strip() for value in found["values"].split(",")}
            tests.append(_one_of(found["key"], values, wanted=found["op"] == "in"))
        elif found := _EQUAL.match(term):
            tests.append(_one_of(found["key"], {found["value"]}, wanted=found["op"] != "!="))
        elif found := _KEY.match(term):
            tests.append(_present(found["key"], wanted=not found["not"]))
        else:
            raise bad_request(f"unable to parse requirement: {term}")
    if not tests:
        return everything
    return lambda obj: all(test(labels_of(obj)) for test in tests)


def by_label_selector(selector: Obj | None) -> Predicate:
    """Compile a LabelSelector (`matchLabels`, `matchExpressions`). None selects nothing."""
    if selector is None:
        return lambda obj: False
    tests = [_one_of(key, {value}, wanted=True) for key, value in (selector.get("matchLabels") or {}).items()]
    for expression in selector.get("matchExpressions") or []:
        operator, key = expression["operator"], expression["key"]
        if operator in ("In", "NotIn"):
            tests.append(_one_of(key, set(expression.get("values") or []), wanted=operator == "In"))
        elif operator in ("Exists", "DoesNotExist"):
            tests.append(_present(key, wanted=operator == "Exists"))
        else:
            raise ApiError(422, "Invalid", f"not a valid selector operator: {operator}")
    return lambda obj: all(test(labels_of(obj)) for test in tests)


def labels_of(obj: Obj) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def _one_of(key: str, values: set[str], *, wanted: bool) -> Callable[[Mapping[str, str]], bool]:
    # As in Kubernetes, an absent label satisfies != and notin.
    return lambda labels: (labels.get(key) in values) is wanted


def _present(key: str, *, wanted: bool) -> Callable[[Mapping[str, str]], bool]:
    return lambda labels: (key in labels) is wanted
