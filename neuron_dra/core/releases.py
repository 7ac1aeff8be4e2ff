"""The releases of Kubernetes that go wrong with shared counters, with upstream's numbers, and what follows from them.

Sources: kubernetes/kubernetes issues and pull requests 138882, 140436, 140434; looked at in
k8s.io/dynamic-resource-allocation 0.36.1 to 0.36.4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from neuron_dra.core import versions

Release = tuple[int, int, int]

NEWEST_PATCH: Final = 999
"""Stands for the newest release of a minor version, whatever its number is."""

ANY: Final = "any"
"""The value of the setting with the oldest release that turns the check off."""


@dataclass(frozen=True, slots=True)
class KnownBad:
    """A fault of Kubernetes: `issue` in kubernetes/kubernetes, the first release with it, and the first without it.

    With `forbids`, no connected sets are published there.
    """

    issue: int
    since: Release
    fixed_in: Release
    breaks: str
    forbids: bool = True

    @property
    def text(self) -> str:
        """What it breaks, with its number and the release that ends it."""
        return f"{self.breaks} (kubernetes/kubernetes#{self.issue}, fixed in {text(self.fixed_in)})"


COUNTERS_SINCE: Final[Release] = (*versions.FIRST_WITH_COUNTERS, 0)
"""The first release that keeps shared counters by default."""

KNOWN_BAD: Final = (
    KnownBad(
        138882,
        COUNTERS_SINCE,
        (1, 36, 2),
        "a claim with allocationMode: All over devices with shared counters ends the scheduler with a panic",
    ),
    KnownBad(
        140436,
        COUNTERS_SINCE,
        (1, 36, 3),
        "a tainted device keeps its counters reserved, so an unhealthy device blocks free ones beside it",
    ),
    KnownBad(
        140434,
        COUNTERS_SINCE,
        (1, 36, 4),
        "the scheduler confuses the counters of two drivers whose pools have the same name, such as the node's",
        forbids=False,
    ),
)

OLDEST_FOR_SETS: Final = max(bad.fixed_in for bad in KNOWN_BAD if bad.forbids)
"""The first release with which connected sets are published."""


def parse(version: str) -> Release | None:
    """Return the release of a version such as v1.36.4-eks-1234; None if it is none, or has no third number.

    A pre-release, such as v1.36.4-rc.0, counts as the release before it.
    """
    match = re.match(r"v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})(-(?:alpha|beta|rc)\b)?", version)
    if match is None:
        return None
    return int(match[1]), int(match[2]), int(match[3]) - (match[4] is not None)


def text(release: Release) -> str:
    """Return a release as a person writes it."""
    return ".".join(map(str, release))


def known_bad(release: Release, *, forbidding: bool = False) -> tuple[KnownBad, ...]:
    """Return the faults that a release has; with `forbidding`, those that forbid connected sets."""
    found = (bad for bad in KNOWN_BAD if bad.since <= release < bad.fixed_in)
    return tuple(bad for bad in found if bad.forbids or not forbidding)


def why_no_sets(version: str, oldest: Release = OLDEST_FOR_SETS) -> str:
    """Return why connected sets must not be published beside an API server of this version; empty if they may.

    `oldest` is the first release that is good enough. A version that cannot be parsed is not.
    """
    release = parse(version)
    if release is None:
        return f"the version of the API server, {version!r:.60}, is not one of Kubernetes"
    if release >= oldest:
        return ""
    return f"the API server is {version}; connected sets need {text(oldest)} or later: {_faults(release, oldest)}"


def why_no_sets_on(version: str) -> str:
    """Return the same for a version that a person wrote, such as 1.36: without a third number it means the newest."""
    whole = re.fullmatch(r"v?\d+\.\d+", version)
    return why_no_sets(f"{version}.{NEWEST_PATCH}" if whole else version).replace(f".{NEWEST_PATCH};", ";")


def _faults(release: Release, oldest: Release) -> str:
    if release < COUNTERS_SINCE:
        return "older ones keep no shared counters"
    texts = [bad.text for bad in known_bad(release, forbidding=True)]
    return "; ".join(texts) or f"the setting for the oldest release says {text(oldest)}"


def table(faults: Iterable[KnownBad] = KNOWN_BAD) -> list[tuple[str, str, str, str]]:
    """Return the rows of the table for people: releases, what breaks, upstream's number, what the driver does."""
    rows = []
    for bad in faults:
        last = (*bad.fixed_in[:2], bad.fixed_in[2] - 1)
        does = "publishes them; `doctor` names such pools"
        if bad.forbids:
            does = "publishes no connected sets"
        rows.append((f"{text(bad.since)} to {text(last)}", bad.breaks, str(bad.issue), does))
    return rows
