"""The actor `queues`: users put workloads into queues, and Kueue admits, preempts and requeues them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from neuron_dra.core.wire import Obj, Wire
from neuron_dra.errors import NotFound
from neuron_dra.kube.requests import KUEUE_WORKLOADS, NEURON_WORKLOADS, PRIORITY_CLASSES
from tests.support.fleet.fleet import NAMESPACES
from tests.support.fleet.kueue import QUEUES, granted, is_true
from tests.support.fleet.mix import Actor
from tests.support.fleet.queue_laws import LABEL, queue_of
from tests.support.fleet.view import place

if TYPE_CHECKING:
    from tests.support.fleet.schedule import Schedule

MOST_QUEUED: Final = 5
CLASSES: Final = {"low": 10, "high": 100}


async def begin(schedule: Schedule) -> None:
    """Kueue is installed, sometimes later, with quota for more or fewer nodes than there are."""
    fleet = schedule.fleet
    for name, value in CLASSES.items():
        body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        await fleet.ensure(PRIORITY_CLASSES, "", {**body, "value": value})
    for name in QUEUES:
        fleet.kueue.queues[name].quota = schedule.rng.choice((2, 4, 4, 6, 8))
    fleet.kueue.start()
    if schedule.rng.random() < 0.3 and "jobs" not in fleet.actors:
        fleet.queue_required = frozenset(fleet.namespaces)
        for namespace in fleet.namespaces:
            labels = {"neuron.aws.com/reserve-for-jobs": "queue"}
            await fleet.patch(NAMESPACES, "", namespace, {"metadata": {"labels": labels}})


async def submit(schedule: Schedule) -> str | None:
    """A user puts a workload into a queue."""
    rng, fleet = schedule.rng, schedule.fleet
    if sum(bool(queue_of(each)) for each in fleet.workloads()) >= MOST_QUEUED:
        return None
    schedule.made += 1
    size = rng.choice((1, 1, 2, 2, 4))
    count = rng.randint(1, min(3, len(fleet.nodes) // size))
    name, queue = f"q{schedule.made}", rng.choice(QUEUES)
    spec: Obj = {"priorityClassName": rng.choice(tuple(CLASSES))} if rng.random() < 0.7 else {}
    strategy = rng.choice(("NoOp", "RestartAll", "MigrateAffected"))
    made = await fleet.submit(name, size, count, strategy, "", schedule.namespace(), queue, **spec)
    if made is None:
        return None
    if rng.random() < 0.7:
        fleet.start_job(made)
    return f"create workload {name} in queue {queue}: {count} x {size}, {strategy}, {spec or 'no priority'}"


def _pick(schedule: Schedule) -> Wire | None:
    found = schedule.fleet.view.all("workloads")
    return schedule.rng.choice(found) if found else None


async def _patch(schedule: Schedule, item: Wire, patch: Obj) -> None:
    await schedule.fleet.patch(KUEUE_WORKLOADS, *place(item), patch)


async def deactivate(schedule: Schedule) -> str | None:
    """An administrator deactivates a Workload, or activates it again."""
    item = _pick(schedule)
    if item is None:
        return await submit(schedule)
    active = item["spec"].get("active") is not False
    await _patch(schedule, item, {"spec": {"active": not active}})
    return f"Workload {item['metadata']['name']} is {'not ' if active else ''}active"


async def change_queue(schedule: Schedule) -> str | None:
    """A user changes or removes the queue of a workload."""
    found = [each for each in schedule.fleet.workloads() if queue_of(each)]
    if not found:
        return await submit(schedule)
    workload, queue = schedule.rng.choice(found), schedule.rng.choice((*QUEUES, None))
    if queue is None:
        schedule.fleet.queued.discard(workload["metadata"]["uid"])
    await schedule.fleet.patch(NEURON_WORKLOADS, *place(workload), {"metadata": {"labels": {LABEL: queue}}})
    return f"workload {workload['metadata']['name']} has the queue {queue}"


async def scale(schedule: Schedule) -> str | None:
    """A user scales a workload that has a queue."""
    found = [each for each in schedule.fleet.workloads() if queue_of(each)]
    if not found:
        return await submit(schedule)
    workload, count = schedule.rng.choice(found), schedule.rng.choice((1, 1, 2, 3))
    meta, spec = workload["metadata"], workload["spec"]
    if count * spec["topologySize"] > len(schedule.fleet.nodes) or count == spec["serverCount"]:
        return None
    await schedule.fleet.patch(NEURON_WORKLOADS, *place(workload), {"spec": {"serverCount": count}})
    job = schedule.job_of(dict(workload))
    if job is not None:
        job.replicas = count * spec["topologySize"]
    schedule.fleet.resized(meta["uid"], count)
    return f"resize workload {meta['name']}: {spec['serverCount']} -> {count}"


async def add_queue(schedule: Schedule) -> str | None:
    """A user adds a queue to a workload that has none, perhaps with nodes."""
    found = [each for each in schedule.fleet.workloads() if not queue_of(each)]
    if not found:
        return None
    workload, queue = schedule.rng.choice(found), schedule.rng.choice(QUEUES)
    await schedule.fleet.patch(NEURON_WORKLOADS, *place(workload), {"metadata": {"labels": {LABEL: queue}}})
    return f"workload {workload['metadata']['name']} gets the queue {queue}"


async def change_quota(schedule: Schedule) -> str | None:
    """An administrator changes the quota of a queue, or stops or resumes it."""
    queue = schedule.fleet.kueue.queues[schedule.rng.choice(QUEUES)]
    if schedule.rng.random() < 0.4:
        queue.stopped = not queue.stopped
        return f"queue {queue.name} is {'stopped' if queue.stopped else 'resumed'}"
    queue.quota = schedule.rng.choice((0, 2, 4, 6, 8))
    return f"queue {queue.name} has quota for {queue.quota} nodes"


async def kill_kueue(schedule: Schedule) -> str | None:
    """Kueue dies, and comes back."""
    kueue = schedule.fleet.kueue
    if not kueue.up:
        kueue.start()
        return "Kueue starts"
    await kueue.stop()
    seconds = schedule.rng.choice((0.5, 5.0, 60.0))

    async def again() -> None:
        await asyncio.sleep(seconds)
        kueue.start()

    schedule.fleet.spawn(again())
    return f"Kueue dies, and comes back in {seconds:g} s"


async def give_up_waiting(schedule: Schedule) -> str | None:
    """Kueue evicts a Workload whose pods are not ready in time."""
    found = [each for each in schedule.fleet.view.all("workloads") if granted(each) and not is_true(each, "PodsReady")]
    if not found or not schedule.fleet.kueue.up:
        return None
    item = schedule.rng.choice(found)
    await schedule.fleet.kueue.evict(dict(item), "PodsReadyTimeout", "Exceeded the PodsReady timeout")
    return f"Workload {item['metadata']['name']} was not ready in time"


async def delete_one(schedule: Schedule) -> str | None:
    """A user deletes Kueue's Workload of a reservation."""
    item = _pick(schedule)
    if item is None:
        return None
    await schedule.fleet.remove(KUEUE_WORKLOADS, *place(item))
    return f"delete Workload {item['metadata']['name']}"


