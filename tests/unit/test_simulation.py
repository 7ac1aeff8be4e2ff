"""`simulate`: what pods get on fleets that do not exist (17.4)."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from neuron_dra import cli
from neuron_dra.ask.read import manifests, snapshot
from neuron_dra.ask.simulate import simulation
from neuron_dra.ask.world import fleet, imagined, placing
from neuron_dra.ask.world.world import World
from neuron_dra.core import catalogue
from neuron_dra.core.wire import Obj
from neuron_dra.errors import SettingsError
from neuron_dra.simulate.scheduler import Placement
from tests.support import fast_yaml
from tests.support import small_clusters as small

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "examples"
ROW = "device.attributes['neuron.aws.com'].topology_x"
GROUP = "resource.aws.com/devicegroup4_id"


def world(text: str, *more: Obj) -> World:
    return World(snapshot.build([*imagined.fleet(text, "test"), *more]))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(["simulate", *words])
    done = capsys.readouterr()
    return code, done.out, done.err


def controller(kind: str, spec: Obj) -> Obj:
    template = {"spec": {"containers": [{"name": "c"}], "resourceClaims": []}}
    return {
        "kind": kind,
        "metadata": {"name": "x"},
        "spec": json.loads(json.dumps(spec).replace('"POD"', json.dumps(template))),
    }


@pytest.mark.parametrize(
    ("item", "names"),
    [
        (controller("Deployment", {"template": "POD"}), ["x-0"]),
        (controller("StatefulSet", {"replicas": 3, "template": "POD"}), ["x-0", "x-1", "x-2"]),
        (controller("Deployment", {"replicas": 0, "template": "POD"}), []),
        (controller("Job", {"parallelism": 4, "completions": 2, "template": "POD"}), ["x-0", "x-1"]),
        (
            controller(
                "LeaderWorkerSet", {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": "POD"}}
            ),
            ["x-0", "x-0-1", "x-1", "x-1-1"],
        ),
        (
            controller(
                "JobSet",
                {
                    "replicatedJobs": [
                        {"name": "a", "replicas": 2, "template": {"spec": {"parallelism": 2, "template": "POD"}}},
                        {"name": "b", "template": {"spec": {"template": "POD"}}},
                    ]
                },
            ),
            ["x-a-0-0", "x-a-0-1", "x-a-1-0", "x-a-1-1", "x-b-0-0"],
        ),
    ],
)
def test_controllers_become_pods(item: Obj, names: list[str]) -> None:
    found = manifests.expand([item], "ml")
    assert [pod["metadata"]["name"] for pod in found.pods] == names
    assert {pod["metadata"]["namespace"] for pod in found.pods} <= {"ml"}


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"kind": "Pod", "metadata": {"name": "p"}}, "Pod p: it has no pod spec"),
        (controller("Deployment", {"replicas": "3", "template": "POD"}), "'3' is no number of pods"),
        (controller("Job", {}), "Job x: it has no pod template"),
        (controller("JobSet", {"replicatedJobs": [1]}), "JobSet x: 1 is no replicated job"),
        (controller("Deployment", {"replicas": 10**6, "template": "POD"}), "more than 100000 pods"),
    ],
)
def test_malformed_manifests_are_named(item: Obj, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        manifests.expand([item], "default")


def test_what_is_not_simulated_is_said() -> None:
    items = [{"kind": kind, "metadata": {"name": "x"}} for kind in ("PodTemplate", "Service")]
    assert manifests.expand(items, "default").notes == [
        "not counted: PodTemplate x, which has a pod template",
        "not relevant here: 1 Service",
    ]


@pytest.mark.parametrize("kind", [each.name for each in catalogue.all_types()])
def test_every_type_can_be_imagined(kind: str) -> None:
    spec = catalogue.lookup(kind)
    assert spec is not None
    views = fleet.nodes(world(f"2 x {kind}"))
    assert [view.type for view in views] == [kind, kind]
    assert {view.free for view in views} == {1 if spec.whole_node else spec.device_count}
    if spec.whole_node:
        made = fleet.nodes(world(f"2 x ultraserver {kind}"))
        groups = fleet.ultraservers(made)
        assert [[view.position for view in group] for group in groups.values()] == [[0, 1, 2, 3]] * 2
        assert all(view.vertical and view.horizontal for view in made)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it names no nodes"),
        ("ten trn2.48xlarge", "write 10 x trn2.48xlarge"),
        ("1 x trn2.48xlage", "unknown; did you mean trn2.48xlarge"),
        ("1 x ultraserver trn2.48xlarge", "forms no UltraServers"),
        ("999999 x trn2.48xlarge", "more than 20000 nodes"),
        ("1 x ultraserver node", "node forms no UltraServers"),
        ("9" * 5000 + " x trn2.48xlarge", "write 10 x trn2.48xlarge"),
        ("1 x trn2.48xlarge pool", "'pool': write 10 x trn2.48xlarge"),
        ("1 x trn2.48xlarge pool=a:Never", "'pool=a:Never': write 10 x trn2.48xlarge"),
    ],
)
def test_wrong_fleets_are_named(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        imagined.fleet(text, "--fleet f")


def test_a_fleet_s_nodes_have_labels_and_taints() -> None:
    items = imagined.fleet("1 x inf2.xlarge pool=a a.b/neuron=true:NoSchedule, 2 x node pool=b", "test")
    nodes = [item for item in items if item["kind"] == "Node"]
    assert [node["metadata"]["name"] for node in nodes] == ["inf2-0", "node-0", "node-1"]
    assert [node["metadata"]["labels"]["pool"] for node in nodes] == ["a", "b", "b"]
    assert nodes[0]["spec"] == {"taints": [{"key": "a.b/neuron", "value": "true", "effect": "NoSchedule"}]}
    assert {item["spec"]["nodeName"] for item in items if item["kind"] == "ResourceSlice"} == {"inf2-0"}


def plugin_pod(folder: Path, **spec: Any) -> Path:
    """Write a pod for the device plugin, and return its file."""
    file = folder / "pod.yaml"
    limits = {"limits": {"aws.amazon.com/neuron": 4}}
    item = small.pod("p", **{"containers": [{"name": "c", "resources": limits}], **spec})
    file.write_text(json.dumps(item))
    return file


def test_migrated_limits_get_connected_sets_on_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`migrate` and `simulate` work together without a cluster."""
    file = plugin_pod(tmp_path, schedulerName="my-scheduler")
    assert cli.main(["migrate", "--in-place", str(file)]) == 0
    code, out, _ = run(capsys, str(file), "--fleet", "1 x trn1.32xlarge")
    assert (code, "devices 0-3" in out) == (0, True), out
    code, out, _ = run(capsys, str(file), "--fleet", "1 x trn1.32xlarge", "--kubernetes", "1.34")
    assert (code, "connected-4.neuron.aws.com, which does not exist" in out.replace("\n  ", " ")) == (1, True), out


