"""Claims as this driver sees them: what was allocated, and what was handed out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neuron_dra.core import config, health


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as the kubelet names it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One result of an allocation that belongs to this driver."""

    request: str  # "req", or "req/sub" when an alternative of firstAvailable was taken
    pool: str
    device: str
    admin_access: bool = False
    share_id: str | None = None
    tolerations: tuple[health.Toleration, ...] = ()
    device_class: str = ""  # that the request asked for

    @property
    def base_request(self) -> str:
        """The request without the alternative; the kubelet knows only this one."""
        return self.request.split("/", 1)[0]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim with its allocation, as far as this driver is concerned."""

    ref: ClaimRef
    devices: tuple[AllocatedDevice, ...]
    configs: tuple[config.Entry, ...] = ()
    pod: str = ""  # the first pod that the claim is reserved for


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One allocated device as it was handed out.

    `device_ids` are the Neuron devices behind it, `edits` the CDI container edits that deliver them.
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

    @property
    def env(self) -> tuple[str, ...]:
        """Environment of a container that gets this device, as NAME=value."""
        return tuple(self.edits.get("env", ()))


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """What the kubelet was answered, and must be answered again.

    An *adopted* claim was prepared by somebody else (the driver before us, or ourselves before a checkpoint was
    lost): it holds its devices, but there is no answer of ours to repeat. A *doubtful* one was prepared by us, and
    perhaps unprepared since, by somebody who left no word: it is answered as before, and let go like an adopted one.
    """

    ref: ClaimRef
    devices: tuple[PreparedDevice, ...]
    prepared_at: str = ""  # RFC 3339, UTC
    pod: str = ""
    adopted: bool = False
    doubtful: bool = False
    workload: str = ""  # the NeuronUltraServerWorkload, in the claim's namespace, that the node is bound to for it
    extra: Mapping[str, Any] | None = None  # fields of a newer release, kept for it
