"""The Events about an object, and what the scheduler and the autoscalers said of a pod. Pure.

Whoever may create Events in a namespace writes their texts: an answer that repeats one cuts and quotes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final

from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.views import EventView, MetaView
from neuron_dra.ask.world.world import World
from neuron_dra.core import user_text
from neuron_dra.core.wire import Wire

LONGEST: Final = 300
"""Characters of an Event's message that an answer shows."""


class Autoscaler(Enum):
    """The programs that add nodes for pods, by the name in an answer."""

    KARPENTER = "Karpenter"
    CLUSTER_AUTOSCALER = "the Cluster Autoscaler"


_AUTOSCALERS: Final[Mapping[str, Autoscaler]] = {
    "karpenter": Autoscaler.KARPENTER,
    "cluster-autoscaler": Autoscaler.CLUSTER_AUTOSCALER,
}
"""The autoscalers by the name under which they post Events."""
_PROGRAM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9./_-]{0,62}")
_REFUSALS: Final = ("FailedScheduling", "NotTriggerScaleUp")
"""Reasons of their Events about pods for which they add no node."""


def about(world: World, kind: str, item: Wire) -> list[EventView]:
    """Return the events about an object, the newest first."""
    meta = MetaView.of(item["metadata"])
    posted = [EventView.of(raw_event) for raw_event in world.events.get((kind, meta.namespace, meta.name), ())]
    own_ids = ("", meta.uid, meta.name)
    return sorted((event for event in posted if event.involved_object.uid in own_ids), key=_time, reverse=True)


def _time(event: EventView) -> str:
    return event.seen_at


def scheduler_words(world: World, pod: Wire) -> str:
    """Return the scheduler's last message about a pod, or an empty string."""
    for condition in PodView.of(pod).status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.message or condition.reason
    for event in about(world, "Pod", pod):
        # Karpenter posts FailedScheduling too, about the nodes that it would create.
        if event.reason == "FailedScheduling" and event.reporter not in _AUTOSCALERS:
            return event.message
    return ""


def bound_by(world: World, pod: Wire) -> str:
    """Return the scheduler that bound a pod, by its Event; empty if there is none, as of a pod with a nodeName."""
    for event in about(world, "Pod", pod):
        if event.reason == "Scheduled":
            return event.reporter
    return ""


def program(name: str) -> str:
    """Return the name of a program that posted an Event, for an answer: a usual one as it is, another one in quotes."""
    return name if _PROGRAM.fullmatch(name) else user_text.shown(name)


def autoscaler_refusal(world: World, pod: Wire) -> tuple[Autoscaler, EventView] | None:
    """Return the autoscaler that adds no node for a pod, and its Event; None if the last Event of one is another."""
    for event in about(world, "Pod", pod):
        autoscaler = _AUTOSCALERS.get(event.reporter)
        if autoscaler is not None:
            return (autoscaler, event) if event.reason in _REFUSALS else None
    return None


def quoted(text: str) -> str:
    """Return the message of an Event for an answer: cut, and in quotes."""
    return user_text.shown(" ".join(text.split()), LONGEST)
