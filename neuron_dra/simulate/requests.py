"""What the claims of one pod need on one node: classes resolved, devices of "all" requests listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from neuron_dra.simulate import nodes, selectors
from neuron_dra.simulate.failures import (
    AllocationError,
    CompileError,
    EvaluationError,
    FailureKind,
    UnsupportedError,
)
from neuron_dra.simulate.model import (
    ClaimDemand,
    DeviceClass,
    DeviceRequest,
    DeviceSubRequest,
    DeviceTaint,
    NodeTraits,
    PoolDevice,
)
from neuron_dra.simulate.pools import ResourcePool
from neuron_dra.simulate.semantics import Semantics

MAX_RESULTS: Final = 32  # devices of one claim; resource.k8s.io/v1 AllocationResultsMaxSize


@dataclass(frozen=True, slots=True, eq=False)
class Need:
    """One alternative of one request, as the search uses it."""

    claim: ClaimDemand
    request: DeviceRequest
    alternative: DeviceSubRequest
    device_class: DeviceClass
    count: int
    all_devices: tuple[PoolDevice, ...] | None  # of allocationMode All

    @property
    def result_name(self) -> str:
        """Return the name that allocation results use."""
        return self.request.result_name(self.alternative)

    def blocking_taint(self, device: PoolDevice) -> DeviceTaint | None:
        """Return the first taint that excludes the device from this request, or None."""
        for taint in device.taints:
            if taint.effect in ("NoSchedule", "NoExecute") and not any(
                toleration.tolerates(taint) for toleration in self.alternative.tolerations
            ):
                return taint
        return None


class Matcher:
    """Matches devices with requests on one node, and caches the results."""

    def __init__(self, node: NodeTraits, memo: selectors.Selectors) -> None:
        self._node = node
        self._memo = memo
        self._known: dict[tuple[int, int], bool] = {}

    def matches(
        self, claim: ClaimDemand, alternative: DeviceSubRequest, device_class: DeviceClass, device: PoolDevice
    ) -> bool:
        """Check the class, the request and the device's own node selection, in this order. Raises AllocationError."""
        key = (id(alternative), id(device))  # both live as long as the search
        is_match = self._known.get(key)
        if is_match is None:
            is_match = (
                self._all(f"class {device_class.name}", device_class.selectors, device)
                and self._all(f"claim {claim}", alternative.selectors, device)
                and (not device.per_device_nodes or nodes.reaches(device.where, self._node))
            )
            if is_match and device.unsupported:
                raise AllocationError(FailureKind.UNSUPPORTED, device.unsupported)
            self._known[key] = is_match
        return is_match

    def _all(self, owner: str, expressions: Sequence[str | None], device: PoolDevice) -> bool:
        for index, expression in enumerate(expressions):
            if expression is None:
                message = f"{owner}: selector #{index}: CEL expression empty (unsupported selector type?)"
                raise AllocationError(FailureKind.POD_ERROR, message)
            value = partial(selectors.device_value, device.id.driver, device.attributes, device.capacity)
            try:
                if not self._memo.matches(expression, device.key, value):
                    return False
            except CompileError as err:
                message = f"{owner}: selector #{index}: CEL compile error: {err}"
                raise AllocationError(FailureKind.POD_ERROR, message) from err
            except EvaluationError as err:
                message = f"{owner}: selector #{index} on device {device.id}: CEL runtime error: {err}"
                raise AllocationError(FailureKind.POD_ERROR, message) from err
            except UnsupportedError as err:
                raise AllocationError(FailureKind.UNSUPPORTED, f"{owner}: selector #{index}: {err}") from err
        return True


def needs(
    claim: ClaimDemand,
    classes: Mapping[str, DeviceClass],
    pools: Sequence[ResourcePool],
    matcher: Matcher,
    rules: Semantics,
) -> tuple[tuple[Need, ...], ...]:
    """Return the alternatives of each request. Raises AllocationError if no node could satisfy the claim."""
    needs_of_requests = []
    for request in claim.requests:
        alternatives: list[Need] = []
        for number, alternative in enumerate(request.alternatives):
            if rules.shared_all and number == 1:
                all_devices = alternatives[0].all_devices
            else:
                all_devices = None
            alternatives.append(_need(claim, request, alternative, classes, pools, matcher, all_devices))
        needs_of_requests.append(tuple(alternatives))
    least = sum(min(need.count for need in alternatives) for alternatives in needs_of_requests)
    if least > MAX_RESULTS:
        message = f"claim {claim}: number of requested devices {least} exceeds the claim limit of {MAX_RESULTS}"
        raise AllocationError(FailureKind.POD_ERROR, message)
    return tuple(needs_of_requests)


def _need(
    claim: ClaimDemand,
    request: DeviceRequest,
    alternative: DeviceSubRequest,
    classes: Mapping[str, DeviceClass],
    pools: Sequence[ResourcePool],
    matcher: Matcher,
    all_devices: tuple[PoolDevice, ...] | None,
) -> Need:
    """Return the need of an alternative; `all_devices` are its devices if it has allocationMode All."""
    where = f"claim {claim}, request {request.result_name(alternative)}"
    if alternative.unsupported:
        raise AllocationError(FailureKind.UNSUPPORTED, f"{where}: {alternative.unsupported}")
    if None in alternative.selectors:
        raise AllocationError(FailureKind.POD_ERROR, f"{where}: CEL expression empty (unsupported selector type?)")
    device_class = classes.get(alternative.class_name)
    if device_class is None:
        message = (
            f"{where}: could not retrieve device class {alternative.class_name!r}: create it, or name one that exists"
        )
        raise AllocationError(FailureKind.POD_ERROR, message)
    if alternative.mode == "ExactCount":
        return Need(claim, request, alternative, device_class, alternative.count, None)
    if alternative.mode != "All":
        raise AllocationError(FailureKind.POD_ERROR, f"{where}: unsupported count mode {alternative.mode}")
    if all_devices is not None:
        return Need(claim, request, alternative, device_class, len(all_devices), all_devices)
    devices: list[PoolDevice] = []
    for pool in pools:
        if not pool.usable:
            if pool.incomplete:
                state = "currently being updated"
            else:
                state = f"currently invalid ({pool.invalid})"
            message = f"{where}: asks for all devices, but resource pool {pool.driver}/{pool.name} is {state}"
            raise AllocationError(FailureKind.NODE_ERROR, message)
        devices += [device for device in pool.devices if matcher.matches(claim, alternative, device_class, device)]
    return Need(claim, request, alternative, device_class, len(devices), tuple(devices))
