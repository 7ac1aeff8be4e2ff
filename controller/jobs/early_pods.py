"""Wakes pods that were there before their template.

Kubernetes makes the claim of a pod from a template. If the template does not exist, it tries again later and later, up
to 1,000 s apart, and releases before 1.36 do not notice the template. They try again when the pod changes, so each such
pod gets one condition, once for each template. Only the conditions are written; an admission policy allows no more.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from controller.apply.fence import EndedTerm
from controller.apply.outbox import Answer, RequestWish
from controller.apply.sender import Sender, answer_of
from controller.apply.write_backoff import Tries
from controller.timing import JobTiming
from neuron_dra.core.wire import Wire
from neuron_dra.errors import ApiError, Conflict, Forbidden, Invalid, NotFound
from neuron_dra.kube.client import Cursor, KubeClient
from neuron_dra.kube.events import EventRecorder, reference
from neuron_dra.kube.objects import MALFORMED
from neuron_dra.kube.requests import PODS
from neuron_dra.planner.fleet.due_times import DueTimes
from neuron_dra.planner.fleet.reserved import put
from neuron_dra.planner.observed import projections
from neuron_dra.planner.observed.model import API_VERSION, GROUP, UNSCHEDULED, Template

log = logging.getLogger(__name__)

CONDITION: Final = f"{GROUP}/TemplateExists"
SEPARATOR: Final = "; "
TEMPLATES_AT_MOST: Final = 32
"""The limit of claims in a pod: of the templates that the condition names."""
AT_ONCE: Final = 16
"""The limit of pods of a template that are touched at the same time."""
DECIDER: Final = "early pods"
LOOKS: Final = 4
"""How often the pods of a template are listed; a pod that is made later finds the template."""


@dataclass(frozen=True, slots=True)
class _Look:
    """How far the pods of a template are listed, one page at a time.

    Pods of the page at `cursor` up to the name `after` are done; `touched` means that any pod of the list was touched.
    """

    tries: Tries
    cursor: Cursor = field(default_factory=Cursor)
    after: str = ""
    touched: bool = False


class EarlyPods:
    """Looks for such pods a few times after each new template of a job's workload."""

    def __init__(
        self,
        client: KubeClient,
        timing: JobTiming,
        sender: Sender,
        on_change: Callable[[], None],
        events: EventRecorder | None = None,
    ) -> None:
        """`on_change` is called after each page of pods.

        `events`: posts an Event about pods whose status is rejected.
        """
        self._client = client
        self._sender = sender
        self._on_change = on_change
        self._events = events
        self._timing = timing
        self._term = 0  # of the last look
        self._now = datetime.datetime.min.replace(tzinfo=datetime.UTC)  # its time
        self._templates: dict[tuple[str, str], Template] = {}
        self._by_uid: dict[str, Template] = {}
        self._new: set[str] = set()  # UIDs of templates
        self._looks: dict[str, _Look] = {}  # by UID of the template
        self._times = DueTimes()  # UIDs of the templates whose pods are looked for again

    def end_waits(self) -> None:
        """Look for all of them again."""
        self._new |= self._by_uid.keys()

    def put(self, key: tuple[str, str], template: Template | None) -> None:
        """Follow a change of the template of a job's workload, by namespace and name; None: it is gone."""
        before = self._templates.get(key)
        put(self._templates, key, template)
        if before is not None and (template is None or before.uid != template.uid):
            self._sender.withdraw(DECIDER, self._wish(before))
            del self._by_uid[before.uid]
            self._looks.pop(before.uid, None)
            self._times.set(before.uid, None)
            self._new.discard(before.uid)
        if template is not None:
            self._by_uid[template.uid] = template
            if before is None or before.uid != template.uid:
                self._new.add(template.uid)

    def look(self, now: datetime.datetime, term: int) -> datetime.datetime | None:
        """Ask for the pods of the templates that are due; return when others are."""
        self._now = now
        if term != self._term:
            self._term = term
            for uid, look in self._looks.items():
                self._wait(uid, look)
        # Kubernetes may be about to make the claims itself.
        later = Tries(0, now + datetime.timedelta(seconds=self._timing.first_s))
        for uid in sorted(self._new):
            self._wait(uid, _Look(later))
        self._new = set()
        for uid in self._times.take(now):
            self._sender.put(DECIDER, term, self._wish(self._by_uid[uid]))
        return self._times.next()

    def _wait(self, uid: str, look: _Look) -> None:
        """Go on with the pods of a template when that is due, unless they were listed often enough."""
        self._looks[uid] = look
        self._times.set(uid, look.tries.next_at if look.tries.number < LOOKS else None)

    def _wish(self, template: Template) -> RequestWish:
        # One page at a time: it may be large, and it is in memory until the last of its pods is written.
        kind = "list pods that wait for a template"
        send = partial(self._send, template)
        return RequestWish(template.uid, "pods", template.namespace, kind, send, at_once=1)

    async def _send(self, template: Template, term: int) -> Answer:
        """Touch pods of one page, and place the next one. Raises EndedTerm."""
        look = self._looks.get(template.uid)
        if look is None:
            return Answer.NOT_SENT  # the template went after the request was taken from the outbox
        following = self._again(look, self._now)
        try:
            following = await self._page(template, look, self._now, term)
        except EndedTerm:
            raise
        except (ApiError, *MALFORMED) as err:
            facts = {"template": f"{template.namespace}/{template.name}", "error": str(err) or repr(err)}
            log.warning("pods that wait for a template could not be woken", extra=facts)
            return answer_of(err)
        finally:
            if template.uid in self._by_uid:
                self._wait(template.uid, following)
                self._on_change()
        return Answer.NO_NEWS

    async def _page(self, template: Template, look: _Look, now: datetime.datetime, term: int) -> _Look:
        """Touch pods of one page that wait for a template; return how to go on. Raises ApiError, MALFORMED, EndedTerm.

        A page is the same each time that it is read with its cursor, so the names say which of its pods are left. One
        whose status cannot be patched, such as for a policy, does not stop those after it.
        """
        page, following = await self._client.list_page(
            PODS,
            template.namespace,
            look.cursor,
            {"fieldSelector": UNSCHEDULED},
            most_bytes=projections.WAITING_PODS_BYTES,
        )
        pods = projections.as_wire(page.decoded(projections.WaitingPod).objects)
        waiting = [pod for pod in pods if _waits_for(pod, template)]
        remaining_pods = sorted(
            (pod for pod in waiting if pod["metadata"]["name"] > look.after),
            key=lambda pod: pod["metadata"]["name"],
        )
        due = remaining_pods[:AT_ONCE]
        results = await asyncio.gather(*(self._one(pod, template, now, term) for pod in due), return_exceptions=True)
        woken = self._follow(due, results)
        self._tell_rejected(template, due, results, now)
        look = replace(look, touched=look.touched or woken > 0)
        if due and not woken:
            # The next ones are likely to be rejected, too.
            pause = datetime.timedelta(seconds=self._timing.first_s)
            look = replace(look, tries=replace(look.tries, next_at=now + pause))
        if len(due) < len(remaining_pods):
            return replace(look, after=due[-1]["metadata"]["name"])
        if following is not None:
            return replace(look, cursor=following, after="")
        return self._again(look, now)

    def _again(self, look: _Look, now: datetime.datetime) -> _Look:
        """List the pods of a template from the first one, later; soon if there were some, since more may come."""
        tries = Tries(0, now) if look.touched else look.tries
        return _Look(tries.once_more(self._timing.first_s, now, self._timing.longest_s))

    def _follow(self, pods: list[Wire], results: list[BaseException | None]) -> int:
        """Return how many pods were touched. Raises EndedTerm, and any error but the API server's."""
        touched = 0
        for pod, err in zip(pods, results, strict=True):
            if err is None:
                touched += 1
            elif isinstance(err, ApiError):
                meta = pod["metadata"]
                facts = {"pod": f"{meta['namespace']}/{meta['name']}", "error": str(err)}
                log.warning("a pod that waits for a template could not be woken", extra=facts)
            else:
                raise err
        return touched

    def _tell_rejected(
        self, template: Template, pods: list[Wire], results: list[BaseException | None], now: datetime.datetime
    ) -> None:
        """Post one Event on the owner of the template, or on itself, about the first pod whose status was rejected."""
        for pod, err in zip(pods, results, strict=True):
            if isinstance(err, Forbidden | Invalid) and self._events is not None:
                text = (
                    f"pods that wait for ResourceClaimTemplate {template.name} start late, because the write of their "
                    f"condition {CONDITION} was rejected, such as of pod {pod['metadata']['name']}: {err}"
                )
                self._events.post(_subject(template), "Warning", "PodsNotWoken", text, now)
                return

    async def _one(self, pod: Wire, template: Template, now: datetime.datetime, term: int) -> None:
        """Add the condition to a pod as it was read. Raises ApiError."""
        meta = pod["metadata"]
        self._sender.fence.check(term)
        try:
            patch = touched(pod, template, now)
            await self._client.patch(PODS, meta["namespace"], meta["name"], patch, "status")
        except (NotFound, Conflict):
            return  # it changed meanwhile, which wakes it too


