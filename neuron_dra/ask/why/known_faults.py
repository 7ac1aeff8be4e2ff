"""Known faults of Kubernetes' releases (`core.releases`): which of them a cluster has, and what they meet. Pure."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final

from neuron_dra.ask.read.claim_views import ClaimView
from neuron_dra.ask.read.node_views import DeviceFields, SliceView, TaintRuleView
from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.render import words
from neuron_dra.ask.world import demand, users
from neuron_dra.ask.world.demand import FROM_LIMITS
from neuron_dra.ask.world.selection import PublishedDevices
from neuron_dra.ask.world.world import World, tainted
from neuron_dra.core import names, releases
from neuron_dra.core.releases import KnownBad
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import allocator

_CONTAINERD: Final = "containerd://2."
"""A runtime that takes each CDI device once, whatever the kubelet passes (internal/cri/opts of containerd 2.4.2)."""


@dataclass(frozen=True, slots=True)
class MetFault:
    """A known fault of a release that runs here.

    - `where`: the component and its version, such as "kubelet v1.36.3 of node a".
    - `objects`: what of the cluster meets it, such as "pod ml/train-0"; empty if nothing does now.
    - `pods`: the pods that it concerns, as namespace and name.
    """

    fault: KnownBad
    where: str
    objects: tuple[str, ...]
    pods: frozenset[tuple[str, str]] = frozenset()

    @property
    def text(self) -> str:
        """The fault and what meets it, for people."""
        return f"{self.where}: {self.fault.text}: {words.listed(self.objects)}"

    @property
    def remedy(self) -> str:
        """What ends it."""
        what = "the kubelet" if self.fault.component == releases.KUBELET else "the control plane"
        return f"upgrade {what} to {self.fault.fixed_text}, or later"


@dataclass(slots=True)
class _Concerned:
    """What a fault concerns; pods by namespace and name."""

    objects: list[str]
    pods: set[tuple[str, str]]

    @classmethod
    def of_pods(cls, pods: Iterable[tuple[str, str]]) -> _Concerned:
        pod_keys = sorted(set(pods), key=lambda key: (key[0], words.natural(key[1])))
        return cls([f"pod {namespace}/{name}" for namespace, name in pod_keys], set(pod_keys))


@functools.lru_cache(maxsize=1)  # one command asks about many pods of one world
def present(world: World) -> tuple[MetFault, ...]:
    """Return the known faults of the control plane's release and of the kubelets' releases, in the table's order."""
    return tuple(with_versions(world, world.snapshot.version, kubelets(world)))


def with_versions(world: World, control_plane: str, kubelets: Mapping[str, str]) -> Iterator[MetFault]:
    """Yield the known faults of these versions; `kubelets` are those of nodes with Neuron devices, by node."""
    for fault in releases.KNOWN_BAD:
        concerned_by = _CONCERNED_BY.get(fault.issue)
        if concerned_by is None:
            continue  # what recognises it is elsewhere: `doctor.counters`, `why.node`, `why.bound`
        if fault.component == releases.KUBELET:
            nodes = {name for name, version in kubelets.items() if fault.affects(version)}
            if not nodes:
                continue
            versions = sorted({kubelets[name] for name in nodes})
            listed_nodes = words.listed(sorted(nodes, key=words.natural))
            where = f"kubelet {words.listed(versions)} of {words.count(len(nodes), 'node')} ({listed_nodes})"
        else:
            nodes = set(kubelets)
            if not fault.affects(control_plane):
                continue
            where = f"{fault.component} {control_plane}"
        concerned = concerned_by(world, nodes)
        yield MetFault(fault, where, tuple(concerned.objects), frozenset(concerned.pods))


def of_pod(world: World, pod: Wire) -> tuple[str, ...]:
    """Return a note for each known fault that concerns a pod."""
    meta = PodView.of(pod).metadata
    key = (meta.namespace, meta.name)
    return tuple(f"{met.where}: {met.fault.text}" for met in present(world) if key in met.pods)


def kubelets(world: World) -> dict[str, str]:
    """Return the version of the kubelet of each node that publishes Neuron devices."""
    version_by_node = {}
    for name in world.nodes:
        if world.specs_of(name):
            version_by_node[name] = world.node(name).status.node_info.kubelet_version
    return version_by_node


# What a fault concerns: each function gets the nodes whose component has it.


def _pods_that_share(world: World, nodes: Set[str]) -> _Concerned:
    sharing_by_claim: dict[tuple[str, str], list[str]] = defaultdict(list)
    for pod in _living(world, nodes):
        pod_view = PodView.of(pod)
        for claim in world.claims_of(pod):
            if claim.claim is not None and (
                demand.is_ours(world.snapshot, claim.seen) or demand.has_interfaces(claim.seen)
            ):
                sharing_by_claim[pod_view.metadata.namespace, claim.seen.metadata.name].append(pod_view.metadata.name)
    pods = []
    for (namespace, _), sharing in sharing_by_claim.items():
        if len(sharing) > 1:
            pods += [(namespace, name) for name in sharing]
    return _Concerned.of_pods(pods)