def test_claims_get_the_connected_sets_that_their_class_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in docs/connected-sets.md: a pod may name the class in a claim, too."""
    four = small.template("four", 1)
    four["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "connected-4.neuron.aws.com"
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump_all([four, small.pod("p", "four")]))
    code, out, _ = run(capsys, str(file), "--fleet", "1 x trn1.32xlarge")
    assert (code, "devices 0-3" in out) == (0, True), out


def test_a_long_fleet_is_no_file_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pod = tmp_path / "pod.yaml"
    pod.write_text(json.dumps(small.pod("p", containers=[{"name": "c"}])))
    code, out, err = run(capsys, str(pod), "--fleet", ", ".join(["1 x node a.b/pool=c"] * 20))
    assert (code, err) == (0, ""), out


def test_wrong_containers_are_named_on_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(json.dumps(small.pod("p", containers=["c"])))
    code, _, err = run(capsys, str(file), "--fleet", "1 x node")
    assert (code, "spec.containers[0]" in err) == (2, True), err


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "it requests aws.amazon.com/neuron, which no node offers"),
        ({"schedulerName": "my-scheduler", "containers": [{"name": "c"}]}, "my-scheduler"),
    ],
)
def test_pods_for_the_extension_wait_on_a_fleet(
    spec: Obj, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, str(plugin_pod(tmp_path, **spec)), "--fleet", "1 x trn1.32xlarge")
    assert code == 1
    assert words in " ".join(out.split())


def test_classes_of_sets_are_those_of_the_chart() -> None:
    path = EXAMPLES.parent / "manifests/connected-sets/20-deviceclasses.yaml"
    chart = {each["metadata"]["name"]: each["spec"] for each in fast_yaml.load_all(path.read_text())}
    sizes = [name.removesuffix(".neuron.aws.com") for name in chart if name.startswith(("connected-", "cores-"))]
    for item in imagined.fleet("1 x inf2.xlarge", "test", sizes):
        if item["kind"] == "DeviceClass" and item["metadata"]["name"].startswith(("connected-", "cores-")):
            [found], [wanted] = item["spec"]["selectors"], chart.pop(item["metadata"]["name"])["selectors"]
            assert found["cel"]["expression"].split() == wanted["cel"]["expression"].split()
    assert set(chart) == {"neuron.aws.com", "workload.neuron.aws.com"}


@pytest.mark.parametrize("seed", range(12))
def test_equal_demands_get_what_the_whole_simulation_gives(seed: int) -> None:
    """Pods with equal demands skip nodes that have failed; this changes nothing."""
    rng = random.Random(seed)
    templates = [
        small.template("four", 4, group=GROUP),
        small.template("one", 1),
        small.template("ten", 10),
        small.template("row", 4, cel=f"has({ROW}) && {ROW} == 1"),
        small.template("seventeen", 17),
    ]
    names = [each["metadata"]["name"] for each in templates]
    pods = [small.pod(f"p{number}", rng.choice(names), cpu=rng.choice(["1", "60"])) for number in range(30)]
    start = world("3 x trn2.48xlarge, 1 x inf2.48xlarge", *templates)
    outcomes = simulation.Simulation(start).run(pods)
    here = start
    for pod, outcome in zip(pods, outcomes, strict=True):
        slow: Any = here.place(pod)
        if isinstance(slow, Placement):
            assert outcome.placement == slow
            here = here.after(placing.placed_objects(here, pod, slow))
        else:
            assert outcome.placement is None
            assert outcome.finding is not None


def test_pods_share_a_named_claim() -> None:
    claim = {**small.created(small.pod("x", "t"), small.template("t", 2))[1]}
    claim["metadata"] = {"name": "shared", "namespace": "default"}
    pods = [small.pod("a"), small.pod("b")]
    for pod in pods:
        pod["spec"]["resourceClaims"] = [{"name": "n", "resourceClaimName": "shared"}]
    trial = simulation.Simulation(world("2 x trn2.48xlarge", claim))
    outcomes = trial.run(pods)
    assert [each.runs for each in outcomes] == [True, True]
    assert {each.placement.node for each in outcomes if each.placement} == {"trn2-0"}
    assert simulation.held(trial.world) == {"device": (2, 32)}


def test_driver_rejections_are_predicted() -> None:
    """A template with a core size that the type does not have is allocated, and then rejected on the node."""
    made = small.template("lnc", 1)
    parameters = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": 2}
    made["spec"]["spec"]["devices"]["config"] = [{"opaque": {"driver": "neuron.aws.com", "parameters": parameters}}]
    found = simulation.Simulation(world("1 x trn1.32xlarge", made)).run([small.pod("p", "lnc")])[0]
    assert (found.runs, found.placement is not None) == (False, True)
    assert found.rejected.startswith(
        "error applying config: LNC value is not configurable for instance type trn1.32xlarge"
    )


FAILING = {
    "aligned-cpu-neuron.yaml",  # needs devices of a CPU driver
    "2.26-driver-trn2.yaml",  # needs an older kernel driver
    "neuron-with-driver-version.yaml",
    "neuron-lnc-1.yaml",  # shows how the driver rejects a core size that the type does not have
}


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_examples_run_on_the_fleet_that_they_are_for(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = "2 x trn2.48xlarge, 1 x trn1.2xlarge, 2 x ultraserver trn2u.48xlarge, 2 x ultraserver trn3.48xlarge"
    code, out, err = run(capsys, str(file), "--fleet", kinds)
    assert err == ""
    assert code == (1 if file.name in FAILING else 0), out


def test_exit_codes_and_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps({"kind": "List", "items": [small.template("t", 17), small.pod("p", "t")]}))
    fleet_file = tmp_path / "fleet.txt"
    fleet_file.write_text("# a small one\n2 x trn2.48xlarge\n")
    code, out, _ = run(capsys, str(file), "--fleet", str(fleet_file))
    assert code == 1
    assert "1 pod cannot run: request neurons wants 17 devices of one node" in out
    code, out, _ = run(capsys, str(file), "--fleet", str(fleet_file), "-o", "json")
    assert (code, json.loads(out)["items"][0]["cause"]["code"]) == (1, "CountTooLarge")
    assert run(capsys, str(file), "--fleet", "missing.txt")[0] == 2
    assert run(capsys, str(file), "--fleet", "2 x trn2.48xlarge", "--snapshot", "x")[0] == 2
