"""Events on objects: what a person sees with `kubectl describe`. Equal ones are counted, not repeated."""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Any, Final, Literal

from neuron_dra.errors import ApiError, NotFound
from neuron_dra.kube.client import MERGE_PATCH, KubeClient
from neuron_dra.kube.requests import EVENTS

log = logging.getLogger(__name__)

COMPONENT: Final = "neuron-dra-driver"
MESSAGE_CHARACTERS: Final = 1024
REPEAT_AFTER_S: Final = 600.0  # an event that still holds is renewed this often; events live an hour


class EventRecorder:
    """Posts events of one component; a failure to post is logged and never more."""

    def __init__(self, client: KubeClient, host: str) -> None:
        self._client = client
        self._host = host
        self._posted: dict[str, tuple[float, int]] = {}

    async def post(
        self,
        about: Mapping[str, Any],
        kind: Literal["Normal", "Warning"],
        reason: str,
        message: str,
        now: datetime.datetime,
    ) -> None:
        """Tell `message` about the object `about` (apiVersion, kind, name, uid, and namespace if it has one)."""
        namespace = str(about.get("namespace") or "default")
        digest = hashlib.sha256(json.dumps([dict(about), kind, reason, message]).encode()).hexdigest()[:16]
        name = f"{about['name'][:200]}.{digest}"
        last, count = self._posted.get(name, (0.0, 0))
        if count and now.timestamp() - last < REPEAT_AFTER_S:
            return
        self._posted[name] = (now.timestamp(), count + 1)
        stamp = now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            if count:
                patch = {"count": count + 1, "lastTimestamp": stamp}
                try:
                    await self._client.request(
                        "PATCH", EVENTS.path(namespace, name), body=patch, content_type=MERGE_PATCH
                    )
                    return
                except NotFound:
                    pass
            await self._client.create(
                EVENTS, namespace, self._event(namespace, name, about, kind, reason, message, stamp)
            )
        except ApiError as err:
            if err.reason != "AlreadyExists":
                log.warning("an event could not be posted", extra={"reason": reason, "error": str(err)})

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
            "message": message[:MESSAGE_CHARACTERS],
            "source": {"component": COMPONENT, "host": self._host},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._host,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
