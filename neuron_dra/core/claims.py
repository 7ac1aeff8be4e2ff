"""Claims as this driver sees them: the allocation, and what prepare made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neuron_dra.core import config, health
from neuron_dra.core.members import Cores


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as the kubelet refers to it; the UID tells a recreated claim from its predecessor.

    Namespace and name are empty for a claim of which only another driver's CDI file is left: it has the UID alone.
    """

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        if not self.name:
            return f"with UID {self.uid}"
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One result of an allocation that belongs to this driver (resource/v1, DeviceRequestAllocationResult).

    `pool` is the name of the node; `share_id` is set if several claims share the device's capacity.
    """

    request: str  # "req", or "req/sub" if the scheduler chose an alternative of firstAvailable
    pool: str
    device: str
    admin_access: bool = False
    share_id: str | None = None
    tolerations: tuple[health.Toleration, ...] = ()
    device_class: str = ""  # the DeviceClass of the request

    @property
    def base_request(self) -> str:
        """The request's name without the alternative, as the kubelet uses it."""
        return self.request.split("/", 1)[0]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim with the part of its allocation that concerns this driver.

    `extended_resources`: the scheduler made it for the resource limits of a pod's containers. `device_count` is the
    number of Neuron devices that it must have, as its annotation has it; empty for any number. `pod_claim` is the name
    that the pod has for a claim made from a template, as its annotation has it, which users can write too.
    `of_its_pod`: the claim belongs to the pod that it is reserved for and ends with it, so no later pod can have it.
    """

    ref: ClaimRef
    devices: tuple[AllocatedDevice, ...]
    configs: tuple[config.Entry, ...] = ()
    pod: str = ""  # the first pod that the claim is reserved for
    extended_resources: bool = False
    device_count: str = ""
    pod_claim: str = ""
    of_its_pod: bool = False


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One allocated device, as prepared.

    - `request`: the request without the alternative, as the kubelet expects it.
    - `device_ids`: the Neuron devices behind it.
    - `cores`: the part of them that a core partition has; None for whole devices.
    - `cdi_ids`: qualified CDI names for the reply to the kubelet.
    - `edits`: the CDI container edits that add the devices to a container.
    - `admin_access`: True for monitoring; such a device is not held.
    """

    request: str
    pool: str
    device: str
    device_ids: tuple[int, ...]
    cdi_ids: tuple[str, ...]
    edits: Mapping[str, Any]
    admin_access: bool = False
    share_id: str | None = None
    extra: Mapping[str, Any] | None = None  # fields of a newer release, kept for it
    cores: Cores | None = None

    @property
    def env(self) -> tuple[str, ...]:
        """Environment variables, as NAME=value, of a container that gets this device."""
        return tuple(self.edits.get("env", ()))


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A prepared claim: the reply to the kubelet, which must be the same at each repeated call.

    An *adopted* claim was prepared by another driver, or by this one before its checkpoint was lost: it holds its
    devices, but there is no reply to repeat. A *doubtful* claim was prepared by this driver, and another one may have
    unprepared it since: it gets the same reply as before, and is released under the conditions of an adopted claim.
    A claim `of_its_pod` keeps its allocation until it is deleted; another may be allocated anew under the same UID.
    """

    ref: ClaimRef
    devices: tuple[PreparedDevice, ...]
    prepared_at: str = ""  # RFC 3339, UTC
    pod: str = ""
    adopted: bool = False
    doubtful: bool = False
    workload: str = ""  # name of the NeuronUltraServerWorkload, in the claim's namespace, that the node is bound to
    of_its_pod: bool = False
    metadata: Mapping[str, str] | None = None  # by request: the JSON of its metadata file (core/metadata.py)
    extra: Mapping[str, Any] | None = None  # fields of a newer release, kept for it
