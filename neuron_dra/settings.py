"""The plugin's settings: one table of fields, each with a flag, an environment variable, a default and a help text."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neuron_dra import setting_table
from neuron_dra.arguments import OBJECT_NAME
from neuron_dra.core import releases
from neuron_dra.errors import SettingsError
from neuron_dra.setting_table import SOCKET_PATH_BYTES, Setting, is_host_and_port, one_of, settings_of, truth_or_empty

_SIZE = re.compile(r"(connected|cores)-[1-9]\d{0,3}", re.ASCII)
_FILE_NAME = re.compile(r"[0-9A-Za-z][-.0-9A-Za-z]*")


def _setting(
    default: Any, text: str, choices: tuple[str, ...] = (), *, env: str | None = None, may_be_empty: bool = False
) -> Any:
    made = Setting(
        str(default).lower() if isinstance(default, bool) else str(default),
        text,
        _reader(default, choices, may_be_empty),
        shown="" if default in ("", False) else repr(default),
        metavar="|".join(choices),
        env=env,
        may_be_empty=may_be_empty,
    )
    return field(default=default, metadata={"setting": made})


def _reader(default: Any, choices: tuple[str, ...], may_be_empty: bool) -> Callable[[str], Any]:
    if isinstance(default, bool):
        return truth_or_empty
    if isinstance(default, int):
        return _number
    if choices:
        return one_of(*choices)

    def text(raw: str) -> str:
        if not raw and default and not may_be_empty:
            raise ValueError("the value is empty; write one, or leave the flag out")
        return raw

    return text


def _number(raw: str) -> int:
    if not re.fullmatch(r"-?\d{1,9}", raw, re.ASCII):
        raise ValueError("write a whole number")
    return int(raw)


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """The settings of `neuron-dra plugin`; `sources` has the source of each value that is not a default, by field."""

    node_name: str = _setting("", "name of this Node object; required")
    pod_uid: str = _setting("", "UID of this pod; makes the names of its sockets unique")
    cdi_root: str = _setting("/var/run/cdi", "folder from which the runtime reads CDI specs")
    kubelet_registrar_directory_path: str = _setting(
        "/var/lib/kubelet/plugins_registry", "folder in which the kubelet finds the sockets of plugins"
    )
    kubelet_plugins_directory_path: str = _setting(
        "/var/lib/kubelet/plugins", "folder of the plugins' data; this plugin uses neuron.aws.com in it"
    )
    kubelet_device_plugins_directory_path: str = _setting(
        "/var/lib/kubelet/device-plugins", "folder in which a Neuron device plugin has its sockets"
    )
    kubelet_pod_resources_socket: str = _setting(
        "/var/lib/kubelet/pod-resources/kubelet.sock",
        "socket on which the kubelet (1.34 or later) lists the claims of its containers; without it, claims that an "
        "earlier driver left behind hold their devices until the node reboots",
    )
    healthcheck_address: str = _setting("0.0.0.0", "address of the gRPC health service")
    healthcheck_port: int = _setting(51515, "TCP port of the gRPC health service; 0 turns it off")
    metrics_bind_address: str = _setting(
        "0.0.0.0:8080", "address and port of /metrics, /healthz and /readyz; empty turns them off", may_be_empty=True
    )
    device_counters: str = _setting(
        "cores",
        "counters of the kernel driver in the metrics: of devices and cores, of devices only, or none",
        ("cores", "devices", "none"),
    )
    emulation_mode: str = _setting(
        "",
        "simulate the hardware of this instance type, or of the largest type of a family such as trn2u",
        env="NEURON_DRA_DRIVER_EMULATION_MODE",
    )
    host_root: str = _setting("", "folder with the host's sys, dev and proc")
    host_dev: str = _setting(
        "/host/dev",
        "folder where the host's /dev is mounted, to find devices without a file; if missing, that is unknown",
    )
    boot_id_file: str = _setting("/host/boot_id", "file with the host's boot id; if missing, /proc is read")
    ultraserver_devices: str = _setting(
        "node",
        "what UltraServer nodes publish: one device for the whole node, each device, or both, which needs "
        "--connected-sets; where connected sets cannot be published, both is the same as node",
        ("node", "devices", "both"),
    )
    connected_sets: bool = _setting(
        False,
        "publish connected sets of devices and core partitions too, each as one device that shares counters with the "
        "others (docs/connected-sets.md); needs Kubernetes 1.36.3",
    )
    connected_sets_oldest_release: str = _setting(
        releases.text(releases.OLDEST_FOR_SETS),
        "the first release of the API server with which connected sets are published; an earlier one if your vendor "
        "has ported back the fixes that docs/known-faults.md lists, or any for no check",
    )
    connected_sizes: str = _setting(
        "",
        "the sizes to publish, such as connected-4,cores-9, the most important ones first; empty means all that fit "
        "below the most devices that a node publishes, 256, or 511 on Inf1",
    )
    ultraserver_parts: str = _setting(
        "auto",
        "with --connected-sets, whether UltraServer nodes that publish one device for the whole node publish sets and "
        "cores beside it: auto means not while the UltraServer controller is installed, because one pod with a part of "
        "a node keeps the whole UltraServer from being reserved",
        ("auto", "on", "off"),
    )
    present_label: bool = _setting(
        False,
        "set the label neuron.amazonaws.com/present=true on the Node once it publishes devices, as AWS's device plugin "
        "does; needs the right to patch Nodes. The label is not removed",
    )
    enable_ultraserver_operator: bool = _setting(
        False,
        "expect the UltraServer controller: look for its CRD every 10 s and warn while it is missing. Without this "
        "setting the plugin looks less and less often, and at once when the Node gets the controller's labels. "
        "Reservations are honored either way",
    )
    device_plugin_coexistence: str = _setting(
        "refuse",
        "if a live Neuron device plugin is on the node: do not publish or prepare (refuse), or only warn",
        ("refuse", "warn"),
    )
    unhealthy_device_effect: str = _setting(
        "NoSchedule",
        "effect of an unhealthy device's taint; NoExecute also evicts pods whose claims have it, None only reports it",
        ("NoSchedule", "NoExecute", "None"),
    )
    unhealthy_device_hold_seconds: int = _setting(
        60, "seconds for which an unhealthy device's readings must stay good before it is offered again"
    )
    device_wait_seconds: int = _setting(
        30,
        "seconds for which a claim waits for a device that another claim still holds, as after a deletion without a "
        "grace period; a rejection costs the pod 60 to 90 s, and the kubelet gives up after 45 s",
    )
    device_metadata: bool = _setting(
        False,
        "mount a file with the attributes of its devices, and its place in the job, into each container "
        "(docs/device-metadata.md)",
    )
    efa_interfaces: bool = _setting(
        False,
        "serve EFA interfaces too, under the driver name dra.net, where no other program manages them (docs/efa.md)",
    )
    kubeconfig: str = _setting(
        "", "kubeconfig file, or several as in a:b; empty inside a cluster; credentials are renewed before they expire"
    )
    kube_api_server: str = _setting("", "URL of an API server that requires no credentials")
    log_format: str = _setting("text", "format of log lines", ("text", "json"))
    v: int = _setting(2, "log verbosity as in klog; 4 and above is for debugging", env="VERBOSITY")
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def data_folder(self) -> Path:
        """This plugin's folder in that of the kubelet's plugins, with its sockets, checkpoint and locks."""
        return Path(self.kubelet_plugins_directory_path) / "neuron.aws.com"

    @property
    def dra_socket(self) -> Path:
        """The socket of the DRA services, with the pod's UID in its name if it is known."""
        return self.data_folder / (f"dra-{self.pod_uid}.sock" if self.pod_uid else "dra.sock")

    @property
    def registration_socket(self) -> Path:
        """The registration socket, in the kubelet's registry folder."""
        name = "neuron.aws.com-reg.sock"
        if self.pod_uid:
            name = f"neuron.aws.com-{self.pod_uid}-reg.sock"
        return Path(self.kubelet_registrar_directory_path) / name

    @property
    def efa_folder(self) -> Path:
        """The EFA driver's folder, with its sockets, checkpoint and locks."""
        return self.data_folder / "efa"

    @property
    def efa_dra_socket(self) -> Path:
        """The EFA driver's socket of the DRA services."""
        return self.efa_folder / self.dra_socket.name

    @property
    def efa_registration_socket(self) -> Path:
        """The EFA driver's registration socket. A name that begins with dra.net would be that of DRANET."""
        name = "neuron.aws.com-efa-reg.sock"
        if self.pod_uid:
            name = f"neuron.aws.com-efa-{self.pod_uid}-reg.sock"
        return Path(self.kubelet_registrar_directory_path) / name

    @property
    def connected_sizes_wanted(self) -> tuple[str, ...]:
        """The sizes of connected sets and core partitions to publish; empty means all."""
        found = []
        for size in self.connected_sizes.replace(" ", "").split(","):
            if size:
                found.append(size)
        return tuple(found)

    @property
    def oldest_release(self) -> releases.Release | None:
        """The first release of the API server that is good enough for connected sets; None if all are."""
        wanted = self.connected_sets_oldest_release
        if wanted == releases.ANY:
            return None
        return releases.parse(wanted)

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, value and source of every setting, for the log."""
        names = [setting.name for setting in settings_of(PluginSettings)]
        found = []
        for name in names:
            found.append((name, str(getattr(self, name)), self.sources.get(name, "default")))
        return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add every setting's flag to `parser`."""
    setting_table.add_arguments(parser, PluginSettings)


