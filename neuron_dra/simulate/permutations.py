"""The search for devices of Kubernetes 1.34 and 1.35: it tries the devices of a request in every order.

It finds the same devices as that scheduler's allocator, in as many steps. A step is a call of its `allocateOne`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence, Set
from typing import Final

from neuron_dra.simulate.failures import AllocationError, FailureKind
from neuron_dra.simulate.model import DeviceId
from neuron_dra.simulate.pools import ResourcePool
from neuron_dra.simulate.requests import MAX_RESULTS, Matcher, Need
from neuron_dra.simulate.search import Pick, Search

MAX_STEPS: Final = 50_000  # on one node; a scheduler takes about a million in its 10 s


class _TooManyDevices(Exception):
    """What was chosen so far leaves no room for the devices of a request."""


class PermutationSearch(Search):
    """One search on one node. `steps` are those of `run`."""

    def __init__(
        self,
        needs: Sequence[Sequence[Sequence[Need]]],
        pools: Sequence[ResourcePool],
        in_use: Set[DeviceId],
        matcher: Matcher,
    ) -> None:
        super().__init__(needs, pools, in_use, matcher)
        self.steps = 0

    def run(self) -> list[list[Pick]] | None:
        """Return the picks of each claim, or None if there is no solution. Raises AllocationError."""
        self._limit = sys.maxsize  # devices tried; the number of steps limits them
        try:
            if self._claim(0):
                return self._picks
            return None
        except _TooManyDevices:
            return None

    def _step(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            message = (
                f"the search took more than {MAX_STEPS:,} steps: Kubernetes 1.34 and 1.35 try the devices in every "
                "order, give up after 10 s, and skip the node; request all of its devices with allocationMode: All, or "
                "fewer in each claim"
            )
            raise AllocationError(FailureKind.GAVE_UP, message)

    def _claim(self, index: int) -> bool:
        if index == len(self._needs):
            self._step()
            return True
        if index == 0:
            return self._request(0, 0)
        try:
            return self._request(index, 0)
        except _TooManyDevices:  # other devices for the claims before may leave room
            return False

    def _request(self, claim: int, index: int) -> bool:
        self._step()
        requests = self._needs[claim]
        if index == len(requests):
            return self._claim(claim + 1)
        alternatives = requests[index]
        if not alternatives[0].alternative.name:
            return self._continue(claim, index, alternatives[0], 0)
        too_many = 0
        for need in alternatives:
            self._step()
            try:
                if self._continue(claim, index, need, 0):
                    return True
            except _TooManyDevices:
                too_many += 1
        if too_many == len(alternatives):
            raise _TooManyDevices
        return False

    def _continue(self, claim: int, index: int, need: Need, chosen: int) -> bool:
        if need.all_devices is not None:
            return bool(need.all_devices) and self._all(claim, index, need, chosen)
        return self._fill(claim, index, need, chosen, 0)

    def _room(self, claim: int, more: int) -> None:
        if len(self._picks[claim]) + more > MAX_RESULTS:
            raise _TooManyDevices

    def _fill(self, claim: int, request: int, need: Need, chosen: int, start: int) -> bool:
        """Choose the devices of an ExactCount request; `chosen` is how many are chosen already, `start` is not used."""
        if chosen >= need.count:
            return self._request(claim, request + 1)
        self._room(claim, need.count - chosen)
        for pool in self._pools:
            if pool.invalid:
                message = f"pool {pool.driver}/{pool.name} is invalid: {pool.invalid}"
                raise AllocationError(FailureKind.POD_ERROR, message)
            for device in pool.devices:
                if not self._fits(claim, need, device):
                    continue
                self._take(claim, need, device)
                self._step()
                try:
                    if self._fill(claim, request, need, chosen + 1, 0):
                        return True
                except _TooManyDevices:
                    self._release(claim, need, device)
                    raise
                self._release(claim, need, device)
        return False

    def _all(self, claim: int, request: int, need: Need, index: int) -> bool:
        """Take every device of an All request, in order.

        A fault of that allocator: after the first device of a subrequest it goes on with the first subrequest.
        """
        devices = need.all_devices or ()
        if index >= len(devices):
            return self._request(claim, request + 1)
        self._room(claim, len(devices) - index)
        device = devices[index]
        if not self._free(claim, need, device):
            return False
        if not self._allowed(claim, need, device):
            raise self._impossible(need, device)
        self._take(claim, need, device)
        self._step()
        try:
            if self._continue(claim, request, self._needs[claim][request][0], index + 1):
                return True
        except _TooManyDevices:
            self._release(claim, need, device)
            raise
        self._release(claim, need, device)
        return False
