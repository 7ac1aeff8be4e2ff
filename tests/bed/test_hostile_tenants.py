"""4.02 on real Kubernetes with Kueue: what a tenant may write costs the workloads of other tenants nothing.

Each test compares rounds without the tenant's objects with rounds beside them. The controller starts anew before both,
so that the peak of its memory belongs to the rounds, and so that the new leader lists what the tenant wrote.
"""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest

from hack.bed.real_cluster import QUICK, BedError, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.fleet import (
    controller_peak_kib,
    end_workloads,
    job,
    pods,
    replicas,
    seconds_to_allocated,
    slots,
    submit,
    uids,
    wait_available,
    wait_state,
    workload,
)
from tests.bed.queues import WORKLOADS, Queues, of_reservation, queued
from tests.bed.test_queues import queues as queues
from tests.bed.test_queues import running_queues as running_queues

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

ROUNDS = 5
LATER_S = 1.0
"""The most that a round may take longer than twice the paired one."""
MORE_KIB = 16 * 1024
"""The most that the peak of the controller's memory may grow."""
PODS = 6_000
PODS_AT_ONCE = 200
JOB_SETS = "jobsets.jobset.x-k8s.io"


def seconds_and_peak(place: Namespace) -> tuple[float, int]:
    """Start the controller anew; return the median seconds to Allocated, and the peak of its memory in KiB."""
    replicas(place.bed, 0)
    replicas(place.bed, 2)  # ready only once they have listed everything
    seconds = [seconds_to_allocated(place) for _ in range(ROUNDS)]
    return statistics.median(seconds), controller_peak_kib(place.bed)


def assert_others_notice_nothing(place: Namespace, tenants_objects: AbstractContextManager[None]) -> None:
    """Compare the rounds of a workload without the objects of another tenant with those beside them."""
    paired_s, paired_kib = seconds_and_peak(place)
    with tenants_objects:
        beside_s, beside_kib = seconds_and_peak(place)
    print(f"Allocated after {paired_s:.2f} s alone, {beside_s:.2f} s beside; peaks {paired_kib} and {beside_kib} KiB")
    assert beside_s <= 2 * paired_s + LATER_S
    assert beside_kib - paired_kib <= MORE_KIB


# A policy that rejects every write in one namespace.


@contextlib.contextmanager
def rejected_everywhere(tenant: Namespace) -> Iterator[None]:
    """Reject all writes in a namespace in which one workload waits, and a reserved one is deleted."""
    name = f"reject-all-in-{tenant.name}"
    every_write = {
        "apiGroups": ["*"],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["*/*"],
        "scope": "Namespaced",  # a namespaceSelector chooses every object without a namespace
    }
    chosen = {"matchLabels": {"kubernetes.io/metadata.name": tenant.name}}
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [every_write], "namespaceSelector": chosen},
            "validations": [{"expression": "false", "message": "this namespace is frozen"}],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    bed = tenant.bed
    submit(tenant, workload("ends", 4, 1, template="ends-rct"))
    submit(tenant, workload("waits", 4, 3), "Pending")
    bed.kubectl("apply", "-f", "-", stdin=json.dumps(policy))
    bed.kubectl("apply", "-f", "-", stdin=json.dumps(binding))
    try:
        eventually("the policy rejects", lambda: is_rejected(tenant), 60)
        tenant.kubectl("delete", "nusw", "ends", "--wait=false")
        yield
    finally:
        bed.kubectl("delete", "validatingadmissionpolicybinding", name)
        bed.kubectl("delete", "validatingadmissionpolicy", name)
        eventually("the policy is gone", lambda: not is_rejected(tenant), 60)
        end_workloads(tenant)


def is_rejected(tenant: Namespace) -> bool:
    """Return whether a policy rejects a write in a namespace."""
    try:
        tenant.kubectl("create", "configmap", "tried", "--dry-run=server")
    except BedError as err:
        return "frozen" in str(err)
    return False


def test_policy_that_rejects_all_writes_of_one_namespace_delays_no_other(place: Namespace, tenant: Namespace) -> None:
    assert_others_notice_nothing(place, rejected_everywhere(tenant))


# Thousands of waiting pods.


def waiting_pod(number: int) -> Obj:
    """Return a pod of about 10 KiB that waits for a claim of the workload `wide`."""
    variables = [{"name": f"VARIABLE_{position}", "value": f"{number}-" + "x" * 180} for position in range(40)]
    container = {"name": "main", "image": QUICK, "env": variables, "resources": {"claims": [{"name": "node"}]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"waits-{number}"},
        "spec": {
            "containers": [container],
            "nodeSelector": {"kubernetes.io/hostname": "none"},
            "resourceClaims": [{"name": "node", "resourceClaimTemplateName": "wide-rct"}],
        },
    }


def create_pods(tenant: Namespace, first: int) -> None:
    items = [waiting_pod(number) for number in range(first, first + PODS_AT_ONCE)]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    tenant.kubectl("create", "-f", "-", stdin=listed, timeout_s=300)


