"""`status` of a fleet: what is wrong comes first, then the free capacity in groups, then the rest (34, 3)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from neuron_dra.ask.world import imagined
from neuron_dra.core.qualification import NAMESPACE
from neuron_dra.core.ultraserver import Phase, Tag
from neuron_dra.core.wire import Obj
from tests.support import reported_clusters as reported
from tests.support import shown_fleet
from tests.support import small_clusters as small
from tests.support.cluster_faults import all_of
from tests.support.questions import Answer, ask, snapshot


def links_down(items: Iterable[Obj], *servers: int) -> None:
    """Turn the links of these UltraServers off, on all their nodes."""
    for item in items:
        if item["kind"] != "ResourceSlice":
            continue
        number = int(item["spec"]["nodeName"].rpartition("-")[2]) // 4
        for device in item["spec"]["devices"] if number in servers else ():
            device["attributes"]["linkVertical"] = {"bool": False}


def groups(number: int, *broken: int, lacking: tuple[int, ...] = ()) -> list[Obj]:
    """UltraServers with idle nodes; `broken` have links down, and `lacking` have lost their last node."""
    items = imagined.fleet(f"{number} x ultraserver trn2u.48xlarge", "--fleet")
    for position, node in enumerate(all_of(items, "Node")):
        name, server = node["metadata"]["name"], position // 4
        for item in all_of(items, "ResourceSlice"):
            if item["spec"]["nodeName"] == name:
                for device in item["spec"]["devices"]:
                    values = {"ultraserverId": f"us-{server}", "linkVertical": True, "linkHorizontal": True}
                    for key, value in values.items():
                        device["attributes"][key] = {"string" if isinstance(value, str) else "bool": value}
                    device["attributes"]["ultraserverNodeId"] = {"int": position % 4}
    links_down(items, *broken)
    gone = [f"trn2u-{server * 4 + 3}" for server in lacking]
    return [each for each in items if not {each["metadata"]["name"], each.get("spec", {}).get("nodeName")} & {*gone}]


def servers(number: int, *down: int) -> list[Obj]:
    """The controller's objects of these UltraServers; those `down` have the condition LinkDown, and one node less."""
    found = []
    for server in range(number):
        names = [f"trn2u-{server * 4 + place}" for place in range(4)]
        wrong = {
            "type": "Degraded",
            "status": "True",
            "reason": "LinkDown",
            "message": "vertical link of trn2u is down",
        }
        found.append(
            {
                "apiVersion": "neuron.aws.com/v1beta1",
                "kind": "NeuronUltraServer",
                "metadata": {"name": f"us-{server}", "namespace": "neuron-dra-driver"},
                "spec": {"topology": [{"nodeName": name, "nodeId": place} for place, name in enumerate(names)]},
                "status": {"ultraserverId": f"us-{server}", "conditions": [wrong] if server in down else []},
            }
        )
    return found


def status(capsys: pytest.CaptureFixture[str], folder: Path, items: list[Obj], *words: str) -> Answer:
    return ask(capsys, "status", "--snapshot", snapshot(folder, items), *words)


def test_broken_ultraservers_come_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = (17, 33, 56, 78, 91)
    found = status(capsys, tmp_path, groups(100, *broken))
    screen = "\n".join(found.out.splitlines()[:24])
    assert [f"us-{each}" for each in broken if f"us-{each}" not in screen] == [], found.out
    assert screen.index("us-17") < screen.index("trn2u.48xlarge ")


