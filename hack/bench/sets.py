#!/usr/bin/env python3
"""Measure what connected sets cost Kubernetes' own scheduler: 1,000 nodes of each of some types, without kubelets.

etcd, API server and scheduler are real; Nodes, slices and claims are objects. Scheduling attempts are those of the
scheduler's metric, by result. The same pods without sets, and pods without devices, are the comparison in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from hack.bed import build
from hack.bench import api as bench_api
from hack.bench.shared import few_at_a_time
from hack.oracle.connected_slices import partitions_of, slices_of
from hack.reports.reporting import commit_now
from neuron_dra.api.objects import healthy_node
from neuron_dra.core import devices, slices
from neuron_dra.core.wire import Obj
from neuron_dra.kube.client import MERGE_PATCH, KubeClient
from neuron_dra.kube.config import from_kubeconfig
from neuron_dra.kube.requests import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from neuron_dra.kube.timing import ClientTiming

REPORT: Final = bench_api.REPOSITORY / "docs" / "reports" / "sets.md"
CLASSES: Final = bench_api.REPOSITORY / "deploy/manifests/connected-sets/20-deviceclasses.yaml"
TYPES: Final = ("inf2.48xlarge", "inf1.24xlarge")
NAMESPACE: Final = "default"
IN_FLIGHT: Final = 16
METRIC: Final = "scheduler_scheduling_attempt_duration_seconds_bucket"
PREFIX: Final = "deviceclass.resource.kubernetes.io/"
SIZES: Final = (1, 2, 3, 4, 6)
WAIT_S: Final = 300.0
PATIENT: Final = ClientTiming(request_s=300.0)
"""An API server that stores 200 KiB of slices for each node may take long for one of them."""

Histogram = dict[float, float]
"""Number of attempts by upper bound in seconds, cumulative."""


class Bench:
    """One control plane with its nodes, all of one instance type."""

    def __init__(self, client: KubeClient, plane: bench_api.Plane, instance_type: str = TYPES[0]) -> None:
        self.client = client
        self._type = instance_type
        self._metrics = f"https://127.0.0.1:{plane.state.ports['scheduler']}/metrics"
        self._token = bench_api.token(plane)
        self._slots = asyncio.Semaphore(IN_FLIGHT)

    async def all(self, work: Iterable[Awaitable[Any]]) -> None:
        """Await everything, a few at a time."""
        await few_at_a_time(self._slots, work)

    async def classes(self) -> None:
        """Create the DeviceClasses of the manifests."""
        for item in yaml.safe_load_all(CLASSES.read_text()):
            if item and item["kind"] == "DeviceClass":
                await self.client.create(DEVICE_CLASSES, "", item)

    async def register(self, node: Obj) -> str:
        """Create a Node with its status and taints; return its UID."""
        name = node["metadata"]["name"]
        made = await self.client.create(NODES, "", {key: node[key] for key in node if key != "status"})
        for path, body in (
            (NODES.path("", name, "status"), {"status": node["status"]}),
            # Admission marks a new Node as not ready.
            (NODES.path("", name), {"spec": {"taints": node.get("spec", {}).get("taints")}}),
        ):
            await self.client.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        return str(made["metadata"]["uid"])

    async def node(self, name: str, *, with_sets: bool) -> int:
        """Create a Node with its slices; return their size in bytes."""
        status = {
            "capacity": {"cpu": "192", "memory": "768Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        meta = {
            "name": name,
            "labels": {"node.kubernetes.io/instance-type": self._type, "kubernetes.io/hostname": name},
        }
        uid = await self.register({"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status})
        items = node_slices(self._type, name, uid, with_sets=with_sets)
        for item in items:
            await self.client.create(RESOURCE_SLICES, "", item)
        return sum(len(json.dumps(item, separators=(",", ":"))) for item in items)

    async def occupy(self, name: str) -> None:
        """Allocate device 0 of a node to a claim that no pod waits for."""
        requests = [{"name": "r", "exactly": {"deviceClassName": "neuron.aws.com"}}]
        body = {"metadata": {"name": f"busy-{name}"}, "spec": {"devices": {"requests": requests}}}
        made = await self.client.create(RESOURCE_CLAIMS, NAMESPACE, body)
        result = {"request": "r", "driver": "neuron.aws.com", "pool": name, "device": "neuron-device-0"}
        status = {"allocation": {"devices": {"results": [result]}}}
        path = RESOURCE_CLAIMS.path(NAMESPACE, made["metadata"]["name"], "status")
        await self.client.request("PATCH", path, body={"status": status}, content_type=MERGE_PATCH)

    async def pod(self, name: str, limits: dict[str, str]) -> None:
        """Create a pod with one container."""
        container = {"name": "main", "image": "none", "resources": {"limits": {"cpu": "100m", **limits}}}
        spec = {"containers": [container], "schedulerName": "default-scheduler"}
        await self.client.create(PODS, NAMESPACE, {"metadata": {"name": name}, "spec": spec})

    async def decided(self, prefix: str) -> tuple[int, int]:
        """Return how many pods with this prefix have a node, and how many the scheduler could not place."""
        placed = refused = 0
        async for page in self.client.list(PODS, NAMESPACE):
            for item in page.decoded(dict).objects:
                if item["metadata"]["name"].startswith(prefix):
                    reasons = {each.get("reason") for each in item["status"].get("conditions") or ()}
                    placed += bool(item["spec"].get("nodeName"))
                    refused += "Unschedulable" in reasons
        return placed, refused

    async def attempts(self, result: str) -> Histogram:
        """Read the scheduler's histogram of attempts with this result."""
        header = {"Authorization": f"Bearer {self._token}"}
        async with aiohttp.ClientSession() as session, session.get(self._metrics, headers=header, ssl=False) as reply:
            reply.raise_for_status()
            text = await reply.text()
        found: Histogram = {}
        for line in text.splitlines():
            if line.startswith(METRIC) and f'result="{result}"' in line:
                bound = re.search(r'[{,]le="([^"]+)"', line)
                assert bound is not None
                found[float(bound[1])] = found.get(float(bound[1]), 0.0) + float(line.rpartition(" ")[2])
        return found

    async def measured(self, prefix: str, count: int, limits: Callable[[int], dict[str, str]], *, fit: bool) -> str:
        """Create pods, wait until all are decided; return p50 and p90 of an attempt, and the pods in a second.

        An attempt that does not end within `WAIT_S` is in no histogram: the row then says how many pods are decided.
        """
        result = "scheduled" if fit else "unschedulable"
        before, began = await self.attempts(result), time.monotonic()
        await self.all(self.pod(f"{prefix}-{n}", limits(n)) for n in range(count))
        while (number := (await self.decided(prefix))[0 if fit else 1]) < count:
            if time.monotonic() - began > WAIT_S:
                return f"{number} of {count} pods decided in {WAIT_S:g} s | - | -"
            await asyncio.sleep(0.2)
        took_s = time.monotonic() - began
        after = await self.attempts(result)
        new = {bound: number - before.get(bound, 0.0) for bound, number in after.items()}
        return f"{percentile(new, 0.5):.3f} s | {percentile(new, 0.9):.3f} s | {count / took_s:.1f}"


