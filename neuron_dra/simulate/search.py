"""The search for devices: depth first, first fit, in published order, with full backtracking.

It finds the same devices as the scheduler's allocator from Kubernetes 1.36 on (dynamic-resource-allocation/structured,
"incubating"); `permutations` is that of 1.34 and 1.35. A branch is skipped only if that allocator finds nothing in it
and evaluates no failing selector in it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

from neuron_dra.simulate import constraints
from neuron_dra.simulate.counting import Counting
from neuron_dra.simulate.failures import AllocationError, FailureKind
from neuron_dra.simulate.model import Device, DeviceId
from neuron_dra.simulate.pools import Pool
from neuron_dra.simulate.requests import MAX_RESULTS, Matcher, Need

MAX_STEPS: Final = 100_000  # devices tried on one node; the real scheduler stops after 10 s
CHECK_CLAIMS_ALONE: Final = 2_000  # after this many steps each claim is tried alone


class _TooLong(Exception):
    """The search exceeded its limit of steps."""


class _Hopeless(Exception):
    """One request has too few devices, whatever the others take."""


@dataclass(frozen=True, slots=True)
class Pick:
    """An allocated device and its request."""

    need: Need
    device: Device


class Search:
    """One search on one node."""

    def __init__(
        self,
        needs: Sequence[Sequence[Sequence[Need]]],  # per claim, per request, its alternatives
        pools: Sequence[Pool],
        in_use: Set[DeviceId],
        matcher: Matcher,
    ) -> None:
        self._needs = needs
        self._devices = [device for pool in pools if pool.usable for device in pool.devices]
        self._in_use = in_use
        self._matcher = matcher
        self._pools = pools
        self._limit = MAX_STEPS
        self._begin(shortcuts=True)

    def _begin(self, *, shortcuts: bool) -> None:
        self._steps = 0
        claims = [requests[0][0].claim if requests else None for requests in self._needs]
        self._constraints = [constraints.states(claim) if claim else () for claim in claims]
        self._picks: list[list[Pick]] = [[] for _ in self._needs]
        self._taken: dict[DeviceId, set[int]] = {}  # the claims of this search that hold each device
        self._counting = Counting([pool for pool in self._pools if pool.usable], self._in_use)
        self._shortcuts = shortcuts

    def run(self) -> list[list[Pick]] | None:
        """Return the picks of each claim, or None if there is no solution. Raises AllocationError."""
        if len(self._needs) == 1:
            return self._picks if self._whole(shortcuts=True) else None
        self._limit = CHECK_CLAIMS_ALONE
        try:
            found = self._claim(0)
        except _Hopeless:
            found = False if self._no_selector_fails() else self._whole(shortcuts=False)
        except _TooLong:
            hopeless = self._one_claim_is_hopeless() and self._no_selector_fails()
            found = False if hopeless else self._whole(shortcuts=True)
        return self._picks if found else None

    def _whole(self, *, shortcuts: bool) -> bool:
        """Search from the start, up to MAX_STEPS. Without shortcuts it evaluates what Kubernetes evaluates."""
        self._begin(shortcuts=shortcuts)
        self._limit = MAX_STEPS
        try:
            return self._claim(0)
        except _Hopeless:
            return False if self._no_selector_fails() else self._whole(shortcuts=False)
        except _TooLong:
            message = f"gave up after trying {MAX_STEPS} devices; use stricter selectors or constraints"
            raise AllocationError(FailureKind.GAVE_UP, message) from None

    def _one_claim_is_hopeless(self) -> bool:
        """Return True if one of the claims cannot be allocated even without the others."""
        for claim in self._needs:
            try:
                if Search([claim], self._pools, self._in_use, self._matcher).run() is None:
                    return True
            except AllocationError:
                continue
        return False

    def _no_selector_fails(self) -> bool:
        free = [device for device in self._devices if device.id not in self._in_use]
        try:
            for need in (need for claim in self._needs for request in claim for need in request):
                for device in self._devices if need.alternative.admin_access else free:
                    self._matches(need, device)
        except AllocationError:
            return False
        return True

    def _claim(self, index: int) -> bool:
        return index == len(self._needs) or self._request(index, 0)

    def _request(self, claim: int, index: int) -> bool:
        requests = self._needs[claim]
        if index == len(requests):
            return self._claim(claim + 1)
        hopeless = 0
        for need in requests[index]:
            if need.all_devices is not None:
                found = self._all(claim, index, need, 0)
            elif self._shortcuts and not self._hope(need):
                hopeless += 1
                continue
            else:
                found = self._fill(claim, index, need, 0, 0)
            if found:
                return True
        if hopeless == len(requests[index]):
            raise _Hopeless
        return False

    def _hope(self, need: Need) -> bool:
        """Return True if the request has enough devices when no other takes any. Taken devices count unevaluated."""
        left = need.count
        for device in self._devices:
            if left == 0:
                break
            if not need.alternative.admin_access and device.id in self._in_use:
                continue
            if self._taken.get(device.id) or (self._matches(need, device) and need.blocking_taint(device) is None):
                left -= 1
        return left == 0

    def _matches(self, need: Need, device: Device) -> bool:
        return self._matcher.matches(need.claim, need.alternative, need.device_class, device)

    def _fill(self, claim: int, request: int, need: Need, have: int, start: int) -> bool:
        """Choose the devices of an ExactCount request from position `start` on; `have` are chosen already."""
        if have == need.count:
            return self._request(claim, request + 1)
        if len(self._picks[claim]) + need.count - have > MAX_RESULTS or not self._enough(claim, need, have, start):
            return False
        for position in range(start, len(self._devices)):
            device = self._devices[position]
            if not self._fits(claim, need, device):
                continue
            self._take(claim, need, device)
            if self._fill(claim, request, need, have + 1, position + 1):
                return True
            self._release(claim, need, device)
        return False

    def _enough(self, claim: int, need: Need, have: int, start: int) -> bool:
        left = need.count - have
        for position in range(start, len(self._devices)):
            if left == 0:
                break
            left -= self._fits(claim, need, self._devices[position])
        return left == 0

    def _fits(self, claim: int, need: Need, device: Device) -> bool:
        self._steps += 1
        if self._steps > self._limit:
            raise _TooLong
        return (
            self._free(claim, need, device)
            and self._matches(need, device)
            and self._counting.allows(device)
            and need.blocking_taint(device) is None
            and self._allowed(claim, need, device)
        )

    def _free(self, claim: int, need: Need, device: Device) -> bool:
        holders = self._taken.get(device.id)
        if need.alternative.admin_access:
            return not holders or claim not in holders
        return not holders and device.id not in self._in_use

    def _allowed(self, claim: int, need: Need, device: Device) -> bool:
        return all(state.allows(device) for state in self._states(claim, need))

    def _states(self, claim: int, need: Need) -> list[constraints.State]:
        name, result_name = need.request.name, need.result_name
        return [state for state in self._constraints[claim] if state.applies(name, result_name)]

    def _take(self, claim: int, need: Need, device: Device) -> None:
        for state in self._states(claim, need):
            state.push(device)
        self._counting.take(device)
        self._taken.setdefault(device.id, set()).add(claim)
        self._picks[claim].append(Pick(need, device))

    def _release(self, claim: int, need: Need, device: Device) -> None:
        for state in self._states(claim, need):
            state.pop()
        self._counting.release(device)
        self._taken[device.id].discard(claim)
        self._picks[claim].pop()

    def _all(self, claim: int, request: int, need: Need, index: int) -> bool:
        """Take every device of an All request, in order."""
        devices = need.all_devices or ()
        if not devices:
            return False
        if index == len(devices):
            return self._request(claim, request + 1)
        if len(self._picks[claim]) + len(devices) - index > MAX_RESULTS:
            return False
        device = devices[index]
        if not self._free(claim, need, device) or not self._counting.allows(device):
            return False
        if need.blocking_taint(device) is not None:
            return False
        if not self._allowed(claim, need, device):
            raise self._impossible(need, device)
        self._take(claim, need, device)
        if self._all(claim, request, need, index + 1):
            return True
        self._release(claim, need, device)
        return False

    @staticmethod
    def _impossible(need: Need, device: Device) -> AllocationError:
        message = (
            f"claim {need.claim}, request {need.result_name}: cannot add device {device.id} "
            "because a claim constraint would not be satisfied"
        )
        return AllocationError(FailureKind.POD_ERROR, message)
