"""Durations in Go's notation: `90s`, `1m30s`, `1.5h`, `500ms`; a number without a unit is in seconds."""

from __future__ import annotations

import datetime
import re
from fractions import Fraction
from typing import Final

_UNITS: Final = {
    "h": Fraction(3600),
    "m": Fraction(60),
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),  # the micro sign
    "μs": Fraction(1, 10**6),  # the Greek letter
    "ns": Fraction(1, 10**9),
}
_PART: Final = re.compile(r"(\d{1,12}(?:\.\d{0,12})?|\.\d{1,12})(ms|us|µs|μs|ns|h|m|s)", re.ASCII)
_SECONDS: Final = re.compile(r"\d{1,9}", re.ASCII)
LONGEST: Final = datetime.timedelta(days=3650)


def parse(text: str) -> datetime.timedelta:
    """Return the duration in `text`, to the microsecond.

    `90` and `90s` are 90 seconds, `1h30m` is 5,400. Signs, blanks and exponents are not accepted.

    Raises ValueError, which says what to write, for anything else and for more than ten years.
    """
    if _SECONDS.fullmatch(text):
        text += "s"
    parts = list(_PART.finditer(text))
    if not parts or "".join(part[0] for part in parts) != text:
        raise ValueError("write a duration such as 90s, 1m30s or 1h")
    seconds = sum((Fraction(part[1].rstrip(".") or "0") * _UNITS[part[2]] for part in parts), Fraction(0))
    if seconds > LONGEST.total_seconds():
        raise ValueError("write at most ten years")
    return datetime.timedelta(microseconds=int(seconds * 10**6))
