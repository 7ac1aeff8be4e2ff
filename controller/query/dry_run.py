"""Plans for a snapshot without writing. It groups the nodes first, as the controller does. Pure."""

from __future__ import annotations

import datetime
from dataclasses import replace

from controller.observe import decode
from controller.observe.model import Snapshot
from controller.plan import planning
from controller.plan.actions import CreateUltraServer, Plan
from controller.plan.planning import Limits


def plan(snapshot: Snapshot, now: datetime.datetime, limits: Limits) -> tuple[Snapshot, Plan]:
    """Return a snapshot with the NeuronUltraServers that the controller creates first, and the plan for it."""
    first = planning.plan(snapshot, now, limits)
    created = tuple(action for action in first.actions if isinstance(action, CreateUltraServer))
    if not created:
        return snapshot, first
    made = tuple(decode.ultraserver(_stored(action)) for action in created)
    grouped = replace(snapshot, ultraservers=(*snapshot.ultraservers, *made))
    then = planning.plan(grouped, now, limits)
    return grouped, replace(then, actions=(*created, *then.actions))


def _stored(action: CreateUltraServer) -> dict[str, object]:
    """Return the object as the API server would store it; its UID only has to be unique."""
    name = action.body["metadata"]["name"]
    return {
        **action.body,
        "metadata": {**action.body["metadata"], "uid": name, "resourceVersion": "0", "generation": 1},
    }
