"""Whose devices a DeviceClass or a request selects: this driver's, or those of another one. Pure.

Another driver's devices are judged only by its ResourceSlices: without these, nothing is known about them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from neuron_dra.ask.world import expressions
from neuron_dra.core import names

_DRIVER: Final = re.compile(r"device\.driver\s*==\s*(?P<quote>['\"])(?P<name>[^'\"]+)(?P=quote)")
_COMMON: Final = (names.GROUP_DOMAIN, "resource.kubernetes.io")
"""Domains of attributes that drivers publish under the same names."""


def foreign(selectors: Iterable[str | None]) -> str:
    """Return the other driver whose devices these selectors select; empty if they may select devices of this one.

    Those of a DeviceClass come first: a request that contradicts a class of this driver selects nothing.
    """
    read: set[str] = set()
    for selector in selectors:
        if not selector:
            continue
        named = {match["name"] for match in _DRIVER.finditer(selector)}
        if names.DRIVER in named:
            return ""
        if named:
            return sorted(named)[0]
        read.update(domain for domain, _, _ in expressions.reads(selector))
    read.difference_update(_COMMON)
    if read and names.DRIVER not in read:
        return sorted(read)[0]  # a driver that uses its name as the domain of its attributes
    return ""
