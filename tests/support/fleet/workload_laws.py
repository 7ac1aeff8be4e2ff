"""Liveness invariants of workloads."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from neuron_dra.core.rendezvous import Rendezvous, address, service_name
from neuron_dra.core.ultraserver import Phase, object_name
from neuron_dra.core.wire import Wire
from neuron_dra.planner.decisions.reasons import Reason
from tests.support.fleet import queue_laws, spares
from tests.support.fleet.groups import free_slots, is_well, shut, slot_is_well
from tests.support.fleet.known import WITHOUT_SPEC_FIELDS, Known
from tests.support.fleet.nodes import MODES, FleetNode
from tests.support.fleet.view import (
    Held,
    View,
    condition,
    identity_of,
    mode_of,
    of_template,
    parsed,
    state,
    template_name,
    workload_uid,
)

CRD_S: Final = 60.0  # between two looks at the CRD
FINAL: Final = ("Allocated", "Pending", "PartiallyAllocated", "Failed")
STARVATION_S: Final = 600.0  # the controller's --starvation-threshold
HOLD_BACK_S: Final = 1800.0  # its --starvation-limit
SLACK_S: Final = 120.0
OF_ANOTHER_NAMESPACE: Final = "a workload of another namespace"
OTHERS: Final = re.compile(r"\d+ of other namespaces")


def problems(view: View, nodes: Mapping[str, FleetNode], known: Known) -> Iterator[str]:
    """Yield a sentence for each condition of the workloads that does not hold yet."""
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
            continue  # another template replaced its own before it was Allocated
        hurt = any(_is_closed(held, known) or not slot_is_well(view, held, nodes) for held in view.of(uid))
        if state(workload) not in FINAL and not (hurt and state(workload) == "Allocating"):
            yield f"workload {name} is {state(workload)}: {ready.get('message')}"
            continue
        if (workload.get("status") or {}).get("observedGeneration") != meta["generation"]:
            held = view.of(uid)
            waits = any(each.ultraserver in known.unwritable for each in held)  # its status waits for theirs
            if not (waits or _not_stored_again(workload, held, known)):
                yield f"workload {name} has not been looked at since it changed"
            continue
        if not ready.get("reason") or not ready.get("message"):
            yield f"workload {name} is {state(workload)} without a reason"
        yield from _missing_ranks(view.of(uid), workload, known)
        yield from _lost_fields(workload, known)
        check = {"Allocated": _allocated, "Failed": _failed}.get(state(workload), _waiting)
        yield from check(view, uid, workload, nodes, known)


def _missing_ranks(held: Sequence[Held], workload: Wire, known: Known) -> Iterator[str]:
    """No group may publish more ranks than the groups that the workload has, or is about to have again.

    What cannot be written stays as it was.
    """
    groups = 1 + max((each.allocation.ultraserver_index for each in held), default=-1)
    nodes = groups * int(workload["spec"]["topologySize"])
    sizes = {
        each.allocation.world_size or 0
        for each in held
        if each.allocation.phase is not Phase.DRAINING and each.ultraserver not in known.unwritable
    }
    if max(sizes, default=0) > nodes:
        yield f"workload {workload['metadata']['name']} has groups for {nodes} nodes, and they publish {max(sizes)}"


def _lost_fields(workload: Wire, known: Known) -> Iterator[str]:
    """A workload says that fields of its spec are dropped, if it was created a while after that CRD, and only then."""
    ready, told = condition(workload, "Ready").get("reason"), condition(workload, "SpecIncomplete").get("status")
    if ready in (Reason.RESERVATION_NOT_STORED, Reason.RESERVATION_NOT_SEEN, Reason.UNREADABLE_RESERVATION):
        return  # nothing else of its status is written
    meta, drops = workload["metadata"], known.crd == WITHOUT_SPEC_FIELDS
    if told == "True" and not drops:
        yield f"workload {meta['name']} says that fields of its spec are dropped, and they are kept"
    later = parsed(meta["creationTimestamp"]) > known.crd_since + datetime.timedelta(seconds=CRD_S)
    if told != "True" and drops and later:
        yield f"workload {meta['name']} does not say that fields of its spec are dropped"


def _leaving(view: View, workload: Wire, nodes: Mapping[str, FleetNode], known: Known) -> Iterator[str]:
    """A workload that is being deleted may wait only for a budget or a dead node."""
    reason = str(condition(workload, "Ready").get("reason"))
    mine = {n for held in view.of(workload["metadata"]["uid"]) for n in held.allocation.nodes}
    stuck = any(not nodes[name].healthy or name in known.closed for name in mine)
    if _not_stored_again(workload, view.of(workload["metadata"]["uid"]), known):
        stuck = reason == Reason.RESERVATION_NOT_STORED
    if not (stuck or (known.budgets and reason == "EvictionBlocked")):
        yield f"workload {workload['metadata']['name']} is not released: {condition(workload, 'Ready').get('message')}"


def _allocated(view: View, uid: str, workload: Wire, nodes: Mapping[str, FleetNode], known: Known) -> Iterator[str]:
    meta, spec, status = workload["metadata"], workload["spec"], workload["status"]
    name, count, size = meta["name"], int(spec["serverCount"]), int(spec["topologySize"])
    live = [held for held in view.of(uid) if held.allocation.phase is not Phase.DRAINING]
    if unstored := _not_stored_again(workload, live, known):
        yield from _still_tagged(view, workload, nodes, unstored)
        return
    if queue_laws.record_of(workload) and any(held.ultraserver in known.unwritable for held in live):
        return  # its queue may take its nodes, and its status waits for the write that a policy rejects
    if [held.allocation.ultraserver_index for held in live] != list(range(count)):
        yield f"workload {name} is Allocated with indices {[h.allocation.ultraserver_index for h in live]} of {count}"
        return
    if any(held.allocation.phase is not Phase.BOUND for held in live):
        yield f"workload {name} is Allocated, and not all of it is Bound"
    worlds = {(held.allocation.world_size, held.allocation.rank0_node, held.allocation.rendezvous) for held in live}
    if worlds != {(count * size, live[0].allocation.nodes[0], Rendezvous(address(meta["namespace"], name)))}:
        yield f"workload {name} has {count * size} nodes, and its groups say {worlds}"
    shown = (status.get("allocatedUltraServers"), status.get("totalNodesAllocated"))
    if shown != ([held.ultraserver for held in live], count * size):
        yield f"workload {name} shows {shown}"
    if any(held.allocation.node_count != size for held in live):
        yield f"workload {name} is Allocated with groups of {[held.allocation.node_count for held in live]}, not {size}"
    service = view.find("services", service_name(name), meta["namespace"])
    if service is None or not identity_of(workload).controls(service):
        yield f"workload {name} is Allocated without its Service"
    template = view.find("resourceclaimtemplates", template_name(workload), meta["namespace"])
    taken = f"{meta['namespace']}/{template_name(workload)}" in known.taken_templates
    mine = [(held, node) for held in live for node in held.allocation.nodes]
    # What a template requests is known from what a node publishes; where all are gone, no pod could start either.
    publish = any(node in view.tags() for _, node in mine)
    if publish and not taken and (template is None or not identity_of(workload).controls(template)):
        yield f"workload {name} is Allocated without its template"
    if not taken and template is not None and mode_of(template) != size:
        yield f"workload {name} is Allocated with a template for groups of {mode_of(template)}, not {size}"
    broken = [name for held, name in mine if not is_well(view, held, nodes[name])]
    if "cordons" in known.actors:
        broken += [name for held in live for name in shut(held, nodes)]
    degraded = condition(workload, "Degraded").get("status") == "True"
    if taken and not degraded and "template-names" in known.actors:
        yield f"workload {name} is not Degraded, and its template was replaced"
    impaired = taken or any(nodes[name].was_reported(known.now) for _, name in mine)
    impaired = impaired or any(not (nodes[name].schedulable and nodes[name].tags_its_devices) for _, name in mine)
    if broken and not degraded and not _cannot_be_noted(live, nodes, known):
        yield f"workload {name} is not Degraded, and nodes of it are broken: {', '.join(broken)}"
    leaving = [held for held in view.of(uid) if held.allocation.phase is Phase.DRAINING]
    if (
        degraded
        and not (broken or leaving or impaired or _has_strangers(view, uid))
        and not any(held.allocation.faults and held.ultraserver in known.unwritable for held in live)
        and all(n in view.tags() for _, n in mine)
    ):
        yield f"workload {name} is Degraded, and nothing is wrong: {condition(workload, 'Degraded').get('message')}"


def _not_stored_again(workload: Wire, live: list[Held], known: Known) -> list[Wire]:
    """The groups of NeuronUltraServers that a user deleted by force, and whose status a policy has rejected since.

    Only the nodes and the workload's copy have them. The controller reserves nothing else there, and the workload's
    status does not claim anything new until they are stored.
    """
    stored = {held.allocation.allocation_id for held in live}
    groups = (workload.get("status") or {}).get("groups") or ()
    return [each for each in groups if each["ultraserver"] in known.unwritable and each["allocationId"] not in stored]


def _still_tagged(view: View, workload: Wire, nodes: Mapping[str, FleetNode], groups: Iterable[Wire]) -> Iterator[str]:
    """Nodes keep such a reservation as long as claims are there; without any they release it after ten minutes."""
    tags, uses = view.tags(), view.uses()
    for name in (name for group in groups for name in group["nodes"]):
        tag = tags.get(name)
        holds = tag is not None and tag.workload_uid == workload["metadata"]["uid"]
        if nodes[name].healthy and nodes[name].tags_its_devices and name in tags and name in uses and not holds:
            yield f"node {name} has given up workload {workload['metadata']['name']}, whose object was deleted by force"


def _cannot_be_noted(live: Iterable[Held], nodes: Mapping[str, FleetNode], known: Known) -> bool:
    """The start of a fault that nodes or agents report is stored in a status, which a policy rejects.

    The workload's status waits for that write, as it waits for every write of its reservations.
    """
    return any(
        held.ultraserver in known.unwritable and any(_publishes_a_fault(nodes[name]) for name in held.allocation.nodes)
        for held in live
    )


def _publishes_a_fault(node: FleetNode) -> bool:
    return node.reported or not node.tags_its_devices or node.modes != MODES


def _is_closed(held: Held, known: Known) -> bool:
    return not known.closed.isdisjoint(held.allocation.nodes)


def _has_strangers(view: View, uid: str) -> bool:
    """True if a foreign claim is allocated on a node of the workload."""
    mine = {node for held in view.of(uid) for node in held.allocation.nodes}
    return any(workload_uid(claim) != uid for name in mine for claim in view.uses().get(name, ()))


def _failed(view: View, uid: str, workload: Wire, nodes: Mapping[str, FleetNode], known: Known) -> Iterator[str]:
    meta, name = workload["metadata"], template_name(workload)
    mine = view.of(uid)
    if mine and not any(_is_closed(held, known) or not slot_is_well(view, held, nodes) for held in mine):
        yield f"workload {meta['name']} is Failed and holds {', '.join(n for h in mine for n in h.allocation.nodes)}"
    if any(held.allocation.phase is Phase.BOUND for held in mine):
        yield f"workload {meta['name']} is Failed and has nodes that are Bound"
    if f"{meta['namespace']}/{name}" not in known.taken_templates and len(of_template(view, meta, name)) < 2:
        yield f"workload {meta['name']} is Failed: {condition(workload, 'Ready').get('message')}"


def _waiting(view: View, uid: str, workload: Wire, nodes: Mapping[str, FleetNode], known: Known) -> Iterator[str]:
    """A workload waits only if there are not enough free slots."""
    spec, reason = workload["spec"], condition(workload, "Ready").get("reason")
    if reason in queue_laws.REASONS and "queues" in known.actors:
        return  # it waits for its queue
    mine = view.of(uid)
    if workload["metadata"]["namespace"] in known.limits or reason == Reason.NOT_QUALIFIED:
        return  # it may wait for that
    live = [held for held in mine if held.allocation.phase is not Phase.DRAINING]
    if _not_stored_again(workload, mine, known) and reason == Reason.RESERVATION_NOT_STORED:
        return
    yield from _advised(view, workload)
    needs = int(spec["serverCount"]) - len(live)
    if any(_is_closed(held, known) for held in mine):
        return  # it waits for a node without its tag, which the message names
    leaving = {
        str(each["metadata"]["name"])
        for each in view.all("neuronultraservers")
        if each["metadata"].get("deletionTimestamp")
    }  # nothing new is reserved there
    every = {name: node for name, node in usable(nodes, known).items() if object_name(node.block) not in leaving}
    free = free_slots(view, every, spec["instanceType"], int(spec["topologySize"]))
    if reason == "WaitingForRelease" and not all(slot_is_well(view, held, nodes) for held in mine if held not in live):
        return  # pods with its ranks may still run on a dead node, which a user must give up
    if reason == "WaitsForOlder" and {"impossible", "giants"} & known.actors:
        yield from _waits_for_older(view, workload, nodes, known)
    kept = known.budgets and reason == "EvictionBlocked" and _ranks_may_run(view, uid, int(spec["serverCount"]))
    if needs > 0 and not spares.takes_spares(workload, live):
        kept_free = spares.shown(view)
        others = {name: node for name, node in every.items() if object_name(node.block) not in kept_free}
        free = free_slots(view, others, spec["instanceType"], int(spec["topologySize"]))
    if reason != "WaitsForOlder" and needs > 0 and free >= needs and not kept:
        yield f"workload {workload['metadata']['name']} waits ({reason}), and {free} groups are free for its {needs}"
    broken = [held for held in live if not slot_is_well(view, held, nodes)]
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


def usable(nodes: Mapping[str, FleetNode], known: Known) -> dict[str, FleetNode]:
    """Return the nodes that may be reserved if they are free."""
    return {
        name: node
        for name, node in nodes.items()
        if name not in known.closed
        and node.schedulable
        and not node.was_reported(known.now)
        and node.block_end is None  # otherwise it may be too short
        and node.tags_its_devices
    }


def _advised(view: View, workload: Wire) -> Iterator[str]:
    """Workloads that would make room if they moved have nodes: the advice is at most a minute old."""
    message = str(condition(workload, "Ready").get("message"))
    _, found, rest = message.partition("there would be room if ")
    if not found:
        return
    refs = {held.allocation.workload for held in view.held() if held.allocation.phase is not Phase.DRAINING}
    named = re.split(", | and ", rest.partition(" moved: ")[2].partition(", from ")[0])
    if OTHERS.fullmatch(named[-1]):  # workloads of other namespaces are counted, and not named
        number = int(named.pop().split(" ")[0])
        foreign = [ref for ref in refs if not ref.startswith(f"{workload['metadata']['namespace']}/")]
        named += [f"{number} of other namespaces"] if number > len(foreign) else []
    gone = [ref for ref in named if ref not in refs and not ref.endswith(" more")]
    if gone:
        yield f"workload {workload['metadata']['name']} is told to wait for {', '.join(gone)}, which has no nodes"


def _ranks_may_run(view: View, uid: str, count: int) -> bool:
    """True if pods with the ranks of a missing group still run on Draining nodes: its slot is not reserved yet."""
    live = {held.allocation.ultraserver_index for held in view.of(uid) if held.allocation.phase is not Phase.DRAINING}
    return any(
        workload_uid(claim) == uid
        for held in view.of(uid)
        if held.allocation.ultraserver_index in set(range(count)) - live
        for node in held.allocation.nodes
        for claim in view.uses().get(node, ())
    )


def _waits_for_older(view: View, workload: Wire, nodes: Mapping[str, FleetNode], known: Known) -> Iterator[str]:
    """The message of a delayed workload names the one that delays it, whose request must fit the fleet, for a limited
    time. It does not name one of another namespace, so one of those must be able to delay it.
    """
    meta, message = workload["metadata"], str(condition(workload, "Ready").get("message"))
    is_hidden = OF_ANOTHER_NAMESPACE in message
    others = []
    for uid, other in view.workloads().items():
        namespace, name = other["metadata"]["namespace"], other["metadata"]["name"]
        is_named = f"{namespace}/{name} " in f"{message} "
        if namespace != meta["namespace"] if is_hidden else is_named and uid != meta["uid"]:
            others.append(other)
    problems = [problem for other in others if (problem := _delays_wrongly(other, len(nodes), known))]
    if not others or (is_hidden and len(problems) == len(others)):
        yield f"workload {meta['name']} waits for an older one that is not there: {message}"
    elif not is_hidden:
        yield from (f"workload {meta['name']} waits for {problem}" for problem in problems)


def _delays_wrongly(workload: Wire, nodes: int, known: Known) -> str:
    """Return why a workload may not delay others, empty if it may."""
    spec, name = workload["spec"], workload["metadata"]["name"]
    if int(spec["serverCount"]) > nodes // int(spec["topologySize"]):
        return f"{name}, which requests more than exists"
    created = workload["metadata"]["creationTimestamp"]
    since = max(parsed(created), parsed(condition(workload, "Ready").get("lastTransitionTime") or created))
    held_back_s = (known.now - since).total_seconds() - STARVATION_S
    if held_back_s > HOLD_BACK_S + SLACK_S:
        return f"{name}, which has held others back for {held_back_s:.0f} s"
    return ""
