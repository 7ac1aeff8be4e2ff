"""Checks that the API server keeps what the controller writes: the CRDs of another release drop or reject fields.

A reservation without its id is useless, so the first write of each kind is preceded by a dry run with every field that
the controller may ever write. After that, each answer is compared with the request. While a kind is not kept
completely, nothing of it is written. The dry run is repeated every minute, because a CRD may be upgraded at any time.

Fields that users write into a workload's spec are tried, too: they would be lost without a trace. While a CRD drops
only some of these, the controller continues and says so in each workload.
"""

from __future__ import annotations

import asyncio
import datetime
import heapq
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from controller.decisions import objects as render
from controller.observe import results
from controller.observe.model import GROUP, shortened
from controller.timing import WriteTiming
from neuron_dra.core.notice import Notice, NoticeReason
from neuron_dra.core.rendezvous import HOST, Rendezvous
from neuron_dra.core.ultraserver import Allocation, Fault, Phase
from neuron_dra.errors import ApiError, Forbidden, Invalid, NotFound
from neuron_dra.kube.client import MERGE_PATCH, KubeClient, decode_object
from neuron_dra.kube.requests import NEURON_ULTRASERVERS, NEURON_WORKLOADS, Resource

log = logging.getLogger(__name__)

OBJECTS: Final = 3
"""The number of objects of a kind that are tried."""
_THEN: Final = "2026-01-02T03:04:05Z"
_WORD: Final = "a-trial"
_SPEC: Final = "spec"  # of workloads


class Outdated(ApiError):
    """A kind whose CRD does not keep every field; nothing of it is written."""


# -- every field ------------------------------------------------------------------------------------------


def _conditions() -> list[dict[str, Any]]:
    now = datetime.datetime.now(datetime.UTC)
    found = []
    for kind in ("Ready", "Degraded"):
        found.append(render.new_condition({}, kind, True, "Trial", _WORD, now, 1))
    return found


def _allocation(index: int, phase: Phase) -> dict[str, Any]:
    faults = tuple(Fault(_WORD, reason, _THEN) for reason in ("LinkDown", "NodeUnhealthy"))
    made = Allocation(
        *("default", _WORD, _WORD, f"{_WORD}-{index}", phase, (_WORD,), 1, index, 3, _WORD, _THEN, (_WORD,), faults),
        rendezvous=Rendezvous(_WORD, HOST, "192.0.2.1"),
        notice=Notice(NoticeReason.BLOCK_ENDS.value, _THEN),
    )
    return made.to_wire()


