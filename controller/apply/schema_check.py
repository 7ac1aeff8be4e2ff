"""Checks that the API server keeps what the controller writes: the CRDs of another release drop or reject fields.

A reservation without its id is useless. So the controller compares every field that it may ever write with the schemas
that the API server publishes (`published_schema`): before the first write of a term, and then once a minute while it
has work, because a CRD may be replaced at any time. Besides, each answer is compared with the request. While a kind is
not kept completely, nothing of it is written.

Fields that users write into a workload's spec are compared, too: they would be lost without a trace. While a CRD drops
only some of these, the controller continues and says so in each workload.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from controller.apply import published_schema
from controller.apply.outbox import Answer, RequestWish
from controller.apply.sender import Sender, answer_of
from controller.timing import WriteTiming
from neuron_dra.core.notice import Notice, NoticeReason
from neuron_dra.core.rendezvous import HOST, Rendezvous
from neuron_dra.core.ultraserver import Allocation, Fault, Phase
from neuron_dra.core.wire import Wire
from neuron_dra.errors import ApiError
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.requests import NEURON_ULTRASERVERS, NEURON_WORKLOADS, Resource
from neuron_dra.planner.decisions import objects as render
from neuron_dra.planner.observed import results
from neuron_dra.planner.observed.model import GROUP, VERSION, WORKLOAD_KIND, shortened

log = logging.getLogger(__name__)

_THEN: Final = "2026-01-02T03:04:05Z"
_WORD: Final = "a-trial"
_UNREAD: Final = "the API server's OpenAPI document of the CRDs could not be read"


class Outdated(ApiError):
    """A kind whose CRD does not keep every field; nothing of it is written."""


# -- every field ------------------------------------------------------------------------------------------


def _conditions() -> list[dict[str, Any]]:
    now = datetime.datetime.now(datetime.UTC)
    conditions = []
    for kind in ("Ready", "Degraded"):
        conditions.append(render.new_condition({}, kind, True, "Trial", _WORD, now, 1))
    return conditions


def _allocation(index: int, phase: Phase) -> dict[str, Any]:
    faults = tuple(Fault(_WORD, reason, _THEN) for reason in ("LinkDown", "NodeUnhealthy"))
    allocation = Allocation(
        *("default", _WORD, _WORD, f"{_WORD}-{index}", phase, (_WORD,), 1, index, 3, _WORD, _THEN, (_WORD,), faults),
        rendezvous=Rendezvous(_WORD, HOST, "192.0.2.1"),
        notice=Notice(NoticeReason.BLOCK_ENDS.value, _THEN),
    )
    return allocation.to_wire()


def _result() -> results.GroupResult:
    now = datetime.datetime.now(datetime.UTC)
    return results.GroupResult(
        *(_WORD, 1, (_WORD,), (_WORD,), True, 1, now, now),
        unqualified=True,
        message=_WORD,
        test=_WORD,
        qualification_uid=_WORD,
    )


def ultraserver_sample() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return every field of a NeuronUltraServer that the controller writes: of the object, and of its status."""
    links = {"linkStatusHorizontal": "up", "linkStatusVertical": "down"}
    first = {"nodeName": _WORD, "nodeId": 0, **links, "nodeUid": _WORD, "providerID": _WORD}
    return {"spec": {"topology": [first, {"nodeName": f"{_WORD}-1", "nodeId": 1}]}}, {
        "status": {
            "ultraserverId": _WORD,
            "state": "Ready",
            "availability": "Available",
            "nodeCount": 2,
            "freeNodeCount": 1,
            "supportedSizes": "1_2_4",
            "observedGeneration": 1,
            "allocations": [_allocation(index, phase) for index, phase in enumerate(Phase)],
            "qualifications": results.written([_result()]),
            "conditions": _conditions(),
        }
    }


def spec_sample() -> dict[str, Any]:
    """Return the fields of a workload's spec that the CRD of every release of ours may not have.

    The values are valid beside any others. The class is empty, so that no policy has to know it.
    """
    return {
        "spec": {
            "priorityClassName": "",
            "ttlSecondsUnused": 3600,
            "expectedDuration": "1h",
            "qualification": {"maxAge": "24h"},
            "allocationPolicy": {"onCordon": "Report"},
        }
    }


def workload_sample() -> dict[str, Any]:
    """Return every field of a workload's status that the controller writes."""
    return {
        "status": {
            "state": "Allocated",
            "workloadId": _WORD,
            "allocatedUltraServers": [_WORD],
            "totalNodesAllocated": 1,
            "allocatedAt": _THEN,
            "restarting": {"since": _THEN, "reason": "Trial", "message": _WORD},
            "restarts": 1,
            "restartedAt": [_THEN],
            "migrations": 1,
            "queue": {"localQueue": _WORD, "returned": 1, "returnedAt": _THEN},
            "groups": [
                {
                    "ultraserverIndex": 0,
                    "ultraserver": _WORD,
                    "ultraserverUid": _WORD,
                    "allocationId": _WORD,
                    "nodes": [_WORD],
                    "nodeUids": [_WORD],
                    "draining": True,
                }
            ],
            "observedGeneration": 1,
            "conditions": _conditions(),
        }
    }


