"""An unhealthy device is shown as such in every view, also while a pod holds it (4.09)."""

from __future__ import annotations

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.status import text as status_text
from neuron_dra.ask.topology import text as topology_text
from neuron_dra.ask.ui.kept_rows import KeptRows
from neuron_dra.ask.world import fleet, picture
from neuron_dra.ask.world.world import World
from tests.support import small_clusters as small


def world_with_a_held_unhealthy_device() -> World:
    items = [*small.base("a"), *small.running(small.base("a"), "train", 4, "a")]
    for item in items:
        for device in item["spec"]["devices"] if item["kind"] == "ResourceSlice" else ():
            if device["name"] == "neuron-device-2":
                device["attributes"]["unhealthy"] = {"string": "firmware"}
                device["taints"] = [{"key": "neuron.aws.com/unhealthy", "value": "firmware", "effect": "NoSchedule"}]
    return World(snapshot.build(items))


def test_a_held_unhealthy_device_has_the_mark_of_a_fault() -> None:
    world = world_with_a_held_unhealthy_device()
    [view] = fleet.nodes(world)
    cells = picture.draw(view, picture.Legend()).cells
    assert [cell.mark for cell in cells[:5]] == ["A", "A", "!", "A", "·"]
    assert cells[2].title == "firmware, held by default/train"
    assert any("AA!A" in line or "##!#" in line for line in topology_text.fleet([view]))


def test_a_node_with_a_held_unhealthy_device_is_a_faulty_one() -> None:
    """The page leaves out nodes by their letters."""
    world = world_with_a_held_unhealthy_device()
    row = KeptRows().whole(world)["nodes"]["a"]
    assert (row["letter"], row["state"], row["marks"]) == ("!", "default/train; 1 unhealthy", "##!#" + 12 * "·")
    assert status_text.data(world, "")["nodes"][0]["state"] == "default/train; 1 unhealthy"
