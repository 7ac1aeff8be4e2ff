"""A cluster with jobs, queues and tests, and what the controller decides and writes about each tenant of it.

Each tenant has a namespace of its own, and each of the two qualifications an instance type.
"""

from __future__ import annotations

import copy
import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec

from controller.apply.fence import Fence
from controller.apply.leader import Alone
from controller.apply.requests import Applier
from controller.jobs.reservations import JobReservations
from controller.jobs.watches import JobWatches
from controller.metrics import Metrics
from controller.observe.caches import Caches
from controller.qualify.qualifications import Qualifications
from controller.qualify.watches import QualifyWatches
from controller.queue.model import body_for
from controller.queue.queues import Queues
from controller.queue.watches import QueueWatch
from controller.timing import DEFAULT_TIMING
from hack.bench.ultraservers import ultraserver
from neuron_dra.core.qualification import NAMESPACE as TESTS
from neuron_dra.core.qualification import TESTS as TARGET
from neuron_dra.core.qualification import Target
from neuron_dra.core.ultraserver import NAMESPACE as ULTRASERVERS
from neuron_dra.core.wire import Obj
from neuron_dra.errors import Conflict, NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.events import EventRecorder
from neuron_dra.kube.reflector import Reflector
from neuron_dra.planner.decisions.actions import Plan, Verdict
from neuron_dra.planner.decisions.objects import owner_of
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.limits import DEFAULT_LIMITS
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import Known
from neuron_dra.planner.plan import planning
from tests.support.sending import sent
from tests.unit.ultraserver_world import World

TYPE = "trn3.48xlarge"  # of all tenants
QUALIFICATIONS: Final = {"nightly": "trn2p.48xlarge", "weekly": "trn2u.48xlarge"}
PLURALS: Final = {
    "Workload": "workloads",
    "PriorityClass": "priorityclasses",
    "DeviceClass": "deviceclasses",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
Key = tuple[str, str, str]
"""Kind, namespace and name."""
POLICY: Final = "neuron-dra-driver-jobs-reserve"
RESERVED: Final = {"u0": "job-early", "u1": "job-gone", "u2": "job-grows", "u3": "queue-bound"}
EVERYBODY: Final = "everybody"
"""The owner of what an administrator writes for all tenants."""


def plural(kind: str) -> str:
    """Return the plural name of a kind."""
    return PLURALS.get(kind, f"{kind.lower()}s")


class Shelf(KubeClient):
    """An API server that has these objects. It records each write, Events aside, and rejects it as a conflict.

    `texts` has the JSON of objects that are stored otherwise than `objects` shows them.
    """

    def __init__(self, objects: Mapping[Key, Obj], texts: Mapping[Key, bytes] = {}) -> None:
        super().__init__(KubeConfig("shelf:"))
        self.objects = objects
        self.texts = texts
        self.writes: list[tuple[str, str, str]] = []

    async def _send(self, method: str, path: str, params: Any, body: Any, *_: object) -> bytes:
        if path.endswith("/events"):
            return msgspec.json.encode(body)
        if method != "GET":
            self.writes.append((method, path, json.dumps(body, sort_keys=True, default=str)))
            raise Conflict("another one has written it", status=409)
        parts = path.strip("/").split("/")[3 if path.startswith("/apis/") else 2 :]
        namespace = parts[1] if parts[0] == "namespaces" and len(parts) > 2 else ""
        rest = parts[2:] if namespace else parts
        found = [key for key in self.objects if plural(key[0]) == rest[0] and namespace in ("", key[1])]
        if len(rest) == 1:
            items = [msgspec.Raw(self.text(key)) for key in found]
            return msgspec.json.encode({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items})
        named = [key for key in found if key[2] == rest[1]]
        if not named:
            raise NotFound(path, status=404)
        return self.text(named[0])

    def text(self, key: Key) -> bytes:
        """Return an object as it is stored."""
        return self.texts.get(key) or msgspec.json.encode(self.objects[key])


# -- the objects -------------------------------------------------------------------------------------------------------


def world() -> World:
    """A cluster in which each tenant has something that is due: a write of a job, a queue, a test, or none."""
    made = World([item for n in range(5) for item in ultraserver(f"u{n}")])
    for name, instance_type in QUALIFICATIONS.items():
        for n in range(3):
            for item in ultraserver(f"{name}{n}", instance_type):
                made.put(item)
    for name in ("neuron.aws.com", "workload.neuron.aws.com"):
        made.put({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}})
    for name, value in (("high", 1000), ("low", 10)):
        made.put({"kind": "PriorityClass", "metadata": {"name": name}, "value": value})
    binding = {"policyName": POLICY, "validationActions": ["Deny"]}
    made.put({"kind": "ValidatingAdmissionPolicy", "metadata": {"name": POLICY}, "spec": {"failurePolicy": "Fail"}})
    made.put({"kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": POLICY}, "spec": binding})
    made.settle()
    _with_jobs(made)
    _namespace(made, "queue-bound", "queue")
    made.submit("train", namespace="queue-bound")
    made.settle()
    _with_tests(made)
    _with_queues(made)  # the plans of this world know no queues
    return made


