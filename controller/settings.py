"""Settings of `run`: the official operator's flags, and ours."""

# ruff: noqa: RUF009 - the calls return fields

from __future__ import annotations

import argparse
import dataclasses
import datetime
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from controller.timing import DEFAULT_TIMING
from neuron_dra import plan_settings, setting_table
from neuron_dra.core.node_conditions import FaultCondition
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.errors import SettingsError
from neuron_dra.planner.fleet import spares as spare_groups
from neuron_dra.planner.observed.model import GROUP, JOBS_LABEL
from neuron_dra.planner.plan.planning import Limits
from neuron_dra.setting_table import SOCKET_PATH_BYTES, Setting, is_host_and_port, one_of, truth

NOTICED: Final = datetime.timedelta(seconds=DEFAULT_TIMING.client.watch.bookmarks_s)
"""The time in which a silent watch is noticed. A fault that lasted longer is none that nobody saw end."""
_UNSET_IF_EMPTY: Final = ("leader_election_namespace", "identity", "kubeconfig")


def _seconds(duration: datetime.timedelta) -> str:
    return f"{duration.total_seconds():g}s"


def _setting(
    default: str, text: str, metavar: str, read: Callable[[str], Any], *, env: str = "", shown: bool = True
) -> Any:
    """Return a field; its help has the default, if that is `shown`."""
    setting = Setting(default, text, read, default if shown else "", metavar, env)
    return field(default=read(default), metadata={"setting": setting})


def _of_plan(name: str) -> Any:
    """Return the field of a setting that `simulate` reads, too."""
    setting = plan_settings.SETTINGS[name]
    return field(default=setting.read(setting.default), metadata={"setting": setting})


def _address(default: str, text: str) -> Any:
    return _setting(default, text, "ADDRESS", lambda raw: "" if raw == "0" else raw)


def _verbosity(raw: str) -> int:
    if not re.fullmatch(r"\d{1,3}", raw, re.ASCII):
        raise ValueError("write a whole number")
    return int(raw)


@dataclass(frozen=True, slots=True)
class WatcherSettings:
    """The settings of `neuron-ultraserver-controller watch-limits`, which `run` has, too."""

    identity: str = _setting("", "of this replica [POD_NAME] (default: the host's name)", "NAME", str, env="POD_NAME")
    health_probe_bind_address: str = _address(":8081", "host:port of /healthz and /readyz; 0 or empty switches it off")
    metrics_bind_address: str = _address(":8080", "host:port of /metrics; 0 or empty switches it off")
    kubeconfig: str = _setting(
        "", "[KUBECONFIG] a:b for several; empty means: inside a cluster", "FILE", str, env="KUBECONFIG"
    )
    kube_api_server: str = _setting("", "URL of an API server that needs no credentials", "URL", str)
    log_format: str = _setting("text", "form of log lines", "{text,json}", one_of("text", "json"), shown=False)
    v: int = _setting("2", "log verbosity as in klog", "N", _verbosity)

    @property
    def http_addresses(self) -> tuple[str, ...]:
        """The addresses of the HTTP servers: one if health and metrics have the same."""
        addresses = (self.health_probe_bind_address, self.metrics_bind_address)
        return tuple(address for address in dict.fromkeys(addresses) if address)


