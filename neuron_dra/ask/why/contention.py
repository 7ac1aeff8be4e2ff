"""Devices that are in use: by whom, and whether as a leftover, in a rollout, or scattered. Pure."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from neuron_dra.ask.read.claim_views import ClaimView
from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import Facts, Finding, ProposedChange, working
from neuron_dra.ask.why import trials
from neuron_dra.ask.world import budgets, fleet, relevance, selection, users
from neuron_dra.ask.world.blockers import Blocked
from neuron_dra.ask.world.demand import FROM_LIMITS
from neuron_dra.ask.world.selection import PublishedDevices
from neuron_dra.ask.world.world import Holder, World
from neuron_dra.core import names
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import allocator, constraints, model
from neuron_dra.simulate.failures import Failure
from neuron_dra.simulate.model import Constraint, DeviceId, PoolDevice
from neuron_dra.simulate.scheduler import Placement

_HASH: Final = "pod-template-hash"
HOLDERS_TRIED: Final = 12


def finding(world: World, pod: Wire, nodes: Sequence[Blocked]) -> Finding:
    """Return the finding for nodes on which devices in use are all that is in the pod's way."""
    facts = Facts()
    facts.some("held", (detail(world, node) for node in nodes), most=3, of=len(nodes))
    facts.some("protected", protection(world, nodes[:3]), most=2)
    facts.add("priority", _priority_does_not_help(world, pod, nodes))
    special = _leftovers(world, pod, nodes) or _rollout(world, pod, nodes)
    if special is not None:
        return replace(special, facts=(*special.facts, *facts.done()))
    torn = _fragmented(world, pod, nodes)
    changes = working(_changes(world, pod, nodes)) if world.proposes else ()
    if torn is not None:
        return replace(torn, facts=(*torn.facts, *facts.done()), changes=changes)
    return Finding("DevicesInUse", _in_use(world, nodes), facts.done(), changes)


def _in_use(world: World, nodes: Sequence[Blocked]) -> str:
    """Return the first line about nodes whose devices are in use; UltraServers publish a node as one device."""
    holdings = list(itertools.chain.from_iterable(holders(world, node) for node in nodes))
    is_whole = all(devices == [names.NODE_DEVICE] for _, devices in holdings)
    if len(nodes) == 1:
        where, has = f"node {nodes[0].name}", "is in use as a whole" if is_whole else "has too few free devices"
    else:
        where, has = f"{len(nodes)} nodes", "are in use as a whole" if is_whole else "have too few free devices"
    return f"{where} {has}: {_who(world, holdings)}"


def detail(world: World, blocked: Blocked) -> str:
    """Return who holds which devices of a node."""
    kind = world.type_of(blocked.name)
    texts = []
    for holder, devices in sorted(holders(world, blocked), key=lambda holding: -len(holding[1])):
        texts.append(f"{words.devices(devices, kind)} by {holder}")
    return f"node {blocked.name}: {words.listed(texts)}"


def holders(world: World, blocked: Blocked) -> list[tuple[Holder, list[str]]]:
    """Return who holds devices of a node that a pod could use, and which: one entry for each claim."""
    devices = world.likeness.devices(world.decoded(blocked.node))
    if blocked.drivers:
        devices = [device for device in devices if device.id.driver in blocked.drivers]
    held_by = map(world.holders.get, map(_id_of, devices))
    holding_by_id: dict[int, tuple[Holder, list[str]]] = {}  # by identity, as a claim has one holder
    for device, holder in zip(devices, held_by, strict=True):
        if holder is None:
            continue
        _, held_devices = holding_by_id.setdefault(id(holder), (holder, []))
        held_devices.append(device.id.device)
    return list(holding_by_id.values())


_id_of: Final = operator.attrgetter("id")


def _only_pod(world: World, holder: Holder) -> Wire | None:
    """Return the pod of a claim that one pod uses; None if none does, or several."""
    if len(holder.pods) != 1:
        return None
    return world.snapshot.get("Pod", holder.pods[0], holder.namespace)


