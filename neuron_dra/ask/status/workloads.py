"""The NeuronUltraServerWorkloads that wait, or that lost nodes: they may have no pods that would show it.

Pure, except for the terminal's width.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from neuron_dra.ask.read.views import WorkloadView
from neuron_dra.ask.render import terminal, words
from neuron_dra.ask.world.world import World
from neuron_dra.core.qualification import NAMESPACE

SHOWN: Final = 5
"""Different waits that are shown; the others are counted."""
_NOT_HANDLED: Final = "not handled yet"
_CONTROLLER: Final = "does the UltraServer controller run?"


@dataclass(frozen=True, slots=True)
class WaitingWorkload:
    """A workload as NAMESPACE/NAME, its state, and the condition that says what it waits for."""

    view: WorkloadView
    name: str
    state: str
    reason: str
    message: str

    def about(self, world: World) -> str:
        """Return its name, with its job and its place in a queue."""
        from neuron_dra.ask.why import queue

        facts = dict(queue.facts(world, self.view))
        of = f" of {facts['job']}" if "job" in facts else ""
        where = f" (queue {facts['queue']})" if "queue" in facts else ""
        return f"{self.name}{of}{where}"

    @property
    def text(self) -> str:
        """What it waits for."""
        return ": ".join(part for part in (self.reason, self.message) if part)

    def to_wire(self) -> dict[str, str]:
        """Return it for `-o json` and `-o yaml`."""
        return {"workload": self.name, "state": self.state, "reason": self.reason, "message": self.message}


def waiting(world: World, namespace: str) -> list[WaitingWorkload]:
    """Return the workloads that wait or are degraded; `namespace` limits them, empty for all but tests."""
    waiting_workloads = []
    for raw_workload in world.snapshot.all("NeuronUltraServerWorkload"):
        workload = WorkloadView.of(raw_workload)
        workload_namespace = workload.metadata.namespace
        is_asked = workload_namespace == namespace if namespace else workload_namespace != NAMESPACE
        if is_asked and (waiting_workload := wait(workload)) is not None:
            waiting_workloads.append(waiting_workload)
    return waiting_workloads


def wait(workload: WorkloadView) -> WaitingWorkload | None:
    """Return what a workload waits for; None if nothing is wrong with it."""
    name = f"{workload.metadata.namespace or 'default'}/{workload.metadata.name}"
    status = workload.status
    ready, degraded = status.condition("Ready"), status.condition("Degraded")
    if ready is None:
        return WaitingWorkload(workload, name, status.state or _NOT_HANDLED, "", _CONTROLLER)
    if degraded is not None and degraded.status == "True":
        return WaitingWorkload(workload, name, status.state, degraded.reason, degraded.message)
    if ready.status == "True":
        return None
    return WaitingWorkload(workload, name, status.state or _NOT_HANDLED, ready.reason, ready.message)


def lines(world: World, waiting_workloads: Sequence[WaitingWorkload], *, most_named: int | None) -> list[str]:
    """Return the part of the screen, equal waits together; all of it with `most_named` None."""
    if not waiting_workloads:
        return []
    verb = "waits" if len(waiting_workloads) == 1 else "wait"
    out = ["", terminal.colored(f"WORKLOADS ({len(waiting_workloads)} {verb})", "bold")]
    alike: dict[str, list[WaitingWorkload]] = defaultdict(list)
    for waiting_workload in waiting_workloads:
        alike[waiting_workload.text].append(waiting_workload)
    groups = list(alike.items())
    shown = groups if most_named is None else groups[:SHOWN]
    for text, same in shown:
        if len(same) == 1:
            out += terminal.wrapped(f"{same[0].about(world)} is {same[0].state}: {text}", rest="  ")
            continue
        names = [waiting_workload.name for waiting_workload in same]
        named = words.listed(names, len(same) if most_named is None else most_named)
        out += terminal.wrapped(f"{len(same)} workloads wait: {text}", rest="  ")
        out += terminal.wrapped(named, first="  ", rest="  ")
    hidden = len(waiting_workloads) - sum(len(same) for _, same in shown)
    return out + ([f"and {words.count(hidden, 'more workload')}: -o wide"] if hidden else [])
