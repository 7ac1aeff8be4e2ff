"""The fields of the programs' timings: waits, periods and deadlines in seconds, each with its meaning.

A timing is a frozen dataclass, possibly of other timings. Programs use its defaults; tests pass quicker ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeVar

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class TimingField:
    """One field of a timing: its name, with those of the groups that it is in, its default and its meaning."""

    name: str
    default: str
    text: str


def seconds(default: T, text: str) -> T:
    """Return the field of a timing: its default in seconds, and its meaning, which docs/settings.md prints.

    A pair is the first and the longest of delays that double, or the bounds of a random time; `text` says which.
    """
    return dataclasses.field(default=default, metadata={"text": text})


def rows(timing: Any, group: str = "") -> Iterator[TimingField]:
    """Yield the fields of a timing and of its groups, in order."""
    for field in dataclasses.fields(timing):
        value = getattr(timing, field.name)
        name = f"{group}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from rows(value, f"{name}.")
        else:
            yield TimingField(name, _shown(value), field.metadata["text"])


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " to ".join(f"{bound:g}" for bound in value)
    return f"{value:g}"
