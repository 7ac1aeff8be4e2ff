"""What must be true when everything had its time: what is not yet so is listed, and waited for."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from neuron_dra.core.ultraserver import NAMESPACE, Phase, Tag, object_name
from tests.support.fleet.nodes import MODES, FleetNode
from tests.support.fleet.pods import Pods
from tests.support.fleet.view import Held, View, condition, parsed, state, workload_uid

Wire = Mapping[str, Any]
KINDS: Final = ("neuronultraservers", "neuronultraserverworkloads")
TRIED: Final = 3
FINAL = ("Allocated", "Pending", "PartiallyAllocated", "Failed")


@dataclass(frozen=True, slots=True)
class Known:
    """What the fleet did itself, and has to be reckoned with."""

    budgets: bool = False  # a budget may forbid evictions
    taken_templates: frozenset[str] = frozenset()  # namespace/name of templates of others
    jobs_of: Mapping[str, str] = field(default_factory=dict)  # job name: UID of its workload
    closed: frozenset[str] = frozenset()
    """Nodes with a container whose claim was deleted by force, until it ends; and those that took a claim over that was
    on an earlier instance of their name, until they are rebooted: nobody can know that it does not run."""
    unwritable: frozenset[str] = frozenset()  # NeuronUltraServers whose status a policy refuses
    actors: frozenset[str] = frozenset()  # who takes part
    refused: frozenset[str] = frozenset()  # kind/namespace/name of objects whose status a policy refuses
    crd: str = "ours"  # or which other is installed: then nothing can be asked of the controller but to do no harm
    limits: frozenset[str] = frozenset()  # namespaces that may reserve only so many nodes
    now: datetime.datetime = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

    def refuses(self, item: Wire) -> bool:
        """A policy refuses the status of this object."""
        meta = item["metadata"]
        return f"{item['kind']}/{meta['namespace']}/{meta['name']}" in self.refused


def problems(view: View, nodes: Mapping[str, FleetNode], pods: Pods, known: Known) -> list[str]:
    """Return what is not (yet) as it must be, a sentence each."""
    if known.crd != "ours" or any(_seems_outdated(view, plural, known) for plural in KINDS):
        return list(_nodes(view, nodes))
    stale = {node.name for node in nodes.values() if node.adopted - view.claim_uids()}
    refused = {object_name(n.block): n for n in nodes.values()}.keys() & {
        str(item["metadata"]["name"]) for item in view.all("neuronultraservers") if known.refuses(item)
    }
    stale |= {node.name for node in nodes.values() if object_name(node.block) in refused}
    known = replace(known, closed=frozenset(_orphaned(view, pods) | stale), unwritable=frozenset(refused))
    return [
        *_nodes(view, nodes),
        *_ultraservers(view, nodes, known),
        *_tags(view, nodes, known),
        *_workloads(view, nodes, known),
        *_orphans(view, nodes, pods),
        *_pods(view, nodes, pods, known),
        *_refused(view, nodes, pods, known),
    ]


def _seems_outdated(view: View, plural: str, known: Known) -> bool:
    """Policies refuse the status of each object on which the controller tries what the CRD keeps."""
    found = view.all(plural)[:TRIED]
    return bool(found) and all(known.refuses(item) for item in found)


def _nodes(view: View, nodes: Mapping[str, FleetNode]) -> Iterator[str]:
    tags = view.tags()
    for node in nodes.values():
        if node.healthy and node.name not in tags:
            yield f"node {node.name} publishes nothing"


def _ultraservers(view: View, nodes: Mapping[str, FleetNode], known: Known) -> Iterator[str]:
    for block in sorted({node.block for node in nodes.values()}):
        wanted = sorted((n.node_id, n.name) for n in nodes.values() if n.block == block and n.present and n.healthy)
        found = view.find("neuronultraservers", object_name(block), NAMESPACE)
        if found is None:
            if wanted:
                yield f"there is no NeuronUltraServer for {block}"
            continue
        listed = {(entry["nodeId"], entry["nodeName"]) for entry in found["spec"]["topology"]}
        missing = [name for number, name in wanted if (number, name) not in listed]
        if missing:
            yield f"the NeuronUltraServer of {block} misses {', '.join(missing)}"
        block_nodes = [node for node in nodes.values() if node.block == block]
        whole = all(node.healthy and node.modes == MODES and node.schedulable for node in block_nodes)
        whole = whole and not known.refuses(found) and "deletionTimestamp" not in found["metadata"]
        if whole and condition(found, "Ready").get("status") != "True":
            yield f"the NeuronUltraServer of {block} is not Ready: {condition(found, 'Ready').get('message')}"
        gone = [name for _, name in sorted(listed) if not nodes[name].present]
        if gone:
            yield f"the NeuronUltraServer of {block} lists nodes that are gone: {', '.join(gone)}"


def _tags(view: View, nodes: Mapping[str, FleetNode], known: Known) -> Iterator[str]:
    """Tags say what the reservations say; a closed node keeps its tag until the container has ended."""
    holders, tags = view.holders(), view.tags()
    for node in nodes.values():
        if not node.healthy or node.name not in tags or node.name in known.closed or not node.tags_its_devices:
            continue
        held, tag = holders.get(node.name), tags[node.name]
        wanted = Tag.of(held.allocation) if held else None
        if tag != wanted:
            yield f"node {node.name} is tagged {_tag(tag)}, and is reserved {_tag(wanted)}"


def _tag(tag: Tag | None) -> str:
    return f"{tag.workload_name}/{tag.allocation_id[:6]}/{tag.phase.value}" if tag else "for nobody"


def _workloads(view: View, nodes: Mapping[str, FleetNode], known: Known) -> Iterator[str]:
    for uid, workload in sorted(view.workloads().items()):
        meta = workload["metadata"]
        name, ready = meta["name"], condition(workload, "Ready")
        if known.refuses(workload):
            continue  # it cannot say anything
        if meta.get("deletionTimestamp") or state(workload) == "Deallocating":
            yield from _leaving(view, workload, nodes, known)
            continue
        taken = f"{meta['namespace']}/{template_name(workload)}" in known.taken_templates
        if taken and (state(workload), ready.get("reason")) == ("Allocating", "TemplateNameTaken"):
            continue  # another template took the place of its own before it had all that it asks for
        hurt = any(_is_closed(held, known) or not _slot_is_well(view, held, nodes) for held in view.of(uid))
        if state(workload) not in FINAL and not (hurt and state(workload) == "Allocating"):
            yield f"workload {name} is {state(workload)}: {ready.get('message')}"
            continue
        if (workload.get("status") or {}).get("observedGeneration") != meta["generation"]:
            if not any(held.ultraserver in known.unwritable for held in view.of(uid)):  # its status waits for theirs
                yield f"workload {name} has not been looked at since it changed"
            continue
        if not ready.get("reason") or not ready.get("message"):
            yield f"workload {name} is {state(workload)} without a reason"
        check = {"Allocated": _allocated, "Failed": _failed}.get(state(workload), _waiting)
        yield from check(view, uid, workload, nodes, known)


def _leaving(view: View, workload: Wire, nodes: Mapping[str, FleetNode], known: Known) -> Iterator[str]:
    """A workload that is being deleted may wait for a budget, or for a node that is dead; for nothing else."""
    reason = str(condition(workload, "Ready").get("reason"))
    mine = {n for held in view.of(workload["metadata"]["uid"]) for n in held.allocation.nodes}
    stuck = any(not nodes[name].healthy or name in known.closed for name in mine)
    if not (stuck or (known.budgets and reason == "EvictionBlocked")):
        yield f"workload {workload['metadata']['name']} is not released: {condition(workload, 'Ready').get('message')}"


def _allocated(view: View, uid: str, workload: Wire, nodes: Mapping[str, FleetNode], known: Known) -> Iterator[str]:
    meta, spec, status = workload["metadata"], workload["spec"], workload["status"]
    name, count, size = meta["name"], int(spec["serverCount"]), int(spec["topologySize"])
    live = [held for held in view.of(uid) if held.allocation.phase is not Phase.DRAINING]
    if [held.allocation.ultraserver_index for held in live] != list(range(count)):
        yield f"workload {name} is Allocated with indices {[h.allocation.ultraserver_index for h in live]} of {count}"
        return
    if any(held.allocation.phase is not Phase.BOUND for held in live):
        yield f"workload {name} is Allocated, and not all of it is Bound"
    worlds = {(held.allocation.world_size, held.allocation.rank0_node) for held in live}
    if worlds != {(count * size, live[0].allocation.nodes[0])}:
        yield f"workload {name} has {count * size} nodes, and its groups say {worlds}"
    told = (status.get("allocatedUltraServers"), status.get("totalNodesAllocated"))
    if told != ([held.ultraserver for held in live], count * size):
        yield f"workload {name} tells of {told}"
    if any(held.allocation.node_count != size for held in live):
        yield f"workload {name} is Allocated with groups of {[held.allocation.node_count for held in live]}, not {size}"
    template = view.find("resourceclaimtemplates", template_name(workload), meta["namespace"])
    taken = f"{meta['namespace']}/{template_name(workload)}" in known.taken_templates
    if not taken and (template is None or not _owned_by(template, uid)):
        yield f"workload {name} is Allocated without its template"
    if not taken and template is not None and _mode(template) != size:
        yield f"workload {name} is Allocated with a template for groups of {_mode(template)}, not {size}"
    mine = [(held, node) for held in live for node in held.allocation.nodes]
    broken = [name for held, name in mine if not _is_well(view, held, nodes[name])]
    if "cordons" in known.actors:
        broken += [name for held in live for name in _shut(held, nodes)]
    degraded = condition(workload, "Degraded").get("status") == "True"
    if taken and not degraded and "template-names" in known.actors:
        yield f"workload {name} is not Degraded, and its template was replaced"
    impaired = taken or any(not (nodes[name].schedulable and nodes[name].tags_its_devices) for _, name in mine)
    if broken and not degraded:
        yield f"workload {name} is not Degraded, and nodes of it are broken: {', '.join(broken)}"
    leaving = [held for held in view.of(uid) if held.allocation.phase is Phase.DRAINING]
    if (
        degraded
        and not (broken or leaving or impaired or _has_strangers(view, uid))
        and all(n in view.tags() for _, n in mine)
    ):
        yield f"workload {name} is Degraded, and nothing is wrong: {condition(workload, 'Degraded').get('message')}"


def _is_well(view: View, held: Held, node: FleetNode) -> bool:
    """The node is there, is the one that was reserved, shows that, and has the links that the slot needs."""
    found = view.find("nodes", node.name)
    if found is None or not node.alive or not held.allocation.is_for(node.name, found["metadata"]["uid"]):
        return False
    if not node.tags_its_devices and view.tags().get(node.name) is None:
        return False
    return _offers(node, held.allocation.node_count) and condition(found, "Ready").get("status") == "True"


def _shut(held: Held, nodes: Mapping[str, FleetNode]) -> list[str]:
    """The nodes of a group that are cordoned, or tainted alone: a taint of all of them sets the group aside."""
    of_all = set.intersection(*(nodes[name].taints for name in held.allocation.nodes))
    return [name for name in held.allocation.nodes if nodes[name].cordoned or nodes[name].taints - of_all]


def _slot_is_well(view: View, held: Held, nodes: Mapping[str, FleetNode]) -> bool:
    return all(_is_well(view, held, nodes[name]) for name in held.allocation.nodes)


def _is_closed(held: Held, known: Known) -> bool:
    return not known.closed.isdisjoint(held.allocation.nodes)


def _has_strangers(view: View, uid: str) -> bool:
    """Somebody else's claim is allocated on a node of the workload."""
    mine = {node for held in view.of(uid) for node in held.allocation.nodes}
    return any(workload_uid(claim) != uid for name in mine for claim in view.uses().get(name, ()))


