"""Values that no decoder reads, stored by an ordinary user in a real API server, cost no other user anything.

They are posted as raw bytes: kubectl would replace them.
"""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.bed.real_cluster import Namespace, TestBed, eventually
from tests.bed.deployed import CONTROLLER, NAMESPACE
from tests.bed.fleet import end_workloads, replicas, seconds_to_allocated, submit, workload

API = "/apis/resource.k8s.io/v1"
VALUES = {"half": b'{"a":"\\ud800"}', "bytes": b'{"a":"\xff"}', "deep": b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"}
DATED = "dated-9999"
ROUNDS = 9


def body(kind: str, name: str, value: bytes) -> bytes:
    """The bytes of a claim or a template with this value for another driver."""
    config = [{"opaque": {"driver": "other.example.com", "parameters": "VALUE"}}]
    request = {"name": "r", "exactly": {"deviceClassName": "other.example.com"}}
    spec: dict[str, object] = {"devices": {"requests": [request], "config": config}}
    made = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"spec": spec} if kind == "ResourceClaimTemplate" else spec,
    }
    return json.dumps(made).encode().replace(b'"VALUE"', value)


def post(bed: TestBed, path: str, content: bytes, file: Path) -> None:
    file.write_bytes(content)
    bed.kubectl("create", f"--raw={path}", "-f", str(file))


@contextlib.contextmanager
def poison(place: Namespace, tmp_path: Path) -> Iterator[None]:
    """A claim and a template of each value in a namespace, and a Node whose condition is dated 9999."""
    bed, root = place.bed, f"{API}/namespaces/{place.name}"
    for name, value in VALUES.items():
        post(bed, f"{root}/resourceclaims", body("ResourceClaim", name, value), tmp_path / "claim")
        post(bed, f"{root}/resourceclaimtemplates", body("ResourceClaimTemplate", name, value), tmp_path / "template")
    bed.kubectl(
        "create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": DATED}})
    )
    date = "9999-12-31T23:59:59Z"
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": date, "lastHeartbeatTime": date}
    patch = json.dumps({"status": {"conditions": [ready]}})
    bed.kubectl("patch", "node", DATED, "--subresource=status", "--type=merge", "-p", patch)
    try:
        yield
    finally:
        bed.kubectl("delete", "node", DATED)
        place.kubectl("delete", "resourceclaims,resourceclaimtemplates", "--all", "--timeout=60s")


@pytest.fixture
def poisoned(place: Namespace, tmp_path: Path) -> Iterator[Namespace]:
    """A namespace with poison."""
    with poison(place, tmp_path):
        yield place


def test_what_no_decoder_reads_is_stored_as_it_was_sent(poisoned: Namespace, tmp_path: Path) -> None:
    """Otherwise the other tests of this file prove nothing."""
    for name in ("half", "deep"):  # the output of kubectl is text
        stored = poisoned.bed.kubectl("get", f"--raw={API}/namespaces/{poisoned.name}/resourceclaims/{name}")
        assert VALUES[name].decode() in stored


def test_others_are_served_beside_poison(poisoned: Namespace) -> None:
    submit(poisoned, workload("before", 4, 1))
    replicas(poisoned.bed, 0)
    replicas(poisoned.bed, 2)  # ready only once they have listed everything
    submit(poisoned, workload("after", 4, 1))
    end_workloads(poisoned)
    log = poisoned.bed.kubectl("logs", f"--selector=app={CONTROLLER}", "--tail=-1", "--namespace", NAMESPACE)
    for name in ("half", "bytes"):  # the program decodes the deep one
        assert f"{poisoned.name}/{name}" in log


def test_commands_name_what_they_cannot_decode(poisoned: Namespace) -> None:
    submit(poisoned, workload("job", 4, 1))
    status = poisoned.bed.neuron_dra("status")
    assert (status.returncode, f"ResourceClaim {poisoned.name}/" in status.stdout) == (0, True), status.stderr
    why = poisoned.bed.neuron_dra("why", "workload/job", "-n", poisoned.name)
    assert f"ResourceClaim {poisoned.name}/" in " ".join(why.stdout.split()), why.stderr

    def named() -> bool:
        done = poisoned.bed.neuron_dra("doctor", "-o", "json")
        texts = [each["text"] for each in json.loads(done.stdout)["checks"] if each["area"] == "objects"]
        return any(f"ResourceClaim {poisoned.name}/bytes" in text for text in texts)

    eventually("doctor names the claim", named)


@pytest.mark.long
def test_beside_poison_workloads_of_others_take_at_most_twice_the_time(
    place: Namespace, tenant: Namespace, tmp_path: Path
) -> None:
    """(30, acceptance 2) In pairs: a workload without poison, and one beside it, in turn."""
    without, beside = [], []
    for _ in range(ROUNDS):
        without.append(seconds_to_allocated(place))
        with poison(tenant, tmp_path):
            beside.append(seconds_to_allocated(place))
    first, second = statistics.median(without), statistics.median(beside)
    print(f"Allocated after {first:.2f} s without poison, {second:.2f} s beside it (medians of {ROUNDS})")
    assert second <= 2 * first
