"""Which claims were unprepared of late: a prepare that began before that must not commit, in whichever process it runs.

During a rolling update the kubelet may ask the old plugin to prepare a claim, give up, and have the new plugin
unprepare it. The old one still waits for something, and nobody would ever unprepare what it commits afterwards. So
each unprepare leaves a number in the checkpoint. A prepare remembers the number it began with, its *mark*, and the
commit compares the two under the file lock. Numbers need no clock. Only the newest withdrawals are kept; where one
may have been dropped, the answer is "withdrawn", and the kubelet asks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from neuron_dra.core.claims import ClaimRef
from neuron_dra.errors import ClaimError

KEPT: Final = 64  # claims; more than a kubelet unprepares during the 45 s that it waits for a prepare


@dataclass(frozen=True, slots=True)
class Mark:
    """What had been withdrawn when a prepare began."""

    era: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class Withdrawals:
    """Claims by UID with the number of their last unprepare. A rebuilt checkpoint begins a new era of numbers.

    `floor` is the highest number that was dropped.
    """

    era: str = ""
    count: int = 0
    floor: int = 0
    claims: Mapping[str, int] = field(default_factory=dict)

    @property
    def mark(self) -> Mark:
        """The mark of a prepare that begins now."""
        return Mark(self.era, self.count)

    def adding(self, uids: Iterable[str]) -> Withdrawals:
        """Return these withdrawals and those of `uids`, which are the newest now."""
        count = self.count + 1
        claims = {**self.claims, **dict.fromkeys(uids, count)}
        newest = sorted(claims, key=lambda uid: (-claims[uid], uid))
        floor = max((claims[uid] for uid in newest[KEPT:]), default=self.floor)
        return Withdrawals(self.era, count, floor, {uid: claims[uid] for uid in newest[:KEPT]})

    def since(self, mark: Mark, uid: str) -> bool:
        """Tell whether claim `uid` was withdrawn after `mark`, or may have been."""
        if mark.era != self.era or mark.count > self.count:
            return True
        return mark.count < self.claims.get(uid, self.floor)

    def to_wire(self) -> dict[str, Any]:
        """Return what the checkpoint keeps."""
        return {"era": self.era, "count": self.count, "floor": self.floor, "claims": dict(self.claims)}

    @classmethod
    def from_wire(cls, wire: object) -> Withdrawals:
        """Return what `to_wire` gave; anything else is the beginning."""
        if not isinstance(wire, dict):
            return cls()
        era, count, floor = wire.get("era"), wire.get("count"), wire.get("floor")
        claims = wire.get("claims")
        if not isinstance(era, str) or type(count) is not int or type(floor) is not int or not isinstance(claims, dict):
            return cls()
        return cls(era, count, floor, {uid: number for uid, number in claims.items() if type(number) is int})


def refusal(ref: ClaimRef) -> ClaimError:
    """Return why a claim is not prepared that has been unprepared since its prepare began."""
    text = f"claim {ref} was unprepared while it was being prepared; the kubelet asks again if it needs it"
    return ClaimError(text, retryable=True)