def _namespace(made: World, name: str, jobs: str = "true") -> None:
    meta = {"name": name, "labels": {"neuron.aws.com/reserve-for-jobs": jobs}}
    made.put({"kind": "Namespace", "metadata": {**meta, "annotations": {"neuron.aws.com/max-reserved-nodes": "64"}}})


def _pods(template: str = "rct") -> Obj:
    claims = [{"name": "neuron", "resourceClaimTemplateName": template}]
    selector = {"node.kubernetes.io/instance-type": TYPE}
    return {"spec": {"containers": [{"name": "c"}], "resourceClaims": claims, "nodeSelector": selector}}


def _job(made: World, kind: str, namespace: str, spec: Obj, **status: Any) -> Obj:
    _namespace(made, namespace)
    annotations = {"neuron.aws.com/ultraservers": "topologySize=4, priorityClassName=high"}
    meta = {"name": "train", "namespace": namespace, "annotations": annotations, "labels": {"app": "train"}}
    return made.put({"kind": kind, "metadata": meta, "spec": spec, "status": status})


def _with_jobs(made: World) -> None:
    inner = {"parallelism": 4, "completions": 4, "template": _pods()}
    waiting = [{"type": "Suspended", "status": "False"}]
    _job(made, "Job", "job-new", {**inner, "suspend": False, "managedBy": ""}, conditions=waiting)
    replicated = [{"name": "w", "replicas": 1, "template": {"spec": inner}}]
    _job(made, "JobSet", "set-new", {"replicatedJobs": replicated, "suspend": False}, conditions=waiting)
    group = {"size": 4, "leaderTemplate": _pods(), "workerTemplate": _pods()}
    _job(made, "LeaderWorkerSet", "lws-new", {"replicas": 1, "leaderWorkerTemplate": group})
    _job(made, "StatefulSet", "sts-new", {"replicas": 4, "template": _pods()})
    growing = _job(made, "Job", "job-grows", {"parallelism": 8, "template": _pods()})
    early = _job(made, "Job", "job-early", {"parallelism": 4, "template": _pods()})
    _namespace(made, "job-gone")
    marks = {each["metadata"]["namespace"]: f"Job/train/{each['metadata']['uid']}" for each in (growing, early)}
    for namespace in ("job-grows", "job-early", "job-gone"):
        made.submit("train", namespace=namespace, resourceClaimTemplate={"name": "rct"}, priorityClassName="high")
        item = copy.deepcopy(made.get("NeuronUltraServerWorkload", "train", namespace))
        item["metadata"]["annotations"] = {"neuron.aws.com/made-for": marks.get(namespace, "Job/gone/uid")}
        made.put(item)
    made.settle()
    results = [{"request": "r", "driver": "neuron.aws.com", "pool": "u2-0", "device": "neuron-node-0"}]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": [{"resource": "pods", "name": "p"}]}
    claim = {"name": "claim", "namespace": "job-grows"}
    made.put({"kind": "ResourceClaim", "metadata": claim, "spec": {"devices": {}}, "status": status})
    _rank0(made, made.get("NeuronUltraServerWorkload", "train", "job-early"))
    pod = {"name": "early", "namespace": "job-early"}
    made.put(
        {"kind": "Pod", "metadata": pod, "spec": _pods()["spec"], "status": {"phase": "Pending", "conditions": []}}
    )


