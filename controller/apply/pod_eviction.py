"""Evicts one pod that can never run, and says why in an Event on it."""

from __future__ import annotations

import datetime
import logging

from neuron_dra.core.wire import Wire
from neuron_dra.errors import Forbidden, Invalid, TooManyRequests
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.events import EventRecorder, reference

log = logging.getLogger(__name__)


async def evict(
    client: KubeClient,
    events: EventRecorder,
    pod: Wire,
    reason: str,
    message: str,
    now: datetime.datetime,
) -> bool:
    """Evict a pod if it is still the one that was read; return False if the API server rejects that.

    Raises ApiError; Conflict and NotFound if it is another pod.
    """
    meta = pod["metadata"]
    namespace, name, uid = str(meta["namespace"]), str(meta["name"]), str(meta["uid"])
    about = reference("v1", "Pod", namespace, name, uid)
    try:
        await client.evict(namespace, name, uid=uid, resourceVersion=str(meta["resourceVersion"]))
    except (Forbidden, Invalid, TooManyRequests) as err:  # a policy, a missing right, or a PodDisruptionBudget
        why = "; ".join(err.causes) or str(err)
        text = f"the pod can never run ({reason}), and its eviction was rejected: {why}"
        events.post(about, "Warning", "EvictionRejected", text, now)
        return False
    log.info("evicted a pod that could never run", extra={"pod": f"{namespace}/{name}", "reason": reason})
    events.post(about, "Warning", reason, message, now)
    return True
