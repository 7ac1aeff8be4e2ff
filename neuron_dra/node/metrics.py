"""Every metric of the plugin, in one list."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.metrics import MetricWrapperBase

from neuron_dra.core.claims import PreparedClaim

PREFIX = "neuron_dra"
REFUSALS: Final = ("Rejected", "DeviceInUse", "ApiServer", "Timeout", "Disk", "Internal")
PUBLISH_ERRORS: Final = ("Forbidden", "Invalid", "Conflict")
"""The most frequent ones."""


class PluginMetrics:
    """The plugin's metrics, with one method for each kind of change."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self._build = Info(f"{PREFIX}_build", "Version of the plugin", registry=r)
        self._operations = Histogram(
            f"{PREFIX}_claim_operation_seconds",
            "Time to prepare or unprepare one claim, by result",
            ["operation", "result"],
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 45),
            registry=r,
        )
        self._refused = Counter(
            f"{PREFIX}_refused_claims",
            "Claims that were not prepared: Rejected, DeviceInUse, ApiServer, Timeout, Disk or Internal; retries count",
            ["reason"],
            registry=r,
        )
        self._by_operation: dict[tuple[str, str], Histogram] = {}
        self._series: dict[Gauge, dict[tuple[str, ...], float]] = {}  # as last set, by label values
        self._prepared = Gauge(f"{PREFIX}_prepared_claims", "Claims prepared on this node", registry=r)
        self._orphans = Gauge(
            f"{PREFIX}_prepared_claims_without_object",
            "Prepared claims whose ResourceClaim is gone, and which the kubelet has not unprepared",
            registry=r,
        )
        self._device = Gauge(
            f"{PREFIX}_device_info",
            "1 for each Neuron device and the claim that holds it: join this with others on neuron_device",
            ["device", "neuron_device", "namespace", "pod", "claim", "workload"],
            registry=r,
        )
        self._health = Gauge(f"{PREFIX}_device_healthy", "1 healthy, 0 unhealthy, -1 unknown", ["device"], registry=r)
        self._faults = Gauge(
            f"{PREFIX}_device_fault",
            "1 for each reason for which a published device is unhealthy, with the affected Neuron device behind it",
            ["device", "neuron_device", "reason"],
            registry=r,
        )
        self._findings = Gauge(
            f"{PREFIX}_findings", "Differences between the hardware and its instance type", ["kind"], registry=r
        )
        self._registered = Gauge(f"{PREFIX}_registered", "1 while the kubelet has the plugin registered", registry=r)
        self._published = Gauge(f"{PREFIX}_published", "1 while the last publish succeeded", registry=r)
        self._devices = Gauge(f"{PREFIX}_published_devices", "Devices in the published ResourceSlices", registry=r)
        self._generation = Gauge(f"{PREFIX}_pool_generation", "Generation of the published pool", registry=r)
        self._publish_errors = Counter(
            f"{PREFIX}_publish_errors", "Failed publishes, by the API server's reason", ["reason"], registry=r
        )
        self._slice_writes = Counter(f"{PREFIX}_slice_writes", "Writes of ResourceSlices", registry=r)
        self._repairs = Counter(f"{PREFIX}_cdi_repairs", "CDI files that were missing and written again", registry=r)
        self._damaged = Gauge(f"{PREFIX}_checkpoint_damaged", "1 while the checkpoint is being rebuilt", registry=r)
        self._device_plugin = Gauge(
            f"{PREFIX}_device_plugin_alive", "1 while a Neuron device plugin serves this node too", registry=r
        )
        self._lag = Gauge(f"{PREFIX}_event_loop_lag_seconds", "Worst delay of the event loop, last minute", registry=r)
        self._start_at_zero()

    def _start_at_zero(self) -> None:
        """Export counters before they count: `rate` and `increase` do not see the step to a series' first value."""
        for operation in ("prepare", "unprepare"):
            for result in ("ok", "error"):
                self._by_operation[operation, result] = self._operations.labels(operation, result)
        for reason in REFUSALS:
            self._refused.labels(reason)
        for reason in PUBLISH_ERRORS:
            self._publish_errors.labels(reason)

    def reference(self) -> list[tuple[str, str, tuple[str, ...], str]]:
        """Return name, type, labels and meaning of every metric, for the documentation."""
        rows = []
        for metric in vars(self).values():
            if isinstance(metric, MetricWrapperBase):
                family = next(iter(metric.describe()))
                suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
                rows.append((family.name + suffix, family.type, tuple(metric._labelnames), family.documentation))
        return sorted(rows)

    def build(self, version: str) -> None:
        """Set the version."""
        self._build.info({"version": version})

    def claim_operation(self, operation: str, result: str, seconds: float) -> None:
        """Count one prepare or unprepare of one claim."""
        child = self._by_operation.get((operation, result))
        if child is None:
            child = self._by_operation[operation, result] = self._operations.labels(operation, result)
        child.observe(seconds)

    def refused(self, reason: str) -> None:
        """Count a claim that was not prepared."""
        self._refused.labels(reason).inc()

    def claims(self, claims: Iterable[PreparedClaim], device_ids: Iterable[int]) -> None:
        """Set which claim holds which device; free devices of `device_ids` get empty labels."""
        claims = list(claims)
        self._prepared.set(len(claims))
        series: dict[tuple[str, ...], float] = {}
        allocated_ids = set()
        for claim in claims:
            for device in claim.devices:
                for device_id in device.device_ids:
                    if not device.admin_access:
                        allocated_ids.add(device_id)
                    labels = (claim.ref.namespace, claim.pod, claim.ref.name, claim.workload)
                    series[f"neuron{device_id}", str(device_id), *labels] = 1
        for device_id in device_ids:
            if device_id not in allocated_ids:
                series[f"neuron{device_id}", str(device_id), "", "", "", ""] = 1
        self._set_series(self._device, series)

    def _set_series(self, gauge: Gauge, series: dict[tuple[str, ...], float]) -> None:
        """Set all series of a gauge, by label values; remove others, and skip those that have not changed."""
        before = self._series.get(gauge, {})
        for labels in before.keys() - series.keys():
            gauge.remove(*labels)
        for labels, value in series.items():
            if before.get(labels) != value:
                gauge.labels(*labels).set(value)
        self._series[gauge] = series

    def orphans(self, count: int) -> None:
        """Set the number of prepared claims whose object is gone."""
        self._orphans.set(count)

    def health(self, states: Iterable[tuple[str, str]], faults: Iterable[tuple[str, int, str]]) -> None:
        """Set each device's health, as named in the kubelet's API, and the faults.

        A fault is the published device, the id of the Neuron device behind it, and the reason.
        """
        worth = {"HEALTHY": 1, "UNHEALTHY": 0}
        self._set_series(self._health, {(device,): worth.get(state, -1) for device, state in states})
        self._set_series(self._faults, {(device, str(device_id), reason): 1 for device, device_id, reason in faults})

    def findings(self, kinds: Iterable[str]) -> None:
        """Set the number of current findings of each kind."""
        self._set_series(self._findings, {(kind,): number for kind, number in collections.Counter(kinds).items()})

    def registered(self, registered: bool) -> None:
        """Set whether the kubelet has registered the plugin."""
        self._registered.set(registered)

    def published(self, devices: int, generation: int, writes: int) -> None:
        """Record a successful publish."""
        self._published.set(1)
        self._devices.set(devices)
        self._generation.set(generation)
        self._slice_writes.inc(writes)

    def publish_failed(self, reason: str) -> None:
        """Count a failed publish."""
        self._published.set(0)
        self._publish_errors.labels(reason).inc()

    def repaired(self, count: int) -> None:
        """Count restored CDI files."""
        self._repairs.inc(count)

    def checkpoint_damaged(self, damaged: bool) -> None:
        """Set whether the checkpoint is being rebuilt."""
        self._damaged.set(damaged)

    def device_plugin(self, alive: bool) -> None:
        """Set whether a device plugin serves this node too."""
        self._device_plugin.set(alive)

    def lag(self, seconds: float) -> None:
        """Set the event loop's worst delay."""
        self._lag.set(seconds)
