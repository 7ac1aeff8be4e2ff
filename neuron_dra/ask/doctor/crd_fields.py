"""The fields of our custom resources, and which of them a CustomResourceDefinition drops. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from neuron_dra.core.wire import Wire


@dataclass(frozen=True, slots=True)
class CrdRule:
    """What a CRD has to be: the versions that it serves, and what needs it; `optional`: most clusters do not."""

    versions: tuple[str, ...] = ("v1beta1", "v1")
    needed_by: str = "the UltraServer controller"
    optional: bool = False


RULES: Final = {
    "neuronultraserverqualifications.neuron.aws.com": CrdRule(("v1beta1",), "tests of free UltraServers", optional=True)
}
"""By name of the CRD; the others have the usual rule."""
USUAL: Final = CrdRule()

FILE: Final = "crd_fields.json"
_ALL: Final = "x-kubernetes-preserve-unknown-fields"


def wanted() -> Mapping[str, Sequence[str]]:
    """Return the fields of this release by name of the CRD, such as `spec.topology[].nodeName`."""
    fields_by_crd: dict[str, list[str]] = json.loads((resources.files("neuron_dra") / "data" / FILE).read_text())
    return fields_by_crd


def fields(schema: Wire, path: str = "") -> Iterator[str]:
    """Yield the paths of all fields of a schema, except metadata, apiVersion and kind."""
    for name, inner in sorted((schema.get("properties") or {}).items()):
        if path or name not in ("apiVersion", "kind", "metadata"):
            field_path = f"{path}.{name}" if path else name
            yield field_path
            yield from fields(inner, field_path)
    if isinstance(schema.get("items"), dict):
        yield from fields(schema["items"], f"{path}[]")


def schemas(definition: Wire) -> Mapping[str, Wire]:
    """Return the schemas of the versions that a CRD serves, by version."""
    schema_by_version = {}
    for version in _map(definition.get("spec")).get("versions") or ():
        if version.get("served"):
            schema_by_version[str(version.get("name"))] = _map(_map(version.get("schema")).get("openAPIV3Schema"))
    return schema_by_version


def dropped(paths: Sequence[str], definition: Wire) -> list[str]:
    """Return which fields a version that the CRD serves does not keep; of a dropped object only itself."""
    lost: list[str] = []
    for path in paths:
        is_inside_lost = any(path.startswith((f"{lost_path}.", f"{lost_path}[]")) for lost_path in lost)
        if not is_inside_lost and not all(_keeps(schema, path) for schema in schemas(definition).values()):
            lost.append(path)
    return lost


def _keeps(schema: Wire, path: str) -> bool:
    subschema = schema
    for part in path.replace("[]", ".[]").split("."):
        if subschema.get(_ALL) is True:
            return True
        if part == "[]":
            inner = subschema.get("items")
        else:
            inner = _map(subschema.get("properties")).get(part)
        if inner is None:
            inner = subschema.get("additionalProperties")
        if inner is True:
            return True
        if not isinstance(inner, dict):
            return False
        subschema = inner
    return True


def _map(value: object) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    return {}
