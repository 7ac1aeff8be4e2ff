"""The plugin's settings: one table of fields, each with a flag, an environment variable, a default and a help text."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neuron_dra.arguments import OBJECT_NAME
from neuron_dra.errors import SettingsError

SOCKET_PATH_BYTES = 107
"""The longest path that a Unix socket can have on Linux."""


_MAY_BE_EMPTY = ("metrics_bind_address",)
_FILE_NAME = re.compile(r"[0-9A-Za-z][-.0-9A-Za-z]*")


def _setting(flag: str, env: str, default: Any, text: str, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"flag": flag, "env": env, "text": text, "choices": choices})


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """The settings of `neuron-dra plugin`; `sources` has the source of each value that is not a default, by field."""

    node_name: str = _setting("--node-name", "NODE_NAME", "", "name of this Node object; required")
    pod_uid: str = _setting("--pod-uid", "POD_UID", "", "UID of this pod; makes the names of its sockets unique")
    cdi_root: str = _setting("--cdi-root", "CDI_ROOT", "/var/run/cdi", "folder from which the runtime reads CDI specs")
    kubelet_registrar_directory_path: str = _setting(
        "--kubelet-registrar-directory-path",
        "KUBELET_REGISTRAR_DIRECTORY_PATH",
        "/var/lib/kubelet/plugins_registry",
        "folder in which the kubelet finds the sockets of plugins",
    )
    kubelet_plugins_directory_path: str = _setting(
        "--kubelet-plugins-directory-path",
        "KUBELET_PLUGINS_DIRECTORY_PATH",
        "/var/lib/kubelet/plugins",
        "folder of the plugins' data; this plugin uses neuron.aws.com in it",
    )
    kubelet_device_plugins_directory_path: str = _setting(
        "--kubelet-device-plugins-directory-path",
        "KUBELET_DEVICE_PLUGINS_DIRECTORY_PATH",
        "/var/lib/kubelet/device-plugins",
        "folder in which a Neuron device plugin has its sockets",
    )
    kubelet_pod_resources_socket: str = _setting(
        "--kubelet-pod-resources-socket",
        "KUBELET_POD_RESOURCES_SOCKET",
        "/var/lib/kubelet/pod-resources/kubelet.sock",
        "socket on which the kubelet (1.34 or later) lists the claims of its containers; without it, claims that an "
        "earlier driver left behind hold their devices until the node reboots",
    )
    healthcheck_address: str = _setting(
        "--healthcheck-address", "HEALTHCHECK_ADDRESS", "0.0.0.0", "address of the gRPC health service"
    )
    healthcheck_port: int = _setting(
        "--healthcheck-port", "HEALTHCHECK_PORT", 51515, "TCP port of the gRPC health service; 0 turns it off"
    )
    metrics_bind_address: str = _setting(
        "--metrics-bind-address",
        "METRICS_BIND_ADDRESS",
        "0.0.0.0:8080",
        "address and port of /metrics, /healthz and /readyz; empty turns them off",
    )
    emulation_mode: str = _setting(
        "--emulation-mode",
        "NEURON_DRA_DRIVER_EMULATION_MODE",
        "",
        "simulate the hardware of this instance type, or of the largest type of a family such as trn2u",
    )
    host_root: str = _setting("--host-root", "HOST_ROOT", "", "folder with the host's sys, dev and proc")
    boot_id_file: str = _setting(
        "--boot-id-file", "BOOT_ID_FILE", "/host/boot_id", "file with the host's boot id; if missing, /proc is read"
    )
    ultraserver_devices: str = _setting(
        "--ultraserver-devices",
        "ULTRASERVER_DEVICES",
        "node",
        "what UltraServer nodes publish: one device for the whole node, or each device",
        ("node", "devices"),
    )
    enable_ultraserver_operator: bool = _setting(
        "--enable-ultraserver-operator",
        "ENABLE_ULTRASERVER_OPERATOR",
        False,
        "expect the UltraServer controller: look for its CRD every 10 s and warn while it is missing. Without this "
        "setting the plugin looks less and less often, and at once when the Node gets the controller's labels. "
        "Reservations are honored either way",
    )
    device_plugin_coexistence: str = _setting(
        "--device-plugin-coexistence",
        "DEVICE_PLUGIN_COEXISTENCE",
        "refuse",
        "if a live Neuron device plugin is on the node: do not publish or prepare (refuse), or only warn",
        ("refuse", "warn"),
    )
    unhealthy_device_effect: str = _setting(
        "--unhealthy-device-effect",
        "UNHEALTHY_DEVICE_EFFECT",
        "NoSchedule",
        "effect of an unhealthy device's taint; NoExecute also evicts pods that have the device, None only reports it",
        ("NoSchedule", "NoExecute", "None"),
    )
    unhealthy_device_hold_seconds: int = _setting(
        "--unhealthy-device-hold-seconds",
        "UNHEALTHY_DEVICE_HOLD_SECONDS",
        60,
        "seconds for which an unhealthy device's readings must stay good before it is offered again",
    )
    device_wait_seconds: int = _setting(
        "--device-wait-seconds",
        "DEVICE_WAIT_SECONDS",
        30,
        "seconds for which a claim waits for a device that another claim still holds, as after a deletion without a "
        "grace period; a rejection costs the pod 90 s, and the kubelet gives up after 45 s",
    )
    kubeconfig: str = _setting(
        "--kubeconfig",
        "KUBECONFIG",
        "",
        "kubeconfig file, or several as in a:b; empty inside a cluster; credentials are renewed before they expire",
    )
    kube_api_server: str = _setting(
        "--kube-api-server", "KUBE_API_SERVER", "", "URL of an API server that requires no credentials"
    )
    log_format: str = _setting("--log-format", "LOG_FORMAT", "text", "format of log lines", ("text", "json"))
    v: int = _setting("--v", "VERBOSITY", 2, "log verbosity as in klog; 4 and above is for debugging")
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
        name = f"neuron.aws.com-{self.pod_uid}-reg.sock" if self.pod_uid else "neuron.aws.com-reg.sock"
        return Path(self.kubelet_registrar_directory_path) / name

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, value and source of every setting, for the log."""
        return [(f.name, str(getattr(self, f.name)), self.sources.get(f.name, "default")) for f in _fields()]


