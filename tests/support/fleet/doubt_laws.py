"""The law of the actor `clocks`: only the API server's time ends an unused reservation."""

from __future__ import annotations

import datetime

from neuron_dra.core.wire import Wire
from tests.support.fleet.view import condition, parsed


def has_expired_early(workload: Wire, now: datetime.datetime) -> bool:
    """Return True if a workload has expired although it was not unused for as long as its spec says."""
    ttl_s = workload["spec"].get("ttlSecondsUnused")
    if ttl_s is None or condition(workload, "Ready").get("reason") != "Expired":
        return False
    age_s = (now - parsed(workload["metadata"]["creationTimestamp"])).total_seconds()
    return bool(age_s < ttl_s)
