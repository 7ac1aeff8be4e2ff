"""Remembers what agents reported of Nodes, so that a report that comes and goes does not count as ended. No I/O.

A node stays reported until it was well for a while. Agents' own times are not used: they may be missing, or in the year
9999. So this is known to one process only; a new leader begins with what the Nodes say.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from neuron_dra.planner.observed.model import ClusterNode

_LONG_AGO: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class _Spell:
    """A time in which agents report faults of a Node, with pauses.

    - `texts`: what they said, by type of condition; the first text of each, so that a text that always changes causes
      no writes.
    - `began`: when the last report without a pause began; None if it was there when this process first saw the Node.
    - `ended`: when the last pause began; None during a report.
    """

    uid: str
    texts: dict[str, str]
    began: datetime.datetime | None
    ended: datetime.datetime | None = None


class Reports:
    """What agents reported of each Node that is not well, or was not until a while ago."""

    def __init__(self, hold: datetime.timedelta) -> None:
        """`hold`: how long a Node must be well before it counts as such."""
        self._hold = hold
        self._spells: dict[str, _Spell] = {}  # by Node

    def gone(self, node_name: str) -> None:
        """Forget a Node that was deleted."""
        self._spells.pop(node_name, None)

    def end_waits(self) -> None:
        """Count each Node as well that is: the clock was set back."""
        for node_name, spell in self._spells.items():
            if spell.ended is not None:
                self._spells[node_name] = replace(spell, ended=_LONG_AGO)

    def follow(self, node: ClusterNode, before: ClusterNode | None, now: datetime.datetime) -> ClusterNode:
        """Return a Node as a plan should see it; `before` is what this returned last, None for a new Node."""
        is_same_node = before is not None and before.uid == node.uid
        spell = self._spells.get(node.name)
        if spell is not None and spell.uid != node.uid:
            spell = None  # another instance of the same name
        if node.reported:
            spell = _reported(spell, node, now if is_same_node else None, now)
        elif spell is not None:
            spell = replace(spell, ended=spell.ended or now)
        if spell is None or self._is_over(spell, now):
            self._spells.pop(node.name, None)
            return node
        self._spells[node.name] = spell
        texts = tuple(spell.texts.items())
        return replace(node, reported=texts, recovering=spell.ended is not None, reported_since=spell.began)

    def due(self, now: datetime.datetime) -> list[str]:
        """Return the names of the Nodes that were well for long enough."""
        return [node_name for node_name, spell in self._spells.items() if self._is_over(spell, now)]

    def next_due(self) -> datetime.datetime | None:
        """Return when the next Node will have been well for long enough; None if none is recovering."""
        return min(self._ends(), default=None)

    def _ends(self) -> Iterator[datetime.datetime]:
        for spell in self._spells.values():
            if spell.ended is not None:
                yield spell.ended + self._hold

    def _is_over(self, spell: _Spell, now: datetime.datetime) -> bool:
        return spell.ended is not None and now >= spell.ended + self._hold


def _reported(
    spell: _Spell | None, node: ClusterNode, began: datetime.datetime | None, now: datetime.datetime
) -> _Spell:
    """Return the spell of a Node that agents report now; `began` is when a new one did, if that was seen."""
    texts = dict(node.reported)
    if spell is None:
        return _Spell(node.uid, texts, began)
    again = spell.ended is not None
    return _Spell(node.uid, texts | spell.texts, now if again else spell.began)