def _fields() -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(PluginSettings) if f.metadata]


@dataclass(frozen=True, slots=True)
class Described:
    """A setting for docs/settings.md."""

    flag: str
    env: str
    default: str
    text: str


def reference() -> list[Described]:
    """Return every setting, for docs/settings.md."""
    return [
        Described(
            f.metadata["flag"],
            f.metadata["env"],
            str(f.default).lower() if f.type == "bool" else str(f.default),
            f.metadata["text"] + (f" ({' or '.join(f.metadata['choices'])})" if f.metadata["choices"] else ""),
        )
        for f in _fields()
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add every setting's flag to `parser`."""
    for f in _fields():
        meta = f.metadata
        shown = f" (default {f.default!r})" if f.default not in ("", False) else ""
        names = [meta["flag"], "-v"] if f.name == "v" else [meta["flag"]]
        parser.add_argument(
            *names,
            dest=f.name,
            default=None,
            nargs="?" if f.type == "bool" else None,
            const="true" if f.type == "bool" else None,
            metavar="|".join(meta["choices"]) or f.name.upper(),
            help=f"{meta['text']} [{meta['env']}]{shown}",
        )


def go_style(arguments: Sequence[str]) -> list[str]:
    """Return `arguments` with Go's spellings converted: `-kubeconfig=x` to `--kubeconfig=x`, `-v=2` to `--v=2`."""
    result = []
    for argument in arguments:
        if re.match(r"-[a-zA-Z]", argument):
            name = argument[1:].split("=", 1)[0]
            if len(name) > 1 or (name == "v" and "=" in argument):
                argument = "-" + argument
        result.append(argument)
    return result


def load(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> PluginSettings:
    """Return the settings: a flag has precedence over the environment, and the environment over the default.

    An empty variable counts as not set, because manifests write empty values for unused settings; an empty
    METRICS_BIND_ADDRESS means off.

    Raises SettingsError, which names each value that is malformed, missing or in contradiction with another.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    problems = []
    for f in _fields():
        flag, env = f.metadata["flag"], f.metadata["env"]
        if flags.get(f.name) is not None:
            raw, sources[f.name], origin = flags[f.name], "flag", flag
        elif env in environ and (environ[env] or f.name in _MAY_BE_EMPTY):
            raw, sources[f.name], origin = environ[env], "environment", env
        else:
            continue
        try:
            values[f.name] = _parse(f, raw or "")
        except ValueError as err:
            problems.append(f"{origin}={raw}: {err}")
    settings = PluginSettings(**values, sources=sources)
    problems += _contradictions(settings)
    if problems:
        raise SettingsError("; ".join(problems))
    return settings


def _parse(f: dataclasses.Field[Any], raw: str) -> Any:
    if f.type == "bool":
        truth = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False, "": False}
        if raw.lower() not in truth:
            raise ValueError("write true or false")
        return truth[raw.lower()]
    if f.type == "int":
        if not re.fullmatch(r"-?\d{1,9}", raw, re.ASCII):
            raise ValueError("write a whole number")
        return int(raw)
    choices = f.metadata["choices"]
    if choices and raw not in choices:
        near = difflib.get_close_matches(raw, choices, n=1)
        raise ValueError(f"write {' or '.join(choices)}" + (f"; did you mean {near[0]}?" if near else ""))
    if not raw and f.default and f.name not in _MAY_BE_EMPTY:
        raise ValueError("the value is empty; write one, or leave the flag out")
    # The OpenShift manifests have a slash at the end of the kubelet's folders.
    return (raw.rstrip("/") or "/") if raw and f.name.endswith(("_path", "_root")) else raw


def _contradictions(settings: PluginSettings) -> list[str]:
    problems = []
    if not settings.node_name:
        problems.append("--node-name (NODE_NAME) is required: set it from spec.nodeName")
    elif not OBJECT_NAME.fullmatch(settings.node_name):
        problems.append(f"--node-name {settings.node_name}: invalid name of a Node; set it from spec.nodeName")
    if settings.pod_uid and not _FILE_NAME.fullmatch(settings.pod_uid):
        problems.append(f"--pod-uid {settings.pod_uid}: invalid UID of a Pod; set it from metadata.uid")
    if (
        settings.kubeconfig
        and settings.kube_api_server
        and "flag"
        in (
            settings.sources.get("kubeconfig"),
            settings.sources.get("kube_api_server"),
        )
        and settings.sources.get("kubeconfig") == settings.sources.get("kube_api_server")
    ):
        problems.append("--kubeconfig and --kube-api-server name two API servers; set one of them")
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
    if settings.metrics_bind_address:
        _, colon, port = settings.metrics_bind_address.rpartition(":")
        if not colon or not re.fullmatch(r"\d{1,5}", port, re.ASCII) or int(port) > 65535:
            problems.append(f"--metrics-bind-address {settings.metrics_bind_address}: write address:port")
    for path in (settings.dra_socket, settings.registration_socket):
        length = len(str(path).encode())
        if length > SOCKET_PATH_BYTES:
            problems.append(
                f"the socket path {path} has {length} bytes, but Linux allows {SOCKET_PATH_BYTES}; use a shorter folder"
            )
    return problems
