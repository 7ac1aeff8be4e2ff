"""The parts of a claim's spec that a change edits, in a copy of the object as it is. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from neuron_dra.core.wire import Obj


def devices(spec: Obj) -> Obj:
    """Return what a claim's spec says of devices; an absent one is added."""
    found: Obj = spec.setdefault("devices", {})
    return found


def constraints(spec: Obj) -> list[Obj]:
    """Return the constraints of a claim's spec."""
    found: list[Obj] = devices(spec).get("constraints") or []
    return found


def alternatives(spec: Obj) -> Iterator[tuple[str, Obj]]:
    """Yield the alternatives of all requests of a claim's spec, by the name that results use."""
    for request in devices(spec).get("requests") or ():
        several = request.get("firstAvailable") or ()
        for each in several:
            yield f"{request['name']}/{each['name']}", each
        if not several:
            yield request["name"], request.setdefault("exactly", {})
