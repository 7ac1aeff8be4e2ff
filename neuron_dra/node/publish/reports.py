"""What the publishing loop reports: to the kubelet's health streams, as Events, in the metrics and in the log."""

from __future__ import annotations

import logging

from neuron_dra.core import checkpoint, health, publication
from neuron_dra.core.members import is_partition
from neuron_dra.errors import ApiError, NeuronDraError
from neuron_dra.kube.events import EventsAbout
from neuron_dra.node.hardware.hardware import Hardware
from neuron_dra.node.health import HealthSource
from neuron_dra.node.metrics import DEVICE_PLUGIN, PluginMetrics
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.publish.connected import ConnectedSets
from neuron_dra.node.publish.slice_publisher import Published, SlicePublisher
from neuron_dra.settings import PluginSettings

log = logging.getLogger(__name__)


class PublishReports:
    """Reports devices, findings and publishes. `unhealthy` are the unhealthy devices that Events were posted about."""

    def __init__(
        self,
        settings: PluginSettings,
        hardware: Hardware,
        prepared: PreparedClaims,
        connected: ConnectedSets,
        publisher: SlicePublisher,
        source: HealthSource,
        events: EventsAbout,
        metrics: PluginMetrics,
    ) -> None:
        self._effect = settings.unhealthy_device_effect
        self._hardware = hardware
        self._prepared = prepared
        self._connected = connected
        self._publisher = publisher
        self._source = source
        self._events = events
        self._metrics = metrics
        self._logged: dict[str, health.DeviceHealth] = {}
        self._unlisted = ""
        self._rival = ""
        self.unhealthy: frozenset[str] = frozenset()

    def device_health(self) -> None:
        """Report the devices' health to the kubelet's streams, the metrics and the log."""
        if not self._hardware.known.is_set():
            return
        states = self._states()
        for state in states:
            self._log_change(state)
        self._source.set(states)
        self._metrics.health(
            [(state.name, state.status.value) for state in states],
            [(state.name, *fault) for state in states for fault in self._hardware.faults_of(state.name)],
        )
        self._metrics.claims(self._prepared.claims.values(), [d.device_id for d in self._hardware.node.devices])

    def _log_change(self, state: health.DeviceHealth) -> None:
        before = self._logged.get(state.name, health.DeviceHealth(state.name, health.Health.HEALTHY))
        self._logged[state.name] = state
        if (state.status, state.reasons) == (before.status, before.reasons):
            return
        about = {"device": state.name, "reasons": ",".join(state.reasons), "text": state.message}
        if state.status is health.Health.UNHEALTHY:
            log.warning("a device is unhealthy", extra=about)
        elif state.status is health.Health.UNKNOWN:
            log.info("the health of a device is unknown", extra=about)
        else:
            log.info("a device is healthy again", extra={"device": state.name})

    def _states(self) -> tuple[health.DeviceHealth, ...]:
        """Return the health of every device that is published, held, or would be published if healthy."""
        own_names = self._hardware.device_names(self._connected.shape)
        device_names = (device["name"] for device in self._publisher.devices)
        published_names = [name for name in device_names if not is_partition(name)]
        prepared_names = checkpoint.device_names(self._prepared.claims.values())
        names = sorted({*own_names, *published_names, *prepared_names}, key=publication.order)
        return tuple(self._hardware.health_of(name) for name in names)

    def post_health_events(self) -> None:
        """Post an Event about each unhealthy device, and about each that is healthy again."""
        states = {state.name: state for state in self._states()}
        unhealthy = frozenset(name for name, state in states.items() if state.status is health.Health.UNHEALTHY)
        for name in sorted(unhealthy, key=publication.order):
            self._events.post("Warning", "NeuronDeviceUnhealthy", health.event_message(states[name], self._effect))
        for name in sorted(self.unhealthy - unhealthy, key=publication.order):
            if name in states:
                self._events.post("Normal", "NeuronDeviceHealthy", f"{name} is healthy again")
        self.unhealthy = unhealthy

    def findings(self) -> None:
        """Report where hardware and catalogue disagree."""
        findings = self._hardware.node.findings
        self._metrics.findings([finding.kind for finding in findings])
        for finding in findings:
            reason = "Neuron" + "".join(map(str.title, finding.kind.split("-")))
            self._events.post("Warning", reason, finding.message)

    def post_taken_names(self) -> None:
        """Post an Event about each of our slice names that another object has taken."""
        for name, by in sorted(self._publisher.taken.items()):
            self._events.post(
                "Warning",
                "NeuronSliceNameTaken",
                f"ResourceSlice {name} is {by}, but its name is reserved for this node's slices, which now use another "
                "name. Find out who created it, and delete it",
            )

    def device_plugin(self, why: str, *, refuse: bool) -> None:
        """Report that a device plugin runs on the node, if there is evidence of it."""
        self._metrics.set(DEVICE_PLUGIN, bool(why))
        if why:
            text = why + ("" if refuse else "; devices are published because of --device-plugin-coexistence=warn")
            self._events.post("Warning", "NeuronDevicePluginAlive", text)

    def rival(self, why: str) -> None:
        """Report another program that writes this node's slices, once for each text."""
        if why and why != self._rival:
            log.error("another program writes this node's slices", extra={"reason": why})
            self._events.post("Warning", "NeuronRivalPublisher", why)
        self._rival = why

    def pods_unlisted(self, why: str) -> None:
        """Report that the kubelet's pods cannot be listed: once, and again after it was possible."""
        if why and not self._unlisted:
            text = f"{why}. So it is not known whether pods have devices of a Neuron device plugin that is gone"
            self._events.post("Warning", "NeuronPodsNotListed", text)
        self._unlisted = why

    def published(self, result: Published) -> None:
        """Report a publish."""
        if result.writes:
            log.info(
                "slices published",
                extra={"devices": result.devices, "generation": result.generation, "writes": result.writes},
            )
            self.device_health()
        self._metrics.published(result.devices, result.generation, result.writes)

    def publish_failed(self, err: NeuronDraError | OSError, retry_in_s: float) -> None:
        """Report a publish that failed."""
        log.error("publishing failed", extra={"error": str(err), "retry_in_s": round(retry_in_s, 1)})
        self._metrics.publish_failed((err.reason if isinstance(err, ApiError) else "") or type(err).__name__)
