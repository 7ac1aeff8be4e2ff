"""What earlier plans decided for workloads that need nothing, until something that they depend on changes. Pure.

Most workloads of a fleet are Allocated and healthy. Deciding that again for each of them in every plan costs more than
the change that caused the plan.
"""

from __future__ import annotations

from collections.abc import Hashable

from controller.observe.model import Workload
from controller.plan.context import PlanningContext


def reads(context: PlanningContext, workload: Workload) -> tuple[object, ...] | None:
    """Return what the decision about an Allocated workload depends on; None if it must be made again in any case.

    It is made again in an outage, and while reservations are unreadable, not seen, or changed by this plan.
    """
    index, holdings = context.index, context.holdings
    if workload.deleting or context.outage is not None or holdings.unread or holdings.has_changed(workload.uid):
        return None
    if holdings.withheld(workload.uid):
        return None
    key = (workload.namespace, workload.template_name)
    found: list[object] = [
        workload,
        context.limits,
        index.workload_class,
        context.known.without_services,
        context.known.unschedulable.get(workload.uid),
        context.contested.get(key),
        context.templates.get(key),
        *index.templates_of(workload.uid),
    ]
    for one in holdings.of(workload.uid):
        group, stored = index.group_by_name.get(one.ultraserver), index.ultraserver_by_name.get(one.ultraserver)
        found += [one, group and group.instance_type, stored and stored.uid]
        for name in one.allocation.nodes:
            found += [index.node_by_name.get(name), index.published_by_name.get(name), index.uses(name)]
    return tuple(found)


def effects(context: PlanningContext) -> Hashable:
    """Return a value that changes whenever a decision has an effect beyond its verdict, or depends on the time."""
    actions = (context.before, context.after, context.statuses, context.last)
    return (
        *map(len, actions),
        len(context.recheck),
        len(context.shared),
        len(context.starving),
        len(context.withdrawn),
        context.holdings.version,
    )
