"""What `why` reports: causes, the facts behind them, and changes that a simulation has confirmed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from neuron_dra.ask.read.snapshot import Key
from neuron_dra.core.wire import Wire

AVAILABLE: Final = "available"
"""The label of a fact with the values, names or nodes that a request could have named."""


@dataclass(frozen=True, slots=True)
class ProposedChange:
    """A change that helps.

    - `text`: what to do; `outcome`: what a simulation of it gives.
    - `replaced`, `removed`: the objects afterwards, so that the change can be repeated.
    - `steps`: how to apply it where kubectl edit and kubectl apply fail, or would not last; empty where they do it.
    """

    text: str
    outcome: str
    replaced: tuple[Wire, ...] = ()
    removed: tuple[Key, ...] = ()
    steps: str = ""

    def to_wire(self) -> dict[str, Any]:
        """Return the change for `-o json` and `-o yaml`."""
        return {"text": self.text, "outcome": self.outcome, "steps": self.steps}


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause. `code` is stable, for programs; `facts` are labels with what was seen."""

    code: str
    text: str
    facts: tuple[tuple[str, str], ...] = ()
    changes: tuple[ProposedChange, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        """Return the cause for `-o json` and `-o yaml`."""
        return {
            "code": self.code,
            "text": self.text,
            "facts": [{"name": name, "text": text} for name, text in self.facts],
            "changes": [change.to_wire() for change in self.changes],
        }


@dataclass(frozen=True, slots=True)
class Report:
    """The answer about one object: its state and the causes, the true one first. `fine`: nothing is wrong."""

    subject: str
    state: str
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    fine: bool = False

    def to_wire(self) -> dict[str, Any]:
        """Return the report for `-o json` and `-o yaml`."""
        return {
            "subject": self.subject,
            "state": self.state,
            "causes": [finding.to_wire() for finding in self.findings],
            "notes": list(self.notes),
        }


@dataclass(slots=True)
class Facts:
    """Collects labelled facts; an empty text adds none."""

    items: list[tuple[str, str]] = field(default_factory=list)

    def add(self, label: str, text: str) -> None:
        """Add a fact."""
        if text:
            self.items.append((label, text))

    def some(self, label: str, texts: Iterable[str], most: int = 4, of: int = 0) -> None:
        """Add one fact for each text, at most `most`, and how many are left of `of`, or if 0 of the texts."""
        remaining = iter(texts)
        for text in itertools.islice(remaining, most):
            self.add(label, text)
        more = of - most if of else sum(1 for _ in remaining)
        if more > 0:
            self.add("", f"and {more} more")

    def done(self) -> tuple[tuple[str, str], ...]:
        """Return the facts."""
        return tuple(self.items)


def working(changes: Iterable[ProposedChange | None], most: int = 3) -> tuple[ProposedChange, ...]:
    """Return the first changes that work, each once."""
    change_by_text: dict[str, ProposedChange] = {}
    for change in changes:
        if change is not None:
            change_by_text.setdefault(change.text, change)
        if len(change_by_text) == most:
            break
    return tuple(change_by_text.values())
