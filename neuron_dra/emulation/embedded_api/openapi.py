"""The part of /openapi/v3 from which kubectl learns that the server checks the fields of what it applies.

There are no schemas in it: `kubectl explain` does not work here.
"""

from __future__ import annotations

from typing import Final

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import patches
from neuron_dra.emulation.embedded_api.resources import EmbeddedResource, Registry

PATH: Final = "openapi/v3"


def index(registry: Registry) -> Obj:
    """Return the versions that have a document, by their path."""
    places = {}
    for resource in registry:
        for version in resource.versions:
            place = _place(resource, version)
            places[place] = {"serverRelativeURL": f"/{PATH}/{place}"}
    return {"paths": places}


def of_version(registry: Registry, group: str, version: str) -> Obj | None:
    """Return the document of a version of a group; None if it is not served."""
    served = []
    for resource in registry:
        if resource.group == group and version in resource.versions:
            served.append(resource)
    if not served:
        return None
    return {
        "openapi": "3.0.0",
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
        "parameters": [{"name": each, "in": "query", "schema": {"type": "string"}} for each in words],
        "requestBody": {"content": {patches.MERGE: {"schema": {"type": "object"}}}},
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": {"group": resource.group, "version": version, "kind": resource.kind},
    }