def dropped(sent: Any, stored: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of fields that were sent and are missing or different in the answer."""
    if isinstance(sent, Mapping):
        for name, value in sent.items():
            where = f"{path}.{name}" if path else name
            if value is None:
                continue
            if not isinstance(stored, Mapping) or name not in stored:
                yield where
            else:
                yield from dropped(value, stored[name], where)
    elif isinstance(sent, Sequence) and not isinstance(sent, str):
        if not isinstance(stored, Sequence) or len(stored) != len(sent):
            yield path
        else:
            for sent_element, stored_element in zip(sent, stored, strict=True):
                yield from dropped(sent_element, stored_element, f"{path}[]")
    elif sent != stored:
        yield path


def problem(resource: Resource, what: str) -> str:
    """Return the message about a CRD of another release."""
    return (
        f"CustomResourceDefinition {resource.plural}.{GROUP} is not of this release: the API server {what}; apply the "
        "CRDs of this release (deploy/crds, or the chart with ultraserverOperator.crds.enabled); nothing is reserved "
        "or released until then"
    )


def published(schema: Wire, sample: Wire) -> str:
    """Return what an API server with this schema does to the sample: the end of a sentence, empty if it keeps it."""
    lost = list(dict.fromkeys(published_schema.dropped(schema, sample)))
    if lost:
        return f"drops {shortened(lost)}"
    wrong = list(dict.fromkeys(published_schema.rejected(schema, sample)))
    return f"rejects what this release writes ({shortened(wrong)})" if wrong else ""


def _written() -> Iterator[tuple[Resource, str, dict[str, Any]]]:
    """Yield each kind with all that the controller writes of it."""
    spec, status = ultraserver_sample()
    yield NEURON_ULTRASERVERS, "NeuronUltraServer", {**spec, **status}
    yield NEURON_WORKLOADS, WORKLOAD_KIND, workload_sample()


# -- results ----------------------------------------------------------------------------------------------------


class Schemas:
    """The results of the checks.

    - `problems`: the kinds that the API server does not keep, and why.
    - `unkept`: the fields of a workload's spec that it drops, such as `spec.priorityClassName`.
    """

    def __init__(self, client: KubeClient, timing: WriteTiming, sender: Sender) -> None:
        self._client = client
        self._sender = sender
        self._again = datetime.timedelta(seconds=timing.crd_s)
        self._read_s = timing.spec_s
        self._read_at: datetime.datetime | None = None
        self.problems: dict[str, str] = {}
        self.unkept: tuple[str, ...] = ()
        self.on_change: Callable[[str, bool], None] = lambda plural, outdated: None

    @property
    def outdated(self) -> str:
        """Why nothing may be written, empty if all is well."""
        return "; ".join(sorted(self.problems.values()))

    async def begin(self, now: datetime.datetime) -> None:
        """Read what the API server publishes about the CRDs, for `spec_s` at most. It sends no write."""
        self._read_at = now
        try:
            # Each write is compared with its answer anyway.
            async with asyncio.timeout(self._read_s):
                await self._read(0)
        except TimeoutError:
            log.warning(_UNREAD, extra={"error": f"no answer for {self._read_s} s"})

    def look(self, now: datetime.datetime) -> datetime.datetime | None:
        """Let it be read again if that is due; return when, if the controller waits for a change of it."""
        if self._read_at is None or now >= self._read_at + self._again:
            self._read_at = now
            wish = RequestWish("OpenAPI document of the CRDs", "schemas", "", "get openapi", self._read)
            self._sender.put("schemas", self._sender.fence.term, wish)
        return self._read_at + self._again if self.problems or self.unkept else None

    async def _read(self, _term: int) -> Answer:
        before = dict(self.problems), self.unkept
        try:
            document = await self._client.request("GET", published_schema.path_of(GROUP, VERSION))
            schemas = published_schema.schemas_in(document, GROUP, VERSION)
        except (ApiError, msgspec.MsgspecError) as err:
            log.warning(_UNREAD, extra={"error": str(err) or repr(err)})
            return answer_of(err)
        if WORKLOAD_KIND in schemas:
            self._note_spec(tuple(published_schema.dropped(schemas[WORKLOAD_KIND], spec_sample())))
        for resource, kind, sample in _written():
            if kind in schemas:
                self._judge(resource, published(schemas[kind], sample))
        return Answer.NO_NEWS if before == (self.problems, self.unkept) else Answer.DECIDED

    def _judge(self, resource: Resource, what: str) -> None:
        """Follow what the API server does to a write of a kind, empty if it keeps all of it."""
        if what:
            if resource is NEURON_WORKLOADS and self.unkept:
                what = what.replace("drops ", f"drops {shortened(self.unkept)}, ", 1)
            self._unfit(resource, what)
        elif self.problems.pop(resource.plural, None):
            log.info("the CRD is of this release now", extra={"crd": resource.plural})
            self.on_change(resource.plural, False)

    def _note_spec(self, fields: tuple[str, ...]) -> None:
        """Note the fields of a workload's spec that the API server drops."""
        if fields != self.unkept:
            log.warning("the CRD of workloads drops fields of their spec", extra={"fields": ",".join(fields) or "none"})
        self.unkept = fields

    def end_waits(self) -> None:
        """Read it again at once."""
        self._read_at = None

    def check(self, resource: Resource, sent: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
        """Compare a write with the answer."""
        parts = {}
        for name in ("spec", "status"):
            if name in sent and name in stored:
                parts[name] = sent[name]
        missing_parts = [name for name in ("spec", "status") if name in sent and sent[name] and name not in stored]
        lost = list(dict.fromkeys([*missing_parts, *dropped(parts, stored)]))
        if lost:
            self._unfit(resource, f"drops {shortened(lost)}")

    def refuse(self, resource: Resource) -> None:
        """Raise Outdated if nothing of this kind may be written."""
        if resource.plural in self.problems:
            raise Outdated(self.problems[resource.plural])

    def _unfit(self, resource: Resource, what: str) -> None:
        """Note, log and report that a kind is not kept completely."""
        if resource.plural not in self.problems:
            self.problems[resource.plural] = text = problem(resource, what)
            log.error("the controller stops writing", extra={"reason": text})
            self.on_change(resource.plural, True)
