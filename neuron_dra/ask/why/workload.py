"""Why an UltraServer workload waits: its conditions, who is where, and one pod that is in the way. Pure."""

from __future__ import annotations

from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import Change, Facts, Finding, Report
from neuron_dra.ask.why import creating, situations, trials
from neuron_dra.ask.world import budgets, unseen
from neuron_dra.ask.world.world import Holder, World
from neuron_dra.core.wire import Wire
from neuron_dra.simulate.scheduler import Placement


def report(world: World, workload: Wire) -> Report:
    """Return the report about a NeuronUltraServerWorkload, from its conditions."""
    meta, status = workload["metadata"], workload.get("status") or {}
    subject = f"workload {meta.get('namespace') or 'default'}/{meta['name']}"
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    ready = conditions.get("Ready") or {}
    degraded = conditions.get("Degraded") or {}
    if ready.get("status") == "True" and degraded.get("status") != "True":
        return Report(subject, f"is {status.get('state') or 'Allocated'}", fine=True)
    if not ready:
        state = creating.state_of(workload)
        waits = situations.WORKLOAD
        finding = Finding(waits.code, waits.text.format(**state), state["conditions"])
        return Report(subject, "has no conditions", (finding,))
    found = [
        Finding(str(each.get("reason") or kind), str(each.get("message") or each.get("reason") or "no message"))
        for kind, each in (("Degraded", degraded), ("Ready", ready))
        if each and each.get("status") == ("True" if kind == "Degraded" else "False")
    ]
    if found and status.get("state") in ("Pending", "PartiallyAllocated", "Allocating"):
        servers = [each for each in world.snapshot.all("NeuronUltraServer") if _serves(each, workload)]
        facts = Facts()
        facts.some("UltraServer", (_shown(world, each) for each in servers))
        changes = [change for each in servers if (change := _emptied(world, workload, each)) is not None]
        found[0] = Finding(found[0].code, found[0].text, facts.done(), tuple(changes[:3]))
    return Report(subject, f"is {status.get('state') or 'not handled yet'}", tuple(found))


def _shown(world: World, item: Wire) -> str:
    """Return one UltraServer with what is on each of its nodes."""
    parts, none = [], "unknown" if "ResourceClaim" in unseen.kinds(world.snapshot) else "free"
    for entry in (item.get("spec") or {}).get("topology") or ():
        name = entry["nodeName"]
        tag = world.tags.get(name)
        users = sorted({str(holder) for device, holder in world.holders.items() if device.pool == name})
        parts.append(f"{name}: {tag.workload if tag else words.listed(users, 2) or none}")
    return f"{item['metadata']['name']}: {'; '.join(parts)}"


def _nodes(item: Wire) -> list[str]:
    return [entry["nodeName"] for entry in (item.get("spec") or {}).get("topology") or () if entry.get("nodeName")]


def _serves(item: Wire, workload: Wire) -> bool:
    """Return True if an UltraServer is of the workload's type and large enough."""
    wanted, have = workload.get("spec") or {}, item.get("spec") or {}
    return have.get("instanceType") == wanted.get("instanceType") and len(_nodes(item)) >= int(
        wanted.get("topologySize") or 1
    )


def _emptied(world: World, workload: Wire, item: Wire) -> Change | None:
    """Return the change that moves the only pod of a whole, unreserved UltraServer to a node elsewhere."""
    names = _nodes(item)
    if int((workload.get("spec") or {}).get("topologySize") or 1) != len(names) or any(
        each in world.tags for each in names
    ):
        return None
    holders: dict[str, Holder] = {
        holder.key: holder for device, holder in world.holders.items() if device.pool in names
    }
    if len(holders) != 1 or not world.proposes:
        return None
    holder = next(iter(holders.values()))
    pod = world.snapshot.get("Pod", holder.pods[0], holder.namespace) if len(holder.pods) == 1 else None
    if pod is None or budgets.objection(world.snapshot, pod):
        return None
    released, removed = trials.released(world, pod)
    elsewhere = world.after(released, [*removed, *(("Node", "", name) for name in names)])
    outcome = elsewhere.after([again := trials.unplaced(pod)]).place(again)
    if not isinstance(outcome, Placement):
        return None
    text = f"kubectl delete pod {holder.pods[0]} -n {holder.namespace}"
    after = f"then no claim holds a device of UltraServer {item['metadata']['name']}"
    fits = f"; created again, {holder} fits on node {outcome.node}"
    return Change(text, after + fits, tuple(released), tuple(removed))
