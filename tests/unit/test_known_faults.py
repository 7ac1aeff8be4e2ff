"""Known faults of Kubernetes are reported where a release has one and something of the cluster meets it (4.06)."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from neuron_dra import cli
from neuron_dra.api import objects
from neuron_dra.api.objects import slice_objects
from neuron_dra.ask.doctor import known_releases
from neuron_dra.ask.doctor.lines import CheckState, Line
from neuron_dra.ask.why import pod as why_pod
from neuron_dra.ask.world.world import World
from neuron_dra.core import devices, partitions, releases
from neuron_dra.core.wire import Obj
from tests.support import small_clusters as small

TAINT = {"key": "neuron.aws.com/unhealthy", "value": "sram", "effect": "NoExecute"}


def bed(kubelet: str, runtime: str = "containerd://2.1.4") -> list[Obj]:
    """Return a node, with its slices and the classes of the chart."""
    items = small.base("a")
    for item in items:
        if item["kind"] == "Node":
            item["status"]["nodeInfo"] = {"kubeletVersion": kubelet, "containerRuntimeVersion": runtime}
    return items


def running(name: str, *claims: Obj, node: str = "a") -> Obj:
    entries = [
        {"name": f"claim-{number}", "resourceClaimName": each["metadata"]["name"]} for number, each in enumerate(claims)
    ]
    made = small.pod(name, nodeName=node)
    made["spec"]["resourceClaims"] = entries
    return {**made, "status": {"phase": "Running"}}


def claim(name: str, *ids: int) -> Obj:
    return objects.allocated_claim(name, "a", [f"neuron-device-{number}" for number in ids])


def waiting_for_all(name: str) -> list[Obj]:
    made = small.template("everything", allocationMode="All")
    del made["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"]
    return [made, small.pod(name, "everything")]


def rule(name: str, selector: Obj | None) -> Obj:
    spec = {"taint": TAINT} | ({} if selector is None else {"deviceSelector": selector})
    return {"apiVersion": small.API, "kind": "DeviceTaintRule", "metadata": {"name": name}, "spec": spec}


def with_sets(items: list[Obj]) -> list[Obj]:
    """Return the objects with a second node, whose slices have connected sets."""
    node = objects.healthy_node("inf2.48xlarge")
    published = devices.published(node, driver_version="1")
    slices = slice_objects("b", published, partitions.partitioned(node, published))
    return [*items, small.node("b", "inf2.48xlarge"), *slices]


def shared(items: list[Obj]) -> list[Obj]:
    data = claim("data", 0)
    return [*items, data, running("one", data), running("two", data)]


def several_claims(items: list[Obj]) -> list[Obj]:
    first, second = claim("first", 0), claim("second", 1)
    return [*items, first, second, running("train", first, second)]


def twice_allocated(items: list[Obj]) -> list[Obj]:
    return [*items, claim("first", 3), claim("second", 3)]


def broken_pool(items: list[Obj]) -> list[Obj]:
    twice = copy.deepcopy(next(item for item in items if item["kind"] == "ResourceSlice"))
    twice["metadata"]["name"] = "another"
    twice["spec"]["pool"]["resourceSliceCount"] = 7
    return [*items, twice, *waiting_for_all("hungry")]


def empty_rule(items: list[Obj]) -> list[Obj]:
    return [*items, rule("careless", None), rule("careful", {"device": "neuron-device-1"})]


def tainted_limits(items: list[Obj]) -> list[Obj]:
    pod = small.pod("plain", nodeName="a")
    pod["spec"]["containers"][0]["resources"] = {"limits": {"deviceclass.resource.kubernetes.io/neuron.aws.com": 1}}
    held = claim("plain-extended", 5)
    pod["status"] = {"phase": "Running", "extendedResourceClaimStatus": {"resourceClaimName": "plain-extended"}}
    return [*items, pod, held, rule("sick", {"device": "neuron-device-5"})]


def rule_beside_sets(items: list[Obj]) -> list[Obj]:
    return [*with_sets(items), rule("sick", {"device": "neuron-device-5"})]


Case = tuple[int, Callable[[list[Obj]], list[Obj]], str, str, str]
CASES: list[Case] = [
    (releases.UNPREPARES_SHARED, shared, "pod default/one, pod default/two", "v1.36.4-eks-1", "v1.37.0"),
    (releases.TWICE_THE_SAME_IDS, several_claims, "pod default/train", "v1.36.3", "v1.36.4"),
    (releases.ALLOCATES_TWICE, twice_allocated, "claim default/first, claim default/second", "v1.34.3", "v1.34.4"),
    (releases.ALL_WAIT_FOR_ONE, broken_pool, "pod default/hungry", "v1.37.2", "v1.38.0"),
    (releases.RULE_FOR_ALL, empty_rule, "DeviceTaintRule careless", "v1.37.0", "v1.37.1"),
    (releases.LIMITS_NOT_EVICTED, tainted_limits, "pod default/plain", "v1.37.1", "v1.37.2"),
    (releases.RULES_AND_SETS, rule_beside_sets, "DeviceTaintRule sick", "v1.37.2", "v1.38.0"),
]
IDS = [str(case[0]) for case in CASES]


def world(items: list[Obj], version: str) -> World:
    return World(dataclasses.replace(small.cluster(items), version=version))


def reported(items: list[Obj], version: str, issue: int) -> list[Line]:
    """Return the lines about a fault that meets something."""
    found = known_releases.lines(world(items, version))
    return [line for line in found if line.state is CheckState.WRONG and f"#{issue}" in line.text]


@pytest.mark.parametrize(("issue", "meet", "objects_met", "bad", "good"), CASES, ids=IDS)
def test_doctor_names_what_meets_a_fault_of_the_release(
    issue: int, meet: Callable[[list[Obj]], list[Obj]], objects_met: str, bad: str, good: str
) -> None:
    [line] = reported(meet(bed(bad, "cri-o://1.34.1")), bad, issue)
    assert line.code == "KubernetesKnownBad"
    assert f": {objects_met}" in line.text
    assert bad in line.text
    assert releases.numbered(issue).fixed_text in line.todo
    assert reported(meet(bed(good, "cri-o://1.34.1")), good, issue) == []


@pytest.mark.parametrize(("issue", "bad"), [(case[0], case[3]) for case in CASES], ids=IDS)
def test_doctor_is_content_where_nothing_meets_the_faults(issue: int, bad: str) -> None:
    held = claim("held", 0)
    lines = list(known_releases.lines(world([*bed(bad), held, running("train", held)], bad)))
    if issue == releases.ALLOCATES_TWICE:  # nothing shows that it will not happen
        assert [line.text.partition(": ")[2] for line in lines if line.state is CheckState.WRONG] == [
            f"{releases.numbered(issue).text}: no device has two claims now"
        ]
    else:
        assert [line.state for line in lines] == [CheckState.OK] * len(lines)
        assert any(f"#{issue}" in line.text for line in lines)


def test_containerd_takes_each_cdi_device_once() -> None:
    assert reported(several_claims(bed("v1.36.3")), "v1.36.3", releases.TWICE_THE_SAME_IDS) == []


def test_unknown_versions_have_no_known_faults() -> None:
    items = shared(bed(""))
    assert list(known_releases.lines(world(items, ""))) == []


def test_why_names_the_fault_that_concerns_the_pod() -> None:
    items = shared(bed("v1.36.4"))
    items += [claim("own", 9), running("alone", claim("own", 9))]
    for item in items:
        if item["kind"] == "Pod":
            item["status"] = {"phase": "Pending"}
    known = world(items, "v1.36.4")
    notes = {}
    for pod in known.snapshot.all("Pod"):
        notes[pod["metadata"]["name"]] = [note for note in why_pod.report(known, pod).notes if "#140212" in note]
    assert [len(notes[name]) for name in ("one", "two", "alone")] == [1, 1, 0]


def noted(items: list[Obj], version: str, issue: int) -> list[str]:
    """Return the pods of which `why` names a fault."""
    known = world(items, version)
    named = []
    for pod in known.snapshot.all("Pod"):
        if any(f"#{issue}" in note for note in why_pod.report(known, pod).notes):
            named.append(pod["metadata"]["name"])
    return named


def test_why_names_a_rule_that_taints_every_device() -> None:
    items = [*empty_rule(bed("v1.37.0")), small.template("one"), small.pod("waits", "one")]
    assert noted(items, "v1.37.0", releases.RULE_FOR_ALL) == ["waits"]
    assert noted(items, "v1.37.1", releases.RULE_FOR_ALL) == []


def test_why_names_the_fault_that_allocates_a_device_twice() -> None:
    first, second, own = claim("first", 3), claim("second", 3), claim("own", 4)
    items = [*bed("v1.34.3"), first, second, own]
    items += [running("one", first), running("two", second), running("alone", own)]
    for item in items:
        if item["kind"] == "ResourceClaim":
            name = {"first": "one", "second": "two", "own": "alone"}[item["metadata"]["name"]]
            item["status"]["reservedFor"] = [{"resource": "pods", "name": name, "uid": f"uid-{name}"}]
        if item["kind"] == "Pod":
            item["status"] = {"phase": "Pending"}
    assert noted(items, "v1.34.3", releases.ALLOCATES_TWICE) == ["one", "two"]


MANIFEST = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: data}
spec: {devices: {requests: [{name: neurons, exactly: {deviceClassName: CLASS}}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: REPLICAS
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: main, image: web, resources: {claims: [{name: neurons}]}}]
      resourceClaims: [{name: neurons, resourceClaimName: data}]
"""


