"""The Events about an object, and what the scheduler said of a pod. Pure."""

from __future__ import annotations

from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.views import EventView, MetaView
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire


def about(world: World, kind: str, item: Wire) -> list[EventView]:
    """Return the events about an object, the newest first."""
    meta = MetaView.of(item["metadata"])
    posted = []
    for each in world.events.get((kind, meta.namespace, meta.name), ()):
        posted.append(EventView.of(each))
    mine = ("", meta.uid, meta.name)
    return sorted((each for each in posted if each.involved_object.uid in mine), key=_time, reverse=True)


def _time(event: EventView) -> str:
    return event.seen_at


def scheduler_words(world: World, pod: Wire) -> str:
    """Return the scheduler's last message about a pod, or an empty string."""
    for condition in PodView.of(pod).status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.message or condition.reason
    for event in about(world, "Pod", pod):
        if event.reason == "FailedScheduling":
            return event.message
    return ""
