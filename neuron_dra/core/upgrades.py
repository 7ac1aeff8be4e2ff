"""What changes for Neuron devices between the minor versions of Kubernetes: the one table, for `doctor --upgrade-to`.

Sources: pkg/features/kube_features.go of kubernetes/kubernetes 1.35.4, 1.36.0, 1.37.2 and 1.38.0-beta.0 (the version,
the default and the lock of each gate; gates of the earlier file that the later one lacks); the lifecycles of
k8s.io/api 0.37.2 (zz_generated.prerelease-lifecycle.go); the version skew policy
(kubernetes/website, releases/version-skew-policy.md); for containerd KEP-4033 and kubernetes/website#53498. Single
releases with faults are in `releases`, and what the scheduler does differently in `neuron_dra.simulate.semantics`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from neuron_dra.core import releases
from neuron_dra.core.releases import Release

Minor = tuple[int, int]

KUBELET_SKEW: Final = 3
"""A kubelet may be so many minor versions older than the API server, and never newer (version skew policy)."""
FIRST_WITHOUT_CONTAINERD_1: Final[Minor] = (1, 36)
"""The first kubelet that does not support containerd 1.x (KEP-4033; 1.35 is the last one that does)."""


class ChangeKind(Enum):
    """What a row of the table is about."""

    FEATURE = "a feature that turns on"
    LOCKED_GATE = "a feature gate that can no longer be turned off"
    REMOVED_GATE = "a feature gate that is unknown from then on"
    API = "a version of an API that is removed"


@dataclass(frozen=True, slots=True)
class ReleaseChange:
    """A change in a minor version.

    - `name`: the feature gate, or the version of the API.
    - `text`: what a feature changes for Neuron devices.
    """

    since: Minor
    kind: ChangeKind
    name: str
    text: str = ""


CHANGES: Final = (
    ReleaseChange((1, 35), ChangeKind.LOCKED_GATE, "DynamicResourceAllocation"),
    ReleaseChange(
        (1, 36),
        ChangeKind.FEATURE,
        "DRADeviceTaints",
        "the API server keeps taints of devices: the driver publishes unhealthy devices with a taint, and no longer "
        "takes them out of the slice",
    ),
    ReleaseChange(
        (1, 36),
        ChangeKind.FEATURE,
        "DRAPartitionableDevices",
        f"the API server keeps shared counters: with scheduler.enabled, nodes publish connected sets from "
        f"{releases.text(releases.OLDEST_FOR_SETS)} on",
    ),
    ReleaseChange(
        (1, 36),
        ChangeKind.FEATURE,
        "DRAExtendedResource",
        "pods may request devices by limits that a DeviceClass serves; kubelets before 1.36 reject such pods, so they "
        "run on upgraded nodes only",
    ),
    ReleaseChange(
        (1, 36),
        ChangeKind.FEATURE,
        "ResourceHealthStatus",
        "the status of pods shows the health of their devices, once the kubelet is upgraded",
    ),
    ReleaseChange((1, 36), ChangeKind.LOCKED_GATE, "DRAAdminAccess"),
    ReleaseChange(
        (1, 37),
        ChangeKind.FEATURE,
        "DRADeviceTaintRules",
        "resource.k8s.io/v1 serves DeviceTaintRule, by which an administrator withdraws devices",
    ),
    ReleaseChange((1, 37), ChangeKind.LOCKED_GATE, "DRAExtendedResource"),
    ReleaseChange((1, 37), ChangeKind.LOCKED_GATE, "DRAPrioritizedList"),
    ReleaseChange((1, 37), ChangeKind.LOCKED_GATE, "DRAResourceClaimDeviceStatus"),
    ReleaseChange((1, 37), ChangeKind.REMOVED_GATE, "GangScheduling"),
    ReleaseChange((1, 37), ChangeKind.REMOVED_GATE, "SchedulerQueueingHints"),
    ReleaseChange((1, 38), ChangeKind.REMOVED_GATE, "DynamicResourceAllocation"),
    ReleaseChange((1, 38), ChangeKind.API, "resource.k8s.io/v1beta1"),
    ReleaseChange((1, 39), ChangeKind.API, "resource.k8s.io/v1beta2"),
)


@dataclass(frozen=True, slots=True)
class UpgradeTarget:
    """A version to upgrade to; `release` is None if only the minor version was given."""

    text: str
    minor: Minor
    release: Release | None = None

    @property
    def version(self) -> str:
        """The version of components; a minor version stands for its newest release."""
        if self.release is not None:
            return f"v{self.text}"
        return f"v{releases.text((*self.minor, releases.NEWEST_PATCH))}"


def target(text: str) -> UpgradeTarget:
    """Return the version that a person wrote, such as 1.36, 1.36.4 or v1.36.4-eks-1. Raises ValueError."""
    if match := re.fullmatch(r"v?(\d{1,3})\.(\d{1,3})", text):
        return UpgradeTarget(text.removeprefix("v"), (int(match[1]), int(match[2])))
    release = releases.parse(text)
    if release is None or not re.fullmatch(r"v?\d{1,3}\.\d{1,3}\.\d{1,4}([-+][\w.+-]*)?", text):
        raise ValueError(f"{text}: write a version such as 1.36 or 1.36.4")
    return UpgradeTarget(text.removeprefix("v"), release[:2], release)


def between(before: Minor | None, after: Minor, kind: ChangeKind) -> Iterator[ReleaseChange]:
    """Yield the changes of a kind after one version and up to another; if the first is unknown, those of the last."""
    since = (after[0], after[1] - 1) if before is None else before
    for change in CHANGES:
        if change.kind is kind and since < change.since <= after:
            yield change


def path(before: Minor, after: Minor) -> list[Minor]:
    """Return the minor versions that the control plane takes one after the other: the API server must not skip one."""
    return [(after[0], number) for number in range(before[1] + 1, after[1] + 1)]


def oldest_kubelet(control_plane: Minor) -> Minor:
    """Return the oldest kubelet that may run with a control plane."""
    return control_plane[0], control_plane[1] - KUBELET_SKEW
