"""The size of a study."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; `number` is 0 for the study's own size."""

    number: int
    first: int
    minutes: float
    kubernetes: str | None
    report: bool
