"""Knows a list as kubectl prints it, by its beginning. Pure."""

from __future__ import annotations

import io
import re
from typing import Any, Final

FIRST: Final = re.compile(rb'\A\{\n[^\[\]]{0,1024}?"items": \[\n( +)\{\n')
"""Up to the first object of the list; the group is the indentation of objects."""


def is_printed(file: io.BufferedReader[Any]) -> bool:
    """Return True if a file begins as a list of objects that kubectl prints; nothing is taken from the file."""
    return FIRST.match(file.peek()) is not None
