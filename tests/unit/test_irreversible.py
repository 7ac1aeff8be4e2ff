"""4.02: every place that deletes, evicts or ends something has a row that says how its reason is confirmed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from neuron_dra.planner.decisions.irreversible import TABLE

ROOT: Final = Path(__file__).resolve().parents[2]
METHODS: Final = {f"{client}.{name}" for client in ("client", "self._client") for name in ("delete", "evict")}
"""What ends something."""


def places(source: str, path: str) -> Iterator[str]:
    """Yield the functions of a module that call one of these methods of a client."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
        for method in calls:
            if ast.unparse(method) in METHODS:
                yield f"{path} {function.name}"


def test_every_deletion_and_eviction_has_a_row() -> None:
    found: set[str] = set()
    for path in sorted([*(ROOT / "controller").rglob("*.py"), *(ROOT / "neuron_dra/planner").rglob("*.py")]):
        found |= {*places(path.read_text(), str(path.relative_to(ROOT)))}
    assert len(found) >= 5
    assert found <= {row.place for row in TABLE}


def test_every_row_names_a_function() -> None:
    for row in TABLE:
        path, _, name = row.place.partition(" ")
        functions = [each for each in ast.walk(ast.parse((ROOT / path).read_text())) if hasattr(each, "name")]
        assert name in {getattr(each, "name", "") for each in functions}, row.place


def test_a_deletion_without_a_row_is_found() -> None:
    """The control."""
    source = "class A:\n    async def b(self):\n        await self._client.delete(PODS, '', 'a')\n"
    assert [*places(source, "a.py")] == ["a.py b"]
