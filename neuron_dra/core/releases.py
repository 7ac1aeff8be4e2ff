"""The releases of Kubernetes with known faults that meet this driver: the one table, and what follows from it.

Sources: the issues and pull requests of kubernetes/kubernetes that the rows name, and its change logs. The faults with
shared counters were looked at in k8s.io/dynamic-resource-allocation 0.36.1 to 0.36.4. What meets a cluster is
recognised by `neuron_dra.ask.why.known_faults`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from neuron_dra.core import versions
from neuron_dra.core.versions import VersionProblem

Release = tuple[int, int, int]

NEWEST_PATCH: Final = 999
"""Stands for the newest release of a minor version, whatever its number is."""

ANY: Final = "any"
"""The value of the setting with the oldest release that turns the check off."""

KUBELET: Final = "kubelet"
SCHEDULER: Final = "kube-scheduler"
CONTROLLERS: Final = "kube-controller-manager"


@dataclass(frozen=True, slots=True)
class KnownBad:
    """A fault of Kubernetes: `issue` in kubernetes/kubernetes.

    - `since` is the first release with it, of those that the driver supports.
    - `fixed_in` has the first release without it of each minor version that got the fix. Later minor versions have it.
    - `driver` is what the driver does about it.
    - `counts`: it is about shared counters, which connected sets need; with `forbids`, no sets are published there.
    """

    issue: int
    component: str
    since: Release
    fixed_in: tuple[Release, ...]
    breaks: str
    driver: str
    counts: bool = False
    forbids: bool = False

    def is_in(self, release: Release) -> bool:
        """Return whether a release of the component has the fault."""
        is_fixed = any(fixed[:2] == release[:2] and release >= fixed for fixed in self.fixed_in)
        return self.since <= release < max(self.fixed_in) and not is_fixed

    def affects(self, version: str) -> bool:
        """Return whether a version of the component has the fault; False if it cannot be parsed."""
        release = parse(version)
        return release is not None and self.is_in(release)

    @property
    def text(self) -> str:
        """What it breaks, with its number and the releases that end it."""
        return f"{self.breaks} (kubernetes/kubernetes#{self.issue}, fixed in {self.fixed_text})"

    @property
    def fixed_text(self) -> str:
        """The first releases without it."""
        *earlier, last = map(text, self.fixed_in)
        return f"{', '.join(earlier)} and {last}" if earlier else last

    @property
    def ranges(self) -> tuple[tuple[Release, Release], ...]:
        """The first release with it and the first without it, for each group of minor versions."""
        ranges = []
        first = self.since
        for fixed in self.fixed_in:
            if fixed > first:
                ranges.append((first, fixed))
            first = (fixed[0], fixed[1] + 1, 0)
        return tuple(ranges)


COUNTERS_SINCE: Final[Release] = (*versions.FIRST_WITH_COUNTERS, 0)
"""The first release that keeps shared counters by default."""
_OLDEST: Final[Release] = (*versions.OLDEST, 0)
_OLDEST_KUBELET: Final[Release] = (*versions.OLDEST_KUBELET, 0)

HANGS: Final = 133920
WAITS_FOR_EVER: Final = 139772
TWICE_THE_SAME_IDS: Final = 140274
UNPREPARES_SHARED: Final = 140212
ALLOCATES_TWICE: Final = 136566
ALL_WAIT_FOR_ONE: Final = 141898
RULE_FOR_ALL: Final = 141998
LIMITS_NOT_EVICTED: Final = 142492
RULES_AND_SETS: Final = 143378

KNOWN_BAD: Final = (
    KnownBad(
        HANGS,
        KUBELET,
        _OLDEST,
        ((1, 34, 2),),
        "its connection to a plugin hangs after 30 minutes without a call, and so does the next pod",
        "posts the Event `KubeletBroken`",
    ),
    KnownBad(
        UNPREPARES_SHARED,
        KUBELET,
        _OLDEST_KUBELET,
        ((1, 37, 0),),
        "the end of one pod can unprepare a claim that another pod uses, and a pod can start with a claim while it is "
        "unprepared (#140527)",
        "`validate` and `doctor` name claims that several pods share",
    ),
    KnownBad(
        TWICE_THE_SAME_IDS,
        KUBELET,
        _OLDEST_KUBELET,
        ((1, 34, 12), (1, 35, 10), (1, 36, 4), (1, 37, 0)),
        "if one of a pod's claims is prepared at the second try, the runtime gets the CDI ids of its other claims "
        "twice",
        "does not need to act, because containerd 2 skips duplicates. `doctor` names pods with several claims on other "
        "runtimes",
    ),
    KnownBad(
        WAITS_FOR_EVER,
        KUBELET,
        (1, 36, 0),
        ((1, 36, 1),),
        "a deleted pod whose claim was never created stays Terminating for ever",
        "`why` names it",
    ),
    KnownBad(
        ALLOCATES_TWICE,
        SCHEDULER,
        _OLDEST,
        ((1, 34, 4), (1, 35, 1)),
        "pods that the scheduler places at the same moment can get the same device",
        "rejects the second claim of a device; `doctor` and `why` name such claims",
    ),
    KnownBad(
        138882,
        SCHEDULER,
        COUNTERS_SINCE,
        ((1, 36, 2),),
        "a claim with allocationMode: All over devices with shared counters ends the scheduler with a panic",
        "publishes no connected sets",
        counts=True,
        forbids=True,
    ),
    KnownBad(
        140436,
        SCHEDULER,
        COUNTERS_SINCE,
        ((1, 36, 3),),
        "a tainted device keeps its counters reserved, so an unhealthy device blocks free neighbors",
        "publishes no connected sets",
        counts=True,
        forbids=True,
    ),
    KnownBad(
        140434,
        SCHEDULER,
        COUNTERS_SINCE,
        ((1, 36, 4),),
        "the scheduler confuses the counters of two drivers whose pools have the same name, such as the node's",
        "publishes them; `doctor` names such pools",
        counts=True,
    ),
    KnownBad(
        RULE_FOR_ALL,
        SCHEDULER,
        (1, 37, 0),
        ((1, 37, 1),),
        "a DeviceTaintRule without deviceSelector taints every device",
        "`doctor` names such rules, `why` of a waiting pod too",
    ),
    KnownBad(
        LIMITS_NOT_EVICTED,
        CONTROLLERS,
        COUNTERS_SINCE,
        ((1, 37, 2),),
        "a NoExecute taint of a device does not evict a pod that got the device by a limit",
        "`doctor` names such pods",
    ),
    KnownBad(
        ALL_WAIT_FOR_ONE,
        SCHEDULER,
        _OLDEST,
        ((1, 38, 0),),
        "a claim with allocationMode: All waits everywhere while the pool of one node that could serve it is invalid",
        "`doctor` and `why` name the node",
    ),
    KnownBad(
        RULES_AND_SETS,
        SCHEDULER,
        COUNTERS_SINCE,
        ((1, 38, 0),),
        "the scheduler can end with a panic when a pool changes its number of devices while a DeviceTaintRule changes",
        "`doctor` warns if nodes publish connected sets and rules exist; the scheduler starts again",
    ),
)

OLDEST_FOR_SETS: Final = max(max(bad.fixed_in) for bad in KNOWN_BAD if bad.forbids)
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


def numbered(issue: int) -> KnownBad:
    """Return the fault with a number. Raises KeyError."""
    return _BY_NUMBER[issue]


def known_bad(component: str, version: str) -> tuple[KnownBad, ...]:
    """Return the faults that a version of a component has; none if it cannot be parsed."""
    return tuple(bad for bad in KNOWN_BAD if bad.component == component and bad.affects(version))


def kubelet_problems(version: str) -> list[VersionProblem]:
    """Return the problems that a kubelet has whatever its pods do; none if its version is unknown."""
    problems = []
    for bad in known_bad(KUBELET, version):
        if bad.issue == HANGS:
            problems.append(VersionProblem("KubeletBroken", f"kubelet {version}: {bad.text}"))
    parsed = versions.parse(version)
    if parsed is not None and parsed < versions.OLDEST_KUBELET:
        oldest = versions.text(versions.OLDEST_KUBELET)
        problems.append(
            VersionProblem("KubeletTooOld", f"kubelet {version} is too old; use {oldest} or later", fatal=True)
        )
    return problems


def kubelet_notes(version: str) -> list[VersionProblem]:
    """Return the faults of a kubelet that some pods meet; none if its version is unknown."""
    texts = [bad.text for bad in known_bad(KUBELET, version) if bad.issue != HANGS]
    if not texts:
        return []
    return [VersionProblem("KubeletKnownBad", f"kubelet {version} has known faults: {'; '.join(texts)}", depends=True)]


def with_counters(release: Release, *, forbidding: bool = False) -> tuple[KnownBad, ...]:
    """Return the faults with shared counters that a release has; with `forbidding`, those that forbid sets."""
    faults = (bad for bad in KNOWN_BAD if bad.counts and bad.is_in(release))
    return tuple(bad for bad in faults if bad.forbids or not forbidding)


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
    texts = [bad.text for bad in with_counters(release, forbidding=True)]
    return "; ".join(texts) or f"the setting for the oldest release says {text(oldest)}"


def table(faults: Iterable[KnownBad] = KNOWN_BAD) -> list[tuple[str, str, str, str, str]]:
    """Return the rows of the table for people: component, releases, what breaks, upstream's number, the driver."""
    rows = []
    for bad in faults:
        releases = [_range(*bounds) for bounds in bad.ranges]
        rows.append((bad.component, ", ".join(releases), bad.breaks, str(bad.issue), bad.driver))
    return rows


def _range(first: Release, fixed: Release) -> str:
    if fixed[2] == 0:
        return f"{text(first)} to {fixed[0]}.{fixed[1] - 1}"
    last = (*fixed[:2], fixed[2] - 1)
    return text(first) if last == first else f"{text(first)} to {text(last)}"


_BY_NUMBER: Final = {bad.issue: bad for bad in KNOWN_BAD}