async def forge(schedule: Schedule) -> str | None:
    """A user writes a Workload that says to be of a reservation, and admits itself."""
    workload = schedule.workload()
    if workload is None:
        return None
    meta = workload["metadata"]
    owner = {
        "apiVersion": "neuron.aws.com/v1beta1",
        "kind": "NeuronUltraServerWorkload",
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }
    schedule.made += 1
    one = {"neuron.aws.com/ultraserver-node": "1"}
    pods = {"spec": {"containers": [{"name": "node", "resources": {"requests": one}}]}}
    body: Obj = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": f"forged{schedule.made}", "ownerReferences": [owner]},
        "spec": {"queueName": "none", "podSets": [{"name": "nodes", "count": 64, "template": pods}]},
    }
    await schedule.fleet.admin.create(KUEUE_WORKLOADS, meta["namespace"], body)
    return f"somebody's Workload says to be of {meta['name']}"


async def heal(schedule: Schedule) -> None:
    """Kueue works, its queues are open, and nothing is deactivated."""
    fleet = schedule.fleet
    fleet.kueue.start()
    for queue in fleet.kueue.queues.values():
        queue.quota, queue.stopped = len(fleet.nodes), False
    for item in fleet.view.all("workloads"):
        if item["spec"].get("active") is False:
            with contextlib.suppress(NotFound):  # a forged one, whose owner is in another namespace, is collected
                await _patch(schedule, item, {"spec": {"active": True}})


ACTORS: Final = {
    "queues": Actor(
        about="Kueue admits, preempts, requeues and deactivates workloads; nodes within quota, quota only for nodes",
        steps={
            submit: 8,
            deactivate: 2,
            change_queue: 2,
            add_queue: 1,
            scale: 3,
            change_quota: 2,
            kill_kueue: 2,
            give_up_waiting: 1,
            delete_one: 1,
            forge: 1,
        },
        begin=begin,
        heal=heal,
        embedded=True,
        issue="35",
    )
}
