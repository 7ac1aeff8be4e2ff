"""Several tenants on one fleet: none gets another's reserved nodes (13.2) or exceeds its limit (13.15)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from hack.bed.errors import BedError
from hack.bed.real_cluster import QUICK, Namespace, TestBed, eventually
from tests.bed.fleet import NODES, condition, slots, submit, wait_reason, wait_state, without_policies, workload

RESERVED = "workload.neuron.aws.com"
LIMIT = "neuron.aws.com/max-reserved-nodes"
CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "intruder"},
    "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": RESERVED}}]}},
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "intruder"},
    "spec": {
        "terminationGracePeriodSeconds": 0,
        "resourceClaims": [{"name": "neuron", "resourceClaimName": "intruder"}],
        "containers": [{"name": "c", "image": QUICK, "resources": {"claims": [{"name": "neuron"}]}}],
    },
}


@pytest.fixture
def tenants(bed: TestBed, fleet: TestBed) -> Iterator[Namespace]:
    """Another tenant's namespace, with an editor and an administrator."""
    own = Namespace(bed, f"tenant-{uuid.uuid4().hex[:8]}")
    bed.kubectl("create", "namespace", own.name)
    for role in ("edit", "admin"):
        own.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}")
    yield own
    own.remove()


def refusal(place: Namespace, made: dict[str, Any], *words: str) -> str:
    """Try to create an object; return the error, empty on success."""
    try:
        place.kubectl("create", "-f", "-", *words, stdin=json.dumps(made))
    except BedError as err:
        return str(err)
    return ""


def test_claims_of_other_namespaces_get_no_reserved_node(fleet: TestBed, place: Namespace, tenants: Namespace) -> None:
    dry = "--dry-run=server"
    for user in ("edit", "admin"):
        eventually(
            "rights are known", lambda user=user: "DeviceClass" in refusal(tenants, CLAIM, dry, f"--as={user}"), 30
        )
    assert "are made for pods" in refusal(tenants, CLAIM, dry)  # not even for the cluster's administrator
    with without_policies(fleet):
        eventually("the policies are out of force", lambda: not refusal(tenants, CLAIM, dry), 60)
        tenants.apply(CLAIM)
        tenants.apply(POD)
        # Its claim gets the first node that is tagged, before the pods of the workload can.
        made = submit(place, workload("job", 4, 1))
        eventually("the intruder has a node", lambda: tenants.get("pod", "intruder")["spec"].get("nodeName"), 30)
        held = slots(fleet)["job"][0]
        assert tenants.get("pod", "intruder")["spec"]["nodeName"] in held
        message = wait_reason(place, "job", "ForeignClaim", "Degraded")
        assert message.endswith(f"pod {tenants.name}/intruder")
        assert (wait_state(place, "job", "Allocated")["metadata"]["uid"], slots(fleet)["job"][0]) == (
            *(made["metadata"]["uid"], held),
        )
        statuses = tenants.get("pod", "intruder")["status"].get("containerStatuses") or []
        assert not any("running" in each.get("state", {}) for each in statuses)
        tenants.delete("pod/intruder", grace_s=0)
        tenants.kubectl("delete", "resourceclaim", "intruder", "--timeout=180s", timeout_s=190)
    eventually("the policies are in force again", lambda: refusal(tenants, CLAIM, dry), 60)
    wait_reason(place, "job", "NoProblem", "Degraded")


def test_namespace_limit_bounds_new_reservations(fleet: TestBed, place: Namespace) -> None:
    fleet.kubectl("annotate", "namespace", place.name, f"{LIMIT}=4")
    place.apply(workload("job", 4, 2))
    text = wait_reason(place, "job", "NamespaceLimit")
    assert text.startswith(f"namespace {place.name} has reserved 0 of the 4 nodes that it may reserve")
    assert slots(fleet) == {}
    fleet.kubectl("annotate", "namespace", place.name, f"{LIMIT}={len(NODES)}", "--overwrite")
    wait_state(place, "job", "Allocated")
    fleet.kubectl("annotate", "namespace", place.name, f"{LIMIT}=0", "--overwrite")
    place.apply(workload("other", 1, 1))
    wait_reason(place, "other", "NamespaceLimit")
    assert (condition(place.get("nusw", "job"))[0], len(slots(fleet)["job"])) == ("Allocated", 2)
