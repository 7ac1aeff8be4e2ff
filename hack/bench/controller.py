"""Measure the UltraServer controller on a real kube-apiserver, and print a table: figure, floor, ratio, target.

The controller is a separate process. The nodes are objects, and one process (bench_swarm) runs the plugin's own code for
all of them. Writes and conflicts are counted in the API server's audit log. The floor of an allocation is the same
writes by the same client in the same order, without any decisions. Everything shares this machine, including etcd and
the API server: read the ratios, and how the figures grow.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hack.bed import build
from hack.bench import api as bench_api
from hack.bench import crowd
from hack.bench.cluster import PLACE, Cluster, Controller, workload
from hack.bench.shared import beside, few_at_a_time, millicores
from hack.bench.swarm import Swarm
from hack.bench.table import print_and_keep, quantile
from neuron_dra.core.ultraserver import NAMESPACE, Allocation, Phase
from neuron_dra.core.wire import Obj
from neuron_dra.kube.client import MERGE_PATCH, KubeClient
from neuron_dra.kube.config import KubeConfig, from_kubeconfig
from neuron_dra.kube.requests import CLAIM_TEMPLATES, NEURON_ULTRASERVERS, NEURON_WORKLOADS
from neuron_dra.kube.timing import ClientTiming
from neuron_dra.node.timing import DEFAULT_TIMING

AGENT = "neuron-ultraserver-controller"
IN_FLIGHT = 16  # requests of the floor at a time
REQUEST = {"name": "neuron", "exactly": {"deviceClassName": "neuron.aws.com"}}
PATIENT = ClientTiming(request_s=300.0)  # an API server that has thousands of nodes to store may take a minute
HEARTBEAT_S = 300.0  # interval at which an idle kubelet writes its Node's status


def main() -> int:
    """Run every measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default="500,5000,10000,20000", help="fleets to measure (default %(default)s)")
    parser.add_argument("--small", type=int, default=20, help="rounds of 8 nodes")
    parser.add_argument("--large", type=int, default=3, help="rounds of 256 nodes")
    parser.add_argument("--idle-s", type=float, default=20.0, help="seconds of idling to measure, twice")
    parser.add_argument("--busy", type=int, default=225, help="workloads of 16 nodes on the largest fleet at the end")
    parser.add_argument(
        "--crowded",
        action="store_true",
        help="on the largest fleet at the end also: 100 workloads at once, then pods with 20,000 claims for 5,000 nodes, "
        "1,000 workloads that wait, and another leader beside all of them",
    )
    parser.add_argument(
        "--parts", action="store_true", help="nodes publish sets and cores too, as ultraserverParts: on"
    )
    parser.add_argument("--kubernetes", choices=build.KUBERNETES)
    args = parser.parse_args()
    if sys.platform != "linux":
        print("the UltraServer controller is left out: it can be measured on Linux only", file=sys.stderr)
        return 0
    # With parts, the API server's copies of the slices of 5,000 nodes take more than 20 GB.
    with bench_api.running(args.kubernetes, caches_slices=not args.parts) as plane:
        sizes = [int(text) for text in args.nodes.split(",")]
        # Read before the event loop runs, because a kubeconfig may start a login program.
        columns = asyncio.run(measure(args, sizes, plane, from_kubeconfig(plane.layout.kubeconfig)))
    print_table(columns)
    return 0


@dataclass(slots=True)
class Column:
    """The figures for one size of the fleet."""

    nodes: int
    figures: dict[str, str] = field(default_factory=dict)
    memory_mib: float = 0.0  # resident, idle


TARGETS = {
    "resident memory, idle": "<= 128 MiB with 5,000 nodes",
    "resident memory, largest": "<= 128 MiB with 5,000 nodes",
    "resident memory, for each node": "<= 12 KiB",
    "CPU, nothing changes": "<= 10 millicores",
    "CPU, kubelets' heartbeats": "<= 10 millicores",
    "8 nodes: to Allocated, p50": "",
    "8 nodes: to Allocated, p99": "<= 2 s",
    "8 nodes: controller's CPU": "<= 1.5 x that with 500 nodes",
    "256 nodes: to Allocated, p50": "",
    "256 nodes: to Allocated, worst": "<= 10 s",
    # An UltraServer's finalizer and its status are two subresources, so two writes; a second one of the status binds.
    "8 nodes: controller's writes": "<= 10 (3 per UltraServer + 4)",
    "256 nodes: controller's writes": "<= 196 (3 per UltraServer + 4)",
    "slice writes per node": "<= 2",
    "conflicts": "0",
}


