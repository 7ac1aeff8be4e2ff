"""The laws of the actor `queues`: nodes within quota, and quota only for nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from controller.queue.model import IN_USE, NO_PLACE, name_for
from neuron_dra.core.ownership import controller_of
from neuron_dra.core.ultraserver import Phase
from neuron_dra.core.wire import Wire
from neuron_dra.planner.observed.model import GROUP, WORKLOAD_KIND
from tests.support.fleet.known import Known
from tests.support.fleet.kueue import granted, is_true
from tests.support.fleet.view import Held, View, condition, identity_of, parsed, state

LABEL: Final = "kueue.x-k8s.io/queue-name"
REASONS: Final = frozenset(
    {
        "QueueRequired",
        "QueueUnknown",
        "WaitingForQuota",
        "QueueFeatureUnsupported",
        "GrowthNeedsQuota",
        "QueueFinished",
        "QueueDeactivated",
        "QuotaRevoked",
        "QuotaGivenBack",
    }
)
"""The reasons of workloads that wait for their queue."""
PATIENCE_S: Final = 300.0
FIRST_RETURN_S: Final = 60.0
SLACK_S: Final = 180.0


def queue_of(workload: Wire) -> str:
    return str((workload["metadata"].get("labels") or {}).get(LABEL) or "")


def record_of(workload: Wire) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (workload.get("status") or {}).get("queue") or {}
    return found


def owner_of(item: Wire) -> str:
    """The UID of the workload of a Workload of Kueue; empty for those of other objects, and of a deleted workload."""
    owner = controller_of(item)
    return owner.uid if owner is not None and (owner.group, owner.kind) == (GROUP, WORKLOAD_KIND) else ""


@dataclass(frozen=True, slots=True)
class Pair:
    """A workload, and Kueue's Workload of it."""

    workload: Wire
    kueue: Wire | None


def nodes_of(held: list[Held], *, draining: bool = False) -> int:
    """Return the nodes of a workload's groups; of two with one index one counts. Draining ones do not count."""
    sizes: dict[int, int] = {}
    for each in held:
        one = each.allocation
        if draining or one.phase is not Phase.DRAINING:
            sizes[one.ultraserver_index] = max(sizes.get(one.ultraserver_index, 0), len(one.nodes))
    return sum(sizes.values())


def beyond_quota(held: list[Held], workloads: list[Wire], items: list[Wire], queued: set[str]) -> Iterator[str]:
    """Yield a sentence for each workload with more nodes than its queue has given it.

    `queued` are the UIDs of the workloads that had a queue before they had nodes.
    """
    by_uid = {str(workload["metadata"]["uid"]): workload for workload in workloads}
    for uid in sorted({each.allocation.holder for each in held} & queued):
        workload = by_uid.get(uid)
        mine = [item for item in items if is_of(item, workload)] if workload is not None else left_of(items, uid)
        number, quota = nodes_of([each for each in held if each.allocation.holder == uid]), 0
        for each in mine:
            quota += granted(each)
        if number > quota:
            name = workload["metadata"]["name"] if workload is not None else uid
            yield f"workload {name} has {number} nodes, and quota for {quota}"


def is_of(item: Wire, workload: Wire) -> bool:
    """Return True for the Workload that counts for a workload. Without a controller, its place proves whose it is."""
    identity = identity_of(workload)
    if (item["metadata"]["namespace"], item["metadata"]["name"]) != (identity.namespace, name_for(identity)):
        return False
    return identity.controls(item) or controller_of(item) is None


def left_of(items: list[Wire], uid: str) -> list[Wire]:
    """Return the Workloads of a workload that is gone."""
    named = [item for item in items if str(item["metadata"]["name"]).endswith(f"-{uid[:8]}")]
    return [item for item in named if owner_of(item) in (uid, "")]


