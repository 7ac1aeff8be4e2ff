"""Settings of the plugin: one table of fields, each a flag, an environment variable, a default and a unit."""

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
    """What `neuron-dra plugin` can be told. `sources` says of each field where its value came from."""

    node_name: str = _setting("--node-name", "NODE_NAME", "", "name of this Node object; required")
    pod_uid: str = _setting("--pod-uid", "POD_UID", "", "UID of this pod; makes the sockets' names its own")
    cdi_root: str = _setting("--cdi-root", "CDI_ROOT", "/var/run/cdi", "folder of CDI specs that the runtime reads")
    kubelet_registrar_directory_path: str = _setting(
        "--kubelet-registrar-directory-path",
        "KUBELET_REGISTRAR_DIRECTORY_PATH",
        "/var/lib/kubelet/plugins_registry",
        "folder in which the kubelet looks for plugins' sockets",
    )
    kubelet_plugins_directory_path: str = _setting(
        "--kubelet-plugins-directory-path",
        "KUBELET_PLUGINS_DIRECTORY_PATH",
        "/var/lib/kubelet/plugins",
        "folder of plugins' data; ours is neuron.aws.com in it",
    )
    kubelet_device_plugins_directory_path: str = _setting(
        "--kubelet-device-plugins-directory-path",
        "KUBELET_DEVICE_PLUGINS_DIRECTORY_PATH",
        "/var/lib/kubelet/device-plugins",
        "folder in which a Neuron device plugin would have its sockets",
    )
    kubelet_pod_resources_socket: str = _setting(
        "--kubelet-pod-resources-socket",
        "KUBELET_POD_RESOURCES_SOCKET",
        "/var/lib/kubelet/pod-resources/kubelet.sock",
        "where the kubelet (1.34 or later) says which claims its containers have; without it, claims that a driver "
        "before us left behind hold their devices until the node is rebooted",
    )
    healthcheck_address: str = _setting(
        "--healthcheck-address", "HEALTHCHECK_ADDRESS", "0.0.0.0", "address of the gRPC health service"
    )
    healthcheck_port: int = _setting(
        "--healthcheck-port", "HEALTHCHECK_PORT", 51515, "TCP port of the gRPC health service; 0 switches it off"
    )
    metrics_bind_address: str = _setting(
        "--metrics-bind-address",
        "METRICS_BIND_ADDRESS",
        "0.0.0.0:8080",
        "address and port of /metrics, /healthz and /readyz; empty switches them off",
    )
    emulation_mode: str = _setting(
        "--emulation-mode",
        "NEURON_DRA_DRIVER_EMULATION_MODE",
        "",
        "pretend to be this instance type, or the largest of this family such as trn2u, without hardware",
    )
    host_root: str = _setting("--host-root", "HOST_ROOT", "", "folder that holds the host's sys, dev and proc")
    boot_id_file: str = _setting(
        "--boot-id-file", "BOOT_ID_FILE", "/host/boot_id", "file with the host's boot id; /proc's is the second choice"
    )
    ultraserver_devices: str = _setting(
        "--ultraserver-devices",
        "ULTRASERVER_DEVICES",
        "node",
        "what UltraServer nodes publish: one whole-node device, or each device",
        ("node", "devices"),
    )
    enable_ultraserver_operator: bool = _setting(
        "--enable-ultraserver-operator",
        "ENABLE_ULTRASERVER_OPERATOR",
        False,
        "an UltraServer operator is expected: look for its CRD every 10 s and warn while it is missing; reservations "
        "are obeyed either way; without this setting the CRD is looked for ever more seldom, and at once when the Node "
        "gets an operator's labels",
    )
    device_plugin_coexistence: str = _setting(
        "--device-plugin-coexistence",
        "DEVICE_PLUGIN_COEXISTENCE",
        "refuse",
        "with a live Neuron device plugin on the node: refuse to publish and to prepare, or only warn",
        ("refuse", "warn"),
    )
    unhealthy_device_effect: str = _setting(
        "--unhealthy-device-effect",
        "UNHEALTHY_DEVICE_EFFECT",
        "NoSchedule",
        "what the taint of a sick device does; NoExecute also evicts pods that have it, None only reports it",
        ("NoSchedule", "NoExecute", "None"),
    )
    unhealthy_device_hold_seconds: int = _setting(
        "--unhealthy-device-hold-seconds",
        "UNHEALTHY_DEVICE_HOLD_SECONDS",
        60,
        "seconds that a sick device must read well on end before it is handed out again",
    )
    device_wait_seconds: int = _setting(
        "--device-wait-seconds",
        "DEVICE_WAIT_SECONDS",
        30,
        "seconds that a claim waits for a device that another claim still holds, as after a deletion without grace; "
        "a refusal costs its pod 90 s, and the kubelet gives up after 45 s",
    )
    kubeconfig: str = _setting(
        "--kubeconfig",
        "KUBECONFIG",
        "",
        "kubeconfig file, or several as in a:b; empty means: inside a cluster; credentials are renewed before they end",
    )
    kube_api_server: str = _setting(
        "--kube-api-server", "KUBE_API_SERVER", "", "URL of an API server that wants no credentials"
    )
    log_format: str = _setting("--log-format", "LOG_FORMAT", "text", "form of log lines", ("text", "json"))
    v: int = _setting("--v", "VERBOSITY", 2, "log verbosity as in klog; 4 and above is for debugging")
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def data_folder(self) -> Path:
        """Our folder below the kubelet's plugins: sockets, checkpoint and locks."""
        return Path(self.kubelet_plugins_directory_path) / "neuron.aws.com"

    @property
    def dra_socket(self) -> Path:
        """The socket of the DRA services; of this pod alone when its UID is known."""
        return self.data_folder / (f"dra-{self.pod_uid}.sock" if self.pod_uid else "dra.sock")

    @property
    def registration_socket(self) -> Path:
        """The socket that the kubelet finds in its registry."""
        name = f"neuron.aws.com-{self.pod_uid}-reg.sock" if self.pod_uid else "neuron.aws.com-reg.sock"
        return Path(self.kubelet_registrar_directory_path) / name

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, value and source of every setting, for people."""
        return [(f.name, str(getattr(self, f.name)), self.sources.get(f.name, "default")) for f in _fields()]


def _fields() -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(PluginSettings) if f.metadata]


@dataclass(frozen=True, slots=True)
class Described:
    """A setting for the documentation."""

    flag: str
    env: str
    default: str
    text: str


def reference() -> list[Described]:
    """Return every setting, for the documentation."""
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
    """Return `arguments` with Go's spellings made ours: `-kubeconfig=x` is `--kubeconfig=x`, `-v=2` is `--v=2`."""
    result = []
    for argument in arguments:
        if re.match(r"-[a-zA-Z]", argument):
            name = argument[1:].split("=", 1)[0]
            if len(name) > 1 or (name == "v" and "=" in argument):
                argument = "-" + argument
        result.append(argument)
    return result


