"""Settings of `run`: the official operator's flags, and ours."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass

from controller.observe.model import LIMIT_ANNOTATION
from controller.plan.planning import Limits
from neuron_dra.core.durations import parse as parse_duration
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.errors import SettingsError

TRUTH = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """The settings of `neuron-ultraserver-controller run`."""

    leader_elect: bool
    leader_election_namespace: str
    identity: str
    health_probe_bind_address: str
    metrics_bind_address: str
    grpc_address: str
    kubeconfig: str
    kube_api_server: str
    limits: Limits
    log_format: str
    verbosity: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `run`."""
    parser.add_argument(
        "--leader-elect",
        nargs="?",
        const="true",
        default="false",
        metavar="BOOL",
        help="work only while holding the Lease neuron-ultraserver-controller; needed with two replicas",
    )
    parser.add_argument(
        "--leader-election-namespace", metavar="NAMESPACE", help=f"of the Lease [POD_NAMESPACE] (default {NAMESPACE})"
    )
    parser.add_argument("--identity", metavar="NAME", help="of this replica [POD_NAME] (default: the host's name)")
    parser.add_argument(
        "--health-probe-bind-address",
        default=":8081",
        metavar="ADDRESS",
        help="host:port of /healthz and /readyz; 0 or empty switches it off (default %(default)s)",
    )
    parser.add_argument(
        "--metrics-bind-address",
        default=":8080",
        metavar="ADDRESS",
        help="host:port of /metrics; 0 or empty switches it off (default %(default)s)",
    )
    parser.add_argument(
        "--grpc-address",
        default="127.0.0.1:8082",
        metavar="ADDRESS",
        help="host:port or unix:/path of the gRPC service UltraServers, which is unauthenticated and read-only; "
        "0 or empty switches it off (default %(default)s)",
    )
    _add_limits(parser)
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="[KUBECONFIG] a:b for several; empty means: inside a cluster"
    )
    parser.add_argument("--kube-api-server", metavar="URL", help="URL of an API server that needs no credentials")
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="form of log lines")
    parser.add_argument("--v", "-v", default="2", metavar="N", help="log verbosity as in klog (default %(default)s)")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tag-timeout",
        default="60s",
        metavar="DURATION",
        help="a reserved node that has not tagged its devices within this time is replaced (default %(default)s)",
    )
    parser.add_argument(
        "--node-failure-grace",
        default="5m",
        metavar="DURATION",
        help="failureStrategy acts on a node that has not been Ready for this time (default %(default)s)",
    )
    parser.add_argument(
        "--fault-grace",
        default="1m",
        metavar="DURATION",
        help="failureStrategy acts on a fault of a device or link that has lasted this time (default %(default)s)",
    )
    parser.add_argument(
        "--outage-nodes",
        default="3",
        metavar="N",
        help="an outage, in which no failureStrategy acts, is at least this many nodes of UltraServers that are not "
        "Ready or have lost their tags (default %(default)s)",
    )
    parser.add_argument(
        "--outage-percent",
        default="55",
        metavar="PERCENT",
        help="an outage is more than this percentage of those nodes; 100 means never (default %(default)s)",
    )
    parser.add_argument(
        "--restart-limit",
        default="3",
        metavar="N",
        help="RestartAll restarts a workload this many times in a row, and not again until an hour without a fault "
        "has passed (default %(default)s)",
    )
    parser.add_argument(
        "--starvation-threshold",
        default="10m",
        metavar="DURATION",
        help="a workload that has waited this long holds back others of its instance type (default %(default)s)",
    )
    parser.add_argument(
        "--max-reserved-nodes",
        default="none",
        metavar="N",
        help=f"nodes that a namespace without the annotation {LIMIT_ANNOTATION} may reserve (default %(default)s)",
    )
    parser.add_argument(
        "--starvation-limit",
        default="30m",
        metavar="DURATION",
        help="how long a workload that has waited for --starvation-threshold may hold back others of its instance type "
        "(default %(default)s)",
    )


def load(parsed: argparse.Namespace, environ: Mapping[str, str], host: str) -> ControllerSettings:
    """Return the settings. Raises SettingsError, which names each invalid value."""
    problems: list[str] = []
    elect = TRUTH.get(parsed.leader_elect.lower())
    if elect is None:
        problems.append(f"--leader-elect={parsed.leader_elect}: write true or false")
    durations = {}
    for name in ("tag_timeout", "starvation_threshold", "starvation_limit", "node_failure_grace", "fault_grace"):
        text = getattr(parsed, name)
        try:
            found = parse_duration(text)
        except ValueError as err:
            problems.append(f"--{name.replace('_', '-')}={text}: {err}")
        else:
            durations[name] = found
    numbers = {name: _number(parsed, name, most, problems) for name, most in _NUMBERS}
    most = _most(parsed.max_reserved_nodes, problems)
    addresses = {name: _address(parsed, name, problems) for name in _ADDRESSES}
    if not re.fullmatch(r"\d{1,3}", parsed.v, re.ASCII):
        problems.append(f"--v={parsed.v}: write a whole number")
    if problems:
        raise SettingsError("; ".join(problems))
    return ControllerSettings(
        leader_elect=bool(elect),
        leader_election_namespace=parsed.leader_election_namespace or environ.get("POD_NAMESPACE") or NAMESPACE,
        identity=parsed.identity or environ.get("POD_NAME") or host,
        **addresses,
        kubeconfig=parsed.kubeconfig or ("" if parsed.kube_api_server else environ.get("KUBECONFIG", "")),
        kube_api_server=parsed.kube_api_server or "",
        limits=Limits(
            **durations,
            outage_nodes=numbers["outage_nodes"],
            outage_percent=numbers["outage_percent"],
            restart_limit=numbers["restart_limit"],
            max_reserved_nodes=most,
        ),
        log_format=parsed.log_format,
        verbosity=int(parsed.v),
    )


_NUMBERS = (("outage_nodes", 1_000_000), ("outage_percent", 100), ("restart_limit", 1_000))


def _most(text: str, problems: list[str]) -> int | None:
    """Return how many nodes a namespace may reserve; None means no limit."""
    if text != "none" and not re.fullmatch(r"\d{1,6}", text, re.ASCII):
        problems.append(f"--max-reserved-nodes={text}: write a whole number of nodes, or none")
        return None
    return None if text == "none" else int(text)


_ADDRESSES = ("health_probe_bind_address", "metrics_bind_address", "grpc_address")
_SOCKET_PATH_BYTES = 107  # of Linux


def _number(parsed: argparse.Namespace, name: str, most: int, problems: list[str]) -> int:
    text = str(getattr(parsed, name))
    if not re.fullmatch(r"\d{1,7}", text, re.ASCII) or int(text) > most:
        problems.append(f"--{name.replace('_', '-')}={text}: write a whole number, at most {most}")
        return 0
    return int(text)


def _address(parsed: argparse.Namespace, name: str, problems: list[str]) -> str:
    text = str(getattr(parsed, name))
    if text in ("", "0"):
        return ""
    if name == "grpc_address" and text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith("/") or len(path.encode()) > _SOCKET_PATH_BYTES:
            problems.append(
                f"--grpc-address {text}: write unix: and an absolute path of at most {_SOCKET_PATH_BYTES} bytes"
            )
        return text
    _, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"\d{1,5}", port, re.ASCII) or int(port) > 65535:
        forms = "host:port, unix:/path" if name == "grpc_address" else "host:port"
        problems.append(f"--{name.replace('_', '-')} {text}: write {forms}, or 0 for none")
    return text
