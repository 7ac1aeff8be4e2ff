"""Recently unprepared claims: a prepare that began before the unprepare must not commit, in either of two plugins.

During a rolling update the kubelet may call the old plugin to prepare a claim, give up, and call the new plugin to
unprepare it. If the old plugin, which is still waiting, committed the claim afterwards, it would never be unprepared.
So each unprepare leaves a number in the checkpoint. A prepare records the number at its start, its *mark*, and compares
the two under the file lock before it commits. Numbers need no clock. Withdrawals are kept for longer than a prepare
lasts, however many they are; if one may have been dropped, the claim counts as withdrawn, and the kubelet retries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

from neuron_dra.core.claims import ClaimRef
from neuron_dra.errors import ClaimError

KEPT_S: Final = 120  # a prepare ends, or waits for the lock, well before: the kubelet waits 45 s for it


@dataclass(frozen=True, slots=True)
class Mark:
    """The number of the last withdrawal when a prepare began, and its era."""

    era: str = ""
    count: int = 0

    @classmethod
    def from_wire(cls, wire: object) -> Mark:
        """Return the mark of the withdrawals that `Withdrawals.to_wire` returned, which may be thousands."""
        return cls(wire["era"], wire["count"]) if _is_wire(wire) else cls()


@dataclass(frozen=True, slots=True)
class Withdrawals:
    """The numbers of the last unprepare of claims, by UID; a rebuilt checkpoint starts a new era of numbers.

    `count` is the highest number, `floor` the highest one that was dropped. `seconds` has the highest number by the
    second in which it was given, on a clock that only goes forward within a boot.
    """

    era: str = ""
    count: int = 0
    floor: int = 0
    claims: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[int, int] = field(default_factory=dict)

    @property
    def mark(self) -> Mark:
        """The mark of a prepare that starts now."""
        return Mark(self.era, self.count)

    def adding(self, uids: Iterable[str], now: int) -> Withdrawals:
        """Return the withdrawals with those of `uids` added as the newest, and without those before `now` - KEPT_S."""
        count = self.count + 1
        seconds = {second: number for second, number in self.seconds.items() if second < now} | {now: count}
        floor = max((number for second, number in seconds.items() if second < now - KEPT_S), default=self.floor)
        claims = {**self.claims, **dict.fromkeys(uids, count)}
        return Withdrawals(
            self.era,
            count,
            max(floor, self.floor),
            {uid: number for uid, number in claims.items() if number > floor},
            {second: number for second, number in seconds.items() if number > floor},
        )

    def since(self, mark: Mark, uid: str) -> bool:
        """Return True if claim `uid` was, or may have been, withdrawn after `mark`.

        It may have been if the era changed, or if its withdrawal may be among the dropped ones.
        """
        if mark.era != self.era or mark.count > self.count:
            return True
        return mark.count < self.claims.get(uid, self.floor)

    def certainly_since(self, mark: Mark, uid: str) -> bool:
        """Return True if claim `uid` was withdrawn after `mark`; False if that is unknown."""
        return mark.era == self.era and mark.count < self.claims.get(uid, 0)

    def to_wire(self) -> dict[str, Any]:
        """Return the withdrawals in the checkpoint's form."""
        return {
            "era": self.era,
            "count": self.count,
            "floor": self.floor,
            "claims": dict(self.claims),
            "seconds": {str(second): number for second, number in self.seconds.items()},
        }

    @classmethod
    def from_wire(cls, wire: object) -> Withdrawals:
        """Return the withdrawals that `to_wire` returned; none if `wire` has another form."""
        if not _is_wire(wire):
            return cls()
        numbers = {uid: number for uid, number in wire["claims"].items() if type(number) is int}
        return cls(wire["era"], wire["count"], wire["floor"], numbers, _seconds(wire.get("seconds")))


def _is_wire(wire: object) -> TypeGuard[dict[str, Any]]:
    return (
        isinstance(wire, dict)
        and isinstance(wire.get("era"), str)
        and type(wire.get("count")) is int
        and type(wire.get("floor")) is int
        and isinstance(wire.get("claims"), dict)
    )


def _seconds(wire: object) -> dict[int, int]:
    """Return the seconds that `to_wire` returned; none if another release dropped them, which only keeps more."""
    if not isinstance(wire, dict):
        return {}
    number_by_second = {}
    for second, number in wire.items():
        if second.isdecimal() and type(number) is int:
            number_by_second[int(second)] = number
    return number_by_second


def refusal(ref: ClaimRef) -> ClaimError:
    """Return the error for a claim that was unprepared while it was being prepared."""
    text = f"claim {ref} was unprepared while it was being prepared; the kubelet tries again if a pod still needs it"
    return ClaimError(text)
