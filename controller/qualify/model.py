"""A qualification, and the pods of its tests, as they are decoded. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from neuron_dra.core import durations
from neuron_dra.core.ownership import ObjectIdentity, controller_of
from neuron_dra.core.qualification import MESSAGE_AT_MOST, Target, is_figure
from neuron_dra.core.wire import Wire
from neuron_dra.planner.observed.model import SLOT_SIZES, Workload

GROUPS_AT_MOST: Final = 64
"""The limit of groups that one qualification tests at once, from its CRD."""

OF_TEST: Final = "neuron.aws.com/test"
"""Label of a test's pods: the name of the test's workload."""

EXEMPT: Final = "neuron.aws.com/exempt-ultraservers"
"""Annotation of a qualification: names of NeuronUltraServers, separated by commas."""

HOUR: Final = datetime.timedelta(hours=1)

NEVER_STARTS: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "CreatePodSandboxError",
    }
)
"""Reasons of a waiting container that says nothing about the nodes."""
NOT_THE_NODES: Final = {125: "the container failed", 126: "the command cannot be executed", 127: "no such command"}
"""Exit codes that say nothing about the nodes."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A bound of a figure: at least, or at most, so much.

    - `percent`: also so much of the median of other UltraServers of the type, once there are enough; 0 without.
    """

    name: str
    at_least: float | None = None
    at_most: float | None = None
    percent: float = 0.0


@dataclass(frozen=True, slots=True)
class Qualification:
    """A NeuronUltraServerQualification.

    - `period`: a group is tested again after it; `max_age`: a result counts for so long in counts and medians.
    - `most`: the groups that are tested at once.
    - `pod`: what the pods of a test take from the spec as it is.
    - `exempt`: the UltraServers whose failures raise no fault, because an administrator says so.
    - `problem`: what is wrong with the spec; such a qualification tests nothing.
    - `unread`: the object cannot be read, and nothing is written to it.
    """

    name: str
    uid: str
    version: str
    generation: int
    instance_types: tuple[str, ...]
    size: int
    image: str
    period: datetime.timedelta
    max_age: datetime.timedelta
    most: int
    timeout: datetime.timedelta
    thresholds: tuple[Threshold, ...] = ()
    suspended: bool = False
    exempt: frozenset[str] = frozenset()
    deleting: bool = False
    pod: Mapping[str, Any] = field(default_factory=dict)
    status: Wire = field(default_factory=dict)
    problem: str = ""
    unread: bool = False


def qualification(item: Wire) -> Qualification:
    """Return a qualification; what is wrong with its spec is its `problem`, since an older CRD may let it pass."""
    meta, spec = item["metadata"], item.get("spec") or {}
    problems: list[str] = []

    def duration(name: str, default: datetime.timedelta) -> datetime.timedelta:
        try:
            return durations.parse(str(spec[name])) if spec.get(name) else default
        except ValueError as err:
            problems.append(f"spec.{name}: {err}")
            return default

    period = duration("period", 24 * HOUR)
    thresholds = tuple(_threshold(threshold) for threshold in _mappings(spec.get("thresholds")))
    for threshold in thresholds:
        if threshold.at_least is None and threshold.at_most is None:
            problems.append(f"threshold {threshold.name}: write atLeast or atMost; percentOfMedian alone has no floor")
    # No field of the spec: what the tests are does not change, so nothing is tested again.
    exempt = str((meta.get("annotations") or {}).get(EXEMPT) or "")
    size, most = _whole(spec.get("topologySize"), 4), _whole(spec.get("maxGroups"), 1)
    if size not in SLOT_SIZES:
        problems.append(f"spec.topologySize is {size}: write 1, 2 or 4")
    image = str(spec.get("image") or "")
    if not image:
        problems.append("spec.image is empty")
    if period <= datetime.timedelta():
        problems.append("spec.period is 0")
    types = tuple(str(instance_type) for instance_type in spec.get("instanceTypes") or ())
    passed_on = {name: spec[name] for name in PASSED_ON if spec.get(name)}
    return Qualification(
        name=meta["name"],
        uid=str(meta.get("uid", "")),
        version=str(meta.get("resourceVersion", "")),
        generation=int(meta.get("generation") or 0),
        instance_types=types,
        size=size,
        image=image,
        period=period,
        max_age=duration("maxAge", 2 * period),
        most=max(1, min(most, GROUPS_AT_MOST)),
        timeout=duration("timeout", HOUR / 6),
        thresholds=thresholds,
        suspended=spec.get("suspend") is True,
        exempt=frozenset(part.strip() for part in exempt.split(",") if part.strip()),
        deleting=bool(meta.get("deletionTimestamp")),
        pod=passed_on,
        status=item.get("status") or {},
        problem="; ".join(problems),
    )


def unread_qualification(item: Wire) -> Qualification:
    """Return what stands in for a qualification of which only the metadata can be read: what its tests found stays."""
    return replace(qualification(item), problem="the object cannot be read", unread=True)


PASSED_ON: Final = (
    "command",
    "args",
    "env",
    "tolerations",
    "capabilities",
    "resourceClaimTemplates",
    "imagePullSecrets",
)
"""Fields of the spec that only the test's pods depend on."""


