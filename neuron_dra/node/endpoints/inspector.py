"""NodeInspector: the plugin's state, for `neuron-dra inspect` and users with grpcurl."""

from __future__ import annotations

from typing import Any, Protocol

from neuron_dra import __version__
from neuron_dra.core import cdi, checkpoint
from neuron_dra.core.claims import PreparedClaim
from neuron_dra.core.reservation import NodeReservation
from neuron_dra.gen.neuron.dra.v1 import inspector_pb2 as pb
from neuron_dra.gen.neuron.dra.v1 import inspector_pb2_grpc
from neuron_dra.node.hardware.hardware import Hardware
from neuron_dra.node.prepare.kubelet import Registration
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.prepare.store import Store
from neuron_dra.node.publish.loop import PublishState
from neuron_dra.node.ultraserver.reservation_gate import ReservationGate
from neuron_dra.node.ultraserver.watch import UltraServerWatch
from neuron_dra.settings import PluginSettings


class InspectedParts(Protocol):
    """The parts of the plugin that the inspector reads."""

    settings: PluginSettings
    hardware: Hardware
    prepared: PreparedClaims
    store: Store
    registration: Registration
    ultraserver: UltraServerWatch
    gate: ReservationGate

    @property
    def publish_state(self) -> PublishState: ...


class Inspector(inspector_pb2_grpc.NodeInspectorServicer):
    """Serves the plugin's state, read-only."""

    def __init__(self, sources: InspectedParts) -> None:
        self._from = sources

    async def ListDevices(self, request: pb.ListDevicesRequest, context: Any) -> pb.ListDevicesResponse:
        """Return every Neuron device with its links, health and the claim that holds it."""
        hardware = self._from.hardware
        state = self._from.publish_state
        as_node = self._from.settings.ultraserver_devices == "node"
        holders = checkpoint.holders(self._from.prepared.claims.values())
        is_one_device = as_node and hardware.node.spec is not None and hardware.node.spec.whole_node
        uids = {device_id: claim.ref.uid for device_id, claim in holders.items()}
        devices = []
        for device in hardware.node.devices:
            health = hardware.health_of(device.name)
            devices.append(
                pb.NeuronDevice(
                    device_id=device.device_id,
                    name=device.name,
                    core_count=device.core_count,
                    memory_bytes=device.memory_bytes or 0,
                    connected_devices=sorted(device.connected),
                    health=pb.Health.Value(f"HEALTH_{health.status.value}"),
                    health_message=health.message,
                    claim_uid=uids.get(device.device_id, ""),
                    published=state.result is not None and not is_one_device,
                )
            )
        return pb.ListDevicesResponse(
            node_name=self._from.settings.node_name,
            instance_type=hardware.node.instance_type_name or "",
            neuron_driver_version=hardware.node.driver_version or "",
            findings=[finding.message for finding in hardware.node.findings],
            devices=devices,
        )

    async def ListPreparedClaims(
        self, request: pb.ListPreparedClaimsRequest, context: Any
    ) -> pb.ListPreparedClaimsResponse:
        """Return every prepared claim, oldest first."""
        claims = sorted(self._from.prepared.claims.values(), key=lambda claim: (claim.prepared_at, claim.ref.uid))
        return pb.ListPreparedClaimsResponse(claims=[self._claim(claim) for claim in claims])

    def _claim(self, claim: PreparedClaim) -> pb.PreparedClaim:
        cdi_file = ""
        if not claim.adopted:
            cdi_file = str(self._from.store.cdi_root / cdi.file_name(claim.ref.uid))
        devices = []
        for device in claim.devices:
            devices.append(
                pb.PreparedDevice(
                    request=device.request,
                    pool=device.pool,
                    device=device.device,
                    cdi_device_ids=device.cdi_ids,
                    env=device.env,
                    admin_access=device.admin_access,
                )
            )
        return pb.PreparedClaim(
            namespace=claim.ref.namespace,
            name=claim.ref.name,
            uid=claim.ref.uid,
            cdi_file=cdi_file,
            prepared_at=claim.prepared_at,
            devices=devices,
        )

    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.GetStatusResponse:
        """Return the state of the registration and of the last publish."""
        state, registration = self._from.publish_state, self._from.registration
        result = state.result
        return pb.GetStatusResponse(
            registered=registration.registered,
            registration_error=registration.error,
            published=result is not None and not state.error,
            publish_error=state.error,
            published_at=state.at.isoformat(timespec="seconds") if state.at else "",
            pool_generation=result.generation if result else 0,
            slices=result.slices if result else 0,
            devices=result.devices if result else 0,
            boot_id=self._from.store.boot_id,
            version=__version__,
        )

    async def GetReservation(self, request: pb.GetReservationRequest, context: Any) -> pb.GetReservationResponse:
        """Return the node's reservation and the tag on its devices."""
        watch, reservation, tag = self._from.ultraserver, self._from.gate.reservation, self._from.gate.tag
        answer = pb.GetReservationResponse(
            ultraserver=watch.name or "",
            known=watch.reading is not None,
            problems=watch.reading.problems if watch.reading is not None else (),
        )
        if reservation is not None:
            answer.reservation.CopyFrom(_reservation(reservation))
        if tag is not None:
            shown = pb.Tag(
                workload=tag.workload,
                workload_uid=tag.workload_uid,
                allocation_id=tag.allocation_id,
                phase=tag.phase.value,
            )
            answer.tag.CopyFrom(shown)
        return answer

    async def GetConfiguration(self, request: pb.GetConfigurationRequest, context: Any) -> pb.GetConfigurationResponse:
        """Return each setting with its value and source."""
        rows = self._from.settings.rows()
        return pb.GetConfigurationResponse(
            settings=[pb.Setting(name=name, value=value, source=source) for name, value, source in rows]
        )


def _reservation(reservation: NodeReservation) -> pb.Reservation:
    reservation_message = pb.Reservation(
        workload=f"{reservation.namespace}/{reservation.workload}",
        workload_uid=reservation.workload_uid,
        phase=reservation.phase.value,
    )
    if reservation.place is not None:
        place = reservation.place
        reservation_message.rank, reservation_message.node_count = place.rank, place.node_count
        reservation_message.world_size, reservation_message.rank0_node = place.world_size or 0, place.rank0_node or ""
    return reservation_message