def _failed(view: View, uid: str, workload: Wire, nodes: Mapping[str, FleetNode], known: Known) -> Iterator[str]:
    meta, name = workload["metadata"], template_name(workload)
    mine = view.of(uid)
    if mine and not any(_is_closed(held, known) or not _slot_is_well(view, held, nodes) for held in mine):
        yield f"workload {meta['name']} is Failed and holds {', '.join(n for h in mine for n in h.allocation.nodes)}"
    if any(held.allocation.phase is Phase.BOUND for held in mine):
        yield f"workload {meta['name']} is Failed and has nodes that are Bound"
    if f"{meta['namespace']}/{name}" not in known.taken_templates and len(_of_template(view, meta, name)) < 2:
        yield f"workload {meta['name']} is Failed: {condition(workload, 'Ready').get('message')}"


def _waiting(view: View, uid: str, workload: Wire, nodes: Mapping[str, FleetNode], known: Known) -> Iterator[str]:
    """Who waits must have to: there are not as many free slots as it needs."""
    spec, reason = workload["spec"], condition(workload, "Ready").get("reason")
    mine = view.of(uid)
    if workload["metadata"]["namespace"] in known.limits:
        return  # it may wait for that
    live = [held for held in mine if held.allocation.phase is not Phase.DRAINING]
    needs = int(spec["serverCount"]) - len(live)
    if any(_is_closed(held, known) for held in mine):
        return  # it waits for a node that does not answer, and is told which
    leaving = {
        str(each["metadata"]["name"])
        for each in view.all("neuronultraservers")
        if each["metadata"].get("deletionTimestamp")
    }  # nothing new is reserved there
    usable = {
        name: node
        for name, node in nodes.items()
        if name not in known.closed
        and node.schedulable
        and node.tags_its_devices
        and object_name(node.block) not in leaving
    }
    free = free_slots(view, usable, spec["instanceType"], int(spec["topologySize"]))
    if reason == "WaitingForRelease" and not all(_slot_is_well(view, held, nodes) for held in mine if held not in live):
        return  # pods with its ranks may still run on a dead node, which a person has to give up
    if reason == "WaitsForOlder" and {"impossible", "giants"} & known.actors:
        yield from _waits_for_older(view, workload, nodes, known)
    kept = known.budgets and reason == "EvictionBlocked" and _ranks_may_run(view, uid, int(spec["serverCount"]))
    if reason != "WaitsForOlder" and needs > 0 and free >= needs and not kept:
        yield f"workload {workload['metadata']['name']} waits ({reason}), and {free} groups are free for its {needs}"
    broken = [held for held in live if not _slot_is_well(view, held, nodes)]
    name = workload["metadata"]["name"]
    if needs <= 0 and reason == "NoSpareGroup":
        if free >= len(broken):
            yield f"workload {name} cannot move {len(broken)} groups, and {free} are free"
    elif reason == "Migrating" and broken:
        return  # a node of the new group died before it was bound
    elif needs <= 0 and reason not in ("WaitingForNodes", "WaitingForPods", "EvictionBlocked", "Draining"):
        yield f"workload {name} has all its groups and is {state(workload)} ({reason})"
    elif reason == "WaitingForNodes" and not broken:
        yield f"workload {name} waits for nodes that are all there"


