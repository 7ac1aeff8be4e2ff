"""Rights on UltraServers with a real API server: users of a namespace, and the capacity block label."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterator

import pytest

from hack.bed.errors import BedError
from hack.bed.real_cluster import REPOSITORY, Namespace, TestBed, eventually
from tests.bed.fleet import TRN3, slots

MANIFEST = REPOSITORY / "deploy/manifests/ultraserver/60-ultraserver-access.yaml"
POLICY = "validatingadmissionpolicy/neuron-dra-driver-capacity-block-label"
LABEL = "topology.k8s.aws/capacity-block-id"
VERBS = ("get", "create", "delete")


@pytest.fixture
def access(bed: TestBed) -> Iterator[TestBed]:
    """The test bed with our roles and our policy; existing ones stay afterwards."""
    was_there = POLICY in bed.kubectl("get", "validatingadmissionpolicies", "--output=name").replace(
        "validatingadmissionpolicy.admissionregistration.k8s.io", "validatingadmissionpolicy"
    )
    bed.kubectl("apply", "-f", str(MANIFEST))
    yield bed
    if not was_there:
        bed.kubectl("delete", "-f", str(MANIFEST))


@pytest.fixture
def registered(bed: TestBed) -> Iterator[str]:
    """A Node that registered with its capacity block; no kubelet is behind it."""
    name = f"block-{uuid.uuid4().hex[:8]}"
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {LABEL: "cr-1", "zone": "a"}}}
    bed.kubectl("create", "-f", "-", stdin=json.dumps(node))
    yield name
    bed.kubectl("delete", "node", name)


def refusal(bed: TestBed, node: str, label: str) -> str:
    """Try to label a node; return the error, empty on success."""
    try:
        bed.kubectl("label", "--overwrite", "node", node, label)
    except BedError as err:
        return str(err)
    return ""


def test_capacity_block_label_is_immutable(access: TestBed, registered: str) -> None:
    # The API server takes some seconds to enforce a new policy; each try is a change.
    tries = itertools.count(2)
    said = eventually("the policy refuses", lambda: refusal(access, registered, f"{LABEL}=cr-{next(tries)}"), 60)
    before = access.get("node", registered)["metadata"]["labels"][LABEL]
    assert f"the label {LABEL} of node {registered} decides its UltraServer" in said
    assert "ultraserverOperator.capacityBlockPolicy.users" in said
    assert "cannot be changed" in refusal(access, registered, f"{LABEL}-")
    assert refusal(access, registered, "zone=b") == ""
    labels = access.get("node", registered)["metadata"]["labels"]
    assert (labels[LABEL], labels["zone"]) == (before, "b")


def test_roles_allow_what_they_should(access: TestBed, namespace: Namespace) -> None:
    """13.15."""
    access.kubectl("apply", "-f", str(REPOSITORY / "deploy/crds"))
    reserving = "neuron-ultraserver-workloads-edit"
    for role, user in (("edit", "eve"), ("admin", "ada"), ("view", "vic"), ("view", "rob")):
        namespace.kubectl("create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}")
    namespace.kubectl("create", "rolebinding", "reserving", f"--clusterrole={reserving}", "--user=rob")

    def may(user: str, verb: str, what: str) -> bool:
        try:
            return namespace.kubectl("auth", "can-i", verb, f"{what}.neuron.aws.com", f"--as={user}").strip() == "yes"
        except BedError:
            return False  # kubectl ends with 1 for "no"

    eventually("the roles are aggregated", lambda: may("vic", "get", "neuronultraserverworkloads"), 60)
    users = ("eve", "ada", "vic", "rob")
    workloads = {(user, verb): may(user, verb, "neuronultraserverworkloads") for user in users for verb in VERBS}
    assert workloads == {(user, verb): user == "rob" or verb == "get" for user in users for verb in VERBS}
    assert not may("rob", "patch", "neuronultraservers")


ASK = """
kubectl --namespace neuron-dra-driver port-forward deploy/neuron-ultraserver-controller 18082:8082 >/dev/null 2>&1 &
trap "kill $!" EXIT
for _ in $(seq 50); do
    grpcurl -plaintext -max-time 5 127.0.0.1:18082 list >/dev/null 2>&1 && break
    sleep 0.1
done
grpcurl -plaintext -max-time 10 -d "$1" 127.0.0.1:18082 neuron.ultraserver.v1.UltraServers/Plan
"""


def test_dry_run_by_port_forward_reserves_nothing(fleet: TestBed) -> None:
    asked = {"workload": {"instance_type": TRN3, "topology_size": 4, "server_count": 3}}
    answer = json.loads(fleet.command("exec", "--", "bash", "-c", ASK, "ask", json.dumps(asked)))
    [planned] = answer["workloads"]
    assert (planned["fits"], planned["reason"]) == (False, "ExceedsFleet")
    assert planned["shortage"] == {
        "groups_missing": 3,
        "groups_free": 2,
        "nodes_short": 4,
        "nodes_free": 8,
        "nodes_total": 8,
    }
    assert slots(fleet) == {}
