"""35 on real kubelets, with CoreDNS: a job reserves its own UltraServers by an annotation, ends, and frees them.

The recipes are those of docs/ultraservers.md: label of the namespace, finite limit, and policies are in force.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator

import pytest

from hack.bed.real_cluster import QUICK, BedError, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.fleet import NODES, TRN3, end_workloads, ranks, replicas, slots, wait_state
from tests.bed.recipes import all_reduce, complete, idle, last_lines, runnable, set_rounds, start

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

NAME = "all-reduce"
LABEL, LIMIT = "neuron.aws.com/reserve-for-jobs", "neuron.aws.com/max-reserved-nodes"
ANNOTATION = "neuron.aws.com/ultraservers"
JOBS = ("--set", "ultraserverOperator.jobs.enabled")
TENANT = "patches-namespaces"
EARLY_S = 5.0
ROUNDS = 13
"""For more than a hundred pods, so that 99 of 100 is a figure."""


@pytest.fixture(scope="module")
def running_jobs(running_fleet: TestBed) -> Iterator[TestBed]:
    """The fleet, whose controller lets jobs reserve, and CoreDNS."""
    option, value = JOBS
    running_fleet.command("up", "--driver", "daemonset", option, f"{value}=true", "--with", "dns", timeout_s=1800)
    yield running_fleet
    running_fleet.command("up", "--driver", "daemonset", option, f"{value}=false", timeout_s=600)


@pytest.fixture
def allowed(running_jobs: TestBed, fleet: TestBed, place: Namespace) -> Iterator[Namespace]:
    """A namespace whose jobs may reserve eight nodes; when it goes, its jobs have ended."""
    fleet.kubectl("label", "namespace", place.name, f"{LABEL}=true")
    fleet.kubectl("annotate", "namespace", place.name, f"{LIMIT}=8")
    yield place
    place.kubectl("delete", "cronjobs,jobs,statefulsets", "--all", "--cascade=foreground", timeout_s=190)
    end_workloads(place)


def annotated_job(bed: TestBed, rounds: int = 20) -> list[Obj]:
    """Return the example of a Job on eight nodes with the annotation in place of its workload."""
    objects = [each for each in all_reduce(bed, rounds=rounds) if each["kind"] != "NeuronUltraServerWorkload"]
    [job] = [each for each in objects if each["kind"] == "Job"]
    job["metadata"]["annotations"] = {ANNOTATION: "topologySize=4"}
    job["spec"]["template"]["spec"]["nodeSelector"] = {"node.kubernetes.io/instance-type": TRN3}
    return objects


def driver_part() -> Obj:
    """Return a part of a JobSet that needs no devices, and so has no node of the reservation."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": QUICK, "command": ["true"]}]}
    return {"name": "driver", "replicas": 1, "template": {"spec": {"template": {"spec": pod}}}}


def annotated_job_set(bed: TestBed) -> list[Obj]:
    """Return the example of a JobSet, and a driver part, with the annotation in place of its workload."""
    found = runnable(bed, "programs/all-reduce.yaml", "ultraservers/jobset.yaml")
    objects = [each for each in found if each["kind"] != "NeuronUltraServerWorkload"]
    [made] = [each for each in objects if each["kind"] == "JobSet"]
    made["metadata"]["annotations"][ANNOTATION] = "topologySize=4"
    [part] = made["spec"]["replicatedJobs"]
    set_rounds(part["template"]["spec"], 20, 0.1)
    part["template"]["spec"]["template"]["spec"]["nodeSelector"] = {"node.kubernetes.io/instance-type": TRN3}
    made["spec"]["replicatedJobs"].append(driver_part())
    return objects


def annotated_leader_workers() -> list[Obj]:
    """Return the two sets of the example for prefill and decode, which reserve their own nodes."""
    found = [each for each in idle("ultraservers/prefill-decode.yaml") if each["kind"] == "LeaderWorkerSet"]
    for each in found:
        each["metadata"]["annotations"][ANNOTATION] = f"topologySize=4, instanceType={TRN3}"
    return found