def load(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> PluginSettings:
    """Return the settings. An empty METRICS_BIND_ADDRESS means off.

    Raises SettingsError, which names each value that is malformed, missing or in contradiction with another.
    """
    values, sources, problems = setting_table.read(PluginSettings, flags, environ)
    for name, value in values.items():
        if name.endswith(
            ("_path", "_root")
        ):  # the OpenShift manifests have a slash at the end of the kubelet's folders
            values[name] = value.rstrip("/") or value[:1]
    settings = PluginSettings(**values, sources=sources)
    problems += _contradictions(settings)
    if problems:
        raise SettingsError("; ".join(problems))
    return settings


def _contradictions(settings: PluginSettings) -> list[str]:
    problems = []
    if not settings.node_name:
        problems.append("--node-name (NODE_NAME) is required: set it from spec.nodeName")
    elif not OBJECT_NAME.fullmatch(settings.node_name):
        problems.append(f"--node-name {settings.node_name}: invalid name of a Node; set it from spec.nodeName")
    if settings.pod_uid and not _FILE_NAME.fullmatch(settings.pod_uid):
        problems.append(f"--pod-uid {settings.pod_uid}: invalid UID of a Pod; set it from metadata.uid")
    origins = settings.sources.get("kubeconfig"), settings.sources.get("kube_api_server")
    if settings.kubeconfig and settings.kube_api_server and origins == ("flag", "flag"):
        problems.append("--kubeconfig and --kube-api-server name two API servers; set one of them")
    if settings.ultraserver_devices == "both" and not settings.connected_sets:
        problems.append("--ultraserver-devices both needs --connected-sets, whose counters keep the two apart")
    if settings.oldest_release is None and settings.connected_sets_oldest_release != releases.ANY:
        problems.append(
            f"--connected-sets-oldest-release {settings.connected_sets_oldest_release}: write a release, such as "
            f"{releases.text(releases.OLDEST_FOR_SETS)}, or {releases.ANY}"
        )
    for size in settings.connected_sizes_wanted:
        if not _SIZE.fullmatch(size):
            problems.append(f"--connected-sizes {size}: write connected-N or cores-N, such as connected-4")
    if settings.emulation_mode and settings.host_root:
        problems.append("--emulation-mode simulates hardware, --host-root reads the host's; set one of them")
    if not 0 <= settings.healthcheck_port <= 65535:
        problems.append(f"--healthcheck-port {settings.healthcheck_port} is not a port; write 0 to 65535")
    if not 0 <= settings.unhealthy_device_hold_seconds <= 86400:
        problems.append(
            f"--unhealthy-device-hold-seconds {settings.unhealthy_device_hold_seconds}: write 0 to 86400, a day"
        )
    if not 0 <= settings.device_wait_seconds <= 40:
        problems.append(
            f"--device-wait-seconds {settings.device_wait_seconds}: write 0 to 40; the kubelet gives up after 45 s"
        )
    if settings.metrics_bind_address and not is_host_and_port(settings.metrics_bind_address):
        problems.append(f"--metrics-bind-address {settings.metrics_bind_address}: write address:port")
    paths = [settings.dra_socket, settings.registration_socket]
    if settings.efa_interfaces:
        paths += [settings.efa_dra_socket, settings.efa_registration_socket]
    for path in paths:
        length = len(str(path).encode())
        if length > SOCKET_PATH_BYTES:
            problems.append(
                f"the socket path {path} has {length} bytes, but Linux allows {SOCKET_PATH_BYTES}; use a shorter folder"
            )
    return problems
