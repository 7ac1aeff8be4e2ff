"""Reads the claims on nodes before they change hands: the watch of claims may lag behind that of slices."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Mapping, Sequence
from functools import partial

from controller.apply.outbox import Answer, RequestWish
from controller.apply.sender import Sender, answer_of
from controller.apply.write_backoff import Tries
from controller.observe.caches import Caches
from controller.timing import PodTiming
from neuron_dra.errors import ApiError
from neuron_dra.planner.decisions.actions import NodesToRead
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed.model import PublishedNode, ReadClaims

log = logging.getLogger(__name__)


class ClaimReads:
    """Schedules the reads, one at a time for each namespace whose workloads have the nodes.

    - `found`: the reads that count, by node.
    - `errors`: why the claims on the nodes of a namespace cannot be read.
    """

    def __init__(self, caches: Caches[FleetIndex], timing: PodTiming, sender: Sender) -> None:
        self._caches = caches
        self._timing = timing
        self._sender = sender
        self._failures: dict[str, Tries] = {}
        self.found: dict[str, ReadClaims] = {}
        self.errors: dict[str, str] = {}

    def look(
        self, requests: Sequence[NodesToRead], published: Mapping[str, PublishedNode], now: datetime.datetime
    ) -> datetime.datetime | None:
        """Let claims be read on the nodes that a plan asks for; return when a failed read is due again.

        `published`: what the nodes publish, as the plan has seen it.
        """
        all_nodes = {node_name for request in requests for node_name in request.nodes}
        self.found = {node_name: read for node_name, read in self.found.items() if node_name in all_nodes}
        unread_of: dict[str, dict[str, PublishedNode | None]] = {}
        for request in requests:
            unread = unread_of.setdefault(request.namespace, {})
            for node_name in request.nodes:
                read = self.found.get(node_name)
                if read is None or not read.counts(published.get(node_name), now, request.most_age):
                    unread[node_name] = published.get(node_name)
        self.errors = {namespace: error for namespace, error in self.errors.items() if namespace in unread_of}
        self._failures = {namespace: tries for namespace, tries in self._failures.items() if namespace in unread_of}
        wishes = []
        for namespace, unread in unread_of.items():
            tries = self._failures.get(namespace)
            if unread and (tries is None or tries.next_at <= now):
                send = partial(self._read, namespace, unread, now, asyncio.get_running_loop().time())
                wishes.append(RequestWish(f"claims of {namespace}", "nodes", namespace, "list claims of nodes", send))
        self._sender.decide("claims of nodes", wishes)
        return min((tries.next_at for tries in self._failures.values() if tries.next_at > now), default=None)

    def end_waits(self) -> None:
        """Read again at once what could not be read."""
        self._failures = {}

    async def _read(
        self,
        namespace: str,
        nodes: Mapping[str, PublishedNode | None],
        now: datetime.datetime,
        now_s: float,
        term: int,
    ) -> Answer:
        try:
            await self._caches.reread_claims(nodes.keys())
        except ApiError as err:
            log.warning("claims on nodes could not be read", extra={"namespace": namespace, "error": str(err)})
            self.errors[namespace] = str(err)
            tries = self._failures.get(namespace, Tries(0, now))
            self._failures[namespace] = tries.once_more(self._timing.suspect_s, now, self._timing.longest_s)
            return answer_of(err)
        self.errors.pop(namespace, None)
        self._failures.pop(namespace, None)
        elapsed = datetime.timedelta(seconds=asyncio.get_running_loop().time() - now_s)
        # Another mapping, because a plan that is being made has this one, and not the claims that were read now.
        self.found = {**self.found, **{node_name: ReadClaims(seen, now + elapsed) for node_name, seen in nodes.items()}}
        return Answer.DECIDED
