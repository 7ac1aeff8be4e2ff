"""Places pods one after the other on a snapshot, and keeps what each gets. Pure."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from neuron_dra.ask.read.manifests import NODE_NAME
from neuron_dra.ask.read.snapshot import Key, Snapshot, key_of
from neuron_dra.ask.render.findings import Finding
from neuron_dra.ask.why import creating, situations, trials
from neuron_dra.ask.world import absent, demand, gangs, placing, users
from neuron_dra.ask.world.demand import PodClaim
from neuron_dra.ask.world.resources import NodeRoom
from neuron_dra.ask.world.world import World
from neuron_dra.core import causes, members, names
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import allocator, model, nodes
from neuron_dra.simulate.failures import Failure
from neuron_dra.simulate.scheduler import Placement


@dataclass(frozen=True, slots=True)
class PodOutcome:
    """What happens to one pod: its placement, or why it waits.

    - `rejected`: why the driver would reject it there; empty if it would not.
    - `also`: what else of its claims no node could serve.
    - `undecided`: it waits in the simulation, and Kubernetes' scheduler may decide otherwise.
    - `shared`: the allocations of its claims that others had before it was placed, by the keys of the claims.
    """

    pod: Wire
    placement: Placement | None
    finding: Finding | None = None
    rejected: str = ""
    shared: Mapping[Key, Wire] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    undecided: bool = False

    @property
    def runs(self) -> bool:
        """True if the pod runs."""
        return self.placement is not None and not self.rejected

    def devices(self, shared: Collection[Key]) -> tuple[list[str], list[str]]:
        """Return the devices that the pod has for itself, and those of claims that it shares, which are in `shared`."""
        if self.placement is None:
            return [], []
        own_allocations: list[Wire] = []
        shared_allocations = list(self.shared.values())
        for name, allocation in self.placement.allocations.items():
            key = "ResourceClaim", self.pod["metadata"].get("namespace") or "", name
            (shared_allocations if key in shared else own_allocations).append(allocation)
        return _devices(own_allocations), _devices(shared_allocations)


def _devices(allocations: Iterable[Wire]) -> list[str]:
    results = itertools.chain.from_iterable(allocation["devices"].get("results") or () for allocation in allocations)
    return [result["device"] for result in results]


def is_predictable(world: World, placement: Placement) -> bool:
    """Return True if the scheduler tries the devices on the node of a placement always in the same order."""
    drivers: set[str] = set()
    for allocation in placement.allocations.values():
        drivers.update(result["driver"] for result in allocation["devices"].get("results") or ())
    return world.inventory.is_ordered(world.decoded(world.nodes[placement.node]), drivers)


class Simulation:
    """A cluster that fills up. Pods with equal demands try only the nodes on which the last of them did not fail.

    Without `explains`, the finding of a pod that waits is the scheduler's message, and no cause is looked for.
    """

    def __init__(self, world: World, *, explains: bool = True) -> None:
        self._world = world
        self._explains = explains
        self._waiting: list[Wire] = []  # objects that the world does not have yet
        self._used = set(world.in_use)
        self._room = NodeRoom(world.snapshot, world.placed_pods)
        self._left: dict[bytes, list[Wire]] = {}  # by demand: the nodes that may still fit
        self._failed: dict[bytes, PodOutcome] = {}

    def run(self, pods: Iterable[Wire]) -> list[PodOutcome]:
        """Return what happens to each pod, in order; the pods of a gang are placed together, at the first of them."""
        listed = list(pods)
        mates: dict[tuple[str, str], list[Wire]] = defaultdict(list)
        for pod in listed:
            mates[_gang_of(pod)].append(pod)
        done: dict[Key, PodOutcome] = {}
        for pod in listed:
            if key_of(pod) in done:
                continue
            namespace, group = _gang_of(pod)
            least = gangs.least(self._world.snapshot, namespace, group)
            if least > 1:
                outcomes = self._gang(mates[namespace, group], group, least)
            else:
                outcomes = [self._one(pod)]
            done |= {key_of(outcome.pod): outcome for outcome in outcomes}
        return [done[key_of(pod)] for pod in listed]

    def _gang(self, pods: Sequence[Wire], group: str, least: int) -> list[PodOutcome]:
        """Place the pods of a gang, if at least so many of them fit at once; else none of them."""
        trial = self._copy()
        outcomes = [trial._one(pod) for pod in pods]
        fit = sum(outcome.runs for outcome in outcomes)
        namespace = pods[0]["metadata"].get("namespace") or ""
        if fit + gangs.running(self._world.snapshot, namespace, group) >= least:
            self.__dict__.update(trial.__dict__)
            return outcomes
        first = next((outcome.finding for outcome in outcomes if outcome.finding is not None), None)
        why = f": {first.text}" if first is not None else ""
        finding = Finding(
            "GangWaits", f"PodGroup {group} needs {least} pods at once, and {fit} of {len(pods)} fit{why}"
        )
        undecided = any(outcome.undecided for outcome in outcomes)
        return [PodOutcome(pod, None, finding, undecided=undecided) for pod in pods]

    def _copy(self) -> Simulation:
        """Return a simulation that goes on from here, and changes nothing here."""
        copied = Simulation(self._world, explains=self._explains)
        copied._waiting, copied._used = list(self._waiting), set(self._used)
        copied._room = self._room.copy()
        copied._left = {key: list(nodes) for key, nodes in self._left.items()}
        copied._failed = dict(self._failed)
        return copied

    @property
    def world(self) -> World:
        """The world with everything that was placed."""
        if self._waiting:
            self._world, self._waiting = self._world.after(self._waiting), []
        return self._world

    def _one(self, pod: Wire) -> PodOutcome:
        past = (pod["metadata"].get("annotations") or {}).get(NODE_NAME)
        if past and demand.wants_devices(pod):
            text = f"its spec.nodeName {past} keeps it from the scheduler, so nothing allocates its claim"
            return PodOutcome(pod, None, Finding("SchedulerBypassed", text))
        claims = self._world.claims_of(pod)
        key = msgspec.json.encode((pod["metadata"].get("namespace"), pod["spec"]))
        alike = self._simple(claims)
        if alike and key in self._failed:
            return replace(self._failed[key], pod=pod)
        placement = self._fast(pod, claims, key) if alike else None
        if placement is None:
            outcome = self._slow(pod)
            if alike and outcome.finding is not None:
                self._failed[key] = outcome
            return outcome
        return self._keep(self._world, pod, placement)

    def _simple(self, claims: list[PodClaim]) -> bool:
        """Return True if the pod's claims are its own, and their first solution on a node is as good as any."""
        if self._world.snapshot.all("ResourceQuota"):
            return False
        for pod_claim in claims:
            if pod_claim.template is None or pod_claim.claim is None:
                return False
            devices = pod_claim.claim["spec"].get("devices") or {}
            if any(request.get("firstAvailable") for request in devices.get("requests") or ()):
                return False
        return True

    def _fast(self, pod: Wire, claims: list[PodClaim], key: bytes) -> Placement | None:
        """Return a placement on the first node that fits; None where the whole simulation has to decide."""
        world = self._world
        if key not in self._left:
            checked = self.world.place(pod)  # also finds errors of selectors, which hold everywhere
            if not isinstance(checked, Placement) or creating.problem(self._world, pod):
                return None
            if not trials.scheduled(self._world, pod):
                return None
            world = self._world
            admitting = [node for node in world.nodes.values() if not nodes.objection(pod, model.node(node))]
            self._left[key] = admitting[::-1]  # taken from its end
        remaining_nodes = self._left[key]
        demands = [model.claim(pod_claim.claim) for pod_claim in claims if pod_claim.claim is not None]
        while remaining_nodes:
            node = model.node(remaining_nodes[-1])
            if not self._room.lacking(pod, remaining_nodes[-1]):
                allocation = allocator.allocate(node, demands, world.inventory, world.classes, self._used, world.memo)
                if not isinstance(allocation, Failure):
                    allocation_by_name = zip((claim.name for claim in demands), allocation.allocations, strict=True)
                    return Placement(node.name, dict(allocation_by_name))
            remaining_nodes.pop()  # the cluster only fills up: what does not fit now never will
        return None

    def _slow(self, pod: Wire) -> PodOutcome:
        """Place a pod with the whole simulation."""
        world = self.world
        message, undecided = "the scheduler does not get it", False
        if creating.problem(world, pod) is None and trials.scheduled(world, pod):
            placement = world.place(pod)
            if isinstance(placement, Placement):
                return self._keep(world, pod, placement)
            message, undecided = placement.message, placement.undecided
        if not self._explains:
            return PodOutcome(pod, None, Finding("Unschedulable", message), undecided=undecided)
        first, *other_findings = situations.waiting(world.after([pod]), pod)
        also: list[str] = []
        if first.code in causes.REQUESTS:
            also = [finding.text for finding in other_findings if finding.code in causes.REQUESTS]
        return PodOutcome(pod, None, first, also=tuple(also), undecided=undecided)

    def _keep(self, world: World, pod: Wire, placement: Placement) -> PodOutcome:
        if refused := absent.rejected_name(world, pod, placement.node):
            return PodOutcome(pod, None, Finding("KubeletRejectsName", refused))
        shared = {key_of(claim): claim["status"]["allocation"] for claim in trials.allocated(world, pod)}
        placed = placing.placed_objects(world, pod, placement)
        self._waiting += placed
        claims = [placed_object for placed_object in placed if placed_object["kind"] == "ResourceClaim"]
        self._used |= allocator.devices_in_use(claims)
        self._room.add(placed[-1])
        return PodOutcome(pod, placement, rejected=trials.refused(world, pod, placement), shared=shared)


