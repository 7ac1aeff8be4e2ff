"""Tests of UltraServers: their namespace, the mark of a test's workload, and the figures that a test reports. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

NAMESPACE: Final = "neuron-qualification"
"""The namespace of test workloads and their pods. Admission policies restrict who may write there."""

TESTS: Final = "neuron.aws.com/tests"
"""Annotation of a test's workload: what is tested, for which qualification (`Target`)."""

FIGURES_AT_MOST: Final = 16
MESSAGE_AT_MOST: Final = 4096
"""The limit of a container's termination message, from the kubelet."""

LARGEST: Final = 1e15
_FIGURE: Final = re.compile(r"[a-z][a-zA-Z0-9]{0,31}")


GroupKey = tuple[str, str, int]
"""UID of the qualification, name of the UltraServer, number of the first node."""


@dataclass(frozen=True, slots=True)
class Target:
    """The nodes that a test's workload must get: those of an UltraServer from `first_id` on.

    - `qualification`, `uid`, `generation`: which state of which NeuronUltraServerQualification asks for it.
    """

    qualification: str
    uid: str
    generation: int
    ultraserver: str
    first_id: int

    @property
    def group(self) -> GroupKey:
        """The group, for this qualification: its tests follow each other."""
        return self.uid, self.ultraserver, self.first_id

    @property
    def text(self) -> str:
        """The value of the annotation."""
        return f"{self.qualification}/{self.uid}/{self.generation}/{self.ultraserver}/{self.first_id}"


def target(namespace: str, annotations: Mapping[str, object]) -> Target | None:
    """Return what a workload tests; None for an ordinary one, and for all outside the namespace of tests."""
    parts = str(annotations.get(TESTS) or "").split("/")
    numbers = [part for part in (parts[2:3] + parts[4:5]) if re.fullmatch(r"\d{1,12}", part, re.ASCII)]
    if namespace != NAMESPACE or len(parts) != 5 or len(numbers) != 2:
        return None
    return Target(parts[0], parts[1], int(numbers[0]), parts[3], int(numbers[1]))


def figures(message: str) -> dict[str, float]:
    """Return the figures in the last line of a termination message, one JSON object: names and finite numbers.

    Whatever is no such figure is left out; a message that is no JSON has none. At most FIGURES_AT_MOST are kept.
    """
    lines = message[:MESSAGE_AT_MOST].strip().splitlines()
    try:
        reported = json.loads(lines[-1]) if lines else {}
    except (ValueError, RecursionError):
        return {}
    figure_by_name: dict[str, float] = {}
    for name, value in reported.items() if isinstance(reported, dict) else ():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if len(figure_by_name) < FIGURES_AT_MOST and _FIGURE.fullmatch(name) and is_number and is_figure(value):
            figure_by_name[name] = float(value)
    return figure_by_name


def is_figure(value: float) -> bool:
    """Return True for a number that a status can have: finite, and of a size that every reader understands."""
    return math.isfinite(value) and abs(value) <= LARGEST