def _leftovers(world: World, pod: Wire, nodes: Sequence[Blocked]) -> Finding | None:
    """Return the finding for claims that should have been released, if the pod would fit without them."""
    leftovers: list[tuple[Blocked, Holder, list[str], str]] = []
    for node in nodes:
        for holder, devices in holders(world, node):
            if why := users.leftover(world.snapshot, holder.claim):
                leftovers.append((node, holder, devices, why))
    released = [{**holder.claim, "status": {}} for _, holder, _, _ in leftovers]
    if not released or not isinstance(world.after(released).place(pod), Placement):
        return None
    node, holder, devices, why = leftovers[0]
    if devices == [names.NODE_DEVICE]:
        holding_text = f"holds node {node.name}"
    else:
        holding_text = f"holds {words.amount(devices)} of node {node.name}"
    text = f"the claim {holder.key} {holding_text} {why}: kube-controller-manager has not released it"
    facts = Facts()
    facts.some("leftover", (f"claim {leftover_holder.key} {reason}" for _, leftover_holder, _, reason in leftovers))
    facts.add("to check", "does kube-controller-manager run, and does its log name the claim?")
    return Finding("ClaimNotReleased", text, facts.done())


def _rollout(world: World, pod: Wire, nodes: Sequence[Blocked]) -> Finding | None:
    """Return the finding for a new pod of a Deployment that waits for the devices of an old one."""
    deployment = deployment_of(pod)
    if not deployment:
        return None
    for node in nodes:
        for holder, _ in holders(world, node):
            old = _only_pod(world, holder)
            if old is None or not _replaces(pod, old):
                continue
            released_claims, removed = trials.released(world, old)
            if not isinstance(world.after(released_claims, removed).place(pod), Placement):
                continue
            command = _without_surge(deployment, holder.namespace)
            change = trials.attempt(world, pod, command, released_claims, removed)
            text = f"it waits for devices of {holder.pods[0]}, a pod of the same Deployment {deployment}"
            text += ", which the rollout deletes only after this one is ready"
            return Finding("RolloutWaits", text, (("node", node.name),), (change,) if change else ())
    return None


def _replaces(pod: Wire, old: Wire) -> bool:
    """Return True if a rollout of one Deployment has created `pod` and has not yet deleted `old`."""
    meta = PodView.of(old).metadata
    if meta.namespace != PodView.of(pod).metadata.namespace or meta.deletion_timestamp:
        return False
    return deployment_of(old) == deployment_of(pod) and _hash(old) != _hash(pod)


def _without_surge(deployment: str, namespace: str) -> str:
    """Return the command after which a rollout deletes an old pod before it creates the new one."""
    patch = '{"spec":{"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":0,"maxUnavailable":1}}}}'
    return f"kubectl patch deployment {deployment} -n {namespace} -p '{patch}'"


def deployment_of(pod: Wire) -> str:
    """Return the Deployment of a pod, from the name of its ReplicaSet and the hash in it; empty if it has none."""
    template_hash = _hash(pod)
    for owner in PodView.of(pod).metadata.owners("ReplicaSet"):
        if template_hash and owner.name.endswith(f"-{template_hash}"):
            return owner.name.removesuffix(f"-{template_hash}")
    return ""


def _hash(pod: Wire) -> str:
    return str(PodView.of(pod).metadata.labels.get(_HASH) or "")


@dataclass(frozen=True, slots=True)
class _Torn:
    """Free devices of a node that are enough in number, and what they do not have together."""

    node: str
    free: int
    requested: int
    what: str

    @property
    def text(self) -> str:
        return f"{self.free} devices of node {self.node} are free, and no {self.requested} of them {self.what}"


def _fragmented(world: World, pod: Wire, nodes: Sequence[Blocked]) -> Finding | None:
    """Return the finding for nodes with enough free devices of which too few are together."""
    published = selection.PublishedDevices(world)
    torn_by_likeness: dict[object, _Torn | None] = {}  # by likeness: equal nodes in equal use are torn alike
    claims = [model.claim(pod_claim.claim) for pod_claim in world.claims_of(pod) if pod_claim.claim is not None]
    read = relevance.names(claims, world.classes)
    read = None if read is None else read | {"connectedDevices"}
    fragmented: list[_Torn] = []
    for node in nodes:
        likeness = world.alike.key(world.decoded(node.node), read)
        key = node.name if likeness is None else likeness
        if key not in torn_by_likeness:
            torn_by_likeness[key] = _torn(world, pod, node, published)
        torn = torn_by_likeness[key]
        if torn is not None:
            fragmented.append(replace(torn, node=node.name))
    if not fragmented:
        return None
    best = max(fragmented, key=lambda torn: torn.free)
    text = best.text
    if len(fragmented) > 1:
        text += f"; it is the same on {words.count(len(fragmented) - 1, 'more node')}"
    facts = Facts()
    facts.some("free", (f"node {torn.node}: {words.count(torn.free, 'device')}" for torn in fragmented), most=3)
    return Finding("Fragmented", text, facts.done())