def _ranks_may_run(view: View, uid: str, count: int) -> bool:
    """Pods with the ranks of a missing group are still on nodes that it gives back: nothing is reserved for it yet."""
    live = {held.allocation.ultraserver_index for held in view.of(uid) if held.allocation.phase is not Phase.DRAINING}
    return any(
        workload_uid(claim) == uid
        for held in view.of(uid)
        if held.allocation.ultraserver_index in set(range(count)) - live
        for node in held.allocation.nodes
        for claim in view.uses().get(node, ())
    )


STARVATION_S: Final = 600.0  # the controller's --starvation-threshold
HOLD_BACK_S: Final = 1800.0  # its --starvation-limit
SLACK_S: Final = 120.0


def _waits_for_older(view: View, workload: Wire, nodes: Mapping[str, FleetNode], known: Known) -> Iterator[str]:
    """Who is held back is told by whom; that one asks for what the fleet has, and holds others back only for a time."""
    meta, ready = workload["metadata"], condition(workload, "Ready")
    others = [
        each
        for uid, each in view.workloads().items()
        if f"{each['metadata']['namespace']}/{each['metadata']['name']} " in f"{ready.get('message')} "
        and uid != meta["uid"]
    ]
    if not others:
        yield f"workload {meta['name']} waits for an older one that is not there: {ready.get('message')}"
    for other in others:
        spec, name = other["spec"], other["metadata"]["name"]
        size = int(spec["topologySize"])
        if int(spec["serverCount"]) > len(nodes) // size:
            yield f"workload {meta['name']} waits for {name}, which asks for more than there is"
        created = other["metadata"]["creationTimestamp"]
        since = max(parsed(created), parsed(condition(other, "Ready").get("lastTransitionTime") or created))
        held_back_s = (known.now - since).total_seconds() - STARVATION_S
        if held_back_s > HOLD_BACK_S + SLACK_S:
            yield f"workload {meta['name']} waits for {name}, which has held others back for {held_back_s:.0f} s"


