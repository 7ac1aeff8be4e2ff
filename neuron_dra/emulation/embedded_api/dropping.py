"""Fields that the server drops from, or adds to, every object that is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import bodies
from neuron_dra.emulation.embedded_api.resources import EmbeddedResource


class Dropper:
    """Drops fields, as an API server does for fields of a disabled feature gate.

    `paths` maps a plural to dotted paths, `[*]` for every entry of a list: `spec.devices[*].taints`.
    """

    def __init__(self) -> None:
        self.paths: dict[str, set[str]] = {}

    def __call__(self, resource: EmbeddedResource, obj: Obj) -> None:
        for path in self.paths.get(resource.plural, ()):
            for parent, name in _places(obj, path.split(".")):
                parent.pop(name, None)


class Adder:
    """Adds fields, as a newer release does by its defaults, or an admission policy by a mutation.

    `values` maps a plural to values by path, as in `Dropper`. An object keeps a value of its own, and an object above
    the field that is missing is made.
    """

    def __init__(self) -> None:
        self.values: dict[str, dict[str, Any]] = {}

    def __call__(self, resource: EmbeddedResource, obj: Obj) -> None:
        for path, value in self.values.get(resource.plural, {}).items():
            for parent, name in _places(obj, path.split("."), makes_parents=True):
                parent.setdefault(name, bodies.copied(value))


def _places(value: Any, path: list[str], *, makes_parents: bool = False) -> Iterator[tuple[Obj, str]]:
    """Yield the objects that can have the field at the end of `path`, each with the field's name."""
    if not isinstance(value, dict):
        return
    step, rest = path[0], path[1:]
    name = step.removesuffix("[*]")
    if not rest:
        yield value, name
    elif step != name:
        for entry in value.get(name) or []:
            yield from _places(entry, rest, makes_parents=makes_parents)
    else:
        if makes_parents and value.get(name) is None:
            value[name] = {}
        yield from _places(value.get(name), rest, makes_parents=makes_parents)