def held(world: World) -> dict[str, tuple[int, int]]:
    """Return how many of this driver's devices are held, at least in part, and how many are published, by their unit.

    The unit is a device, or a node that is published as a whole.
    """
    published: Counter[str] = Counter()
    for raw_slice in world.snapshot.all("ResourceSlice"):
        if raw_slice["spec"]["driver"] == names.DRIVER:
            for raw_device in raw_slice["spec"].get("devices") or ():
                if not members.is_partition(raw_device["name"]):
                    published[_unit(raw_device["name"])] += 1
    used: set[tuple[str, str]] = set()
    for device in world.in_use:
        if device.driver == names.DRIVER:
            parts = members.of(device.device, world.type_of(device.pool))
            if parts is not None:
                device_names = [f"{names.DEVICE_PREFIX}{device_id}" for device_id in parts.ids]
            else:
                device_names = [device.device]
            used |= {(device.pool, name) for name in device_names}
    taken = Counter(_unit(name) for _, name in used)
    return {unit: (taken[unit], number) for unit, number in sorted(published.items())}


def _unit(name: str) -> str:
    return "node" if name == names.NODE_DEVICE else "device"


def _gang_of(pod: Wire) -> tuple[str, str]:
    return pod["metadata"].get("namespace") or "", users.group_of(pod)