@dataclass(frozen=True, slots=True)
class ControllerSettings(WatcherSettings):
    """The settings of `neuron-ultraserver-controller run`."""

    leader_elect: bool = _setting(
        "false",
        "work only while holding the Lease neuron-ultraserver-controller; needed with two replicas",
        "BOOL",
        truth,
        shown=False,
    )
    leader_election_namespace: str = _setting(
        "",
        f"of the Lease [POD_NAMESPACE] (default {NAMESPACE})",
        "NAMESPACE",
        lambda raw: raw or NAMESPACE,
        env="POD_NAMESPACE",
    )
    grpc_address: str = _address(
        "127.0.0.1:8082",
        "host:port or unix:/path of the gRPC service UltraServers, which is unauthenticated and read-only; 0 or empty "
        "switches it off",
    )
    tag_timeout: datetime.timedelta = _of_plan("tag_timeout")
    node_failure_grace: datetime.timedelta = _of_plan("node_failure_grace")
    fault_grace: datetime.timedelta = _of_plan("fault_grace")
    allow_short_graces: bool = _setting(
        "false",
        f"accept a --fault-grace and a --node-failure-grace of less than {_seconds(NOTICED)}, for tests: while a watch "
        "is silent, workloads then leave nodes that are well again",
        "BOOL",
        truth,
        shown=False,
    )
    node_conditions: tuple[FaultCondition, ...] = _of_plan("node_conditions")
    block_annotation: str = _of_plan("block_annotation")
    block_lead: datetime.timedelta = _of_plan("block_lead")
    block_notice: datetime.timedelta = _of_plan("block_notice")
    outage_nodes: int = _of_plan("outage_nodes")
    outage_percent: int = _of_plan("outage_percent")
    restart_limit: int = _of_plan("restart_limit")
    starvation_threshold: datetime.timedelta = _of_plan("starvation_threshold")
    max_reserved_nodes: int | None = _of_plan("max_reserved_nodes")
    max_waiting_workloads: int = _of_plan("max_waiting_workloads")
    spares: spare_groups.Numbers = _of_plan("spares")
    jobs_may_reserve: bool = _setting(
        "false",
        f"jobs with the annotation {GROUP}/ultraservers reserve UltraServers, in namespaces with the label "
        f"{JOBS_LABEL}",
        "BOOL",
        truth,
        shown=False,
    )
    qualifications: bool = _setting(
        "false",
        "test free UltraServers as NeuronUltraServerQualifications say",
        "BOOL",
        truth,
        shown=False,
    )
    queues: bool = _setting(
        "false",
        "Kueue admits workloads with the label kueue.x-k8s.io/queue-name before nodes are reserved for them",
        "BOOL",
        truth,
        shown=False,
    )
    starvation_limit: datetime.timedelta = _of_plan("starvation_limit")

    @property
    def limits(self) -> Limits:
        """The limits of a plan."""
        return Limits(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Limits)})


SettingsT = TypeVar("SettingsT", bound=WatcherSettings)


def add_arguments(parser: argparse.ArgumentParser, kind: type[WatcherSettings] = ControllerSettings) -> None:
    """Add the flags of `run`, or of another command."""
    setting_table.add_arguments(parser, kind)


def load(parsed: argparse.Namespace, environ: Mapping[str, str], host: str) -> ControllerSettings:
    """Return the settings of `run`. Raises SettingsError, which names each invalid value."""
    return load_as(ControllerSettings, parsed, environ, host)


def load_as(kind: type[SettingsT], parsed: argparse.Namespace, environ: Mapping[str, str], host: str) -> SettingsT:
    """Return the settings of a command. Raises SettingsError, which names each invalid value."""
    flags = {}
    for name, text in vars(parsed).items():
        if text or name not in _UNSET_IF_EMPTY:
            flags[name] = text
    values, _, problems = setting_table.read(kind, flags, environ)
    settings = kind(**{"identity": host, **values})
    problems += _wrong_addresses(settings)
    if isinstance(settings, ControllerSettings) and not settings.allow_short_graces:
        problems += _short_graces(settings)
    if problems:
        raise SettingsError("; ".join(problems))
    return settings


def _short_graces(settings: ControllerSettings) -> list[str]:
    graces = {"--fault-grace": settings.fault_grace, "--node-failure-grace": settings.node_failure_grace}
    problems = []
    for flag, grace in graces.items():
        if grace < NOTICED:
            problems.append(
                f"{flag}={_seconds(grace)}: write at least {_seconds(NOTICED)}, in which the controller notices that a "
                "watch is silent: else workloads leave nodes that are well again"
            )
    return problems


def _wrong_addresses(settings: WatcherSettings) -> list[str]:
    problems = []
    for name in ("health_probe_bind_address", "metrics_bind_address", "grpc_address"):
        flag, text, grpc = f"--{name.replace('_', '-')}", getattr(settings, name, ""), name == "grpc_address"
        if grpc and text.startswith("unix:"):
            path = text.removeprefix("unix:")
            if not path.startswith("/") or len(path.encode()) > SOCKET_PATH_BYTES:
                problems.append(f"{flag} {text}: write unix: and an absolute path of at most {SOCKET_PATH_BYTES} bytes")
        elif text and not is_host_and_port(text):
            problems.append(f"{flag} {text}: write {'host:port, unix:/path' if grpc else 'host:port'}, or 0 for none")
    return problems
