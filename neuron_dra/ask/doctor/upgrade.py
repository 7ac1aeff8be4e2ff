"""`neuron-dra doctor --upgrade-to VERSION`: what an upgrade of Kubernetes does, and in which order to do it. Pure."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from neuron_dra.ask.doctor import forecast
from neuron_dra.ask.doctor.forecast import PodForecast
from neuron_dra.ask.doctor.lines import Line, ok, unknown, wrong
from neuron_dra.ask.doctor.seen import Seen
from neuron_dra.ask.read.claim_views import ClaimView
from neuron_dra.ask.read.node_views import KubeletView, SliceView
from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.views import WorkloadView
from neuron_dra.ask.render import words
from neuron_dra.ask.why import known_faults, trials
from neuron_dra.ask.world import demand, unseen
from neuron_dra.ask.world.world import World
from neuron_dra.core import program, releases, upgrades, versions
from neuron_dra.core.releases import KnownBad
from neuron_dra.core.upgrades import ChangeKind, Minor, UpgradeTarget

UPGRADE: Final = "upgrade"
PODS: Final = "pods"
FAULTS: Final = "faults"
NODES: Final = "nodes"
STEPS: Final = "steps"
JOBS: Final = "jobs"
DRIVER: Final = "driver"
FEATURES: Final = "features"
GATES: Final = "gates"
API: Final = "API"
_CONTAINERD_1: Final = "containerd://1."
_SHOWN: Final = 3
"""Pods that a line names with their devices."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The answer: lines for people, and what becomes of each waiting pod."""

    before: str
    target: UpgradeTarget
    lines: Sequence[Line]
    pods: Sequence[PodForecast] = ()

    def to_wire(self) -> dict[str, Any]:
        """Return the part of the answer that `doctor` has only with --upgrade-to."""
        return {"from": self.before, "to": self.target.text, "pods": [pod.to_wire() for pod in self.pods]}


def answer(seen: Seen, target: UpgradeTarget) -> Upgrade:
    """Return what an upgrade to this version does."""
    before = versions.parse(seen.version)
    seen = dataclasses.replace(seen, snapshot=dataclasses.replace(seen.snapshot, version=seen.version))
    refused = _refused(seen, before, target)
    if refused is not None:
        return Upgrade(seen.version, target, [refused])
    world = World(seen.snapshot, proposes=False)
    pods: list[PodForecast] = []
    lines = [_route(seen, before, target), _driver(target)]
    if before is None:
        lines.append(unknown(PODS, "what becomes of waiting pods is unknown, as the API server's release is", _ASK))
    elif target.minor > versions.NEWEST:
        text = f"what {target.text} does with waiting pods is unknown: this simulator was not compared with it"
        lines.append(unknown(PODS, text))
    elif (missing := _missing(seen)) is not None:
        lines.append(missing)
    else:
        pods = forecast.simulated(seen.snapshot, target).forecasts()
        lines += _of_pods(seen, pods)
    lines += _changes(before, target)
    lines += _faults(world, before, target)
    lines += _nodes(world, target)
    lines += _jobs(world, target)
    lines += _steps(world, before, target)
    return Upgrade(seen.version, target, lines, pods)


_ASK: Final = "give it: --kubernetes VERSION, as `kubectl version` shows it"


def _refused(seen: Seen, before: Minor | None, target: UpgradeTarget) -> Line | None:
    """Return why there is no such upgrade, and what to do; None if there is one."""
    supported = f"{versions.text(versions.OLDEST)} to {versions.text(versions.NEWEST)}"
    if target.minor < versions.OLDEST:
        text = f"{target.text} is older than every release that the driver supports"
        return wrong(UPGRADE, "UpgradeTargetOld", text, f"use {supported}")
    running = releases.parse(seen.version)
    is_back = before is not None and target.minor < before
    is_back = is_back or (running is not None and target.release is not None and target.release < running)
    if is_back:
        text = f"the API server is {seen.version}, and {target.text} is older: this is no upgrade"
        todo = "before a control plane goes back, read docs/updates.md: sets that are in use stay published"
        return wrong(UPGRADE, "UpgradeTargetOlder", text, todo)
    is_there = before == target.minor and (target.release is None or target.release == running)
    if is_there:
        return ok(UPGRADE, f"the API server is {seen.version} already", "UpgradeDone")
    return None


