"""Label and field selectors of list, watch and deletecollection."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from neuron_dra.core import labels
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api.errors import StatusError, bad_request

Predicate = Callable[[Obj], bool]


def everything(obj: Obj) -> bool:
    return True


def field(obj: Obj, path: str) -> str:
    """Return the text at a dotted path, "" if it is absent."""
    value: object = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        if value:
            return "true"
        return "false"
    if value is None:
        return ""
    return str(value)


def by_fields(text: str, selectable: Iterable[str]) -> Predicate:
    """Compile a field selector. Raises ApiError 400 for a field that this kind does not support."""
    allowed = {"metadata.name", "metadata.namespace", *selectable}
    tests: list[tuple[str, bool, str]] = []
    for term in filter(None, (part.strip() for part in text.split(","))):
        match = re.match(r"^([^=!]+?)(==|=|!=)(.*)$", term)
        if not match:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        path, operator, value = match.groups()
        if path not in allowed:
            raise bad_request(f"field label not supported: {path}")
        tests.append((path, operator != "!=", value))
    if not tests:
        return everything
    return lambda obj: all((field(obj, path) == value) is must_equal for path, must_equal, value in tests)


def by_labels(text: str) -> Predicate:
    """Compile a label selector: equality, `in`, `notin`, `key` and `!key`. Raises ApiError 400 for other operators."""
    try:
        test = labels.written(text)
    except ValueError as err:
        raise bad_request(str(err)) from err
    return lambda obj: test(labels_of(obj))


def by_label_selector(selector: Obj | None) -> Predicate:
    """Compile a LabelSelector (`matchLabels`, `matchExpressions`). None selects nothing."""
    try:
        test = labels.of_object(selector)
    except ValueError as err:
        raise StatusError(422, "Invalid", str(err)) from err
    return lambda obj: test(labels_of(obj))


def labels_of(obj: Obj) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}
