"""The attributes that this driver and the EFA driver publish, by name. Pure."""

from __future__ import annotations

from neuron_dra.ask.render import words
from neuron_dra.core import devices, names


def known() -> dict[str, list[str]]:
    """Return the attributes by domain."""
    names_by_domain: dict[str, list[str]] = {}
    for attribute in (*devices.ATTRIBUTES, *devices.TAGS, *devices.SIZES, *devices.MARKS):
        domain, _, name = attribute.name.rpartition("/")
        names_by_domain.setdefault(domain or names.DRIVER, []).append(name)
    return names_by_domain


def unknown(domain: str, name: str) -> str:
    """Return a message if no node publishes an attribute of a known domain; empty if one does, or might."""
    names_by_domain = known()
    if domain not in names_by_domain or name in names_by_domain[domain]:
        return ""
    near = words.nearest(name, names_by_domain[domain])
    return f"no device publishes {domain}/{name}" + (f", did you mean {near}?" if near else "")
