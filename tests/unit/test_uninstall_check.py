"""18.5. `neuron-dra uninstall-check` names what still needs the driver."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neuron_dra import cli
from neuron_dra.ask.uninstall import command as uninstall_command
from neuron_dra.core.wire import Obj
from tests.support import small_clusters as small

WORKLOAD: Obj = {
    "apiVersion": "neuron.aws.com/v1",
    "kind": "NeuronUltraServerWorkload",
    "metadata": {"name": "llm", "namespace": "ml"},
    "spec": {"instanceType": "trn2u.48xlarge", "topologySize": 4},
    "status": {"state": "Allocated"},
}
ULTRASERVER: Obj = {
    "apiVersion": "neuron.aws.com/v1",
    "kind": "NeuronUltraServer",
    "metadata": {"name": "us-0", "namespace": "neuron-dra-driver"},
    "spec": {},
    "status": {"allocations": [{"workloadRef": "ml/llm"}]},
}


def holding(owner: bool = True) -> list[Obj]:
    """Return a cluster in which pod train-0 has four devices of node a."""
    items = small.base("a", "b")
    items += small.running(items, "train-0", 4, "a")
    [pod] = [each for each in items if each["kind"] == "Pod"]
    if owner:
        pod["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train", "uid": "j"}]
    return items


def run(capsys: pytest.CaptureFixture[str], folder: Path, items: list[Obj], *words: str) -> tuple[int, str]:
    file = folder / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    code = cli.main(["uninstall-check", "--snapshot", str(file), *words])
    return code, capsys.readouterr().out


def found(items: list[Obj]) -> dict[str, Any]:
    return uninstall_command.holders(small.cluster(items))


def test_nothing_needs_the_driver(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """(18.5) Idle nodes, free UltraServers and pods that wait hold nothing."""
    free = {**ULTRASERVER, "status": {"allocations": []}}
    template = small.template("t")
    waiting = small.created(small.pod("waits", "t"), template)
    code, text = run(capsys, tmp_path, [*small.base("a"), free, template, *waiting])
    assert (code, text) == (0, "Nothing needs the driver: no claim has its devices, and no workload reserves nodes.\n")


def test_holders_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """(18.5) The page prints this."""
    code, text = run(capsys, tmp_path, [*holding(), WORKLOAD])
    assert code == 1
    page = (Path(__file__).resolve().parents[2] / "docs/command-line.md").read_text()
    assert f"$ neuron-dra uninstall-check\n{text}```\n" in page


def test_reservations_are_named() -> None:
    assert found([ULTRASERVER])["ultraServers"] == [{"ultraServer": "neuron-dra-driver/us-0", "workloads": ["ml/llm"]}]
    assert any("us-0" in line and "llm" in line for line in uninstall_command.lines(found([ULTRASERVER])))


def test_finalizers_of_the_controller_are_named() -> None:
    """Without it, the namespace of the driver could not be deleted."""
    meta = {**ULTRASERVER["metadata"], "finalizers": ["neuron.aws.com/ultraserver-reserved"]}
    seen = found([{**ULTRASERVER, "metadata": meta, "status": {"allocations": []}}])
    assert seen["ultraServers"] == [{"ultraServer": "neuron-dra-driver/us-0", "workloads": []}]
    row = "  neuron-dra-driver/us-0  none; the controller removes its finalizer soon"
    assert row in uninstall_command.lines(seen)
    other = {**ULTRASERVER["metadata"], "finalizers": ["example.com/other"]}
    assert found([{**ULTRASERVER, "metadata": other, "status": {}}])["ultraServers"] == []


def test_claims_of_other_drivers_are_not_named() -> None:
    items = holding()
    [claim] = [each for each in items if each["kind"] == "ResourceClaim"]
    ours = claim["status"]["allocation"]["devices"]["results"]
    net = {"request": "nic", "driver": "dra.net", "pool": "a", "device": "efa-0"}
    claim["status"]["allocation"]["devices"]["results"] = [net]
    assert found(items)["claims"] == []
    claim["status"]["allocation"]["devices"]["results"] = [net, *ours]
    [row] = found(items)["claims"]
    assert row["devices"] == {"a": [f"neuron-device-{number}" for number in range(4)]}


def test_a_pod_that_ends_already_is_marked() -> None:
    items = holding(owner=False)
    [pod] = [each for each in items if each["kind"] == "Pod"]
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert found(items)["claims"][0]["heldBy"] == [
        {"resource": "pods", "name": "train-0", "deletedAt": "2026-01-01T00:00:00Z"}
    ]
    assert any(line.endswith("pod train-0 (Terminating)") for line in uninstall_command.lines(found(items)))


def test_a_claim_without_a_pod_is_named() -> None:
    items = holding()
    [claim] = [each for each in items if each["kind"] == "ResourceClaim"]
    claim["status"]["reservedFor"] = []
    assert any(line.endswith("no pod; Kubernetes frees it soon") for line in uninstall_command.lines(found(items)))


def test_claims_that_cannot_be_read_are_not_absent() -> None:
    """(18.5) Without the controller its kinds are not served, which is no gap."""
    cluster = small.cluster(small.base("a"))
    forbidden = type(cluster)(cluster.objects, {"ResourceClaim": "forbidden"}, cluster.by_kind)
    seen = uninstall_command.holders(forbidden)
    assert seen["notSeen"] == [{"kind": "ResourceClaim", "reason": "forbidden"}]
    assert "ResourceClaims could not be read (forbidden)" in uninstall_command.lines(seen)[0]
    absent = {"NeuronUltraServerWorkload": "this cluster does not have it", "Event": "forbidden"}
    assert uninstall_command.holders(type(cluster)(cluster.objects, absent, cluster.by_kind))["notSeen"] == []


def test_output_for_programs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, text = run(capsys, tmp_path, holding(), "-o", "json")
    data = json.loads(text)
    assert code == 1
    assert data["claims"][0]["heldBy"] == [{"resource": "pods", "name": "train-0", "owner": "Job train"}]
    assert (data["workloads"], data["ultraServers"], data["notSeen"]) == ([], [], [])


def test_a_namespace_is_rejected(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The driver serves all namespaces; the answer for one would mislead."""
    assert run(capsys, tmp_path, holding(), "-n", "ml")[0] == 2