def short_job(name: str) -> Obj:
    """Return a Job that reserves four nodes, and ends after a moment."""
    container = {"name": "main", "image": QUICK, "command": ["true"], "resources": {"claims": [{"name": "node"}]}}
    pod = {
        "restartPolicy": "Never",
        "nodeSelector": {"node.kubernetes.io/instance-type": TRN3},
        "containers": [container],
        "resourceClaims": [{"name": "node", "resourceClaimTemplateName": f"{name}-rct"}],
    }
    spec = {"parallelism": 4, "completions": 4, "completionMode": "Indexed", "template": {"spec": pod}}
    metadata = {"name": name, "annotations": {ANNOTATION: "topologySize=4"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def waiting_job(name: str) -> Obj:
    """Return a Job that reserves eight nodes and runs until it is deleted."""
    job = short_job(name)
    job["spec"].update(parallelism=8, completions=8)
    pod = job["spec"]["template"]["spec"]
    pod["terminationGracePeriodSeconds"] = 1
    [container] = pod["containers"]
    container["command"] = ["sleep", "infinity"]
    return job


def cron_job(name: str) -> Obj:
    """Return a CronJob whose Jobs reserve: a controller makes them, not a person."""
    job = short_job(name)
    template = {"metadata": {"annotations": job["metadata"]["annotations"]}, "spec": job["spec"]}
    spec = {"schedule": "* * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": template}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": name}, "spec": spec}


def annotated_set(replicas: int) -> list[Obj]:
    """Return a StatefulSet with the annotation, and its Service."""
    container = {
        "name": "main",
        "image": QUICK,
        "command": ["sleep", "infinity"],
        "resources": {"claims": [{"name": "node"}]},
    }
    spec = {
        "nodeSelector": {"node.kubernetes.io/instance-type": TRN3},
        "containers": [container],
        "resourceClaims": [{"name": "node", "resourceClaimTemplateName": "serve-rct"}],
    }
    labels = {"app": "serve"}
    service = {"metadata": {"name": "serve"}, "spec": {"clusterIP": "None", "selector": labels}}
    pods = {
        "serviceName": "serve",
        "replicas": replicas,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": spec},
    }
    metadata = {"name": "serve", "annotations": {ANNOTATION: "topologySize=4"}}
    return [
        {"apiVersion": "v1", "kind": "Service", **service},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": pods},
    ]


def events_of(place: Namespace, kind: str, name: str) -> dict[str, str]:
    """Return the messages of the Events on an object by their reasons."""
    chosen = f"--field-selector=involvedObject.kind={kind},involvedObject.name={name}"
    return {each["reason"]: each["message"] for each in place.get("events", chosen)["items"]}


def claims_made_after_s(place: Namespace, name: str) -> list[float]:
    """Return how long after a workload was Allocated each claim of the namespace was made, in whole seconds."""
    moment = datetime.datetime.fromisoformat
    conditions = place.get("nusw", name)["status"]["conditions"]
    [allocated] = [moment(each["lastTransitionTime"]) for each in conditions if each["type"] == "Ready"]
    made = [moment(each["metadata"]["creationTimestamp"]) for each in claims(place)]
    return [(each - allocated).total_seconds() for each in made]


def claims(place: Namespace) -> list[Obj]:
    return list(place.get("resourceclaims")["items"])


def reserved(place: Namespace, name: str) -> Obj:
    """Wait until the controller has made a job's workload, and it is Allocated; return it."""
    # The controller looks for kinds that were absent once a minute.
    eventually(f"workload {name} is made", lambda: name in workloads(place), 150)
    return wait_state(place, name, "Allocated", 60)


def workloads(place: Namespace) -> list[str]:
    return [each["metadata"]["name"] for each in place.get("nusw")["items"]]


def test_a_job_reserves_its_nodes_runs_to_its_end_and_frees_them(fleet: TestBed, allowed: Namespace) -> None:
    start(allowed, annotated_job(fleet))
    made = reserved(allowed, NAME)
    assert (made["spec"]["serverCount"], made["spec"]["topologySize"]) == (2, 4)
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner.get("blockOwnerDeletion", False)) == ("Job", NAME, False)
    complete(allowed, f"job/{NAME}")
    assert last_lines(allowed, f"job-name={NAME}") == {f"rank {rank} of 8: finished 20 rounds" for rank in range(8)}
    eventually("the nodes are free", lambda: slots(fleet) == {}, 120)
    eventually("the workload is gone", lambda: workloads(allowed) == [], 60)


def test_pods_that_are_early_get_their_claims_soon_after_the_reservation(fleet: TestBed, allowed: Namespace) -> None:
    """Kubernetes alone may try such a pod again only after 1,000 s (kubernetes#135835)."""
    found: list[float] = []
    for number in range(ROUNDS):
        name = f"early-{number}"
        start(allowed, [waiting_job(name)])
        reserved(allowed, name)
        eventually("each pod has a claim", lambda: len(claims(allowed)) == 8, 120, 0.5)
        found += claims_made_after_s(allowed, name)
        allowed.kubectl("delete", f"job/{name}", "--cascade=foreground", timeout_s=120)
        eventually("the nodes are free", lambda: slots(fleet) == {} and claims(allowed) == [], 120)
    found.sort()
    print(f"claims made after Allocated, in seconds: p50 {found[len(found) // 2]:g}, all {found}")
    assert found[int(0.99 * len(found))] <= EARLY_S


def test_a_stateful_set_keeps_its_nodes_until_it_has_no_pods(fleet: TestBed, allowed: Namespace) -> None:
    start(allowed, annotated_set(4))
    allowed.kubectl("rollout", "status", "statefulset/serve", "--timeout=180s", timeout_s=190)
    pods = {each["spec"]["nodeName"]: each for each in allowed.get("pods", "--selector=app=serve")["items"]}
    assert sorted(ranks(allowed, pods).values()) == [0, 1, 2, 3]
    assert {*slots(fleet)["serve"][0]} == pods.keys()
    allowed.kubectl("scale", "statefulset/serve", "--replicas=8")
    allowed.kubectl("rollout", "status", "statefulset/serve", "--timeout=180s", timeout_s=190)
    held = slots(fleet)["serve"]
    assert {node for members in held.values() for node in members} == {*NODES}
    allowed.kubectl("scale", "statefulset/serve", "--replicas=0")
    eventually("the nodes are free", lambda: slots(fleet) == {}, 120)


def test_a_job_beyond_its_namespaces_limit_waits_and_says_so(fleet: TestBed, allowed: Namespace) -> None:
    fleet.kubectl("annotate", "namespace", allowed.name, f"{LIMIT}=4", "--overwrite")
    start(allowed, annotated_job(fleet))
    eventually("it says so", lambda: "NamespaceLimit" in events_of(allowed, "Job", NAME), 60)
    assert sum(len(members) for held in slots(fleet).values() for members in held.values()) <= 4
    fleet.kubectl("annotate", "namespace", allowed.name, f"{LIMIT}=8", "--overwrite")
    complete(allowed, f"job/{NAME}")


@pytest.mark.parametrize("missing", ["label", "limit"])
def test_a_job_reserves_nothing_without_label_and_limit(fleet: TestBed, allowed: Namespace, missing: str) -> None:
    taken_away = ("label", LABEL) if missing == "label" else ("annotate", LIMIT)
    fleet.kubectl(taken_away[0], "namespace", allowed.name, f"{taken_away[1]}-")
    start(allowed, annotated_job(fleet))
    eventually("an Event says so", lambda: "JobsMayNotReserve" in events_of(allowed, "Job", NAME), 60)
    assert (workloads(allowed), slots(fleet)) == ([], {})


@pytest.fixture
def patcher(fleet: TestBed) -> Iterator[str]:
    """A user who may write all Namespaces, but not decide about reservations."""
    fleet.kubectl("create", "clusterrole", TENANT, "--verb=get,patch,update", "--resource=namespaces")
    fleet.kubectl("create", "clusterrolebinding", TENANT, f"--clusterrole={TENANT}", f"--user={TENANT}")
    yield TENANT
    fleet.kubectl("delete", f"clusterrolebinding/{TENANT}", f"clusterrole/{TENANT}")


def test_a_tenant_cannot_forge_the_label(fleet: TestBed, allowed: Namespace, patcher: str) -> None:
    fleet.kubectl("label", "namespace", allowed.name, f"{LABEL}-")
    patch = json.dumps({"metadata": {"labels": {LABEL: "true"}}})
    words = ("patch", "namespace", allowed.name, "--type=merge", "-p", patch, f"--as={patcher}")

    def refusal() -> str:
        try:
            fleet.kubectl(*words, "--dry-run=server")
        except BedError as err:
            return str(err)
        return ""

    eventually("the policy refuses it", lambda: LABEL in refusal() and "reserve-for-jobs" in refusal(), 30)
    start(allowed, annotated_job(fleet))
    eventually("an Event says so", lambda: "JobsMayNotReserve" in events_of(allowed, "Job", NAME), 60)
    assert slots(fleet) == {}


# Other kinds, and who made them


def test_a_job_set_reserves_nodes_for_its_workers_and_none_for_its_driver(fleet: TestBed, allowed: Namespace) -> None:
    fleet.command("up", "--with", "jobsets", timeout_s=1800)
    start(allowed, annotated_job_set(fleet))
    # The controller looks for the kind once a minute.
    made = reserved(allowed, "training")
    assert (made["spec"]["serverCount"], made["spec"]["topologySize"]) == (2, 4)
    complete(allowed, "jobset/training", "Completed")
    of_the_workers = "jobset.sigs.k8s.io/replicatedjob-name=group"
    assert last_lines(allowed, of_the_workers) == {f"rank {rank} of 8: finished 20 rounds" for rank in range(8)}
    eventually("the nodes are free", lambda: slots(fleet) == {}, 120)
    allowed.kubectl("delete", "jobset", "training", "--timeout=120s", timeout_s=130)


def test_leader_worker_sets_for_prefill_and_decode_reserve_one_group_each(fleet: TestBed, allowed: Namespace) -> None:
    start(allowed, annotated_leader_workers())
    for name in ("prefill", "decode"):
        reserved(allowed, name)
        ready = ("wait", f"leaderworkerset/{name}", "--for=condition=Available", "--timeout=180s")
        allowed.kubectl(*ready, timeout_s=190)
    assert sorted(workloads(allowed)) == ["decode", "prefill"]
    held = slots(fleet)
    for name in ("prefill", "decode"):
        pods = allowed.get("pods", f"--selector=leaderworkerset.sigs.k8s.io/name={name}")["items"]
        assert {each["spec"]["nodeName"] for each in pods} == {*held[name][0]}
        allowed.kubectl("scale", f"leaderworkerset/{name}", "--replicas=0")
    eventually("the nodes are free", lambda: slots(fleet) == {}, 120)
    allowed.kubectl("delete", "leaderworkersets", "--all", "--timeout=120s", timeout_s=130)


def test_the_jobs_of_a_cron_job_reserve(fleet: TestBed, allowed: Namespace) -> None:
    start(allowed, [cron_job("nightly")])
    jobs = eventually("the first Job", lambda: allowed.get("jobs")["items"], 90)
    assert jobs is not None
    complete(allowed, f"job/{jobs[0]['metadata']['name']}")
    allowed.kubectl("delete", "cronjob", "nightly", "--cascade=foreground", timeout_s=190)
    eventually("the nodes are free", lambda: slots(fleet) == {}, 120)


@pytest.mark.parametrize("role", ["edit", "admin"])
def test_who_may_create_jobs_may_reserve_and_not_decide_where(fleet: TestBed, allowed: Namespace, role: str) -> None:
    user = f"has-{role}"
    allowed.kubectl("create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}")
    made = json.dumps(short_job("mine"))
    create = ("create", "-f", "-", f"--as={user}")
    eventually("the user may create it", lambda: not refusal(allowed, *create, "--dry-run=server", stdin=made), 30)
    allowed.kubectl(*create, stdin=made)
    complete(allowed, "job/mine")
    eventually("the nodes are free", lambda: slots(fleet) == {}, 120)
    assert "cannot patch" in refusal(allowed, "label", "namespace", allowed.name, f"{LABEL}-", f"--as={user}")
    assert "cannot patch" in refusal(allowed, "annotate", "namespace", allowed.name, f"{LIMIT}-", f"--as={user}")


def refusal(place: Namespace, *words: str, stdin: str | None = None) -> str:
    """Run kubectl; return why it failed, empty if it did not."""
    try:
        place.kubectl(*words, stdin=stdin)
    except BedError as err:
        return str(err)
    return ""


def test_without_the_policy_jobs_reserve_nothing(fleet: TestBed, allowed: Namespace) -> None:
    name = "neuron-dra-driver-jobs-reserve"
    found = fleet.get("validatingadmissionpolicybindings", name)
    replicas(fleet, 0)  # a running controller reads the policy once a minute
    fleet.kubectl("delete", "validatingadmissionpolicybindings", name)
    try:
        replicas(fleet, 2)
        start(allowed, [short_job("mine")])
        eventually("an Event says so", lambda: "is not in force" in reason_of(allowed, "mine"), 90)
        assert (workloads(allowed), slots(fleet)) == ([], {})
    finally:
        kept = {key: found["metadata"][key] for key in ("name", "labels", "annotations") if key in found["metadata"]}
        fleet.kubectl("create", "-f", "-", stdin=json.dumps({**found, "metadata": kept}))
    complete(allowed, "job/mine")


def reason_of(place: Namespace, job: str) -> str:
    """Return why a Job may not reserve, from its Event."""
    return events_of(place, "Job", job).get("JobsMayNotReserve", "")
