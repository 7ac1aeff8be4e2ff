"""The part of /openapi/v3 from which kubectl learns that the server checks the fields of what it applies.

Only kinds with a CRD have a schema in it: that of the CRD if the server was given it, else their fields, without types.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import patches
from neuron_dra.emulation.embedded_api.resources import EmbeddedResource, Registry

PATH: Final = "openapi/v3"
OLD_DOCUMENT: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
NO_OLD_DOCUMENT: Final = b""
"""A document without kinds, in protobuf. kubectl asks for it before it says that the server lacks a kind."""
_FIELDS: Final = "crd_fields.json"
"""The fields of this release's CRDs, in neuron_dra/data; an entry of a list is `[]`."""


@dataclass(slots=True)
class PublishedSchemas:
    """What the document says about kinds with a CRD.

    - `fields`: by plural and group, their paths; `dropped`: by plural, those that the server does not have.
    - `enums`: by plural and path, the values that the server accepts.
    - `whole`: by plural with group and version, the schemas of CRDs, which `kubectl explain` prints.
    """

    dropped: Mapping[str, set[str]]
    fields: dict[str, Sequence[str]] = field(default_factory=dict)
    enums: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    whole: dict[tuple[str, str], Obj] = field(default_factory=dict)

    def of(self, resource: EmbeddedResource, version: str) -> Obj | None:
        """Return the schema of a kind; None without a CRD."""
        named = {"group": resource.group, "version": version, "kind": resource.kind}
        name = f"{resource.plural}.{resource.group}"
        if (name, version) in self.whole:
            return {**self.whole[name, version], "x-kubernetes-group-version-kind": [named]}
        paths = self.fields.get(name)
        if paths is None:
            return None
        dropped = {path.replace("[*]", "[]") for path in self.dropped.get(resource.plural, ())}
        schema: Obj = {"type": "object", "properties": {name: {"type": "string"} for name in ("apiVersion", "kind")}}
        schema["properties"]["metadata"] = {"x-kubernetes-preserve-unknown-fields": True}
        for path in sorted(paths):
            if not any(_is_within(path, dropped_path) for dropped_path in dropped):
                _add(schema, path.split("."), self.enums.get(resource.plural, {}).get(path))
        return {**schema, "x-kubernetes-group-version-kind": [named]}


def _add(schema: Obj, path: Sequence[str], values: list[str] | None) -> None:
    for part in path:
        name = part.removesuffix("[]")
        schema = schema.setdefault("properties", {}).setdefault(name, {})
        if part != name:
            schema = schema.setdefault("items", {})
    if values is not None:
        schema["enum"] = values


@functools.cache
def crd_fields() -> Mapping[str, Sequence[str]]:
    """Return the fields of this release's CRDs, by the CRD's name."""
    text = importlib.resources.files("neuron_dra.data").joinpath(_FIELDS).read_text()
    fields_by_crd: Mapping[str, Sequence[str]] = json.loads(text)
    return fields_by_crd


def _is_within(path: str, dropped_path: str) -> bool:
    return path == dropped_path or path.startswith((f"{dropped_path}.", f"{dropped_path}[]"))


def index(registry: Registry) -> Obj:
    """Return the versions that have a document, by their path."""
    places = {}
    for resource in registry:
        for version in resource.versions:
            place = _place(resource, version)
            places[place] = {"serverRelativeURL": f"/{PATH}/{place}"}
    return {"paths": places}


def of_version(registry: Registry, schemas: PublishedSchemas, group: str, version: str) -> Obj | None:
    """Return the document of a version of a group; None if it is not served."""
    served = []
    for resource in registry:
        if resource.group == group and version in resource.versions:
            served.append(resource)
    if not served:
        return None
    components: dict[str, Any] = {}
    for resource in served:
        schema = schemas.of(resource, version)
        if schema is not None:
            components[f"{'.'.join(reversed(group.split('.')))}.{version}.{resource.kind}"] = schema
    return {
        "openapi": "3.0.0",
        "components": {"schemas": components},
        "info": {"title": "Kubernetes", "version": "unversioned"},
        "paths": {_path(resource, version): {"patch": _patch(resource, version)} for resource in served},
    }


def _place(resource: EmbeddedResource, version: str) -> str:
    if resource.group:
        return f"apis/{resource.group}/{version}"
    return f"api/{version}"


def _path(resource: EmbeddedResource, version: str) -> str:
    namespace = "/namespaces/{namespace}" if resource.namespaced else ""
    return f"/{_place(resource, version)}{namespace}/{resource.plural}/{{name}}"


def _patch(resource: EmbeddedResource, version: str) -> Obj:
    words = ("dryRun", "fieldManager", "fieldValidation")
    return {
        "operationId": f"patch{resource.kind}",
        "parameters": [{"name": parameter, "in": "query", "schema": {"type": "string"}} for parameter in words],
        "requestBody": {"content": {patches.MERGE: {"schema": {"type": "object"}}}},
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": {"group": resource.group, "version": version, "kind": resource.kind},
    }
