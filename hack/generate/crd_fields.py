#!/usr/bin/env python3
"""Write the fields of deploy/crds to neuron_dra/data, for `neuron-dra doctor`, and their rules, for `validate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from neuron_dra.ask.doctor import crd_fields
from neuron_dra.ask.validate import crd_rules

ROOT = Path(__file__).resolve().parents[2]


def text() -> str:
    """Return the contents of the file."""
    found = {}
    for path in sorted((ROOT / "deploy/crds").glob("*.yaml")):
        crd = yaml.safe_load(path.read_text())
        found[crd["metadata"]["name"]] = list(crd_fields.fields(crd_fields.schemas(crd)["v1beta1"]))
    return json.dumps(found, indent=1) + "\n"


def schemas_text() -> str:
    """Return the contents of the file with the schemas, by kind and version."""
    rules_by_kind = {}
    for path in sorted((ROOT / "deploy/crds").glob("*.yaml")):
        crd = yaml.safe_load(path.read_text())
        for version, schema in crd_fields.schemas(crd).items():
            # Users write neither the status nor what the API server itself requires.
            written = {**schema, "properties": {"spec": schema["properties"]["spec"]}}
            rules_by_kind[f"{crd['spec']['names']['kind']} {version}"] = _rules(written)
    return json.dumps(rules_by_kind, separators=(",", ":"), sort_keys=True) + "\n"


def _rules(schema: dict[str, Any]) -> dict[str, Any]:
    """Return what of a schema decides about new objects."""
    kept: dict[str, Any] = {key: value for key, value in schema.items() if key in crd_rules.KEPT}
    for key in ("items", "additionalProperties"):
        if isinstance(kept.get(key), dict):
            kept[key] = _rules(kept[key])
    if "properties" in kept:
        inner_rules = {name: _rules(inner) for name, inner in kept["properties"].items()}
        kept["properties"] = {name: rules for name, rules in inner_rules.items() if rules}
    if "required" in kept:
        # The API server sets defaults before it looks for required fields.
        properties = schema.get("properties") or {}
        kept["required"] = [name for name in kept["required"] if "default" not in properties.get(name, {})]
    cel_rules = [rule for rule in kept.pop("x-kubernetes-validations", ()) if "oldSelf" not in rule["rule"]]
    if cel_rules:
        kept["x-kubernetes-validations"] = cel_rules
    return kept


if __name__ == "__main__":
    (ROOT / "neuron_dra/data" / crd_fields.FILE).write_text(text())
    (ROOT / "neuron_dra/data" / crd_rules.FILE).write_text(schemas_text())
