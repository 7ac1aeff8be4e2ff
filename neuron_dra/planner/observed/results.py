"""What tests found of an UltraServer's nodes: `status.qualifications` of a NeuronUltraServer. Pure.

`controller.qualify` writes it; a plan only reads it. An entry counts for the very Nodes that were tested.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from neuron_dra.core.qualification import is_figure
from neuron_dra.core.wire import Wire

RESULTS_AT_MOST: Final = 64
"""The limit of entries in one NeuronUltraServer, from its CRD."""

Source = tuple[str, str]
"""Name and UID of the qualification that a result is of. The UID is empty in results of earlier releases."""


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What the last test of a qualification found on some nodes.

    - `generation`: that of the qualification; `qualification_uid`: another one of its name has another UID.
    - `passed`, `message`, `figures`: of the last test; `failures`: the tests in a row that have failed.
    - `tested_at`, `passed_at`: when a test last had a verdict, and when one last passed; None for never.
    - `unqualified`: it failed twice, so the nodes are not chosen.
    - `test`: the UID of the last test's workload.
    """

    qualification: str
    generation: int
    nodes: tuple[str, ...]
    node_uids: tuple[str, ...]
    passed: bool
    failures: int
    tested_at: datetime.datetime
    passed_at: datetime.datetime | None = None
    unqualified: bool = False
    message: str = ""
    test: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    qualification_uid: str = ""

    @property
    def source(self) -> Source:
        """The qualification that the result is of."""
        return self.qualification, self.qualification_uid

    def is_by(self, qualification: str, uid: str) -> bool:
        """Return True if a test of this very qualification found the result, not one of its name that is gone."""
        return self.source in ((qualification, uid), (qualification, ""))

    def is_of(self, uids: Mapping[str, str]) -> bool:
        """Return True if the tested nodes are those of today, given the UIDs of Nodes by name."""
        return all(uids.get(node_name) == uid for node_name, uid in zip(self.nodes, self.node_uids, strict=True))


def read(status: Wire) -> tuple[GroupResult, ...]:
    """Return the readable entries of a NeuronUltraServer's status; others do not count."""
    entries = status.get("qualifications")
    if not isinstance(entries, list):
        return ()
    results_or_none = (_entry(entry) for entry in entries[:RESULTS_AT_MOST])
    return tuple(result for result in results_or_none if result is not None)


def _entry(entry: Any) -> GroupResult | None:
    if not isinstance(entry, Mapping):
        return None
    nodes: Any = entry.get("nodes")
    uids: Any = entry.get("nodeUids")
    if not (_are_texts(nodes) and _are_texts(uids) and len(nodes) == len(uids)):
        return None
    tested_at = _time(entry.get("testedAt"))
    qualification, verdict = entry.get("qualification"), entry.get("verdict")
    if tested_at is None or not isinstance(qualification, str) or verdict not in ("Passed", "Failed"):
        return None
    figures = entry.get("figures")
    return GroupResult(
        qualification=qualification,
        generation=_number(entry.get("generation")),
        nodes=tuple(nodes),
        node_uids=tuple(uids),
        passed=verdict == "Passed",
        failures=_number(entry.get("failures")),
        tested_at=tested_at,
        passed_at=_time(entry.get("passedAt")),
        unqualified=entry.get("unqualified") is True,
        message=str(entry.get("message") or ""),
        test=str(entry.get("test") or ""),
        figures=_figures(figures) if isinstance(figures, Mapping) else {},
        qualification_uid=str(entry.get("qualificationUid") or ""),
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(text, str) and text for text in value)


def _number(value: Any) -> int:
    """Return a counter; 0 for what is none."""
    return value if type(value) is int and 0 <= value < 2**53 else 0


def _figures(figures: Mapping[Any, Any]) -> dict[str, float]:
    readable: dict[str, float] = {}
    for figure_name, figure in figures.items():
        if isinstance(figure_name, str) and type(figure) in (int, float) and is_figure(figure):
            readable[figure_name] = float(figure)
    return readable


def _time(text: Any) -> datetime.datetime | None:
    """Return an API time of this era; None for what is none."""
    try:
        moment = datetime.datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    return moment.astimezone(datetime.UTC) if moment.tzinfo is not None and 2000 <= moment.year < 2200 else None


def written(results: Iterable[GroupResult]) -> list[dict[str, Any]]:
    """Return the entries of `status.qualifications`."""
    return [_written(result) for result in results]


def _written(result: GroupResult) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "qualification": result.qualification,
        "generation": result.generation,
        "nodes": [*result.nodes],
        "nodeUids": [*result.node_uids],
        "verdict": "Passed" if result.passed else "Failed",
        "failures": result.failures,
        "testedAt": _text(result.tested_at),
        "unqualified": result.unqualified,
        "message": result.message,
        "test": result.test,
        "figures": dict(result.figures),
    }
    if result.qualification_uid:
        entry["qualificationUid"] = result.qualification_uid
    if result.passed_at is not None:
        entry["passedAt"] = _text(result.passed_at)
    return entry


def _text(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def passed_at(results: Sequence[GroupResult], nodes: Collection[str]) -> datetime.datetime | None:
    """Return when a test that covered all these nodes last passed; None without one.

    None also if the last test of any qualification on one of them failed.
    """
    latest = None
    for result in results:
        if not result.passed and not {*nodes}.isdisjoint(result.nodes):
            return None
        if result.passed_at is not None and {*nodes} <= {*result.nodes}:
            latest = result.passed_at if latest is None else max(latest, result.passed_at)
    return latest


def unqualified(results: Sequence[GroupResult]) -> frozenset[str]:
    """Return the names of the nodes that are not chosen because tests failed twice."""
    return frozenset(node_name for result in results if result.unqualified for node_name in result.nodes)
