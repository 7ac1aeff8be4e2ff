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
    """Return a schema that allows more fields, which a later release may have."""
    if isinstance(value, dict):
        return {
            name: _open(each) for name, each in value.items() if name != "additionalProperties" or each is not False
        }
    return [_open(each) for each in value] if isinstance(value, list) else value
