"""Quicker timings, and no ports, for controllers that run in the test's process, as in `timings`."""

from __future__ import annotations

from typing import Final

from controller.timing import DEFAULT_TIMING
from tests.support.timings import QUICK_CLIENT, quicker

QUICK: Final = quicker(
    DEFAULT_TIMING,
    lease={"retry_s": 0.1},
    caches={"heartbeats_s": 0.02},
    passes={"gather_s": 0.01, "retry_s": (0.01, 0.1), "idle_s": 0.1},
    outbox={"retry_s": (0.01, 0.1)},
    writes={"first_eviction_s": 0.1, "longest_s": 1.0},
    client=QUICK_CLIENT,
)
"""A controller that tries again within fractions of a second, and keeps its Lease on a busy machine."""

BRIEF_LEASE: Final = quicker(QUICK, lease={"duration_s": 1, "renew_deadline_s": 0.6})
"""The same; a Lease that is not renewed ends within a second."""

NO_PORTS: Final = ("--grpc-address=0", "--health-probe-bind-address=0", "--metrics-bind-address=0")
"""Flags of a controller that listens nowhere."""
