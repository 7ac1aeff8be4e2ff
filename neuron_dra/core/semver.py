"""Semantic versions 2.0.0: the attribute type `version`, and the CEL function `semver()`.

Source: https://semver.org, Kubernetes' validation of ResourceSlices, and github.com/blang/semver/v4, with which the
scheduler reads versions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

_NUMBER = r"(?:0|[1-9]\d*)"
_IDENTIFIER = r"(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)"
_FORM = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})"
    rf"(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)
_LIMIT = 2**64  # the scheduler holds each number in 64 bits


@total_ordering
@dataclass(frozen=True, slots=True)
class Semver:
    """A version without its build metadata, which precedence and equality ignore."""

    major: int
    minor: int
    patch: int
    pre: tuple[str, ...] = ()

    def __lt__(self, other: Semver) -> bool:
        return self._key() < other._key()

    def _key(self) -> tuple[object, ...]:
        """Return the sort key of section 11 of the specification."""
        # A version without a pre-release is above every pre-release of it; numbers are below words.
        identifiers = []
        for part in self.pre:
            identifiers.append((0, int(part), "") if part.isdigit() else (1, 0, part))
        marks = tuple(identifiers)
        return (self.major, self.minor, self.patch, not self.pre, marks)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}" + (f"-{'.'.join(self.pre)}" if self.pre else "")


def is_admitted(text: str) -> bool:
    """Return True if the API server admits `text` as a version: it checks the form, not the size of the numbers."""
    return _FORM.fullmatch(text) is not None


def parse(text: str, *, normalize: bool = False) -> Semver:
    """Read one version, as the scheduler does.

    `normalize` accepts a leading "v", a missing minor and patch, and leading zeros, as `semver(text, true)` in CEL
    does. Build metadata is accepted and dropped.

    Raises ValueError for another form, and for a number that needs more than 64 bits.
    """
    match = _FORM.fullmatch(_normalized(text) if normalize else text)
    if match is None:
        raise ValueError(f"{text!r} is not a semantic version: use three numbers, such as 1.2.3")
    pre = tuple(match[4].split(".")) if match[4] else ()
    version = Semver(int(match[1]), int(match[2]), int(match[3]), pre)
    numbers = [int(part) for part in pre if part.isdigit()]
    if max(version.major, version.minor, version.patch, *numbers) >= _LIMIT:
        raise ValueError(f"{text!r} is not a semantic version: a number needs more than 64 bits")
    return version


def _normalized(text: str) -> str:
    """Return the text as `normalizeAndParse` of Kubernetes' CEL library completes it."""
    parts = text.removeprefix("v").split(".", 2)
    for index, part in enumerate(parts):
        if len(part) > 1:
            stripped = part.lstrip("0")
            if stripped[:1] in tuple("0123456789"):
                parts[index] = stripped
            else:
                parts[index] = f"0{stripped}"
    if len(parts) < 3 and any(mark in parts[-1] for mark in "+-"):
        return text  # where the missing numbers of "1.0-beta" go is ambiguous
    return ".".join(parts + ["0"] * (3 - len(parts)))
