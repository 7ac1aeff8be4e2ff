"""Measure reservations in queues of the real Kueue: the time from admission to Allocated, beside ones without a queue.

kube-apiserver, Kueue and the controller are real. The UltraServers are Node objects, and one process runs the plugin's
own code for all of them. All gangs are queued at the beginning; each is deleted soon after it is Allocated, and its
quota goes to the next. Times are those at which a watch in this process sees the change.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hack.bed import build, kueue, network
from hack.bench import api as bench_api
from hack.bench.cluster import PLACE, Cluster, Controller, workload
from hack.bench.controller import PATIENT, discovered, progress
from hack.bench.shared import beside, few_at_a_time
from hack.bench.swarm import INSTANCE_TYPE, Swarm
from hack.bench.table import quantile
from hack.reports.reporting import commit_now
from neuron_dra.core.wire import Obj
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig, from_kubeconfig
from neuron_dra.kube.requests import KUEUE_WORKLOADS, NEURON_WORKLOADS, Resource

REPORT: Final = bench_api.REPOSITORY / "docs" / "reports" / "queues.md"
RESOURCE: Final = "neuron.aws.com/ultraserver-node"
LABEL: Final = "kueue.x-k8s.io/queue-name"
API: Final = ("kueue.x-k8s.io", "v1beta2")
FLAVORS: Final = Resource(*API, "resourceflavors", namespaced=False)
CLUSTER_QUEUES: Final = Resource(*API, "clusterqueues", namespaced=False)
LOCAL_QUEUES: Final = Resource(*API, "localqueues", namespaced=True)
QUEUES: Final = ("red", "green", "blue")
LARGEST: Final = 16  # groups of a gang, each a whole UltraServer
NODES_OF_A_GROUP: Final = 4
HELD_S: Final = 1.0  # from Allocated to the end of a gang
IN_FLIGHT: Final = 16


@dataclass(slots=True)
class Times:
    """When a watch saw each change, by name of the workload, in seconds of the monotonic clock."""

    admitted: dict[str, float] = field(default_factory=dict)
    allocated: dict[str, float] = field(default_factory=dict)
    given_back: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def saw_reservation(self, event: Obj) -> None:
        """Note a change of a NeuronUltraServerWorkload."""
        name = str(event["object"]["metadata"]["name"])
        status = event["object"].get("status", {})
        if event["type"] == "DELETED":
            self.gone.add(name)
        elif status.get("state") == "Allocated":
            self.allocated.setdefault(name, time.monotonic())
        if status.get("queue", {}).get("returned"):
            self.given_back.add(name)

    def saw_workload(self, event: Obj) -> None:
        """Note a change of Kueue's Workload. If a gang is admitted again, the last time counts."""
        [owner] = event["object"]["metadata"].get("ownerReferences") or [{"name": ""}]
        name = str(owner["name"])
        if name in self.allocated:
            return
        conditions = event["object"].get("status", {}).get("conditions", ())
        if not any((each["type"], each["status"]) == ("Admitted", "True") for each in conditions):
            self.admitted.pop(name, None)
        else:
            self.admitted.setdefault(name, time.monotonic())

    async def follow(self, client: KubeClient, resource: Resource) -> None:
        """Watch one of the two kinds until cancelled."""
        note = self.saw_workload if resource is KUEUE_WORKLOADS else self.saw_reservation
        version = "0"
        while True:
            params = {"resourceVersion": version, "timeoutSeconds": "300"}
            async with client.watch(resource, PLACE, params, idle_timeout_s=420) as lines:
                async for line in lines:
                    event = json.loads(line)
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        note(event)
                        self.changed.set()

    async def until_allocated(self, name: str) -> None:
        """Wait until a workload is Allocated."""
        while name not in self.allocated:
            self.changed.clear()
            await self.changed.wait()

    async def until_gone(self, name: str) -> None:
        """Wait until a workload is gone."""
        while name not in self.gone:
            self.changed.clear()
            await self.changed.wait()


