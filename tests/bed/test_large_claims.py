"""30.1 on a real API server: 250 claims of one user, 65 MiB in all, cost no other user's workload anything."""

from __future__ import annotations

import json

import pytest

from hack.bed.real_cluster import Namespace
from neuron_dra.core.wire import Obj
from tests.bed.fleet import end_workloads, replicas, submit, workload

ULTRA = "trn2u.48xlarge"
CLAIMS, AT_ONCE = 250, 50
CONFIGS, LENGTH = 27, 9_900  # Kubernetes stores parameters of at most 10 KiB


def large(number: int) -> Obj:
    """A claim of 265 KB for another driver."""
    parameters = {"text": "x" * LENGTH}
    config = [{"opaque": {"driver": "other.example.com", "parameters": parameters}}] * CONFIGS
    request = {"name": "r", "exactly": {"deviceClassName": "other.example.com"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"large-{number}"},
        "spec": {"devices": {"requests": [request], "config": config}},
    }


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_replicas_start_and_commands_work_beside_large_claims(sets_place: Namespace) -> None:
    place = sets_place
    for first in range(0, CLAIMS, AT_ONCE):
        items = [large(number) for number in range(first, first + AT_ONCE)]
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        place.kubectl("create", "-f", "-", stdin=listed, timeout_s=300)
    replicas(place.bed, 0)
    replicas(place.bed, 2)  # ready only once they have listed everything
    submit(place, workload("job", 4, 1, instance_type=ULTRA))
    status = place.bed.neuron_dra("status")
    assert status.returncode == 0, status.stderr
    why = place.bed.neuron_dra("why", "workload/job", "-n", place.name)
    assert (why.returncode, "job" in why.stdout) == (0, True), why.stderr
    end_workloads(place)
    place.kubectl("delete", "resourceclaims", "--all", "--timeout=120s", timeout_s=150)
