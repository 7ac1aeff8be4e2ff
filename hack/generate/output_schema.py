"""The JSON schema of what the commands print with `-o json`, from the types in neuron_dra/ask/render/answers.py."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from neuron_dra.ask.render import answers


def page() -> str:
    """Return docs/output.schema.json."""
    schema = _open(msgspec.json.schema(answers.AnyAnswer))
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Output of neuron-dra with -o json and -o yaml",
        "description": "Written by hack/generate/output_schema.py. Releases may add fields; none goes.",
    }
    return json.dumps({**head, **schema}, indent=2) + "\n"


def _open(value: Any) -> Any:
    """Return a schema that allows more fields, which a later release may have.

    Releases of msgspec differ in where null stands among alternatives; it is the last.
    """
    if isinstance(value, list):
        return [_open(each) for each in value]
    if not isinstance(value, dict):
        return value
    opened = {name: _open(each) for name, each in value.items() if name != "additionalProperties" or each is not False}
    if isinstance(opened.get("anyOf"), list):
        opened["anyOf"].sort(key=lambda each: each == {"type": "null"})
    return opened
