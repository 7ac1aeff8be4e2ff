"""`neuron-dra doctor`: what it finds in a cluster, from outside (17.7)."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hack.generate import crd_fields as crd_fields_program
from neuron_dra.ask.doctor import crd_fields, installed, lines, nodes, text
from neuron_dra.ask.doctor.lines import CheckState, Line
from neuron_dra.ask.doctor.seen import BINDINGS, CRDS, KINDS, LEASE, LEASES, POLICIES, Seen
from neuron_dra.ask.read.snapshot import NOT_SERVED, DamagedObject
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from tests.support import small_clusters as small
from tests.support.installations import DRIVER, NOW, POLICY_FILES, ROOT, crds, driver, healthy, lease, manifests, the


def seen(items: Sequence[Obj], **more: Any) -> Seen:
    objects = {kind: [item for item in items if item["kind"] == kind] for kind in KINDS}
    return Seen(small.cluster(items), objects, version="v1.37.0", now=NOW, **more)


def checked(found: Seen, only: str = "") -> list[Line]:
    return [*installed.lines(found), *nodes.lines(World(found.snapshot, proposes=False), only)]


def codes(found: Seen, only: str = "") -> list[str]:
    """The codes of all lines that are not ok."""
    return [each.code for each in checked(found, only) if each.state is not CheckState.OK]


def test_healthy_cluster_is_ok() -> None:
    found = checked(seen(healthy()))
    assert [each for each in found if each.state is not CheckState.OK] == []
    assert lines.exit_code(found) == 0
    assert {each.area for each in found} >= {"Kubernetes", "class", "CRD", "policy", "controller", "lease", "driver"}
    assert text.screen(found)[-1] == "nothing is wrong"


def test_driver_alone_needs_no_controller() -> None:
    items = [*small.base("a"), driver("a"), *manifests(*DRIVER)]
    assert codes(seen(items)) == []


Break = Callable[[list[Obj]], object]


def without(kind: str, name: str) -> Break:
    return lambda items: items.remove(the(items, kind, name))


def changed(kind: str, name: str, change: Callable[[Obj], object]) -> Break:
    return lambda items: change(the(items, kind, name))


def lose_field(crd: Obj) -> None:
    for version in crd["spec"]["versions"]:
        schema = version["schema"] = copy.deepcopy(version["schema"])
        del schema["openAPIV3Schema"]["properties"]["status"]["properties"]["supportedSizes"]


def rename(item: Obj) -> None:
    item["metadata"]["name"] = "neuron-slice-a"


REPORTED = {"type": "AcceleratedHardwareReady", "status": "False", "reason": "NeuronDMAError", "message": "nd3"}
NUS = "neuronultraservers.neuron.aws.com"
BROKEN: dict[str, tuple[Break, list[str], str]] = {
    "class gone": (without("DeviceClass", "neuron.aws.com"), ["ClassMissing"], "DeviceClass neuron.aws.com does not"),
    "class of AWS's driver": (
        changed(
            "DeviceClass",
            "neuron.aws.com",
            lambda item: item["spec"].update(selectors=[{"cel": {"expression": "device.driver == 'neuron.aws.com'"}}]),
        ),
        ["ClassEdited"],
        "is not that of this release: device.driver == 'neuron.aws.com'",
    ),
    "class with configuration": (
        changed("DeviceClass", "neuron.aws.com", lambda item: item["spec"].update(config=[{"opaque": {}}])),
        ["ClassEdited"],
        "has configuration",
    ),
    "CRD gone": (without(CRDS, NUS), ["CrdMissing"], f"{NUS} does not exist"),
    "CRD drops a field": (changed(CRDS, NUS, lose_field), ["CrdOutdated"], "drops status.supportedSizes"),
    "CRD of one version": (
        changed(CRDS, NUS, lambda item: item["spec"]["versions"].pop()),
        ["CrdOutdated"],
        "does not serve v1",
    ),
    "policy gone": (
        without(POLICIES, "neuron-dra-driver-reserved-pods"),
        ["PolicyMissing"],
        "missing: neuron-dra-driver-reserved-pods",
    ),
    "policy only audits": (
        changed(
            BINDINGS,
            "neuron-dra-driver-own-resourceslices",
            lambda item: item["spec"].update(validationActions=["Audit"]),
        ),
        ["PolicyNotBound"],
        "puts into force: neuron-dra-driver-own-resourceslices",
    ),
    "controller not ready": (
        changed("Pod", "controller-1", lambda item: item["status"].update(conditions=[])),
        ["ControllerNotReady"],
        "such as neuron-dra-driver/controller-1",
    ),
    "lease old": (
        changed(LEASES, LEASE, lambda item: item.update(lease(600))),
        ["LeaseOld"],
        "renewed it 600 s ago",
    ),
    "lease of the future": (changed(LEASES, LEASE, lambda i: i.update(lease(-600))), ["ClockWrong"], "in the future"),
    "lease free": (changed(LEASES, LEASE, lambda i: i.update(lease(1, ""))), ["LeaseFree"], "no replica"),
    "driver not ready": (
        changed("Pod", "driver-a", lambda item: item["status"].update(conditions=[])),
        ["DriverNotReady"],
        "1 of 2 pods not Ready, such as neuron-dra-driver/driver-a",
    ),
    "driver of another version": (
        changed("Pod", "driver-b", lambda item: item["spec"]["containers"][0].update(image="neuron-dra-driver:0.0.9")),
        ["DriverVersions"],
        "1 x neuron-dra-driver:0.0.9, 1 x neuron-dra-driver:0.1.0",
    ),
    "driver gone from a node": (without("Pod", "driver-b"), ["DriverMissing"], "node b: it has ResourceSlices"),
    "no slices": (
        lambda items: items.remove(next(i for i in items if i["kind"] == "ResourceSlice")),
        ["NoDevicesPublished"],
        "node a: the driver publishes no devices of this trn2.48xlarge",
    ),
    "slice by another program": (
        lambda items: rename(next(i for i in items if i["kind"] == "ResourceSlice")),
        ["ForeignSlice"],
        "1 ResourceSlice of driver neuron.aws.com by another program: neuron-slice-a",
    ),
    "device plugin": (
        changed("Node", "a", lambda item: item["status"]["allocatable"].update({"aws.amazon.com/neuron": "16"})),
        ["DevicePluginAlive"],
        "node a: a Neuron device plugin offers aws.amazon.com/neuron",
    ),
    "an agent reports a node": (
        changed("Node", "a", lambda item: item["status"].update(conditions=[REPORTED])),
        ["NodeUnhealthy"],
        "node a: an agent reports a fault of the node: AcceleratedHardwareReady is False, NeuronDMAError: nd3",
    ),
    "old kubelet": (
        changed("Node", "b", lambda item: item["status"].update(nodeInfo={"kubeletVersion": "v1.31.2"})),
        ["KubeletTooOld"],
        "node b: kubelet v1.31.2 is too old",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_fault_is_found_alone(name: str) -> None:
    breaks, wanted, words = BROKEN[name]
    items = healthy()
    breaks(items)
    found = [each for each in checked(seen(items)) if each.state is not CheckState.OK]
    assert [each.code for each in found] == wanted
    assert words in found[0].text
    assert found[0].todo
    assert lines.exit_code(found) == 1


def test_driver_that_is_not_installed_is_one_finding() -> None:
    """Its nodes are not named beside it, one by one."""
    items = [item for item in healthy() if "driver-" not in item["metadata"]["name"] or item["kind"] != "Pod"]
    assert codes(seen(items)) == ["DriverNotInstalled"]


def test_workloads_without_a_controller_are_wrong() -> None:
    workload = {"kind": "NeuronUltraServerWorkload", "metadata": {"name": "job", "namespace": "ml"}, "spec": {}}
    items = [*small.base("a"), driver("a"), *manifests(*DRIVER), *crds(), workload]
    assert codes(seen(items)) == ["ControllerMissing"]


@pytest.mark.parametrize(
    ("version", "code"), [("v1.33.4", "KubernetesTooOld"), ("v1.34.2-eks-1", ""), ("v1.39.0", "Unknown")]
)
def test_version_of_the_api_server(version: str, code: str) -> None:
    assert codes(dataclasses.replace(seen(healthy()), version=version)) == ([code] if code else [])


def test_what_could_not_be_read_is_unknown() -> None:
    """A kind that is forbidden hides its objects: none of them counts as missing, and nothing as ok."""
    kinds = ("DeviceClass", "Node", "Pod", "ResourceSlice", "NeuronUltraServerWorkload")
    snapshot = dataclasses.replace(small.cluster([]), left_out=dict.fromkeys(kinds, "forbidden"))
    found = checked(Seen(snapshot, unread=dict.fromkeys(KINDS, "forbidden"), why_no_version="timeout"))
    assert {each.state for each in found} == {CheckState.UNKNOWN}
    assert lines.exit_code(found) == 1
    assert text.screen(found)[-1].startswith("nothing is wrong, ")


def test_pods_that_were_not_all_read_hide_no_driver() -> None:
    items = [item for item in healthy() if item["kind"] != "Pod"]
    found = seen(items)
    partly = dataclasses.replace(found.snapshot, left_out={"Pod": "only namespace default, the others are forbidden"})
    assert set(codes(dataclasses.replace(found, snapshot=partly))) == {"Unknown"}


def test_what_the_controller_needs_is_unknown_without_pods() -> None:
    items = [*small.base("a"), *manifests(*DRIVER)]
    found = seen(items)
    partly = dataclasses.replace(found.snapshot, left_out={"Pod": "forbidden"})
    states = {each.area: each.state for each in installed.lines(dataclasses.replace(found, snapshot=partly))}
    assert {states[area] for area in ("CRD", "policy", "controller")} == {CheckState.UNKNOWN}


def test_missing_slices_are_unknown_if_slices_were_not_read() -> None:
    items = [item for item in healthy() if item["kind"] != "ResourceSlice"]
    found = seen(items)
    dark = dataclasses.replace(found.snapshot, left_out={"ResourceSlice": "forbidden"})
    assert set(codes(dataclasses.replace(found, snapshot=dark))) == {"Unknown"}


def test_kinds_that_a_cluster_lacks_are_not_unknown() -> None:
    items = [*small.base("a"), driver("a"), *manifests(*DRIVER)]
    found = seen(items)
    older = dataclasses.replace(found.snapshot, left_out={"NeuronUltraServerWorkload": NOT_SERVED})
    assert codes(dataclasses.replace(found, snapshot=older)) == []


def test_one_node_has_its_own_lines_only() -> None:
    items = healthy()
    items.remove(the(items, "Pod", "driver-b"))
    world = World(seen(items).snapshot, proposes=False)
    assert [each.code for each in nodes.lines(world, "a") if each.state is not CheckState.OK] == []
    assert [each.code for each in nodes.lines(world, "b") if each.state is not CheckState.OK] == ["DriverMissing"]


def test_nodes_with_the_same_finding_share_a_line() -> None:
    items = [item for item in small.base(*"abcdefg") if item["kind"] != "ResourceSlice"]
    [line] = [each for each in checked(seen(items)) if each.code == "NoDevicesPublished"]
    assert line.text.startswith("node a (and 6 more: b, c, d, e and 2 more): ")


def test_text_of_others_cannot_control_the_terminal() -> None:
    line = lines.wrong("nodes", "X", "a\x1b[2Jb\nc\x07" + "d" * 5000, "e\r\nf")
    shown = "\n".join(text.screen([line]))
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\r" not in shown
    assert len(shown) < 2000
    assert line.to_wire()["toDo"] == "e f"


@pytest.mark.parametrize(
    "value", [None, [], {"state": "ok"}, {"state": "fine", "text": "x"}, {"state": 1, "text": "x"}]
)
def test_lines_of_another_release_are_checked(value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        lines.from_wire(value)


def test_lines_survive_the_wire() -> None:
    line = lines.wrong("nodes", "Code", "text", "todo")
    assert lines.from_wire({**line.to_wire(), "added": 1}) == line


def test_fields_of_the_crds_are_up_to_date() -> None:
    """`make manifests` writes them."""
    assert (ROOT / "neuron_dra/data" / crd_fields.FILE).read_text() == crd_fields_program.text()


def test_policies_are_those_of_the_manifests() -> None:
    shipped = manifests(*POLICY_FILES)
    names = {item["metadata"]["name"] for item in shipped if item["kind"] == POLICIES}
    assert names == {*installed.DRIVER_POLICIES, *installed.CONTROLLER_POLICIES}


def crd(**schema: Any) -> Obj:
    version = {"name": "v1", "served": True, "schema": {"openAPIV3Schema": {"type": "object", **schema}}}
    return {"kind": CRDS, "metadata": {"name": "x"}, "spec": {"versions": [version]}}


@pytest.mark.parametrize(
    ("schema", "lost"),
    [
        ({}, ["spec"]),
        ({"x-kubernetes-preserve-unknown-fields": True}, []),
        ({"properties": {"spec": {"x-kubernetes-preserve-unknown-fields": True}}}, []),
        ({"properties": {"spec": {"additionalProperties": True}}}, []),
        ({"properties": {"spec": {"properties": {"a": {"items": {"properties": {"b": {}}}}}}}}, []),
        ({"properties": {"spec": {"properties": {"a": {"items": {}}}}}}, ["spec.a[].b"]),
        ({"properties": {"spec": {"properties": {"a": []}}}}, ["spec.a"]),
        ({"properties": []}, ["spec"]),
    ],
)
def test_dropped_fields(schema: Obj, lost: list[str]) -> None:
    assert crd_fields.dropped(["spec", "spec.a", "spec.a[].b"], crd(**schema)) == lost


def test_objects_that_cannot_be_decoded_are_named() -> None:
    found = seen(healthy())
    damaged = (
        DamagedObject("ResourceClaim", "ml", "c", ("spec.devices.config.*.opaque.parameters",)),
        DamagedObject("Node", "", "n", why="no UTF-8"),
    )
    shown = dataclasses.replace(found, snapshot=dataclasses.replace(found.snapshot, damaged=damaged))
    texts = [(each.state, each.text) for each in checked(shown) if each.area == "objects"]
    assert texts == [
        (CheckState.UNKNOWN, "values that their author wrote cannot be decoded, and are left out: ResourceClaim ml/c"),
        (CheckState.WRONG, "objects cannot be decoded, and are left out: Node n (no UTF-8)"),
    ]
