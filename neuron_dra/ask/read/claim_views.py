"""Typed views of ResourceClaims, their templates and DeviceClasses. Pure."""

from __future__ import annotations

from typing import Any

from neuron_dra.ask.read.views import MetaView, ObjectView, OwnerView


class CelView(ObjectView, frozen=True):
    """An expression in CEL."""

    expression: str = ""


class SelectorView(ObjectView, frozen=True):
    """A selector of devices."""

    cel: CelView = CelView()


class TolerationView(ObjectView, frozen=True):
    """A toleration of a request."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class AlternativeView(ObjectView, frozen=True):
    """What a request, or one of its alternatives, is for."""

    name: str = ""
    device_class_name: str = ""
    selectors: tuple[SelectorView, ...] = ()
    allocation_mode: str = ""
    count: int | None = None
    admin_access: bool = False
    tolerations: tuple[TolerationView, ...] = ()

    @property
    def wants_all(self) -> bool:
        """True if it is for all devices that match."""
        return self.allocation_mode == "All"

    @property
    def number(self) -> int:
        """How many devices it is for, unless it is for all."""
        return self.count or 1


class RequestView(ObjectView, frozen=True):
    """A request of a claim."""

    name: str = ""
    exactly: AlternativeView | None = None
    first_available: tuple[AlternativeView, ...] = ()

    @property
    def alternatives(self) -> tuple[AlternativeView, ...]:
        """Its alternatives; a request without them is one itself."""
        return self.first_available or (self.exactly or AlternativeView(),)

    @property
    def named_alternatives(self) -> list[tuple[str, AlternativeView]]:
        """Its alternatives by the names that results use."""
        if self.first_available:
            return [(f"{self.name}/{alternative.name}", alternative) for alternative in self.first_available]
        return [(self.name, self.exactly or AlternativeView())]


class ConstraintView(ObjectView, frozen=True):
    """What devices of a claim have in common; without `requests`, those of all requests."""

    requests: tuple[str, ...] = ()
    match_attribute: str = ""
    distinct_attribute: str = ""


class OpaqueView(ObjectView, frozen=True):
    """The parameters of a driver, of which only the driver knows the form."""

    driver: str = ""
    parameters: Any = None


class ConfigView(ObjectView, frozen=True):
    """An entry of the configuration of a claim, a class or an allocation."""

    requests: tuple[str, ...] = ()
    opaque: OpaqueView = OpaqueView()
    source: Any = None


class DeviceDemand(ObjectView, frozen=True):
    """The devices that a claim requests."""

    requests: tuple[RequestView, ...] = ()
    constraints: tuple[ConstraintView, ...] = ()
    config: tuple[ConfigView, ...] = ()


class RawDemand(ObjectView, frozen=True):
    """The same as it is, for objects that are made of it."""

    requests: tuple[dict[str, Any], ...] = ()
    constraints: tuple[dict[str, Any], ...] = ()
    config: tuple[dict[str, Any], ...] = ()


class ClaimSpecView(ObjectView, frozen=True):
    """What a claim requests."""

    devices: DeviceDemand = DeviceDemand()


class ResultView(ObjectView, frozen=True):
    """A device that is allocated to a claim."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""


class AllocatedDevices(ObjectView, frozen=True):
    """The devices of an allocation, and their configuration."""

    results: tuple[ResultView, ...] = ()
    config: tuple[ConfigView, ...] = ()


class AllocationView(ObjectView, frozen=True):
    """The allocation of a claim; `node_selector` is a NodeSelector, which `simulate` reads."""

    devices: AllocatedDevices = AllocatedDevices()
    node_selector: Any = None


class ConsumerView(ObjectView, frozen=True):
    """An object that a claim is reserved for."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class ClaimStatusView(ObjectView, frozen=True):
    """What a claim has."""

    allocation: AllocationView | None = None
    reserved_for: tuple[ConsumerView, ...] = ()


class ClaimView(ObjectView, frozen=True):
    """A ResourceClaim."""

    metadata: MetaView = MetaView()
    spec: ClaimSpecView = ClaimSpecView()
    status: ClaimStatusView = ClaimStatusView()

    @property
    def is_allocated(self) -> bool:
        """True if it has an allocation."""
        return self.status.allocation is not None

    @property
    def results(self) -> tuple[ResultView, ...]:
        """The devices that it has."""
        if self.status.allocation is not None:
            return self.status.allocation.devices.results
        return ()

    @property
    def requests(self) -> tuple[RequestView, ...]:
        """Its requests."""
        return self.spec.devices.requests

    def consumers(self, resource: str) -> list[ConsumerView]:
        """Return the consumers of a kind, `pods` or `podgroups`, that it is reserved for."""
        return [consumer for consumer in self.status.reserved_for if consumer.resource == resource]


class RawClaimStatus(ObjectView, frozen=True):
    """A claim's status as it is, for objects that are made of it."""

    allocation: Any = None
    reserved_for: tuple[dict[str, Any], ...] = ()


class _Key(ObjectView, frozen=True):
    name: str = ""
    namespace: str = ""
    owner_references: tuple[OwnerView, ...] = ()

    def owners(self, kind: str) -> list[OwnerView]:
        """Return the owners of a kind."""
        return [owner for owner in self.owner_references if owner.kind == kind]


class _ReservedFor(ObjectView, frozen=True):
    allocation: Any = None
    reserved_for: tuple[ConsumerView, ...] = ()


class ClaimUsers(ObjectView, frozen=True):
    """The few fields that say who uses a claim; a fleet has 10,000s of claims."""

    metadata: _Key = _Key()
    status: _ReservedFor = _ReservedFor()

    @property
    def is_allocated(self) -> bool:
        """True if it has an allocation."""
        return self.status.allocation is not None

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the PodGroups that it is reserved for."""
        return tuple([consumer.name for consumer in self.consumers("podgroups")])

    def consumers(self, resource: str) -> list[ConsumerView]:
        """Return the consumers of a kind, `pods` or `podgroups`, that it is reserved for."""
        return [consumer for consumer in self.status.reserved_for if consumer.resource == resource]


class TemplateSpecView(ObjectView, frozen=True):
    """The claims that a template makes."""

    metadata: dict[str, Any] = {}
    spec: ClaimSpecView = ClaimSpecView()


class ClaimTemplateView(ObjectView, frozen=True):
    """A ResourceClaimTemplate."""

    metadata: MetaView = MetaView()
    spec: TemplateSpecView = TemplateSpecView()


class DeviceClassSpec(ObjectView, frozen=True):
    """Which devices a class selects, and how they are configured."""

    selectors: tuple[SelectorView, ...] = ()
    extended_resource_name: str = ""
    config: tuple[ConfigView, ...] = ()


class DeviceClassView(ObjectView, frozen=True):
    """A DeviceClass."""

    metadata: MetaView = MetaView()
    spec: DeviceClassSpec = DeviceClassSpec()
