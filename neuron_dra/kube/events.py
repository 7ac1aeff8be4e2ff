"""Events on objects, as `kubectl describe` shows them; repeated Events are counted instead of created again."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from neuron_dra.core import user_text
from neuron_dra.errors import AlreadyExists, ApiError, NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.requests import EVENTS

log = logging.getLogger(__name__)

COMPONENT: Final = "neuron-dra-driver"
MESSAGE_CHARACTERS: Final = 1024
NAME_CHARACTERS: Final = 200  # of the object's name, in that of its Events
INSTANCE_CHARACTERS: Final = 128  # limit of events.k8s.io
MOST_KEPT: Final = 4096  # Events recorded as posted; one without a record is posted again, which renews it


def reference(api_version: str, kind: str, namespace: str, name: str, uid: str) -> dict[str, str]:
    """Return the object that an Event is about, as its `involvedObject`; without `namespace` if that is empty."""
    within = {"namespace": namespace} if namespace else {}
    return {"apiVersion": api_version, "kind": kind, **within, "name": name, "uid": uid}


class EventRecorder:
    """Posts the Events of one component; failures are logged and never raised."""

    def __init__(self, client: KubeClient, host: str, component: str = COMPONENT) -> None:
        self._client = client
        self._timing = client.timing.events
        self._component = component
        self._host = host
        self._posted: dict[str, tuple[float, int]] = {}
        self.on_failure: Callable[[], None] = lambda: None
        """Called when an Event could not be posted."""

    async def post(
        self,
        about: Mapping[str, Any],
        kind: Literal["Normal", "Warning"],
        reason: str,
        message: str,
        now: datetime.datetime,
    ) -> bool:
        """Post an Event with `message` about the object `about`, or renew it if it was posted long enough ago.

        `about` is a `reference`. Errors of the API server are logged. Returns False if the Event is to be posted again.
        """
        namespace = str(about.get("namespace") or "default")
        digest = hashlib.sha256(json.dumps([dict(about), kind, reason, message]).encode()).hexdigest()[:16]
        # An object's name may have 253 characters, as an Event's; a part of a name must not end with "." or "-".
        name = f"{about['name'][:NAME_CHARACTERS].rstrip('.-')}.{digest}"
        self._forget(now.timestamp())
        last, count = self._posted.get(name, (0.0, 0))
        if count and 0 <= now.timestamp() - last < self._timing.repeat_s:  # negative: the clock was set back
            return True
        stamp = now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            if not count:
                event = self._event(namespace, name, about, kind, reason, message, stamp)
                with contextlib.suppress(AlreadyExists):  # posted before a restart: it is renewed instead
                    await self._client.create(EVENTS, namespace, event)
                    self._keep(name, now, 1)
                    return True
                # The role allows create and patch but not get, so the count comes from the response to a patch.
                count = await self._patch(namespace, name, {"lastTimestamp": stamp})
            count = await self._patch(namespace, name, {"count": count + 1, "lastTimestamp": stamp})
            self._keep(name, now, count)
            return True
        except NotFound:
            self._posted.pop(name, None)  # the API server has deleted it: the next call creates it again
        except ApiError as err:
            log.warning("an Event could not be posted", extra={"reason": reason, "error": str(err)})
            self.on_failure()
        return False

    def _keep(self, name: str, now: datetime.datetime, count: int) -> None:
        self._posted.pop(name, None)  # keeps the oldest first
        self._posted[name] = (now.timestamp(), count)

    def _forget(self, now_s: float) -> None:
        """Drop Events so old that the API server has deleted them, and the oldest one if there are too many."""
        while self._posted and now_s - next(iter(self._posted.values()))[0] >= self._timing.lifetime_s:
            del self._posted[next(iter(self._posted))]
        if len(self._posted) >= MOST_KEPT:
            del self._posted[next(iter(self._posted))]

    @property
    def remembered(self) -> int:
        """The number of Events that are recorded as posted."""
        return len(self._posted)

    async def _patch(self, namespace: str, name: str, patch: Mapping[str, Any]) -> int:
        """Patch an Event and return its count."""
        found = (await self._client.patch(EVENTS, namespace, name, patch)).get("count")
        if isinstance(found, int):
            return found
        return 1

    def _event(
        self,
        namespace: str,
        name: str,
        about: Mapping[str, Any],
        kind: str,
        reason: str,
        message: str,
        stamp: str,
    ) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": dict(about),
            "type": kind,
            "reason": reason,
            "message": user_text.printable(message, MESSAGE_CHARACTERS),
            "source": {"component": self._component, "host": self._host},
            "reportingComponent": self._component,
            "reportingInstance": self._host[:INSTANCE_CHARACTERS],
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
