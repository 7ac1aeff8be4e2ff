#!/usr/bin/env python3
"""Write the fields that API servers know to neuron_dra/data, for `neuron-dra validate`.

    python -m hack.generate.field_tables 1.35 1.37 --published 1.36=FOLDER

A release is read from a real server's /openapi/v3, with our CRDs installed. FOLDER is a release's own
api/openapi-spec/v3, for a release that is not built; it has no CRDs, so these are taken from the servers. The table says
where each release came from. It has the kinds of KINDS and what they consist of: fields and their types, no texts.

A type is one of "s" string, "i" and "l" integers of 32 and 64 bits, "n" number, "b" boolean, "q" quantity, "x" integer
or string, "t" time, "o" any object, "*" anything, "[]T" list, "{}T" mapping of any keys, or "#N", the N-th of `types`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from hack.bed.processes import wait_until
from hack.bench import api
from neuron_dra.core.wire import Obj

ROOT: Final = Path(__file__).resolve().parents[2]
FILE: Final = ROOT / "neuron_dra/data/fields.json"
KINDS: Final = {
    "api/v1": ("Pod",),
    "apis/apps/v1": ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"),
    "apis/batch/v1": ("CronJob", "Job"),
    "apis/resource.k8s.io/v1": ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"),
    "apis/resource.k8s.io/v1beta2": ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"),
    "apis/resource.k8s.io/v1beta1": ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"),
    "apis/neuron.aws.com/v1": ("NeuronUltraServer", "NeuronUltraServerWorkload"),
    "apis/neuron.aws.com/v1beta1": ("NeuronUltraServer", "NeuronUltraServerWorkload"),
}
"""The kinds by the path of their OpenAPI document."""
WAIT_S: Final = 60.0
_OWN: Final = "apis/neuron.aws.com/"
_REF: Final = "#/components/schemas/"
_BY_NAME: Final = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "q",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "x",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": "t",
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": "t",
    "io.k8s.apimachinery.pkg.runtime.RawExtension": "o",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": "o",
}
_SCALARS: Final = {"string": "s", "boolean": "b", "number": "n"}


class Types:
    """The types of all releases, each once."""

    def __init__(self) -> None:
        self.all: list[dict[str, str]] = []
        self._numbers: dict[str, int] = {}

    def of(self, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
        """Return the code of a schema; `schemas` are those that it may refer to."""
        if "allOf" in schema and len(schema["allOf"]) == 1:
            return self.of(schema["allOf"][0], schemas)
        if "$ref" in schema:
            name = schema["$ref"].removeprefix(_REF)
            return _BY_NAME.get(name) or self.of(schemas[name], schemas)
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            return "*"
        if schema.get("x-kubernetes-int-or-string"):
            return "x"
        match schema.get("type"):
            case "object" if schema.get("properties"):
                return self._numbered({name: self.of(item, schemas) for name, item in schema["properties"].items()})
            case "object":
                values = schema.get("additionalProperties")
                return "{}" + self.of(values, schemas) if isinstance(values, dict) else "o"
            case "array":
                return "[]" + self.of(schema["items"], schemas)
            case "integer":
                return "i" if schema.get("format") == "int32" else "l"
            case "string" if schema.get("format") == "date-time":
                return "t"
        return _SCALARS.get(str(schema.get("type")), "*")

    def _numbered(self, fields: dict[str, str]) -> str:
        key = json.dumps(fields, sort_keys=True)
        if key not in self._numbers:
            self._numbers[key] = len(self.all)
            self.all.append(dict(sorted(fields.items())))
        return f"#{self._numbers[key]}"


def kinds(documents: Mapping[str, Any], types: Types) -> Iterator[tuple[str, str]]:
    """Yield apiVersion and kind, and the code, of each kind of the documents, which are named by their paths."""
    for path, names in KINDS.items():
        schemas = documents[path]["components"]["schemas"] if path in documents else {}
        version = path.removeprefix("apis/").removeprefix("api/")
        group, _, short = version.rpartition("/")
        for schema in schemas.values():
            for known in schema.get("x-kubernetes-group-version-kind", ()):
                if (known["group"], known["version"]) == (group, short) and known["kind"] in names:
                    yield f"{version} {known['kind']}", types.of(schema, schemas)


def from_server(release: str) -> tuple[str, dict[str, Any]]:
    """Return where a release comes from, and its documents: those of a server that runs as long as this takes."""
    with api.running(release, only_api=True) as plane:
        for path in sorted((ROOT / "deploy/crds").glob("*.yaml")):
            definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            plane.create(definitions, yaml.safe_load(path.read_text()))
        wait_until("OpenAPI of our CRDs", lambda: _serves_own(plane.read("/openapi/v3")), WAIT_S)
        index = plane.read("/openapi/v3")["paths"]
        version = plane.read("/version")["gitVersion"]
        documents = {path: plane.read(index[path]["serverRelativeURL"]) for path in KINDS if path in index}
    return f"/openapi/v3 of kube-apiserver {version}", documents


def _serves_own(index: Mapping[str, Any]) -> bool:
    return all(path in index["paths"] for path in KINDS if path.startswith(_OWN))


def published(folder: Path) -> dict[str, Any]:
    """Return the documents of a release's own api/openapi-spec/v3."""
    documents = {}
    for path in KINDS:
        file = folder / f"{path.replace('/', '__')}_openapi.json"
        if file.is_file():
            documents[path] = json.loads(file.read_text())
    return documents


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="+", metavar="RELEASE", help="releases to read from a real server")
    parser.add_argument("--published", action="append", default=[], metavar="RELEASE=FOLDER")
    args = parser.parse_args()
    types = Types()
    sources: dict[str, tuple[str, dict[str, Any]]] = {release: from_server(release) for release in args.servers}
    own = {path: document for path, document in sources[args.servers[-1]][1].items() if path.startswith(_OWN)}
    for entry in args.published:
        release, _, folder = entry.partition("=")
        patch = Path(folder).parents[2].name.rpartition("@")[2]
        sources[release] = f"api/openapi-spec/v3 of kubernetes {patch}", {**own, **published(Path(folder))}
    releases: dict[str, Obj] = {}
    for release, (source, documents) in sorted(sources.items()):
        releases[release] = {"source": source, "kinds": dict(sorted(kinds(documents, types)))}
    table = {"releases": releases, "types": types.all}
    FILE.write_text(json.dumps(table, separators=(",", ":")).replace("},{", "},\n{") + "\n")


if __name__ == "__main__":
    main()
