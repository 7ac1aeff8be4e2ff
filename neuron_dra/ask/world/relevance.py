"""The attributes that a pod's claims read: nodes whose devices differ in others are equal to the pod. Pure.

Nodes of a fleet differ in their place in the network. A claim that does not ask for it fits on all of them or on none.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Final

from neuron_dra.simulate.model import ClaimDemand, DeviceClass

_READ: Final = re.compile(
    r"""\bdevice\.(?:attributes|capacity)\[\s*(?:"[^"]*"|'[^']*')\s*\]\s*\.\s*\??\s*([A-Za-z_]\w*)\b(?!\s*\()"""
)
"""An attribute or capacity that an expression reads by its name."""
_ANY: Final = re.compile(r"\b(?:attributes|capacity)\b")


def names(claims: Iterable[ClaimDemand], classes: Mapping[str, DeviceClass]) -> frozenset[str] | None:
    """Return the names, without their domains, of the attributes and capacities that decide where claims fit.

    None means that all may decide: an expression is of another form, or is not known.
    """
    attribute_names: set[str] = set()
    for claim in claims:
        for constraint in claim.constraints:
            if not constraint.kind:
                return None
            attribute_names.add(local(constraint.attribute))
        for expression in _expressions(claim, classes):
            if expression is None or _ANY.search(_READ.sub("", expression)):
                return None
            attribute_names.update(_READ.findall(expression))
    return frozenset(attribute_names)


def _expressions(claim: ClaimDemand, classes: Mapping[str, DeviceClass]) -> Iterable[str | None]:
    for request in claim.requests:
        for alternative in request.alternatives:
            device_class = classes.get(alternative.class_name)
            yield from device_class.selectors if device_class is not None else ()
            yield from alternative.selectors


@functools.lru_cache(maxsize=4096)
def local(name: str) -> str:
    """Return the name of an attribute without its domain."""
    return name.rpartition("/")[2]
