"""`--kubernetes`: the schedulers of 1.34 and 1.37 differ (17.4)."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from neuron_dra import cli
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.world import imagined, server
from neuron_dra.ask.world.world import World
from neuron_dra.simulate import semantics

FLEET = "1 x trn2.48xlarge"


def manifest(tmp_path: Path, *counts: int) -> str:
    """Write pods that request so many devices each."""
    items = []
    for number, count in enumerate(counts):
        request = {"name": "neurons", "exactly": {"deviceClassName": "neuron.aws.com", "count": count}}
        meta = {"name": f"p{number}", "namespace": "default"}
        container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "neurons"}]}}
        spec = {"containers": [container]}
        entry = {"name": "neurons", "resourceClaimName": f"p{number}"}
        items += [
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": meta,
                "spec": {"devices": {"requests": [request]}},
            },
            {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {**spec, "resourceClaims": [entry]}},
        ]
    path = tmp_path / "pods.yaml"
    path.write_text(yaml.safe_dump_all(items))
    return str(path)


def simulate(*words: str) -> int:
    return cli.main(["simulate", *words])


def test_old_scheduler_gives_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = manifest(tmp_path, 1, 16)
    assert simulate(path, "--fleet", FLEET, "--kubernetes", "1.34") == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "default/p0 trn2-0 device 0 default/p1 - waits" in text
    assert "note: simulated as Kubernetes 1.34 and 1.35 allocate" in text


def test_new_scheduler_is_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(manifest(tmp_path, 4), "--fleet", FLEET) == 0
    assert "simulated as" not in capsys.readouterr().out


@pytest.mark.parametrize("text", ["1.33", "1.40", "new", ""])
def test_other_versions_are_rejected(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        simulate(manifest(tmp_path, 1), "--fleet", FLEET, "--kubernetes", text)
    assert "write a version from 1.34 to 1.37" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kubelets", "found", "old"),
    [
        (["v1.34.4-eks-1", "v1.33.2"], None, False),
        (["v1.34.4", "v1.37.0"], (1, 37), False),
        (["?", ""], None, False),
    ],
)
def test_newest_kubelet_proves_the_version_of_a_new_allocator(
    kubelets: list[str], found: tuple[int, int] | None, old: bool
) -> None:
    items = imagined.fleet("2 x trn2.48xlarge", "test")
    nodes = [item for item in items if item["kind"] == "Node"]
    for node, kubelet in zip(nodes, kubelets, strict=True):
        node["status"] = {**node.get("status", {}), "nodeInfo": {"kubeletVersion": kubelet}}
    built = snapshot.build(items)
    assert server.version(built) == found
    rules = World(built).rules
    assert (rules.taints, rules.permutations) == (not old, False)
    assert semantics.of(found) is (semantics.OLD if old else semantics.NEW)


@pytest.mark.parametrize(("version", "says"), [("1.35", True), ("1.36", False)])
def test_devices_of_several_slices_are_not_predictable_before_1_36(
    version: str, says: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = imagined.fleet("1 x trn2.48xlarge", "test")
    [whole] = [item for item in items if item["kind"] == "ResourceSlice"]
    halves = []
    for number in range(2):
        spec = {**whole["spec"], "pool": {**whole["spec"]["pool"], "resourceSliceCount": 2}}
        spec["devices"] = whole["spec"]["devices"][number::2]
        halves.append({**whole, "metadata": {"name": f"half-{number}"}, "spec": spec})
    objects = [*(item for item in items if item is not whole), *halves]
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": objects}))
    assert simulate(manifest(tmp_path, 1), "--snapshot", str(path), "--kubernetes", version) == 0
    assert ("may get other devices than those shown" in " ".join(capsys.readouterr().out.split())) is says