def _route(seen: Seen, before: Minor | None, target: UpgradeTarget) -> Line:
    if before is None:
        why = seen.why_no_version or "the file does not have it"
        return unknown(UPGRADE, f"the release of the API server is unknown ({why}), so the steps to it are too", _ASK)
    if not seen.serves_v1 or before < versions.OLDEST:
        text = f"{seen.version} has no resource.k8s.io/v1: the driver works after the upgrade, and not before"
        return wrong(UPGRADE, "KubernetesTooOld", text, f"upgrade to {target.text}, then install the driver")
    steps = [versions.text(minor) for minor in upgrades.path(before, target.minor)]
    by_way_of = f", by way of {', '.join(steps[:-1])}" if steps[1:] else ""
    return ok(UPGRADE, f"from {seen.version} to {target.text}{by_way_of}")


def _driver(target: UpgradeTarget) -> Line:
    tested = f"{versions.text(versions.OLDEST)} to {versions.text(versions.NEWEST)}"
    if target.minor <= versions.NEWEST:
        return ok(DRIVER, f"this release of neuron-dra is for {tested}: it need not change with Kubernetes")
    todo = "look for a release of neuron-dra that names it in docs/compatibility.md, and update to that one first"
    return unknown(DRIVER, f"this release of neuron-dra was tested with {tested}, and not with {target.text}", todo)


def _missing(seen: Seen) -> Line | None:
    """Return why nothing can be said about waiting pods: a kind without which every placement is a guess."""
    for kind in ("Pod", "Node", "ResourceSlice"):
        if why := unseen.kinds(seen.snapshot).get(kind):
            return unknown(PODS, f"what becomes of waiting pods is unknown: {kind}s: {why}")
    return None


# Pods that wait


def _of_pods(seen: Seen, pods: Sequence[PodForecast]) -> Iterator[Line]:
    claims = [ClaimView.of(claim) for claim in seen.snapshot.all("ResourceClaim")]
    allocated = sum(claim.is_allocated for claim in claims)
    if allocated:
        keep = "keeps its" if allocated == 1 else "keep their"
        yield ok(PODS, f"{words.count(allocated, 'allocated claim')} {keep} devices: no release moves a claim")
    waiting = forecast.waiting_pods(seen.snapshot)
    held_back = forecast.gated(waiting)
    if held_back:
        yield ok(PODS, f"{words.count(held_back, 'waiting pod')} with scheduling gates: no scheduler gets them")
    if not pods:
        yield ok(PODS, "no other pod waits for devices" if held_back else "no pod waits for devices")
        return
    stopped = [pod for pod in pods if pod.fits_now and pod.fits_then is False]
    if stopped:
        todo = f"{program.NAME} why pod/NAME after the upgrade; or let them be placed before it"
        text = f"{_waiting(stopped)} can run now and not after it: {_whys(stopped)}"
        yield wrong(PODS, "UpgradeStopsPods", text, todo)
    placed = [pod for pod in pods if pod.fits_now is False and pod.fits_then]
    if placed:
        yield ok(PODS, f"{_waiting(placed)} can run after it and not now: {_gets(placed)}", "UpgradePlacesPods")
    without = [pod for pod in pods if pod.fits_then is None and pod.why and pod.fits_now is not None]
    if without:
        text = f"{_waiting(without)}: whether a node can run it after the upgrade is unknown: {_whys(without)}"
        yield unknown(PODS, text, f"{program.NAME} simulate FILE --fleet FLEET --kubernetes VERSION")
    dark = [pod for pod in pods if pod.fits_now is None or (pod.fits_then is None and not pod.why)]
    if dark:
        named = words.listed((f"{pod.pod} ({_AFTER[pod.fits_then]} after the upgrade)" for pod in dark), _SHOWN)
        text = f"{_waiting(dark)}: on one of the releases the scheduler may give up its long search: {named}"
        yield unknown(PODS, text, "request fewer devices, or allocationMode: All")
    same_fit = sum(pod.fits_now is True and pod.fits_then is True for pod in pods)
    if same_fit:
        yield ok(PODS, f"{words.count(same_fit, 'waiting pod')}: a node can run it before and after the upgrade")
    same_wait = sum(pod.fits_now is False and pod.fits_then is False for pod in pods)
    if same_wait:
        text = f"{words.count(same_wait, 'waiting pod')} waits before and after the upgrade"
        yield ok(PODS, text.replace("pods waits", "pods wait"))
    if foreign_count := forecast.of_other_schedulers(waiting):
        count = words.count(foreign_count, "waiting pod")
        yield unknown(PODS, f"{count} of another scheduler, which is not simulated here")


