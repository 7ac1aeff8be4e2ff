"""Keeps the Service of each workload and its EndpointSlice, which follows the pod with rank 0. Caches no pod."""

from __future__ import annotations

import datetime
import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from controller.apply.fence import EndedTerm
from controller.apply.outbox import Answer, RequestWish
from controller.apply.sender import Sender, answer_of
from controller.apply.write_backoff import Tries
from controller.timing import RendezvousTiming
from neuron_dra.core import rendezvous
from neuron_dra.core.wire import Wire
from neuron_dra.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.events import EventRecorder, reference
from neuron_dra.kube.objects import MALFORMED
from neuron_dra.kube.requests import ENDPOINT_SLICES, PODS, SERVICES, Resource
from neuron_dra.planner.observed.model import API_VERSION, Meeting
from neuron_dra.planner.plan import rendezvous as plan

log = logging.getLogger(__name__)

AT_ONCE: Final = 16
"""The limit of Services that are read at once."""
PATIENCE: Final = 30
"""After so many tries, about five minutes, an object that the garbage collector does not delete is reported."""

_LONG_AGO: Final = datetime.datetime.min.replace(tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class _Followed:
    """What was last written for a workload: for `meeting`, next read according to `tries`.

    `changed`: another meeting was followed before. `settled`: nothing is left to do until the address is verified.
    """

    meeting: Meeting
    tries: Tries = field(compare=False)
    changed: bool = False
    settled: bool = False


class NoRights(ApiError):
    """The ClusterRole does not allow to read Services, EndpointSlices or pods."""


class _OutdatedMeeting(ApiError):
    """Another pod has rank 0 since these requests began, or none, or the workload is gone."""


class RendezvousServices:
    """Schedules when the Service of each workload is read again. A changed pod is followed at once.

    `forbidden`: the ClusterRole lacks the rights, as that of AWS's chart does, so no workload has a Service.
    """

    def __init__(self, client: KubeClient, events: EventRecorder, timing: RendezvousTiming, sender: Sender) -> None:
        self._timing = timing
        self._client = client
        self._sender = sender
        self._events = events
        self._followed: dict[str, _Followed] = {}  # by workload UID
        self._forbidden_at: datetime.datetime | None = None
        self._unsettled = 0
        self._seen: Sequence[Meeting] = ()
        self._seen_term = 0
        self._next_at = _LONG_AGO

    @property
    def forbidden(self) -> bool:
        return self._forbidden_at is not None

    def look(self, meetings: Sequence[Meeting], now: datetime.datetime) -> datetime.datetime | None:
        """Let the Services that are due be updated; return when the next one is due."""
        are_same = len(meetings) == len(self._seen) and all(map(operator.is_, meetings, self._seen))
        if now < self._next_at and are_same and self._seen_term == self._sender.fence.term:
            return self._next_at  # the usual case, also with thousands of workloads
        next_at = self._look(meetings, now)
        self._seen, self._seen_term, self._next_at = meetings, self._sender.fence.term, next_at or now
        return next_at

    def end_waits(self) -> None:
        """Read all Services at once."""
        self._followed = {}
        self._next_at = _LONG_AGO
        if self._forbidden_at is not None:
            self._forbidden_at = _LONG_AGO

    def _look(self, meetings: Sequence[Meeting], now: datetime.datetime) -> datetime.datetime | None:
        """Do the same, without the short cut."""
        before = self._followed
        self._followed = {}
        for meeting in meetings:
            followed = before.get(meeting.uid)
            if followed is None or followed.meeting != meeting:
                followed = _Followed(meeting, Tries(0, now), changed=followed is not None)
            self._followed[meeting.uid] = followed
        self._unsettled = sum(not followed.settled for followed in self._followed.values())
        due = [meeting for meeting in meetings if self._followed[meeting.uid].tries.next_at <= now]
        if self._forbidden_at is not None:
            again = self._forbidden_at + datetime.timedelta(seconds=self._timing.forbidden_s)
            due = due[:1] if again <= now else []
            self._sender.decide("services", [self._wish(meeting, now) for meeting in due])
            if due or not meetings:
                return None
            return again
        self._sender.decide("services", [self._wish(meeting, now) for meeting in due])
        moments = [self._due(followed, now) for followed in self._followed.values()]
        return min((moment for moment in moments if moment > now), default=None)

    def _due(self, followed: _Followed, now: datetime.datetime) -> datetime.datetime:
        """Return when a Service is read again, if nothing is found to be wrong when it is read now."""
        if followed.settled and followed.tries.next_at <= now:
            return self._verified(followed, now).next_at
        return followed.tries.next_at

    def _verified(self, followed: _Followed, now: datetime.datetime) -> Tries:
        """Return when an address is verified again: soon, several times, after it has changed."""
        again_s = max(self._timing.verify_s, self._timing.workload_s * len(self._followed))
        first_s = self._timing.first_s if followed.changed else again_s
        return followed.tries.once_more(first_s, now, again_s)

    def _wish(self, meeting: Meeting, now: datetime.datetime) -> RequestWish:
        send = partial(self._one, meeting, now)
        return RequestWish(f"service of {meeting.uid}", "", meeting.namespace, "write services", send, at_once=AT_ONCE)

    async def _one(self, meeting: Meeting, now: datetime.datetime, term: int) -> Answer:
        """Bring the Service of one workload and its EndpointSlice up to date, and set when it is read again."""
        before = self._followed.get(meeting.uid)
        if before is None or before.meeting != meeting:
            return Answer.NOT_SENT
        tries = before.tries.once_more(self._timing.first_s, now, self._longest_s())
        followed = self._followed[meeting.uid] = replace(before, tries=tries)
        was_forbidden = self.forbidden
        answer, settled = await self._try(meeting, now, term, was_settled=before.settled)
        is_verified = settled and before.settled and not was_forbidden
        if self._followed.get(meeting.uid) is followed:
            if settled:
                tries = self._verified(before, now)
            self._followed[meeting.uid] = replace(followed, tries=tries, settled=settled)
            if is_verified:
                return Answer.NO_NEWS
        self._next_at = _LONG_AGO
        return answer

    async def _try(
        self, meeting: Meeting, now: datetime.datetime, term: int, *, was_settled: bool
    ) -> tuple[Answer, bool]:
        """Write what differs, and note what the server says to it; return whether nothing is left to do.

        Raises EndedTerm.
        """
        about = reference(API_VERSION, "NeuronUltraServerWorkload", meeting.namespace, meeting.name, meeting.uid)
        try:
            check = partial(self._check, meeting, term)
            settled = await self._write(meeting, about, now, check, was_settled=was_settled)
        except EndedTerm:
            raise
        except (NotFound, Conflict, AlreadyExists, _OutdatedMeeting):
            return Answer.DECIDED, False  # it changed meanwhile
        except NoRights as err:
            self._forbid(err, now)
            return Answer.DECIDED, False
        except (Forbidden, Invalid) as err:  # a quota, a policy, or a namespace that is being deleted
            text = f"the Service for rank 0 was rejected: {err}"
            self._events.post(about, "Warning", "ServiceRejected", text, now)
            return Answer.DECIDED, False
        except (ApiError, *MALFORMED) as err:
            log.warning(
                "the Service of a workload could not be written",
                extra={"workload": f"{meeting.namespace}/{meeting.name}", "error": str(err) or repr(err)},
            )
            return answer_of(err), False
        self._forbidden_at = None
        return Answer.DECIDED, settled

    def _longest_s(self) -> float:
        """Return the longest wait before an address is looked for again: longer, when many workloads have none."""
        usual = max(self._timing.longest_s, self._timing.unsettled_s * self._unsettled)
        return min(usual, self._timing.longest_of_all_s)

    def _forbid(self, err: NoRights, now: datetime.datetime) -> None:
        """Note, and log once, that the ClusterRole lacks the rights."""
        if self._forbidden_at is None:
            log.warning(
                "workloads have no Service for rank 0, and containers no NEURON_DRA_RANK0_ADDR: apply the ClusterRole "
                "of this release",
                extra={"error": str(err)},
            )
        self._forbidden_at = now

    def _check(self, meeting: Meeting, term: int) -> None:
        """Raise EndedTerm or _OutdatedMeeting if a write for this meeting may not be sent any more.

        Several reads come before a write. While a slow server answers them, a pod may have begun to run with rank 0,
        and its address must not be removed for a meeting without it.
        """
        self._sender.fence.check(term)
        followed = self._followed.get(meeting.uid)
        if followed is None or followed.meeting != meeting:
            raise _OutdatedMeeting(f"rank 0 of workload {meeting.namespace}/{meeting.name} changed meanwhile")

    async def _write(
        self,
        meeting: Meeting,
        about: Mapping[str, Any],
        now: datetime.datetime,
        check: Callable[[], None],
        *,
        was_settled: bool,
    ) -> bool:
        """Write what differs; return True if nothing is left to do until the address is verified. Raises ApiError.

        `check` is called before each write.

        Objects that are not the workload's are never changed; an Event on the workload, `about`, names them.
        """
        if meeting.mode and meeting.mode not in rendezvous.MODES:
            text = f'annotation {rendezvous.ANNOTATION} is "{meeting.mode}": write "pod" or "host"; it has no effect'
            self._events.post(about, "Warning", "InvalidRendezvous", text, now)
        service = await self._service(meeting, check)
        if service is None:
            return False
        if not plan.is_the_workloads(service, meeting):
            return self._taken(meeting, about, now, service, awaited=plan.was_a_workloads(service))
        pod = await self._pod(meeting)
        # When nothing has changed since all were verified, the others are empty.
        foreign_slice = await self._follow(service, pod, check, all_of_them=not was_settled)
        if foreign_slice is not None:
            return self._taken(meeting, about, now, foreign_slice, awaited=plan.was_a_services(foreign_slice))
        return meeting.pod is None or bool(plan.pod_address(pod))

    def _taken(
        self, meeting: Meeting, about: Mapping[str, Any], now: datetime.datetime, foreign_object: Wire, *, awaited: bool
    ) -> bool:
        """Report an object that is not the workload's, and return True.

        `awaited`: the garbage collector may delete it. Then report it only from time to time, and return False.
        """
        kind = "EndpointSlice" if "addressType" in foreign_object else "Service"
        text = taken(kind, meeting.namespace, foreign_object["metadata"]["name"])
        if not awaited or self._followed[meeting.uid].tries.number % PATIENCE == 0:
            self._events.post(about, "Warning", "ServiceNameTaken", text, now)
        return not awaited

    async def _service(self, meeting: Meeting, check: Callable[[], None]) -> dict[str, Any] | None:
        """Return the Service of a workload, which is created if there is none; None while one is being deleted."""
        name = rendezvous.service_name(meeting.name)
        service = await self._read(SERVICES, meeting.namespace, name)
        if service is None:
            check()
            return await self._client.create(SERVICES, meeting.namespace, plan.service(meeting))
        if service["metadata"].get("deletionTimestamp"):
            return None
        return service

    async def _pod(self, meeting: Meeting) -> dict[str, Any] | None:
        """Return the pod with rank 0; None if it is gone. Raises ApiError."""
        if meeting.pod is None:
            return None
        name, uid = meeting.pod
        pod = await self._read(PODS, meeting.namespace, name)
        if pod is not None and pod["metadata"]["uid"] == uid:
            return pod
        return None

    async def _follow(
        self, service: dict[str, Any], pod: dict[str, Any] | None, check: Callable[[], None], *, all_of_them: bool
    ) -> dict[str, Any] | None:
        """Write the EndpointSlices of a Service, unless they are as they should be. Raises ApiError.

        Return the one that has a name if that is not the Service's, and so not ours to write. The slice with the
        address is written first, so that the name leads somewhere at any time. `all_of_them`: look at the others
        although the address is as before.
        """
        planned_slice = plan.endpoint_slice(service, pod)
        if planned_slice is None:
            await self._empty_all_but("", service, check)
            return None
        stored_slice = await self._slice_for(service, planned_slice)
        if stored_slice is None:
            check()
            namespace = planned_slice["metadata"]["namespace"]
            stored_slice = await self._client.create(ENDPOINT_SLICES, namespace, planned_slice)
            changed = True
        elif not plan.is_the_services(stored_slice, service):
            return stored_slice
        else:
            changed = await self._replace_endpoints(stored_slice, planned_slice["endpoints"], check)
        if changed or all_of_them:
            await self._empty_all_but(stored_slice["metadata"]["name"], service, check)
        return None

    async def _slice_for(self, service: dict[str, Any], planned_slice: dict[str, Any]) -> dict[str, Any] | None:
        """Return the stored EndpointSlice to write an address to; None if one is to be created. Raises ApiError.

        That of an earlier release is used further if it is of the same address family.
        """
        namespace, name = planned_slice["metadata"]["namespace"], planned_slice["metadata"]["name"]
        stored_slice = await self._read(ENDPOINT_SLICES, namespace, name)
        if stored_slice is not None:
            return stored_slice
        earlier = await self._read(ENDPOINT_SLICES, namespace, service["metadata"]["name"])
        if earlier is None or earlier.get("addressType") != planned_slice["addressType"]:
            return None
        if plan.is_the_services(earlier, service):
            return earlier
        return None

    async def _empty_all_but(self, kept: str, service: dict[str, Any], check: Callable[[], None]) -> None:
        """Remove the endpoints of a Service's other EndpointSlices. Raises ApiError."""
        meta = service["metadata"]
        for slice_name in plan.slice_names(meta["name"]):
            if slice_name == kept:
                continue
            stored_slice = await self._read(ENDPOINT_SLICES, meta["namespace"], slice_name)
            if stored_slice is not None and plan.is_the_services(stored_slice, service):
                await self._replace_endpoints(stored_slice, [], check)

    async def _replace_endpoints(
        self, stored: dict[str, Any], endpoints: list[dict[str, Any]], check: Callable[[], None]
    ) -> bool:
        """Write the endpoints of an EndpointSlice; return False if it has them already. Raises ApiError."""
        if (stored.get("endpoints") or []) == endpoints:
            return False
        changed = {**stored, "endpoints": endpoints}
        check()
        await self._client.replace(ENDPOINT_SLICES, stored["metadata"]["namespace"], changed)
        return True

    async def _read(self, resource: Resource, namespace: str, name: str) -> dict[str, Any] | None:
        """Return an object, or None. Raises NoRights or another ApiError."""
        try:
            return await self._client.read(resource, namespace, name)
        except NotFound:
            return None
        except Forbidden as err:  # no policy and no quota rejects a read
            raise NoRights(str(err)) from err


def taken(kind: str, namespace: str, name: str) -> str:
    """Return the message about a Service or EndpointSlice that is not the workload's."""
    return (
        f"{kind} {namespace}/{name} exists and is not this workload's, so NEURON_DRA_RANK0_ADDR does not lead to rank "
        f"0: delete that {kind}, or create the workload with another name"
    )
