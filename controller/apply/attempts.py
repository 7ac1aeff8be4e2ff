"""Writes beside the plans that are decided again until they have had their effect: how one is tried, and when again."""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from enum import Enum

from controller.apply.fence import EndedTerm, Fence
from controller.apply.outbox import Answer
from controller.apply.sender import answer_of
from controller.apply.write_backoff import Tries
from neuron_dra.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from neuron_dra.kube.objects import MALFORMED


class WriteOutcome(Enum):
    """What became of a write."""

    WRITTEN = "written"
    CHANGED = "changed"  # the object is not as it was decided about
    REJECTED = "rejected"  # by a policy, a quota, or the schema
    FAILED = "failed"  # without an answer, it may have been written


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a write: its outcome, the error as a text, and the answer for the outbox.

    Each decider looks again after its own writes, so an answer of the API server is no news for the plan.
    """

    outcome: WriteOutcome
    error: str = ""
    answer: Answer = Answer.NO_NEWS


class Attempts:
    """The tries of writes in a row, by a key of what is written."""

    def __init__(self, fence: Fence, first_s: float, longest_s: float) -> None:
        """`first_s` and `longest_s`: how long a write waits after its first try, and at most."""
        self._fence = fence
        self._first_s = first_s
        self._longest_s = longest_s
        self._tries: dict[str, Tries] = {}

    def end_waits(self) -> None:
        """Do at once what waits for a time."""
        self._tries = {}

    def keep(self, keys: Collection[str]) -> None:
        """Forget the writes that are not decided any more."""
        self._tries = {key: tries for key, tries in self._tries.items() if key in keys}

    def done(self, key: str) -> None:
        """Forget a write that had its effect."""
        self._tries.pop(key, None)

    def due(self, key: str, now: datetime.datetime) -> datetime.datetime:
        """Return when a write may be tried: `now`, unless it waits."""
        tries = self._tries.get(key)
        if tries is None:
            return now
        return max(tries.next_at, now)

    async def make(
        self, key: str, send: Callable[[], Awaitable[None]], now: datetime.datetime, term: int | None = None
    ) -> Attempt:
        """Try a write that was decided in `term`. Raises EndedTerm.

        Also one that was written waits: until a watch shows its effect, it is decided again.
        """
        self._tries[key] = self._tries.get(key, Tries(0, now)).once_more(self._first_s, now, self._longest_s)
        try:
            self._fence.check(term)
            await send()
        except EndedTerm:
            raise
        except (AlreadyExists, Conflict, NotFound) as err:
            return Attempt(WriteOutcome.CHANGED, str(err))
        except (Forbidden, Invalid) as err:
            return Attempt(WriteOutcome.REJECTED, str(err))
        except ApiError as err:
            answer = answer_of(err)
            return Attempt(WriteOutcome.FAILED, str(err), Answer.NO_NEWS if answer is Answer.DECIDED else answer)
        except MALFORMED as err:
            return Attempt(WriteOutcome.FAILED, str(err) or repr(err))
        return Attempt(WriteOutcome.WRITTEN)
