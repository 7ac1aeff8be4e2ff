"""`doctor` reports the EFA interfaces of a cluster and of a node (4.10)."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from neuron_dra.ask.doctor import efa_interfaces, installed, node_checks, nodes
from neuron_dra.ask.doctor.lines import CheckState, Line
from neuron_dra.ask.doctor.seen import KINDS, POLICIES, Seen
from neuron_dra.ask.world.world import World
from neuron_dra.core import efa, signals
from neuron_dra.core.efa import EfaReading, Interface
from neuron_dra.core.wire import Obj
from tests.support import efa_slices
from tests.support import small_clusters as small
from tests.support.built_tools import needs
from tests.support.chart import rendered
from tests.support.installations import NOW, healthy, the
from tests.unit.test_efa_shown import of_dranet, stands_down, with_lost

SELECTOR = (
    "device.driver == 'dra.net' && has(device.attributes['dra.net'].pciDevice) && "
    "device.attributes['dra.net'].pciDevice == 'Elastic Fabric Adapter (EFA)'"
)


def efa_class(expression: str = SELECTOR) -> Obj:
    return {
        "apiVersion": small.API,
        "kind": "DeviceClass",
        "metadata": {"name": efa.CLASS},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def installed_with_efa() -> list[Obj]:
    """Return nodes a and b with EFA interfaces of this driver, whose chart has efa.enabled."""
    items = copy.deepcopy(healthy())
    policy = the(items, POLICIES, efa_interfaces.SLICE_POLICY)
    policy["spec"]["variables"].append({"name": efa_interfaces.POLICY_VARIABLE, "expression": "''"})
    slices = [efa_slices.resource_slice(name, small.TYPE) for name in ("a", "b")]
    return [*items, efa_class(), *slices]


def seen(items: list[Obj]) -> Seen:
    objects = {kind: [item for item in items if item["kind"] == kind] for kind in KINDS}
    return Seen(small.cluster(items), objects, version="v1.37.0", now=NOW)


def checked(items: list[Obj], only: str = "") -> list[Line]:
    found = seen(items)
    world = World(found.snapshot, proposes=False)
    of_cluster = [] if only else list(installed.lines(found))
    return [*of_cluster, *nodes.lines(world, only), *efa_interfaces.lines(found, world, only)]


def without(items: list[Obj], kind: str, name: str) -> None:
    items.remove(the(items, kind, name))


def slice_of(items: list[Obj], node: str) -> Obj:
    return the(items, "ResourceSlice", f"{node}-dra.net-00")


def offer(node: Obj, amount: str) -> None:
    node["status"].setdefault("allocatable", {})["vpc.amazonaws.com/efa"] = amount


def test_interfaces_of_this_driver_are_ok() -> None:
    lines = checked(installed_with_efa())
    assert [line for line in lines if line.state is not CheckState.OK] == []
    assert [line.text for line in lines if line.area == "EFA"] == [
        f"the DeviceClass {efa.CLASS} selects all 32 EFA interfaces",
        "this driver publishes 32 EFA interfaces of 2 nodes (a, b)",
    ]


def test_cluster_without_efa_has_no_line_about_it() -> None:
    assert "EFA" not in {line.area for line in checked(healthy())}


def test_lines_of_one_node_are_about_that_node() -> None:
    lines = checked(installed_with_efa(), "b")
    assert [line.text for line in lines if line.area == "EFA"] == ["this driver publishes 16 EFA interfaces of node b"]


def stands_down_for_dranet(items: list[Obj]) -> None:
    without(items, "ResourceSlice", "a-dra.net-00")
    items.append(stands_down())


def stands_down_for_the_plugin(items: list[Obj]) -> None:
    without(items, "ResourceSlice", "a-dra.net-00")
    offer(the(items, "Node", "a"), "16")


Break = Callable[[list[Obj]], object]
BROKEN: dict[str, tuple[Break, CheckState, str, str]] = {
    "class gone": (
        lambda items: without(items, "DeviceClass", efa.CLASS),
        CheckState.WRONG,
        "ClassMissing",
        f"the DeviceClass {efa.CLASS} does not exist",
    ),
    "class of something else": (
        lambda items: the(items, "DeviceClass", efa.CLASS).update(efa_class("device.driver == 'efa.example.com'")),
        CheckState.WRONG,
        "ClassEdited",
        "does not select 32 of 32 EFA interfaces, such as a/pci-0000-56-00-0: device.driver == 'efa.example.com'",
    ),
    "both drivers": (
        lambda items: items.append(of_dranet(efa_slices.resource_slice("a", small.TYPE))),
        CheckState.WRONG,
        "EfaTwoManagers",
        "node a: this driver and DRANET both publish its EFA interfaces, so claims get none",
    ),
    "stands down": (
        stands_down_for_dranet,
        CheckState.WRONG,
        "NeuronEfaStandsDown",
        "DRANET manages the EFA interfaces of node a (its socket answers)",
    ),
    "device plugin": (
        stands_down_for_the_plugin,
        CheckState.WRONG,
        "EfaDevicePluginAlive",
        "the EFA device plugin offers vpc.amazonaws.com/efa on node a, so the driver stands down",
    ),
    "nobody": (
        lambda items: without(items, "ResourceSlice", "a-dra.net-00"),
        CheckState.UNKNOWN,
        "Unknown",
        "efa.enabled is on, and nothing publishes EFA interfaces of node a",
    ),
    "fewer than another node": (
        lambda items: slice_of(items, "a")["spec"]["devices"].pop(),
        CheckState.UNKNOWN,
        "Unknown",
        "node a: 15 EFA interfaces, and 16 on another trn2.48xlarge",
    ),
    "an unhealthy interface": (
        lambda items: slice_of(items, "a").update(with_lost(["0000:56:00.0"])),
        CheckState.WRONG,
        "InterfaceTainted",
        "node a: 1 EFA interface unhealthy or tainted: no new claim gets them (pci-0000-56-00-0 missing",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_interfaces_have_a_line(name: str) -> None:
    break_it, state, code, text = BROKEN[name]
    items = installed_with_efa()
    break_it(items)
    lines = [line for line in checked(items) if line.state is not CheckState.OK]
    assert [(line.state, line.code) for line in lines] == [(state, code)], lines
    assert text in lines[0].text
    assert lines[0].todo


def test_dranet_on_a_node_is_named() -> None:
    items = installed_with_efa()
    items.remove(slice_of(items, "a"))
    items.append(of_dranet(efa_slices.resource_slice("a", small.TYPE)))
    texts = [line.text for line in checked(items) if line.area == "EFA" and line.state is CheckState.OK]
    assert "this driver publishes 16 EFA interfaces of node b" in texts
    assert "DRANET publishes 16 EFA interfaces of node a" in texts


def test_nodes_that_all_have_few_interfaces_are_ok() -> None:
    """The launch template decides how many an instance has."""
    items = installed_with_efa()
    for name in ("a", "b"):
        del slice_of(items, name)["spec"]["devices"][8:]
    lines = [line for line in checked(items) if line.code == "FewerInterfaces"]
    assert [(line.state, line.text) for line in lines] == [
        (CheckState.OK, "2 nodes (a, b): 8 of the 16 EFA interfaces that a trn2.48xlarge can have")
    ]


def test_off_nobody_has_to_publish() -> None:
    items = [*healthy(), efa_class(), efa_slices.resource_slice("b", small.TYPE)]
    assert [line for line in checked(items) if line.state is not CheckState.OK] == []


@needs("helm")
@pytest.mark.parametrize("value", ["true", "false"])
def test_policy_of_the_chart_shows_whether_efa_is_on(value: str) -> None:
    [policy] = [
        item
        for item in rendered(f"efa.enabled={value}")
        if item["kind"] == POLICIES and item["metadata"]["name"] == efa_interfaces.SLICE_POLICY
    ]
    variables = [variable["name"] for variable in policy["spec"]["variables"]]
    assert (efa_interfaces.POLICY_VARIABLE in variables) == (value == "true")


# On a node.

GOOD = Interface("0000:10:19.0", "rdmap16s25", 0)
DARK = Interface("0000:10:1a.0", "rdmap16s26", None, efa.NO_UVERBS)


def reading(*found: Interface) -> EfaReading:
    return EfaReading({interface.name: interface for interface in found})


def test_node_says_how_many_are_usable_and_why_others_are_not() -> None:
    [why, number] = node_checks.interfaces(reading(GOOD, DARK), [], "a")
    assert (why.code, why.text, why.todo) == (
        "InterfaceUnusable",
        "1 EFA interface cannot be used (NoUverbs: it has no uverbs device): pci-0000-10-1a-0",
        "load the kernel module ib_uverbs (docs/efa.md)",
    )
    assert (number.state, number.text) == (CheckState.OK, "1 of 2 EFA interfaces of the host can be used")
    [alone] = node_checks.interfaces(reading(GOOD), [], "a")
    assert (alone.state, alone.text) == (CheckState.OK, "1 of 1 EFA interface of the host can be used")


@pytest.mark.parametrize("is_ours", [True, False])
def test_published_interface_that_is_gone_is_missing(is_ours: bool) -> None:
    published = efa_slices.resource_slice("a", "trn1.32xlarge")
    published["spec"]["devices"] = published["spec"]["devices"][:2]
    lines = node_checks.interfaces(reading(GOOD), [published if is_ours else of_dranet(published)], "a")
    texts = [line.text for line in lines if line.state is CheckState.WRONG]
    assert [text.partition(":")[0] for text in texts] == (
        [f"1 EFA interface cannot be used ({signals.MISSING}"] if is_ours else []
    )


def test_other_manager_and_what_hides_one() -> None:
    assert node_checks.manager("", ()) == []
    [found] = node_checks.manager("DRANET manages them; keep one off", ())
    assert (found.state, found.code) == (CheckState.WRONG, "EfaStandsDown")
    [hidden] = node_checks.manager("", ("the Node", "ResourceSlices"))
    assert hidden.state is CheckState.UNKNOWN
    assert hidden.text.endswith("cannot read the Node and ResourceSlices")


def test_off_names_the_manager_and_nothing_is_wrong() -> None:
    assert node_checks.unserved_interfaces(reading(), "") == []
    [line] = node_checks.unserved_interfaces(reading(GOOD, DARK), "DRANET manages them (its socket); keep one off")
    assert (line.state, line.text) == (
        CheckState.OK,
        "efa.enabled is off, so the driver serves none of 2 EFA interfaces; DRANET manages them (its socket)",
    )
