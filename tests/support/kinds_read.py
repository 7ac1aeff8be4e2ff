"""The kinds of objects that the controller and the plugin read, from their sources.

A kind counts as read wherever its Resource is named, except as the first argument of a write. So a kind that is read
from now on has to appear in each net over kinds, or the net fails.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from neuron_dra.kube import requests
from neuron_dra.kube.requests import Resource

ROOTS: Final = ("controller", "neuron_dra/planner", "neuron_dra/node")
WRITES: Final = frozenset({"create", "patch", "replace", "delete", "refuse", "check", "doubt"})
"""Methods whose first argument says what is written, or of which kind a schema is checked."""


@functools.cache
def kinds_read() -> frozenset[str]:
    """Return the plural names of the kinds that are read."""
    paths_by_root = {root: sorted(Path(root).rglob("*.py")) for root in ROOTS}
    assert all(paths_by_root.values()), "a folder of the programs is gone"
    paths = itertools.chain.from_iterable(paths_by_root.values())
    return frozenset(name for path in paths for name in _of_module(ast.parse(path.read_text())))


def _of_module(tree: ast.Module) -> Iterator[str]:
    known = {name: value for name, value in vars(requests).items() if isinstance(value, Resource)}
    written = set(map(id, _written(tree)))
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if name in known and id(node) not in written:
            yield known[name].plural
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Resource":
            yield str(ast.literal_eval(node.args[2]))


def _written(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the first arguments of writes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITES:
            yield from node.args[:1]
