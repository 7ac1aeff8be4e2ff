"""Checks the pods of workloads from time to time: can they be scheduled, and reach each other? Caches no pod.

A pod whose claim is for an earlier workload can never be scheduled. It is evicted, so that another takes its place.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Final

from controller.apply.fence import EndedTerm
from controller.apply.outbox import Answer, RequestWish
from controller.apply.pod_eviction import evict
from controller.apply.sender import Sender, answer_of
from controller.apply.write_backoff import Tries
from controller.timing import PodTiming
from neuron_dra.core.wire import Wire
from neuron_dra.errors import ApiError, Conflict, NotFound
from neuron_dra.kube.client import Cursor, KubeClient
from neuron_dra.kube.events import EventRecorder, reference
from neuron_dra.kube.objects import MALFORMED
from neuron_dra.kube.requests import PODS, RESOURCE_CLAIMS
from neuron_dra.planner.observed import projections
from neuron_dra.planner.observed.model import API_VERSION, UNSCHEDULED, Starting, scheduling_refusal
from neuron_dra.planner.plan import pod_start

log = logging.getLogger(__name__)

EVICTIONS_AT_ONCE: Final = 8
"""The limit of pods of a workload whose claims are read in one check."""
LISTS_AT_ONCE: Final = 2
"""The limit of lists at the same time: while a page is decoded, it takes twice its size."""
PAGES: Final = 4
"""The limit of pages that are read of a namespace's unscheduled pods."""


