"""What the pods of a test say about its nodes. Pure: pods and thresholds in, a verdict or none out.

A verdict is only about nodes. An image that cannot be pulled, a pod that was evicted, or a node that died meanwhile is
none: the test counts as if it had not begun.
"""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from controller.qualify.model import PodOfTest, Qualification, Threshold
from controller.timing import QualifyTiming
from neuron_dra.core import qualification as figures_of
from neuron_dra.planner.observed.model import shortened

SAMPLES_AT_LEAST: Final = 8
"""The results of other UltraServers that a median needs."""


class GroupVerdict(Enum):
    """What a test says about its nodes."""

    PASSED = "passed"
    FAILED = "failed"
    NONE = "none"  # nothing


@dataclass(frozen=True, slots=True)
class Judgement:
    """The end of a test. `message` says why; `figures` are the worst that any pod reported."""

    outcome: GroupVerdict
    message: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


def judge(
    pods: Sequence[PodOfTest],
    qualification: Qualification,
    medians: Mapping[str, float],
    now: datetime.datetime,
    timing: QualifyTiming,
) -> Judgement | None:
    """Return what the pods of a test say; None while it goes on. `medians`: by figure, of other UltraServers."""
    lost = [f"{pod.name}: {pod.lost or 'it is being deleted'}" for pod in pods if pod.lost or pod.deleting]
    if lost:
        return Judgement(GroupVerdict.NONE, f"pods that say nothing about their nodes: {shortened(lost)}")
    open_ones = [pod for pod in pods if pod.exit_code is None]
    failed = [pod for pod in pods if pod.exit_code]
    if open_ones:
        return _unfinished(pods, open_ones, failed, qualification, now, timing)
    if failed:
        return Judgement(GroupVerdict.FAILED, _exits(failed))
    return _by_figures([figures_of.figures(pod.message) for pod in pods], qualification.thresholds, medians)


def _unfinished(
    pods: Sequence[PodOfTest],
    open_ones: Sequence[PodOfTest],
    failed: Sequence[PodOfTest],
    qualification: Qualification,
    now: datetime.datetime,
    timing: QualifyTiming,
) -> Judgement | None:
    """Judge a test some of whose pods have not ended: they hang, or have not started."""
    waiting = [pod.name for pod in pods if pod.started is None and pod.exit_code is None]
    if waiting:
        # A pod that never starts says nothing, whatever the others say about their partner that is missing.
        begun = min((pod.created for pod in pods if pod.created is not None), default=now)
        late = now >= begun + datetime.timedelta(seconds=timing.start_s)
        return Judgement(GroupVerdict.NONE, f"pods that did not start: {shortened(waiting)}") if late else None
    begun = max((pod.started for pod in pods if pod.started is not None), default=now)
    limit = qualification.timeout
    if failed:
        # The others may wait for one that is gone. A node that died is known as such by then.
        limit = min(limit, datetime.timedelta(seconds=timing.settle_s))
    if now < begun + limit:
        return None
    names = shortened([pod.node or pod.name for pod in open_ones])
    if failed:
        return Judgement(GroupVerdict.FAILED, f"{_exits(failed)}; has not ended: {names}")
    return Judgement(GroupVerdict.FAILED, f"has not ended within {qualification.timeout.total_seconds():g} s: {names}")


def _exits(failed: Sequence[PodOfTest]) -> str:
    texts = [f"{pod.node or pod.name} with {pod.exit_code}" for pod in failed]
    return f"ended on {shortened(texts)}"


def _by_figures(
    reported_figures: Sequence[Mapping[str, float]], thresholds: Sequence[Threshold], medians: Mapping[str, float]
) -> Judgement:
    """Judge by what the pods report. Of each figure, the worst value of all pods counts."""
    worst = _worst(reported_figures, thresholds)
    missing = sorted({threshold.name for threshold in thresholds} - worst.keys())
    if missing:
        return Judgement(GroupVerdict.NONE, f"no pod reports: {shortened(missing)}", worst)
    texts = []
    for threshold in thresholds:
        text = _miss(threshold, worst[threshold.name], medians.get(threshold.name))
        if text:
            texts.append(text)
    if texts:
        return Judgement(GroupVerdict.FAILED, "; ".join(texts), worst)
    return Judgement(GroupVerdict.PASSED, "", worst)


def _worst(reported_figures: Sequence[Mapping[str, float]], thresholds: Sequence[Threshold]) -> dict[str, float]:
    """Return each figure's worst value: the highest of one that has an upper bound, else the lowest."""
    high = {threshold.name for threshold in thresholds if threshold.at_most is not None and threshold.at_least is None}
    worst_by_name: dict[str, float] = {}
    for figure in sorted({figure for figures in reported_figures for figure in figures})[: figures_of.FIGURES_AT_MOST]:
        values = [figures[figure] for figures in reported_figures if figure in figures]
        worst_by_name[figure] = max(values) if figure in high else min(values)
    return worst_by_name


def _miss(threshold: Threshold, value: float, median: float | None) -> str:
    """Return which bound of a threshold a value misses, as a text; empty if it is within all."""
    relative = None if median is None or not threshold.percent else median * threshold.percent / 100
    if threshold.at_least is not None:
        bound = threshold.at_least if relative is None else max(threshold.at_least, relative)
        if value < bound:
            return f"{threshold.name} {value:.6g} is below {_bound(bound, threshold.at_least, threshold, median)}"
    if threshold.at_most is not None:
        bound = threshold.at_most if relative is None else min(threshold.at_most, relative)
        if value > bound:
            return f"{threshold.name} {value:.6g} is above {_bound(bound, threshold.at_most, threshold, median)}"
    return ""


def _bound(bound: float, absolute: float, threshold: Threshold, median: float | None) -> str:
    if bound == absolute:
        return f"{bound:.6g}"
    return f"{bound:.6g} ({threshold.percent:g} % of the median {median:.6g})"


def medians(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median of each figure of which there are enough samples."""
    median_by_name: dict[str, float] = {}
    for figure, values in samples.items():
        if len(values) >= SAMPLES_AT_LEAST:
            median_by_name[figure] = statistics.median(values)
    return median_by_name