def _rank0(made: World, item: Obj) -> None:
    """Put the Service of a workload, and its EndpointSlice with an address that is none any more."""
    of_workload = [{**owner_of(decode.workload(item))}]
    meta = {"name": "train-rank0", "namespace": item["metadata"]["namespace"]}
    service = made.put({"kind": "Service", "metadata": {**meta, "ownerReferences": of_workload}, "spec": {}})
    of_service = {"apiVersion": "v1", "kind": "Service", "name": "train-rank0", "uid": service["metadata"]["uid"]}
    owners = [{**of_service, "controller": True}]
    meta |= {"name": "train-rank0-ipv4", "ownerReferences": owners}
    places = {"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}]}
    made.put({"kind": "EndpointSlice", "metadata": meta, **places})


def _queued(made: World, namespace: str) -> Obj:
    _namespace(made, namespace, "queue")
    made.submit("train", namespace=namespace, priorityClassName="low")
    item = copy.deepcopy(made.get("NeuronUltraServerWorkload", "train", namespace))
    item["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    return made.put(item)


def _kueue(made: World, item: Obj, record: str, *conditions: tuple[str, bool, str]) -> None:
    """Put Kueue's Workload of a workload, with these conditions; `record`: the queue that the workload has recorded."""
    body = body_for(decode.workload(item), {"low": 10})
    found = []
    for kind, value, reason in conditions:
        entry = {"type": kind, "status": str(value), "reason": reason, "message": reason}
        found.append({**entry, "lastTransitionTime": made.now.strftime("%Y-%m-%dT%H:%M:%SZ")})
    assignments = [{"name": "nodes", "count": 4}]
    status: Obj = {"conditions": found, "admission": {"clusterQueue": "all", "podSetAssignments": assignments}}
    status["reclaimablePods"] = [{"name": "nodes", "count": 0}]
    made.put({**body, "status": status})
    if record:
        item["status"] = {**(item.get("status") or {}), "queue": {"localQueue": record, "returned": 0}}
        made.put(item)


ADMITTED: Final = (("QuotaReserved", True, "QuotaReserved"), ("Admitted", True, "Admitted"))


def _with_queues(made: World) -> None:
    _queued(made, "queue-new")
    _kueue(made, _queued(made, "queue-recorded"), "", *ADMITTED)
    _kueue(made, _queued(made, "queue-evicted"), "team", *ADMITTED, ("Evicted", True, "Preempted"))
    gone = _queued(made, "queue-gone")
    _kueue(made, gone, "", *ADMITTED)
    made.remove("NeuronUltraServerWorkload", "train", "queue-gone")
    bound = copy.deepcopy(made.get("NeuronUltraServerWorkload", "train", "queue-bound"))
    bound["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    _kueue(made, made.put(bound), "team", *ADMITTED)


def _with_tests(made: World) -> None:
    for name, instance_type in QUALIFICATIONS.items():
        spec: Obj = {"instanceTypes": [instance_type], "topologySize": 4, "image": "i", "period": "24h", "maxGroups": 2}
        spec |= {"maxAge": "48h", "timeout": "10m", "command": ["run"], "suspend": False}
        spec["thresholds"] = [{"name": "gigabytes", "atLeast": 1, "percentOfMedian": 80}]
        meta = {"name": name, "annotations": {"neuron.aws.com/exempt-ultraservers": "us-none"}}
        made.put({"kind": "NeuronUltraServerQualification", "metadata": meta, "spec": spec, "status": {"fresh": 1}})
    made.put({"kind": "Namespace", "metadata": {"name": TESTS}})
    for name in QUALIFICATIONS:
        _test(made, name)
        item = copy.deepcopy(made.get("NeuronUltraServer", f"us-{name}1", ULTRASERVERS))
        item["status"]["qualifications"] = [_result(made, name, item)]
        made.put(item)
    for number in range(4):
        _ended_pod(made, "nightly", number)


def _test(made: World, name: str) -> None:
    uid = made.get("NeuronUltraServerQualification", name)["metadata"]["uid"]
    kind: Obj = {"instanceType": QUALIFICATIONS[name], "resourceClaimTemplate": {"name": f"{name}-test"}}
    made.submit(f"{name}-test", namespace=TESTS, **kind)
    item = copy.deepcopy(made.get("NeuronUltraServerWorkload", f"{name}-test", TESTS))
    item["metadata"]["annotations"] = {TARGET: Target(name, uid, 1, f"us-{name}0", 0).text}
    made.put(item)
    made.settle()


def _ended_pod(made: World, name: str, number: int) -> None:
    test = made.get("NeuronUltraServerWorkload", f"{name}-test", TESTS)
    owners = [owner_of(decode.workload(test))]
    meta = {"name": f"{name}-test-{number}", "namespace": TESTS, "ownerReferences": owners}
    ended = {"exitCode": 0, "startedAt": "2026-03-01T12:00:00Z", "message": '{"gigabytes": 7}', "reason": "Completed"}
    status = {"phase": "Succeeded", "containerStatuses": [{"name": "test", "state": {"terminated": ended}}]}
    labels = {"neuron.aws.com/test": f"{name}-test"}
    made.put(
        {"kind": "Pod", "metadata": {**meta, "labels": labels}, "spec": {"nodeName": "nightly0-0"}, "status": status}
    )


def _result(made: World, name: str, item: Obj) -> Obj:
    nodes = [entry["nodeName"] for entry in item["spec"]["topology"]]
    uids = [made.get("Node", node)["metadata"]["uid"] for node in nodes]
    uid = made.get("NeuronUltraServerQualification", name)["metadata"]["uid"]
    entry: Obj = {
        "qualification": name,
        "qualificationUid": uid,
        "generation": 1,
        "nodes": nodes,
        "nodeUids": uids,
        "verdict": "Failed",
    }
    times = {"testedAt": "2026-03-01T11:00:00Z", "passedAt": "2026-02-01T11:00:00Z"}
    return {**entry, **times, "failures": 2, "unqualified": True, "message": "m", "test": "t", "figures": {"a": 1}}


def owner(item: Obj) -> str:
    """Return the tenant that an object belongs to."""
    meta = item["metadata"]
    namespace, name = meta.get("namespace", ""), meta["name"]
    if item["kind"] == "Namespace":
        return str(name)
    if namespace == TESTS:
        return str(name).partition("-")[0]
    if item["kind"] == "ResourceSlice":
        return _of_nodes(item["spec"]["nodeName"])
    if namespace == ULTRASERVERS or item["kind"] == "Node":
        return _of_nodes(name.removeprefix("us-"))
    return str(name) if name in QUALIFICATIONS else namespace or EVERYBODY


def _of_nodes(name: str) -> str:
    """Return whose the nodes of an UltraServer are, given its name or that of a node."""
    tested = next((each for each in QUALIFICATIONS if name.startswith(each)), "")
    return tested or RESERVED.get(name[:2], EVERYBODY)


# -- what is decided ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Decided:
    """By tenant: the writes beside the plans, and the verdicts of plans."""

    writes: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)
    verdicts: dict[str, tuple[str, str]] = field(default_factory=dict)


class Scene:
    """The parts of the controller over a shelf of objects; `read` lists all kinds."""

    def __init__(self, objects: Mapping[Key, Obj], texts: Mapping[Key, bytes] = {}) -> None:
        self.shelf = shelf = Shelf(objects, texts)
        self.caches = Caches(shelf, lambda: None, FleetIndex(), DEFAULT_TIMING.caches)
        self.jobs = JobWatches(shelf, lambda: None, DEFAULT_TIMING.jobs)
        self.asked = QualifyWatches(shelf, lambda: None, DEFAULT_TIMING.qualify)
        self.queue = QueueWatch(shelf, lambda: None, DEFAULT_TIMING.queues)
        for each in (self.jobs, self.asked, self.queue):
            self.caches.others |= each.reflectors

    @property
    def reflectors(self) -> dict[str, Reflector]:
        """Every watch, by the plural of its kind."""
        return self.caches.others | self.caches.by_name

    async def read(self) -> None:
        """List all kinds."""
        for each in self.reflectors.values():
            await each.relist()

    async def decide(self, now: datetime.datetime) -> Decided:
        """Return what the controller decides and writes at `now`, and two seconds later."""
        shelf, caches = self.shelf, self.caches
        shelf.writes.clear()
        events = EventRecorder(shelf, "here")
        applier = Applier(shelf, caches, events, DEFAULT_TIMING, Fence(Alone()))
        applier.fence.enter(1)
        queues = Queues(shelf, caches, applier, self.queue, events, DEFAULT_TIMING.queues)
        program = shelf, caches, applier, self.jobs, events, DEFAULT_TIMING.jobs
        jobs = JobReservations(*program, None, queues=True)
        found = Decided()
        verdicts: dict[str, Verdict] = {}
        parts = shelf, caches, applier, self.asked, events, Metrics(), DEFAULT_LIMITS, DEFAULT_TIMING.qualify
        planned = Plan()
        tests = Qualifications(*parts, lambda: planned.waiting, lambda: None)
        for later_s in (0, 2):
            moment = now + datetime.timedelta(seconds=later_s)
            index = caches.index()
            await sent(applier.sender, partial(applier.priorities.look, index, moment))
            known = Known(admissions=queues.admissions(index, moment), priorities=applier.priorities.found)
            plan = planning.plan_of(index, moment, DEFAULT_LIMITS, known)
            Metrics().planned(0.1, index, plan, moment)
            planned = plan
            verdicts |= plan.verdicts
            await sent(applier.sender, partial(applier.rendezvous.look, plan.meetings, moment))
            queues.look(index, moment)
            await applier.sender.send_all()
            await jobs.look(index, moment)
            await applier.sender.send_all()
            await tests.look(index, moment)
            await applier.sender.send_all()
        for method, path, body in shelf.writes:
            found.writes.setdefault(_written(path, body), []).append((method, path, body))
        for each in caches.workloads.items.values():
            value = each["value"]
            made = verdicts.get(value.uid)
            tenant = owner({"kind": "", "metadata": {"namespace": value.namespace, "name": value.name}})
            found.verdicts[tenant] = (str(made.state), str(made.reason)) if made is not None else ("", "")
        found.writes = {name: sorted(writes) for name, writes in found.writes.items()}
        return found


def _written(path: str, body: str) -> str:
    """Return the tenant that a write is about."""
    parts = path.split("/")
    if "namespaces" not in parts:
        return parts[5]
    namespace, rest = parts[parts.index("namespaces") + 1], parts[parts.index("namespaces") + 3 :]
    name = rest[0] if rest else str(json.loads(body)["metadata"]["name"])
    return owner({"kind": "", "metadata": {"namespace": namespace, "name": name}})
