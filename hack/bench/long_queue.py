"""Measure a victim of a long queue on a real kube-apiserver: `python -m hack.bench.long_queue`.

One user creates 2,500 distinct workloads on a fleet of 2,000 nodes, as fast as the API server takes them: some request more
nodes than there are, the others more than their namespace may have. Two programs that only compute share the two
processors with everything else, at the same priority. A victim in another namespace comes in the middle of the burst, and
others beside the queue. The controller runs with the constants that it is shipped with.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from hack.bed import build
from hack.bench import api as bench_api
from hack.bench.cluster import NAMESPACES, PLACE, Cluster, Controller, workload
from hack.bench.controller import IN_FLIGHT, PATIENT, discovered, long_plans, progress
from hack.bench.shared import few_at_a_time
from hack.bench.swarm import Swarm
from hack.bench.table import Row, bounded, show
from neuron_dra.core.wire import Obj
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig, from_kubeconfig
from neuron_dra.kube.requests import NEURON_WORKLOADS

BEYOND_FLEET: Final = "many"
BEYOND_LIMIT: Final = "limited"
LIMIT: Final = "neuron.aws.com/max-reserved-nodes"
RESERVED_S: Final = 5.0
MOST_GROUPS: Final = 1024
"""The largest serverCount."""


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--workloads", type=int, default=2500)
    parser.add_argument("--victims", type=int, default=10, help="that come beside the queue, one after another")
    parser.add_argument("--busy-loops", type=int, default=2)
    parser.add_argument("--kubernetes", choices=build.KUBERNETES)
    args = parser.parse_args()
    with bench_api.running(args.kubernetes) as plane:
        rows = asyncio.run(measure(args, plane, from_kubeconfig(plane.layout.kubeconfig)))
    show(rows, Path("build/bench-long-queue.json"))
    return 0


def requests(nodes: int, count: int) -> Iterator[Obj]:
    """Yield `count` workloads of one user, no two of which request the same."""
    sizes = itertools.product((4, 2, 1), range(1, MOST_GROUPS + 1))
    for number, (size, groups) in enumerate(itertools.islice(sizes, count)):
        namespace = BEYOND_FLEET if size * groups > nodes else BEYOND_LIMIT
        yield workload(f"waits-{number}", groups, size=size, namespace=namespace)


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run programs that only compute."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


async def measure(args: argparse.Namespace, plane: bench_api.Plane, kube: KubeConfig) -> list[Row]:
    """Make the fleet, and measure."""
    plugins = KubeClient(kube, user_agent="swarm", timing=PATIENT)
    log = plane.layout.log_dir / "controller.log"
    async with KubeClient(kube, user_agent="bench", timing=PATIENT) as client, plugins:
        cluster = Cluster(client, bench_api.Writes(plane.layout.audit_log))
        await cluster.prepare()
        for name, limits in ((BEYOND_FLEET, {}), (BEYOND_LIMIT, {LIMIT: "0"})):
            await client.create(NAMESPACES, "", {"metadata": {"name": name, "annotations": limits}})
        swarm = Swarm(plugins)
        progress(f"{args.nodes} nodes: making them")
        await swarm.grow(args.nodes // 4)
        async with cluster.watching(), swarm.tagging():
            with Controller(plane.layout.kubeconfig, log) as controller:
                await discovered(cluster, args.nodes // 4)
                await asyncio.sleep(3)
                with busy_loops(args.busy_loops):
                    rows = await beside_the_queue(args, cluster, controller)
                rows.append(bounded("terms of leadership", terms(log), "", 1, 1))
    return rows


async def beside_the_queue(args: argparse.Namespace, cluster: Cluster, controller: Controller) -> list[Row]:
    """Create the queue and the victims; return their rows."""
    bodies = list(requests(args.nodes, args.workloads))
    slots = asyncio.Semaphore(IN_FLIGHT)
    progress(f"{len(bodies)} workloads that wait")
    began, cpu = time.monotonic(), controller.cpu_s()
    queue = asyncio.create_task(few_at_a_time(slots, (_create(cluster, body) for body in bodies)))
    await cluster.reaches(_name(bodies[len(bodies) // 2]), "", "Pending", timeout_s=300)
    in_the_burst = await victim(cluster, "victim-in-the-burst")
    await queue
    for body in bodies:
        await cluster.reaches(_name(body), "Pending", timeout_s=600)
    took_s, used_s = time.monotonic() - began, controller.cpu_s() - cpu
    progress(f"all have a status after {took_s:.1f} s")
    beside = [await victim(cluster, f"victim-{number}") for number in range(args.victims)]
    return [
        *_victim_rows("in the middle of the burst", [in_the_burst]),
        *_victim_rows(f"beside the queue, worst of {args.victims}", beside),
        Row(f"{len(bodies)} that wait: all have a status", f"{took_s:.1f} s", took_s),
        Row(f"{len(bodies)} that wait: controller's CPU until then", f"{used_s:.1f} s", used_s),
        Row("plans longer than 1 s", await long_plans(controller), 0),
        Row("resident memory, largest", f"{controller.rss_mib('VmHWM'):.0f} MiB", 0),
    ]


async def victim(cluster: Cluster, name: str) -> tuple[float, float]:
    """Allocate and release 8 nodes; return the seconds until they are reserved, and until they are Allocated."""
    began = time.monotonic()
    await _create(cluster, workload(name, 2))
    await cluster.reaches(name, "Allocating", "Allocated")
    reserved_s = time.monotonic() - began
    await cluster.reaches(name, "Allocated")
    allocated_s = time.monotonic() - began
    progress(f"{name}: reserved after {reserved_s:.2f} s, Allocated after {allocated_s:.2f} s")
    await cluster.client.delete(NEURON_WORKLOADS, PLACE, name)
    await cluster.reaches(name, "gone")
    return reserved_s, allocated_s


def _victim_rows(when: str, times: Sequence[tuple[float, float]]) -> list[Row]:
    reserved_s = max(reserved for reserved, _ in times)
    allocated_s = max(allocated for _, allocated in times)
    return [
        bounded(f"8 nodes {when}: reserved", reserved_s, "s", RESERVED_S),
        Row(f"8 nodes {when}: Allocated", f"{allocated_s:.2f} s", allocated_s),
    ]


async def _create(cluster: Cluster, body: Obj) -> None:
    await cluster.client.create(NEURON_WORKLOADS, body["metadata"]["namespace"], body)


def _name(body: Obj) -> str:
    return str(body["metadata"]["name"])


def terms(log: Path) -> int:
    """Return how many terms of leadership the controller's log names."""
    return len(re.findall(r'"term":|\bterm=', log.read_text()))


if __name__ == "__main__":
    sys.exit(main())
