"""The Events about an object, and what the scheduler said of a pod. Pure."""

from __future__ import annotations

from neuron_dra.ask.read import views
from neuron_dra.ask.read.views import EventView
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire


def about(world: World, kind: str, item: Wire) -> list[EventView]:
    """Return the events about an object, the newest first."""
    meta = item["metadata"]
    items = world.events.get((kind, meta.get("namespace") or "", meta["name"]), ())
    posted = [views.of(EventView, item) for item in items]
    mine = ("", meta.get("uid"), meta["name"])
    return sorted((each for each in posted if each.involved_object.uid in mine), key=_time, reverse=True)


def _time(event: EventView) -> str:
    return event.seen_at


def scheduler_words(world: World, pod: Wire) -> str:
    """Return the scheduler's last message about a pod, or an empty string."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "")
    for event in about(world, "Pod", pod):
        if event.reason == "FailedScheduling":
            return event.message
    return ""