def _mappings(value: Any) -> list[Wire]:
    return [element for element in value if isinstance(element, Mapping)] if isinstance(value, list) else []


def _whole(value: Any, default: int) -> int:
    return value if type(value) is int else default


def _threshold(threshold: Wire) -> Threshold:
    def number(name: str) -> float | None:
        value: Any = threshold.get(name)
        return float(value) if type(value) in (int, float) and is_figure(value) else None

    percent = number("percentOfMedian") or 0.0
    return Threshold(str(threshold.get("name") or ""), number("atLeast"), number("atMost"), percent)


@dataclass(frozen=True, slots=True)
class PodOfTest:
    """A pod of a test.

    - `started`: when its container started; None before. `exit_code`: None until it has ended.
    - `lost`: why it says nothing about the nodes: it was evicted, its image cannot be pulled, and so on.
    """

    namespace: str
    name: str
    uid: str
    test: str
    owner: ObjectIdentity | None
    node: str
    created: datetime.datetime | None
    deleting: bool
    started: datetime.datetime | None = None
    exit_code: int | None = None
    message: str = ""
    lost: str = ""


def pod_of_test(item: Wire) -> PodOfTest:
    """Return a pod of the namespace of tests."""
    meta, status = item["metadata"], item.get("status") or {}
    states = [(container_status.get("state") or {}) for container_status in status.get("containerStatuses") or []]
    state = states[0] if states else {}
    ended, waiting, running = (state.get(kind) or {} for kind in ("terminated", "waiting", "running"))
    exit_code = ended.get("exitCode") if ended else None
    return PodOfTest(
        namespace=str(meta.get("namespace", "")),
        name=meta["name"],
        uid=str(meta.get("uid", "")),
        test=str((meta.get("labels") or {}).get(OF_TEST) or ""),
        owner=controller_of(item),
        node=str((item.get("spec") or {}).get("nodeName") or ""),
        created=_time(meta.get("creationTimestamp")),
        deleting=bool(meta.get("deletionTimestamp")),
        started=_time((ended or running).get("startedAt")),
        exit_code=exit_code if type(exit_code) is int else None,
        message=str(ended.get("message") or "")[:MESSAGE_AT_MOST],
        lost=_lost(status, ended, waiting),
    )


def unread_pod(item: Wire) -> PodOfTest:
    """Return what stands in for a pod of which only the metadata can be read: it says nothing about its node."""
    return replace(pod_of_test(item), lost="it cannot be read")


def _lost(status: Wire, ended: Wire, waiting: Wire) -> str:
    """Return why a pod says nothing about the nodes; empty if it may."""
    if status.get("reason"):  # of the kubelet: Evicted, UnexpectedAdmissionError, NodeShutdown, ...
        return str(status["reason"])
    if status.get("phase") == "Failed" and not ended:
        return "it failed before its container started"
    if waiting.get("reason") in NEVER_STARTS:
        return str(waiting["reason"])
    if not ended:
        return ""
    if ended.get("reason") in ("OOMKilled", "StartError", "ContainerCannotRun", "ContainerStatusUnknown"):
        return str(ended["reason"])
    code = ended.get("exitCode")
    return f"exit code {code}, {NOT_THE_NODES[code]}" if code in NOT_THE_NODES else ""


def _time(text: Any) -> datetime.datetime | None:
    try:
        moment = datetime.datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    return moment.astimezone(datetime.UTC) if moment.tzinfo is not None and 2000 <= moment.year < 2200 else None


@dataclass(frozen=True, slots=True)
class GroupTest:
    """A test in progress: its workload, what that tests, and its pods by node index in the name."""

    workload: Workload
    target: Target
    pods: tuple[PodOfTest, ...] = ()

    @property
    def stopping(self) -> bool:
        """True if its nodes are being released."""
        return self.workload.deleting
