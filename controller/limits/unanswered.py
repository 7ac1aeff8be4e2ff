"""Pods that wait for the Neuron device plugin, or for a scheduler that is not there, and what to say about them. Pure.

Both were written for AWS's device plugin and scheduler extension, and are in a namespace whose pods are not rewritten.
Nothing else would tell their owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from controller.limits.advice import Waiting
from neuron_dra.core import sizes
from neuron_dra.core.wire import Wire
from neuron_dra.planner.observed.model import condition, scheduling_refusal

OLD_LIMITS: Final = "NeuronOldLimits"
NO_SCHEDULER: Final = "NeuronSchedulerMissing"
DEFAULT_SCHEDULER: Final = "default-scheduler"
LABEL: Final = "neuron.aws.com/rewrite-limits"


@dataclass(frozen=True, slots=True)
class Pending:
    """A pod without a node.

    `old` are the device plugin's resources that it requests; `is_ours` means that it requests Neuron devices at all.
    `condition` changes with that of the scheduler; it is empty if there is none.
    """

    namespace: str
    name: str
    uid: str
    scheduler: str
    old: tuple[str, ...] = ()
    is_ours: bool = False
    condition: str = ""
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class Remark:
    """An Event to post on a pod."""

    pod: Pending | Waiting
    reason: str
    text: str

    @property
    def key(self) -> tuple[str, str]:
        """UID and reason."""
        return self.pod.uid, self.reason


def pending(pod: Wire) -> Pending | None:
    """Return a pod that a scheduler should look at; None for one that is deleted, or has scheduling gates."""
    meta, spec = pod["metadata"], pod.get("spec") or {}
    if meta.get("deletionTimestamp") or spec.get("schedulingGates"):
        return None
    requested = _requested(spec)
    pod_scheduled = condition(pod.get("status") or {}, "PodScheduled")
    parts = tuple(pod_scheduled.get(key) for key in ("status", "reason", "message", "lastTransitionTime"))
    return Pending(
        namespace=str(meta.get("namespace")),
        name=str(meta["name"]),
        uid=str(meta.get("uid")),
        scheduler=str(spec.get("schedulerName") or DEFAULT_SCHEDULER),
        old=tuple(resource_name for resource_name in sizes.KINDS if resource_name in requested),
        is_ours=any(
            resource_name in sizes.KINDS or resource_name.endswith(".neuron.aws.com") for resource_name in requested
        ),
        condition=f"{hash(parts):x}" if pod_scheduled else "",  # thousands of messages would be large
        is_refused=bool(scheduling_refusal(pod)),
    )


def _requested(spec: Wire) -> set[str]:
    """Return the names of the resources of which containers request any."""
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    resources = [container.get("resources") or {} for container in containers]
    amounts_by_container = []
    for requirements in resources:
        amounts_by_container.append({**(requirements.get("requests") or {}), **(requirements.get("limits") or {})})
    return {
        resource_name
        for amounts in amounts_by_container
        for resource_name, amount in amounts.items()
        if str(amount) != "0"
    }


def has_device_plugin(node: Wire) -> bool:
    """Return True if a Node has something to allocate under one of the device plugin's names."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return any(str(allocatable.get(resource_name) or "0") != "0" for resource_name in sizes.KINDS)


@dataclass(slots=True)
class Observed:
    """What was seen of pods and schedulers, with the loop's times; a new process starts without it.

    A scheduler gives a sign when a condition of one of its pods changes, or when a pod of it leaves the list: it has a
    node then, or was deleted.
    """

    last: Mapping[str, Pending] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)
    refused: dict[str, float] = field(default_factory=dict)
    signs: dict[str, float] = field(default_factory=dict)

    def follow(self, pods: Iterable[Pending], now: float) -> None:
        """Take over the pods as they are at time `now`."""
        by_uid = {pod.uid: pod for pod in pods}
        for uid, before in self.last.items():
            if uid not in by_uid:
                self.signs[before.scheduler] = now
        for uid, pod in by_uid.items():
            last_seen = self.last.get(uid)
            if pod.condition and (last_seen is None or last_seen.condition != pod.condition):
                self.signs[pod.scheduler] = now
        # Other signs are older than the next pod of their scheduler, and tenants choose its name.
        named = {pod.scheduler for pod in by_uid.values()}
        self.signs = {scheduler: sign_at for scheduler, sign_at in self.signs.items() if scheduler in named}
        refused = [uid for uid, pod in by_uid.items() if pod.is_refused]
        self.seen = {uid: self.seen.get(uid, now) for uid in by_uid}
        self.refused = {uid: self.refused.get(uid, now) for uid in refused}
        self.last = by_uid

    def periods(self, uid: str, now: float, period_s: float) -> int:
        """Return how many periods a pod has waited for."""
        return int((now - self.seen.get(uid, now)) // period_s)

    def due(self, now: float, old_s: float, scheduler_s: float, *, has_plugin: bool | None) -> list[Remark]:
        """Return what to say at time `now`; `has_plugin` is whether a node serves the old names, None if unknown."""
        remarks = []
        for due_at, remark in self._all(old_s, scheduler_s, has_plugin=has_plugin):
            if due_at <= now:
                remarks.append(remark)
        return remarks

    def next_at(self, now: float, old_s: float, scheduler_s: float, *, has_plugin: bool | None) -> float | None:
        """Return when there is something new to say, if nothing changes."""
        times = (due_at for due_at, _ in self._all(old_s, scheduler_s, has_plugin=has_plugin))
        return min((due_at for due_at in times if due_at > now), default=None)

    def _all(self, old_s: float, scheduler_s: float, *, has_plugin: bool | None) -> Iterator[tuple[float, Remark]]:
        for uid, pod in self.last.items():
            if pod.old and uid in self.refused and has_plugin is False:
                yield self.refused[uid] + old_s, Remark(pod, OLD_LIMITS, _old(pod))
            if pod.is_ours and not pod.condition and pod.scheduler != DEFAULT_SCHEDULER:
                since = max(self.seen[uid], self.signs.get(pod.scheduler, 0.0))
                yield since + scheduler_s, Remark(pod, NO_SCHEDULER, _missing(pod, scheduler_s))


def _old(pod: Pending) -> str:
    return (
        f"no node has {' or '.join(pod.old)} to allocate: these are the Neuron device plugin's, and this driver serves "
        f"devices by DeviceClasses. {_label(pod)}"
    )


def _missing(pod: Pending, scheduler_s: float) -> str:
    return (
        f"no scheduler named {pod.scheduler} has handled this pod, or another one, for {scheduler_s:g} s. If that was "
        f"the Neuron scheduler extension, it is not needed any more. {_label(pod)} If its name was not my-scheduler, "
        "set the chart value scheduler.rewriteLimits.schedulerName."
    )


def _label(pod: Pending) -> str:
    return (
        f"Label the namespace, so that its new pods are rewritten: kubectl label namespace {pod.namespace} "
        f"{LABEL}=true; then create the pod again. Or change its manifest: neuron-dra migrate."
    )
