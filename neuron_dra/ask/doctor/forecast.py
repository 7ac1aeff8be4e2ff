"""What a release of Kubernetes does with the pods that wait: the simulator with the rules of both releases. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuron_dra.ask.read.claim_views import AllocationView, ResultView
from neuron_dra.ask.read.node_views import SliceView
from neuron_dra.ask.read.pod_views import PodPlace, PodView
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.render import words
from neuron_dra.ask.simulate import simulation
from neuron_dra.ask.simulate.simulation import PodOutcome, Simulation
from neuron_dra.ask.why import trials
from neuron_dra.ask.world import demand, imagined, server, unseen
from neuron_dra.ask.world.world import World
from neuron_dra.core import versions
from neuron_dra.core.upgrades import UpgradeTarget
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import semantics
from neuron_dra.simulate.scheduler import Placement
from neuron_dra.simulate.semantics import Semantics


@dataclass(frozen=True, slots=True)
class PodForecast:
    """What becomes of a waiting pod.

    - `pod`: its namespace and name.
    - `fits_now`, `fits_then`: whether a node can run it, on the release that runs and on the one to upgrade to; None if
      the simulation does not decide it.
    - `node`, `devices`: where it fits then, and what it gets there; no devices if the scheduler's order is not known.
    - `why`: why it does not fit then, or why that is unknown.
    """

    pod: str
    fits_now: bool | None
    fits_then: bool | None
    node: str = ""
    devices: tuple[str, ...] = ()
    why: str = ""

    def to_wire(self) -> dict[str, Any]:
        """Return the forecast for `-o json` and `-o yaml`."""
        return {
            "pod": self.pod,
            "fitsNow": self.fits_now,
            "fitsThen": self.fits_then,
            **({"node": self.node} if self.node else {}),
            **({"devices": list(self.devices)} if self.devices else {}),
            **({"why": self.why} if self.why else {}),
        }


def waiting_pods(snapshot: Snapshot) -> list[Wire]:
    """Return the pods that wait for devices, in the scheduler's order: by priority, then by age."""
    waiting = []
    for pod in snapshot.all("Pod"):
        pod_place = PodPlace.of(pod)
        if pod_place.spec.node_name or pod_place.has_ended or pod_place.metadata.deletion_timestamp:
            continue
        if demand.wants_devices(pod) or demand.claims_of(snapshot, pod):
            waiting.append(pod)
    return sorted(waiting, key=_rank)


def _rank(pod: Wire) -> tuple[int, str, str, str]:
    pod_view = PodView.of(pod)
    meta = pod_view.metadata
    return -pod_view.spec.priority, str(meta.creation_timestamp or ""), meta.namespace, meta.name


def rules_now(snapshot: Snapshot) -> Semantics:
    """Return the scheduler's rules on the release that runs, with the taints that a gate may have turned on."""
    rules = semantics.of(server.version(snapshot))
    return dataclasses.replace(rules, taints=server.rules(snapshot).taints)


def rules_then(snapshot: Snapshot, target: UpgradeTarget) -> Semantics:
    """Return the scheduler's rules on the release to upgrade to."""
    rules = semantics.of(target.minor)
    return dataclasses.replace(rules, taints=rules.taints or server.rules(snapshot).taints)


@dataclass(frozen=True, slots=True)
class SimulatedUpgrade:
    """The waiting pods, placed one after the other on each of the releases; the worlds are those before that."""

    world_now: World
    now: Sequence[PodOutcome]
    world_then: World
    then: Sequence[PodOutcome]

    def forecasts(self) -> list[PodForecast]:
        """Return what becomes of each pod."""
        forecasts = []
        for now, then in zip(self.now, self.then, strict=True):
            forecast = _forecast(now, then, self.world_then)
            why = _unseen(self.world_then, then.pod) if forecast.fits_then is False else ""
            forecasts.append(dataclasses.replace(forecast, fits_then=None, why=why) if why else forecast)
        return forecasts