TOLERATED: Final = ("unschedulable", "not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure")
"""Taints node.kubernetes.io/... that all pods of DaemonSets tolerate."""


def on_each_node(daemon: Wire, snapshot: Snapshot) -> Iterator[Wire]:
    """Yield the pods of a DaemonSet: one for each node on which it may run, bound to it by its affinity."""
    spec = daemon["spec"]
    tolerated = []
    for taint_name in TOLERATED:
        tolerated.append({"key": f"node.kubernetes.io/{taint_name}", "operator": "Exists"})
    tolerant = {**daemon, "spec": {**spec, "tolerations": [*(spec.get("tolerations") or ()), *tolerated]}}
    for node in snapshot.all("Node"):
        if nodes.objection(tolerant, model.node(node)):
            continue
        name = node["metadata"]["name"]
        fields = [{"key": "metadata.name", "operator": "In", "values": [name]}]
        required = {"nodeSelectorTerms": [{"matchFields": fields}]}
        node_affinity = {"requiredDuringSchedulingIgnoredDuringExecution": required}
        meta = {**daemon["metadata"], "name": f"{daemon['metadata']['name']}-{name}"}
        meta["uid"] = f"{daemon['metadata'].get('uid')}-{name}"
        affinity = {**(spec.get("affinity") or {}), "nodeAffinity": node_affinity}
        yield {**tolerant, "metadata": meta, "spec": {**tolerant["spec"], "affinity": affinity}}
