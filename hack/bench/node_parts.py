"""The parts of `make bench`. Each starts the drivers that it needs, measures, ends them, and returns its rows."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import statistics
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import aiohttp

from hack.bench import places
from hack.bench.drivers import (
    DEVICE_CLASSES,
    SLICES,
    Driver,
    Floor,
    Hurried,
    OfInterfaces,
    Ours,
    Peer,
    Place,
    Unflushed,
    WithEfa,
    WithSets,
)
from hack.bench.prepare import (
    Calls,
    Kind,
    allocate,
    connected,
    one_by_one,
    prepare,
    sixteen,
    sixteen_at_once,
    unprepare,
)
from hack.bench.servers import Api, Certificate, api_server
from hack.bench.shared import millicores, until
from hack.bench.table import Row, bounded, compared, quantile
from neuron_dra.api import objects
from neuron_dra.core.wire import Obj

HELD: Final = 4
"""Claims that are prepared while an idle hour is counted."""

CONFIGURED: Final = 200
"""Claims with configuration that are prepared before the memory is measured."""

Bounds = tuple[float, ...]
"""Upper bounds of a ratio to the Go peer: what must hold, and the goal."""

FAST_DISK: Final[Bounds] = (1.25, 0.8)
SLOW_DISK: Final[Bounds] = (0.9, 0.6)
AT_ONCE: Final[Bounds] = (1.0,)
SAME: Final = 1.05
"""The ratio of two medians of one run that are called equal."""

EFA_RSS_MIB: Final = 3.0


@dataclass(frozen=True, slots=True)
class Bench:
    """What the parts share: the folder with the simulated hardware, and the API server."""

    args: argparse.Namespace
    root: Path
    server: Api
    api: aiohttp.ClientSession

    @contextlib.asynccontextmanager
    async def running(self, *kinds: type[Driver], place: Place | None = None) -> AsyncIterator[list[Driver]]:
        """Start a driver of each kind in a place. A Go peer that cannot be built is left out."""
        has_peer = any(issubclass(kind, Peer) for kind in kinds)
        if has_peer:
            await self.keep_slice()
            has_peer = await asyncio.to_thread(_has_peer)
        drivers = [kind(self.root, self.server.url, place) for kind in kinds if has_peer or not issubclass(kind, Peer)]
        try:
            for driver in drivers:
                if isinstance(driver, Floor):
                    driver.start()
                    await until(driver.listens)
                else:
                    await driver.started(self.api)
            yield drivers
        finally:
            for driver in drivers:
                driver.stop()

    async def keep_slice(self) -> None:
        """Keep our ResourceSlice for the Go peer, which publishes the same devices."""
        kept = self.root / "slice.json"
        if kept.exists():
            return
        async with self.running(Ours) as [ours]:
            items = await self.slices_of(ours)
        kept.write_text(json.dumps(items[0]))

    async def slices_of(self, driver: Driver) -> list[Obj]:
        """Return what a driver has published."""
        async with self.api.get(SLICES, params={"fieldSelector": f"spec.nodeName={driver.node}"}) as response:
            items: list[Obj] = (await response.json())["items"]
        return items


@functools.cache
def _has_peer() -> bool:
    return Peer.build()


# Parts.


async def start(bench: Bench) -> list[Row]:
    """The time from the start of each driver to GetInfo and its slice."""
    rows = [await _start_of(bench, Ours(bench.root, bench.server.url), 2.0, 0.8)]
    await bench.keep_slice()
    if await asyncio.to_thread(_has_peer):
        rows.append(await _start_of(bench, Peer(bench.root, bench.server.url)))
    return rows


async def _start_of(bench: Bench, driver: Driver, must: float | None = None, goal: float | None = None) -> Row:
    """Start a driver several times, each time without slices."""
    times = []
    for _ in range(bench.args.starts):
        try:
            times.append(await driver.started(bench.api))
        finally:
            driver.stop()
        selector = {"fieldSelector": f"spec.nodeName={driver.node}"}
        (await bench.api.delete(SLICES, params=selector)).raise_for_status()
    value = statistics.median(times)
    return Row(f"process start to GetInfo and slice, {driver.name}", f"{value:.2f} s", value, must, goal)


async def idle(bench: Bench) -> list[Row]:
    """Memory and CPU of idle drivers. A high value of the Go peer: wake-ups are expensive on this machine."""
    async with bench.running(Ours) as [ours]:
        used = await _idle_cpu(ours, bench.args.idle_s)
        rows = [
            bounded("resident memory, idle", ours.rss_mib(), "MiB", 64, 48),
            bounded("CPU, idle", used, "millicores", 5, 1),
        ]
    async with bench.running(Peer) as peers:
        for peer in peers:
            used = await _idle_cpu(peer, bench.args.idle_s)
            rows.append(Row(f"CPU, idle, {peer.name}", f"{used:.3g} millicores", used))
    return rows


async def _idle_cpu(driver: Driver, seconds: float) -> float:
    await asyncio.sleep(2.0)
    return await millicores(driver.cpu_s, seconds)


async def prepares(bench: Bench) -> list[Row]:
    """Prepare and unprepare beside the Go peer, with and without its flushes, and beside the floor."""
    async with bench.running(Ours, Peer, Unflushed, Floor) as drivers:
        rows = await _calls(bench, drivers, FAST_DISK)
        rows += await _at_once(bench, drivers)
        memory = bounded("resident memory after 1,000 prepares and more", drivers[0].rss_mib(), "MiB", 70, 50)
    return [*rows, memory]


async def with_efa(bench: Bench) -> list[Row]:
    """Prepares beside and of EFA interfaces, on three plugins in turn, and their memory after that."""
    async with bench.running(Ours, WithEfa, OfInterfaces) as (off, neuron, interfaces):
        calls = {}
        for size in (1, 16):
            calls[size] = await one_by_one(bench.api, (off, neuron, interfaces), size, bench.args.claims)
        rss_mib = {driver.name: driver.rss_mib() for driver in (off, neuron, interfaces)}

    def median_ms(size: int, driver: Driver) -> float:
        return statistics.median(calls[size][driver.name].prepare) * 1000

    rows = []
    for size in (1, 16):
        words = f"prepare of {size} Neuron devices with EFA on"
        rows.append(compared(words, median_ms(size, neuron), "with EFA off", median_ms(size, off), SAME))
        words = f"prepare of {size} EFA interfaces"
        rows.append(compared(words, median_ms(size, interfaces), "Neuron devices", median_ms(size, neuron), SAME))
    for driver in (neuron, interfaces):
        grown_mib = rss_mib[driver.name] - rss_mib[off.name]
        rows.append(bounded(f"RSS that EFA adds, {driver.name}", grown_mib, "MiB", EFA_RSS_MIB))
    return rows


async def with_sets(bench: Bench) -> list[Row]:
    """The same with connected sets published; the limits are those without sets."""
    suffix = ", connected sets"
    async with bench.running(WithSets, Peer) as drivers:
        mine = drivers[0]
        items = await bench.slices_of(mine)
        await asyncio.sleep(2.0)
        published = sum(len(item["spec"].get("devices", ())) for item in items)
        kib = sum(len(json.dumps(item, separators=(",", ":"))) for item in items) / 1024
        memory = bounded(f"resident memory, idle{suffix}", mine.rss_mib(), "MiB", 64, 48)
        size = f"{published} devices, {len(items)} slices"
        return [
            Row(f"slices of a node{suffix}", f"{kib:.1f} KiB", kib, 96, against=size),
            replace(memory, against=f"PSS {mine.pss_mib():.1f} MiB"),
            *await _calls(bench, drivers, FAST_DISK, suffix),
            *await _at_once(bench, drivers, suffix),
        ]


async def configured(bench: Bench) -> list[Row]:
    """Memory after claims with configuration, whose models the first of them loads."""
    parameters = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": 2}
    place = Place("configured", bench.root)
    async with bench.running(Ours, place=place) as [ours], connected([ours]) as stubs:
        stub, first_s = stubs[ours.name], 0.0
        for number in range(CONFIGURED):
            claim = await allocate(bench.api, ours, f"configured-{number}", Kind(1, parameters=parameters))
            took_s = await prepare(stub, claim)
            first_s = first_s or took_s
            await unprepare(stub, claim)
        await asyncio.sleep(2.0)
        return [
            bounded(f"resident memory after {CONFIGURED} claims with configuration", ours.rss_mib(), "MiB", 72),
            Row("prepare of the first claim with configuration", f"{first_s * 1000:.1f} ms", first_s),
        ]


async def tls(bench: Bench) -> list[Row]:
    """The same calls with an API server that serves https."""
    try:
        certificate = await asyncio.to_thread(Certificate.write, bench.root)
    except OSError as err:
        print(f"TLS is left out: {err}", file=sys.stderr)
        return []
    await bench.keep_slice()
    session = aiohttp.TCPConnector(ssl=certificate.of_a_client)
    async with api_server(certificate) as server, aiohttp.ClientSession(server.url, connector=session) as api:
        for body in objects.DEVICE_CLASSES:
            (await api.post(DEVICE_CLASSES, json=body)).raise_for_status()
        kubeconfig = certificate.write_kubeconfig(bench.root / "kubeconfig", server.url)
        secured = replace(bench, server=server, api=api)
        place = Place("tls", bench.root, kubeconfig=kubeconfig)
        async with secured.running(Ours, Peer, place=place) as drivers:
            return await _calls(secured, drivers, FAST_DISK, ", TLS to the API server", sizes=(1,))


async def cdi_in_memory(bench: Bench) -> list[Row]:
    """The same calls with CDI files in memory, as on nodes; elsewhere they are on the disk of the checkpoint."""
    with places.cdi_in_memory(bench.root) as place:
        return await _in(bench, place, FAST_DISK, ", CDI files in memory")


async def on_xfs(bench: Bench) -> list[Row]:
    """The same calls with all files on XFS."""
    with places.on_xfs(bench.root) as place:
        return await _in(bench, place, FAST_DISK, ", XFS")


async def slow_disk(bench: Bench) -> list[Row]:
    """The same calls where each flush takes longer."""
    place = places.slow_disk(bench.root, bench.args.flush_ms)
    if place is None:
        return []
    flush_ms = await asyncio.to_thread(places.flush_ms, place)
    return await _in(bench, place, SLOW_DISK, f", a flush takes {flush_ms:.1f} ms")


async def requests(bench: Bench) -> list[Row]:
    """The requests of an idle plugin with some prepared claims to the API server, without watches."""
    hours = bench.args.hours
    async with bench.running(Hurried) as [driver]:
        async with connected([driver]) as stubs:
            for claim in (await sixteen(bench.api, driver, "held"))[:HELD]:
                await prepare(stubs[driver.name], claim)
        await asyncio.sleep(3.0)
        await bench.server.requests()
        await asyncio.sleep(hours * 3600 / Hurried.speed)
        seen = Counter({key: count for key, count in (await bench.server.requests()).items() if key[0] != "watch"})
    gets = seen[("get", "resourceclaims")]
    others = (sum(seen.values()) - gets) / hours
    text = f"{others:.1f} + {gets / hours / HELD:.1f} GETs a claim"
    worst = others if gets / hours / HELD <= 1 else float("inf")
    return [Row("API requests an hour, watches aside", text, worst, 6, 0, against=", ".join(map(str, seen)))]


async def pods(bench: Bench) -> list[Row]:
    """Pods on the test bed, where there is root."""
    await bench.keep_slice()
    if not bench.args.pod_rounds or not await asyncio.to_thread(_has_peer):
        return []
    from hack.bench import pods as bench_pods

    kept = bench.root / "slice.json"
    row = await asyncio.to_thread(bench_pods.measure, kept, Peer.binary, bench.args.pod_rounds)
    return [row] if row is not None else []


async def _in(bench: Bench, place: Place | None, bounds: Bounds, suffix: str) -> list[Row]:
    """Compare the plugin with the Go peer, with and without its flushes, in a place."""
    if place is None:
        return []
    async with bench.running(Ours, Peer, Unflushed, place=place) as drivers:
        return await _calls(bench, drivers, bounds, suffix)


async def _calls(
    bench: Bench, drivers: Sequence[Driver], bounds: Bounds, suffix: str = "", sizes: Sequence[int] = (1, 16)
) -> list[Row]:
    """Return the rows that compare the first driver's calls with the others'; only the flushing peer bounds them."""
    rows = []
    for size in sizes:
        calls = await one_by_one(bench.api, drivers, size, bench.args.claims)
        devices = f"{size} device{'s' if size > 1 else ''}{suffix}"
        for other in drivers[1:]:
            rows += _rows(drivers[0].name, other, calls, devices, bounds)
    return rows


def _rows(name: str, other: Driver, calls: Mapping[str, Calls], devices: str, bounds: Bounds) -> list[Row]:
    mine, its = calls[name], calls[other.name]
    made = [(f"prepare p{share * 100:g}", mine.prepare, its.prepare, share) for share in (0.5, 0.99)]
    if not isinstance(other, Floor):  # it does not unprepare
        made.append(("unprepare p50", mine.unprepare, its.unprepare, 0.5))
    rows = []
    for what, my_times, its_times, share in made:
        my_ms, its_ms = quantile(my_times, share) * 1000, quantile(its_times, share) * 1000
        is_bounded = other.name == Peer.name and share == 0.5
        rows.append(compared(f"{what}, {devices}", my_ms, other.name, its_ms, *(bounds if is_bounded else ())))
    if other.name == Peer.name:
        what = f"CPU of a prepare and unprepare, {devices}"
        rows.append(compared(what, mine.cpu_s * 1000, other.name, its.cpu_s * 1000))
    return rows


async def _at_once(bench: Bench, drivers: Sequence[Driver], suffix: str = "") -> list[Row]:
    times = await sixteen_at_once(bench.api, drivers, bench.args.rounds)
    rows = []
    for other in drivers[1:]:
        for share in (0.5, 0.99):
            mine, its = (quantile(times[each], share) * 1000 for each in (drivers[0].name, other.name))
            is_bounded = other.name == Peer.name and share == 0.99
            what = f"prepare p{share * 100:g}, 16 claims at once, {bench.args.rounds} rounds{suffix}"
            rows.append(compared(what, mine, other.name, its, *(AT_ONCE if is_bounded else ())))
    return rows


PARTS: Final[Mapping[str, Callable[[Bench], Awaitable[list[Row]]]]] = {
    "start": start,
    "idle": idle,
    "prepare": prepares,
    "sets": with_sets,
    "efa": with_efa,
    "configured": configured,
    "tls": tls,
    "cdi-in-memory": cdi_in_memory,
    "slow-disk": slow_disk,
    "xfs": on_xfs,
    "requests": requests,
    "pods": pods,
}
