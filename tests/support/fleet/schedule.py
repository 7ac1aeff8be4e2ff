"""The seeded schedule: what users do and what goes wrong, one step after the other; at the end all is healed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from neuron_dra.errors import ApiError
from neuron_dra.kube.requests import CLAIM_TEMPLATES, NEURON_WORKLOADS, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.support.fleet.actors import ACTORS
from tests.support.fleet.fleet import BUDGETS, USERS, Fleet
from tests.support.fleet.mix import Mix, Step, Wire
from tests.support.fleet.network import WATCH_LAG_S, Storm
from tests.support.fleet.nodes import BROKEN_MODES, MODES, FleetNode
from tests.support.fleet.pods import PLAIN, Job, plain_template
from tests.support.fleet.settled import astray, robbed, template_name

STRATEGIES: Final = ("NoOp", "RestartAll", "MigrateAffected", "ReplaceAffected")
NODE_NOTICED_S: Final = 40.0  # from a node's last sign of life to NotReady
MOST_WORKLOADS: Final = 5
PAUSES: Final = ((0.0, 0.05, 0.3, 1.0, 3.0, 10.0, 30.0, 80.0, 350.0), (8, 8, 8, 8, 8, 8, 8, 2, 1))
"""Seconds between steps, and how often: strategies act after one minute, or five."""


async def drive(fleet: Fleet, steps: int) -> None:
    """Run the whole schedule. Raises Violation."""
    schedule = Schedule(fleet)
    await schedule.begin()
    for number in range(1, steps + 1):
        await schedule.step(number)
    await schedule.end()


class Schedule:
    """Chooses and performs the steps. A step returns what it did, or None if there was nothing to do it to."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.rng = fleet.rng
        self.mix = Mix.of(fleet.seed, {name: ACTORS[name] for name in fleet.actors}, STEPS)
        self.made = 0
        self.foreign: set[tuple[str, str]] = set()  # namespace and name of templates that are in a workload's way

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
        """Do one thing, and let some time pass."""
        fleet = self.fleet
        for _ in range(20):
            step = self.rng.choices(self.mix.steps, self.mix.weights)[0]
            try:
                did = await step(self)
            except ApiError as err:  # what we wanted to touch is gone, or somebody was faster
                did = f"tried to {step.__name__}: {err}"
            if did is not None:
                fleet.trace(f"STEP {number}: {did}")
                break
        await fleet.sleep(self.rng.choices(*PAUSES)[0])
        if self.rng.random() < 0.35:
            await fleet.settle(f"after step {number}")

    async def end(self) -> None:
        """Heal everything and settle; then have everybody leave, and see that nothing is left."""
        fleet = self.fleet
        await self.heal()
        fleet.trace("STEP: all is healed")
        await fleet.settle("after all was healed")
        for workload in fleet.workloads():
            await fleet.remove(NEURON_WORKLOADS, *_place(workload))
        fleet.trace("STEP: all workloads are deleted")
        await fleet.settle("after all workloads were deleted", self._left_of_workloads)
        for job in fleet.pods.jobs.values():
            job.replicas = 0
        await fleet.settle("after all pods were deleted", self._left)

    def _left_of_workloads(self) -> list[str]:
        view = self.fleet.view
        return [
            *(f"workload {uid} is left" for uid in view.workloads()),
            *(f"reservation {each} is left" for each in view.held()),
            *(f"node {node} is still tagged" for node, tag in view.tags().items() if tag is not None),
        ]

    def _left(self) -> list[str]:
        view = self.fleet.view
        return [
            *self._left_of_workloads(),
            *(f"pod {pod['metadata']['name']} is left" for pod in view.all("pods")),
            *(f"claim {claim['metadata']['name']} is left" for claim in view.all("resourceclaims")),
            *(
                f"{node.name} has prepared {left}"
                for node in self.fleet.nodes.values()
                if (left := node.checkpointed - node.adopted)
            ),
        ]

    async def heal(self) -> None:
        """Undo every fault that lasts."""
        fleet = self.fleet
        for line in fleet.lines:
            line.mend()
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
            if robbed(fleet.view, pod) or (uid and astray(fleet.view, pod, uid)):
                await fleet.pods.delete(dict(pod))

    async def bring_back(self, node: FleetNode) -> None:
        """Have a node there, Ready, with its plugin."""
        if not node.present:
            await self.fleet.register(node)
        elif not (node.alive and node.kubelet_up):
            await self.fleet.set_ready(node, True)
        node.alive = node.kubelet_up = True
        if node.line is not None:
            node.line.mend()
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
        """One node of those that fit; reserved ones more often."""
        fitting = [node for node in self.fleet.nodes.values() if wanted(node)]
        reserved = [node for node in fitting if node.name in self.fleet.view.holders()]
        chosen = reserved if reserved and self.rng.random() < 0.7 else fitting
        return self.rng.choice(chosen) if chosen else None

    def workload(self) -> Wire | None:
        """One workload that nobody deletes."""
        found = self.fleet.workloads()
        return self.rng.choice(found) if found else None

    def namespace(self) -> str:
        """The namespace of whoever does something."""
        there = self.fleet.namespaces
        return self.rng.choice(there) if len(there) > 1 else there[0]

    def job_of(self, workload: Wire) -> Job | None:
        """The pods of a workload, if there are any."""
        uid = workload["metadata"]["uid"]
        return next((self.fleet.pods.jobs[name] for name, of in self.fleet.jobs_of.items() if of == uid), None)

    # Users

    async def create(self) -> str | None:
        """Somebody wants UltraServers."""
        if len(self.fleet.workloads()) >= MOST_WORKLOADS:
            return None
        size = self.rng.choice((1, 2, 2, 4, 4))
        most = max(1, len(self.fleet.nodes) // size)
        count = self.rng.randint(1, min(most, 3))
        self.made += 1
        name = f"w{self.made}" if self.rng.random() < 0.8 else self.rng.choice(("again", "anew"))
        template, namespace = self.rng.choice(("", f"{name}-rct")), self.namespace()
        made = await self.fleet.submit(name, size, count, self.rng.choice(STRATEGIES), template, namespace)
        if made is None:
            return None
        if self.rng.random() < 0.8:
            self.fleet.start_job(made)
        spec = made["spec"]
        where = f" in {namespace}" if namespace != USERS else ""
        return f"create workload {name}{where}: {count} x {size}, {spec['allocationPolicy']['failureStrategy']}"

    async def resize(self) -> str | None:
        """Somebody wants more, or less."""
        workload = self.workload()
        if workload is None:
            return None
        name, size, count = (
            workload["metadata"]["name"],
            workload["spec"]["topologySize"],
            workload["spec"]["serverCount"],
        )
        wanted = self.rng.choice(
            [n for n in (1, 2, 3, 4) if n != count and n * size <= len(self.fleet.nodes)] or [count]
        )
        if wanted == count:
            return None
        await self.fleet.patch(NEURON_WORKLOADS, *_place(workload), {"spec": {"serverCount": wanted}})
        job = self.job_of(workload)
        if job is not None:
            job.replicas = wanted * size
        self.fleet.resized(workload["metadata"]["uid"], wanted)
        return f"resize workload {name}: {count} -> {wanted}"

    async def delete(self) -> str | None:
        """Somebody is done, and may want it again at once."""
        workload = self.workload()
        if workload is None:
            return None
        meta, spec = workload["metadata"], workload["spec"]
        await self.fleet.remove(NEURON_WORKLOADS, *_place(workload))
        job = self.job_of(workload)
        if job is not None and self.rng.random() < 0.5:
            job.replicas = 0
        return f"delete workload {meta['name']} ({spec['serverCount']} x {spec['topologySize']})"

    async def start_pods(self) -> str | None:
        """The pods of a workload come later."""
        workload = self.workload()
        if workload is None or self.job_of(workload) is not None:
            return None
        job = self.fleet.start_job(workload)
        return f"start {job.replicas} pods of {workload['metadata']['name']}"

    async def plain_pods(self) -> str | None:
        """Somebody runs a pod that takes a whole node, and knows nothing of workloads."""
        self.made += 1
        job = Job(f"plain{self.made}", self.namespace(), PLAIN, self.rng.randint(1, 2))
        self.fleet.pods.jobs[job.name] = job
        return f"start {job.replicas} plain pods {job.name}"

    async def end_plain_pods(self) -> str | None:
        """Plain pods end."""
        jobs = [job for job in self.fleet.pods.jobs.values() if job.template == PLAIN and job.replicas]
        if not jobs:
            return None
        job = self.rng.choice(jobs)
        job.replicas = 0
        return f"end plain pods {job.name}"

    async def race_for_a_node(self) -> str | None:
        """A plain pod and a workload want the same nodes at the same moment, and the scheduler lags behind."""
        self.fleet.scheduler_line.lag_s = (0.0, self.rng.choice((0.2, 2.0, 6.0)))
        steps = [self.plain_pods, self.create]
        self.rng.shuffle(steps)
        first = await steps[0]()
        await asyncio.sleep(self.rng.uniform(0.0, 1.0))
        return f"{first}, and {await steps[1]()}"

    async def delete_pod(self) -> str | None:
        """A pod is deleted; its owner makes another."""
        pods = self.fleet.view.all("pods")
        if not pods:
            return None
        pod = dict(self.rng.choice(pods))
        await self.fleet.pods.delete(pod, now=self.rng.random() < 0.3)
        return f"delete pod {pod['metadata']['name']}"

    # Nodes

    async def lose_node(self) -> str | None:
        """A node loses its power; nobody knows for a while."""
        node = self.node(lambda n: n.alive and n.present)
        if node is None:
            return None
        node.alive = False
        self.fleet.pods.node_lost_power(node)
        await node.kill_plugin()
        node.reboot()

        async def noticed() -> None:
            await asyncio.sleep(NODE_NOTICED_S)
            if not node.alive and node.present:
                await self.fleet.set_ready(node, False)

        self.fleet.spawn(noticed())
        return f"node {node.name} loses its power"

    async def return_node(self) -> str | None:
        """A node that was lost boots."""
        node = self.node(lambda n: not n.alive or not n.present)
        if node is None:
            return None
        await self.bring_back(node)
        return f"node {node.name} is back"

    async def flap_node(self) -> str | None:
        """A node is cut off and NotReady for a short time; its containers run on."""
        node = self.node(lambda n: n.healthy)
        if node is None or node.line is None:
            return None
        node.line.cut()
        await self.fleet.set_ready(node, False)
        seconds = self.rng.choice((2.0, 20.0, 70.0))

        async def back() -> None:
            await asyncio.sleep(seconds)
            if node.present and node.alive:
                if node.line is not None:
                    node.line.mend()
                await self.fleet.set_ready(node, True)

        self.fleet.spawn(back())
        return f"node {node.name} is NotReady and cut off for {seconds:g} s"

    async def replace_node(self) -> str | None:
        """Another instance comes under the same name, at the same place or at once after the old one."""
        node = self.node(lambda n: True)
        if node is None:
            return None
        node.alive = False
        self.fleet.pods.node_lost_power(node)
        await node.kill_plugin()
        node.present = False
        await self.fleet.remove(NODES, "", node.name)
        self.fleet.pods.wake()
        await self.fleet.sleep(self.rng.choice((0.0, 0.5, 5.0)))
        node.renew()
        await self.bring_back(node)
        return f"node {node.name} is replaced by another instance of the same name"

    async def remove_node(self) -> str | None:
        """A node is lost, and somebody deletes it."""
        node = self.node(lambda n: n.present)
        if node is None:
            return None
        node.alive = node.present = False
        self.fleet.pods.node_lost_power(node)
        await node.kill_plugin()
        await self.fleet.remove(NODES, "", node.name)
        node.renew()
        self.fleet.pods.wake()
        return f"node {node.name} is gone for good"

    async def break_link(self) -> str | None:
        """Links between nodes go down."""
        node = self.node(lambda n: n.present and n.modes == MODES)
        if node is None:
            return None
        modes = self.rng.choice(BROKEN_MODES)
        node.set_modes(modes)
        return f"links of {node.name} are down, modes {modes}"

    async def repair_link(self) -> str | None:
        """The links are up again."""
        node = self.node(lambda n: n.modes != MODES)
        if node is None:
            return None
        node.set_modes(MODES)
        return f"links of {node.name} are up"

    # Plugins

    async def kill_plugin(self) -> str | None:
        """The plugin is killed, and started again after a while."""
        node = self.node(lambda n: n.plugin is not None)
        if node is None:
            return None
        await node.kill_plugin()
        seconds = self.rng.choice((0.1, 5.0, 40.0, 120.0))

        async def back() -> None:
            await asyncio.sleep(seconds)
            if node.alive and node.present:
                node.start_plugin()

        self.fleet.spawn(back())
        return f"the plugin of {node.name} is killed, for {seconds:g} s"

    async def stall_plugin(self) -> str | None:
        """The plugin does not run for a while, and goes on with what it knew."""
        node = self.node(lambda n: n.plugin_up)
        if node is None or node.line is None:
            return None
        line = node.line
        line.hold()
        seconds = self.rng.choice((3.0, 30.0, 90.0))
        asyncio.get_running_loop().call_later(seconds, line.release)
        return f"the plugin of {node.name} stalls for {seconds:g} s"

    async def wipe_slices(self) -> str | None:
        """The kubelet of a node starts again, and deletes the slices of all drivers."""
        node = self.node(lambda n: n.alive and n.present)
        if node is None:
            return None
        mine = [s for s in self.fleet.view.all("resourceslices") if s["spec"]["nodeName"] == node.name]
        for item in mine:
            await self.fleet.remove(RESOURCE_SLICES, "", item["metadata"]["name"])
        return f"the slices of {node.name} are wiped"

    async def edit_tag(self) -> str | None:
        """Somebody edits a tag by hand."""
        slices = [s for s in self.fleet.view.all("resourceslices") if s["spec"].get("devices")]
        if not slices:
            return None
        item: Wire = dict(self.rng.choice(slices))
        devices = [dict(device) for device in item["spec"]["devices"]]
        what = self.rng.choice(("remove", "alter", "invent"))
        for device in devices:
            attributes = dict(device["attributes"])
            if what == "remove":
                for name in ("workloadUid", "workloadPhase", "allocationId"):
                    attributes.pop(name, None)
            elif what == "alter":
                attributes["workloadPhase"] = {"string": "Bound"}
            else:
                attributes |= {"workloadUid": {"string": "nobody"}, "workloadId": {"string": "nobody"}}
            device["attributes"] = attributes
        changed = {**item, "spec": {**item["spec"], "devices": devices}}
        await self.fleet.admin.replace(RESOURCE_SLICES, "", changed)
        return f"the tag of {item['spec']['nodeName']} is edited by hand: {what}"

    # Controllers and the API server

    async def kill_controller_at_a_write(self) -> str | None:
        """The leader dies at one of its next writes, before or after it is carried out."""
        leaders = [replica for replica in self.fleet.replicas if replica.leads]
        if not leaders:
            return None
        nth, after = self.rng.randint(1, 6), self.rng.random() < 0.5
        leaders[0].arm(nth, after, self.rng.choice((0.5, 5.0, 60.0)))
        return f"{leaders[0].name} is to die {'after' if after else 'before'} write {nth} from now"

    async def partition_leader(self) -> str | None:
        """The leader is cut off, or stops as it is about to write: it has to give up before the other begins."""
        leaders = [replica for replica in self.fleet.replicas if replica.leads]
        if not leaders or leaders[0].line is None:
            return None
        line, seconds = leaders[0].line, self.rng.choice((3.0, 20.0, 40.0))
        if self.rng.random() < 0.6:
            line.stall_s = seconds
            begun = await self.rng.choice((self.create, self.create, self.delete, self.resize))()
            return f"{leaders[0].name} is to stop for {seconds:g} s at its next write; {begun}"
        line.cut()
        asyncio.get_running_loop().call_later(seconds, line.mend)
        return f"{leaders[0].name} is cut off for {seconds:g} s"

    async def server_away(self) -> str | None:
        """The API server is away for everybody."""
        seconds = self.rng.choice((1.0, 15.0, 60.0))
        cut = [line for line in self.fleet.lines if line.up and not line.dead]
        for line in cut:
            line.cut()
        loop = asyncio.get_running_loop()
        for line in cut:
            loop.call_later(seconds, line.mend)
        return f"the API server is away for {seconds:g} s"

    async def expire_watches(self) -> str | None:
        """Watches end with a 410."""
        plural = self.rng.choice(("", "neuronultraservers", "resourceslices", "resourceclaims", "nodes"))
        number = sum(line.expire_watches(plural) for line in self.fleet.lines)
        return f"{number} watches of {plural or 'everything'} are too old"

    async def lag(self) -> str | None:
        """Watches of one program are late, each kind by another time."""
        line = self.rng.choice([line for line in self.fleet.lines if not line.dead])
        line.lag_s = (0.0, self.rng.choice((0.5, 5.0)))
        asyncio.get_running_loop().call_later(60.0, _reset_lag, line)
        return f"watches of {line.name} lag up to {line.lag_s[1]:g} s"

    async def storm(self) -> str | None:
        """Requests of the controllers or of a plugin are refused for a while."""
        status, times = self.rng.choice((409, 429, 500, 503)), self.rng.choice((1, 3, 10))
        writes_only = status == 409 or self.rng.random() < 0.5
        chosen = [replica.line for replica in self.fleet.replicas if replica.line is not None]
        node = self.node(lambda n: n.line is not None)
        if node is not None and node.line is not None and self.rng.random() < 0.5:
            chosen = [node.line]
        for line in chosen:
            line.storm = Storm(status, times, writes_only)
        return f"the next {times} requests of {', '.join(line.name for line in chosen)} get a {status}"

    # Objects of others

    async def delete_template(self) -> str | None:
        """Somebody deletes the template of a workload."""
        workload = self.workload()
        if workload is None:
            return None
        place = workload["metadata"]["namespace"], template_name(workload)
        if place in self.foreign:
            return None
        await self.fleet.remove(CLAIM_TEMPLATES, *place)
        return f"the template of {workload['metadata']['name']} is deleted"

    async def take_template_name(self) -> str | None:
        """A template has the name that the next workload of that name would give to its own."""
        if self.foreign:
            return None
        name, namespace = f"w{self.made + 1}", self.namespace()
        await self.fleet.admin.create(CLAIM_TEMPLATES, namespace, {**plain_template(), "metadata": {"name": name}})
        self.foreign.add((namespace, name))
        self.fleet.taken_templates.add(f"{namespace}/{name}")
        return f"somebody has a template {namespace}/{name}"

    async def free_template_name(self) -> str | None:
        """The template that was in the way is deleted."""
        if not self.foreign:
            return None
        namespace, name = sorted(self.foreign)[0]
        await self.fleet.remove(CLAIM_TEMPLATES, namespace, name)
        self.foreign.discard((namespace, name))
        self.fleet.taken_templates.discard(f"{namespace}/{name}")
        return f"somebody's template {namespace}/{name} is gone"

    async def force_delete_claim(self) -> str | None:
        """Somebody deletes a claim that is in use, finalizers and all."""
        claims = [c for c in self.fleet.view.all("resourceclaims") if (c.get("status") or {}).get("allocation")]
        if not claims:
            return None
        meta = self.rng.choice(claims)["metadata"]
        with contextlib.suppress(ApiError):
            await self.fleet.patch(RESOURCE_CLAIMS, meta["namespace"], meta["name"], {"metadata": {"finalizers": None}})
        await self.fleet.remove(RESOURCE_CLAIMS, meta["namespace"], meta["name"])
        return f"claim {meta['name']} is deleted by force"

    async def budget(self) -> str | None:
        """A budget forbids every eviction, until it is gone."""
        if self.fleet.budgets:
            await self.remove_budgets()
            return "the budget is gone"
        spec = {"minAvailable": 1000, "selector": {}}
        body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "tight"}, "spec": spec}
        for namespace in self.fleet.namespaces:
            await self.fleet.admin.create(BUDGETS, namespace, body)
        self.fleet.budgets = True
        return "a budget forbids evictions"