def simulated(snapshot: Snapshot, target: UpgradeTarget) -> SimulatedUpgrade:
    """Place the waiting pods on the release that runs, and on the one to upgrade to."""
    pods = [pod for pod in waiting_pods(snapshot) if not PodView.of(pod).spec.scheduling_gates]
    upgraded = _upgraded(snapshot, target)
    before = World(snapshot, proposes=False, rules=rules_now(snapshot))
    after = World(upgraded, proposes=False, rules=rules_then(snapshot, target))
    then = Simulation(after, explains=False).run(pods)
    # Equal rules place the same pods, unless a kubelet that is too old would reject some of them.
    if before.rules == after.rules and upgraded.all("Node") is snapshot.all("Node"):
        now = then
    else:
        now = Simulation(before, explains=False).run(pods)
    return SimulatedUpgrade(before, now, after, then)


def _upgraded(snapshot: Snapshot, target: UpgradeTarget) -> Snapshot:
    """Return the snapshot with kubelets that accept what the release's scheduler allocates.

    Only one thing of a kubelet matters for a placement: those before 1.36 reject resources of DeviceClasses.
    """
    nodes = []
    for node in snapshot.all("Node"):
        parsed = versions.parse(server.kubelet(node))
        if parsed is not None and parsed < min(target.minor, versions.FIRST_WITH_CLASS_RESOURCES):
            nodes.append(_with_kubelet(node, target.version))
    changed = snapshot.changed(nodes) if nodes else snapshot
    return dataclasses.replace(changed, version=target.version)


def _with_kubelet(node: Wire, version: str) -> Wire:
    status: Mapping[str, Any] = node.get("status") or {}
    info = {**(status.get("nodeInfo") or {}), "kubeletVersion": version}
    return {**node, "status": {**status, "nodeInfo": info}}


def _forecast(now: PodOutcome, then: PodOutcome, after: World) -> PodForecast:
    meta = PodView.of(then.pod).metadata
    pod_forecast = PodForecast(f"{meta.namespace}/{meta.name}", _fits(now), _fits(then))
    if then.placement is not None and then.runs:
        return dataclasses.replace(pod_forecast, node=then.placement.node, devices=_devices(then.placement, after))
    if then.finding is not None:
        return dataclasses.replace(pod_forecast, why=then.finding.text)
    return dataclasses.replace(pod_forecast, why=then.rejected)


def _unseen(world: World, pod: Wire) -> str:
    """Return why a pod that waits in the simulation may run all the same: what it needs is not in the snapshot."""
    claims = world.claims_of(pod)
    lacking = {"ResourceClaim", "ResourceClaimTemplate", "DeviceClass"} & unseen.kinds(world.snapshot).keys()
    if lacking and any(claim.claim is None for claim in claims):
        return f"not all of its objects are known: the snapshot has no {words.listed(sorted(lacking))}"
    claim_objects = [claim.template or claim.claim for claim in claims if claim.claim is not None]
    requesting = [pod, *filter(None, claim_objects)]
    sizes = imagined.requested_sets(Snapshot({}).changed(requesting))
    published = any(SliceView.of(raw_slice).spec.has_counters for raw_slice in world.snapshot.all("ResourceSlice"))
    if sizes and not published and world.rules.partitions:
        return f"it requests {words.listed(sorted(sizes))}, which nodes publish only with scheduler.enabled"
    return ""


def _fits(outcome: PodOutcome) -> bool | None:
    if outcome.undecided and not outcome.runs:
        return None
    return outcome.runs


def _devices(placement: Placement, after: World) -> tuple[str, ...]:
    """Return the devices of a placement; none if the scheduler's order of them is not known."""
    if not simulation.is_predictable(after, placement):
        return ()
    results: list[ResultView] = []
    for allocation in placement.allocations.values():
        results += AllocationView.of(allocation).devices.results
    return tuple(result.device for result in results)


def gated(pods: Iterable[Wire]) -> int:
    """Return how many of the pods scheduling gates keep from every scheduler."""
    return sum(bool(PodView.of(pod).spec.scheduling_gates) for pod in pods)


def of_other_schedulers(pods: Iterable[Wire]) -> int:
    """Return how many of the pods another scheduler than Kubernetes' own handles."""
    names = (PodView.of(pod).spec.scheduler_name for pod in pods)
    return sum(name not in ("", trials.DEFAULT_SCHEDULER) for name in names)
