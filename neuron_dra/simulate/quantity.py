"""Kubernetes quantities ("1500m", "96Gi", "1e3"), as exact fractions.

Source: apimachinery's resource.Quantity. A quantity is a decimal number with a suffix: a power of 1024 (Ki … Ei),
a power of 1000 (n, u, m, none, k … E) or an exponent. Fractions of a nano are rounded away
from zero.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import total_ordering

_FORM = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+|)", re.ASCII)
_POWERS = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)}
_POWERS |= {letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", start=1)}
_POWERS |= {f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", start=1)}
_NANO = 10**9
_MAX_EXPONENT = 10_000  # 10**(10**9) would take too long
_LARGEST_BINARY = 2**63 - 1  # larger quantities with a suffix Ki … Ei are read as this one


@total_ordering
@dataclass(frozen=True, slots=True, eq=True)
class Quantity:
    """An exact number; two spellings of one amount ("1Ki", "1024") are equal."""

    value: Fraction

    def __lt__(self, other: Quantity) -> bool:
        return self.value < other.value

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.value + other.value)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.value - other.value)

    @property
    def sign(self) -> int:
        """Return -1, 0 or 1."""
        return (self.value > 0) - (self.value < 0)

    @property
    def is_integer(self) -> bool:
        """Return True for a whole number of at most 64 bits."""
        return self.value.denominator == 1 and -(2**63) <= self.value.numerator < 2**63

    def __str__(self) -> str:
        if self.value.denominator == 1:
            return str(self.value.numerator)
        for suffix in ("m", "u"):
            scaled = self.value / _POWERS[suffix]
            if scaled.denominator == 1:
                return f"{scaled.numerator}{suffix}"
        return f"{self.value / _POWERS['n']}n"


def parse(text: str) -> Quantity:
    """Read one quantity. Raises ValueError with the text and the reason."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a quantity: use a number with a suffix such as m, k, M or Gi, or with an exponent"
        )
    sign, digits, suffix = match.groups()
    if suffix in _POWERS:
        power = _POWERS[suffix]
    else:
        exponent = int(suffix[1:])
        if abs(exponent) > _MAX_EXPONENT:
            raise ValueError(f"{text!r} is not a quantity: use an exponent of at most {_MAX_EXPONENT}")
        power = Fraction(10) ** exponent
    nanos = Fraction(digits.rstrip(".") if digits.endswith(".") else digits) * power * _NANO
    whole = Fraction(-(-nanos.numerator // nanos.denominator), _NANO)
    if suffix.endswith("i"):
        whole = min(whole, Fraction(_LARGEST_BINARY))
    return Quantity(-whole if sign == "-" else whole)
