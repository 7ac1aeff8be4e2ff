"""Lets only writes of the current term of leadership pass."""

from __future__ import annotations

from controller.apply.leader import Alone, Leadership
from neuron_dra.errors import ApiError


class EndedTerm(ApiError):
    """The term in which a write was decided has ended, so it was not sent."""


class Fence:
    """The term in which the writes of a pass are decided.

    A replica that loses the lease and gets it back within one pass leads again, but another replica may have written
    in between: what it decided before must not be sent.
    """

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._term = 0

    @property
    def term(self) -> int:
        """The term of the pass."""
        return self._term

    @property
    def tenure(self) -> int:
        """The tenure of the leadership. It changes only if another replica led between two terms."""
        return self._leadership.tenure

    def enter(self, term: int) -> None:
        """Start a pass in this term."""
        self._term = term

    def passes(self) -> bool:
        """Return True while the term lasts."""
        return self._leadership.holds() and self._leadership.term == self._term

    def check(self, term: int | None = None) -> None:
        """Call it immediately before a write that was decided in `term`, by default that of the pass. Raises EndedTerm.

        What goes on beside the passes names its term: a pass may have begun the next one meanwhile.
        """
        if not self.passes() or term not in (None, self._term):
            raise EndedTerm("the term of leadership in which this write was decided has ended")


def unelected() -> Fence:
    """Return the fence of a program that works without election: it stops nothing."""
    fence = Fence(Alone())
    fence.enter(Alone.term)
    return fence
