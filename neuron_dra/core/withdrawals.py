"""Recently unprepared claims: a prepare that began before the unprepare must not commit, in either of two plugins.

During a rolling update the kubelet may call the old plugin to prepare a claim, give up, and call the new plugin to
unprepare it. If the old plugin, which is still waiting, committed the claim afterwards, it would never be unprepared.
So each unprepare leaves a number in the checkpoint. A prepare records the number at its start, its *mark*, and compares
the two under the file lock before it commits. Numbers need no clock. Only the newest withdrawals are kept; if one may
have been dropped, the claim counts as withdrawn, and the kubelet retries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from neuron_dra.core.claims import ClaimRef
from neuron_dra.errors import ClaimError

KEPT: Final = 64  # claims: more than a kubelet unprepares in the 45 s for which it waits for a prepare


@dataclass(frozen=True, slots=True)
class Mark:
    """The number of the last withdrawal when a prepare began, and its era."""

    era: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class Withdrawals:
    """The numbers of the last unprepare of claims, by UID; a rebuilt checkpoint starts a new era of numbers.

    `count` is the highest number, `floor` the highest one that was dropped.
    """

    era: str = ""
    count: int = 0
    floor: int = 0
    claims: Mapping[str, int] = field(default_factory=dict)

    @property
    def mark(self) -> Mark:
        """The mark of a prepare that starts now."""
        return Mark(self.era, self.count)

    def adding(self, uids: Iterable[str]) -> Withdrawals:
        """Return the withdrawals with those of `uids` added as the newest."""
        count = self.count + 1
        claims = {**self.claims, **dict.fromkeys(uids, count)}
        newest = sorted(claims, key=lambda uid: (-claims[uid], uid))
        floor = max((claims[uid] for uid in newest[KEPT:]), default=self.floor)
        return Withdrawals(self.era, count, floor, {uid: claims[uid] for uid in newest[:KEPT]})

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
        return {"era": self.era, "count": self.count, "floor": self.floor, "claims": dict(self.claims)}

    @classmethod
    def from_wire(cls, wire: object) -> Withdrawals:
        """Return the withdrawals that `to_wire` returned; none if `wire` has another form."""
        if not isinstance(wire, dict):
            return cls()
        era, count, floor = wire.get("era"), wire.get("count"), wire.get("floor")
        claims = wire.get("claims")
        if not isinstance(era, str) or type(count) is not int or type(floor) is not int or not isinstance(claims, dict):
            return cls()
        return cls(era, count, floor, {uid: number for uid, number in claims.items() if type(number) is int})


def refusal(ref: ClaimRef) -> ClaimError:
    """Return the error for a claim that was unprepared while it was being prepared."""
    text = f"claim {ref} was unprepared while it was being prepared; the kubelet tries again if a pod still needs it"
    return ClaimError(text)