def _mode(template: Wire) -> int | None:
    """The number of nodes that a workload's template is for."""
    entries = template["spec"]["spec"]["devices"].get("config") or ()
    modes = [((entry.get("opaque") or {}).get("parameters") or {}).get("ultraserverMode") for entry in entries]
    return next((int(mode) for mode in modes if mode), None)


def _of_template(view: View, meta: Wire, name: str) -> list[Wire]:
    """The workloads of a namespace that ask for this template name."""
    return [
        each
        for each in view.workloads().values()
        if each["metadata"]["namespace"] == meta["namespace"] and template_name(each) == name
    ]


def _refused(view: View, nodes: Mapping[str, FleetNode], pods: Pods, known: Known) -> Iterator[str]:
    """No pod stays on a node that is reserved for others and refuses it."""
    if known.budgets or not {"refused-pods", "rogues"} & known.actors:
        return
    holders = view.holders()
    for pod in view.all("pods"):
        meta, node = pod["metadata"], nodes.get(str(pod["spec"].get("nodeName")))
        held = holders.get(node.name) if node else None
        if node is None or held is None or held.allocation.phase is not Phase.BOUND or not node.healthy:
            continue
        uid = known.jobs_of.get((meta.get("labels") or {}).get("job", ""))
        waited_s = (known.now - parsed(pod["status"].get("startTime") or meta["creationTimestamp"])).total_seconds()
        refused = meta["uid"] in pods.refused and uid != held.allocation.workload_uid and not robbed(view, pod)
        if refused and waited_s > MOST_REFUSED_S:
            yield f"pod {meta['name']} has been refused on {node.name} for {waited_s:.0f} s"


