"""The settings of a plan: flags of the UltraServer controller, which a command can read from its Deployment."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from neuron_dra.core import capacity_block, durations, node_conditions, user_text
from neuron_dra.core.node_conditions import FaultCondition
from neuron_dra.planner.fleet import spares as spare_groups
from neuron_dra.planner.fleet.limits import DEFAULT_LIMITS, Limits
from neuron_dra.planner.observed.model import LIMIT_ANNOTATION
from neuron_dra.setting_table import Setting


def _setting(default: str, text: str, metavar: str, read: Callable[[str], Any]) -> Setting:
    return Setting(default, text, read, default, metavar, "")


def _duration(default: str, text: str) -> Setting:
    return _setting(default, text, "DURATION", durations.parse)


def _up_to(most: int, *, at_least: int = 0) -> Callable[[str], int]:
    def number(raw: str) -> int:
        if not re.fullmatch(r"\d{1,7}", raw, re.ASCII) or not at_least <= int(raw) <= most:
            raise ValueError(f"write a whole number, {f'at least {at_least}, ' if at_least else ''}at most {most}")
        return int(raw)

    return number


def _limit(raw: str) -> int | None:
    """Return how many nodes a namespace may reserve; None means no limit."""
    if raw != "none" and not re.fullmatch(r"\d{1,6}", raw, re.ASCII):
        raise ValueError("write a whole number of nodes, or none")
    if raw == "none":
        return None
    return int(raw)


SETTINGS: Final[Mapping[str, Setting]] = {
    "tag_timeout": _duration("60s", "a reserved node that has not tagged its devices within this time is replaced"),
    "node_failure_grace": _duration("5m", "failureStrategy acts on a node that has not been Ready for this time"),
    "fault_grace": _duration("3m", "failureStrategy acts on a fault of a device or link that has lasted this time"),
    "node_conditions": _setting(
        node_conditions.DEFAULT_TEXT,
        "conditions of Nodes with which agents report faults, as Type=Status[:ReasonPrefix],…; empty for none",
        "LIST",
        node_conditions.parse,
    ),
    "block_annotation": _setting(
        capacity_block.ANNOTATION,
        "annotation of Nodes that says when their capacity block ends, as 2026-12-01T11:30:00Z; empty for none",
        "NAME",
        capacity_block.name,
    ),
    "block_lead": _duration("60m", "EC2 may take instances back this long before their block ends"),
    "block_notice": _duration("30m", "workloads get the notice this long before that"),
    "outage_nodes": _setting(
        "3",
        "an outage, in which no failureStrategy acts, is at least this many nodes of UltraServers that are not Ready, "
        "are reported as unhealthy, or have lost their tags",
        "N",
        _up_to(1_000_000),
    ),
    "outage_percent": _setting(
        "55", "an outage is more than this percentage of those nodes; 100 means never", "PERCENT", _up_to(100)
    ),
    "restart_limit": _setting(
        "3",
        "RestartAll restarts a workload this many times in a row, and not again until an hour without a fault has "
        "passed",
        "N",
        _up_to(1_000),
    ),
    "starvation_threshold": _duration(
        "10m", "a workload that has waited this long holds back others of its instance type"
    ),
    "max_reserved_nodes": _setting(
        "none", f"nodes that a namespace without the annotation {LIMIT_ANNOTATION} may reserve", "N", _limit
    ),
    "max_waiting_workloads": _setting(
        "1000",
        "workloads of one namespace without nodes that the controller looks for nodes for; further ones wait for their "
        "turn; each takes 8 KiB of memory",
        "N",
        _up_to(1_000_000, at_least=1),
    ),
    "spares": _setting(
        "",
        "groups of four nodes that only groups which must move may take, as TYPE=NUMBER,…; empty for none",
        "LIST",
        spare_groups.parse,
    ),
    "starvation_limit": _duration(
        "30m",
        "how long a workload that has waited for --starvation-threshold may hold back others of its instance type",
    ),
}
"""By the name of the field in the controller's settings."""

OTHER_FLAGS: Final = frozenset(
    {
        *("identity", "health-probe-bind-address", "metrics-bind-address", "kubeconfig", "kube-api-server"),
        *("log-format", "v", "leader-elect", "leader-election-namespace", "grpc-address", "allow-short-graces"),
        *("jobs-may-reserve", "qualifications", "queues"),
    }
)
"""The controller's flags that change no plan."""


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What a plan depends on besides the objects and the time.

    - `changed`: the flags whose values are not the defaults, as they are written.
    - `problems`: the arguments that could not be read, and why; each has its default.
    """

    limits: Limits = DEFAULT_LIMITS
    fault_conditions: tuple[FaultCondition, ...] = node_conditions.DEFAULT
    block_annotation: str = capacity_block.ANNOTATION
    changed: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def of_arguments(words: Sequence[str]) -> PlanSettings:
    """Return the settings of a controller with these arguments, which somebody else wrote."""
    values: dict[str, Any] = {}
    changed: dict[str, str] = {}
    problems = []
    for word, following in zip(words, (*words[1:], ""), strict=True):
        written_flag, equals_sign, text = word.partition("=")
        flag = f"--{written_flag.lstrip('-')}"  # Go's flags may have one dash
        name = flag.removeprefix("--").replace("-", "_")
        if not word.startswith("-") or flag.removeprefix("--") in OTHER_FLAGS:
            continue
        if name not in SETTINGS:
            problems.append(f"this release has no argument {user_text.shown(written_flag)}")
            continue
        if not equals_sign:
            text = "" if following.startswith("-") else following
        try:
            values[name] = SETTINGS[name].read(text)
        except ValueError as err:
            problems.append(f"{flag}={user_text.printable(text)}: {err}")
            continue
        changed.pop(name, None)  # the last of several counts
        if values[name] != SETTINGS[name].read(SETTINGS[name].default):
            changed[name] = f"{flag}={user_text.printable(text)}"
    return PlanSettings(
        Limits(**{field.name: values[field.name] for field in fields(Limits) if field.name in values}),
        values.get("node_conditions", node_conditions.DEFAULT),
        values.get("block_annotation", capacity_block.ANNOTATION),
        tuple(changed.values()),
        tuple(problems),
    )
