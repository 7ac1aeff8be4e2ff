"""Actors on nodes and the controller's objects: cordons, taints, outages, deletions, rollbacks."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from neuron_dra.core.ultraserver import NAMESPACE, Phase, object_name
from neuron_dra.errors import ApiError
from neuron_dra.kube.requests import NEURON_ULTRASERVERS, NODES
from tests.support.fleet.mix import Actor
from tests.support.fleet.view import condition

if TYPE_CHECKING:
    from neuron_dra.core.wire import Obj
    from tests.support.fleet.pods import Container
    from tests.support.fleet.schedule import Schedule

TAINTS: Final = ("ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "example.com/maintenance")
VOLUMES_S: Final = 30.0
BEFORE_START: Final = "deleted before its volumes are attached"
NOTICED_S: Final = 40.0  # from a kubelet's last heartbeat to NotReady
SEEN_S: Final = 10.0  # by then the controller has seen it
OUTAGE_S: Final = (330.0, 400.0, 700.0)  # longer than the grace of five minutes


async def cordon(schedule: Schedule) -> str | None:
    """A user cordons a node; its pods keep running."""
    node = schedule.node(lambda n: n.present and not n.cordoned)
    if node is None:
        return None
    node.cordoned = True
    await schedule.fleet.set_taints(node)
    return f"node {node.name} is cordoned"


async def uncordon(schedule: Schedule) -> str | None:
    """The node may have pods again."""
    node = schedule.node(lambda n: n.present and n.cordoned)
    if node is None:
        return None
    node.cordoned = False
    await schedule.fleet.set_taints(node)
    return f"node {node.name} is uncordoned"


async def taint(schedule: Schedule) -> str | None:
    """A user or an autoscaler adds a NoSchedule taint to a node, or removes it."""
    node = schedule.node(lambda n: n.present)
    if node is None:
        return None
    if node.taints:
        node.taints.clear()
        await schedule.fleet.set_taints(node)
        return f"node {node.name} has no taint any more"
    node.taints.add(schedule.rng.choice(TAINTS))
    await schedule.fleet.set_taints(node)
    return f"node {node.name} is tainted {', '.join(node.taints)}:NoSchedule"


async def open_all_nodes(schedule: Schedule) -> None:
    """No node is cordoned or tainted."""
    for node in schedule.fleet.nodes.values():
        if not node.schedulable:
            node.cordoned = False
            node.taints.clear()
            if node.present:
                await schedule.fleet.set_taints(node)


async def register_again(schedule: Schedule) -> str | None:
    """A user deletes a Node; the same instance registers again with another UID."""
    node = schedule.node(lambda n: n.alive and n.present and n.kubelet_up)
    if node is None:
        return None
    node.present = False
    if node.plugin is None:
        # It comes back with the tag of a reservation that ended with the Node, and is closed then.
        schedule.fleet.safety.may_vanish(object_name(node.block))
    await schedule.fleet.remove(NODES, "", node.name)
    schedule.fleet.pods.wake()
    await schedule.fleet.sleep(schedule.rng.choice((0.5, 5.0, 60.0)))
    await schedule.fleet.register(node)
    schedule.fleet.pods.wake()
    return f"Node {node.name} is deleted, and its kubelet registers it again"


async def slow_volumes(schedule: Schedule) -> None:
    """The volumes of most pods need half a minute, in which the kubelet prepares none of their claims."""
    schedule.fleet.pods.volumes_s = lambda: schedule.rng.choice((0.0, VOLUMES_S, VOLUMES_S))


async def quick_volumes(schedule: Schedule) -> None:
    """The volumes of later pods are there at once."""
    schedule.fleet.pods.volumes_s = lambda: 0.0


async def delete_before_start(schedule: Schedule) -> str | None:
    """A user deletes a pod whose volumes are not attached, so that its claim is allocated and not prepared."""
    pods = schedule.fleet.pods
    if not pods.attaching and pods.running:
        container = schedule.rng.choice(list(pods.running.values()))
        await pods.delete({"metadata": _metadata(container)})
    for _ in range(int(VOLUMES_S)):
        if pods.attaching:
            break
        await schedule.fleet.sleep(1.0)
    else:
        return None
    pod = schedule.rng.choice(list(pods.attaching.values()))
    await schedule.fleet.sleep(schedule.rng.uniform(0.0, 20.0))
    if pod["metadata"]["uid"] not in pods.attaching:
        return None
    await pods.delete(pod)
    return f"pod {pod['metadata']['name']} is {BEFORE_START}"


def _metadata(container: Container) -> Obj:
    namespace, _, name = container.pod.partition("/")
    return {"namespace": namespace, "name": name, "uid": container.uid}


async def delete_ultraserver(schedule: Schedule) -> str | None:
    """A user deletes a NeuronUltraServer; by force means without its finalizers."""
    fleet, rng = schedule.fleet, schedule.rng
    found = fleet.view.all("neuronultraservers")
    reserved = sorted({held.ultraserver for held in fleet.view.held()})
    if not found:
        return None
    name = rng.choice(reserved) if reserved and rng.random() < 0.7 else rng.choice(found)["metadata"]["name"]
    forced = rng.random() < 0.5
    fleet.safety.may_vanish(str(name))
    await fleet.remove(NEURON_ULTRASERVERS, NAMESPACE, str(name))
    if forced:
        with contextlib.suppress(ApiError):
            await fleet.patch(NEURON_ULTRASERVERS, NAMESPACE, str(name), {"metadata": {"finalizers": None}})
    return f"NeuronUltraServer {name} is deleted{' by force' if forced else ''}"


async def outage(schedule: Schedule) -> str | None:
    """All or some kubelets stop for longer than the grace period, and return; their containers keep running."""
    fleet, rng = schedule.fleet, schedule.rng
    nodes = [node for node in fleet.nodes.values() if node.alive and node.present and node.kubelet_up]
    whole = len(nodes) == len(fleet.nodes) and all(node.healthy for node in nodes)
    number = rng.choice((len(nodes), len(nodes), len(nodes) // 2, len(nodes) // 2 + 1)) if whole else len(nodes)
    hit = rng.sample(nodes, number)
    if not hit:
        return None
    fleet.trace(f"the kubelets of {len(hit)} of {len(fleet.nodes)} nodes stop")
    for node in hit:
        node.kubelet_up = False
    await fleet.sleep(NOTICED_S)
    for node in hit:
        if node.present and not node.kubelet_up:
            await fleet.set_ready(node, False)
    await fleet.sleep(SEEN_S)
    if _is_disrupted(schedule, 0) and "outages" in fleet.actors:
        fleet.safety.protect({held.allocation.allocation_id for held in fleet.view.held() if _is_bound(held)})
    seconds = rng.choice(OUTAGE_S)
    await fleet.sleep(seconds)
    for node in hit:
        if node.present and node.alive:
            if not _is_disrupted(schedule, 1):
                fleet.safety.protect(set())  # the return of this one ends the outage
            node.kubelet_up = True
            await fleet.set_ready(node, True)
            fleet.pods.wake()
            await asyncio.sleep(rng.choice((0.0, 1.0, 5.0)))
    await fleet.sleep(SEEN_S)
    fleet.safety.protect(set())
    return f"the kubelets of {len(hit)} of {len(fleet.nodes)} nodes were stopped for {seconds + NOTICED_S:g} s"


def _is_disrupted(schedule: Schedule, back: int) -> bool:
    """True if it is an outage even after `back` nodes have returned. A deleted Node does not count as unavailable."""
    found = [schedule.fleet.view.find("nodes", name) for name in schedule.fleet.nodes]
    present = [node for node in found if node is not None]
    unready = len([node for node in present if condition(node, "Ready").get("status") != "True"]) - back
    return unready >= 3 and unready > 0.55 * len(present)


def _is_bound(held: object) -> bool:
    return getattr(held, "allocation").phase is Phase.BOUND  # noqa: B009


async def roll_driver_back(schedule: Schedule) -> str | None:
    """A node gets a release of the driver without reservations, or this release again."""
    node = schedule.node(lambda n: n.plugin is not None and n.alive and n.present)
    if node is None:
        return None
    node.tags_its_devices = not node.tags_its_devices
    await node.kill_plugin()
    await schedule.fleet.sleep(schedule.rng.choice((0.1, 5.0)))
    node.start_plugin()
    return f"node {node.name} runs {'this' if node.tags_its_devices else 'an older'} release of the driver"


async def upgrade_all_drivers(schedule: Schedule) -> None:
    """All nodes run this release."""
    for node in schedule.fleet.nodes.values():
        if not node.tags_its_devices:
            node.tags_its_devices = True
            await node.kill_plugin()
            node.start_plugin()


ACTORS: Final[dict[str, Actor]] = {
    "cordons": Actor(
        "nodes are cordoned, and tainted with NoSchedule, while pods run on them",
        {cordon: 10, uncordon: 2, taint: 6},
        heal=open_all_nodes,
        issue="13.9",
    ),
    "re-registered": Actor(
        "Nodes are deleted, and the same instances register again with another UID", {register_again: 4}
    ),
    "deletions": Actor(
        "users delete NeuronUltraServers, half of them by force",
        {delete_ultraserver: 5},
    ),
    "outages": Actor(
        "the kubelets of all nodes, of half the nodes or of one more stop for longer than the grace period",
        {outage: 4},
        issue="13.4",
    ),
    "rollbacks": Actor(
        "nodes get a release of the driver without reservations, and lose their tags",
        {roll_driver_back: 4},
        heal=upgrade_all_drivers,
        issue="13.9",
    ),
    "late-volumes": Actor(
        "the volumes of pods attach late, and users delete such pods before the kubelet prepares their claims",
        {delete_before_start: 60},
        begin=slow_volumes,
        heal=quick_volumes,
        issue="4.04",
    ),
    "refused-pods": Actor(
        "the invariant that no pod stays rejected, because the controller evicts pods that a late scheduler placed on "
        "reserved nodes",
        issue="13.12",
    ),
}