def _subject(template: Template) -> dict[str, str]:
    """Return the object that gets an Event about the pods of a template."""
    if template.owner is None:
        return reference("resource.k8s.io/v1", "ResourceClaimTemplate", template.namespace, template.name, template.uid)
    return reference(API_VERSION, template.owner.kind, template.namespace, template.owner.name, template.owner.uid)


def _waits_for(pod: Wire, template: Template) -> bool:
    """Return True if a pod waits for a template. A malformed pod does not: it must not stop those beside it."""
    try:
        return waits_for(pod, template)
    except MALFORMED:
        return False


def waits_for(pod: Wire, template: Template) -> bool:
    """Return True if a pod names a template, has no claim from it yet, and was not touched for it."""
    if (pod.get("metadata") or {}).get("deletionTimestamp"):
        return False
    status = pod.get("status") or {}
    names_with_status = {claim_status.get("name") for claim_status in status.get("resourceClaimStatuses") or []}
    names_of_claims = [
        pod_claim.get("name")
        for pod_claim in (pod.get("spec") or {}).get("resourceClaims") or []
        if pod_claim.get("resourceClaimTemplateName") == template.name
    ]
    if not names_of_claims or names_with_status.issuperset(names_of_claims):
        return False
    return _message(template) not in _messages(status)