def request(size: int, *, with_sets: bool) -> dict[str, str]:
    """Return the limits of a pod with `size` devices: connected ones, or any."""
    return {f"{PREFIX}connected-{size}.neuron.aws.com": "1"} if with_sets else {f"{PREFIX}neuron.aws.com": str(size)}


def percentile(histogram: Histogram, share: float) -> float:
    """Return a percentile in seconds, interpolated inside its bucket as Prometheus does."""
    bounds = sorted(histogram)
    wanted, below, lower = share * histogram[bounds[-1]], 0.0, 0.0
    for bound in bounds:
        if histogram[bound] >= wanted:
            if bound == float("inf"):
                return lower
            inside = histogram[bound] - below
            return lower + (bound - lower) * ((wanted - below) / inside if inside else 1.0)
        below, lower = histogram[bound], bound
    return lower


def node_slices(instance_type: str, name: str, uid: str, *, with_sets: bool) -> list[Obj]:
    """Return the slices that a node's plugin publishes."""
    pool = slices.Pool(name, uid)
    if with_sets:
        return slices_of(partitions_of(instance_type), pool)
    published = devices.published(healthy_node(instance_type), driver_version="1.2.3", ultraserver_devices="devices")
    return slices.desired(pool, [device.to_wire() for device in published], 1)


