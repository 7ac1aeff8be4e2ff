"""`kubectl explain` describes each field of the custom resources (4.09)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import fast_yaml

CRDS = sorted(Path("deploy/crds").glob("*.yaml"))
OF_KUBERNETES = ("apiVersion", "kind", "metadata")
"""Fields of every object, which the API server describes."""


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield path and schema of each field."""
    for name, field in (schema.get("properties") or {}).items():
        yield f"{path}.{name}", field
        yield from fields(field, f"{path}.{name}")
    if "items" in schema:
        yield from fields(schema["items"], f"{path}[]")


@pytest.mark.parametrize("path", CRDS, ids=lambda path: path.stem)
def test_each_field_has_a_description(path: Path) -> None:
    [definition] = fast_yaml.load_all(path.read_text())
    for version in definition["spec"]["versions"]:
        described = dict(fields(version["schema"]["openAPIV3Schema"]))
        assert len(described) > 30
        missing = [name for name, field in described.items() if not field.get("description")]
        assert missing == [f".{name}" for name in OF_KUBERNETES]


def test_there_are_three_kinds() -> None:
    assert len(CRDS) == 3