@pytest.mark.parametrize(
    ("version", "replicas", "device_class", "warns"),
    [
        ("1.34", 2, "neuron.aws.com", True),
        ("1.36", 2, "neuron.aws.com", True),
        (None, 2, "neuron.aws.com", True),
        ("1.37", 2, "neuron.aws.com", False),
        ("1.36", 1, "neuron.aws.com", False),
        ("1.36", 2, "efa.networking.k8s.aws", True),
        ("1.36", 2, "gpu.example.com", False),
    ],
)
def test_validate_warns_about_a_claim_that_several_pods_share(
    version: str | None,
    replicas: int,
    device_class: str,
    warns: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(MANIFEST.replace("REPLICAS", str(replicas)).replace("CLASS", device_class))
    chosen = [] if version is None else ["--kubernetes", version]
    cli.main(["validate", *chosen, str(path)])
    shown = " ".join(capsys.readouterr().out.split())
    assert ("warning: 2 pods share the claim data" in shown) is warns
    assert ("put programs that share devices into one pod" in shown) is warns


@pytest.mark.parametrize(("version", "says"), [("1.34.3", True), ("1.34.4", False), ("1.34", False)])
def test_simulate_notes_the_faults_of_the_schedulers_release(
    version: str, says: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(MANIFEST.replace("REPLICAS", "1").replace("CLASS", "neuron.aws.com"))
    assert cli.main(["simulate", str(path), "--fleet", "1 x trn2.48xlarge", "--kubernetes", version]) == 0
    assert ("#136566" in capsys.readouterr().out) is says
