"""Liveness invariants: conditions that must hold once the fleet has settled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from neuron_dra.core.ownership import controller_of
from neuron_dra.core.ultraserver import NAMESPACE, Phase, Tag, object_name
from neuron_dra.core.wire import Wire
from tests.support.fleet import address_laws, block_laws, notices, qualify_laws, queue_laws, spares, workload_laws
from tests.support.fleet import job_laws as jobs
from tests.support.fleet.groups import is_well
from tests.support.fleet.known import STRANGERS, WITHOUT_SPEC_FIELDS, Known
from tests.support.fleet.nodes import MODES, FleetNode
from tests.support.fleet.pods import Pods
from tests.support.fleet.view import (
    View,
    astray,
    condition,
    has_lost_claim,
    identity_of,
    of_template,
    parsed,
    state,
    workload_uid,
)

MOST_REFUSED_S: Final = 300.0


def problems(view: View, nodes: Mapping[str, FleetNode], pods: Pods, known: Known) -> list[str]:
    """Return a sentence for each condition that does not hold yet."""
    if known.crd not in ("ours", WITHOUT_SPEC_FIELDS):
        return list(_nodes(view, nodes))
    refused = {object_name(n.block): n for n in nodes.values()}.keys() & {
        str(item["metadata"]["name"]) for item in view.all("neuronultraservers") if known.refuses(item)
    }
    stale = {node.name for node in nodes.values() if object_name(node.block) in refused}
    known = replace(known, closed=frozenset(_orphaned(view, pods) | stale), unwritable=frozenset(refused))
    return [
        *_nodes(view, nodes),
        *_ultraservers(view, nodes, known),
        *_tags(view, nodes, known),
        *workload_laws.problems(view, nodes, known),
        *_orphans(view, nodes, pods),
        *_pods(view, nodes, pods, known),
        *_refused(view, nodes, pods, known),
        *(spares.problems(view, nodes, workload_laws.usable(nodes, known), known) if "spares" in known.actors else ()),
        *(qualify_laws.unsaid(view, known) if "qualifications" in known.actors else ()),
        *(block_laws.unsaid(view, nodes, known) if "blocks" in known.actors else ()),
        *notices.untrue(view, pods, nodes),
        *(jobs.problems(view, known) if "jobs" in known.actors else ()),
        *(queue_laws.problems(view, known) if "queues" in known.actors else ()),
        *(address_laws.problems(view, nodes, pods.running, known) if "ipv6" in known.actors else ()),
    ]


def _nodes(view: View, nodes: Mapping[str, FleetNode]) -> Iterator[str]:
    tags = view.tags()
    for node in nodes.values():
        if node.healthy and node.name not in tags:
            yield f"node {node.name} publishes nothing"


def _ultraservers(view: View, nodes: Mapping[str, FleetNode], known: Known) -> Iterator[str]:
    bad = qualify_laws.unqualified(view)
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
        whole = whole and not any(node.was_reported(known.now) for node in block_nodes)
        whole = whole and not known.refuses(found) and "deletionTimestamp" not in found["metadata"]
        ready = condition(found, "Ready")
        # The annotation of a node is no time, as the message says.
        whole = whole and not (ready.get("reason") == "InvalidBlockEnd" and "blocks" in known.actors)
        whole = whole and bad.isdisjoint(node.name for node in block_nodes)
        if whole and ready.get("status") != "True":
            yield f"the NeuronUltraServer of {block} is not Ready: {ready.get('message')}"
        gone = [name for _, name in sorted(listed) if not nodes[name].present]
        if gone:
            yield f"the NeuronUltraServer of {block} lists nodes that are gone: {', '.join(gone)}"


def _tags(view: View, nodes: Mapping[str, FleetNode], known: Known) -> Iterator[str]:
    """Tags equal the reservations; a Draining node keeps its tag until the container has ended."""
    holders, tags = view.holders(), view.tags()
    for node in nodes.values():
        if not node.healthy or node.name not in tags or node.name in known.closed or not node.tags_its_devices:
            continue
        held, tag = holders.get(node.name), tags[node.name]
        wanted = Tag.of(held.allocation) if held else None
        if tag != wanted:
            yield f"node {node.name} is tagged {_tag(tag)}, and is reserved {_tag(wanted)}"


def _tag(tag: Tag | None) -> str:
    return f"{tag.workload_name}/{tag.allocation_id[:6]}/{tag.phase.value}" if tag else "for no workload"


def _refused(view: View, nodes: Mapping[str, FleetNode], pods: Pods, known: Known) -> Iterator[str]:
    """No pod stays on a node that is reserved for others and rejects it."""
    if known.budgets or not {"refused-pods", "rogues"} & known.actors:
        return
    holders = view.holders()
    for pod in view.all("pods"):
        meta, node = pod["metadata"], nodes.get(str(pod["spec"].get("nodeName")))
        held = holders.get(node.name) if node else None
        if node is None or held is None or held.allocation.phase is not Phase.BOUND or not node.healthy:
            continue
        # A Job that lost its annotation is no longer in `jobs_of`, but the claims of its pods still name the workload.
        own = {known.jobs_of.get((meta.get("labels") or {}).get("job", "")), *_workloads_of_claims(view, pod)}
        waited_s = (known.now - parsed(pod["status"].get("startTime") or meta["creationTimestamp"])).total_seconds()
        foreign = held.allocation.workload_uid not in own
        refused = meta["uid"] in pods.refused and foreign and not has_lost_claim(view, pod)
        if refused and waited_s > MOST_REFUSED_S:
            yield f"pod {meta['name']} has been refused on {node.name} for {waited_s:.0f} s"


def _workloads_of_claims(view: View, pod: Wire) -> Iterator[str | None]:
    for status in pod["status"].get("resourceClaimStatuses") or ():
        claim = view.find("resourceclaims", status["resourceClaimName"], pod["metadata"]["namespace"])
        yield workload_uid(claim) if claim is not None else None


def _orphans(view: View, nodes: Mapping[str, FleetNode], pods: Pods) -> Iterator[str]:
    present = view.workloads()
    identities = {identity_of(workload) for workload in present.values()}
    for held in view.held():
        well = all(nodes[name].healthy for name in held.allocation.nodes)
        if well and held.allocation.holder not in present:
            yield f"a reservation is left of a workload that is gone: {held.allocation.nodes}"
    for template in view.all("resourceclaimtemplates"):
        if template["metadata"]["namespace"] == STRANGERS:
            continue
        owner = controller_of(template)
        if owner is not None and owner not in identities:
            yield f"template {template['metadata']['name']} is left of a workload that is gone"
    kept = {ref.uid for _, refs in pods._held.values() for ref in refs}
    for node in nodes.values():
        unused = node.checkpointed - kept
        if node.healthy and unused:
            yield f"node {node.name} has prepared claims that nobody uses: {sorted(unused)}"


def _pods(view: View, nodes: Mapping[str, FleetNode], pods: Pods, known: Known) -> Iterator[str]:
    """The pods of an Allocated workload run, one on each healthy node."""
    orphaned = _orphaned(view, pods)
    for job in pods.jobs.values():
        uid = known.jobs_of.get(job.name)
        workload = view.workloads().get(uid) if uid else None
        if workload is None or state(workload) != "Allocated":
            continue
        if len(of_template(view, workload["metadata"], job.template)) != 1:
            continue  # other pods use the template too
        mine = [node for held in view.of(str(uid)) for node in held.allocation.nodes]
        strangers = orphaned | {
            name for name in mine for claim in view.uses().get(name, ()) if workload_uid(claim) != uid
        }
        well = [
            name
            for held in view.of(str(uid))
            for name in held.allocation.nodes
            if nodes[name].healthy
            and is_well(view, held, nodes[name])
            and name not in strangers
            and name not in known.closed
            and nodes[name].schedulable
            and nodes[name].tags_its_devices
        ]
        running = {each.node for each in pods.running.values() if each.workload_uid == uid}
        lost = sum(has_lost_claim(view, pod) or astray(view, pod, str(uid)) for pod in pods.of_job(job))
        wanted = min(job.replicas, len(mine)) - lost
        if len(well) == len(mine) and len(running) < wanted:
            yield f"{len(running)} of {wanted} pods of {job.name} run"


def _orphaned(view: View, pods: Pods) -> set[str]:
    """The nodes with a container whose claim was deleted by force."""
    present = view.claim_uids()
    return {each.node for each in pods.running.values() if not each.has_claims(present)}