async def measure(
    plane: bench_api.Plane, parsed: argparse.Namespace, instance_type: str, *, with_sets: bool
) -> list[str]:
    """Return the rows of the table for one instance type and one kind of slices."""
    nodes, pods = parsed.nodes, parsed.pods
    kind = f"{instance_type}, {'connected sets' if with_sets else 'plain slices'}"
    every = len(node_slices(instance_type, "n", "u", with_sets=False)[0]["spec"]["devices"])
    kube = from_kubeconfig(plane.layout.kubeconfig)
    async with KubeClient(kube, user_agent="neuron-dra-bench", timing=PATIENT) as client:
        bench = Bench(client, plane, instance_type)
        await bench.classes()
        sizes: list[int] = []

        async def create(number: int) -> None:
            sizes.append(await bench.node(f"n{number:04d}", with_sets=with_sets))

        await bench.all(create(n) for n in range(nodes))
        print(f"{kind}: {nodes} nodes, {sizes[0] / 1024:.1f} KiB of slices each", flush=True)

        def limits(n: int) -> dict[str, str]:
            return request(SIZES[n % len(SIZES)], with_sets=with_sets)

        rows = [f"| {kind} | pods without devices | {await bench.measured('none', pods, lambda _: {}, fit=True)} |"]
        print(rows[-1], flush=True)
        rows.append(f"| {kind} | 1, 2, 3, 4 or 6 devices | {await bench.measured('fit', pods, limits, fit=True)} |")
        print(rows[-1], flush=True)
        size = f"{kind}: {max(sizes) / 1024:.1f} KiB of slices a node"
        if parsed.placed_only:
            return [*rows, size]
        await bench.all(bench.occupy(f"n{number:04d}") for number in range(nodes))
        text = await bench.measured(
            "wait", max(5, pods // 10), lambda _: request(every, with_sets=with_sets), fit=False
        )
        rows.append(f"| {kind} | {every} devices, no node has them | {text} |")
        print(rows[-1], flush=True)
        return [*rows, size]


def main() -> int:
    """Measure both kinds, print the table, write the report if wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--instance-type", action="append", help=f"of the nodes (default: {', '.join(TYPES)})")
    parser.add_argument("--placed-only", action="store_true", help="leave out the pods for which no node has devices")
    parser.add_argument("--kubernetes", choices=build.KUBERNETES)
    parser.add_argument("--report", action="store_true", help=f"write {REPORT.relative_to(bench_api.REPOSITORY)}")
    parsed = parser.parse_args()
    rows: list[str] = []
    for instance_type, with_sets in itertools.product(parsed.instance_type or TYPES, (False, True)):
        with bench_api.running(parsed.kubernetes, with_scheduler=True) as plane:
            rows += asyncio.run(measure(plane, parsed, instance_type, with_sets=with_sets))
            version = plane.state.kubernetes
    text = report(parsed.nodes, parsed.pods, version, rows)
    print(text)
    if parsed.report:
        Path(REPORT).write_text(text)
    return 0


def report(nodes: int, pods: int, version: str, rows: list[str]) -> str:
    """Return docs/reports/sets.md."""
    table, sizes = [row for row in rows if row.startswith("|")], [row for row in rows if not row.startswith("|")]
    return "\n".join(
        (
            "# What connected sets cost the scheduler",
            "",
            f"Commit {commit_now()}, `python -m hack.bench.sets --report`: Kubernetes {version}, {nodes:,} nodes of one type",
            f"without kubelets, {pods} pods in each row (a tenth of them where none fits), created at once. An attempt is",
            "one of the scheduler's metric `scheduler_scheduling_attempt_duration_seconds`.",
            f"The machine has {os.cpu_count()} processors, which it shares. Targets with connected sets: p50 at most 0.5 s",
            "placed and 1.5 s where none fits; 96 KiB of slices a node, and on inf1.24xlarge 210 KiB.",
            "",
            "| slices | pods | attempt p50 | attempt p90 | pods a second |",
            "| --- | --- | --- | --- | --- |",
            *table,
            "",
            *(f"- {text}" for text in sizes),
            "",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