_AFTER: Final[Mapping[bool | None, str]] = {True: "can run", False: "waits", None: "unknown"}


def _waiting(pods: Sequence[PodForecast]) -> str:
    return words.count(len(pods), "waiting pod")


def _whys(pods: Sequence[PodForecast]) -> str:
    return words.listed((f"{pod.pod} ({pod.why})" for pod in pods), _SHOWN)


def _gets(pods: Sequence[PodForecast]) -> str:
    texts = []
    for pod in pods:
        got = f" gets {words.devices(pod.devices)} of" if pod.devices else " on"
        texts.append(f"{pod.pod}{got} node {pod.node}")
    return f"{words.listed(texts, _SHOWN)}, or as much of another node that serves it as well"


# Features, gates and versions of the API


def _changes(before: Minor | None, target: UpgradeTarget) -> Iterator[Line]:
    """Yield what turns on, and what ends; no object of a cluster shows who sets a gate or requests a version."""
    for change in upgrades.between(before, target.minor, ChangeKind.FEATURE):
        yield ok(FEATURES, f"from {versions.text(change.since)} on, {change.text}", change.name)
    for kind, ends in _GATES.items():
        changes = upgrades.between(before, target.minor, kind)
        gates = [f"{change.name} ({versions.text(change.since)})" for change in changes]
        if gates:
            yield unknown(GATES, f"{words.listed(gates, len(gates))}: {ends}; whether one does cannot be seen", _FLAGS)
    for change in upgrades.between(before, target.minor, ChangeKind.API):
        text = f"{change.name} is removed in {versions.text(change.since)}, and is off by default since 1.34"
        yield unknown(API, f"{text}; whether a client requests it cannot be seen", _requested(change.name))


_GATES: Final = {
    ChangeKind.LOCKED_GATE: "from these versions on, a component that sets such a feature gate to false does not start",
    ChangeKind.REMOVED_GATE: "from these versions on, a component that sets such a feature gate at all does not start",
}
_FLAGS: Final = (
    "remove them from --feature-gates of kube-apiserver, kube-controller-manager and kube-scheduler, and from "
    "featureGates of the kubelets' configuration"
)


def _requested(version: str) -> str:
    """Return the command that shows who still requests a version of an API, by a metric of the API server."""
    group, _, name = version.partition("/")
    metric = "apiserver_requested_deprecated_apis"
    return f"kubectl get --raw /metrics | grep {metric} | grep {group} | grep {name}: a line names what is requested"


# Releases with known faults


def _faults(world: World, before: Minor | None, target: UpgradeTarget) -> Iterator[Line]:
    names = known_faults.kubelets(world)
    now = {met.fault.issue: met for met in known_faults.present(world)}
    then = list(known_faults.with_versions(world, target.version, dict.fromkeys(names, target.version)))
    for met in then:
        if not met.objects:
            continue
        begins = "still has" if met.fault.issue in now else "brings"
        text = f"{target.text} {begins} a fault that meets this cluster: {met.fault.text}: {words.listed(met.objects)}"
        yield wrong(FAULTS, "KubernetesKnownBad", text, _remedy(met.fault, target))
    then_issues = {met.fault.issue for met in then}
    ended = [met for issue, met in now.items() if met.objects and issue not in then_issues]
    for met in ended:
        text = f"the upgrade ends a fault that meets this cluster: {met.fault.text}: {words.listed(met.objects)}"
        yield ok(FAULTS, text)
    yield from _early_releases(world, before, target)
    unmet = [f"#{met.fault.issue}" for met in then if not met.objects]
    if unmet:
        text = f"nothing meets the other known faults of {target.text}: {', '.join(unmet)} (docs/known-faults.md)"
        yield ok(FAULTS, text)


