"""Measure the plugin beside a Go driver on Kubernetes' own helper, and print a table with the targets.

    make bench                                 the table; where there is root, the pods on the test bed too
    .venv/bin/python -m hack.bench.node --only prepare --only slow-disk    some of its parts
    .venv/bin/python -m hack.bench.node --cycles 100000    what a hundred thousand prepares and unprepares leave behind

The Go driver (hack/reference-driver) publishes the same devices, reads the same claims, and keeps the same CDI files
and the same checkpoint; it runs with its flushes and without. One client calls all in turn. The floor is the I/O of a
prepare in Python without logic. Everything runs on loopback and in a temporary folder. Timings vary by machine: read
the ratios. The table is also in build/bench.json, and as Markdown in build/bench.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from hack.bench.drivers import DEVICE_CLASSES, TYPE, Ours
from hack.bench.node_parts import PARTS, Bench
from hack.bench.prepare import Sample, cycles
from hack.bench.servers import Api, Certificate, api_server, serve_api, serve_floor
from hack.bench.table import Row, show
from neuron_dra.api import objects
from neuron_dra.emulation import simulated_node
from neuron_dra.emulation.simulated_efa import EfaTree


def main() -> int:
    """Run every measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; may be repeated")
    parser.add_argument("--claims", type=int, default=200, help="prepares of each size")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of sixteen claims at once")
    parser.add_argument("--starts", type=int, default=5, help="starts of each driver")
    parser.add_argument("--idle-s", type=float, default=30.0, help="seconds of idling to measure")
    parser.add_argument("--hours", type=float, default=1.0, help="hours of idling whose requests are counted")
    parser.add_argument("--pod-rounds", type=int, default=5, help="rounds of sixteen pods at once on the test bed")
    parser.add_argument("--flush-ms", type=float, default=1.0, help="how much longer a flush takes on the slow disk")
    parser.add_argument("--folder", default="/tmp", help="folder of the drivers' files, which decides the disk")
    parser.add_argument("--cycles", type=int, default=0, help="only this: prepare and unprepare so many times")
    parser.add_argument("--serve-api", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--serve-floor", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve_api is not None:
        asyncio.run(serve_api(Certificate(*map(Path, args.serve_api)) if args.serve_api else None))
    elif args.serve_floor:
        asyncio.run(serve_floor(Path(args.serve_floor[0]), Path(args.serve_floor[1]), args.serve_floor[2]))
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and end what was started
        asyncio.run(in_a_folder(args))
    return 0


async def in_a_folder(args: argparse.Namespace) -> None:
    """Measure in a new folder, and print the results."""
    root = Path(tempfile.mkdtemp(prefix="neuron-dra-bench-", dir=args.folder))
    print(f"{where(root)}; commit {commit()}", file=sys.stderr)
    try:
        simulated_node.write(root / "host", TYPE)
        EfaTree.write(root / "host", TYPE)
        async with api_server() as server, aiohttp.ClientSession(server.url) as api:
            for body in objects.DEVICE_CLASSES:
                (await api.post(DEVICE_CLASSES, json=body)).raise_for_status()
            if args.cycles:
                await many_cycles(root, server, api, args.cycles)
                return
            rows = await measure(Bench(args, root, server, api), args.only or list(PARTS))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    show(rows, Path("build/bench.json"))


async def measure(bench: Bench, parts: list[str]) -> list[Row]:
    """Return the rows of these parts."""
    rows: list[Row] = []
    for name in parts:
        print(f"measuring: {name}", file=sys.stderr)
        rows += await PARTS[name](bench)
    return rows


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
