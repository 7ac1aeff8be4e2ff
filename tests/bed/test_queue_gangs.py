"""35, acceptance 2: 30 gangs of three queues contend for two UltraServers, and both controllers are killed ten times.

All of them finish, higher priority first, within quota in every state that the API server had.
"""

from __future__ import annotations

import datetime
import itertools
import os
import signal
import time
from collections.abc import Iterator
from typing import Final

import pytest

from hack.bed import kueue
from hack.bed.real_cluster import Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.fleet import NODES, slots, wait_state, workload
from tests.bed.queues import JOBS_QUEUE, LABEL, WORKLOADS, Queues, gang, granted, is_true, queued
from tests.bed.test_jobs_that_reserve import events_of
from tests.bed.test_queues import queues as queues
from tests.bed.test_queues import running_queues as running_queues
from tests.bed.test_ultraserver_failover import leader_process
from tests.support import kueue_log
from tests.support.kueue_log import versions

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]

QUOTA: Final = {"red": 4, "green": 2, "blue": 2}
GANGS: Final = 30
KILLS: Final = 10
SLACK: Final = datetime.timedelta(seconds=5)  # in which Kueue notices a Workload
PRIORITIES: Final = ("", "low", "high")
SIZES: Final = ((4, 1), (2, 1), (1, 1), (2, 2), (1, 2))


