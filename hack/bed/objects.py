"""Kubernetes objects as JSON, to and from kubectl, because this program has no YAML library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def as_list(items: list[dict[str, Any]]) -> str:
    """Return the objects as one List."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def parse(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects in a stream of JSON documents, and those inside Lists."""
    decoder = json.JSONDecoder()
    position = 0
    while position < len(text.rstrip()):
        while text[position].isspace():
            position += 1
        item, position = decoder.raw_decode(text, position)
        yield from item["items"] if item["kind"] == "List" else [item]
