"""What the driver reports of a node in Events, as long as nothing shows that it is over. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.views import EventView
from neuron_dra.ask.world import events, interfaces
from neuron_dra.ask.world.world import World
from neuron_dra.core import vocabulary
from neuron_dra.core.wire import Wire

PLUGIN_ALIVE: Final = "NeuronDevicePluginAlive"
SHOWN_BY_SLICES: Final = ("NeuronDeviceUnhealthy", "NeuronMissingDevice", "NeuronMissingDeviceFile")
"""Reasons of Events about devices: the slices show whether they still apply."""
SILENCING: Final = (
    PLUGIN_ALIVE,
    "NeuronReadingHangs",
    "NeuronNoClassFolder",
    "NeuronNoDevices",
    "NeuronDriverLoading",
    "NeuronDriverLeaving",
)
"""Reasons for which the driver publishes nothing."""
STANDS_DOWN: Final = "NeuronEfaStandsDown"
"""The reason of the Event of an EFA driver that does not publish: its slice shows that this is over."""
_REASONS: Final = {event.name for event in vocabulary.EVENTS if event.of == "Node"} - {"NeuronDeviceUnhealthy"}
_OF_A_POD: Final = re.compile(r"pod (?P<namespace>[^/ ]+)/(?P<name>\S+) \([^)]*\) on node ")
"""The beginning of a message about a pod with devices of a device plugin, unless it is one of several pods."""


def of_node(world: World, node: Wire) -> list[EventView]:
    """Return the newest Event of the driver about the node for each reason.

    Without those about devices, if the node publishes: its slices show whether they still apply.
    """
    name = node["metadata"]["name"]
    if not world.events.get(("Node", "", name)):
        return []
    shown_by_slices = SHOWN_BY_SLICES if world.specs_of(name) else ()
    if interfaces.is_published_here(world, name):
        shown_by_slices = (*shown_by_slices, STANDS_DOWN)
    about = events.about(world, "Node", node)
    current = []
    for event in newest(event for event in about if event.reason in _REASONS and event.type != "Normal"):
        if event.reason not in shown_by_slices and not _is_of_a_former_pod(world, event):
            current.append(event)
    return current


def newest(newest_first: Iterable[EventView]) -> Iterable[EventView]:
    """Return the newest of these Events for each reason."""
    newest_by_reason: dict[str, EventView] = {}
    for event in newest_first:
        newest_by_reason.setdefault(event.reason, event)
    return newest_by_reason.values()


def _is_of_a_former_pod(world: World, event: EventView) -> bool:
    """Return True if an Event says that one pod is the problem, and this pod is known to be gone or to have ended."""
    named = _OF_A_POD.match(event.message)
    if named is None or "Pod" in world.snapshot.left_out:
        return False
    pod = world.snapshot.get("Pod", named["name"], named["namespace"])
    return pod is None or PodView.of(pod).has_ended