def _remedy(fault: KnownBad, target: UpgradeTarget) -> str:
    fixed = [release for release in fault.fixed_in if release[:2] == target.minor]
    if fixed:
        return f"take {releases.text(fixed[0])} or later"
    return f"it is fixed in {fault.fixed_text}: {fault.driver}".replace("`", "")


def _early_releases(world: World, before: Minor | None, target: UpgradeTarget) -> Iterator[Line]:
    """Yield which releases of each minor version on the way not to take: those with faults that a later one fixes."""
    sets = any(SliceView.of(raw_slice).spec.has_counters for raw_slice in world.snapshot.all("ResourceSlice"))
    for minor in _path(before, target):
        fixed: dict[int, releases.Release] = {}
        for fault in releases.KNOWN_BAD:
            ends = [release for release in fault.fixed_in if release[:2] == minor and release[2] > 0]
            if ends and fault.is_in((*minor, 0)) and not (fault.counts and not sets and not fault.forbids):
                fixed[fault.issue] = ends[0]
        if not fixed:
            continue
        least = max(fixed.values())
        numbers = words.listed((f"#{number}" for number in sorted(fixed)), len(fixed))
        chosen = target.release if minor == target.minor else None
        text = f"releases of {versions.text(minor)} before {releases.text(least)} have known faults: {numbers}"
        if chosen is not None and chosen < least:
            has = [f"#{number}" for number, end in sorted(fixed.items()) if chosen < end]
            text = f"{releases.text(chosen)} has faults that {releases.text(least)} has not: {', '.join(has)}"
            yield wrong(FAULTS, "KubernetesKnownBad", text, f"take {releases.text(least)} (docs/known-faults.md)")
        elif chosen is None:
            yield ok(FAULTS, f"{text}; take {releases.text(least)} or later", "TakeLaterRelease")


# Nodes and jobs


def _nodes(world: World, target: UpgradeTarget) -> Iterator[Line]:
    oldest = upgrades.oldest_kubelet(target.minor)
    behind: dict[str, list[str]] = defaultdict(list)
    dark, old_runtimes = [], []
    for node in world.snapshot.all("Node"):
        name, info = node["metadata"]["name"], KubeletView.of(node).status.node_info
        parsed = versions.parse(info.kubelet_version)
        if parsed is None:
            dark.append(name)
        elif parsed < oldest:
            behind[info.kubelet_version].append(name)
        if info.container_runtime_version.startswith(_CONTAINERD_1):
            old_runtimes.append(name)
    for version, names in sorted(behind.items()):
        text = (
            f"{_named(names)} with kubelet {version}: a control plane of {target.text} supports kubelets from "
            f"{versions.text(oldest)} on"
        )
        yield wrong(NODES, "KubeletTooOld", text, "upgrade these kubelets on the way (below, under steps)")
    if old_runtimes and target.minor >= upgrades.FIRST_WITHOUT_CONTAINERD_1:
        first = versions.text(upgrades.FIRST_WITHOUT_CONTAINERD_1)
        text = f"{_named(old_runtimes)} with containerd 1: kubelets from {first} on need containerd 2"
        yield wrong(NODES, "ContainerdTooOld", text, "use node images with containerd 2 when you upgrade the kubelets")
    if dark:
        yield unknown(NODES, f"the kubelet of {_named(dark)} is unknown")
    if not behind and not dark and world.snapshot.all("Node"):
        yield ok(NODES, f"every kubelet may run with a control plane of {target.text}")


def _named(names: Sequence[str]) -> str:
    return f"{words.count(len(names), 'node')} ({words.listed(sorted(names, key=words.natural))})"