def touched(pod: Wire, template: Template, now: datetime.datetime) -> dict[str, Any]:
    """Return the merge patch that adds the condition to a pod, if it is still as it was read."""
    status = pod.get("status") or {}
    other_conditions = [condition for condition in status.get("conditions") or [] if condition.get("type") != CONDITION]
    former = f"ResourceClaimTemplate {template.name} exists ("
    others_said = [text for text in _messages(status) if not text.startswith(former)]
    moment = now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    own_condition = {
        "type": CONDITION,
        "status": "True",
        "reason": "TemplateCreated",
        "message": SEPARATOR.join([*others_said, _message(template)][-TEMPLATES_AT_MOST:]),
        "lastTransitionTime": moment,
    }
    meta = {"resourceVersion": pod["metadata"]["resourceVersion"]}
    return {"metadata": meta, "status": {"conditions": [*other_conditions, own_condition]}}


def _messages(status: Wire) -> list[str]:
    """Return what the condition says about each template: a pod may wait for several."""
    conditions = (condition for condition in status.get("conditions") or [] if condition.get("type") == CONDITION)
    return [part for condition in conditions for part in str(condition.get("message") or "").split(SEPARATOR)]


def _message(template: Template) -> str:
    return f"ResourceClaimTemplate {template.name} exists ({template.uid})"
