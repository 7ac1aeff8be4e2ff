"""Steps of every run that concern nodes and their plugins."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from neuron_dra.core.ultraserver import tag_on
from neuron_dra.core.wire import Obj
from neuron_dra.kube.requests import NODES, RESOURCE_SLICES
from tests.support.fleet.nodes import BROKEN_MODES, MODES, FleetNode

if TYPE_CHECKING:
    from tests.support.fleet.schedule import Schedule

NODE_NOTICED_S: Final = 40.0  # from a node's last heartbeat to NotReady


async def lose_node(schedule: Schedule) -> str | None:
    """A node loses its power; its Node becomes NotReady later."""
    node = schedule.node(lambda n: n.alive and n.present)
    if node is None:
        return None
    node.alive = False
    schedule.fleet.pods.node_lost_power(node)
    await node.kill_plugin()
    node.reboot()

    async def noticed() -> None:
        await asyncio.sleep(NODE_NOTICED_S)
        if not node.alive and node.present:
            await schedule.fleet.set_ready(node, False)

    schedule.fleet.spawn(noticed())
    return f"node {node.name} loses its power"


async def return_node(schedule: Schedule) -> str | None:
    """A node that was lost boots."""
    node = schedule.node(lambda n: not n.alive or not n.present)
    if node is None:
        return None
    await schedule.bring_back(node)
    return f"node {node.name} is back"


async def flap_node(schedule: Schedule) -> str | None:
    """A node is disconnected and NotReady for a short time; its containers keep running."""
    node = schedule.node(lambda n: n.healthy)
    if node is None or node.line is None:
        return None
    node.line.cut()
    await schedule.fleet.set_ready(node, False)
    seconds = schedule.rng.choice((2.0, 20.0, 70.0))

    async def back() -> None:
        await asyncio.sleep(seconds)
        if node.line is not None:
            node.line.reconnect()  # also for a node that is registering again
        if node.present and node.alive:
            await schedule.fleet.set_ready(node, True)

    schedule.fleet.spawn(back())
    return f"node {node.name} is NotReady and cut off for {seconds:g} s"


async def replace_node(schedule: Schedule) -> str | None:
    """Another instance replaces a node under the same name."""
    node = schedule.node(lambda n: True)
    if node is None:
        return None
    node.alive = False
    schedule.fleet.pods.node_lost_power(node)
    await node.kill_plugin()
    node.present = False
    await schedule.fleet.remove(NODES, "", node.name)
    schedule.fleet.pods.wake()
    await schedule.fleet.sleep(schedule.rng.choice((0.0, 0.5, 5.0)))
    node.renew()
    await schedule.bring_back(node)
    return f"node {node.name} is replaced by another instance of the same name"


async def remove_node(schedule: Schedule) -> str | None:
    """A node is lost, and a user deletes its Node."""
    node = schedule.node(lambda n: n.present)
    if node is None:
        return None
    await lose_for_good(schedule, node)
    return f"node {node.name} is gone for good"


async def lose_for_good(schedule: Schedule, node: FleetNode) -> None:
    """End an instance, and delete its Node."""
    node.alive = node.present = False
    schedule.fleet.pods.node_lost_power(node)
    await node.kill_plugin()
    await schedule.fleet.remove(NODES, "", node.name)
    node.renew()
    schedule.fleet.pods.wake()


async def break_link(schedule: Schedule) -> str | None:
    """Links between nodes go down."""
    node = schedule.node(lambda n: n.present and n.modes == MODES)
    if node is None:
        return None
    modes = schedule.rng.choice(BROKEN_MODES)
    node.set_modes(modes)
    return f"links of {node.name} are down, modes {modes}"


async def repair_link(schedule: Schedule) -> str | None:
    """The links are up again."""
    node = schedule.node(lambda n: n.modes != MODES)
    if node is None:
        return None
    node.set_modes(MODES)
    return f"links of {node.name} are up"


async def kill_plugin(schedule: Schedule) -> str | None:
    """The plugin is killed, and started again after a while."""
    node = schedule.node(lambda n: n.plugin is not None)
    if node is None:
        return None
    await node.kill_plugin()
    seconds = schedule.rng.choice((0.1, 5.0, 40.0, 120.0))

    async def back() -> None:
        await asyncio.sleep(seconds)
        if node.alive and node.present:
            node.start_plugin()

    schedule.fleet.spawn(back())
    return f"the plugin of {node.name} is killed, for {seconds:g} s"


async def stall_plugin(schedule: Schedule) -> str | None:
    """The plugin is suspended for a while, and continues with its old state."""
    node = schedule.node(lambda n: n.plugin_up)
    if node is None or node.line is None:
        return None
    line = node.line
    line.hold()
    seconds = schedule.rng.choice((3.0, 30.0, 90.0))
    asyncio.get_running_loop().call_later(seconds, line.release)
    return f"the plugin of {node.name} stalls for {seconds:g} s"


async def wipe_slices(schedule: Schedule) -> str | None:
    """The kubelet of a node restarts, and deletes the slices of all drivers."""
    node = schedule.node(lambda n: n.alive and n.present)
    if node is None:
        return None
    node.wiped_at = schedule.fleet.clock.now()
    mine = [s for s in schedule.fleet.view.all("resourceslices") if s["spec"]["nodeName"] == node.name]
    for item in mine:
        tag = tag_on(item["spec"].get("devices") or ())
        if tag is not None:
            schedule.fleet.safety.may_be_shown_again(tag.allocation_id)
        await schedule.fleet.remove(RESOURCE_SLICES, "", item["metadata"]["name"])
    return f"the slices of {node.name} are wiped"


async def edit_tag(schedule: Schedule) -> str | None:
    """A user edits a tag."""
    slices = [s for s in schedule.fleet.view.all("resourceslices") if s["spec"].get("devices")]
    if not slices:
        return None
    item: Obj = dict(schedule.rng.choice(slices))
    devices = [dict(device) for device in item["spec"]["devices"]]
    what = schedule.rng.choice(("remove", "alter", "invent"))
    tag = tag_on(devices)
    if tag is not None:
        schedule.fleet.safety.may_be_shown_again(tag.allocation_id)
    for device in devices:
        attributes = dict(device["attributes"])
        if what == "remove":
            for name in ("workloadUid", "workloadPhase", "allocationId"):
                attributes.pop(name, None)
        elif what == "alter":
            attributes["workloadPhase"] = {"string": "Bound"}
        else:
            attributes |= {"workloadUid": {"string": "nobody"}, "workloadId": {"string": "nobody"}}
        device["attributes"] = attributes
    changed = {**item, "spec": {**item["spec"], "devices": devices}}
    await schedule.fleet.admin.replace(RESOURCE_SLICES, "", changed)
    return f"the tag of {item['spec']['nodeName']} is edited by hand: {what}"
