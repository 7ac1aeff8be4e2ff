"""The Events about an object, and what the scheduler said of a pod. Pure."""

from __future__ import annotations

from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire


def about(world: World, kind: str, item: Wire) -> list[Wire]:
    """Return the events about an object, the newest first."""
    meta = item["metadata"]
    found = [
        event
        for event in world.events.get((kind, meta.get("namespace") or "", meta["name"]), ())
        if event["involvedObject"].get("uid") in (None, "", meta.get("uid"), meta["name"])
    ]
    return sorted(found, key=time_of, reverse=True)


def time_of(event: Wire) -> str:
    """Return when an Event was last seen; empty if it has no time."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return max((str(each) for each in times if each), default="")


def scheduler_words(world: World, pod: Wire) -> str:
    """Return the scheduler's last message about a pod, or an empty string."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "")
    for event in about(world, "Pod", pod):
        if event.get("reason") == "FailedScheduling":
            return str(event.get("message") or "")
    return ""