def main() -> int:
    """Run it, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ultraservers", type=int, default=100)
    parser.add_argument("--gangs", type=int, default=1000)
    parser.add_argument("--minutes", type=float, help="stop after so long, and report the gangs until then")
    parser.add_argument("--seed", type=int, default=1, help="of the gangs' sizes")
    parser.add_argument("--kubernetes", choices=build.KUBERNETES)
    parser.add_argument("--report", action="store_true", help=f"write {REPORT.relative_to(bench_api.REPOSITORY)}")
    parsed = parser.parse_args()
    load = os.getloadavg()[0]
    with bench_api.running(parsed.kubernetes) as plane:
        options = kueue.Options(health=network.free_port(), webhooks=network.free_port())
        kueue.up(plane, options)
        figures = asyncio.run(measure(parsed, plane, from_kubeconfig(plane.layout.kubeconfig)))
    text = report(parsed, figures, load)
    print(text)
    if parsed.report:
        REPORT.write_text(text)
    print(f"{len(figures.queued)} of {parsed.gangs} gangs passed through the queues")
    return 0


async def measure(parsed: argparse.Namespace, plane: bench_api.Plane, kube: KubeConfig) -> Figures:
    """Run all gangs through the queues, and workloads without one beside them."""
    plugins = KubeClient(kube, user_agent="swarm", timing=PATIENT)
    async with KubeClient(kube, user_agent="bench", timing=PATIENT) as client, plugins:
        cluster = Cluster(client, bench_api.Writes(plane.layout.audit_log))
        await cluster.prepare()
        # Workloads without a queue have room of their own, so that they wait for no gang either.
        await make_queues(client, (parsed.ultraservers - LARGEST) * NODES_OF_A_GROUP)
        swarm = Swarm(plugins)
        await swarm.grow(parsed.ultraservers)
        log = plane.layout.log_dir / "controller.log"
        with Controller(plane.layout.kubeconfig, log, "--queues") as controller:
            await discovered(cluster, parsed.ultraservers)
            progress("all UltraServers are Ready")
            async with swarm.tagging():
                return await contend(parsed, client, controller)


async def make_queues(client: KubeClient, nodes: int) -> None:
    """Create three queues of one cohort, which together have quota for this number of nodes."""
    labels = {"node.kubernetes.io/instance-type": INSTANCE_TYPE}
    flavor = {"metadata": {"name": "trn3"}, "spec": {"nodeLabels": labels}}
    await client.create(FLAVORS, "", _kueue("ResourceFlavor", flavor))
    for number, name in enumerate(QUEUES):
        groups = nodes // NODES_OF_A_GROUP
        own = groups // len(QUEUES) + (1 if number < groups % len(QUEUES) else 0)
        quota = {"name": RESOURCE, "nominalQuota": own * NODES_OF_A_GROUP}
        covered = {"coveredResources": [RESOURCE], "flavors": [{"name": "trn3", "resources": [quota]}]}
        spec: Obj = {"cohortName": "fleet", "namespaceSelector": {}, "resourceGroups": [covered]}
        meta = {"name": name}
        await client.create(CLUSTER_QUEUES, "", _kueue("ClusterQueue", {"metadata": meta, "spec": spec}))
        local = {"metadata": meta, "spec": {"clusterQueue": name}}
        await client.create(LOCAL_QUEUES, PLACE, _kueue("LocalQueue", local))


def _kueue(kind: str, body: Obj) -> Obj:
    return {"apiVersion": "/".join(API), "kind": kind, **body}


@dataclass(frozen=True, slots=True)
class Figures:
    """The result: times in seconds, and what the controller used."""

    queued: Sequence[float]
    plain: Sequence[float]
    given_back: int
    took_s: float
    cpu_s: float
    rss_mib: float


async def contend(parsed: argparse.Namespace, client: KubeClient, controller: Controller) -> Figures:
    """Queue all gangs at once, end each after it is Allocated, and reserve without a queue meanwhile."""
    rng, times, began = random.Random(parsed.seed), Times(), time.monotonic()
    gangs = [f"gang-{number}" for number in range(parsed.gangs)]
    sizes = [rng.randint(1, LARGEST) for _ in gangs]
    cpu = controller.cpu_s()
    plain: list[float] = []
    watches = times.follow(client, NEURON_WORKLOADS), times.follow(client, KUEUE_WORKLOADS)
    async with beside(watches[0]), beside(watches[1]):
        slots = asyncio.Semaphore(IN_FLIGHT)
        bodies = [queued(name, size, rng.choice(QUEUES)) for name, size in zip(gangs, sizes, strict=True)]
        await few_at_a_time(slots, (client.create(NEURON_WORKLOADS, PLACE, body) for body in bodies))
        progress(f"{len(gangs)} gangs of {sum(sizes)} groups are queued")
        async with beside(without_a_queue(client, times, random.Random(parsed.seed), plain)), beside(shown(times)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(parsed.minutes and parsed.minutes * 60):
                    await asyncio.gather(*(one_gang(client, times, name) for name in gangs))
    return Figures(
        [times.allocated[name] - times.admitted[name] for name in gangs if name in times.allocated],
        plain,
        len(times.given_back),
        time.monotonic() - began,
        controller.cpu_s() - cpu,
        controller.rss_mib("VmHWM"),
    )


def queued(name: str, groups: int, queue: str) -> Obj:
    """Return a workload of some whole UltraServers in a queue."""
    made = workload(name, groups)
    made["metadata"]["labels"] = {LABEL: queue}
    return made


async def one_gang(client: KubeClient, times: Times, name: str) -> None:
    """End a gang after it is Allocated."""
    await times.until_allocated(name)
    await asyncio.sleep(HELD_S)
    await client.delete(NEURON_WORKLOADS, PLACE, name)
    await times.until_gone(name)


async def without_a_queue(client: KubeClient, times: Times, rng: random.Random, found: list[float]) -> None:
    """Reserve without a queue, one workload after the other, until cancelled."""
    number = 0
    while True:
        number += 1
        name = f"plain-{number}"
        began = time.monotonic()
        await client.create(NEURON_WORKLOADS, PLACE, workload(name, rng.randint(1, LARGEST)))
        await times.until_allocated(name)
        found.append(times.allocated[name] - began)
        await asyncio.sleep(HELD_S)
        await client.delete(NEURON_WORKLOADS, PLACE, name)
        await times.until_gone(name)


async def shown(times: Times) -> None:
    """Show how far it is, once a minute."""
    while True:
        await asyncio.sleep(60)
        progress(f"{len(times.allocated)} were Allocated so far, {len(times.gone)} have ended")


def report(parsed: argparse.Namespace, found: Figures, load: float) -> str:
    """Return docs/reports/queues.md."""

    def row(what: str, values: Sequence[float]) -> str:
        shown = [f"{quantile(values, share):.2f} s" for share in (0.5, 0.99)] if values else ["-", "-"]
        return f"| {what} | {len(values)} | {shown[0]} | {shown[1]} | {max(values, default=0):.2f} s |"

    lines: list[Any] = [
        "# Reservations in queues of Kueue",
        "",
        f"Commit {commit_now()}, `python -m hack.bench.queues --ultraservers {parsed.ultraservers} --gangs {parsed.gangs}",
        f"--report`: Kubernetes {parsed.kubernetes or build.DEFAULT_KUBERNETES} and Kueue, {parsed.ultraservers} UltraServers"
        " of four nodes without kubelets,",
        f"{parsed.gangs} gangs of 1 to {LARGEST} groups, which are queued at the beginning in three queues of one cohort. Each",
        f"ends {HELD_S:g} s after it is Allocated. Beside them workloads of the same sizes without a queue, one after the",
        f"other, for which {LARGEST} UltraServers are outside of the quota. The machine has {os.cpu_count()} processors, which"
        " everything shares;",
        f"its load before the run was {load:.1f}.",
        "",
        "| time | workloads | p50 | p99 | longest |",
        "| --- | --- | --- | --- | --- |",
        row("queued: from Kueue's admission to Allocated", found.queued),
        row("without a queue: from creation to Allocated", found.plain),
        "",
        f"- {found.given_back} gangs gave their quota back without nodes",
        f"- {len(found.queued)} gangs: {found.took_s:.0f} s, {found.cpu_s:.0f} s of the controller's CPU, at most {found.rss_mib:.0f} MiB",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