def test_ultraserver_that_lacks_a_node_has_three_of_four(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = status(capsys, tmp_path, [*groups(3, lacking=(1,)), *servers(3)])
    assert "us-1" in "\n".join(found.out.splitlines()[:6]), found.out
    assert "3 of 4 nodes" in found.text
    assert "3 free; 3 of 4 nodes" in found.text


def test_node_with_a_sick_device_is_not_called_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = groups(1)
    for item in all_of(items, "ResourceSlice")[:1]:
        for device in item["spec"]["devices"]:
            device["taints"] = [{"key": "neuron.aws.com/unhealthy", "value": "hbm", "effect": "NoSchedule"}]
            device["attributes"]["unhealthy"] = {"string": "hbm"}
    found = json.loads(status(capsys, tmp_path, items, "-o", "json").out)
    states = [node["state"] for node in found["ultraServers"][0]["nodes"]]
    assert states == ["unhealthy: hbm", "free", "free", "free"]


def test_free_capacity_is_counted_in_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight devices are free on a fragmented node: none in fours; an idle one has four of them."""
    items = [*reported.fragmented(), small.node("b"), *small.slices("b")]
    found = status(capsys, tmp_path, items)
    lines = [line.split() for line in found.out.splitlines()]
    assert ["FREE", "OF", "4", "OF", "8", "OF", "16"] in [line[-7:] for line in lines], found.out
    assert next(line for line in lines if line[:1] == ["trn2.48xlarge"])[-3:] == ["4", "2", "1"]


def test_free_ultraservers_pairs_and_nodes_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = status(capsys, tmp_path, groups(3, lacking=(1,)))
    assert "2 UltraServers, 1 pair and 1 other node" in found.text, found.out


def test_one_free_ultraserver_is_written_as_a_person_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = status(capsys, tmp_path, groups(1))
    assert "1 UltraServer, 0 pairs and 0 other nodes are free" in found.text, found.out


def test_reserved_node_is_no_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = small.base("a", "b")
    slices = small.reserved([each for each in all_of(items, "ResourceSlice") if each["spec"]["nodeName"] == "a"], "job")
    kept = [each for each in items if (each.get("spec") or {}).get("nodeName") != "a"]
    found = status(capsys, tmp_path, [*kept, *slices])
    head = next(line for line in found.out.splitlines() if line.startswith("TYPE") and "NODES" in line)
    assert ("RESERVED" in head, "1 reserved" in found.text) == (True, False), found.out


def test_pods_that_wait_for_one_reason_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = reported.full()
    made = next(each for each in items if each["metadata"]["name"] == "wanted")
    for number in range(30):
        items += small.created(reported.waits(small.pod(f"p-{number}", "wanted")), made)
    found = status(capsys, tmp_path, items)
    assert "31 pods wait" in found.text, found.out
    assert found.text.count("too few free devices") == 1


def test_sets_read_as_devices(capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "simulate", "tests/data/reports/three-connected.yaml", "--fleet", "1 x inf2.48xlarge")
    assert ("devices 0-2" in found.text, "neuron-set" in found.text) == (True, False), found.out
    assert "3 of 12 devices are held" in found.text


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        ("text", ["NAMESPACE  HOLDS       PODS", "default    16 devices  1"]),
        ("csv", ["namespace,pod,node,devices,count,unit", "default,old,a,0-15,16,device"]),
    ],
)
def test_holders_are_listed_by_namespace_and_pod(
    form: str, lines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ask(capsys, "status", "holders", "--snapshot", snapshot(tmp_path, reported.full()), "-o", form)
    assert found.out.splitlines()[:2] == lines, found.text


def test_a_whole_node_is_no_single_device_of_its_holder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A node that is published as one device has sixteen: its holder comes before one of twelve."""
    file = snapshot(tmp_path, shown_fleet.mixed(3, 8))
    found = ask(capsys, "status", "holders", "--snapshot", file)
    lines = found.out.splitlines()
    assert lines[1] == "ml         24 devices, 1 node  3"
    assert lines[4].split(maxsplit=2) == ["ml/serve-2", "trn2u-9", "the whole node"]
    rows = ask(capsys, "status", "holders", "--snapshot", file, "-o", "csv").out.splitlines()
    assert rows[1] == "ml,serve-2,trn2u-9,neuron-node-0,1,node"
    manifest = tmp_path / "none.json"
    manifest.write_text(json.dumps({"kind": "List", "items": [small.pod("more", "whole", namespace="ml")]}))
    summary = ask(capsys, "simulate", str(manifest), "--snapshot", file).text
    assert "1 of 1 pods run; 40 of 128 devices and 1 of 12 nodes are held" in summary


@pytest.mark.parametrize("with_objects", [True, False])
def test_ultraserver_is_found_by_the_id_that_status_prints(
    with_objects: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its object is in the driver's namespace, and a cluster without the controller has none."""
    items = shown_fleet.mixed(4, 0)
    if not with_objects:
        items = [each for each in items if each["kind"] != "NeuronUltraServer"]
    file = snapshot(tmp_path, items)
    found = ask(capsys, "why", "nus/trn2u-ultraserver-3", "--snapshot", file)
    assert (found.code, "vertical links down" in found.first) == (1, True), found.text
    assert "0: trn2u-12, vertical link down" in found.text
    every = ask(capsys, "why", "nus", "--snapshot", file)
    assert (every.code, "vertical links down" in every.first) == (1, True), every.text
    assert ask(capsys, "why", "nus/trn2u-ultraserver-0", "--snapshot", file).code == 0


def test_a_reserved_node_is_no_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = snapshot(tmp_path, shown_fleet.mixed(2, 0))
    found = ask(capsys, "why", "node/trn2u-4", "--snapshot", file)
    assert (found.code, "reserved for workload ml/llm-1 (Bound)" in found.first) == (0, True), found.text
    assert ask(capsys, "why", "nodes", "--snapshot", file).code == 0


def test_ultraserver_with_a_link_down_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = snapshot(tmp_path, [*groups(2, 1), *servers(2, 1)])
    found = ask(capsys, "why", "nus/us-1", "-n", "neuron-dra-driver", "--snapshot", file)
    assert (found.code, "vertical link" in found.first) == (1, True), found.text


def test_node_of_an_ultraserver_with_a_link_down_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = snapshot(tmp_path, [*groups(2, 1), *servers(2, 1)])
    found = ask(capsys, "why", "node/trn2u-4", "--snapshot", file)
    assert (found.code, "link" in found.first) == (1, True), found.text


def test_doctor_names_ultraservers_with_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = snapshot(tmp_path, [*groups(2, 1), *servers(2, 1)])
    found = ask(capsys, "doctor", "--snapshot", file)
    assert "UltraServer us-1: vertical link" in found.text, found.out
    command = "neuron-dra why nus/us-1 -n neuron-dra-driver"
    assert command in found.text
    assert ask(capsys, *command.split()[1:], "--snapshot", file).code == 1  # the command that doctor names explains it


def test_doctor_names_a_command_that_works_without_the_controllers_objects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = snapshot(tmp_path, groups(2, 1))
    assert "neuron-dra topology us-1" in ask(capsys, "doctor", "--snapshot", file).text
    assert ask(capsys, "topology", "us-1", "--snapshot", file).code == 0


def test_node_that_an_agent_reports_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """36, number 1."""
    items = groups(2)
    said = {"type": "NeuronHealth", "status": "True", "reason": "NeuronHasError_DMA_ERROR", "message": "nd3\x1b[31m"}
    for node in all_of(items, "Node"):
        if node["metadata"]["name"] == "trn2u-4":
            node["status"]["conditions"] = [{"type": "Ready", "status": "True"}, said]
    file = snapshot(tmp_path, items)
    assert "an agent reports NeuronHealth" in ask(capsys, "status", "--snapshot", file).text
    found = ask(capsys, "why", "node/trn2u-4", "--snapshot", file)
    assert (found.code, "NeuronHealth is True, NeuronHasError_DMA_ERROR: nd3 [31m" in found.text) == (1, True), (
        found.text
    )


def test_ultraserver_that_an_agent_reports_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """36, number 1."""
    own = servers(2, 1)
    degraded = [each for item in own for each in item["status"]["conditions"] if each["type"] == "Degraded"]
    for each in degraded:
        each.update(
            reason="NodeUnhealthy", message="nodes that agents report as unhealthy: trn2u-4 (NeuronHealth is True)"
        )
    file = snapshot(tmp_path, [*groups(2), *own])
    found = ask(capsys, "why", "nus/us-1", "-n", "neuron-dra-driver", "--snapshot", file)
    assert (found.code, "NeuronHealth is True" in found.text) == (1, True), found.text


def test_status_and_why_say_who_would_have_to_move(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """36, number 5."""
    advice = "short of 4 nodes; there would be room if 1 workload moved: ml/pair, from u0-0, u0-1; nobody is moved"
    ready = {"type": "Ready", "status": "False", "reason": "CapacitySplit", "message": advice}
    big: Obj = {
        "apiVersion": "neuron.aws.com/v1beta1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {"name": "big", "namespace": "ml", "uid": "1"},
        "spec": {"instanceType": "trn2u.48xlarge", "topologySize": 4, "serverCount": 1},
        "status": {"state": "Pending", "conditions": [ready]},
    }
    file = snapshot(tmp_path, [*groups(2), big])
    said = "ml/big is Pending: CapacitySplit: short of 4 nodes; there would be room if 1 workload moved: ml/pair"
    assert said in ask(capsys, "status", "--snapshot", file).text
    assert said not in ask(capsys, "status", "-n", "other", "--snapshot", file).text
    found = json.loads(ask(capsys, "status", "--snapshot", file, "-o", "json").out)
    assert [each["message"] for each in found["workloads"]] == [advice]
    assert "moved: ml/pair" in ask(capsys, "why", "workload/big", "-n", "ml", "--snapshot", file).text


def test_spares_are_shown_and_no_new_workload_gets_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """36, number 3."""
    own = servers(2)
    own[1]["status"]["conditions"] = [{"type": "Spare", "status": "True", "reason": "KeptFree", "message": "kept"}]
    own[1]["spec"]["instanceType"] = "trn2u.48xlarge"
    file = snapshot(tmp_path, [*groups(2), *own])
    assert "us-1 trn2u.48xlarge 4 spare" in ask(capsys, "status", "--snapshot", file).text
    assert ask(capsys, "topology", "--snapshot", file).out.count("spare\n") == 4
    found = ask(capsys, "why", "nus/us-1", "-n", "neuron-dra-driver", "--snapshot", file)
    assert (found.code, "a spare, which only groups that must move may take" in found.text) == (0, True), found.text
    manifest = tmp_path / "job.yaml"
    manifest.write_text(
        "apiVersion: neuron.aws.com/v1beta1\nkind: NeuronUltraServerWorkload\nmetadata: {name: job}\n"
        "spec: {instanceType: trn2u.48xlarge, topologySize: 4, serverCount: 2}\n---\n"
        "apiVersion: v1\nkind: Pod\nmetadata: {name: rank-0}\n"
        "spec: {resourceClaims: [{name: a, resourceClaimTemplateName: job}], "
        "containers: [{name: a, image: a, resources: {claims: [{name: a}]}}]}\n"
    )
    said = ask(capsys, "simulate", "-f", str(manifest), "--snapshot", file).text
    assert "needs 2 x 4 trn2u.48xlarge nodes; 1 of 2 groups of 4 are free: short of 4 nodes" in said
    assert "settings of the UltraServer controller: spares 1 x trn2u.48xlarge, else the defaults" in said


def result_of(server: int, verdict: str = "Passed", **more: object) -> Obj:
    """The result of a test of a whole UltraServer."""
    moment = "2026-11-26T08:00:00Z"
    found: Obj = {"qualification": "all-reduce", "nodes": [f"trn2u-{server * 4 + place}" for place in range(4)]}
    found |= {"nodeUids": ["", "", "", ""], "generation": 1, "verdict": verdict, "testedAt": moment, "figures": {}}
    return {**found, **({"passedAt": moment} if verdict == "Passed" else {}), **more}


TAG = Tag(NAMESPACE, "all-reduce-1f", "5c6ee8a0-0e54-4c3a-9d3e-0a4f7d5d9a11", "7f" * 16, Phase.BOUND)


def with_results() -> list[Obj]:
    """Four UltraServers: one passed, one failed twice, one was never tested, and one is in a test."""
    own = servers(4)
    own[0]["status"]["qualifications"] = [result_of(0)]
    text = "bandwidth 129.5 is below 140"
    own[1]["status"]["qualifications"] = [result_of(1, "Failed", unqualified=True, message=text)]
    items = groups(4)
    for item in all_of(items, "ResourceSlice"):
        if item["spec"]["nodeName"] in {f"trn2u-{12 + place}" for place in range(4)}:
            for device in item["spec"]["devices"]:
                device["attributes"] |= {name: {"string": text} for name, text in TAG.texts().items()}
    return [*items, *own]


def test_status_has_what_tests_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """36, number 2."""
    items = with_results()
    said = status(capsys, tmp_path, items).text
    assert "us-0 trn2u.48xlarge 4 free; passed all-reduce at 2026-11-26T08:00:00Z" in said
    failed = "failed all-reduce twice at 2026-11-26T08:00:00Z on trn2u-4, trn2u-5, trn2u-6, trn2u-7: bandwidth 129.5"
    assert failed in said
    assert "us-2 trn2u.48xlarge 4 free" in said
    assert "us-3 trn2u.48xlarge 4 in a test" in said
    found = json.loads(status(capsys, tmp_path, items, "-o", "json").out)
    shown = [[(each["verdict"], each["unqualified"]) for each in server["tests"]] for server in found["ultraServers"]]
    assert shown == [[("Passed", False)], [("Failed", True)], [], []]


def test_result_of_another_instance_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """36, number 2."""
    items = with_results()
    for node in all_of(items, "Node"):
        node["metadata"]["uid"] = f"uid of {node['metadata']['name']}"
    assert "all-reduce" not in status(capsys, tmp_path, items).text


def test_reservation_of_a_test_is_nobodys_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """36, number 2."""
    ready = {"type": "Ready", "status": "False", "reason": "WaitingForNodes", "message": "waiting"}
    test = {
        "apiVersion": "neuron.aws.com/v1beta1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {"name": "all-reduce-1f", "namespace": "neuron-qualification"},
        "spec": {"instanceType": "trn2u.48xlarge", "topologySize": 4, "serverCount": 1},
        "status": {"state": "Allocating", "conditions": [ready]},
    }
    file = snapshot(tmp_path, [*with_results(), test])
    assert "all-reduce-1f" not in ask(capsys, "status", "--snapshot", file).text
    assert "all-reduce-1f" in ask(capsys, "status", "-n", "neuron-qualification", "--snapshot", file).text
    said = ask(capsys, "why", "nus/us-3", "-n", "neuron-dra-driver", "--snapshot", file)
    assert "in a test, which ends for a workload that needs the nodes" in said.text
    assert said.code == 0


def test_why_names_the_groups_that_lack_a_recent_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """36, number 2."""
    items = with_results()
    for server in all_of(items, "NeuronUltraServer"):
        server["spec"]["instanceType"] = "trn2u.48xlarge"
    ready = {"type": "Ready", "status": "False", "reason": "NotQualified", "message": "1 of 2 groups are fresh"}
    sure = {
        "apiVersion": "neuron.aws.com/v1beta1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {"name": "sure", "namespace": "ml"},
        "spec": {
            "instanceType": "trn2u.48xlarge",
            "topologySize": 4,
            "serverCount": 2,
            "qualification": {"maxAge": "24h"},
        },
        "status": {"state": "Pending", "conditions": [ready]},
    }
    file = snapshot(tmp_path, [*items, sure])
    found = json.loads(ask(capsys, "why", "workload/sure", "-n", "ml", "--snapshot", file, "-o", "json").out)
    [cause] = found["causes"]
    tests = [fact["text"] for fact in cause["facts"] if fact["name"] == "test"]
    assert [text.partition(" at ")[0] for text in tests] == [
        "us-1: failed all-reduce twice",
        "us-2: not tested",
        "us-3: not tested",
        "us-0: passed all-reduce",
    ]
    assert any("all 4 nodes: in a test" in fact["text"] for fact in cause["facts"])


def test_limit_of_a_missing_class_waits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pods = []
    for name, resource in (("typo", "deviceclass.resource.kubernetes.io/conected-4.neuron.aws.com"), ("cpu", "cpu")):
        pod = small.pod(name)
        pod["spec"]["containers"][0]["resources"] = {"limits": {resource: "1"}}
        pods.append(pod)
    found = ask(capsys, "status", "--snapshot", snapshot(tmp_path, [*small.base("a"), *pods]))
    assert "WAITING (1 pod) default/typo: request" in found.text
    assert "names the DeviceClass conected-4.neuron.aws.com, which does not exist" in found.text