MOST_REFUSED_S: Final = 300.0


def astray(view: View, pod: Wire, uid: str) -> bool:
    """The pod's claim was made by somebody else's template, which had the name of the workload's."""
    for each in (pod.get("status") or {}).get("resourceClaimStatuses") or ():
        claim = view.find("resourceclaims", each["resourceClaimName"], pod["metadata"]["namespace"])
        entries = (claim or {}).get("spec", {}).get("devices", {}).get("config") or ()
        uids = {((entry.get("opaque") or {}).get("parameters") or {}).get("workloadUid") for entry in entries}
        if claim is not None and uid not in uids:
            return True
    return False


def free_slots(view: View, nodes: Mapping[str, FleetNode], instance_type: str, size: int) -> int:
    """How many slots of this size are free, by what is really there. Nodes are free whom nobody holds."""
    uses = view.uses()
    held = {name for each in view.held() for name in each.allocation.nodes}
    going = {
        str(item["metadata"]["name"])
        for item in view.all("neuronultraservers")
        if "deletionTimestamp" in item["metadata"]
    }
    free = {
        (node.block, node.node_id)
        for node in nodes.values()
        if node.instance_type == instance_type
        and node.healthy
        and object_name(node.block) not in going
        and node.name not in held
        and node.name not in uses
        and _offers(node, size)
    }
    blocks = {block for block, _ in free}
    return sum(
        all((block, number) in free for number in range(first, first + size))
        for block in blocks
        for first in range(0, 4, size)
    )


