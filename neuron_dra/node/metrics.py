"""Every metric of the plugin, in one list."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any, Final

from neuron_dra.core.claims import PreparedClaim
from neuron_dra.metric_table import MetricTable, Rows, Series

ROWS: Final = Rows("neuron_dra")
BUILD = ROWS.info("build", "Version of the plugin")
OPERATIONS = ROWS.histogram(
    "claim_operation_seconds",
    "Time to prepare or unprepare one claim, by result",
    (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 45),
    "operation",
    "result",
)
REFUSED = ROWS.counter(
    "refused_claims",
    "Claims that were not prepared: Rejected, DeviceInUse, ApiServer, Timeout, Disk or Internal; retries count",
    "reason",
)
PREPARED = ROWS.gauge("prepared_claims", "Claims prepared on this node")
ORPHANS = ROWS.gauge(
    "prepared_claims_without_object",
    "Prepared claims whose ResourceClaim is gone, and which the kubelet has not unprepared",
)
DEVICE = ROWS.gauge(
    "device_info",
    "1 for each Neuron device and the claim that holds it: join this with others on neuron_device",
    "device",
    "neuron_device",
    "namespace",
    "pod",
    "claim",
    "workload",
)
HEALTH = ROWS.gauge("device_healthy", "1 healthy, 0 unhealthy, -1 unknown", "device")
FAULTS = ROWS.gauge(
    "device_fault",
    "1 for each reason for which a published device is unhealthy, with the affected Neuron device behind it",
    "device",
    "neuron_device",
    "reason",
)
FINDINGS = ROWS.gauge("findings", "Differences between the hardware and its instance type", "kind")
REGISTERED = ROWS.gauge("registered", "1 while the kubelet has the plugin registered")
PUBLISHED = ROWS.gauge("published", "1 while the last publish succeeded")
DEVICES = ROWS.gauge("published_devices", "Devices in the published ResourceSlices")
GENERATION = ROWS.gauge("pool_generation", "Generation of the published pool")
FAILED_PUBLISHES = ROWS.counter("publish_errors", "Failed publishes, by the API server's reason", "reason")
SLICE_WRITES = ROWS.counter("slice_writes", "Writes of ResourceSlices")
REPAIRS = ROWS.counter("cdi_repairs", "CDI files that were missing and written again")
DAMAGED = ROWS.gauge("checkpoint_damaged", "1 while the checkpoint is being rebuilt")
DEVICE_PLUGIN = ROWS.gauge("device_plugin_alive", "1 while a Neuron device plugin serves this node too")
LAG = ROWS.gauge("event_loop_lag_seconds", "Worst delay of the event loop, last minute")
REFUSALS: Final = ("Rejected", "DeviceInUse", "ApiServer", "Timeout", "Disk", "Internal")
PUBLISH_ERRORS: Final = ("Forbidden", "Invalid", "Conflict")
"""The most frequent ones."""


class PluginMetrics(MetricTable):
    """The plugin's metrics, with a method for each change of several series."""

    def __init__(self) -> None:
        super().__init__(ROWS.all)
        self._by_operation: dict[tuple[str, str], Any] = {}
        self._series_by_name: dict[str, dict[tuple[str, ...], float]] = {}  # as last set, by label values
        # `rate` and `increase` do not see the step to the first value of a series, so counters begin at zero.
        for operation in ("prepare", "unprepare"):
            for result in ("ok", "error"):
                self._by_operation[operation, result] = self.of(OPERATIONS, operation, result)
        for reason in REFUSALS:
            self.of(REFUSED, reason)
        for reason in PUBLISH_ERRORS:
            self.of(FAILED_PUBLISHES, reason)

    def claim_operation(self, operation: str, result: str, seconds: float) -> None:
        """Count one prepare or unprepare of one claim."""
        child = self._by_operation.get((operation, result))
        if child is None:
            child = self._by_operation[operation, result] = self.of(OPERATIONS, operation, result)
        child.observe(seconds)

    def claims(self, claims: Iterable[PreparedClaim], device_ids: Iterable[int]) -> None:
        """Set which claim holds which device; free devices of `device_ids` get empty labels."""
        claims = list(claims)
        self.set(PREPARED, len(claims))
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
        self._set_series(DEVICE, series)

    def _set_series(self, row: Series, series: dict[tuple[str, ...], float]) -> None:
        """Set all series of a gauge, by label values; remove others, and skip those that have not changed."""
        before = self._series_by_name.get(row.name, {})
        for labels in before.keys() - series.keys():
            self.of(row).remove(*labels)
        for labels, value in series.items():
            if before.get(labels) != value:
                self.set(row, value, *labels)
        self._series_by_name[row.name] = series

    def health(self, states: Iterable[tuple[str, str]], faults: Iterable[tuple[str, int, str]]) -> None:
        """Set each device's health, as named in the kubelet's API, and the faults.

        A fault is the published device, the id of the Neuron device behind it, and the reason.
        """
        worth = {"HEALTHY": 1, "UNHEALTHY": 0}
        self._set_series(HEALTH, {(device,): worth.get(state, -1) for device, state in states})
        self._set_series(FAULTS, {(device, str(device_id), reason): 1 for device, device_id, reason in faults})

    def findings(self, kinds: Iterable[str]) -> None:
        """Set the number of current findings of each kind."""
        self._set_series(FINDINGS, {(kind,): number for kind, number in collections.Counter(kinds).items()})

    def published(self, devices: int, generation: int, writes: int) -> None:
        """Record a successful publish."""
        self.set(PUBLISHED, 1)
        self.set(DEVICES, devices)
        self.set(GENERATION, generation)
        self.add(SLICE_WRITES, number=writes)

    def publish_failed(self, reason: str) -> None:
        """Count a failed publish."""
        self.set(PUBLISHED, 0)
        self.add(FAILED_PUBLISHES, reason)

    def repaired(self, count: int) -> None:
        """Count restored CDI files."""
        self.add(REPAIRS, number=count)
