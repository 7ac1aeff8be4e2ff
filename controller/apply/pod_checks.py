"""Checks the pods of workloads from time to time: can they be scheduled, and reach each other? Caches no pod.

A pod whose claim is for an earlier workload can never be scheduled. It is evicted, so that another takes its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
from collections.abc import Callable, Sequence, Set
from typing import Final

from controller.apply.fence import Fence, unelected
from controller.apply.pod_eviction import evict
from controller.apply.write_backoff import Tries
from controller.observe import projections
from controller.observe.model import API_VERSION, UNSCHEDULED, Starting, scheduling_refusal
from controller.plan import pod_start
from controller.timing import PodTiming
from neuron_dra.core.turns import in_turn
from neuron_dra.core.wire import Wire
from neuron_dra.errors import ApiError, Conflict, NotFound
from neuron_dra.kube.client import Cursor, KubeClient
from neuron_dra.kube.events import EventRecorder, reference
from neuron_dra.kube.objects import MALFORMED
from neuron_dra.kube.requests import PODS, RESOURCE_CLAIMS

log = logging.getLogger(__name__)

AT_ONCE: Final = 8
LISTS_AT_ONCE: Final = 2
"""The limit of lists at the same time: while a page is decoded, it takes twice its size."""
PAGES: Final = 4
"""The limit of pages that are read of a namespace's unscheduled pods."""


class PodLooks:
    """Schedules the checks and keeps their results. `unschedulable` has messages by workload UID."""

    def __init__(
        self, client: KubeClient, events: EventRecorder, timing: PodTiming, fence: Fence | None = None
    ) -> None:
        self._timing = timing
        self._client = client
        self._fence = fence or unelected()
        self._events = events
        self._reads = asyncio.Semaphore(LISTS_AT_ONCE)
        self._lists: dict[str, Tries] = {}  # by namespace
        self._idle_since: dict[str, datetime.datetime] = {}  # by workload UID
        self._pods: dict[str, Tries | None] = {}  # by workload UID; None: its check is done
        self.unschedulable: dict[str, str] = {}
        self.on_eviction: Callable[[str], None] = lambda result: None

    async def look(self, workloads: Sequence[Starting], now: datetime.datetime) -> datetime.datetime | None:
        """Make the checks that are due; return when the next is due, which is now if results changed."""
        before = dict(self.unschedulable)
        idle: dict[str, list[Starting]] = {}
        for each in workloads:
            if each.idle:
                idle.setdefault(each.namespace, []).append(each)
        uids = {each.uid for found in idle.values() for each in found}
        self._idle_since = {uid: self._idle_since.get(uid, now) for uid in uids}
        self.unschedulable = {uid: text for uid, text in before.items() if uid in uids}
        later = Tries(0, now + datetime.timedelta(seconds=self._timing.idle_s))
        self._lists = {name: self._lists.get(name, later) for name in idle}
        due = [name for name, tries in self._lists.items() if tries.next_at <= now][:AT_ONCE]
        moments = [await self._check_pods([each for each in workloads if each.pod], now)]
        await asyncio.gather(*(self._list(name, idle[name], now) for name in due))
        if self.unschedulable != before:
            return now
        moments += [tries.next_at for tries in self._lists.values()]
        return min((moment for moment in moments if moment is not None), default=None)

    def end_waits(self) -> None:
        """Begin the waits again; a check that is done stays done."""
        self._lists, self._idle_since = {}, {}
        self._pods = {uid: None for uid, tries in self._pods.items() if tries is None}

    async def _list(self, namespace: str, workloads: Sequence[Starting], now: datetime.datetime) -> None:
        """List the unscheduled pods of a namespace, for all its workloads with idle nodes."""
        self._lists[namespace] = self._lists[namespace].once_more(self._timing.idle_s, now, self._timing.longest_s)
        try:
            async with self._reads:
                pods = await self._refused_pods(namespace, {each.template for each in workloads})
            for each in workloads:
                # The scheduler places a surplus pod on a node that becomes idle, within seconds.
                if self._idle_since[each.uid] + datetime.timedelta(seconds=self._timing.idle_s) <= now:
                    self.unschedulable[each.uid] = pod_start.unschedulable(pods, each, now)
                    await self._evict_those_of_former(pods, each, now)
        except (ApiError, *MALFORMED) as err:
            log.warning(
                "unscheduled pods could not be read",
                extra={"namespace": namespace, "error": str(err) or repr(err)},
            )
        self.unschedulable = {uid: text for uid, text in self.unschedulable.items() if text}

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
            if following is None:
                break
            cursor = following
        return pods

    async def _evict_those_of_former(self, pods: Sequence[Wire], workload: Starting, now: datetime.datetime) -> None:
        """Evict the pods whose claims are for an earlier workload with this name. Raises ApiError, MALFORMED."""
        for pod, _ in pod_start.refused(pods, workload, now)[:AT_ONCE]:
            for name in pod_start.claims_of(pod, workload.template):
                with contextlib.suppress(NotFound, Conflict):  # the pod or its claim is another one by now
                    claim = await self._client.read(RESOURCE_CLAIMS, workload.namespace, name)
                    if pod_start.is_of_former(claim, workload):
                        about = "FormerClaimEvicted", pod_start.former_message(workload)
                        evicted = await evict(self._client, self._events, self._fence, pod, *about, now)
                        self.on_eviction("evicted" if evicted else "refused")

    async def _check_pods(self, workloads: Sequence[Starting], now: datetime.datetime) -> datetime.datetime | None:
        """Check one pod of each workload with several groups, once; return when the next try is due."""
        self._pods = {each.uid: self._pods.get(each.uid, Tries(0, now)) for each in workloads}
        waiting = {uid: tries for uid, tries in self._pods.items() if tries is not None}
        due = [each for each in workloads if each.uid in waiting and waiting[each.uid].next_at <= now]
        due = in_turn(due, lambda workload: workload.namespace)[:AT_ONCE]
        await asyncio.gather(*(self._check_pod(each, waiting[each.uid], now) for each in due))
        return min((tries.next_at for tries in self._pods.values() if tries is not None), default=None)

    async def _check_pod(self, workload: Starting, tries: Tries, now: datetime.datetime) -> None:
        self._pods[workload.uid] = tries.once_more(self._timing.idle_s, now, self._timing.longest_s)
        try:
            pod = await self._client.read(PODS, workload.namespace, str(workload.pod))
            lacking = pod_start.lacks_network(pod, workload.template)
        except NotFound:
            return
        except (ApiError, *MALFORMED) as err:
            log.warning(
                "a pod could not be read",
                extra={"pod": f"{workload.namespace}/{workload.pod}", "error": str(err) or repr(err)},
            )
            return
        self._pods[workload.uid] = None
        if lacking:
            about = reference(API_VERSION, "NeuronUltraServerWorkload", workload.namespace, workload.name, workload.uid)
            self._events.post(about, "Warning", "NoNetworkClaim", pod_start.network_advice(workload), now)
