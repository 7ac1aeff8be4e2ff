"""`neuron-ultraserver-controller plan` prints the plan for a cluster in a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from controller.main import main
from hack.bench.ultraservers import ultraserver
from tests.unit.test_claim_pods import released
from tests.unit.ultraserver_world import World

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "plan"


def cluster(path: Path) -> Path:
    """Two UltraServers, one of them in use, with a waiting workload and a partly reserved one."""
    world = World([*ultraserver("u0"), *ultraserver("u1")])
    world.settle()
    world.claim("foreign", ["u0-1"], pod="notebook")
    world.submit("pair", size=2)
    world.step()
    world.later(1)
    world.submit("big", size=4, count=2)
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": list(world.objects.values())}))
    return path


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


def test_plan_text_equals_the_golden_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "--snapshot", str(cluster(tmp_path / "c.yaml")), "--at", "2026-03-01T12:00:02Z")
    golden = GOLDEN / "two-ultraservers.txt"
    if os.environ.get("NEURON_DRA_WRITE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(found)
    assert found == golden.read_text()


def group_claim(path: Path, *pods: dict[str, object]) -> tuple[str, ...]:
    """The flags for a deleted workload, whose claim is reserved for a PodGroup."""
    world = released()
    items = [*world.objects.values(), *pods]
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
    return ("--snapshot", str(path), "--at", f"{world.now:%Y-%m-%dT%H:%M:%SZ}")


def member(node: str) -> dict[str, object]:
    spec = {
        "nodeName": node,
        "schedulingGroup": {"podGroupName": "gang"},
        "resourceClaims": [{"name": "n", "resourceClaimName": "claim-u0-0"}],
    }
    meta = {"name": "gang-0", "namespace": "ml", "uid": "uid-0"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Running"}}


def test_pods_of_a_pod_group_are_evicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the controller does, which reads them."""
    found = printed(capsys, *group_claim(tmp_path / "c.yaml", member("u0-0")))
    assert "evict Pod ml/gang-0" in found
    assert "waiting for pods and claims on the nodes: ml/gang-0" in found


def test_pod_group_without_pods_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, *group_claim(tmp_path / "c.yaml", member("elsewhere")))
    assert "PodGroup ml/gang (no pod of it is there: delete it)" in found
    found = printed(capsys, *group_claim(tmp_path / "d.yaml"))
    assert "Unknown: which pods use claim ml/claim-u0-0 of PodGroup ml/gang, because the file has no Pods" in found
    assert "if there are none, delete the PodGroup" in found


def test_an_empty_cluster_has_nothing_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("kind: List\napiVersion: v1\nitems: []\n")
    assert printed(capsys, "--snapshot", str(path)) == (
        "UltraServers\n  none: no node publishes an ultraserverId\nWorkloads\n  none\nWrites: none\n"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("a: [", "not YAML"),
        ("- 1", "not a list of Kubernetes objects"),
        ("kind: List\nitems: [{kind: Node}]", "a Node without metadata.name"),
    ],
)
def test_invalid_snapshot_is_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    path = tmp_path / "c.yaml"
    if content is not None:
        path.write_text(content)
    assert main(["plan", "--snapshot", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"neuron-ultraserver-controller: --snapshot {path}: ")
    assert message in said


def test_invalid_time_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--snapshot", str(cluster(tmp_path / "c.yaml")), "--at", "noon"]) == 2
    assert "--at noon: write a time such as" in capsys.readouterr().err
