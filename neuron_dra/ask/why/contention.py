"""Special cases of devices that are in use: leftovers, rollouts that wait for themselves, and fragmentation. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import Change, Facts, Finding
from neuron_dra.ask.why import trials
from neuron_dra.ask.why.blockers import Blocked
from neuron_dra.ask.world import fleet, selection, users
from neuron_dra.ask.world.selection import Published
from neuron_dra.ask.world.world import Holder, World
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import allocator, constraints, model
from neuron_dra.simulate.failures import Failure
from neuron_dra.simulate.model import Constraint, Device
from neuron_dra.simulate.scheduler import Placement

_HASH: Final = "pod-template-hash"
Holders = Callable[[Blocked], Mapping[str, tuple[Holder, Sequence[str]]]]


def finding(world: World, pod: Wire, nodes: Sequence[Blocked], holders: Holders) -> Finding | None:
    """Return the finding for a special case of devices in use on these nodes; None if it is an ordinary one.

    `holders` returns who holds devices of a node, and which.
    """
    return (
        _leftovers(world, pod, nodes, holders) or _rollout(world, pod, nodes, holders) or _fragmented(world, pod, nodes)
    )


def _leftovers(world: World, pod: Wire, nodes: Sequence[Blocked], holders: Holders) -> Finding | None:
    """Return the finding for claims that should have been released, if the pod would fit without them."""
    found: list[tuple[Blocked, Holder, int, str]] = []
    for node in nodes:
        for holder, devices in holders(node).values():
            if why := users.leftover(world.snapshot, holder.claim):
                found.append((node, holder, len(devices), why))
    released = [{**holder.claim, "status": {}} for _, holder, _, _ in found]
    if not released or not isinstance(world.after(released).place(pod), Placement):
        return None
    node, holder, number, why = found[0]
    held = f"holds {words.count(number, 'device')} of node {node.name}"
    text = f"the claim {holder.key} {held} {why}: kube-controller-manager has not released it"
    facts = Facts()
    facts.some("leftover", (f"claim {each.key} {reason}" for _, each, _, reason in found))
    facts.add("to check", "does kube-controller-manager run, and does its log name the claim?")
    return Finding("ClaimNotReleased", text, facts.done())


def _rollout(world: World, pod: Wire, nodes: Sequence[Blocked], holders: Holders) -> Finding | None:
    """Return the finding for a new pod of a Deployment that waits for the devices of an old one."""
    deployment = deployment_of(pod)
    if not deployment:
        return None
    for node in nodes:
        for holder, _ in holders(node).values():
            old = world.snapshot.get("Pod", holder.pods[0], holder.namespace) if len(holder.pods) == 1 else None
            same = old is not None and (old["metadata"].get("namespace") == pod["metadata"].get("namespace"))
            if old is None or not same or deployment_of(old) != deployment or _hash(old) == _hash(pod):
                continue
            if old["metadata"].get("deletionTimestamp"):
                continue
            left, removed = trials.released(world, old)
            if not isinstance(world.after(left, removed).place(pod), Placement):
                continue
            command = _without_surge(deployment, holder.namespace)
            change = trials.attempt(world, pod, command, left, removed)
            text = f"it waits for devices of {holder.pods[0]}, a pod of the same Deployment {deployment}"
            text += ", which the rollout deletes only after this one is ready"
            return Finding("RolloutWaits", text, (("node", node.name),), (change,) if change else ())
    return None


def _without_surge(deployment: str, namespace: str) -> str:
    """Return the command after which a rollout deletes an old pod before it creates the new one."""
    patch = '{"spec":{"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":0,"maxUnavailable":1}}}}'
    return f"kubectl patch deployment {deployment} -n {namespace} -p '{patch}'"


def deployment_of(pod: Wire) -> str:
    """Return the Deployment of a pod, from the name of its ReplicaSet and the hash in it; empty if it has none."""
    own = _hash(pod)
    for owner in pod["metadata"].get("ownerReferences") or ():
        name = str(owner.get("name") or "")
        if owner.get("kind") == "ReplicaSet" and own and name.endswith(f"-{own}"):
            return name.removesuffix(f"-{own}")
    return ""


def _hash(pod: Wire) -> str:
    return str((pod["metadata"].get("labels") or {}).get(_HASH) or "")


@dataclass(frozen=True, slots=True)
class _Torn:
    """Free devices of a node that are enough in number, and what they do not have together."""

    node: str
    free: int
    wanted: int
    what: str

    @property
    def text(self) -> str:
        return f"{self.free} devices of node {self.node} are free, and no {self.wanted} of them {self.what}"


def _fragmented(world: World, pod: Wire, nodes: Sequence[Blocked]) -> Finding | None:
    """Return the finding for nodes with enough free devices of which too few are together."""
    published = selection.Published(world)
    known: dict[object, _Torn | None] = {}  # by likeness: equal nodes in equal use are torn alike
    found: list[_Torn] = []
    for node in nodes:
        likeness = world.likeness.key(world.decoded(node.node), world.in_use)
        key = node.name if likeness is None else likeness
        if key not in known:
            known[key] = _torn(world, pod, node, published)
        torn = known[key]
        if torn is not None:
            found.append(replace(torn, node=node.name))
    if not found:
        return None
    best = max(found, key=lambda each: each.free)
    others = len(found) - 1
    more = f"; it is the same on {words.count(others, 'more node')}" if others else ""
    facts = Facts()
    facts.some("free", (f"node {each.node}: {words.count(each.free, 'device')}" for each in found), most=3)
    return Finding("Fragmented", best.text + more, facts.done())


def _torn(world: World, pod: Wire, node: Blocked, published: Published) -> _Torn | None:
    claims = [each.claim for each in world.claims_of(pod) if each.claim is not None]
    wanted = [model.claim(each) for each in claims if not (each.get("status") or {}).get("allocation")]
    by_constraint = [(claim, rule) for claim in wanted for rule in claim.constraints if rule.kind == "matchAttribute"]
    for claim, rule in by_constraint:
        torn = _by_constraint(world, node, published, claim, rule, wanted)
        if torn is not None:
            return torn
    for claim in wanted:
        torn = _by_size(world, node, published, claim)
        if torn is not None:
            return torn
    return None


def _by_constraint(
    world: World,
    node: Blocked,
    published: Published,
    claim: model.Claim,
    rule: Constraint,
    wanted: Sequence[model.Claim],
) -> _Torn | None:
    """Return what is missing if the claims fit among the free devices once the constraint is left out."""
    without = replace(claim, constraints=tuple(each for each in claim.constraints if each is not rule))
    others = [without if each is claim else each for each in wanted]
    at = world.decoded(node.node)
    if isinstance(allocator.allocate(at, others, world.inventory, world.classes, world.in_use, world.memo), Failure):
        return None
    asks = [
        ask for ask in selection.asked([claim]) if not rule.requests or {ask.name, ask.request.name} & rule.requests
    ]
    number = sum(ask.alternative.count for ask in asks if ask.alternative.mode == "ExactCount")
    matching = {device.id: device for ask in asks for device in published.matching(ask).get(node.name, ())}
    free = [device for device in matching.values() if _is_free(world, device)]
    if number < 2 or len(free) < number:
        return None
    return _Torn(node.name, len(free), number, f"have the same {rule.attribute}")


def _is_free(world: World, device: Device) -> bool:
    blocking = any(taint.effect in ("NoSchedule", "NoExecute") for taint in device.taints)
    return device.id not in world.in_use and not blocking


def _by_size(world: World, node: Blocked, published: Published, claim: model.Claim) -> _Torn | None:
    """Return what is missing if a request is for a set, and as many single devices are free."""
    for ask in selection.asked([claim]):
        matching = published.matching(ask).get(node.name, ())
        if not matching or ask.alternative.mode != "ExactCount":
            continue
        size = constraints.attribute(matching[0], f"{matching[0].id.driver}/connectedDevices")
        number = int(size[1]) if size is not None else 0
        view = fleet.view(world, node.name)
        free = 0 if view is None else sum(each.free for each in view.devices)
        if number >= 2 and free >= number * ask.alternative.count:
            return _Torn(node.name, free, number, "are connected")
    return None


def described(world: World, holder: Holder, number: int) -> str:
    """Return who holds how many devices, and whether that is about to end."""
    text = f"{holder} holds {number}"
    since = ending(world, holder)
    return f"{text}, and is being deleted since {since}" if since else text


def ending(world: World, holder: Holder) -> str:
    """Return since when the only pod of a claim, or else the claim, is being deleted; empty if it is not."""
    pod = world.snapshot.get("Pod", holder.pods[0], holder.namespace) if len(holder.pods) == 1 else None
    meta = pod["metadata"] if pod is not None else {}
    return str(meta.get("deletionTimestamp") or holder.claim["metadata"].get("deletionTimestamp") or "")


def priority(world: World, pod: Wire, nodes: Sequence[Blocked], holders: Holders) -> str:
    """Return that a higher priority than that of a holder does not help; empty if it is not higher."""
    own = _priority(pod)
    for node in nodes:
        for holder, _ in holders(node).values():
            for name in holder.pods:
                other = world.snapshot.get("Pod", name, holder.namespace)
                if other is not None and _priority(other) < own:
                    return f"the scheduler does not preempt pods for their devices: priority {own} does not help"
    return ""


def _priority(pod: Wire) -> int:
    value = pod["spec"].get("priority")
    return value if isinstance(value, int) else 0


def groups_to_empty(world: World, pod: Wire, nodes: Sequence[Blocked], holders: Holders) -> Iterator[list[Holder]]:
    """Yield holders that have devices of one group together, for groups whose devices a constraint wants as one."""
    names = [
        rule.attribute
        for each in world.claims_of(pod)
        if each.claim is not None and each.entry != "limits"
        for rule in model.claim(each.claim).constraints
        if rule.kind == "matchAttribute"
    ]
    for name in dict.fromkeys(names):
        for node in nodes:
            of_device = {device: holder for holder, devices in holders(node).values() for device in devices}
            found: dict[object, dict[str, Holder]] = {}
            for device in world.likeness.devices(world.decoded(node.node)):
                holder = of_device.get(device.id.device)
                value = constraints.attribute(device, name)
                if holder is not None and value is not None:
                    found.setdefault(value, {})[holder.key] = holder
            yield from sorted((list(each.values()) for each in found.values()), key=len)


def attempt(world: World, pod: Wire, ended: Sequence[Holder]) -> Change | None:
    """Try to delete the pods of these claims, each with one pod; the outcome says where they could run again."""
    left: list[Wire] = []
    removed: list[tuple[str, str, str]] = []
    gone: list[Wire] = []
    for holder in ended:
        found = world.snapshot.get("Pod", holder.pods[0], holder.namespace)
        if found is None:
            return None
        more, without = trials.released(world, found)
        left, removed, gone = [*left, *more], [*removed, *without], [*gone, found]
    names = " ".join(dict.fromkeys(holder.pods[0] for holder in ended))
    change = trials.attempt(world, pod, f"kubectl delete pod {names} -n {ended[0].namespace}", left, removed)
    if change is None or len(gone) > 1:
        return change
    node = trials.moves_to(world, pod, gone[0], change)
    if not node or node == gone[0]["spec"].get("nodeName"):
        return change
    return replace(change, outcome=f"{change.outcome}; created again, {ended[0]} fits on node {node}")