def _jobs(world: World, target: UpgradeTarget) -> Iterator[Line]:
    """Yield what running pods with devices notice: nothing of the control plane, and the drain of their nodes."""
    drained = set()
    for node in world.snapshot.all("Node"):
        parsed = versions.parse(KubeletView.of(node).status.node_info.kubelet_version)
        if parsed is None or parsed < target.minor:
            drained.add(node["metadata"]["name"])
    again: list[str] = []
    alone: list[str] = []
    for pod in world.snapshot.all("Pod"):
        pod_view = PodView.of(pod)
        if pod_view.has_ended or pod_view.spec.node_name not in drained or pod_view.metadata.owners("DaemonSet"):
            continue
        if any(demand.is_ours(world.snapshot, claim.seen) for claim in world.claims_of(pod)):
            name = f"{pod_view.metadata.namespace}/{pod_view.metadata.name}"
            (again if trials.is_created_again(pod) else alone).append(name)
    if not again and not alone:
        yield ok(JOBS, "no pod with Neuron devices runs on a node with an older kubelet")
        return
    count = len(again) + len(alone)
    pods_text = words.listed(sorted(again + alone, key=words.natural))
    text = (
        f"{words.count(count, 'pod')} with Neuron devices on nodes with older kubelets: they run on while the control "
        f"plane is upgraded, and end when their node is drained: {pods_text}"
    )
    yield ok(JOBS, text, "PodsEndWithDrain")
    if alone:
        named = words.listed(sorted(alone, key=words.natural))
        text = f"nothing creates these pods again after a drain, and kubectl drain needs --force for them: {named}"
        yield wrong(JOBS, "PodsNotCreatedAgain", text, "let them end first, or save what you need to create them again")
    for workload in world.snapshot.all("NeuronUltraServerWorkload"):
        seen_workload = WorkloadView.of(workload)
        if seen_workload.status.state in ("Allocated", "PartiallyAllocated"):
            meta = seen_workload.metadata
            text = f"NeuronUltraServerWorkload {meta.namespace}/{meta.name} keeps its nodes while they exist; its "
            yield ok(JOBS, f"{text}failureStrategy decides about nodes that are replaced (docs/ultraservers.md)")


# Steps


def _steps(world: World, before: Minor | None, target: UpgradeTarget) -> Iterator[Line]:
    """Yield the steps: each needs only what the ones before it have done."""
    steps: list[str] = []
    if target.minor > versions.NEWEST:
        steps.append(f"update neuron-dra to a release for {target.text}")
    kubelets: dict[str, Minor] = {}
    for node in world.snapshot.all("Node"):
        parsed = versions.parse(KubeletView.of(node).status.node_info.kubelet_version)
        if parsed is not None:
            kubelets[node["metadata"]["name"]] = parsed
    for minor in _path(before, target):
        # A kubelet is never newer than its control plane: these nodes get what the control plane has by now.
        behind = [name for name, version in kubelets.items() if version < upgrades.oldest_kubelet(minor)]
        if behind:
            reached = minor[0], minor[1] - 1
            steps.append(f"{_named(behind)}: kubectl drain, kubelet {versions.text(reached)}, kubectl uncordon")
            kubelets.update(dict.fromkeys(behind, reached))
        own = target.text if minor == target.minor else versions.text(minor)
        steps.append(f"control plane {own}: kube-apiserver, then kube-controller-manager and kube-scheduler")
    # In-place upgrades of a kubelet to another minor version are not supported with pods (version skew policy).
    if before == target.minor:
        how = f"kubelet {target.text}"
    else:
        how = f"kubectl drain, kubelet {target.text}, kubectl uncordon"
    steps.append(
        f"nodes, one after the other: {how}; the slices of a node are gone until its driver pod has published again"
    )
    steps.append(f"kubectl {target.text}, then {program.NAME} doctor")
    for number, text in enumerate(steps, start=1):
        yield ok(STEPS, f"{number}. {text}", "UpgradeStep")


def _path(before: Minor | None, target: UpgradeTarget) -> list[Minor]:
    """Return the minor versions of the control plane on the way; of an unknown one, and for a patch, the last."""
    return (upgrades.path(before, target.minor) if before is not None else []) or [target.minor]