def _place(item: Wire) -> tuple[str, str]:
    """Namespace and name."""
    return item["metadata"]["namespace"], item["metadata"]["name"]


def _reset_lag(line: Any) -> None:
    line.lag_s = WATCH_LAG_S


STEPS: Final[dict[Step, int]] = {
    Schedule.create: 14,
    Schedule.resize: 7,
    Schedule.delete: 6,
    Schedule.start_pods: 3,
    Schedule.plain_pods: 3,
    Schedule.end_plain_pods: 3,
    Schedule.race_for_a_node: 4,
    Schedule.delete_pod: 3,
    Schedule.lose_node: 5,
    Schedule.return_node: 5,
    Schedule.flap_node: 3,
    Schedule.replace_node: 4,
    Schedule.remove_node: 1,
    Schedule.break_link: 5,
    Schedule.repair_link: 3,
    Schedule.kill_plugin: 3,
    Schedule.stall_plugin: 3,
    Schedule.wipe_slices: 3,
    Schedule.edit_tag: 3,
    Schedule.kill_controller_at_a_write: 8,
    Schedule.partition_leader: 4,
    Schedule.server_away: 2,
    Schedule.expire_watches: 3,
    Schedule.lag: 3,
    Schedule.storm: 4,
    Schedule.delete_template: 3,
    Schedule.take_template_name: 1,
    Schedule.free_template_name: 1,
    Schedule.force_delete_claim: 2,
    Schedule.budget: 3,
}
