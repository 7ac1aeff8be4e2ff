"""ResourceClaims of resource.k8s.io/v1, decoded into the fields that the node's decisions need, and no others."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import msgspec

from neuron_dra.core import efa, health, names
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef
from neuron_dra.core.config import Entry, EntrySource
from neuron_dra.core.dra_driver import EFA
from neuron_dra.errors import ClaimError


class Annotations(msgspec.Struct):
    """The annotations that are decoded.

    The scheduler sets `extended` on claims that it makes for resource limits, and Kubernetes `pod_claim` on those that
    it makes from templates.
    """

    extended: str = msgspec.field(default="", name="resource.kubernetes.io/extended-resource-claim")
    pod_claim: str = msgspec.field(default="", name="resource.kubernetes.io/pod-claim-name")
    device_count: str = msgspec.field(default="", name=names.COUNT_ANNOTATION)


class Owner(msgspec.Struct):
    """An owner of an object: OwnerReference."""

    kind: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    annotations: Annotations | None = None
    owner_references: list[Owner] | None = None


class WireToleration(msgspec.Struct):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Result(msgspec.Struct, rename="camel"):
    """One allocated device: DeviceRequestAllocationResult."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    tolerations: list[WireToleration] | None = None


class Opaque(msgspec.Struct):
    """The parameters of a driver: OpaqueDeviceConfiguration."""

    driver: str = ""
    parameters: Any = None


class ConfigEntry(msgspec.Struct):
    """One entry of the configuration in an allocation: DeviceAllocationConfiguration."""

    source: str = "FromClaim"
    requests: list[str] | None = None
    opaque: Opaque | None = None


class Devices(msgspec.Struct):
    results: list[Result] | None = None
    config: list[ConfigEntry] | None = None


class AllocationResult(msgspec.Struct):
    devices: Devices = msgspec.field(default_factory=Devices)


class ConsumerReference(msgspec.Struct):
    """An object that a claim is reserved for, usually a pod: ResourceClaimConsumerReference."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class Status(msgspec.Struct, rename="camel"):
    allocation: AllocationResult | None = None
    reserved_for: list[ConsumerReference] | None = None


class Alternative(msgspec.Struct, rename="camel"):
    """One alternative of a request: DeviceSubRequest."""

    name: str = ""
    device_class_name: str = ""


class Exactly(msgspec.Struct, rename="camel"):
    device_class_name: str = ""


class Request(msgspec.Struct, rename="camel"):
    """A request of a claim, with one DeviceClass or with alternatives: DeviceRequest."""

    name: str = ""
    exactly: Exactly | None = None
    first_available: list[Alternative] | None = None


class Requested(msgspec.Struct):
    requests: list[Request] | None = None


class ResourceClaimSpec(msgspec.Struct):
    devices: Requested = msgspec.field(default_factory=Requested)


class ResourceClaim(msgspec.Struct):
    """A ResourceClaim of resource.k8s.io/v1, as far as it is decoded."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: ResourceClaimSpec = msgspec.field(default_factory=ResourceClaimSpec)
    status: Status = msgspec.field(default_factory=Status)


_claim_decoder = msgspec.json.Decoder(ResourceClaim)
_CONFIG = "neuron_dra.api.config"


def decode_claim(raw: bytes) -> ResourceClaim:
    """Return the claim in `raw`, a response of the API server. Raises ClaimError if it is not a claim."""
    try:
        return _claim_decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise ClaimError(f"the API server's response is not a ResourceClaim: {err}") from err


def allocated_devices(claim: ResourceClaim, driver: str = names.DRIVER) -> tuple[AllocatedDevice, ...]:
    """Return the results of `claim` that belong to a driver, in the allocation's order."""
    if claim.status.allocation is None:
        return ()
    classes = _classes(claim)
    results = claim.status.allocation.devices.results or ()
    allocated = []
    for result in results:
        if result.driver == driver:
            allocated.append(_allocated(result, classes.get(result.request, "")))
    return tuple(allocated)


def _allocated(result: Result, device_class: str) -> AllocatedDevice:
    tolerations = []
    for listed in result.tolerations or ():
        tolerations.append(health.Toleration(listed.key, listed.operator, listed.value, listed.effect))
    return AllocatedDevice(
        result.request,
        result.pool,
        result.device,
        bool(result.admin_access),
        result.share_id,
        tuple(tolerations),
        device_class,
    )