@contextlib.contextmanager
def thousands_of_waiting_pods(tenant: Namespace) -> Iterator[None]:
    """Let pods wait for the template of a workload that is reserved after them."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda first: create_pods(tenant, first), range(0, PODS, PODS_AT_ONCE)))
    try:
        submit(tenant, workload("wide", 4, 1, template="wide-rct"))
        # Until Kubernetes has created their claims, the API server is busy for everybody.
        eventually("every pod has its claim", lambda: number_of_claims(tenant) == PODS, 900, interval_s=2)
        yield
    finally:
        eventually("no pods are left", lambda: are_deleted(tenant), 600)
        end_workloads(tenant)


def number_of_claims(tenant: Namespace) -> int:
    path = f"/apis/resource.k8s.io/v1/namespaces/{tenant.name}/resourceclaims?limit=1"
    listed = json.loads(tenant.bed.kubectl("get", f"--raw={path}", timeout_s=120))
    return len(listed["items"]) + int(listed["metadata"].get("remainingItemCount", 0))


def are_deleted(tenant: Namespace) -> bool:
    """Delete pods; return whether none is left. The API server gives up on thousands of them after a minute."""
    with contextlib.suppress(BedError):
        tenant.bed.kubectl("delete", f"--raw=/api/v1/namespaces/{tenant.name}/pods", timeout_s=120)
    listed = tenant.bed.kubectl("get", f"--raw=/api/v1/namespaces/{tenant.name}/pods?limit=1", timeout_s=120)
    return not json.loads(listed)["items"]


def test_thousands_of_waiting_pods_of_one_tenant_delay_no_other(place: Namespace, tenant: Namespace) -> None:
    assert_others_notice_nothing(place, thousands_of_waiting_pods(tenant))


# A kind of job that cannot be listed.


@contextlib.contextmanager
def job_sets_of_another_version(bed: TestBed) -> Iterator[None]:
    """Serve JobSets in a version that the controller does not read, as a failed upgrade of their operator does."""
    present = json.loads(bed.kubectl("get", "crds", "-o", "json"))["items"]
    stored = [crd for crd in present if crd["metadata"]["name"] == JOB_SETS]
    if stored:
        bed.kubectl("delete", "crd", JOB_SETS)
    group, names = "jobset.x-k8s.io", {"kind": "JobSet", "plural": "jobsets", "singular": "jobset"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v9", "served": True, "storage": True, "schema": schema}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": JOB_SETS,
            # The API server demands a review for groups below k8s.io.
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }
    bed.kubectl("create", "-f", "-", stdin=json.dumps(crd))
    bed.kubectl("wait", "--for=condition=Established", f"crd/{JOB_SETS}", "--timeout=60s")
    try:
        yield
    finally:
        bed.kubectl("delete", "crd", JOB_SETS)
        for crd in stored:
            metadata = {key: crd["metadata"][key] for key in ("name", "annotations") if key in crd["metadata"]}
            restored = {**crd, "metadata": metadata, "status": {}}
            bed.kubectl("create", "-f", "-", stdin=json.dumps(restored))


def test_job_sets_without_their_version_delay_no_workload_and_no_other_kind_of_job(
    place: Namespace, queues: Queues, tenant: Namespace
) -> None:
    assert_others_notice_nothing(place, job_sets_of_another_version(place.bed))
    with job_sets_of_another_version(place.bed):
        replicas(place.bed, 0)
        replicas(place.bed, 2)
        place.apply(reserving_job("train"))
        wait_state(place, "train", "Allocated", 60)
        place.kubectl("delete", "job", "train", "--cascade=foreground", timeout_s=120)


def reserving_job(name: str) -> Obj:
    """Return a Job of four pods that reserves their nodes."""
    container = {"name": "main", "image": QUICK, "command": ["sleep", "600"]}
    template = {
        "restartPolicy": "Never",
        "containers": [{**container, "resources": {"claims": [{"name": "node"}]}}],
        "resourceClaims": [{"name": "node", "resourceClaimTemplateName": f"{name}-rct"}],
        "nodeSelector": {"node.kubernetes.io/instance-type": "trn3.48xlarge"},
        "terminationGracePeriodSeconds": 1,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": {"neuron.aws.com/ultraservers": "topologySize=4"}},
        "spec": {
            "parallelism": 4,
            "completions": 4,
            "completionMode": "Indexed",
            "template": {"spec": template},
        },
    }


# Forged objects of Kueue.


@contextlib.contextmanager
def forged_kueue_workloads(tenant: Namespace, victim: Obj) -> Iterator[None]:
    """Copy Kueue's Workload of another tenant's reservation, once as inactive, and touch the original."""
    metadata = victim["metadata"]
    for number, is_active in enumerate((False, True)):
        copy = {
            "apiVersion": victim["apiVersion"],
            "kind": victim["kind"],
            "metadata": {
                "name": metadata["name"] if number == 0 else f"aaa-{metadata['name']}",
                "labels": metadata["labels"],
                "ownerReferences": metadata.get("ownerReferences", []),
            },
            "spec": {**victim["spec"], "active": is_active},
        }
        tenant.apply(copy)
    patch = json.dumps({"metadata": {"annotations": {"example.com/touched": "true"}}})
    tenant.bed.kubectl(
        "patch", WORKLOADS, metadata["name"], "--namespace", metadata["namespace"], "--type=merge", "--patch", patch
    )
    yield
    # The garbage collector removes the copies: their owner is not in their namespace.
    tenant.kubectl("delete", WORKLOADS, "--all", "--ignore-not-found", "--timeout=60s")


def test_forged_kueue_workloads_end_no_reservation_and_delay_no_other(
    place: Namespace, queues: Queues, tenant: Namespace
) -> None:
    queues.add("team", 4)
    place.apply(queued("train", "team", 4, 1, template="train-rct"))
    wait_state(place, "train", "Allocated", 60)
    place.apply(job("train", 4, "train-rct"))
    wait_available(place, "train")
    reserved, running = slots(place.bed)["train"], uids(pods(place, "train"))
    victim = of_reservation(place, "train")
    assert victim is not None
    other = Namespace(place.bed, f"other-{place.name}")
    place.bed.kubectl("create", "namespace", other.name)
    try:
        assert_others_notice_nothing(other, forged_kueue_workloads(tenant, victim))
    finally:
        other.remove()
    assert slots(place.bed)["train"] == reserved
    assert uids(pods(place, "train")) == running
