"""The counters of devices and cores as Prometheus series, with the claims, pods and containers that have them.

They are read when the metrics are read, by a helper process of their own, so that a read that never ends delays no
health check. The plugin reads no Pods: their names come from the kubelet's pod-resources API, or from the claim.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from neuron_dra.core import telemetry
from neuron_dra.core.in_use import ListedPod
from neuron_dra.core.telemetry import USERS, WHO, DeviceCounters, User, Users
from neuron_dra.core.topology import Node
from neuron_dra.metric_table import Series
from neuron_dra.node.hardware import helper
from neuron_dra.node.hardware.reader import Overdue, Reader
from neuron_dra.node.hardware.sysfs import FileReading
from neuron_dra.node.prepare import pod_resources
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.timing import CounterTiming

log = logging.getLogger(__name__)

CORE: Final = ("neuron_device", "core", *WHO, USERS)
DEVICE: Final = ("neuron_device", *WHO, USERS)


BUSY: Final = Series(
    "neuron_dra_core_busy_seconds",
    "counter",
    CORE,
    "Time for which a physical NeuronCore executed, since the kernel driver was loaded; before kernel driver 2.30.2 a "
    "process is counted when it ends, as in all counters of cores",
)
FLOPS: Final = Series("neuron_dra_core_flops", "counter", CORE, "Floating-point operations of a core")
CALLS: Final = Series(
    "neuron_dra_core_executions",
    "counter",
    (*CORE, "result"),
    "Executions on a core by result, success or an error; errors that never happened have no series",
)
CORE_MEMORY: Final = Series(
    "neuron_dra_core_memory_bytes",
    "gauge",
    (*CORE, "category"),
    "Device memory that a core uses, by category; categories without any have no series",
)
HOST_MEMORY: Final = Series(
    "neuron_dra_device_host_memory_bytes", "gauge", (*DEVICE, "category"), "Host memory used for a device, by category"
)
POWER: Final = Series(
    "neuron_dra_device_power_ratio",
    "gauge",
    (*DEVICE, "statistic"),
    "Power of a device in the last minute as a share of its maximum: min, max or avg",
)
ECC: Final = Series(
    "neuron_dra_device_ecc_errors",
    "counter",
    (*DEVICE, "kind"),
    "Memory errors of a device, as its firmware counts them; loading the kernel driver does not set them back",
)
NODE: Final = Series(
    "neuron_dra_node_info",
    "gauge",
    ("instance_type", "driver_version"),
    "1 for the node's instance type and kernel driver",
)
READ_AT: Final = Series(
    "neuron_dra_counters_read_timestamp_seconds", "gauge", (), "When the counters were read, in seconds since the epoch"
)
SECONDS: Final = Series("neuron_dra_counters_read_seconds", "gauge", (), "Time that the last reading of counters took")
UNREAD: Final = Series(
    "neuron_dra_counters_unread_devices", "gauge", (), "Devices whose counters could not be read, because a read hangs"
)
ALL: Final = (BUSY, FLOPS, CALLS, CORE_MEMORY, HOST_MEMORY, POWER, ECC, NODE, READ_AT, SECONDS, UNREAD)


@dataclass(frozen=True, slots=True)
class CounterReading:
    """What was read: the devices' counters, who has them, when, the time it took, and the devices that were left out.

    `node` has the instance type and the kernel driver's version, empty if unknown.
    """

    devices: tuple[DeviceCounters, ...]
    users: Users
    node: tuple[str, str]
    at: float
    seconds: float
    unread: int


class Telemetry(Collector):
    """Reads the counters and exports them.

    `node` is the node as known, and `hanging` what its health reader skips. `detail` is `cores` for all series,
    `devices` for those of devices only.
    """

    def __init__(
        self,
        root: Path,
        detail: str,
        prepared: PreparedClaims,
        socket: Path,
        node: Callable[[], Node],
        hanging: Callable[[], Collection[str]],
        timing: CounterTiming,
    ) -> None:
        self._timing = timing
        self._files = telemetry.files(cores=detail == "cores")
        self._reader = Reader(root, ((), (), self._files))
        self._prepared = prepared
        self._socket = socket
        self._node = node
        self._hanging = hanging
        self._own: dict[str, float] = {}  # units that hang here, and when to try them again
        self._read_at: float | None = None
        self._order = asyncio.Lock()
        self.reading: CounterReading | None = None

    def register(self, registry: CollectorRegistry) -> None:
        """Export the series from `registry`."""
        registry.register(self)

    async def refresh(self) -> None:
        """Read the counters, unless they are fresh. Never raises: without a reading there are no series."""
        loop = asyncio.get_running_loop()
        async with self._order:
            if self._read_at is not None and loop.time() < self._read_at + self._timing.fresh_s:
                return
            began = loop.time()
            reading, pods = await asyncio.gather(self._read(), self._pods())
            self._read_at = loop.time()
            if reading is None:
                self.reading = None
                return
            read_devices = {device_id: device for device_id, device in reading.devices.items() if device is not None}
            self.reading = CounterReading(
                tuple(telemetry.counters(device_id, texts) for device_id, (_, texts) in read_devices.items()),
                telemetry.users(self._prepared.claims.values(), pods, self._node().spec),
                (self._node().instance_type_name or "", self._node().driver_version or ""),
                time.time(),
                self._read_at - began,
                len(reading.ids or ()) - len(read_devices),
            )

    async def close(self) -> None:
        """End the helper process."""
        await self._reader.abandon()

    async def _read(self) -> FileReading | None:
        now = asyncio.get_running_loop().time()
        self._own = {unit: until for unit, until in self._own.items() if until > now}
        if helper.CLASS in self._own:
            return None
        left_out = {*self._own, *self._hanging()}
        try:
            try:
                return await self._reader.read(self._timing.deadline_s, left_out)
            except Overdue:
                await self._reader.search(self._timing.deadline_s, left_out)
                log.warning("the counters of the devices were read too slowly")
        except Overdue as err:
            unit = helper.unit_of(err.path or helper.CLASS)
            self._own[unit] = asyncio.get_running_loop().time() + self._timing.probe_s
            log.warning("a read of a counter hangs; its device has no counters for now", extra={"path": err.path})
        except OSError as err:
            log.warning("cannot read the counters of the devices", extra={"error": str(err)})
        return None

    async def _pods(self) -> Sequence[ListedPod]:
        if not self._prepared.claims or not self._socket.exists():
            return ()
        try:
            async with asyncio.timeout(self._timing.pods_s):
                return await pod_resources.listed(self._socket, self._timing.pods_s)
        except (ConnectionError, TimeoutError) as err:
            log.debug("the kubelet does not list its pods", extra={"error": str(err)})
            return ()

    def describe(self) -> Iterable[Metric]:
        """Return the series without samples."""
        return [series.family() for series in ALL]

    def collect(self) -> Iterator[Metric]:
        """Yield the series of the last reading."""
        if self.reading is not None:
            yield from families(self.reading)


def families(reading: CounterReading) -> Iterator[Metric]:
    """Yield the series of a reading."""
    family_by_series = {series: series.family() for series in ALL}

    def add(series: Series, labels: Iterable[str], value: float | None) -> None:
        if value is not None:
            family_by_series[series].add_metric(tuple(labels), value)

    for device in reading.devices:
        number = str(device.device_id)
        who = (number, *_labels(reading.users.of_device(device.device_id)))
        for category, size in device.host_memory.items():
            add(HOST_MEMORY, (*who, category), size)
        for kind, count in device.ecc.items():
            add(ECC, (*who, kind), count)
        if device.power is not None:
            for name, percent in zip(("min", "max", "avg"), dataclasses.astuple(device.power), strict=True):
                add(POWER, (*who, name), percent / 100)
        for core, core_counters in device.cores.items():
            of_core = (number, str(core), *_labels(reading.users.of_core(device.device_id, core)))
            add(BUSY, of_core, None if core_counters.busy_us is None else core_counters.busy_us / 1e6)
            add(FLOPS, of_core, core_counters.flops)
            for result, count in core_counters.results.items():
                add(CALLS, (*of_core, result), count if count or result == "success" else None)
            for category, size in core_counters.memory.items():
                add(CORE_MEMORY, (*of_core, category), size or None)
    add(NODE, reading.node, 1)
    add(READ_AT, (), reading.at)
    add(SECONDS, (), reading.seconds)
    add(UNREAD, (), reading.unread)
    yield from family_by_series.values()


def _labels(users: Sequence[User]) -> tuple[str, ...]:
    """Return the values of WHO of the first user, and the number of users.

    Users decide how many pods share a device, so the labels must not name all of them.
    """
    first = users[0] if users else User()
    return (*(getattr(first, name) for name in WHO), str(len(users)))
