"""What the API server rejects in objects of our CRDs, apart from fields and types: required, enumerations, limits, CEL.

The schemas are those of deploy/crds, without descriptions and without rules that compare with the stored object.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from typing import Any, Final

from neuron_dra.ask.validate.specs import ManifestProblem
from neuron_dra.core.wire import Wire

FILE: Final = "crd_schemas.json"
GROUP: Final = "neuron.aws.com"
KEPT: Final = frozenset(
    {
        *("properties", "items", "additionalProperties", "required", "enum", "pattern"),
        *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "x-kubernetes-validations"),
    }
)
"""The keys of a schema that decide about a value of the right type."""
_RULES: Final = "x-kubernetes-validations"
_LIMITS: Final[Mapping[str, tuple[str, Callable[[Any, Any], bool]]]] = {
    "minimum": ("at least {}", operator.lt),
    "maximum": ("at most {}", operator.gt),
    "minLength": ("at least {} characters", operator.lt),
    "maxLength": ("at most {} characters", operator.gt),
    "minItems": ("at least {} items", operator.lt),
    "maxItems": ("at most {} items", operator.gt),
}
"""By key: what a value has to have, and whether a number, or the length of a text or list, exceeds the limit."""


def of_object(where: str, raw_object: Wire) -> Iterator[ManifestProblem]:
    """Yield what the API server rejects in an object of our group whose fields have the right types."""
    group, _, version = str(raw_object.get("apiVersion")).partition("/")
    if group != GROUP:
        return
    schema = _schemas().get(f"{raw_object.get('kind')} {version}")
    if schema is not None:
        for path, text in _problems(raw_object, schema, ""):
            yield ManifestProblem(where, "ApiRejects", f"{path}: {text}" if path else text)


@functools.cache
def _schemas() -> Mapping[str, Wire]:
    schemas: dict[str, Wire] = json.loads((resources.files("neuron_dra") / "data" / FILE).read_text())
    return schemas


def _problems(value: Any, schema: Wire, path: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of each problem of a value; its CEL rules apply only if nothing inside it is wrong."""
    if value is None:
        return
    problems = [*_own(value, schema, path), *_inner(value, schema, path)]
    yield from problems or _of_rules(value, schema, path)


def _own(value: Any, schema: Wire, path: str) -> Iterator[tuple[str, str]]:
    if "enum" in schema and value not in schema["enum"]:
        yield path, f"{json.dumps(value)}: write {' or '.join(map(str, schema['enum']))}"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield path, f"{json.dumps(value)}: write a value that matches {schema['pattern']}"
    size = len(value) if isinstance(value, str | list) else value
    for key, (text, exceeds) in _LIMITS.items():
        if key in schema and isinstance(size, int | float) and exceeds(size, schema[key]):
            yield path, f"write {text.format(schema[key])}"


def _inner(value: Any, schema: Wire, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _problems(item, schema.get("items") or {}, f"{path}[{index}]")
    if not isinstance(value, dict):
        return
    for name in schema.get("required") or ():
        if value.get(name) is None:
            yield f"{path}.{name}".lstrip("."), "it is required"
    additional_schema = schema.get("additionalProperties")
    other_schema = additional_schema if isinstance(additional_schema, dict) else {}
    for name, item in value.items():
        inner = (schema.get("properties") or {}).get(name, other_schema)
        yield from _problems(item, inner, f"{path}.{name}".lstrip("."))


def _of_rules(value: Any, schema: Wire, path: str) -> Iterator[tuple[str, str]]:
    for rule in schema.get(_RULES) or ():
        from neuron_dra.ask.validate import cel_rules  # the engine takes a tenth of a second to import

        if cel_rules.evaluate(rule["rule"], value) is False:
            message = cel_rules.evaluate(rule["messageExpression"], value) if "messageExpression" in rule else None
            yield path, str(message or rule.get("message") or f"it does not meet the rule {rule['rule']}")
