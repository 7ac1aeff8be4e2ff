"""Evicts one pod that can never run, and says why in an Event on it."""

from __future__ import annotations

import datetime
import logging

from controller.apply.fence import Fence
from neuron_dra.core.wire import Wire
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.events import EventRecorder, reference

log = logging.getLogger(__name__)


async def evict(
    client: KubeClient,
    events: EventRecorder,
    fence: Fence,
    pod: Wire,
    reason: str,
    message: str,
    now: datetime.datetime,
) -> None:
    """Evict a pod if it is still the one that was read. Raises ApiError; Conflict and NotFound if it is another one."""
    meta = pod["metadata"]
    namespace, name, uid = str(meta["namespace"]), str(meta["name"]), str(meta["uid"])
    fence.check()
    await client.evict(namespace, name, uid=uid, resourceVersion=str(meta["resourceVersion"]))
    log.info("evicted a pod that could never run", extra={"pod": f"{namespace}/{name}", "reason": reason})
    await events.post(reference("v1", "Pod", namespace, name, uid), "Warning", reason, message, now)
