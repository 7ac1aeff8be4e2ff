"""Semantic versions 2.0.0, as the attribute type `version` and the CEL function `semver()` use them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

_NUMBER = r"(?:0|[1-9]\d*)"
_IDENTIFIER = r"(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)"
_FORM = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})"
    rf"(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?",
    re.ASCII,
)


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Semver:
    """A version; the order is that of precedence, so build metadata counts for nothing."""

    major: int
    minor: int
    patch: int
    pre: tuple[str, ...] = ()
    build: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Semver) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __lt__(self, other: Semver) -> bool:
        return self._key() < other._key()

    def _key(self) -> tuple[object, ...]:
        # A version without a pre-release is above every pre-release of it; numbers are below words.
        marks = tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in self.pre)
        return (self.major, self.minor, self.patch, not self.pre, marks)

    def __str__(self) -> str:
        core = f"{self.major}.{self.minor}.{self.patch}"
        return core + (f"-{'.'.join(self.pre)}" if self.pre else "") + (f"+{self.build}" if self.build else "")


def parse(text: str, *, normalize: bool = False) -> Semver:
    """Read one version. Raises ValueError.

    `normalize` forgives what people write: a leading "v", missing minor and patch, leading zeros.
    """
    wanted = _normalized(text) if normalize else text
    match = _FORM.fullmatch(wanted)
    if match is None:
        raise ValueError(f"{text!r} is not a semantic version: three numbers such as 1.2.3 are")
    major, minor, patch, pre, build = match.groups()
    return Semver(int(major), int(minor), int(patch), tuple(pre.split(".")) if pre else (), build or "")


def _normalized(text: str) -> str:
    core, mark, rest = _split(text.removeprefix("v"))
    numbers = core.split(".")
    if len(numbers) < 3 and mark:
        return text  # "1.0-beta" cannot be completed: where the missing numbers go is ambiguous
    stripped = [number.lstrip("0") or "0" if number.isdigit() else number for number in numbers]
    return ".".join(stripped + ["0"] * (3 - len(stripped))) + mark + rest


def _split(text: str) -> tuple[str, str, str]:
    cut = min((text.find(mark) for mark in "-+" if mark in text), default=len(text))
    return text[:cut], text[cut : cut + 1], text[cut + 1 :]
