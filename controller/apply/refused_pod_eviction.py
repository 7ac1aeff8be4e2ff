"""Reads the pods that a node may reject permanently, and evicts those that it does."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Sequence
from functools import partial

from controller.apply.fence import EndedTerm
from controller.apply.outbox import Answer, RequestWish
from controller.apply.pod_eviction import evict
from controller.apply.sender import Sender, answer_of
from controller.apply.write_backoff import Tries
from controller.timing import PodTiming
from neuron_dra.errors import ApiError, Conflict, NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.events import EventRecorder
from neuron_dra.kube.objects import MALFORMED
from neuron_dra.kube.requests import PODS
from neuron_dra.planner.fleet.refused_pods import LOOK_AGAIN, event_message, refused_until
from neuron_dra.planner.observed.model import Suspect

log = logging.getLogger(__name__)


class Refusals:
    """Schedules when each suspect is read again. Caches no pod."""

    def __init__(self, client: KubeClient, events: EventRecorder, timing: PodTiming, sender: Sender) -> None:
        self._timing = timing
        self._client = client
        self._sender = sender
        self._events = events
        self._looks: dict[str, Tries] = {}
        self.on_eviction: Callable[[str], None] = lambda result: None

    def look(self, suspects: Sequence[Suspect], now: datetime.datetime) -> datetime.datetime | None:
        """Let the suspects that are due be read, and rejected pods be evicted; return when the next one is due."""
        self._looks = {suspect.uid: self._looks.get(suspect.uid, Tries(0, now)) for suspect in suspects}
        due = [suspect for suspect in suspects if self._looks[suspect.uid].next_at <= now]
        self._sender.decide("refused pods", [self._wish(suspect, now) for suspect in due])
        return min((tries.next_at for tries in self._looks.values() if tries.next_at > now), default=None)

    def end_waits(self) -> None:
        """Read all suspects at once."""
        self._looks = {}

    def _wish(self, suspect: Suspect, now: datetime.datetime) -> RequestWish:
        return RequestWish(suspect.uid, "eviction", suspect.namespace, "evict pods", partial(self._one, suspect, now))

    async def _one(self, suspect: Suspect, now: datetime.datetime, term: int) -> Answer:
        """Read one suspect; evict it if its node has rejected it for long enough."""
        tries = self._looks.get(suspect.uid, Tries(0, now))
        self._looks[suspect.uid] = tries.once_more(self._timing.suspect_s, now, self._timing.longest_s)
        try:
            pod = await self._client.read(PODS, suspect.namespace, suspect.name)
            until = refused_until(pod, suspect)
            if until is None:
                self._looks[suspect.uid] = Tries(0, now + LOOK_AGAIN)
            elif until > now:
                self._looks[suspect.uid] = Tries(0, until)
            else:
                about = "RefusedPodEvicted", event_message(pod, suspect)
                self._sender.fence.check(term)
                evicted = await evict(self._client, self._events, pod, *about, now)
                self.on_eviction("evicted" if evicted else "refused")
        except (NotFound, Conflict):
            self.on_eviction("gone")
        except (ApiError, *MALFORMED) as err:
            if isinstance(err, EndedTerm):
                raise
            log.warning(
                "a rejected pod could not be read or evicted",
                extra={"pod": f"{suspect.namespace}/{suspect.name}", "error": str(err) or repr(err)},
            )
            return answer_of(err)
        return Answer.DECIDED