def _classes(claim: ResourceClaim) -> dict[str, str]:
    """Return the DeviceClass of each request by the request's name in results: `request` or `request/alternative`."""
    class_by_request = {}
    for request in claim.spec.devices.requests or ():
        if request.exactly is not None:
            class_by_request[request.name] = request.exactly.device_class_name
        for subrequest in request.first_available or ():
            class_by_request[f"{request.name}/{subrequest.name}"] = subrequest.device_class_name
    return class_by_request


def must_load(wire: ResourceClaim) -> bool:
    """Return True if `to_core` will first import the decoder of configuration, which takes 100 ms, once per process."""
    has_configuration = wire.status.allocation is not None and wire.status.allocation.devices.config
    return bool(has_configuration) and _CONFIG not in sys.modules


def load_models() -> None:
    """Import the decoder of configuration, so that no claim waits for it. Call it in a thread."""
    importlib.import_module(_CONFIG)


def allocation(wire: ResourceClaim, ref: ClaimRef, driver: str = names.DRIVER) -> Claim:
    """Return the claim in core's form without configuration. Raises ClaimError for another UID or no allocation."""
    _allocation_of(wire, ref)
    return Claim(ref, allocated_devices(wire, driver), pod=first_pod(wire), of_its_pod=_is_of_its_pod(wire))


def _allocation_of(wire: ResourceClaim, ref: ClaimRef) -> AllocationResult:
    if wire.metadata.uid != ref.uid:
        raise ClaimError(
            f"claim {ref} was replaced: the kubelet requests UID {ref.uid}, the API server has {wire.metadata.uid}",
        )
    if wire.status.allocation is None:
        raise ClaimError(f"claim {ref} is not allocated")
    return wire.status.allocation


def to_core(wire: ResourceClaim, ref: ClaimRef) -> Claim:
    """Return the claim in core's form; `ref` is the claim in the kubelet's call.

    Raises ClaimError if the object has another UID, is not allocated, or has configuration that cannot be read.
    """
    entries = []
    for index, entry in enumerate(_allocation_of(wire, ref).devices.config or []):
        if entry.opaque is None:
            raise ClaimError(f"claim {ref}: config[{index}] is not opaque configuration; use opaque")
        if entry.opaque.driver != names.DRIVER:
            continue
        from neuron_dra.api import config  # pydantic: 8 MiB and 100 ms, only on nodes that need it

        settings = config.decode(entry.opaque.parameters, f"config[{index}].opaque.parameters")
        if entry.source == "FromClass":
            source = EntrySource.CLASS
        else:
            source = EntrySource.CLAIM
        entries.append(Entry(source, tuple(entry.requests or ()), settings))
    notes = wire.metadata.annotations or Annotations()
    return Claim(
        ref,
        allocated_devices(wire),
        tuple(entries),
        first_pod(wire),
        notes.extended == "true",
        notes.device_count,
        notes.pod_claim,
        _is_of_its_pod(wire),
    )


def efa_to_core(wire: ResourceClaim, ref: ClaimRef) -> Claim:
    """Return the part of a claim that concerns EFA interfaces, in core's form. Raises ClaimError as `to_core`."""
    for index, entry in enumerate(_allocation_of(wire, ref).devices.config or []):
        if entry.opaque is None or entry.opaque.driver != EFA.name:
            continue
        if why := efa.why_parameters(entry.opaque.parameters, f"config[{index}].opaque.parameters"):
            raise ClaimError(f"claim {ref}: {why}")
    return allocation(wire, ref, EFA.name)


def first_pod(claim: ResourceClaim) -> str:
    """Return the name of the first pod that the claim is reserved for, or an empty string."""
    return next((user.name for user in claim.status.reserved_for or [] if user.resource == "pods"), "")


def _is_of_its_pod(claim: ResourceClaim) -> bool:
    """Return whether Kubernetes made the claim for the pod that it is reserved for, and deletes it with that pod."""
    users = set()
    for user in claim.status.reserved_for or []:
        if user.resource == "pods":
            users.add(user.uid)
    owners = claim.metadata.owner_references or []
    return any(owner.controller is True and owner.kind == "Pod" and owner.uid in users for owner in owners)
