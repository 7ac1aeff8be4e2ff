"""Typed views of pods and of what holds them back: PodGroups and Kueue's Workloads. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from neuron_dra.ask.read.views import (
    ConditionedStatus,
    ConditionView,
    LabelSelectorView,
    MetaView,
    ObjectView,
    OwnerView,
)

ENDED: Final = ("Succeeded", "Failed")
"""Phases of pods whose containers run no more; kube-controller-manager releases their claims."""


class ContainerClaim(ObjectView, frozen=True):
    """A container's use of a claim of its pod."""

    name: str = ""
    request: str = ""


class ResourcesView(ObjectView, frozen=True):
    """What a container requests: amounts by resource, and claims."""

    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    claims: tuple[ContainerClaim, ...] = ()

    @property
    def wanted(self) -> dict[str, Any]:
        """The requests; the API server takes over limits without a request."""
        return {**self.limits, **self.requests}


class PortView(ObjectView, frozen=True):
    """A port of a container."""

    host_port: int = 0
    name: str = ""
    container_port: int = 0


class ContainerView(ObjectView, frozen=True):
    """A container, or an init container."""

    name: str = ""
    resources: ResourcesView = ResourcesView()
    restart_policy: str = ""
    image: str = ""
    ports: tuple[PortView, ...] = ()


class ClaimEntry(ObjectView, frozen=True):
    """An entry of the claims of a pod or PodGroup; `source` is that of Kubernetes before 1.31."""

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""
    source: Any = None


class Named(ObjectView, frozen=True):
    """Something that counts by its name, such as a scheduling gate."""

    name: str = ""


class AffinityTerm(ObjectView, frozen=True):
    """Pods, by their labels."""

    label_selector: LabelSelectorView = LabelSelectorView()
    topology_key: str = ""