def _torn(world: World, pod: Wire, node: Blocked, published: PublishedDevices) -> _Torn | None:
    claims = [pod_claim for pod_claim in world.claims_of(pod) if not pod_claim.seen.is_allocated]
    demands = [model.claim(pod_claim.claim) for pod_claim in claims if pod_claim.claim is not None]
    for claim in demands:
        for rule in claim.constraints:
            if rule.kind != "matchAttribute":
                continue
            torn = _by_constraint(world, node, published, claim, rule, demands)
            if torn is not None:
                return torn
    for claim in demands:
        torn = _by_size(world, node, published, claim)
        if torn is not None:
            return torn
    return None


def _by_constraint(
    world: World,
    node: Blocked,
    published: PublishedDevices,
    claim: model.ClaimDemand,
    rule: Constraint,
    demands: Sequence[model.ClaimDemand],
) -> _Torn | None:
    """Return what is missing if the claims fit among the free devices once the constraint is left out."""
    other_rules = tuple(constraint for constraint in claim.constraints if constraint is not rule)
    without_rule = replace(claim, constraints=other_rules)
    relaxed = [without_rule if demand is claim else demand for demand in demands]
    at = world.decoded(node.node)
    outcome = allocator.allocate(at, relaxed, world.inventory, world.classes, world.in_use, world.memo)
    if isinstance(outcome, Failure):
        return None
    number = 0
    matching: dict[DeviceId, PoolDevice] = {}
    for ask in selection.asked([claim]):
        if rule.requests and not {ask.name, ask.request.name} & rule.requests:
            continue
        if ask.alternative.mode == "ExactCount":
            number += ask.alternative.count
        matching.update((device.id, device) for device in published.on(node.name, ask))
    free = [device for device in matching.values() if _is_free(world, device)]
    if number < 2 or len(free) < number:
        return None
    return _Torn(node.name, len(free), number, f"have the same {rule.attribute}")


def _is_free(world: World, device: PoolDevice) -> bool:
    blocking = any(taint.effect in ("NoSchedule", "NoExecute") for taint in device.taints)
    return device.id not in world.in_use and not blocking


def _by_size(world: World, node: Blocked, published: PublishedDevices, claim: model.ClaimDemand) -> _Torn | None:
    """Return what is missing if a request is for a set, and as many single devices are free."""
    for ask in selection.asked([claim]):
        matching = published.on(node.name, ask)
        if not matching or ask.alternative.mode != "ExactCount":
            continue
        size = constraints.attribute(matching[0], f"{matching[0].id.driver}/connectedDevices")
        number = int(size[1]) if size is not None else 0
        view = fleet.view(world, node.name)
        free = 0 if view is None else sum(device.free for device in view.devices)
        if number >= 2 and free >= number * ask.alternative.count:
            return _Torn(node.name, free, number, "are connected")
    return None


def _who(world: World, holdings: Sequence[tuple[Holder, list[str]]]) -> str:
    """Return those who hold the most of these devices, with how many."""
    device_counts: Counter[str] = Counter()
    by_name: dict[str, Holder] = {}
    for holder, devices in holdings:
        device_counts[str(holder)] += len(devices)
        by_name[str(holder)] = holder
    return words.listed((_described(world, by_name[who], number) for who, number in device_counts.most_common()), 2)


def _described(world: World, holder: Holder, number: int) -> str:
    """Return who holds how many devices, and whether that is about to end."""
    text = f"{holder} holds {number}"
    since = _ending(world, holder)
    if since:
        text += f", and is being deleted since {since}"
    return text


def _ending(world: World, holder: Holder) -> str:
    """Return since when the only pod of a claim, or else the claim, is being deleted; empty if it is not."""
    pod = _only_pod(world, holder)
    return PodView.of(pod).metadata.deletion_timestamp or ClaimView.of(holder.claim).metadata.deletion_timestamp


def _priority_does_not_help(world: World, pod: Wire, nodes: Sequence[Blocked]) -> str:
    """Return that a higher priority than that of a holder does not help; empty if it is not higher."""
    pod_priority = _priority(pod)
    if pod_priority <= world.least_priority:
        return ""
    for node in nodes:
        for holder, _ in holders(world, node):
            for name in holder.pods:
                holder_pod = world.snapshot.get("Pod", name, holder.namespace)
                if holder_pod is not None and _priority(holder_pod) < pod_priority:
                    why = "the scheduler does not preempt pods for their devices"
                    return f"{why}: priority {pod_priority} does not help"
    return ""


def _priority(pod: Wire) -> int:
    return PodView.of(pod).spec.priority


