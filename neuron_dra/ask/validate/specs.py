"""The specs of claims that `validate` checks, and what can be wrong with them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from neuron_dra.ask.read.claim_views import AlternativeView, DeviceDemand, RawDemand
from neuron_dra.ask.world import drivers
from neuron_dra.core import names
from neuron_dra.core.wire import Wire
from neuron_dra.simulate.model import DeviceClass


@dataclass(frozen=True, slots=True)
class ManifestProblem:
    """What is wrong with one object; a warning is right on some clusters and does not fail a pipeline."""

    where: str
    code: str
    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """The spec of a claim, from a ResourceClaim or a ResourceClaimTemplate; `users` are the pods that are known."""

    where: str
    devices: DeviceDemand
    raw: RawDemand  # the same as the manifest has it, for claims that are made of it
    users: Sequence[Wire] = ()

    @classmethod
    def of(cls, where: str, spec: Wire, users: Sequence[Wire] = ()) -> Self:
        """Return the spec of a claim as it is in a manifest."""
        devices = spec.get("devices")
        return cls(where, DeviceDemand.of(devices), RawDemand.of(devices), users)

    def alternatives(self) -> Iterator[tuple[str, AlternativeView]]:
        """Yield each request, or each alternative of it, by the name that results use."""
        for request in self.devices.requests:
            yield from request.named_alternatives

    def is_ours(self, alternative: AlternativeView, classes: Mapping[str, DeviceClass]) -> bool:
        """Return True if an alternative requests devices of this driver, as far as its class and selectors show."""
        name = alternative.device_class_name
        if name == names.DRIVER:
            return True
        if name not in classes:
            return False
        expressions = [selector.cel.expression for selector in alternative.selectors]
        return not drivers.foreign([*classes[name].selectors, *expressions])
