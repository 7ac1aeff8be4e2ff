"""The Events of the demo's scheduler, in the form that kube-scheduler gives them.

kube-scheduler turns an Event that it repeats into a series: it writes the second one at once, counts the later ones in
memory, and writes their number every half an hour. As kubelets do, a pod gets at most 25 Events at once.

Source: kubernetes@v1.37.0 client-go tools/events/event_broadcaster.go, tools/record/events_cache.go.
"""

from __future__ import annotations

import contextlib
import datetime
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from neuron_dra.core.wire import Obj
from neuron_dra.errors import ApiError
from neuron_dra.kube.client import MERGE_PATCH, KubeClient
from neuron_dra.kube.requests import EVENTS

SCHEDULER: Final = "default-scheduler"
REFRESH_S: Final = 1800.0
"""After this time the number of a series is written again."""
MOST_OF_A_POD: Final = 25
MOST_SERIES: Final = 1000
"""Series that are remembered; what is not remembered begins again as a new Event."""


@dataclass(slots=True)
class _Series:
    """An Event that was posted, how often it has happened, and when that was last written."""

    name: str
    count: int = 1
    written_s: float = 0.0


class SchedulerEvents:
    """Posts Events about pods. An Event that the server rejects is lost, as those of kube-scheduler are."""

    def __init__(self, client: KubeClient, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._monotonic = monotonic
        self._series: OrderedDict[tuple[str, str], _Series] = OrderedDict()  # by UID of the pod, and message

    async def failed(self, pod: Obj, message: str) -> None:
        """Post that a pod fits nowhere, or count it."""
        key = pod["metadata"]["uid"], message
        series = self._series.get(key)
        if series is not None:
            self._series.move_to_end(key)
            series.count += 1
            if series.count == 2 or self._monotonic() - series.written_s >= REFRESH_S:
                await self._count(pod, series)
        elif sum(uid == key[0] for uid, _ in self._series) < MOST_OF_A_POD:
            event = _event(pod, "Warning", "FailedScheduling", "Scheduling", message)
            self._series[key] = _Series(event["metadata"]["name"], written_s=self._monotonic())
            if len(self._series) > MOST_SERIES:
                self._series.popitem(last=False)
            await self._post(event)

    async def scheduled(self, pod: Obj, node: str) -> None:
        """Post that a pod has got a node."""
        meta = pod["metadata"]
        for key in [key for key in self._series if key[0] == meta["uid"]]:
            del self._series[key]
        message = f"Successfully assigned {meta['namespace']}/{meta['name']} to {node}"
        await self._post(_event(pod, "Normal", "Scheduled", "Binding", message))

    async def _post(self, event: Obj) -> None:
        with contextlib.suppress(ApiError):
            await self._client.request("POST", EVENTS.path(event["metadata"]["namespace"]), body=event)

    async def _count(self, pod: Obj, series: _Series) -> None:
        series.written_s = self._monotonic()
        with contextlib.suppress(ApiError):
            await self._client.request(
                "PATCH",
                EVENTS.path(pod["metadata"]["namespace"], series.name),
                body={"series": {"count": series.count, "lastObservedTime": _now()}},
                content_type=MERGE_PATCH,
            )


def _event(pod: Obj, kind: str, reason: str, action: str, message: str) -> Obj:
    meta = pod["metadata"]
    about = {key: meta[key] for key in ("namespace", "name", "uid", "resourceVersion")}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name']}.{uuid.uuid4().hex[:16]}", "namespace": meta["namespace"]},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", **about},
        "type": kind,
        "reason": reason,
        "action": action,
        "message": message,
        "eventTime": _now(),
        "firstTimestamp": None,
        "lastTimestamp": None,
        "source": {},
        "reportingComponent": SCHEDULER,
        "reportingInstance": f"{SCHEDULER}-demo",
    }


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
