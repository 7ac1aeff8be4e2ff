"""Measure the plugin beside a Go driver on Kubernetes' own helper, and print a table with the targets.

    make bench                                 the table; where there is root, the pods on the test bed too
    .venv/bin/python -m hack.bench.node --cycles 100000    what a hundred thousand prepares and unprepares leave behind

The Go driver (hack/reference-driver) publishes the same devices, reads the same claims, and keeps the same CDI files
and the same checkpoint with the same durability; one client calls both in turn. The floor is the I/O of a prepare in
Python without logic. Everything runs on loopback and in a temporary folder. Timings vary by machine: read the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import aiohttp

from hack.bench.drivers import (
    DEVICE_CLASSES,
    SLICES,
    Api,
    Driver,
    Floor,
    Hurried,
    Ours,
    Peer,
    WithSets,
    api_server,
    serve_api,
    serve_floor,
)
from hack.bench.prepare import Sample, connected, cycles, one_by_one, prepare, sixteen, sixteen_at_once
from hack.bench.shared import millicores, until
from hack.bench.table import Row, bounded, compared, quantile, show
from neuron_dra.api import objects
from neuron_dra.emulation import simulated_node

HELD = 4  # claims that are prepared while an idle hour is counted


def main() -> int:
    """Run every measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claims", type=int, default=200, help="prepares of each size")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of sixteen claims at once")
    parser.add_argument("--starts", type=int, default=5, help="starts of each driver")
    parser.add_argument("--idle-s", type=float, default=30.0, help="seconds of idling to measure")
    parser.add_argument("--hours", type=float, default=1.0, help="hours of idling whose requests are counted")
    parser.add_argument("--pod-rounds", type=int, default=5, help="rounds of sixteen pods at once on the test bed")
    parser.add_argument("--folder", default="/tmp", help="folder of the drivers' files, which decides the disk")
    parser.add_argument("--cycles", type=int, default=0, help="only this: prepare and unprepare so many times")
    parser.add_argument("--serve-api", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--serve-floor", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve_api:
        asyncio.run(serve_api())
    elif args.serve_floor:
        asyncio.run(serve_floor(Path(args.serve_floor[0]), args.serve_floor[1]))
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and end what was started
        asyncio.run(in_a_folder(args))
    return 0


async def in_a_folder(args: argparse.Namespace) -> None:
    """Measure in a new folder, and print the results."""
    root = Path(tempfile.mkdtemp(prefix="neuron-dra-bench-", dir=args.folder))
    print(f"{where(root)}; commit {commit()}", file=sys.stderr)
    try:
        simulated_node.write(root / "host", "trn2.48xlarge")
        async with api_server() as server, aiohttp.ClientSession(server.url) as api:
            for node in ("ours", "go-peer", "hurried", "sets"):
                (await api.post("/api/v1/nodes", json=objects.node_object(node))).raise_for_status()
            for body in objects.DEVICE_CLASSES:
                (await api.post(DEVICE_CLASSES, json=body)).raise_for_status()
            if args.cycles:
                await many_cycles(root, server, api, args.cycles)
                return
            rows = await measure(args, root, server, api)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    show(rows, Path("build/bench.json"))


async def measure(args: argparse.Namespace, root: Path, server: Api, api: aiohttp.ClientSession) -> list[Row]:
    """Return the rows of the table."""
    ours = Ours(root, server.url)
    rows = [await start_of(ours, args.starts, api, 2.0, 0.8)]
    await keep_slice(api, root / "slice.json")
    has_peer = Peer.build()
    floor = Floor(root, server.url)
    drivers: list[Driver] = [ours, floor]
    try:
        rows += await idle(ours, args.idle_s)
        floor.start()
        if has_peer:
            peer = Peer(root, server.url)
            rows.append(await start_of(peer, args.starts, api))
            drivers.insert(1, peer)
            rows.append(await idle_beside(peer, args.idle_s))
        await until(floor.listens)
        rows += await prepares(args, drivers, api)
        rows.append(bounded("resident memory after 1,000 prepares and more", ours.rss_mib(), "MiB", 70, 50))
        drivers[0] = WithSets(root, server.url)
        ours.stop()
        rows += await with_sets(args, drivers, api)
    finally:
        for driver in drivers:
            driver.stop()
    rows.append(await requests(root, server, api, args.hours))
    if args.pod_rounds and has_peer:
        from hack.bench import pods as bench_pods

        row = await asyncio.to_thread(bench_pods.measure, root / "slice.json", Peer.binary, args.pod_rounds)
        rows += [row] if row is not None else []
    return rows


async def start_of(
    driver: Driver, starts: int, api: aiohttp.ClientSession, must: float | None = None, goal: float | None = None
) -> Row:
    """Start a driver several times, each time without slices, and leave the last one running."""
    times = []
    for run in range(starts):
        times.append(await driver.started(api))
        if run < starts - 1:
            driver.stop()
            (await api.delete(SLICES, params={"fieldSelector": f"spec.nodeName={driver.node}"})).raise_for_status()
    value = statistics.median(times)
    return Row(f"process start to GetInfo and slice, {driver.name}", f"{value:.2f} s", value, must, goal)


async def keep_slice(api: aiohttp.ClientSession, path: Path) -> None:
    """Keep our ResourceSlice for the peer, which publishes the same devices."""
    async with api.get(SLICES) as response:
        [found] = (await response.json())["items"]
    path.write_text(json.dumps(found))


async def idle(driver: Driver, seconds: float) -> list[Row]:
    """Return the memory and CPU of an idle driver."""
    used = await _idle_cpu(driver, seconds)
    return [
        bounded("resident memory, idle", driver.rss_mib(), "MiB", 64, 48),
        bounded("CPU, idle", used, "millicores", 5, 1),
    ]


async def idle_beside(peer: Driver, seconds: float) -> Row:
    """Return the CPU of the idle peer; a high value means that wake-ups are expensive on this machine."""
    used = await _idle_cpu(peer, seconds)
    return Row(f"CPU, idle, {peer.name}", f"{used:.3g} millicores", used)


async def _idle_cpu(driver: Driver, seconds: float) -> float:
    await asyncio.sleep(2.0)
    return await millicores(driver.cpu_s, seconds)


async def with_sets(args: argparse.Namespace, drivers: list[Driver], api: aiohttp.ClientSession) -> list[Row]:
    """Start the plugin with connected sets, the first driver, and return its rows; the limits are those without sets."""
    mine, suffix = drivers[0], ", connected sets"
    await mine.started(api)
    async with api.get(SLICES, params={"fieldSelector": f"spec.nodeName={mine.node}"}) as response:
        items = (await response.json())["items"]
    await asyncio.sleep(2.0)
    published = sum(len(item["spec"].get("devices", ())) for item in items)
    kib = sum(len(json.dumps(item, separators=(",", ":"))) for item in items) / 1024
    memory = bounded(f"resident memory, idle{suffix}", mine.rss_mib(), "MiB", 64, 48)
    return [
        Row(
            f"slices of a node{suffix}", f"{kib:.1f} KiB", kib, 96, against=f"{published} devices, {len(items)} slices"
        ),
        replace(memory, against=f"PSS {mine.pss_mib():.1f} MiB"),
        *await prepares(args, drivers, api, suffix),
    ]


async def prepares(
    args: argparse.Namespace, drivers: list[Driver], api: aiohttp.ClientSession, suffix: str = ""
) -> list[Row]:
    """Return the rows that compare the first driver's prepares with the others'."""
    rows, name = [], drivers[0].name
    others = [driver.name for driver in drivers[1:]]
    for size in (1, 16):
        times = await one_by_one(api, drivers, size, args.claims)
        for other in others:
            for share in (0.5, 0.99):
                bounds = (1.5, 0.8) if other == Peer.name and share == 0.5 else ()
                what = f"prepare p{share * 100:g}, {size} device{'s' if size > 1 else ''}{suffix}"
                mine, its = (quantile(times[each], share) * 1000 for each in (name, other))
                rows.append(compared(what, mine, other, its, *bounds))
    times = await sixteen_at_once(api, drivers, args.rounds)
    for other in others:
        for what, share, bounds in (("p50", 0.5, ()), ("p99", 0.99, (1.5, 1.0) if other == Peer.name else ())):
            mine, its = (quantile(times[each], share) * 1000 for each in (name, other))
            what = f"prepare {what}, 16 claims at once, {args.rounds} rounds{suffix}"
            rows.append(compared(what, mine, other, its, *bounds))
    return rows


async def requests(root: Path, server: Api, api: aiohttp.ClientSession, hours: float) -> Row:
    """Return the requests of an idle plugin with some prepared claims to the API server, without watches."""
    driver = Hurried(root, server.url)
    try:
        await driver.started(api)
        async with connected([driver]) as stubs:
            for claim in (await sixteen(api, driver, "held"))[:HELD]:
                await prepare(stubs[driver.name], claim)
        await asyncio.sleep(3.0)
        await server.requests()
        await asyncio.sleep(hours * 3600 / driver.speed)
        seen = Counter({key: count for key, count in (await server.requests()).items() if key[0] != "watch"})
    finally:
        driver.stop()
    gets = seen[("get", "resourceclaims")]
    others = (sum(seen.values()) - gets) / hours
    text = f"{others:.1f} + {gets / hours / HELD:.1f} GETs a claim"
    worst = others if gets / hours / HELD <= 1 else float("inf")
    return Row("API requests an hour, watches aside", text, worst, 6, 0, against=", ".join(map(str, seen)))


async def many_cycles(root: Path, server: Api, api: aiohttp.ClientSession, count: int) -> None:
    """Print memory, descriptors and files of the plugin during `count` prepares and unprepares."""
    driver = Ours(root, server.url)

    def print_sample(sample: Sample) -> None:
        print(f"| {sample.cycles:,} | {sample.rss_mib:.1f} | {sample.open_files} | {sample.files} |", flush=True)

    try:
        await driver.started(api)
        began = time.monotonic()
        print("| cycles | RSS, MiB | open descriptors | files |\n|---|---|---|---|")
        samples = await cycles(api, driver, count, print_sample)
    finally:
        driver.stop()
    first, last = samples[0], samples[-1]
    growth = max(sample.rss_mib for sample in samples) - first.rss_mib
    print(f"\n{last.cycles:,} cycles in {time.monotonic() - began:.0f} s; after the first 1,000 RSS grew by at most "
          f"{growth:.1f} MiB (must be <= 2), descriptors by {last.open_files - first.open_files} and files by "
          f"{last.files - first.files} (must be 0)")  # fmt: skip


def where(folder: Path) -> str:
    """Return a description of the machine: processors, kernel, the disk's file system."""
    command = ["stat", "--file-system", "--format=%T", str(folder)]
    kind = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return f"{os.cpu_count()} processors, Linux {os.uname().release}, {folder.parent} is {kind or 'unknown'}"


def commit() -> str:
    """Return the commit that is measured."""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
