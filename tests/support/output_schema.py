"""Holds what a command prints with `-o json` against the types and the schema of all output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import jsonschema
import msgspec

from neuron_dra.ask.render import answers

SCHEMA: Final = json.loads((Path(__file__).resolve().parents[2] / "docs/output.schema.json").read_text())


def checked(text: str) -> dict[str, Any]:
    """Return the answer in a text. Raises an error if the schema rejects it, or lacks one of its fields."""
    found: dict[str, Any] = json.loads(text)
    jsonschema.validate(found, SCHEMA)
    msgspec.json.decode(text, type=answers.AnyAnswer, strict=True)
    return found