def _pods_with_several_claims(world: World, nodes: Set[str]) -> _Concerned:
    pods = []
    for pod in _living(world, nodes):
        pod_view = PodView.of(pod)
        runtime = world.node(pod_view.spec.node_name).status.node_info.container_runtime_version
        claims = world.claims_of(pod)
        is_met = len(claims) > 1 and any(demand.is_ours(world.snapshot, claim.seen) for claim in claims)
        if is_met and runtime and not runtime.startswith(_CONTAINERD):
            pods.append((pod_view.metadata.namespace, pod_view.metadata.name))
    return _Concerned.of_pods(pods)


def _claims_of_one_device(world: World, nodes: Set[str]) -> _Concerned:
    holders: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for claim in world.snapshot.all("ResourceClaim"):
        meta = ClaimView.of(claim).metadata
        for device in set(allocator.devices_of(claim)):
            if device.driver == names.DRIVER:
                holders[device].append(f"claim {meta.namespace}/{meta.name}")
    twice = set()
    for claims in holders.values():
        if len(claims) > 1:
            twice.update(claims)
    pods: set[tuple[str, str]] = set()
    for claim in world.snapshot.all("ResourceClaim") if twice else ():
        meta = ClaimView.of(claim).metadata
        if f"claim {meta.namespace}/{meta.name}" in twice:
            pods.update((meta.namespace, name) for name in users.pods(world.snapshot, claim))
    # Nothing in a cluster shows that it will not happen.
    return _Concerned(sorted(twice) or ["no device has two claims now"] if nodes else [], pods)


def _pods_for_all_beside_a_broken_pool(world: World, nodes: Set[str]) -> _Concerned:
    waiting = [key for key, claim in _waiting(world) if _wants_all(claim)]
    unusable = PublishedDevices(world).unusable if waiting else {}
    if not unusable:
        return _Concerned([], set())
    concerned = _Concerned.of_pods(waiting)
    concerned.objects += unusable.values()
    return concerned


def _rules_without_a_selector(world: World, nodes: Set[str]) -> _Concerned:
    rules = []
    for rule in world.snapshot.all("DeviceTaintRule"):
        rule_view = TaintRuleView.of(rule)
        if rule_view.spec.device_selector is None:
            rules.append(f"DeviceTaintRule {rule_view.metadata.name}")
    return _Concerned(sorted(rules), {key for key, _ in _waiting(world)} if rules else set())


def _waiting(world: World) -> Iterator[tuple[tuple[str, str], ClaimView]]:
    """Yield namespace and name of each pod without a node that waits for Neuron devices, with a claim of it."""
    for pod in world.snapshot.all("Pod"):
        pod_view = PodView.of(pod)
        if pod_view.spec.node_name or pod_view.has_ended:
            continue
        for claim in world.claims_of(pod):
            if not claim.seen.is_allocated and demand.is_ours(world.snapshot, claim.seen):
                yield (pod_view.metadata.namespace, pod_view.metadata.name), claim.seen


def _pods_that_stay_on_tainted_devices(world: World, nodes: Set[str]) -> _Concerned:
    evicting = _evicting_devices(world)
    pods = []
    for pod in _living(world, nodes) if evicting else ():
        meta = PodView.of(pod).metadata
        for claim in world.claims_of(pod):
            held_devices = {(result.driver, result.pool, result.device) for result in claim.seen.results}
            if claim.entry == FROM_LIMITS and held_devices & evicting:
                pods.append((meta.namespace, meta.name))
    return _Concerned.of_pods(pods)


def _rules_beside_sets(world: World, nodes: Set[str]) -> _Concerned:
    rules = [f"DeviceTaintRule {rule['metadata']['name']}" for rule in world.snapshot.all("DeviceTaintRule")]
    counted = any(spec.is_ours and spec.has_counters for name in nodes for spec in world.specs_of(name))
    return _Concerned(sorted(rules) if counted else [], set())


_CONCERNED_BY: Final[Mapping[int, Callable[[World, Set[str]], _Concerned]]] = {
    releases.UNPREPARES_SHARED: _pods_that_share,
    releases.TWICE_THE_SAME_IDS: _pods_with_several_claims,
    releases.ALLOCATES_TWICE: _claims_of_one_device,
    releases.RULE_FOR_ALL: _rules_without_a_selector,
    releases.LIMITS_NOT_EVICTED: _pods_that_stay_on_tainted_devices,
    releases.ALL_WAIT_FOR_ONE: _pods_for_all_beside_a_broken_pool,
    releases.RULES_AND_SETS: _rules_beside_sets,
}


def _wants_all(claim: ClaimView) -> bool:
    return any(alternative.wants_all for request in claim.requests for alternative in request.alternatives)


def _living(world: World, nodes: Set[str]) -> Iterator[Wire]:
    """Yield the pods on these nodes that have not ended."""
    for pod in world.snapshot.all("Pod"):
        pod_view = PodView.of(pod)
        if pod_view.spec.node_name in nodes and not pod_view.has_ended:
            yield pod


def _evicting_devices(world: World) -> set[tuple[str, str, str]]:
    """Return driver, pool and name of each Neuron device that has a taint with the effect NoExecute."""
    evicting_devices = set()
    for raw_slice in tainted(world.snapshot.all("ResourceSlice"), world.snapshot):
        spec = SliceView.of(raw_slice).spec
        for device in spec.published if spec.is_ours else ():
            if any(taint.get("effect") == "NoExecute" for taint in DeviceFields.of(device).taints):
                evicting_devices.add((spec.driver, spec.pool.name, device["name"]))
    return evicting_devices
