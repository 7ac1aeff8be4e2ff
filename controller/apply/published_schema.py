"""What the API server's OpenAPI document says about a CRD: which fields it keeps, and which values it rejects. Pure.

The document has the whole schema of each served version. Reading it writes nothing, so no admission policy, webhook or
quota of a namespace has a say in the result, as it would with a dry run on somebody's object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from neuron_dra.core.wire import Wire

PRESERVES: Final = "x-kubernetes-preserve-unknown-fields"
_GROUP_VERSION_KIND: Final = "x-kubernetes-group-version-kind"
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (Mapping,),
}


class _Components(msgspec.Struct):
    schemas: dict[str, dict[str, Any]] = {}


class _Document(msgspec.Struct):
    components: _Components = msgspec.field(default_factory=_Components)


def path_of(group: str, version: str) -> str:
    """Return the path of the document of a version of a group. Every authenticated user may read it."""
    return f"/openapi/v3/apis/{group}/{version}"


def schemas_in(document: bytes, group: str, version: str) -> dict[str, Wire]:
    """Return the schemas of a document by kind. Raises msgspec.MsgspecError if it is not one."""
    schema_by_kind: dict[str, Wire] = {}
    for schema in msgspec.json.decode(document, type=_Document).components.schemas.values():
        for named in schema.get(_GROUP_VERSION_KIND) or ():
            if (named.get("group"), named.get("version")) == (group, version):
                schema_by_kind[str(named.get("kind"))] = schema
    return schema_by_kind


def dropped(schema: Wire, value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of fields of a value that the schema does not have, so that the API server drops them."""
    if isinstance(value, Mapping):
        if schema.get(PRESERVES):
            return
        properties, additional = schema.get("properties") or {}, schema.get("additionalProperties")
        for name, part in value.items():
            where = f"{path}.{name}" if path else name
            if name in properties:
                yield from dropped(properties[name], part, where)
            elif isinstance(additional, Mapping):
                yield from dropped(additional, part, where)
            elif not additional:
                yield where
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for part in value:
            yield from dropped(schema.get("items") or {PRESERVES: True}, part, f"{path}[]")


def rejected(schema: Wire, value: Any, path: str = "") -> Iterator[str]:
    """Yield a sentence for each part of a value that the schema rejects. CEL rules are not evaluated."""
    why = _problem(schema, value)
    if why:
        yield f"{path}: {why}"
    elif isinstance(value, Mapping):
        properties = schema.get("properties") or {}
        for name, part in value.items():
            if name in properties:
                yield from rejected(properties[name], part, f"{path}.{name}" if path else name)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for part in value:
            yield from rejected(schema.get("items") or {}, part, f"{path}[]")


def _problem(schema: Wire, value: Any) -> str:
    """Return why the schema rejects a value, without what is below it; empty if it does not."""
    type_name = str(schema.get("type"))
    if type_name in _TYPES and not (schema.get("nullable") and value is None):
        is_other = isinstance(value, bool) != (type_name == "boolean")
        if is_other or not isinstance(value, _TYPES[type_name]):
            return f"{value!r} is not of type {type_name}"
    if schema.get("enum") is not None and value not in schema["enum"]:
        return f"{value!r} is not one of {', '.join(map(str, schema['enum']))}"
    if isinstance(value, str):
        limit, pattern = schema.get("maxLength"), schema.get("pattern")
        if limit is not None and len(value) > limit:
            return f"{value!r} has more than {limit} characters"
        if pattern is not None and not _matches(pattern, value):
            return f"{value!r} does not match {pattern}"
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        least, most = schema.get("minimum"), schema.get("maximum")
        if (least is not None and value < least) or (most is not None and value > most):
            return f"{value!r} is not between {least} and {most}"
    elif isinstance(value, (list, tuple)):
        limit = schema.get("maxItems")
        if limit is not None and len(value) > limit:
            return f"it has more than {limit} entries"
    return ""


def _matches(pattern: str, value: str) -> bool:
    """Return True if a text matches, or if the pattern is one of Go that Python does not know."""
    try:
        return re.search(pattern, value) is not None
    except re.error:
        return True
