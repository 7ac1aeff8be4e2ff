"""The seeded schedule: steps of users and faults, one after the other; at the end all faults are healed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from neuron_dra.core.wire import Obj
from neuron_dra.errors import ApiError
from neuron_dra.kube.requests import CLAIM_TEMPLATES, NEURON_WORKLOADS
from tests.support.fleet import control_plane_steps, node_steps, user_steps
from tests.support.fleet.actors import ACTORS
from tests.support.fleet.fleet import BUDGETS, Fleet
from tests.support.fleet.mix import Mix, Step
from tests.support.fleet.network import WATCH_LAG_S
from tests.support.fleet.nodes import MODES, FleetNode
from tests.support.fleet.pods import Job, plain_template
from tests.support.fleet.view import astray, has_lost_claim, place

PAUSES: Final = ((0.0, 0.05, 0.3, 1.0, 3.0, 10.0, 30.0, 80.0, 350.0), (8, 8, 8, 8, 8, 8, 8, 2, 1))
"""Seconds between steps, with their weights: strategies act after one minute, or five."""


async def drive(fleet: Fleet, steps: int) -> None:
    """Run the whole schedule. Raises Violation."""
    schedule = Schedule(fleet)
    await schedule.begin()
    for number in range(1, steps + 1):
        await schedule.step(number)
    await schedule.end()


class Schedule:
    """Chooses and performs the steps. A step returns a description, or None if it does not apply."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.rng = fleet.rng
        self.mix = Mix.of(fleet.seed, {name: ACTORS[name] for name in fleet.actors}, STEPS)
        self.made = 0
        self.foreign: set[tuple[str, str]] = set()  # namespace and name of templates that block a workload

    async def begin(self) -> None:
        """Let the fleet come up."""
        fleet = self.fleet
        others = f", with {', '.join(sorted(fleet.actors))}" if fleet.actors else ""
        fleet.trace(f"a fleet of {len(fleet.nodes)} x {fleet.instance_type}{others}")
        for namespace in fleet.namespaces:
            await fleet.admin.create(CLAIM_TEMPLATES, namespace, plain_template())
        for begin in self.mix.begins:
            await begin(self)
        await fleet.settle("the start")

    async def step(self, number: int) -> None:
        """Make one step, and wait."""
        fleet = self.fleet
        for _ in range(20):
            step = self.rng.choices(self.mix.steps, self.mix.weights)[0]
            try:
                did = await step(self)
            except ApiError as err:  # the object is gone, or was changed by another program
                did = f"tried to {step.__name__}: {err}"
            if did is not None:
                fleet.trace(f"STEP {number}: {did}")
                break
        await fleet.sleep(self.rng.choices(*PAUSES)[0])
        if self.rng.random() < 0.35:
            await fleet.settle(f"after step {number}")

    async def end(self) -> None:
        """Heal all faults and settle; then delete everything, and check that nothing is left."""
        fleet = self.fleet
        await self.heal()
        fleet.trace("STEP: all is healed")
        await fleet.settle("after all faults were healed")
        for workload in fleet.workloads():
            await fleet.remove(NEURON_WORKLOADS, *place(workload))
        fleet.trace("STEP: all workloads are deleted")
        await fleet.settle("after all workloads were deleted", self._left_of_workloads)
        for job in fleet.pods.jobs.values():
            job.replicas = 0
        await fleet.settle("after all pods were deleted", self._left)

    def _left_of_workloads(self) -> list[str]:
        view = self.fleet.view
        return [
            *(f"workload {uid} is left" for uid in view.workloads()),
            *self._left_of_queues(),
            *(f"reservation {each} is left" for each in view.held()),
            *(f"node {node} is still tagged" for node, tag in view.tags().items() if tag is not None),
        ]

    def _left_of_queues(self) -> list[str]:
        found = self.fleet.view.all("workloads") if "queues" in self.fleet.actors else []
        return [f"Kueue's Workload {each['metadata']['name']} is left" for each in found]

    def _left(self) -> list[str]:
        view = self.fleet.view
        return [
            *self._left_of_workloads(),
            *(f"pod {pod['metadata']['name']} is left" for pod in view.all("pods")),
            *(f"claim {claim['metadata']['name']} is left" for claim in view.all("resourceclaims")),
            *(f"{node.name} has prepared {left}" for node in self.fleet.nodes.values() if (left := node.checkpointed)),
        ]

    async def heal(self) -> None:
        """Heal all lasting faults."""
        fleet = self.fleet
        for line in fleet.lines:
            line.reconnect()
            line.release()
            line.storm, line.deadly, line.lag_s, line.stall_s = None, None, WATCH_LAG_S, 0.0
        for replica in fleet.replicas:
            replica.start()
        for node in fleet.nodes.values():
            await self.bring_back(node)
            node.set_modes(MODES)
        for heal in self.mix.heals:
            await heal(self)
        for namespace, name in sorted(self.foreign):
            await fleet.remove(CLAIM_TEMPLATES, namespace, name)
        self.foreign.clear()
        fleet.taken_templates.clear()
        await self.remove_budgets()
        for pod in fleet.view.all("pods"):
            uid = fleet.jobs_of.get((pod["metadata"].get("labels") or {}).get("job", ""))
            if has_lost_claim(fleet.view, pod) or (uid and astray(fleet.view, pod, uid)):
                await fleet.pods.delete(dict(pod))

    async def bring_back(self, node: FleetNode) -> None:
        """Make a node exist, Ready, with its plugin."""
        if not node.present:
            await self.fleet.register(node)
        elif not (node.alive and node.kubelet_up):
            await self.fleet.set_ready(node, True)
        node.alive = node.kubelet_up = True
        if node.line is not None:
            node.line.reconnect()
            node.line.release()
        node.start_plugin()
        self.fleet.pods.wake()

    async def remove_budgets(self) -> None:
        """Let evictions be."""
        for namespace in self.fleet.namespaces:
            await self.fleet.remove(BUDGETS, namespace, "tight")
        self.fleet.budgets = False

    # Choosing

    def node(self, wanted: Callable[[FleetNode], bool]) -> FleetNode | None:
        """Choose a matching node; reserved ones more often."""
        fitting = [node for node in self.fleet.nodes.values() if wanted(node)]
        reserved = [node for node in fitting if node.name in self.fleet.view.holders()]
        chosen = reserved if reserved and self.rng.random() < 0.7 else fitting
        return self.rng.choice(chosen) if chosen else None

    def workload(self) -> Obj | None:
        """Choose a workload that is not being deleted."""
        found = self.fleet.workloads()
        return self.rng.choice(found) if found else None

    def namespace(self) -> str:
        """Choose the namespace of a step."""
        there = self.fleet.namespaces
        return self.rng.choice(there) if len(there) > 1 else there[0]

    def job_of(self, workload: Obj) -> Job | None:
        """The pods of a workload, if there are any."""
        uid = workload["metadata"]["uid"]
        return next((self.fleet.pods.jobs[name] for name, of in self.fleet.jobs_of.items() if of == uid), None)


STEPS: Final[dict[Step, int]] = {
    user_steps.create: 14,
    user_steps.resize: 7,
    user_steps.delete: 6,
    user_steps.start_pods: 3,
    user_steps.plain_pods: 3,
    user_steps.end_plain_pods: 3,
    user_steps.race_for_a_node: 4,
    user_steps.delete_pod: 3,
    node_steps.lose_node: 5,
    node_steps.return_node: 5,
    node_steps.flap_node: 3,
    node_steps.replace_node: 4,
    node_steps.remove_node: 1,
    node_steps.break_link: 5,
    node_steps.repair_link: 3,
    node_steps.kill_plugin: 3,
    node_steps.stall_plugin: 3,
    node_steps.wipe_slices: 3,
    node_steps.edit_tag: 3,
    control_plane_steps.kill_controller_at_a_write: 8,
    control_plane_steps.partition_leader: 4,
    control_plane_steps.server_away: 2,
    control_plane_steps.expire_watches: 3,
    control_plane_steps.lag: 3,
    control_plane_steps.storm: 4,
    user_steps.delete_template: 3,
    user_steps.take_template_name: 1,
    user_steps.free_template_name: 1,
    user_steps.force_delete_claim: 2,
    user_steps.budget: 3,
}
