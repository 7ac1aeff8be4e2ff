"""The kubelet's protocol with plugins: services, messages as values, connections."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc.aio

from neuron_dra.gen.kubelet.dra.v1 import dra_pb2 as dra_v1
from neuron_dra.gen.kubelet.dra.v1 import dra_pb2_grpc as dra_v1_grpc
from neuron_dra.gen.kubelet.dra.v1beta1 import dra_pb2 as dra_v1beta1
from neuron_dra.gen.kubelet.dra.v1beta1 import dra_pb2_grpc as dra_v1beta1_grpc
from neuron_dra.gen.kubelet.health.v1 import health_pb2 as health_v1
from neuron_dra.gen.kubelet.health.v1 import health_pb2_grpc as health_v1_grpc
from neuron_dra.gen.kubelet.health.v1alpha1 import health_pb2 as health_v1alpha1
from neuron_dra.gen.kubelet.health.v1alpha1 import health_pb2_grpc as health_v1alpha1_grpc
from neuron_dra.gen.kubelet.pluginregistration.v1 import registration_pb2

DRA_V1: Final = "v1.DRAPlugin"
DRA_V1BETA1: Final = "v1beta1.DRAPlugin"
HEALTH_V1: Final = "v1.DRAResourceHealth"
HEALTH_V1ALPHA1: Final = "v1alpha1.DRAResourceHealth"

DRA_SERVICES: Final[Mapping[str, tuple[Any, Any]]] = {
    DRA_V1: (dra_v1, dra_v1_grpc.DRAPluginStub),
    DRA_V1BETA1: (dra_v1beta1, dra_v1beta1_grpc.DRAPluginStub),
}
HEALTH_SERVICES: Final[Mapping[str, tuple[Any, Any]]] = {
    HEALTH_V1: (health_v1, health_v1_grpc.DRAResourceHealthStub),
    HEALTH_V1ALPHA1: (health_v1alpha1, health_v1alpha1_grpc.DRAResourceHealthStub),
}
# Options of a kubelet's connections: authority "localhost", nothing shared between channels. Reconnecting is
# quicker than a kubelet's, so that tests need not wait.
_CHANNEL_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class KubeletError(Exception):
    """An error that the kubelet would report on the pod, with the kubelet's text."""


@dataclass(frozen=True, slots=True)
class KubeletClaim:
    """The fields of a claim that the kubelet sends to a plugin."""

    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, claim: KubeletClaim | Mapping[str, Any]) -> KubeletClaim:
        """Convert a ResourceClaim from the API server; return a reference unchanged."""
        if isinstance(claim, KubeletClaim):
            return claim
        meta = claim["metadata"]
        return cls(meta["namespace"], meta["name"], meta["uid"])


@dataclass(frozen=True, slots=True)
class KubeletDevice:
    request_names: tuple[str, ...]
    pool_name: str
    device_name: str
    cdi_device_ids: tuple[str, ...]
    share_id: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedResult:
    """The result for one claim: devices, or an error text."""

    devices: tuple[KubeletDevice, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class ReportedHealth:
    pool_name: str
    device_name: str
    health: str  # HEALTHY, UNHEALTHY or UNKNOWN
    last_updated_s: int  # Unix time
    timeout_s: int
    message: str


@dataclass(frozen=True, slots=True)
class RegisteredPlugin:
    """A registered plugin instance. `service` is the DRA service that was chosen from `offered`."""

    driver: str
    endpoint: str
    service: str
    offered: tuple[str, ...]
    socket: str


def find_sockets(registry: Path) -> dict[str, tuple[int, int]]:
    """Return the sockets below the registry, except for hidden ones, each with the identity of its file."""
    identity_by_path = {}
    for folder, folders, files in os.walk(registry):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = os.path.join(folder, name)
            try:
                status = os.lstat(path)
            except FileNotFoundError:  # it was removed since the folder was listed
                continue
            if stat.S_ISSOCK(status.st_mode) and not name.startswith("."):
                identity_by_path[path] = status.st_ino, status.st_mtime_ns  # not ctime, which chmod changes
    return identity_by_path


def dial(path: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"unix:{path}", options=_CHANNEL_OPTIONS)


def error_words(error: grpc.aio.AioRpcError) -> str:
    code = "".join(part.capitalize() for part in error.code().name.split("_"))
    return f"rpc error: code = {code} desc = {error.details()}"


def result_of(answer: Any) -> PreparedResult:
    if answer.error:
        return PreparedResult(error=answer.error)
    return PreparedResult(tuple(_device_of(device) for device in answer.devices))


def _device_of(device: Any) -> KubeletDevice:
    share_id = None
    if "share_id" in _presence(device) and device.HasField("share_id"):
        share_id = device.share_id
    return KubeletDevice(
        request_names=tuple(device.request_names),
        pool_name=device.pool_name,
        device_name=device.device_name,
        cdi_device_ids=tuple(device.cdi_device_ids),
        share_id=share_id,
    )


def _presence(message: Any) -> set[str]:
    return {field.name for field in message.DESCRIPTOR.fields}


def health_of(messages: Any, device_health: Any) -> ReportedHealth:
    return ReportedHealth(
        pool_name=device_health.device.pool_name,
        device_name=device_health.device.device_name,
        health=messages.HealthStatus.Name(device_health.health),
        last_updated_s=device_health.last_updated_time,
        timeout_s=device_health.health_check_timeout_seconds,
        message=device_health.message,
    )


def first_error(method: str, claims: Iterable[KubeletClaim], errors: Mapping[str, str]) -> KubeletError | None:
    """Return the kubelet's message about the first failed claim, None without one."""
    for ref in claims:
        if errors[ref.uid]:
            return KubeletError(f"{method} failed for ResourceClaim {ref.name}: {errors[ref.uid]}")
    return None


def why_refused(info: registration_pb2.PluginInfo, path: str, services: Collection[str]) -> str:
    """Return why a kubelet with these services rejects a plugin at a socket; empty if it accepts it."""
    if info.type != "DRAPlugin":
        return f"no handler registered for plugin type: {info.type} at socket {path}"
    wrong = f"invalid supported gRPC versions of DRA driver plugin {info.name}"
    if not info.supported_versions:
        return f"{wrong}: empty list"
    if not any(name in services for name in info.supported_versions):
        known_services = ", ".join(sorted(services))
        offered = ", ".join(info.supported_versions)
        return f"{wrong}: none of the services {offered} is supported by this kubelet, which knows {known_services}"
    return ""


def why_known(info: registration_pb2.PluginInfo, path: str, registrations: Iterable[RegisteredPlugin]) -> str:
    """Return why a registered plugin cannot register again; empty if it can."""
    endpoint = info.endpoint or path
    if any((present.driver, present.endpoint) == (info.name, endpoint) for present in registrations):
        return f"endpoint {endpoint} already registered for DRA driver plugin {info.name}"
    return ""