def gangs() -> list[Obj]:
    """Return jobs, and the workloads of two thirds of them; the others reserve by annotation and have no priority.

    Those of high priority come last, so that their order is not that of arrival.
    """
    queue, size = itertools.cycle(QUOTA), itertools.cycle(SIZES)
    found = []
    for number in range(GANGS):
        name, priority = f"gang-{number}", PRIORITIES[number * len(PRIORITIES) // GANGS]
        nodes, groups = next(size)
        job = gang(name, next(queue), nodes, groups)
        if priority:
            reserved = job["metadata"].pop("annotations")
            workload_queue = reserved[JOBS_QUEUE]
            found.append(queued(name, workload_queue, nodes, groups, template=f"{name}-rct", priority=priority))
        found.append(job)
    return found


def kill_both(bed: TestBed) -> None:
    """End Kueue and the leader of our controller as a power cut does, and start Kueue again."""
    parts = bed.parts
    _, _, pid = leader_process(bed)
    os.kill(pid, signal.SIGKILL)  # the kubelet starts it again
    os.kill(parts.processes.pid(kueue.PROCESS), signal.SIGKILL)
    eventually("Kueue is dead", lambda: not parts.processes.is_running(kueue.PROCESS), 10)
    kueue.start(parts.plane, kueue.ON_A_BED)


def finished(place: Namespace) -> set[str]:
    """Return the names of the jobs that are complete. Who wrote a workload for one of them deletes it now."""
    found = set()
    for each in place.get("jobs")["items"]:
        listed = each.get("status", {}).get("conditions") or []
        if any(one["type"] == "Complete" and one["status"] == "True" for one in listed):
            found.add(str(each["metadata"]["name"]))
    written = {str(each["metadata"]["name"]) for each in place.get("nusw")["items"] if not owned(each)}
    if found & written:
        place.kubectl("delete", "nusw", *sorted(found & written), "--wait=false")
    return found


def owned(item: Obj) -> bool:
    return bool(item["metadata"].get("ownerReferences"))


# Kueue is started again from here, and outlives the test.
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_gangs_of_three_queues_all_finish(
    fleet: TestBed, queues: Queues, place: Namespace, request: pytest.FixtureRequest
) -> None:
    for name, quota in QUOTA.items():
        queues.add(name, quota, queueingStrategy="StrictFIFO")
    wanted = gangs()
    both = gang("both", "red", 4, 1)
    both["metadata"]["labels"] = {LABEL: "red"}
    place.apply({"apiVersion": "v1", "kind": "List", "items": [*wanted, both]})
    place.apply(workload("plain", 2, 1))
    names = {f"gang-{number}" for number in range(GANGS)}
    for number in range(KILLS):
        finished(place)
        time.sleep(8)
        kill_both(fleet)
        if number == 1:
            wait_state(place, "plain", "Allocated", 180)
        if number == 3:
            place.kubectl("delete", "nusw", "plain", timeout_s=190)
    eventually("all gangs are complete", lambda: finished(place) == names, 1200, 2)
    eventually("the nodes are free", lambda: slots(fleet) == {}, 120)
    place.kubectl("delete", "job", "both")
    eventually("no Workloads", lambda: not place.get(WORKLOADS)["items"], 120)
    assert "ManagedByKueue" in events_of(place, "Job", "both")
    history = versions(kueue_log.RECORDS / request.node.name)  # the queues' fixture records
    assert [*beyond_quota(history)] == []
    assert [*out_of_order(history)] == []


# What must hold in each state


def states(history: list[tuple[str, Obj]]) -> Iterator[tuple[Obj, dict[str, Obj], dict[str, list[str]]]]:
    """Yield after each change: the object that changed, the Workloads by UID of their workload, and the nodes by it."""
    items: dict[str, Obj] = {}
    held: dict[str, dict[str, list[str]]] = {}
    for kind, item in history:
        if item["kind"] == "Workload":
            uid = (item["metadata"].get("labels") or {}).get("neuron.aws.com/workload-uid")
            if uid is None:
                continue
            if kind == "DELETED":
                items.pop(uid, None)
            else:
                items[uid] = item
        elif item["kind"] == "NeuronUltraServer":
            held[item["metadata"]["name"]] = {} if kind == "DELETED" else _nodes(item)
        nodes: dict[str, list[str]] = {}
        for each in held.values():
            for uid, names in each.items():
                nodes.setdefault(uid, []).extend(names)
        yield item, dict(items), nodes


def _nodes(ultraserver: Obj) -> dict[str, list[str]]:
    """Return the nodes that are Pending or Bound, by UID of the workload."""
    found: dict[str, list[str]] = {}
    for entry in ultraserver.get("status", {}).get("allocations") or []:
        if entry["phase"] != "Draining":
            found.setdefault(entry["workloadUid"], []).extend(entry["allocatedNodes"])
    return found


def beyond_quota(history: list[tuple[str, Obj]]) -> Iterator[str]:
    """Yield each state in which nodes are beyond their quota, or the quota beyond what the cohort has."""
    for item, items, nodes in states(history):
        version = item["metadata"]["resourceVersion"]
        total = sum(granted(each) for each in items.values())
        if total > sum(QUOTA.values()):
            yield f"{version}: quota for {total} nodes"
        for uid, names in nodes.items():
            mine = items.get(uid)
            if mine is not None and len(names) > granted(mine) and not is_true(mine, "Evicted"):
                yield f"{version}: {mine['metadata']['name']} has {len(names)} nodes, and quota for {granted(mine)}"
        if sum(len(names) for names in nodes.values()) > len(NODES):
            yield f"{version}: {nodes}"


def out_of_order(history: list[tuple[str, Obj]]) -> Iterator[str]:
    """Yield each admission of a gang while one of higher priority waited in the same queue."""
    before: dict[str, Obj] = {}
    for item, items, _ in states(history):
        uid = (item["metadata"].get("labels") or {}).get("neuron.aws.com/workload-uid", "")
        admitted = is_true(items.get(uid), "QuotaReserved") and not is_true(before.get(uid), "QuotaReserved")
        if admitted:
            listed = items[uid]["status"]["conditions"]
            [at] = [each["lastTransitionTime"] for each in listed if each["type"] == "QuotaReserved"]
            for other in items.values():
                if _ahead(other, items[uid]) and _waits(other, at):
                    yield f"{item['metadata']['name']} was admitted before {other['metadata']['name']}"
        before = items


def _waits(item: Obj, at: str) -> bool:
    """Return True if a Workload waited for quota before a time, and for so long that Kueue had looked at it."""
    found = {each["type"]: each for each in item.get("status", {}).get("conditions", ())}
    quota, requeued = found.get("QuotaReserved"), found.get("Requeued")
    if quota is None or quota["status"] == "True" or is_true(item, "Finished") or is_true(item, "Evicted"):
        return False
    if requeued is not None and requeued["status"] == "False":
        return False
    since = max(each["lastTransitionTime"] for each in (quota, requeued) if each is not None)
    waited = datetime.datetime.fromisoformat(at) - datetime.datetime.fromisoformat(since)
    return waited > SLACK


def _ahead(other: Obj, item: Obj) -> bool:
    same = other["spec"]["queueName"] == item["spec"]["queueName"]
    return bool(same and (other["spec"].get("priority") or 0) > (item["spec"].get("priority") or 0))
