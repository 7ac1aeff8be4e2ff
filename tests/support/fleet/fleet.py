"""A fleet of UltraServers in one process: nodes with real plugins, kubelets, a scheduler, two controllers.

Everything is real except hardware, sockets and time. One seed decides everything that happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

from neuron_dra.api import objects
from neuron_dra.core.qualification import NAMESPACE as QUALIFICATION_NAMESPACE
from neuron_dra.core.qualification import TESTS
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.core.wire import Obj
from neuron_dra.demo.pod_scheduler import PodScheduler
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.errors import AlreadyExists, ApiError, NotFound
from neuron_dra.kube.client import MERGE_PATCH, KubeClient
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    ENDPOINT_SLICES,
    KUEUE_WORKLOADS,
    LEASES,
    NEURON_QUALIFICATIONS,
    NEURON_ULTRASERVERS,
    NEURON_WORKLOADS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SERVICES,
    Resource,
)
from tests.support.fleet import doubt_laws, qualify_laws, queue_laws, settled, spares, tenant_laws
from tests.support.fleet.clock import Clock, Trace
from tests.support.fleet.controllers import Replica
from tests.support.fleet.job_laws import MADE_FOR
from tests.support.fleet.known import EPOCH, Known
from tests.support.fleet.kueue import Kueue
from tests.support.fleet.network import Ledger, Line, Policy
from tests.support.fleet.nodes import FleetNode, racks
from tests.support.fleet.pods import SCHEDULER, Job, Pods
from tests.support.fleet.programs import ProgramsOfTests
from tests.support.fleet.safety import Safety, Violation
from tests.support.fleet.view import View, condition, state, template_name

USERS: Final = "fleet"  # the namespace of workloads and pods
TENANTS: Final = ("tenant-a", "tenant-b")  # more of them, where the seed has tenants
WATCHED: Final = (NODES, RESOURCE_SLICES, NEURON_ULTRASERVERS, NEURON_WORKLOADS, CLAIM_TEMPLATES, SERVICES)
JOBS: Final = Resource("batch", "v1", "jobs", namespaced=True)
NAMESPACES: Final = Resource("", "v1", "namespaces", namespaced=False)
BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets", namespaced=True)
TYPES: Final = ("trn2u.48xlarge", "trn3.48xlarge")
SETTLE_S: Final = 600.0  # limit for the fleet to settle
LOOK_S: Final = 1.0
FASTER: Final = 10.0  # factor of time on a real API server
HEARTBEAT_S: Final = 10.0  # in real seconds
_NOW: Final = {"gracePeriodSeconds": 0}
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
CORDONED: Final = "node.kubernetes.io/unschedulable"


class Fleet:
    """Use as `async with Fleet(...).running() as fleet`. All parts act through an API server."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        clock: Clock,
        connect: Callable[[str], KubeClient],
        *,
        ultraservers: int = 2,
        trace: Trace,
        api: EmbeddedApi | None = None,
        actors: Collection[str] = (),
        replicas: int = 2,
    ) -> None:
        """`api` is the embedded server, if it is one; `actors` are those of this run (`actors.py`).

        A single replica works without a Lease.
        """
        self.seed = seed
        self.api = api
        self.actors = frozenset(actors)
        self.namespaces = (USERS, *TENANTS) if "tenants" in self.actors else (USERS,)
        self.policies: list[Policy] = []
        self.ledger = Ledger()
        self.rng = random.Random(seed)
        self.clock = clock
        self.trace = trace
        self._connect = connect
        self.admin = connect("fleet admin")
        self.instance_type = self.rng.choice(TYPES)
        self.nodes = self._nodes(ultraservers, folder)
        self.lines: list[Line] = []
        # In half of the seeds the pods of a node are read instead of all claims, as in a cluster with many claims.
        self._claims_for_a_node = random.Random(f"{seed} claims for a node").choice((0, None))
        self.replicas = [self.replica(f"controller-{n}", elected=replicas > 1) for n in range(replicas)]
        self.pods = Pods(connect("fleet kubelets"), self.nodes, self.rng, trace, clock.now, deletes_orphans=api is None)
        self.scheduler_line = self.line("scheduler")
        self.scheduler = PodScheduler(self.scheduler_line, SCHEDULER)
        self.programs = ProgramsOfTests(clock.now, self.rng)
        if "qualifications" in self.actors:
            self.pods.programs = self.programs
        self.kueue = Kueue(self.line, clock.now)
        self.queued: set[str] = set()  # UIDs of workloads that had a queue from the beginning, and have one
        self.queue_required: frozenset[str] = frozenset()  # namespaces that require a queue for every reservation
        self.caches = self._caches()
        self.view = View(_Live(self.caches, self.pods))
        self.safety = self._laws()
        self.pods.on_start = self.safety.container_started
        self.ledger.on_eviction = self.safety.evicted
        self.budgets = False
        self.limits: dict[str, str | None] = {}  # by namespace: how many nodes it may reserve
        self.old_replicas: list[Replica] = []
        self.crd = "ours"  # or what is wrong with the one that is installed
        self.crd_since = EPOCH
        self.refused: set[str] = set()  # "Kind/name" of objects whose status a policy rejects
        self.taken_templates: set[str] = set()
        self.jobs_of: dict[str, str] = {}
        self.least: dict[str, int] = {}
        self._later: set[asyncio.Task[None]] = set()
        self._states: dict[str, tuple[str, str]] = {}
        self._told: dict[str, str] = {}  # the version of each workload that was looked at, by UID

    def _laws(self) -> Safety:
        """Return the laws that hold at any moment."""
        laws = Safety(self.view, self.pods, self.nodes, self.trace, self.clock.now)
        # Two controllers at once are guarded by nothing but resourceVersions.
        laws.keeps_spares = "spares" in self.actors and "two-at-once" not in self.actors
        laws.has_tests = "qualifications" in self.actors
        return laws

    def _nodes(self, ultraservers: int, folder: Path) -> dict[str, FleetNode]:
        """Return the nodes of these UltraServers, by name."""
        return {
            name: FleetNode(name, block, number, self.instance_type, folder, self.line)
            for block, names in racks(ultraservers)
            for number, name in enumerate(names)
        }

    def _caches(self) -> dict[str, Reflector]:
        """Return what the observer watches, by plural."""
        optional = {
            "jobs": JOBS,
            "queues": KUEUE_WORKLOADS,
            "ipv6": ENDPOINT_SLICES,
            "qualifications": NEURON_QUALIFICATIONS,
        }
        watched = [*WATCHED, *(resource for actor, resource in optional.items() if actor in self.actors)]
        return {each.plural: Reflector(self.admin, each, on_change=self._changed(each)) for each in watched}

    def replica(self, name: str, *, elected: bool = True) -> Replica:
        """Return a new replica of the controller, which is not started."""
        return Replica(
            name,
            self.line,
            self.clock,
            self.trace,
            elected=elected,
            claims_for_a_node=self._claims_for_a_node,
            flags=(
                *(("--jobs-may-reserve",) if "jobs" in self.actors else ()),
                *(("--queues",) if "queues" in self.actors else ()),
                *(spares.flags(self.instance_type) if "spares" in self.actors else ()),
                *(("--qualifications",) if "qualifications" in self.actors else ()),
            ),
        )

    def line(self, name: str) -> Line:
        """Return a new connection for a program."""
        made = Line(self._connect(name), self.rng, name)
        if name.startswith("controller"):
            made.policies, made.ledger = self.policies, self.ledger
            if "clocks" in self.actors:
                made.tell_dates(self.clock.now)
        self.lines.append(made)
        return made

    def _changed(self, resource: Resource) -> Callable[[], None]:
        def changed() -> None:
            if resource is NEURON_ULTRASERVERS:
                self.safety.ultraservers_changed()
            elif resource is RESOURCE_SLICES:
                self.safety.slices_changed()
            elif resource is NEURON_WORKLOADS:
                self._tell_workloads()
            elif resource is ENDPOINT_SLICES:
                self.safety.endpoints_changed()
            if resource in (NEURON_ULTRASERVERS, KUEUE_WORKLOADS):
                self._check_quota()

        return changed

    def _check_quota(self) -> None:
        """Judge the nodes of workloads with a queue, as the server has them."""
        if not self.queued or self.api is None or "two-at-once" in self.actors:
            return  # two controllers at once are guarded by nothing but resourceVersions
        seen = View({plural: _by_key(self.api.objects(plural)) for plural in ("neuronultraservers", "workloads")})
        workloads = self.view.all("neuronultraserverworkloads")
        for text in queue_laws.beyond_quota(seen.held(), workloads, seen.all("workloads"), self.queued):
            self.safety.violated(text)

    def _tell_workloads(self) -> None:
        for uid, workload in self.view.workloads().items():
            version = str(workload["metadata"]["resourceVersion"])
            if self._told.get(uid) == version:
                continue  # thousands of others have not changed
            self._told[uid] = version
            for text in tenant_laws.in_status(self.view, workload, self.namespaces):
                self.safety.violated(text)
            if uid not in self._states and queue_laws.queue_of(workload):
                self.queued.add(uid)
            ready = condition(workload, "Ready")
            now = state(workload), str(ready.get("reason"))
            if self._states.get(uid) != now:
                self._states[uid] = now
                if doubt_laws.has_expired_early(workload, self.clock.now()):
                    self.safety.violated(f"workload {workload['metadata']['name']} has expired before its time")
                self.trace(f"workload {workload['metadata']['name']} is {now[0]}, {now[1]}: {ready.get('message')}")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Fleet]:
        """Install everything, start all programs, and end them."""
        async with self.admin, self.pods._client:
            await self._install()
            if self.api is None:
                await self._wipe()
            tasks = [asyncio.create_task(cache.run()) for cache in self.caches.values()]
            tasks.append(asyncio.create_task(self.pods.run(), name="kubelets"))
            tasks.append(asyncio.create_task(self.scheduler.run(), name="scheduler"))
            if "qualifications" in self.actors:
                tests = PodScheduler(self.line("scheduler of tests"), "default-scheduler")
                tasks.append(asyncio.create_task(tests.run(), name="scheduler of tests"))
                tasks.append(asyncio.create_task(self._time_tests(), name="yield time"))
            if self.api is None:
                tasks.append(asyncio.create_task(self._beat(), name="heartbeats"))
            self._tasks = tasks
            try:
                for cache in self.caches.values():
                    await cache.synced.wait()
                for node in self.nodes.values():
                    await self.register(node)
                    node.start_plugin()
                for replica in self.replicas:
                    replica.start()
                yield self
            finally:
                await self.kueue.stop()
                for replica in (*self.replicas, *self.old_replicas):
                    await replica.stop()
                for node in self.nodes.values():
                    await node.kill_plugin()
                for task in (*tasks, *self._later):
                    task.cancel()
                await asyncio.gather(*tasks, *self._later, return_exceptions=True)
                if self.api is None:
                    await self._wipe()

    async def _install(self) -> None:
        tests = (QUALIFICATION_NAMESPACE,) if "qualifications" in self.actors else ()
        for name in (NAMESPACE, *self.namespaces, *tests):
            await self.ensure(NAMESPACES, "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for item in objects.DEVICE_CLASSES:
            await self.ensure(DEVICE_CLASSES, "", item)

    async def _wipe(self) -> None:
        """Remove all objects from a shared server."""
        for name in self.nodes:
            await self.remove(NODES, "", name)
        theirs = (NEURON_WORKLOADS, BUDGETS, PODS, RESOURCE_CLAIMS, CLAIM_TEMPLATES)
        for resource, namespace in (
            *((resource, namespace) for resource in theirs for namespace in self.namespaces),
            (NEURON_ULTRASERVERS, NAMESPACE),
            (LEASES, NAMESPACE),
            (RESOURCE_SLICES, ""),
        ):
            async for page in self.admin.list(resource, namespace):
                for item in page.decoded(dict).objects:
                    await self._erase(resource, namespace, item["metadata"]["name"])

    async def _erase(self, resource: Resource, namespace: str, name: str) -> None:
        path = resource.path(namespace, name)
        with contextlib.suppress(NotFound):
            if resource in (NEURON_WORKLOADS, NEURON_ULTRASERVERS, RESOURCE_CLAIMS):
                await self.patch(resource, namespace, name, {"metadata": {"finalizers": None}})
            await self.admin.request("DELETE", path, body={"kind": "DeleteOptions", "apiVersion": "v1"} | _NOW)

    async def _time_tests(self) -> None:
        """Note again and again for how long workloads wait for tests."""
        waits = qualify_laws.YieldTime(self)
        while True:
            await asyncio.sleep(qualify_laws.LOOK_S)
            waits.look()

    async def _beat(self) -> None:
        """Send the heartbeats of running nodes, which a real node controller expects every 40 s."""
        while True:
            await asyncio.sleep(HEARTBEAT_S * FASTER)
            for node in self.nodes.values():
                if node.alive and node.kubelet_up and node.present and node.line is not None and node.line.up:
                    with contextlib.suppress(ApiError):
                        await self.set_ready(node, True)

    async def ensure(self, resource: Resource, namespace: str, body: Obj) -> None:
        """Create an object, unless it exists."""
        with contextlib.suppress(AlreadyExists):
            await self.admin.create(resource, namespace, body)

    async def remove(self, resource: Resource, namespace: str, name: str) -> None:
        """Delete an object, if it exists."""
        with contextlib.suppress(NotFound):
            await self.admin.delete(resource, namespace, name)

    async def patch(self, resource: Resource, namespace: str, name: str, patch: Obj, part: str = "") -> Obj:
        """Merge-patch an object, or its status."""
        path = resource.path(namespace, name, part)
        raw = await self.admin.request("PATCH", path, body=patch, content_type=MERGE_PATCH)
        found: Obj = json.loads(raw)
        return found

    async def register(self, node: FleetNode) -> None:
        """Create a Ready Node object, as a kubelet does."""
        node.present = True
        await self.ensure(NODES, "", node.node_object())
        await self.set_ready(node, True)

    async def set_ready(self, node: FleetNode, ready: bool) -> None:
        """Write the Node's condition Ready and its taint, as kubelet and node controller do."""
        beat = self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {"type": "Ready", "status": "True" if ready else "Unknown", "lastTransitionTime": beat}
        if self.api is None:
            condition["lastHeartbeatTime"] = beat
        node.ready, node.ready_condition = ready, condition
        with contextlib.suppress(NotFound):
            await self.write_conditions(node)
            await self.set_taints(node)

    async def write_conditions(self, node: FleetNode) -> None:
        """Write the Node's condition Ready, and those of agents."""
        conditions = [node.ready_condition, *node.conditions.values()]
        status = {"conditions": conditions, "nodeInfo": {"kubeletVersion": "v1.37.0"}}
        await self.patch(NODES, "", node.name, {"status": status}, "status")

    async def set_taints(self, node: FleetNode) -> None:
        """Write the Node's taints, and whether it is cordoned."""
        keys = [*([] if node.ready else [UNREACHABLE]), *([CORDONED] if node.cordoned else []), *sorted(node.taints)]
        taints = [{"key": key, "effect": "NoSchedule"} for key in keys]
        spec = {"taints": taints or None, "unschedulable": True if node.cordoned else None}
        with contextlib.suppress(NotFound):
            await self.patch(NODES, "", node.name, {"spec": spec})

    # Waiting

    def problems(self) -> list[str]:
        """The conditions that do not hold yet."""
        known = Known(
            budgets=self.budgets,
            taken_templates=frozenset(self.taken_templates),
            jobs_of=dict(self.jobs_of),
            actors=self.actors,
            refused=frozenset(self.refused),
            crd=self.crd,
            crd_since=self.crd_since,
            limits=frozenset(namespace for namespace, limit in self.limits.items() if limit is not None),
            unlimited=frozenset(namespace for namespace, limit in self.limits.items() if limit is None),
            queue_required=self.queue_required,
            now=self.clock.now(),
        )
        return settled.problems(self.view, self.nodes, self.pods, known)

    def check(self) -> None:
        """Raise a violation of an invariant. Raises Violation."""
        self.safety.check()
        if "back-off" in self.actors and self.ledger.found:
            raise Violation("; ".join(self.ledger.found))
        for replica in self.replicas:
            if (died := replica.died()) is not None:
                raise Violation(f"{replica.name} died: {died!r}") from died
        for node in self.nodes.values():
            if (died := node.died()) is not None:
                raise Violation(f"the plugin of {node.name} died: {died!r}") from died
        for task in self._tasks:
            if task.done():
                task.result()

    async def sleep(self, seconds: float) -> None:
        """Let time pass. Raises Violation."""
        await asyncio.sleep(seconds)
        self.check()

    async def settle(self, what: str, extra: Callable[[], list[str]] = list) -> None:
        """Wait until the fleet has settled, twice in a row. Raises Violation when that takes too long."""
        deadline, quiet = self.clock.elapsed + SETTLE_S, 0
        left: list[str] = []
        while quiet < 2:
            await self.sleep(LOOK_S)
            left = [*self.problems(), *extra()]
            quiet = 0 if left else quiet + 1
            if left and self.clock.elapsed > deadline:
                text = f"{what}: not settled after {SETTLE_S:g} s: {'; '.join(left)}"
                self.trace(f"VIOLATION: {text}")
                raise Violation(text)

    # Users

    async def submit(
        self,
        name: str,
        size: int,
        count: int,
        strategy: str = "NoOp",
        template: str = "",
        namespace: str = USERS,
        queue: str = "",
        **more: Any,
    ) -> Obj | None:
        """Create a workload, with `more` in its spec; None if the name is taken."""
        spec: Obj = {
            "instanceType": self.instance_type,
            "topologySize": size,
            "serverCount": count,
            "allocationPolicy": {"failureStrategy": strategy},
            **more,
        }
        if template:
            spec["resourceClaimTemplate"] = {"name": template}
        body: Obj = {
            "apiVersion": "neuron.aws.com/v1beta1",
            "kind": "NeuronUltraServerWorkload",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }
        if queue:
            body["metadata"] = {"name": name, "namespace": namespace, "labels": {queue_laws.LABEL: queue}}
        try:
            return await self.admin.create(NEURON_WORKLOADS, namespace, body)
        except AlreadyExists:
            return None

    def start_job(self, workload: Obj, replicas: int | None = None) -> Job:
        """Create `replicas` pods for a workload; by default one for each of its nodes, within the size of the fleet."""
        meta, spec = workload["metadata"], workload["spec"]
        wanted = min(int(spec["topologySize"]) * int(spec["serverCount"]), len(self.nodes))
        wanted = wanted if replicas is None else replicas
        job = Job(f"{meta['name']}-{meta['uid'][:4]}", meta["namespace"], template_name(workload), wanted)
        self.pods.jobs[job.name] = job
        self.jobs_of[job.name] = meta["uid"]
        return job

    def resized(self, workload_uid: str, count: int) -> None:
        """Record the smallest request of a workload since the last check."""
        self.least[workload_uid] = min(count, self.least.get(workload_uid, count))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Schedule an action."""
        task = asyncio.create_task(_quietly(work))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def workloads(self, *, leaving: bool = False) -> list[Obj]:
        """The existing workloads that a user made, by name."""
        every = [dict(item) for item in self.view.all("neuronultraserverworkloads")]
        found = [item for item in every if not {MADE_FOR, TESTS} & {*(item["metadata"].get("annotations") or {})}]
        return [item for item in found if bool(item["metadata"].get("deletionTimestamp")) == leaving]


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(ApiError):
        await work


def _by_key(items: Iterable[Obj]) -> dict[str, Obj]:
    return {f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}": item for item in items}


class _Live(dict[str, Any]):
    """The caches' objects by kind; a cache replaces its dictionary when it lists again."""

    def __init__(self, caches: dict[str, Reflector], pods: Pods) -> None:
        super().__init__()
        self._caches = caches
        self._pods = pods

    def __missing__(self, plural: str) -> Any:
        if plural == "pods":
            return self._pods.pods.items
        if plural == "resourceclaims":
            return self._pods.claims.items
        return self._caches[plural].items
