"""What the driver reports of a node in Events, such as a link that is down, is a fault in every view (4.09)."""

from __future__ import annotations

from neuron_dra.ask.doctor import nodes as doctor_nodes
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.status import text as status_text
from neuron_dra.ask.ui.kept_rows import KeptRows
from neuron_dra.ask.why import answer
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from tests.support import small_clusters as small

LINK = "link 0-1 is down"
PLUGIN_POD = "pod ml/old (default) on node a has devices of a device plugin"


def world_of(*items: Obj) -> World:
    return World(snapshot.build([*small.base("a"), *items]))


def wrong_of(world: World) -> list[tuple[str, str, str]]:
    """Return the faults of `status`, which are those of the page."""
    rows = status_text.data(world, "")["wrong"]
    assert list(KeptRows().whole(world)["wrong"].values()) == rows
    return [(row["name"], row["what"], row["detail"]) for row in rows]


def test_a_broken_link_is_a_fault_in_every_view() -> None:
    world = world_of(small.node_event("NeuronMissingLink", LINK))
    assert wrong_of(world) == [("a", "the driver reports NeuronMissingLink", f"'{LINK}'")]
    assert f"  the driver reports NeuronMissingLink: node a ('{LINK}')" in status_text.lines(world, "")
    assert [cause.code for cause in answer.REPORTS["Node"](world, world.nodes["a"]).findings] == ["NeuronMissingLink"]
    assert "NeuronMissingLink" in [line.code for line in doctor_nodes.lines(world)]


def test_a_silent_node_has_one_fault() -> None:
    items = [item for item in small.base("a") if item["kind"] != "ResourceSlice"]
    world = World(snapshot.build([*items, small.node_event("NeuronDriverLoading", "it loads")]))
    assert wrong_of(world) == [("a", "publishes nothing", "")]


def test_an_event_about_a_former_pod_is_over() -> None:
    assert wrong_of(world_of(small.node_event("NeuronDevicePluginAlive", PLUGIN_POD))) == []