def load(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> PluginSettings:
    """Return the settings: a flag beats the environment, which beats the default.

    An empty variable is one that is not set, but for METRICS_BIND_ADDRESS, where empty means off: manifests write
    empty values for what they leave alone.

    Raises SettingsError naming each value that is malformed, missing or in contradiction with another.
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
        raise ValueError("write something")
    # The OpenShift manifests write the kubelet's folders with a slash at the end.
    return (raw.rstrip("/") or "/") if raw and f.name.endswith(("_path", "_root")) else raw


def _contradictions(settings: PluginSettings) -> list[str]:
    problems = []
    if not settings.node_name:
        problems.append("--node-name (NODE_NAME) is required: set it from spec.nodeName")
    elif not OBJECT_NAME.fullmatch(settings.node_name):
        problems.append(f"--node-name {settings.node_name}: a Node has no such name; set it from spec.nodeName")
    if settings.pod_uid and not _FILE_NAME.fullmatch(settings.pod_uid):
        problems.append(f"--pod-uid {settings.pod_uid}: a Pod has no such UID; set it from metadata.uid")
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
        problems.append("--kubeconfig and --kube-api-server name two API servers; set one")
    if settings.emulation_mode and settings.host_root:
        problems.append("--emulation-mode makes hardware up, --host-root says where to read it; set one")
    if not 0 <= settings.healthcheck_port <= 65535:
        problems.append(f"--healthcheck-port {settings.healthcheck_port} is not a port")
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
                f"the socket path {path} has {length} bytes, and Linux allows {SOCKET_PATH_BYTES}; shorten the folder"
            )
    return problems
