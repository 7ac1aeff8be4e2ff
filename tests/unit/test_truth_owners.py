"""Each field that the controller reads has a row that says who may write it, and forged writes that prove it."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from controller.apply import priorities
from controller.jobs import early_pods, guard, kinds
from controller.qualify import model
from controller.queue import model as queue_model
from hack.bench.ultraservers import ultraserver
from neuron_dra.core.wire import Obj
from neuron_dra.planner.observed import decode, slices
from neuron_dra.planner.observed.model import Template
from tests.bed.forged_writes import ROWS, TESTED, Row, User, qualification
from tests.support.kinds_read import kinds_read
from tests.unit import beside_scene
from tests.unit.test_fields import KINDS, NODE, Watched, published
from tests.unit.truth_owners import ANY, TRUTHS, Truth
from tests.unit.ultraserver_world import World

Path = tuple[str, ...]

PLACES = {
    "Node": "/nodes/",
    "Namespace": "/namespaces/forged-tenant",
    "ResourceSlice": "/resourceslices",
    "ResourceClaim": "/resourceclaims",
    "ResourceClaimTemplate": "/resourceclaimtemplates",
    "NeuronUltraServer": "/neuronultraservers/",
    "NeuronUltraServerWorkload": "/neuronultraserverworkloads",
    "NeuronUltraServerQualification": "/neuronultraserverqualifications",
    "Pod": "/namespaces/neuron-qualification/pods",
    "TenantPod": "/namespaces/forged-tenant/pods",
    "Job": "/jobs",
    "JobSet": "/jobsets",
    "LeaderWorkerSet": "/leaderworkersets",
    "StatefulSet": "/statefulsets",
    "Workload": "/apis/kueue.x-k8s.io/",
    "PriorityClass": "/priorityclasses",
    "ValidatingAdmissionPolicy": "/validatingadmissionpolicies/",
    "ValidatingAdmissionPolicyBinding": "/validatingadmissionpolicybindings/",
}


def workload_in_use() -> World:
    world = World([item for number in range(2) for item in ultraserver(f"u{number}")])
    world.settle()
    world.submit("job", count=2)
    world.settle()
    world.claim("worker", world.reserved("job")[1][:1], workload_uid=world.workload("job")["metadata"]["uid"])
    return world


def with_a_result(item: Obj) -> Obj:
    """Return a NeuronUltraServer with what a test found."""
    return {**item, "status": {**item["status"], **TESTED["status"]}}


OWNER: Obj = {"apiVersion": "v1", "kind": "Workload", "name": "t", "uid": "w", "controller": True}


@functools.cache
def fields_read() -> dict[str, set[Path]]:
    """Return the paths that are read of each kind, without those that other paths go on from."""
    world = workload_in_use()
    namespace: Obj = {"metadata": {"name": "ml", "labels": {}, "annotations": {}}}
    state = {"terminated": {"exitCode": 0, "startedAt": "2026-03-01T12:00:00Z", "message": "{}"}}
    ended: Obj = {"metadata": {"name": "t-0", "ownerReferences": [OWNER], "labels": {}}}
    ended |= {"spec": {"nodeName": "u0-0"}, "status": {"containerStatuses": [{"state": state}]}}
    readers: dict[str, tuple[Callable[[Any], object], list[Obj]]] = {
        "Node": (decode.cluster_node, [NODE]),
        "Namespace": (decode.namespace, [namespace]),
        "ResourceSlice": (slices.published_slice, [item for kind in KINDS for item in published(kind)]),
        "ResourceClaim": (decode.claim_use, world.all("ResourceClaim")),
        "ResourceClaimTemplate": (decode.template, world.all("ResourceClaimTemplate")),
        "NeuronUltraServer": (decode.ultraserver, [with_a_result(each) for each in world.all("NeuronUltraServer")]),
        "NeuronUltraServerWorkload": (decode.workload, world.all("NeuronUltraServerWorkload")),
        "NeuronUltraServerQualification": (model.qualification, [qualification()]),
        "Pod": (model.pod_of_test, [ended]),
        **readers_beside(),
    }
    found = {}
    for kind, (read, items) in readers.items():
        seen: set[Path] = set()
        for item in items:
            read(Watched(item, seen))
        found[kind] = {path for path in seen if not any(is_below(other, path) for other in seen - {path})}
    return found


def readers_beside() -> dict[str, tuple[Callable[[Any], object], list[Obj]]]:
    """Return what reads each kind of jobs and queues, and objects of it with all fields."""
    scene = beside_scene.world()
    of = {kind: scene.all(kind) for kind in ("Workload", "PriorityClass", *(each.name for each in kinds.KINDS))}
    orphan = {**of["Workload"][0], "metadata": {**of["Workload"][0]["metadata"], "ownerReferences": []}}
    of["Workload"].append(orphan)
    [policy], [binding] = scene.all("ValidatingAdmissionPolicy"), scene.all("ValidatingAdmissionPolicyBinding")
    early = scene.get("Pod", "early", "job-early")
    template = Template("job-early", "rct", "t", owner=None, deleting=False)
    return {
        "Workload": (queue_model.project, of["Workload"]),
        "PriorityClass": (priorities.value_of, of["PriorityClass"]),
        "ValidatingAdmissionPolicy": (lambda item: guard.denies(item, binding), [policy]),
        "ValidatingAdmissionPolicyBinding": (lambda item: guard.denies(policy, item), [binding]),
        "TenantPod": (lambda item: woken(item, template, scene.now), [early]),
        **{each.name: (each.job, of[each.name]) for each in kinds.KINDS},
    }


def woken(pod: Obj, template: Template, now: datetime.datetime) -> object:
    """Read a pod as the controller does that wakes it."""
    return early_pods.waits_for(pod, template) and early_pods.touched(pod, template, now)


NOTHING_FOLLOWS: Final = {
    "deviceclasses": "only their names are read",
    "services": "one that is not as the controller writes it, or not the workload's, is reported",
    "endpointslices": "the same",
    "leases": "the replicas of the controller, which alone may write it: see the chart's Role",
}
"""Kinds that are read and are no truth about tenants, and why."""


def is_below(path: Path, other: Path) -> bool:
    """Return True if `path` is `other`, or a field of it."""
    return path[: len(other)] == other


def owner(kind: str, path: Path) -> Truth | None:
    """Return the row that covers a field."""
    covering = (one for one in TRUTHS if one.kind in (kind, ANY) and is_below(path, tuple(one.path.split("."))))
    return next(covering, None)


def touched(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of each value in the body of a write."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from touched(each, (*path, key))
    else:
        yield path


def tries(kind: str, path: str, user: User) -> list[Row]:
    """Return the forged writes of a field by a user."""
    wanted = tuple(path.split("."))
    return [row for row in ROWS if row.who == user and PLACES[kind] in row.path and writes(row, wanted)]


def writes(row: Row, wanted: Path) -> bool:
    """Return True if a request contains the field. A creation or replacement contains all except the status."""
    if wanted[0] == "status":
        return row.path.endswith("/status") and touches(row, wanted)
    return row.verb in ("POST", "PUT") or touches(row, wanted)


def touches(row: Row, wanted: Path) -> bool:
    return any(is_below(path, wanted) or is_below(wanted, path) for path in touched(row.body))


def test_each_field_that_is_read_has_an_owner() -> None:
    read = fields_read()
    orphans = [f"{kind} {'.'.join(path)}" for kind, paths in read.items() for path in sorted(paths)]
    assert [each for each in orphans if owner(each.split()[0], tuple(each.split()[1].split("."))) is None] == []


def test_each_kind_that_is_read_has_owners() -> None:
    read = {beside_scene.plural(kind) for kind in fields_read()}
    assert kinds_read() - read == NOTHING_FOLLOWS.keys()


def test_each_owner_has_a_field_that_is_read() -> None:
    used = [owner(kind, path) for kind, paths in fields_read().items() for path in paths]
    assert [f"{one.kind} {one.path}" for one in TRUTHS if one not in used] == []


OF_USERS = [one for one in TRUTHS if one.kind != ANY]


@pytest.mark.parametrize("one", OF_USERS, ids=lambda one: f"{one.kind} {one.path}")
def test_forged_writes_prove_the_row(one: Truth) -> None:
    """The table of forged writes has a rejected write by each user who is denied, an accepted one by each other."""
    unproved = [user.name for user in one.denied if not any(row.ends for row in tries(one.kind, one.path, user))]
    refused = [user.name for user in one.allowed if all(row.ends for row in tries(one.kind, one.path, user))]
    assert (unproved, refused) == ([], [])
