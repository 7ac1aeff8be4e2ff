"""Drops fields on write, as an API server does for fields of a disabled feature gate."""

from __future__ import annotations

from typing import Any

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api.resources import EmbeddedResource


class Dropper:
    """`paths` maps a plural to dotted paths, `[*]` for every entry of a list: `spec.devices[*].taints`."""

    def __init__(self) -> None:
        self.paths: dict[str, set[str]] = {}

    def __call__(self, resource: EmbeddedResource, obj: Obj) -> None:
        for path in self.paths.get(resource.plural, ()):
            _drop(obj, path.split("."))


def _drop(value: Any, path: list[str]) -> None:
    if not isinstance(value, dict):
        return
    step, rest = path[0], path[1:]
    name = step.removesuffix("[*]")
    if not rest:
        value.pop(name, None)
    elif step != name:
        for entry in value.get(name) or []:
            _drop(entry, rest)
    else:
        _drop(value.get(name), rest)
