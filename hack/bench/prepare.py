"""Prepares claims on several drivers in turn: one at a time, sixteen at once, and a hundred thousand in a row."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp
import grpc

from hack.bench.drivers import CLAIMS, OPTIONS, Driver
from neuron_dra.gen.kubelet.dra.v1 import dra_pb2, dra_pb2_grpc

WARM_UP = 10
Stubs = Mapping[str, "dra_pb2_grpc.DRAPluginAsyncStub"]
Seconds = dict[str, list[float]]


@dataclass(frozen=True)
class Kind:
    """Claims of `size` devices, the first of which is `first`; `parameters` are the configuration that they carry."""

    size: int
    first: int = 0
    parameters: Mapping[str, object] | None = None


async def allocate(api: aiohttp.ClientSession, driver: Driver, name: str, kind: Kind) -> dra_pb2.Claim:
    """Create a claim that holds devices of the driver's node."""
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "devices": {
                "requests": [
                    {"name": "neurons", "exactly": {"deviceClassName": driver.device_class, "count": kind.size}}
                ]
            }
        },
    }
    async with api.post(CLAIMS, json=body) as response:
        response.raise_for_status()
        stored = await response.json()
    results = [
        {"request": "neurons", "driver": driver.driver_name, "pool": driver.node, "device": device}
        for device in driver.devices(kind.first, kind.size)
    ]
    allocated: dict[str, object] = {"results": results}
    if kind.parameters is not None:
        opaque = {"driver": "neuron.aws.com", "parameters": kind.parameters}
        allocated["config"] = [{"source": "FromClaim", "requests": [], "opaque": opaque}]
    stored["status"] = {
        "allocation": {"devices": allocated},
        "reservedFor": [{"resource": "pods", "name": name, "uid": name}],
    }
    async with api.put(f"{CLAIMS}/{name}/status", json=stored) as response:
        response.raise_for_status()
    return dra_pb2.Claim(namespace="default", name=name, uid=stored["metadata"]["uid"])


async def prepare(stub: dra_pb2_grpc.DRAPluginAsyncStub, claim: dra_pb2.Claim) -> float:
    """Prepare one claim, and return its duration in seconds. Raises RuntimeError if it was rejected."""
    began = time.perf_counter()
    answer = await stub.NodePrepareResources(dra_pb2.NodePrepareResourcesRequest(claims=[claim]))
    took = time.perf_counter() - began
    if answer.claims[claim.uid].error:
        raise RuntimeError(answer.claims[claim.uid].error)
    return took


async def unprepare(stub: dra_pb2_grpc.DRAPluginAsyncStub, claim: dra_pb2.Claim) -> float:
    """Unprepare one claim, and return the seconds that it took. Raises RuntimeError if it was rejected."""
    began = time.perf_counter()
    answer = await stub.NodeUnprepareResources(dra_pb2.NodeUnprepareResourcesRequest(claims=[claim]))
    took = time.perf_counter() - began
    if answer.claims[claim.uid].error:
        raise RuntimeError(answer.claims[claim.uid].error)
    return took


@contextlib.asynccontextmanager
async def connected(drivers: Sequence[Driver]) -> AsyncIterator[Stubs]:
    """Connect to each driver's DRA socket as a kubelet does."""
    async with contextlib.AsyncExitStack() as stack:
        stubs = {}
        for driver in drivers:
            channel = grpc.aio.insecure_channel(f"unix:{driver.dra_socket}", options=OPTIONS)
            await stack.enter_async_context(channel)
            stubs[driver.name] = dra_pb2_grpc.DRAPluginStub(channel)
        yield stubs


@dataclass(slots=True)
class Calls:
    """The calls of one driver: seconds of each, and CPU seconds of a prepare and unprepare."""

    prepare: list[float] = field(default_factory=list)
    unprepare: list[float] = field(default_factory=list)
    cpu_s: float = 0.0


async def one_by_one(api: aiohttp.ClientSession, drivers: Sequence[Driver], size: int, count: int) -> dict[str, Calls]:
    """Prepare and unprepare `count` new claims of `size` devices on every driver in turn."""
    calls = {driver.name: Calls() for driver in drivers}
    async with connected(drivers) as stubs:
        for index in range(count + WARM_UP):
            if index == WARM_UP:
                before = {driver.name: driver.cpu_s() for driver in drivers}
            shift = index % len(drivers)
            for driver in [*drivers[shift:], *drivers[:shift]]:
                claim = await allocate(api, driver, f"one-{drivers[0].node}-{size}-{index}-{driver.node}", Kind(size))
                prepared_s = await prepare(stubs[driver.name], claim)
                unprepared_s = await unprepare(stubs[driver.name], claim)
                if index >= WARM_UP:
                    calls[driver.name].prepare.append(prepared_s)
                    calls[driver.name].unprepare.append(unprepared_s)
        for driver in drivers:
            calls[driver.name].cpu_s = (driver.cpu_s() - before[driver.name]) / count
    return calls


async def sixteen_at_once(api: aiohttp.ClientSession, drivers: Sequence[Driver], rounds: int) -> Seconds:
    """Prepare sixteen claims of one device at once, `rounds` times on every driver in turn."""
    times: Seconds = {driver.name: [] for driver in drivers}
    async with connected(drivers) as stubs:
        batches = {driver.name: await sixteen(api, driver, f"at-once-{drivers[0].node}") for driver in drivers}
        for index in range(rounds + 2):
            shift = index % len(drivers)
            for driver in [*drivers[shift:], *drivers[:shift]]:
                stub, claims = stubs[driver.name], batches[driver.name]
                took = await asyncio.gather(*(prepare(stub, claim) for claim in claims))
                await asyncio.gather(*(unprepare(stub, claim) for claim in claims))
                if index >= 2:
                    times[driver.name] += took
    return times


async def sixteen(api: aiohttp.ClientSession, driver: Driver, name: str) -> list[dra_pb2.Claim]:
    """Create a claim for each of the sixteen devices of a driver's node."""
    return [await allocate(api, driver, f"{name}-{driver.node}-{i}", Kind(1, i)) for i in range(16)]


@dataclass(frozen=True)
class Sample:
    """Memory, descriptors and files of a driver after some cycles."""

    cycles: int
    rss_mib: float
    open_files: int
    files: int


async def cycles(
    api: aiohttp.ClientSession, driver: Driver, count: int, report: Callable[[Sample], None]
) -> list[Sample]:
    """Prepare and unprepare `count` times, sixteen claims at once; sample after 1,000 cycles and ten times more."""
    looks = [1000, *(count * tenth // 10 for tenth in range(1, 11))]
    samples: list[Sample] = []
    async with connected([driver]) as stubs:
        stub, claims = stubs[driver.name], await sixteen(api, driver, "cycle")
        done = 0
        for look in looks:
            while done < look:
                await asyncio.gather(*(prepare(stub, claim) for claim in claims))
                await asyncio.gather(*(unprepare(stub, claim) for claim in claims))
                done += len(claims)
            await asyncio.sleep(1.0)
            samples.append(Sample(done, driver.rss_mib(), driver.open_files(), driver.files()))
            report(samples[-1])
    return samples
