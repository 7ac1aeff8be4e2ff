"""Reads the pods that use a claim which is reserved for a PodGroup, while a plan asks for them. Caches no pod."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from controller.apply.outbox import Answer, RequestWish
from controller.apply.sender import Sender, answer_of
from controller.apply.write_backoff import Tries
from controller.timing import PodTiming
from neuron_dra.errors import ApiError
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.objects import MALFORMED
from neuron_dra.kube.requests import PODS
from neuron_dra.planner.observed import projections
from neuron_dra.planner.observed.model import ClaimUse, Pods
from neuron_dra.planner.plan.claim_pods import users

log = logging.getLogger(__name__)

AT_ONCE: Final = 8
"""The limit of claims whose pods are read at once: while a page is decoded, it takes twice its size."""


class ClaimPods:
    """Schedules the reads, and keeps their results: `found` has the pods by the claim's namespace/name."""

    def __init__(self, client: KubeClient, timing: PodTiming, sender: Sender) -> None:
        self._client = client
        self._timing = timing
        self._sender = sender
        self._looks: dict[str, Tries] = {}
        self._uids: dict[str, str] = {}  # by the claim's namespace/name
        self.found: dict[str, Pods] = {}

    def look(self, claims: Sequence[ClaimUse], now: datetime.datetime) -> datetime.datetime | None:
        """Let the pods that are due be read; return when the next are due."""
        use_by_ref = {use.ref: use for use in claims}
        # A claim that was created again under the same name is another one, and has other pods.
        same = {ref for ref, use in use_by_ref.items() if self._uids.get(ref) == use.uid}
        self._uids = {ref: use.uid for ref, use in use_by_ref.items()}
        self.found = {ref: pods for ref, pods in self.found.items() if ref in same}
        looks = {ref: tries for ref, tries in self._looks.items() if ref in same}
        self._looks = {ref: looks.get(ref, Tries(0, now)) for ref in use_by_ref}
        due = [use for ref, use in use_by_ref.items() if self._looks[ref].next_at <= now]
        self._sender.decide("pods of claims", [self._wish(use, now) for use in due])
        return min((tries.next_at for tries in self._looks.values() if tries.next_at > now), default=None)

    def end_waits(self) -> None:
        """Read all of them again at once."""
        self._looks = {}

    def _wish(self, use: ClaimUse, now: datetime.datetime) -> RequestWish:
        send = partial(self._one, use, now)
        return RequestWish(f"claim {use.ref}", "pods", use.namespace, "list pods of nodes", send, at_once=AT_ONCE)

    async def _one(self, use: ClaimUse, now: datetime.datetime, term: int) -> Answer:
        tries = self._looks.get(use.ref, Tries(0, now))
        answer, pods = Answer.DECIDED, None
        try:
            pods = tuple(sorted([user for node in use.nodes for user in await self._users_on(node, use)]))
        except (ApiError, *MALFORMED) as err:
            facts = {"claim": use.ref, "error": str(err) or repr(err)}
            log.warning("the pods that use a claim could not be read", extra=facts)
            answer = answer_of(err)
        if self._uids.get(use.ref) != use.uid:
            return answer  # another claim has taken the name meanwhile
        if pods is not None:
            if pods != self.found.get(use.ref):
                tries = Tries(0, now)  # what changes is looked at more often
            self.found[use.ref] = pods
        self._looks[use.ref] = tries.once_more(self._timing.suspect_s, now, self._timing.longest_s)
        return answer

    async def _users_on(self, node: str, use: ClaimUse) -> list[tuple[str, str]]:
        """Return name and UID of the pods on a node that use a claim.

        Raises ApiError, MALFORMED; also if one of the node's pods cannot be read.
        """
        pods_with_claim: list[tuple[str, str]] = []
        async for page in self._client.list(
            PODS, use.namespace, most_bytes=projections.SMALL_PAGE_BYTES, fieldSelector=f"spec.nodeName={node}"
        ):
            listed = page.decoded(projections.Pod)
            if listed.damaged:
                raise ValueError(f"pod {listed.damaged[0].key}: {listed.damaged[0].why}")
            pods_with_claim += users(use, listed.objects)
        return pods_with_claim