def problems(view: View, known: Known) -> Iterator[str]:
    """Yield a sentence for each condition of queues that does not hold yet."""
    items = view.all("workloads")
    for uid, workload in sorted(view.workloads().items()):
        found = [item for item in items if is_of(item, workload)]
        pair = Pair(workload, found[0] if found else None)
        if known.refuses(workload) or workload["metadata"].get("deletionTimestamp"):
            continue
        yield from _of_workload(view, uid, pair, known)
    present = view.workloads()
    for each in items:
        uid = owner_of(each)
        if uid not in present and IN_USE in each["metadata"].get("finalizers", ()) and not view.of(uid):
            yield f"Workload {each['metadata']['name']} is left of a reservation that is gone"


def _of_workload(view: View, uid: str, pair: Pair, known: Known) -> Iterator[str]:
    workload, kueue, held = pair.workload, pair.kueue, view.of(uid)
    meta = workload["metadata"]
    name, queue = meta["name"], queue_of(workload)
    if not (queue or kueue or record_of(workload)):
        if held and meta["namespace"] in known.queue_required:
            yield f"workload {name} has nodes without a queue, which its namespace requires"
        return
    if kueue is None:
        if queue and not held:
            yield f"workload {name} has a queue, and Kueue does not know it"
        return
    if kueue["metadata"].get("deletionTimestamp") or is_true(kueue, "Finished"):
        if not held and IN_USE in kueue["metadata"].get("finalizers", ()):
            yield f"Workload of {name} has ended, and its finalizer is left"
        return
    if not is_true(kueue, "QuotaReserved"):
        yield from _without_quota(name, workload, kueue, held, known)
        return
    if is_true(kueue, "Evicted"):
        if not held:
            yield f"Workload of {name} is evicted and has no nodes, and keeps its quota"
        elif any(
            each.allocation.phase is not Phase.DRAINING and each.ultraserver not in known.unwritable for each in held
        ):
            yield f"Workload of {name} is evicted, and its nodes are not released"
        return
    admitted = condition(kueue, "Admitted")
    if admitted.get("status") != "True":
        return
    waits_s = (known.now - parsed(admitted["lastTransitionTime"])).total_seconds()
    ready = condition(workload, "Ready")
    waits_s = min(waits_s, (known.now - parsed(ready["lastTransitionTime"])).total_seconds()) if ready else waits_s
    if not held and waits_s > PATIENCE_S + SLACK_S:
        yield f"Workload of {name} keeps quota for {waits_s:.0f} s, and has no nodes"
    told = is_true(kueue, "PodsReady")
    if state(workload) == "Allocated" and not told:
        yield f"workload {name} is Allocated, and its Workload is not PodsReady"
    if not held and told:
        yield f"workload {name} has no nodes, and its Workload is PodsReady"
    needs = int(workload["spec"]["serverCount"]) * int(workload["spec"]["topologySize"])
    most = max(needs, sum(len(each.allocation.nodes) for each in held))
    if granted(kueue) > most and state(workload) != "Deallocating":
        yield f"workload {name} needs {most} nodes, and keeps quota for {granted(kueue)}"


def _without_quota(name: str, workload: Wire, kueue: Wire, held: list[Held], known: Known) -> Iterator[str]:
    requeued = condition(kueue, "Requeued")
    if requeued.get("status") == "False" and requeued.get("reason") in ("Preempted", "NodeFailures"):
        yield f"Workload of {name} was preempted, and does not queue again"
    if requeued.get("reason") == NO_PLACE and requeued.get("status") == "False" and queue_of(workload):
        waits_s = (known.now - parsed(requeued["lastTransitionTime"])).total_seconds()
        times = int(record_of(workload).get("returned") or 0)
        if not times:
            yield f"workload {name} gave its quota back, and has no delay"
        elif waits_s > FIRST_RETURN_S * 2 ** min(times - 1, 6) + SLACK_S:
            yield f"workload {name} gave its quota back {waits_s:.0f} s ago, and does not queue again"
    if queue_of(workload) and kueue["spec"].get("queueName") != queue_of(workload) and not held:
        yield f"workload {name} waits in queue {kueue['spec'].get('queueName')}, and its label is {queue_of(workload)}"
