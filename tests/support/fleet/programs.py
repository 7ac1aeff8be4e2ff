"""The programs of tests of UltraServers: what they find depends on the node."""

from __future__ import annotations

import asyncio
import datetime
import json
import random
from collections.abc import Callable
from typing import Final

from neuron_dra.core.qualification import NAMESPACE
from neuron_dra.core.wire import Obj
from tests.support.fleet.pods import Programs

GOOD: Final = "good"
SLOW: Final = "slow"
HANGS: Final = "hangs"
FAILS: Final = "fails"
LIES: Final = "lies"
NO_IMAGE: Final = "no-image"
KINDS: Final = (SLOW, HANGS, FAILS, LIES, NO_IMAGE)
FLOOR: Final = 140.0
LASTS_S: Final = (2.0, 20.0)


class ProgramsOfTests(Programs):
    """`on` says by node how a test behaves there, as one of KINDS; GOOD by default."""

    def __init__(self, now: Callable[[], datetime.datetime], rng: random.Random) -> None:
        self._now = now
        self._rng = rng
        self.on: dict[str, str] = {}
        self.lasts_s = LASTS_S

    def never_starts(self, pod: Obj, node: str) -> Obj | None:
        """Return the pod's status if its image cannot be pulled on a node."""
        if pod["metadata"]["namespace"] != NAMESPACE or self.on.get(node) != NO_IMAGE:
            return None
        state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
        return {"phase": "Pending", "containerStatuses": [{"name": "test", "state": state}]}

    async def run(self, pod: Obj, node: str) -> tuple[int, str] | None:
        """Return how a test ends on a node; None if it hangs, and for other pods."""
        kind = self.on.get(node, GOOD)
        if pod["metadata"]["namespace"] != NAMESPACE or kind == HANGS:
            return None
        await asyncio.sleep(self._rng.uniform(*self.lasts_s))
        if kind == FAILS:
            return 1, "cannot reach rank 0"
        if kind == LIES:
            return 0, json.dumps({"bandwidth": "excellent", "verdict": "Passed"})
        bandwidth = FLOOR - 10.5 if kind == SLOW else FLOOR + 10.0
        return 0, f"done\n{json.dumps({'bandwidth': bandwidth, 'p99': 12})}"