def _result() -> results.GroupResult:
    now = datetime.datetime.now(datetime.UTC)
    return results.GroupResult(
        *(_WORD, 1, (_WORD,), (_WORD,), True, 1, now, now), unqualified=True, message=_WORD, test=_WORD
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
            for one, other in zip(sent, stored, strict=True):
                yield from dropped(one, other, f"{path}[]")
    elif sent != stored:
        yield path


def problem(resource: Resource, what: str) -> str:
    """Return the message about a CRD of another release."""
    return (
        f"CustomResourceDefinition {resource.plural}.{GROUP} is not of this release: the API server {what}; apply the "
        "CRDs of this release (deploy/crds, or the chart with ultraserverOperator.crds.enabled); nothing is reserved "
        "or released until then"
    )


# -- results ----------------------------------------------------------------------------------------------------


class Schemas:
    """The results of the checks.

    - `problems`: the kinds that the API server does not keep, and why.
    - `unkept`: the fields of a workload's spec that it drops, such as `spec.priorityClassName`.
    """

    def __init__(self, client: KubeClient, timing: WriteTiming) -> None:
        self._client = client
        self._again = datetime.timedelta(seconds=timing.crd_s)  # after a failed dry run
        self._spec_s = timing.spec_s
        self._fit: set[str] = set()
        self._tried: dict[str, datetime.datetime] = {}
        self._term = 0
        self.problems: dict[str, str] = {}
        self.unkept: tuple[str, ...] = ()
        self.on_change: Callable[[str, bool], None] = lambda plural, outdated: None

    @property
    def outdated(self) -> str:
        """Why nothing may be written, empty if all is well."""
        return "; ".join(sorted(self.problems.values()))

    async def try_all(
        self, ultraservers: Iterable[str], workloads: Collection[str], now: datetime.datetime, term: int
    ) -> None:
        """Try each kind that is not verified, on some of these objects (namespace/name). Raises ApiError.

        If every object is rejected, the CRD is the cause; a policy may reject one. Without workloads nothing is tried.
        """
        if term != self._term:
            self._term = term
            self._fit.clear()
            self._tried.clear()
        if not (workloads or self.problems):
            return
        if workloads and self._is_due(_SPEC, now):
            # A change of a spec starts a pass, so this needs no timer of its own.
            self._tried[_SPEC] = now
            self.unkept = await self._try_spec(*min(workloads).split("/", 1))
        for resource, names in ((NEURON_ULTRASERVERS, ultraservers), (NEURON_WORKLOADS, workloads)):
            if resource.plural in self._fit or not self._is_due(resource.plural, now):
                continue
            objects = heapq.nsmallest(OBJECTS, names)
            if not (objects or resource.plural in self.problems):
                continue
            self._tried[resource.plural] = now
            found = [await self._try(resource, *key.split("/", 1)) for key in objects]
            if "" in found:
                self._fit.add(resource.plural)
            if "" in found or not objects:  # without objects to try, the next created object shows it
                if self.problems.pop(resource.plural, None):
                    log.info("the CRD may be of this release now", extra={"crd": resource.plural})
                    self.on_change(resource.plural, False)
            elif None not in found:
                self._unfit(resource, str(found[0]))

    def _is_due(self, what: str, now: datetime.datetime) -> bool:
        last = self._tried.get(what)
        return last is None or now >= last + self._again

    async def _try(self, resource: Resource, namespace: str, name: str) -> str | None:
        """Return what the API server does to a write, empty if it keeps it, None if that is unknown."""
        if resource is NEURON_ULTRASERVERS:
            spec, status = ultraserver_sample()
            parts = [(spec, ""), (status, "status")]
        else:
            parts = [(workload_sample(), "status")]
        lost: list[str] = [*self.unkept] if resource is NEURON_WORKLOADS else []
        kept = len(lost)
        for body, subresource in parts:
            path = resource.path(namespace, name, subresource)
            try:
                raw = await self._client.request(
                    "PATCH", path, params={"dryRun": "All"}, body=body, content_type=MERGE_PATCH
                )
            except Invalid as err:
                return f"rejects what this release writes ({'; '.join(err.causes) or err})"
            except (NotFound, Forbidden):
                return None
            stored = decode_object(raw)
            meta = stored.get("metadata")
            if not isinstance(meta, Mapping) or meta.get("name") != name:
                return None  # a proxy's answer
            lost += dropped(body, stored)
        if len(lost) > kept:
            return f"drops {shortened(list(dict.fromkeys(lost)))}"
        return ""

    async def _try_spec(self, namespace: str, name: str) -> tuple[str, ...]:
        """Return the fields of a workload's spec that the API server drops; what it was before if that is unknown."""
        body, path = spec_sample(), NEURON_WORKLOADS.path(namespace, name)
        try:
            # A webhook that does not answer must not hold up the pass: the result is advice only.
            async with asyncio.timeout(self._spec_s):
                raw = await self._client.request(
                    "PATCH", path, params={"dryRun": "All"}, body=body, content_type=MERGE_PATCH
                )
            stored = decode_object(raw)
        except (ApiError, TimeoutError):
            return self.unkept
        if not isinstance(stored.get("spec"), Mapping):
            return self.unkept  # a proxy's answer
        found = tuple(dropped(body, stored))
        if found != self.unkept:
            log.warning("the CRD of workloads drops fields of their spec", extra={"fields": ",".join(found) or "none"})
        return found

    def end_waits(self) -> None:
        """Try all kinds that are not verified at once."""
        self._tried.clear()

    def check(self, resource: Resource, sent: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
        """Compare a write with the answer."""
        parts = {}
        for name in ("spec", "status"):
            if name in sent and name in stored:
                parts[name] = sent[name]
        gone = [name for name in ("spec", "status") if name in sent and sent[name] and name not in stored]
        lost = list(dict.fromkeys([*gone, *dropped(parts, stored)]))
        if lost:
            self._unfit(resource, f"drops {shortened(lost)}")

    def refuse(self, resource: Resource) -> None:
        """Raise Outdated if nothing of this kind may be written."""
        if resource.plural in self.problems:
            raise Outdated(self.problems[resource.plural])

    def doubt(self, resource: Resource) -> None:
        """Try the kind again after a write was rejected as invalid: the cause may be the object or the CRD."""
        self._fit.discard(resource.plural)

    def _unfit(self, resource: Resource, what: str) -> None:
        """Note, log and report that a kind is not kept completely."""
        self._fit.discard(resource.plural)
        if resource.plural not in self.problems:
            self.problems[resource.plural] = text = problem(resource, what)
            log.error("the controller stops writing", extra={"reason": text})
            self.on_change(resource.plural, True)