class PodLooks:
    """Schedules the checks and keeps their results. `unschedulable` has messages by workload UID."""

    def __init__(self, client: KubeClient, events: EventRecorder, timing: PodTiming, sender: Sender) -> None:
        self._timing = timing
        self._client = client
        self._sender = sender
        self._events = events
        self._lists: dict[str, Tries] = {}  # by namespace
        self._idle_since: dict[str, datetime.datetime] = {}  # by workload UID
        self._pods: dict[str, Tries | None] = {}  # by workload UID; None: its check is done
        self.unschedulable: dict[str, str] = {}
        self.on_eviction: Callable[[str], None] = lambda result: None

    def look(self, workloads: Sequence[Starting], now: datetime.datetime) -> datetime.datetime | None:
        """Let the checks that are due be made; return when the next is due."""
        idle: dict[str, list[Starting]] = {}
        for workload in workloads:
            if workload.idle:
                idle.setdefault(workload.namespace, []).append(workload)
        uids = {workload.uid for of_namespace in idle.values() for workload in of_namespace}
        self._idle_since = {uid: self._idle_since.get(uid, now) for uid in uids}
        self.unschedulable = {uid: text for uid, text in self.unschedulable.items() if uid in uids}
        later = Tries(0, now + datetime.timedelta(seconds=self._timing.idle_s))
        self._lists = {namespace: self._lists.get(namespace, later) for namespace in idle}
        with_pods = [workload for workload in workloads if workload.pod]
        self._pods = {workload.uid: self._pods.get(workload.uid, Tries(0, now)) for workload in with_pods}
        checks = [workload for workload in with_pods if _is_due(self._pods[workload.uid], now)]
        lists = [namespace for namespace, tries in self._lists.items() if tries.next_at <= now]
        self._sender.decide(
            "pod checks",
            [
                *(self._check(workload, now) for workload in checks),
                *(self._list(namespace, idle[namespace], now) for namespace in lists),
            ],
        )
        tries_of_all = (*self._pods.values(), *self._lists.values())
        return min((tries.next_at for tries in tries_of_all if tries is not None and tries.next_at > now), default=None)

    def end_waits(self) -> None:
        """Begin the waits again; a check that is done stays done."""
        self._lists, self._idle_since = {}, {}
        self._pods = {uid: None for uid, tries in self._pods.items() if tries is None}

    def _check(self, workload: Starting, now: datetime.datetime) -> RequestWish:
        send = partial(self._check_pod, workload, now)
        return RequestWish(f"a pod of {workload.uid}", "network", workload.namespace, "get pods", send)

    def _list(self, namespace: str, workloads: Sequence[Starting], now: datetime.datetime) -> RequestWish:
        send = partial(self._list_pods, namespace, workloads, now)
        return RequestWish(
            f"namespace {namespace}", "unscheduled pods", namespace, "list pods", send, at_once=LISTS_AT_ONCE
        )

    async def _list_pods(
        self, namespace: str, workloads: Sequence[Starting], now: datetime.datetime, term: int
    ) -> Answer:
        """List the unscheduled pods of a namespace, for all its workloads with idle nodes."""
        tries = self._lists.get(namespace, Tries(0, now))
        self._lists[namespace] = tries.once_more(self._timing.idle_s, now, self._timing.longest_s)
        answer = Answer.DECIDED
        try:
            pods = await self._refused_pods(namespace, {workload.template for workload in workloads})
            for workload in workloads:
                # The scheduler places a surplus pod on a node that becomes idle, within seconds.
                if self._idle_since.get(workload.uid, now) + datetime.timedelta(seconds=self._timing.idle_s) <= now:
                    self.unschedulable[workload.uid] = pod_start.unschedulable(pods, workload, now)
                    await self._evict_those_of_former(pods, workload, now, term)
        except EndedTerm:
            raise
        except (ApiError, *MALFORMED) as err:
            log.warning(
                "unscheduled pods could not be read",
                extra={"namespace": namespace, "error": str(err) or repr(err)},
            )
            answer = answer_of(err)
        self.unschedulable = {uid: text for uid, text in self.unschedulable.items() if text}
        return answer

    async def _refused_pods(self, namespace: str, templates: Set[str]) -> list[Wire]:
        """Return the pods of these templates that the scheduler cannot place. Raises ApiError, MALFORMED."""
        pods: list[Wire] = []
        cursor = Cursor()
        for _ in range(PAGES):
            page, following = await self._client.list_page(
                PODS,
                namespace,
                cursor,
                {"fieldSelector": UNSCHEDULED},
                most_bytes=projections.WAITING_PODS_BYTES,
            )
            waiting = page.decoded(projections.WaitingPod).objects
            named = [pod for pod in waiting if not templates.isdisjoint(pod.templates)]
            pods += [pod for pod in projections.as_wire(named) if scheduling_refusal(pod)]
            del page, waiting, named  # or two pages are in memory while the next one is read
            if following is None:
                break
            cursor = following
        return pods

    async def _evict_those_of_former(
        self, pods: Sequence[Wire], workload: Starting, now: datetime.datetime, term: int
    ) -> None:
        """Evict the pods whose claims are for an earlier workload with this name. Raises ApiError, MALFORMED."""
        for pod, _ in pod_start.refused(pods, workload, now)[:EVICTIONS_AT_ONCE]:
            for claim_name in pod_start.claims_of(pod, workload.template):
                with contextlib.suppress(NotFound, Conflict):  # the pod or its claim is another one by now
                    claim = await self._client.read(RESOURCE_CLAIMS, workload.namespace, claim_name)
                    if pod_start.is_of_former(claim, workload):
                        about = "FormerClaimEvicted", pod_start.former_message(workload)
                        self._sender.fence.check(term)
                        evicted = await evict(self._client, self._events, pod, *about, now)
                        self.on_eviction("evicted" if evicted else "refused")

    async def _check_pod(self, workload: Starting, now: datetime.datetime, term: int) -> Answer:
        """Check one pod of a workload with several groups, until that has succeeded once."""
        tries = self._pods.get(workload.uid) or Tries(0, now)
        self._pods[workload.uid] = tries.once_more(self._timing.idle_s, now, self._timing.longest_s)
        try:
            pod = await self._client.read(PODS, workload.namespace, str(workload.pod))
            lacking = pod_start.lacks_network(pod, workload.template)
        except NotFound:
            return Answer.DECIDED
        except (ApiError, *MALFORMED) as err:
            log.warning(
                "a pod could not be read",
                extra={"pod": f"{workload.namespace}/{workload.pod}", "error": str(err) or repr(err)},
            )
            return answer_of(err)
        self._pods[workload.uid] = None
        if lacking:
            about = reference(API_VERSION, "NeuronUltraServerWorkload", workload.namespace, workload.name, workload.uid)
            self._events.post(about, "Warning", "NoNetworkClaim", pod_start.network_advice(workload), now)
        return Answer.NO_NEWS


def _is_due(tries: Tries | None, now: datetime.datetime) -> bool:
    return tries is not None and tries.next_at <= now
