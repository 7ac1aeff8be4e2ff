"""YAML documents, parsed by the C implementation of PyYAML if it is there, which is ten times faster."""

from __future__ import annotations

from typing import Any, Final

import yaml

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(text: str) -> Any:
    """Return the one document of a text."""
    return yaml.load(text, _LOADER)


def load_all(text: str) -> list[Any]:
    """Return all documents of a text, of which some may be None."""
    return list(yaml.load_all(text, _LOADER))