class AntiAffinityView(ObjectView, frozen=True):
    """Pods that a pod may not be near to."""

    required: tuple[AffinityTerm, ...] = msgspec.field(
        default=(), name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class AffinityView(ObjectView, frozen=True):
    """Which pods a pod shall be near to; `simulate` reads the affinity to nodes."""

    pod_affinity: dict[str, Any] | None = None
    pod_anti_affinity: AntiAffinityView | None = None


class VolumeView(ObjectView, frozen=True):
    """A volume of a pod."""

    persistent_volume_claim: dict[str, Any] | None = None


class GroupMembership(ObjectView, frozen=True):
    """The PodGroup of a pod."""

    pod_group_name: str = ""


class PodSpecView(ObjectView, frozen=True):
    """What a pod requests."""

    node_name: str = ""
    scheduler_name: str = ""
    node_selector: dict[str, Any] = {}
    tolerations: tuple[dict[str, Any], ...] = ()
    containers: tuple[ContainerView, ...] = ()
    init_containers: tuple[ContainerView, ...] = ()
    scheduling_gates: tuple[Named, ...] = ()
    resource_claims: tuple[ClaimEntry, ...] = ()
    affinity: AffinityView = AffinityView()
    topology_spread_constraints: tuple[dict[str, Any], ...] = ()
    volumes: tuple[VolumeView, ...] = ()
    overhead: dict[str, Any] = {}
    priority: int = 0
    scheduling_group: GroupMembership = GroupMembership()

    @property
    def all_containers(self) -> tuple[ContainerView, ...]:
        """Its init containers, then the others."""
        return (*self.init_containers, *self.containers)


class WaitingView(ObjectView, frozen=True):
    """Why a container waits."""

    reason: str = ""
    message: str = ""


class ContainerState(ObjectView, frozen=True):
    """The state of a container; `terminated` is there if it has ended."""

    waiting: WaitingView = WaitingView()
    terminated: Any = None


class ContainerStatus(ObjectView, frozen=True):
    """The status of a container."""

    name: str = ""
    state: ContainerState = ContainerState()


class ClaimMade(ObjectView, frozen=True):
    """The claim that was made for an entry of a pod's claims; empty if the entry needs none."""

    name: str = ""
    resource_claim_name: str = ""


class PodStatusView(ObjectView, frozen=True):
    """How a pod is."""

    phase: str = ""
    conditions: tuple[ConditionView, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resource_claim_statuses: tuple[ClaimMade, ...] = ()
    extended_resource_claim_status: ClaimMade = ClaimMade()
    reason: str = ""
    message: str = ""


class PodView(ObjectView, frozen=True):
    """A pod."""

    metadata: MetaView = MetaView()
    spec: PodSpecView = PodSpecView()
    status: PodStatusView = PodStatusView()

    @property
    def has_ended(self) -> bool:
        """True if its containers run no more."""
        return self.status.phase in ENDED

    @property
    def containers_ended(self) -> bool:
        """True if each of its containers is known to have ended."""
        states = self.status.container_statuses
        return len(states) == len(self.spec.containers) > 0 and all(container.state.terminated for container in states)

    @property
    def is_ready(self) -> bool:
        """True if its condition Ready is True."""
        return any(condition.type == "Ready" and condition.status == "True" for condition in self.status.conditions)

    @property
    def claim_names(self) -> list[str]:
        """The names of its claims, as far as they are known."""
        created_names = [claim_status.resource_claim_name for claim_status in self.status.resource_claim_statuses]
        given_names = [pod_claim.resource_claim_name for pod_claim in self.spec.resource_claims]
        return [*created_names, self.status.extended_resource_claim_status.resource_claim_name, *given_names]


class RawPodStatus(ObjectView, frozen=True):
    """A pod's status as it is, for objects that are made of it."""

    resource_claim_statuses: tuple[dict[str, Any], ...] = ()


class _PodKey(ObjectView, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    deletion_timestamp: str = ""


class _Where(ObjectView, frozen=True):
    node_name: str = ""
    scheduling_group: GroupMembership = GroupMembership()


class _Phase(ObjectView, frozen=True):
    phase: str = ""


class PodPlace(ObjectView, frozen=True):
    """The few fields by which pods are found among all of a cluster, of which there may be 100,000."""

    metadata: _PodKey = _PodKey()
    spec: _Where = _Where()
    status: _Phase = _Phase()

    @property
    def group(self) -> str:
        """Its PodGroup; empty if it has none."""
        return self.spec.scheduling_group.pod_group_name

    @property
    def has_ended(self) -> bool:
        """True if its containers run no more."""
        return self.status.phase in ENDED


class _Ranked(ObjectView, frozen=True):
    priority: int = 0


class PodRank(ObjectView, frozen=True):
    """The priority of a pod, which is looked for among all of a cluster."""

    spec: _Ranked = _Ranked()


class _Owned(ObjectView, frozen=True):
    namespace: str = ""
    labels: dict[str, Any] = {}
    owner_references: tuple[OwnerView, ...] = ()


class PodOwners(ObjectView, frozen=True):
    """The fields by which the pods of a DaemonSet are found."""

    metadata: _Owned = _Owned()
    spec: _Where = _Where()

    def is_of(self, kind: str) -> bool:
        """Return True if an object of this kind owns it."""
        return any(owner.kind == kind for owner in self.metadata.owner_references)


class _Made(ObjectView, frozen=True):
    resource_claim_statuses: tuple[ClaimMade, ...] = ()


class PodClaims(ObjectView, frozen=True):
    """The claims that were made for a pod."""

    status: _Made = _Made()


class Gang(ObjectView, frozen=True):
    """How many pods of a PodGroup run at once."""

    min_count: int = 0


class GangPolicy(ObjectView, frozen=True):
    """How the pods of a PodGroup are scheduled."""

    gang: Gang = Gang()


class PodGroupSpec(ObjectView, frozen=True):
    """What a PodGroup is for."""

    scheduling_policy: GangPolicy = GangPolicy()
    resource_claims: tuple[ClaimEntry, ...] = ()


class PodGroupView(ObjectView, frozen=True):
    """A PodGroup."""

    metadata: MetaView = MetaView()
    spec: PodGroupSpec = PodGroupSpec()


class KueueWorkloadSpec(ObjectView, frozen=True):
    """What Kueue's Workload says of its queue."""

    queue_name: str = ""
    active: bool = True
    priority: int = 0


class KueueWorkloadView(ObjectView, frozen=True):
    """A Workload of Kueue."""

    metadata: MetaView = MetaView()
    spec: KueueWorkloadSpec = KueueWorkloadSpec()
    status: ConditionedStatus = ConditionedStatus()