async def measure(
    args: argparse.Namespace, sizes: Sequence[int], plane: bench_api.Plane, kube: KubeConfig
) -> list[Column]:
    """Grow one fleet, and measure it at each size with a fresh controller."""
    columns = []
    plugins = KubeClient(kube, user_agent="swarm", timing=PATIENT)
    async with KubeClient(kube, user_agent="bench", timing=PATIENT) as client, plugins:
        cluster = Cluster(client, bench_api.Writes(plane.layout.audit_log))
        await cluster.prepare()
        swarm = Swarm(plugins, parts=args.parts)
        columns.append(await no_nodes(args, cluster, plane))
        empty_mib = columns[0].memory_mib
        async with cluster.watching():
            for size in sizes:
                progress(f"{size} nodes: making them")
                await swarm.grow(size // 4)
                column = Column(size)
                await one_size(args, column, cluster, swarm, plane)
                per_node = (column.memory_mib - empty_mib) * 1024 / size
                column.figures["resident memory, for each node"] = f"{per_node:.1f} KiB"
                columns.append(column)
            if args.crowded:
                await crowded(args, columns[-1], cluster, swarm, plane)
            if args.busy:
                await busy(args, columns[-1], cluster, swarm, plane)
    return columns


async def no_nodes(args: argparse.Namespace, cluster: Cluster, plane: bench_api.Plane) -> Column:
    """The floor of memory and idle CPU: a fleet without nodes."""
    column = Column(0)
    with Controller(plane.layout.kubeconfig, plane.layout.log_dir / "controller.log") as controller:
        await cluster.until("the controller is ready", controller.ready)
        await asyncio.sleep(5)
        column.figures["CPU, nothing changes"] = f"{await millicores(controller.cpu_s, args.idle_s):.1f} millicores"
        column.memory_mib = controller.rss_mib()
        column.figures["resident memory, idle"] = f"{column.memory_mib:.0f} MiB"
    return column


def progress(text: str) -> None:
    print(f"{datetime.datetime.now(datetime.UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


async def one_size(
    args: argparse.Namespace, column: Column, cluster: Cluster, swarm: Swarm, plane: bench_api.Plane
) -> None:
    """Fill a column."""
    figures = column.figures
    rounds_of = {nodes: number for nodes, number in ((8, args.small), (256, args.large)) if number}
    log = plane.layout.log_dir / "controller.log"
    started = time.monotonic()
    with Controller(plane.layout.kubeconfig, log) as controller:
        await discovered(cluster, column.nodes // 4)
        figures["start: until all UltraServers are written"] = f"{time.monotonic() - started:.1f} s"
        figures["start: controller's CPU until then"] = f"{controller.cpu_s():.1f} s"
        progress(
            f"discovered in {time.monotonic() - started:.1f} s; {bench_api.tally(of(cluster.writes.since(), AGENT))}"
        )
        async with swarm.tagging():
            await asyncio.sleep(3)
            figures["CPU, nothing changes"] = f"{await millicores(controller.cpu_s, args.idle_s):.1f} millicores"
            column.memory_mib = controller.rss_mib()
            figures["resident memory, idle"] = f"{column.memory_mib:.0f} MiB"
            async with beside(heartbeats(swarm)):
                figures["CPU, kubelets' heartbeats"] = (
                    f"{await millicores(controller.cpu_s, args.idle_s):.1f} millicores"
                )
            cluster.writes.since()
            for nodes, number in rounds_of.items():
                await rounds(figures, cluster, swarm, controller, nodes=nodes, number=number)
            figures["resident memory, largest"] = f"{controller.rss_mib('VmHWM'):.0f} MiB"
    for nodes in rounds_of:
        measured = float(figures[f"{nodes} nodes: to Allocated, p50"].split()[0])
        least = [await floor(cluster, swarm, nodes) for _ in range(3)]
        figures[f"{nodes} nodes: floor, the bare writes"] = f"{quantile(least, 0.5):.2f} s"
        figures[f"{nodes} nodes: p50 against the floor"] = f"{measured / quantile(least, 0.5):.2f}"
    progress(json.dumps(figures))


async def busy(
    args: argparse.Namespace, column: Column, cluster: Cluster, swarm: Swarm, plane: bench_api.Plane
) -> None:
    """Reserve most of the fleet for many workloads, and measure again."""
    figures: dict[str, str] = {}
    with Controller(plane.layout.kubeconfig, plane.layout.log_dir / "controller.log") as controller:
        async with swarm.tagging():
            names = await reserve(args, column, cluster)
            cluster.writes.since()
            await asyncio.sleep(2)
            figures["CPU, nothing changes"] = f"{await millicores(controller.cpu_s, args.idle_s):.1f} millicores"
            await rounds(figures, cluster, swarm, controller, nodes=8, number=args.small)
            figures["resident memory, largest"] = f"{controller.rss_mib('VmHWM'):.0f} MiB"
    about = f"{len(names)} workloads on {len(names) * 16} nodes: "
    kept = (
        "CPU, nothing changes",
        "8 nodes: to Allocated, p50",
        "8 nodes: to Allocated, p99",
        "8 nodes: controller's CPU",
    )
    column.figures |= {about + name: figures[name] for name in (*kept, "resident memory, largest")}
    progress(json.dumps(figures))


BURST = 100
"""Workloads of two UltraServers that are created at once."""

WAITING = 1000
"""Workloads that wait, each for more UltraServers than there are."""


async def crowded(
    args: argparse.Namespace, column: Column, cluster: Cluster, swarm: Swarm, plane: bench_api.Plane
) -> None:
    """A burst; then others' claims and a long queue, a change of leader beside them, and rounds of 8 nodes."""
    figures = column.figures
    log = plane.layout.log_dir / "controller.log"
    async with swarm.tagging():
        with Controller(plane.layout.kubeconfig, log) as controller:
            await discovered(cluster, column.nodes // 4)
            await asyncio.sleep(3)
            await burst(figures, cluster, swarm, controller)
            progress("pods with claims on every node")
            await crowd.pods_with_claims(cluster, list(swarm.nodes))
            figures["claims beside them: CPU, nothing changes"] = (
                f"{await millicores(controller.cpu_s, args.idle_s):.1f} millicores"
            )
            held = await reserve(args, column, cluster)
            progress(f"{WAITING} workloads that wait")
            started, cpu = time.monotonic(), controller.cpu_s()
            await crowd.waiting_workloads(cluster, WAITING, column.nodes // 4 - 4 * len(held))
            for number in range(WAITING):
                await cluster.reaches(f"waits-{number}", "Pending", timeout_s=300)
            figures[f"{WAITING} that wait: until all have a status"] = f"{time.monotonic() - started:.1f} s"
            figures[f"{WAITING} that wait: controller's CPU until then"] = f"{controller.cpu_s() - cpu:.1f} s"
            cluster.writes.since()
            beside_them: dict[str, str] = {}
            await rounds(beside_them, cluster, swarm, controller, nodes=8, number=args.small)
            for name in ("8 nodes: to Allocated, p50", "8 nodes: to Allocated, p99", "8 nodes: controller's CPU"):
                figures[f"{WAITING} that wait: {name}"] = beside_them[name]
            figures["crowded: plans longer than 1 s"] = await long_plans(controller)
            figures["crowded: resident memory, largest"] = f"{controller.rss_mib('VmHWM'):.0f} MiB"
            controller.kill()
        started = time.monotonic()
        with Controller(plane.layout.kubeconfig, log) as controller:
            await cluster.until("another leader is ready", controller.ready)
            figures["another leader: until it has listed everything"] = f"{time.monotonic() - started:.1f} s"
            name = "after-the-leader"
            await cluster.client.create(NEURON_WORKLOADS, PLACE, workload(name, 2))
            await cluster.reaches(name, "Allocated", timeout_s=300)
            figures["another leader: until 8 nodes are Allocated, with the Lease's 15 s"] = (
                f"{time.monotonic() - started:.1f} s"
            )
            figures["another leader: CPU until then"] = f"{controller.cpu_s():.1f} s"
            figures["another leader: plans longer than 1 s"] = await long_plans(controller)
            figures["another leader: resident memory, largest"] = f"{controller.rss_mib('VmHWM'):.0f} MiB"
            await cluster.client.delete(NEURON_WORKLOADS, PLACE, name)
            await cluster.reaches(name, "gone")
            await crowd.end(cluster, [f"waits-{number}" for number in range(WAITING)])
            await crowd.end(cluster, held)
    progress(json.dumps(figures))


async def burst(figures: dict[str, str], cluster: Cluster, swarm: Swarm, controller: Controller) -> None:
    """Create many workloads of 8 nodes at once, wait until all are Allocated, and release them."""
    names = [f"burst-{number}" for number in range(min(BURST, len(swarm.by_object) // 2))]
    slots = asyncio.Semaphore(IN_FLIGHT)
    started, cpu = time.monotonic(), controller.cpu_s()
    await few_at_a_time(slots, (cluster.client.create(NEURON_WORKLOADS, PLACE, workload(name, 2)) for name in names))
    for name in names:
        await cluster.reaches(name, "Allocated", timeout_s=300)
    figures[f"{len(names)} workloads of 8 nodes at once: until all are Allocated"] = (
        f"{time.monotonic() - started:.1f} s"
    )
    figures[f"{len(names)} workloads of 8 nodes at once: controller's CPU"] = f"{controller.cpu_s() - cpu:.2f} s"
    await crowd.end(cluster, names)


async def long_plans(controller: Controller) -> str:
    """Return how many plans took longer than a second, of how many."""
    counts = await controller.counts("_plan_seconds")
    return f"{counts['+Inf'] - counts['1.0']:.0f} of {counts['+Inf']:.0f}"


async def reserve(args: argparse.Namespace, column: Column, cluster: Cluster) -> list[str]:
    """Reserve most of the fleet for workloads of 16 nodes; return their names."""
    names = [f"busy-{number}" for number in range(min(args.busy, column.nodes // 16 * 9 // 10))]
    started = time.monotonic()
    for name in names:
        await cluster.client.create(NEURON_WORKLOADS, PLACE, workload(name, 4))
    for name in names:
        await cluster.reaches(name, "Allocated", timeout_s=300)
    progress(f"{len(names)} workloads in {time.monotonic() - started:.1f} s")
    return names


async def floor(cluster: Cluster, swarm: Swarm, nodes: int) -> float:
    """Make an allocation's writes with the same client and without decisions; return their duration in seconds."""
    objects = list(swarm.by_object)[: nodes // 4]
    names = [name for each in objects for name in swarm.by_object[each]]
    slots = asyncio.Semaphore(IN_FLIGHT)
    client = cluster.client

    async def allocate(phase: Phase | None) -> dict[str, Obj]:
        async def one(index: int, key: str) -> Obj:
            allocation = Allocation(
                workload_namespace=PLACE,
                workload_name="floor",
                workload_uid="floor-uid",
                allocation_id="floor-id",
                phase=phase or Phase.PENDING,
                nodes=tuple(swarm.by_object[key]),
                node_count=4,
                ultraserver_index=index,
                allocated_at="2026-01-01T00:00:00Z",
            )
            patch = {"status": {"allocations": [allocation.to_wire()] if phase else []}}
            path = NEURON_ULTRASERVERS.path(NAMESPACE, key, "status")
            found: Obj = json.loads(await client.request("PATCH", path, body=patch, content_type=MERGE_PATCH))
            return found

        answers = await few_at_a_time(slots, (one(index, key) for index, key in enumerate(objects)))
        return dict(zip(objects, answers, strict=True))

    started = time.monotonic()
    await client.create(NEURON_WORKLOADS, PLACE, workload("floor", nodes // 4))
    await client.patch(NEURON_WORKLOADS, PLACE, "floor", {"metadata": {"annotations": {"in-place-of": "a finalizer"}}})
    for phase in (Phase.PENDING, Phase.BOUND):
        stored = await allocate(phase)
        await asyncio.sleep(DEFAULT_TIMING.publish.gather_s)  # the delay for which plugins gather changes
        await swarm.publish(names, stored)
    template = {"metadata": {"name": "floor"}, "spec": {"spec": {"devices": {"requests": [REQUEST]}}}}
    await client.create(CLAIM_TEMPLATES, PLACE, template)
    path = NEURON_WORKLOADS.path(PLACE, "floor", "status")
    await client.request("PATCH", path, body={"status": {"state": "Allocated"}}, content_type=MERGE_PATCH)
    taken = time.monotonic() - started
    await swarm.publish(names, await allocate(None))
    await client.delete(CLAIM_TEMPLATES, PLACE, "floor")
    await client.delete(NEURON_WORKLOADS, PLACE, "floor")
    return taken


async def discovered(cluster: Cluster, count: int) -> None:
    """Wait until `count` NeuronUltraServers are Ready in one list."""

    async def all_ready() -> bool:
        ready = 0
        async for page in cluster.client.list(NEURON_ULTRASERVERS, NAMESPACE):
            ready += sum(item.get("status", {}).get("state") == "Ready" for item in page.decoded(dict).objects)
        await asyncio.sleep(0.5)
        return ready == count

    await cluster.until(f"{count} UltraServers are Ready", all_ready, timeout_s=1200.0)


def of(writes: Sequence[bench_api.Write], agent: str) -> list[bench_api.Write]:
    return [each for each in writes if each.agent == agent]


async def heartbeats(swarm: Swarm) -> None:
    """Write each Node's status every five minutes, as kubelets do."""
    names, number = list(swarm.nodes), 0
    while True:
        number += 1
        beat = swarm.heartbeat(names[number % len(names)], number)
        await asyncio.gather(beat, asyncio.sleep(HEARTBEAT_S / len(names)))


async def rounds(
    figures: dict[str, str], cluster: Cluster, swarm: Swarm, controller: Controller, *, nodes: int, number: int
) -> None:
    """Allocate and release workloads of `nodes` nodes, one after the other."""
    times, released, writes, slice_writes, conflicts, cpu = [], [], [], [], 0, []
    for index in range(number):
        name = f"job-{nodes}-{index}-{len(swarm.nodes)}"
        cluster.writes.since()
        cpu_before, started = controller.cpu_s(), time.monotonic()
        await cluster.client.create(NEURON_WORKLOADS, PLACE, workload(name, nodes // 4))
        await cluster.reaches(name, "Allocated")
        times.append(time.monotonic() - started)
        cpu.append(controller.cpu_s() - cpu_before)
        await asyncio.sleep(0.5)
        found = cluster.writes.since()
        ours = [each for each in of(found, AGENT) if each.resource != "events"]
        if index == 0:
            progress(f"{nodes} nodes in {times[-1]:.2f} s, CPU {cpu[-1]:.2f} s: {bench_api.tally(of(found, AGENT))}")
        writes.append(len(ours))
        slice_writes.append(sum(each.resource == "resourceslices" for each in found) / nodes)
        started = time.monotonic()
        await cluster.client.delete(NEURON_WORKLOADS, PLACE, name)
        await cluster.reaches(name, "gone")
        released.append(time.monotonic() - started)
        await asyncio.sleep(0.5)
        gone = cluster.writes.since()
        if index == 0:
            progress(f"released in {released[-1]:.2f} s: {bench_api.tally(of(gone, AGENT))}")
        conflicts += sum(each.code == 409 for each in (*found, *gone))
    figures[f"{nodes} nodes: to Allocated, p50"] = f"{quantile(times, 0.5):.2f} s"
    name = "p99" if nodes == 8 else "worst"
    figures[f"{nodes} nodes: to Allocated, {name}"] = f"{quantile(times, 0.99):.2f} s"
    figures[f"{nodes} nodes: controller's CPU"] = f"{quantile(cpu, 0.5) * 1000:.0f} ms"
    figures[f"{nodes} nodes: released, p50"] = f"{quantile(released, 0.5):.2f} s"
    figures[f"{nodes} nodes: controller's writes"] = str(max(writes))
    figures["slice writes per node"] = f"{max([float(figures.get('slice writes per node', '0')), *slice_writes]):.2f}"
    figures["conflicts"] = str(int(figures.get("conflicts", "0")) + conflicts)


def print_table(columns: Sequence[Column]) -> None:
    """Print one column per size and the targets, and write them to build/bench-controller.json."""
    names = list(dict.fromkeys(name for column in columns for name in column.figures))
    names.sort(key=lambda name: [*TARGETS].index(name) if name in TARGETS else len(TARGETS))
    table = [("controller", *(f"{column.nodes} nodes" for column in columns), "target")]
    table += [(name, *(column.figures.get(name, "") for column in columns), TARGETS.get(name, "")) for name in names]
    content = {str(column.nodes): column.figures for column in columns}
    print_and_keep(table, content, Path("build/bench-controller.json"))


if __name__ == "__main__":
    sys.exit(main())
