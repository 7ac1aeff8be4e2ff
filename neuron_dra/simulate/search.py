"""The search for devices: depth first, first fit, in published order, with full backtracking.

It finds the same devices as the scheduler's allocator from Kubernetes 1.36 on (dynamic-resource-allocation/structured,
"incubating"); `permutations` is that of 1.34 and 1.35. A branch is skipped only if that allocator finds nothing in it
and evaluates no failing selector in it. Its steps in skipped branches are estimated, because it gives up after 10 s.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Final

from neuron_dra.simulate import constraints
from neuron_dra.simulate.counting import Counting
from neuron_dra.simulate.failures import AllocationError, FailureKind
from neuron_dra.simulate.model import DeviceId, PoolDevice
from neuron_dra.simulate.pools import ResourcePool
from neuron_dra.simulate.requests import MAX_RESULTS, Matcher, Need

MAX_STEPS: Final = 100_000  # devices tried on one node before the combinations are counted
MOST_STEPS: Final = 400_000  # devices tried if there are not too many combinations for the scheduler: some seconds
MAX_COMBINATIONS: Final = 1_000_000
"""Steps above which that allocator may exceed its 10 s: each takes it 3 to 6 microseconds, more on a busy machine."""
CHECK_CLAIMS_ALONE: Final = 2_000  # after this many steps each claim is tried alone


class _TooLong(Exception):
    """The search exceeded its limit of steps."""


class _Hopeless(Exception):
    """One request has too few devices, whatever the others take."""


@dataclass(frozen=True, slots=True)
class Pick:
    """An allocated device and its request."""

    need: Need
    device: PoolDevice


class Search:
    """One search on one node. `steps` are about those of Kubernetes' allocator, calls of its `allocateOne`."""

    def __init__(
        self,
        needs: Sequence[Sequence[Sequence[Need]]],  # per claim, per request, its alternatives
        pools: Sequence[ResourcePool],
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
        self._tried, self.steps = 0, 0
        claims = [requests[0][0].claim if requests else None for requests in self._needs]
        self._constraints = [constraints.states(claim) if claim else () for claim in claims]
        self._picks: list[list[Pick]] = [[] for _ in self._needs]
        self._taken: dict[DeviceId, set[int]] = {}  # the claims of this search that hold each device
        self._counting = Counting([pool for pool in self._pools if pool.usable], self._in_use)
        self._shortcuts = shortcuts

    def run(self) -> list[list[Pick]] | None:
        """Return the picks of each claim, or None if there is no solution. Raises AllocationError."""
        is_solved = self._search()
        self._check(self.steps)
        if is_solved:
            return self._picks
        return None

    def _check(self, steps: int) -> None:
        """Raise AllocationError if Kubernetes' allocator may need more than its 10 s for so many steps."""
        if steps > MAX_COMBINATIONS:
            message = (
                f"the search takes about 10^{len(str(steps)) - 1} steps on a node; the scheduler of Kubernetes 1.36 "
                "and later may give up after 10 s and the pod waits, whatever other nodes have: request fewer devices, "
                "or all of a node with allocationMode: All"
            )
            raise AllocationError(FailureKind.TIMED_OUT, message)

    def _search(self) -> bool:
        if len(self._needs) == 1:
            return self._whole(shortcuts=True)
        self._limit = CHECK_CLAIMS_ALONE
        try:
            return self._claim(0)
        except _Hopeless:
            return False if self._nothing_fails() else self._whole(shortcuts=False)
        except _TooLong:
            if self._one_claim_is_hopeless() and self._nothing_fails():
                return False
            return self._whole(shortcuts=True)

    def _whole(self, *, shortcuts: bool, limit: int = MAX_STEPS) -> bool:
        """Search from the start, up to the limit. Without shortcuts it evaluates what Kubernetes evaluates."""
        self._begin(shortcuts=shortcuts)
        self._limit = limit
        try:
            return self._claim(0)
        except _Hopeless:
            return False if self._nothing_fails() else self._whole(shortcuts=False)
        except _TooLong:
            self._check(self._choices(self._needs))
            if limit < MOST_STEPS:
                return self._whole(shortcuts=shortcuts, limit=MOST_STEPS)
            message = f"gave up after trying {limit} devices; use stricter selectors or constraints"
            raise AllocationError(FailureKind.GAVE_UP, message) from None

    def _one_claim_is_hopeless(self) -> bool:
        """Return True if one of the claims cannot be allocated even without the others."""
        for number, claim in enumerate(self._needs):
            alone = Search([claim], self._pools, self._in_use, self._matcher)
            try:
                if alone.run() is None:
                    self.steps = alone.steps * self._choices(self._needs[:number])
                    return True
            except AllocationError as err:
                if err.kind is FailureKind.TIMED_OUT:
                    raise
        return False

    def _nothing_fails(self) -> bool:
        """Return True if no selector fails, and no constraint can prevent an allocationMode All, which is an error."""
        needs = [
            (claim, need) for claim, requests in enumerate(self._needs) for request in requests for need in request
        ]
        if any(need.all_devices and self._states(claim, need) for claim, need in needs):
            return False
        free = [device for device in self._devices if device.id not in self._in_use]
        try:
            for _, need in needs:
                for device in self._devices if need.alternative.admin_access else free:
                    self._matches(need, device)
        except AllocationError:
            return False
        return True

    def _claim(self, index: int) -> bool:
        if index == len(self._needs):
            self.steps += 1
            return True
        return self._request(index, 0)

    def _request(self, claim: int, index: int) -> bool:
        self.steps += 1
        requests = self._needs[claim]
        if index == len(requests):
            return self._claim(claim + 1)
        hopeless = vain = 0
        for need in requests[index]:
            self.steps += bool(need.alternative.name)
            if need.all_devices is not None:
                is_solved = self._all(claim, index, need, 0)
            elif self._shortcuts and not self._hope(need):
                hopeless += 1
                vain += self._combinations(claim, need, self._free_matches(need))
                continue
            else:
                is_solved = self._fill(claim, index, need, 0, 0)
            if is_solved:
                return True
        if hopeless == len(requests[index]):
            self.steps += vain * self._choices([*self._needs[:claim], requests[:index]])
            raise _Hopeless
        self.steps += vain
        return False

    def _hope(self, need: Need) -> bool:
        """Return True if the request has enough devices when no other takes any. Taken devices count unevaluated."""
        missing = need.count
        for device in self._devices:
            if missing == 0:
                break
            if not need.alternative.admin_access and device.id in self._in_use:
                continue
            if self._taken.get(device.id) or (self._matches(need, device) and need.blocking_taint(device) is None):
                missing -= 1
        return missing == 0

    def _free_matches(self, need: Need) -> list[PoolDevice]:
        """Return the devices that a request could have, for an estimate: one whose selector fails is none."""
        free_devices = []
        for device in self._devices:
            free = need.alternative.admin_access or device.id not in self._in_use
            if free and self._matches_surely(need, device) and need.blocking_taint(device) is None:
                free_devices.append(device)
        return free_devices

    def _matches_surely(self, need: Need, device: PoolDevice) -> bool:
        try:
            return self._matches(need, device)
        except AllocationError:
            return False

    def _groups(self, claim: int, need: Need, devices: Collection[PoolDevice]) -> Collection[int]:
        """Return how many of the devices have the same values of the matchAttribute constraints of the request."""
        rules = [state.constraint for state in self._states(claim, need)]
        names = [rule.attribute for rule in rules if rule.kind == "matchAttribute"]
        if not names:
            return (len(devices),)
        return Counter(tuple(constraints.attribute(device, name) for name in names) for device in devices).values()

    def _combinations(self, claim: int, need: Need, devices: Collection[PoolDevice]) -> int:
        """Return the number of combinations of some of these devices, which are too few for the request."""
        return sum(2**number - 1 for number in self._groups(claim, need, devices))

    def _choices(self, needs: Sequence[Sequence[Sequence[Need]]]) -> int:
        """Return about how many choices of devices there are for these requests, one after the other.

        Requests that the same devices match share them; other overlaps are ignored, so the number may be too large.
        """
        ways, taken = 1, Counter[frozenset[DeviceId]]()
        for claim, alternatives in ((claim, request) for claim, requests in enumerate(needs) for request in requests):
            choices = 0
            for need in alternatives:
                if need.all_devices is not None:
                    choices += 1
                    continue
                devices = self._free_matches(need)
                same = frozenset(device.id for device in devices)
                sizes = self._groups(claim, need, devices)
                if len(sizes) == 1:
                    remaining = [number - taken[same] for number in sizes]
                else:
                    remaining = [*sizes]
                choices += sum(math.comb(number, need.count) for number in remaining if number > 0)
                choices = choices or sum(2 ** max(number, 0) for number in remaining)
                taken[same] += need.count if need is alternatives[0] else 0
            ways *= choices
        return ways

    def _matches(self, need: Need, device: PoolDevice) -> bool:
        return self._matcher.matches(need.claim, need.alternative, need.device_class, device)

    def _fill(self, claim: int, request: int, need: Need, chosen: int, start: int) -> bool:
        """Choose the devices of an ExactCount request from position `start` on; `chosen` of them are taken already."""
        if chosen == need.count:
            return self._request(claim, request + 1)
        if len(self._picks[claim]) + need.count - chosen > MAX_RESULTS or not self._enough(claim, need, chosen, start):
            return False
        for position in range(start, len(self._devices)):
            device = self._devices[position]
            if not self._fits(claim, need, device):
                continue
            self._take(claim, need, device)
            self.steps += 1
            if self._fill(claim, request, need, chosen + 1, position + 1):
                return True
            self._release(claim, need, device)
        return False

    def _enough(self, claim: int, need: Need, chosen: int, start: int) -> bool:
        missing = need.count - chosen
        later_devices = (self._devices[position] for position in range(start, len(self._devices)))
        fitting = list(islice((device for device in later_devices if self._fits(claim, need, device)), missing))
        if len(fitting) == missing:
            return True
        self.steps += self._combinations(claim, need, fitting)
        return False

    def _fits(self, claim: int, need: Need, device: PoolDevice) -> bool:
        self._tried += 1
        if self._tried > self._limit:
            raise _TooLong
        return (
            self._free(claim, need, device)
            and self._matches(need, device)
            and self._counting.allows(device)
            and need.blocking_taint(device) is None
            and self._allowed(claim, need, device)
        )

    def _free(self, claim: int, need: Need, device: PoolDevice) -> bool:
        holders = self._taken.get(device.id)
        if need.alternative.admin_access:
            return not holders or claim not in holders
        return not holders and device.id not in self._in_use

    def _allowed(self, claim: int, need: Need, device: PoolDevice) -> bool:
        return all(state.allows(device) for state in self._states(claim, need))

    def _states(self, claim: int, need: Need) -> list[constraints.ConstraintState]:
        name, result_name = need.request.name, need.result_name
        return [state for state in self._constraints[claim] if state.applies(name, result_name)]

    def _take(self, claim: int, need: Need, device: PoolDevice) -> None:
        for state in self._states(claim, need):
            state.push(device)
        self._counting.take(device)
        self._taken.setdefault(device.id, set()).add(claim)
        self._picks[claim].append(Pick(need, device))

    def _release(self, claim: int, need: Need, device: PoolDevice) -> None:
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
        self.steps += 1
        if self._all(claim, request, need, index + 1):
            return True
        self._release(claim, need, device)
        return False

    @staticmethod
    def _impossible(need: Need, device: PoolDevice) -> AllocationError:
        message = (
            f"claim {need.claim}, request {need.result_name}: cannot add device {device.id} "
            "because a claim constraint would not be satisfied"
        )
        return AllocationError(FailureKind.POD_ERROR, message)
