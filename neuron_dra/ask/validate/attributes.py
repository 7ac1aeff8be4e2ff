"""The attributes that this driver and the EFA driver publish, by name. Pure."""

from __future__ import annotations

from neuron_dra.ask.render import words
from neuron_dra.core import devices, names


def known() -> dict[str, list[str]]:
    """Return the attributes by domain."""
    found: dict[str, list[str]] = {}
    for each in (*devices.ATTRIBUTES, *devices.TAGS, *devices.SIZES, *devices.MARKS):
        domain, _, name = each.name.rpartition("/")
        found.setdefault(domain or names.DRIVER, []).append(name)
    return found


def unknown(domain: str, name: str) -> str:
    """Return a message if no node publishes an attribute of a known domain; empty if one does, or might."""
    found = known()
    if domain not in found or name in found[domain]:
        return ""
    near = words.nearest(name, found[domain])
    return f"no device publishes {domain}/{name}" + (f", did you mean {near}?" if near else "")