def _offers(node: FleetNode, size: int) -> bool:
    return bool({4: {1}, 2: {2, 3}, 1: {4}}[size] & set(node.modes)) and (size != 2 or 3 in node.modes)


def _orphans(view: View, nodes: Mapping[str, FleetNode], pods: Pods) -> Iterator[str]:
    present = view.workloads()
    for held in view.held():
        well = all(nodes[name].healthy for name in held.allocation.nodes)
        if well and held.allocation.workload_uid not in present:
            yield f"a reservation is left of a workload that is gone: {held.allocation.nodes}"
    for template in view.all("resourceclaimtemplates"):
        owners = [o for o in template["metadata"].get("ownerReferences") or () if o.get("controller")]
        if any(owner["uid"] not in present for owner in owners):
            yield f"template {template['metadata']['name']} is left of a workload that is gone"
    kept = {ref.uid for _, refs in pods._held.values() for ref in refs}
    for node in nodes.values():
        unused = node.checkpointed - node.adopted - kept
        if node.healthy and unused:
            yield f"node {node.name} has prepared claims that nobody uses: {sorted(unused)}"


def _pods(view: View, nodes: Mapping[str, FleetNode], pods: Pods, known: Known) -> Iterator[str]:
    """The pods of an Allocated workload run, one on each node that is well."""
    orphaned = _orphaned(view, pods)
    for job in pods.jobs.values():
        uid = known.jobs_of.get(job.name)
        workload = view.workloads().get(uid) if uid else None
        if workload is None or state(workload) != "Allocated":
            continue
        if len(_of_template(view, workload["metadata"], job.template)) != 1:
            continue  # pods of others have the template, too
        mine = [node for held in view.of(str(uid)) for node in held.allocation.nodes]
        strangers = orphaned | {
            name for name in mine for claim in view.uses().get(name, ()) if workload_uid(claim) != uid
        }
        well = [
            name
            for held in view.of(str(uid))
            for name in held.allocation.nodes
            if nodes[name].healthy
            and _is_well(view, held, nodes[name])
            and name not in strangers
            and nodes[name].schedulable
            and nodes[name].tags_its_devices
        ]
        running = {each.node for each in pods.running.values() if each.workload_uid == uid}
        lost = sum(robbed(view, pod) or astray(view, pod, str(uid)) for pod in pods.of_job(job))
        wanted = min(job.replicas, len(mine)) - lost
        if len(well) == len(mine) and len(running) < wanted:
            yield f"{len(running)} of {wanted} pods of {job.name} run"


def _orphaned(view: View, pods: Pods) -> set[str]:
    """The nodes with a container whose claim was deleted by force."""
    present = view.claim_uids()
    return {each.node for each in pods.running.values() if not each.has_claims(present)}


def robbed(view: View, pod: Wire) -> bool:
    """Somebody deleted the pod's claim: it can never start again, until somebody deletes the pod, too.

    Kubernetes makes it another claim meanwhile, which nobody allocates: the pod has its node already.
    """
    made = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    namespace = pod["metadata"]["namespace"]
    for each in made:
        claim = view.find("resourceclaims", each["resourceClaimName"], namespace)
        if claim is None:
            return True
        users = {user.get("uid") for user in (claim.get("status") or {}).get("reservedFor") or ()}
        if pod["spec"].get("nodeName") and pod["metadata"]["uid"] not in users:
            return True
    return False


def template_name(workload: Wire) -> str:
    """The template that a workload asks for."""
    wanted = workload["spec"].get("resourceClaimTemplate") or {}
    return str(wanted.get("name") or workload["metadata"]["name"])


def _owned_by(item: Wire, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences") or ())
