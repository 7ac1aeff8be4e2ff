"""The parts of a claim's spec that a change edits, in a copy of the object as it is. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from neuron_dra.core.wire import Obj


def devices(spec: Obj) -> Obj:
    """Return what a claim's spec says of devices; an absent one is added."""
    device_spec: Obj = spec.setdefault("devices", {})
    return device_spec


def constraints(spec: Obj) -> list[Obj]:
    """Return the constraints of a claim's spec."""
    listed: list[Obj] = devices(spec).get("constraints") or []
    return listed


def alternatives(spec: Obj) -> Iterator[tuple[str, Obj]]:
    """Yield the alternatives of all requests of a claim's spec, by the name that results use."""
    for request in devices(spec).get("requests") or ():
        several = request.get("firstAvailable") or ()
        for alternative in several:
            yield f"{request['name']}/{alternative['name']}", alternative
        if not several:
            yield request["name"], request.setdefault("exactly", {})