def _groups_to_empty(world: World, pod: Wire, nodes: Sequence[Blocked]) -> Iterator[list[Holder]]:
    """Yield holders that have devices of one group together, for groups whose devices a constraint wants as one."""
    names: list[str] = []
    for pod_claim in world.claims_of(pod):
        if pod_claim.claim is not None and pod_claim.entry != FROM_LIMITS:
            rules = model.claim(pod_claim.claim).constraints
            names += [rule.attribute for rule in rules if rule.kind == "matchAttribute"]
    for name in dict.fromkeys(names):
        for node in nodes:
            of_device: dict[str, Holder] = {}
            for holder, devices in holders(world, node):
                of_device.update(dict.fromkeys(devices, holder))
            holders_by_value: dict[object, dict[str, Holder]] = {}
            for device in world.likeness.devices(world.decoded(node.node)):
                held_by = of_device.get(device.id.device)
                value = constraints.attribute(device, name)
                if held_by is not None and value is not None:
                    holders_by_value.setdefault(value, {})[held_by.key] = held_by
            yield from sorted((list(group_holders.values()) for group_holders in holders_by_value.values()), key=len)


def _attempt(world: World, pod: Wire, ended: Sequence[Holder]) -> ProposedChange | None:
    """Try to delete the pods of these claims, each with one pod; the outcome says where they could run again."""
    released_claims: list[Wire] = []
    removed: list[tuple[str, str, str]] = []
    ended_pods: list[Wire] = []
    for holder in ended:
        holder_pod = world.snapshot.get("Pod", holder.pods[0], holder.namespace)
        if holder_pod is None or trials.is_created_again(holder_pod):
            return None
        claims_of_pod, keys_of_pod = trials.released(world, holder_pod)
        released_claims += claims_of_pod
        removed += keys_of_pod
        ended_pods.append(holder_pod)
    names = " ".join(dict.fromkeys(holder.pods[0] for holder in ended))
    change = trials.attempt(world, pod, f"kubectl delete pod {names} -n {ended[0].namespace}", released_claims, removed)
    if change is None or len(ended_pods) > 1:
        return change
    node = trials.moves_to(world, pod, ended_pods[0], change)
    if not node or node == PodView.of(ended_pods[0]).spec.node_name:
        return change
    return replace(change, outcome=f"{change.outcome}; created again, {ended[0]} fits on node {node}")


def _changes(world: World, pod: Wire, nodes: Sequence[Blocked]) -> Iterator[ProposedChange | None]:
    """Try to delete a pod that holds devices, those with the fewest devices first, then those of one group together."""
    unique: dict[str, tuple[int, Holder]] = {}
    # Whoever ends a pod of a reserved node ends a whole job.
    for node in (node for node in nodes if node.name not in world.tags):
        for holder, devices in holders(world, node):
            if holder.pods:
                unique[holder.key] = (len(devices), holder)
    ranked = sorted(unique.values(), key=lambda number_and_holder: (number_and_holder[0], str(number_and_holder[1])))
    alone = ([holder] for _, holder in ranked)
    together = (group_holders for group_holders in _groups_to_empty(world, pod, nodes) if len(group_holders) > 1)
    for candidates in (alone, together):
        for ended in itertools.islice(_that_may_end(world, candidates), HOLDERS_TRIED):
            yield _attempt(world, pod, ended)
    yield from trials.fewer(world, pod)


def _that_may_end(world: World, candidates: Iterable[list[Holder]]) -> Iterator[list[Holder]]:
    """Yield those of which each holder may be ended; they are looked at one after the other, as many as are tried."""
    for together in candidates:
        if all(_may_end(world, holder) for holder in together):
            yield together


def _may_end(world: World, holder: Holder) -> bool:
    """Return True if deleting the one pod of a claim frees its devices, and nothing protects the pod."""
    if len(holder.pods) != 1 or holder.groups or _ending(world, holder):
        return False
    return not users.leftover(world.snapshot, holder.claim) and not _protected(world, holder)


def protection(world: World, nodes: Sequence[Blocked]) -> Iterator[str]:
    """Yield which pods on the nodes may not be evicted."""
    for node in nodes:
        for holder, _ in holders(world, node):
            if text := _protected(world, holder):
                yield f"pod {holder}: {text}"


def _protected(world: World, holder: Holder) -> str:
    """Return why the one pod of a claim may not be evicted; empty if it may."""
    pod = _only_pod(world, holder)
    if pod is not None:
        return budgets.objection(world.snapshot, pod)
    return ""
