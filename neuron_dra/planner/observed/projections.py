"""The fields that are parsed of large objects that change often. Other fields never become Python objects.

`decode` gets no more than this, so each field that it reads must be here, too; a test verifies that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from neuron_dra.core.wire import Wire
from neuron_dra.planner.observed import slices

WAITING_PODS_BYTES: Final = 5 * 512 * 1024
"""The limit of a page of pods without a node: 250 usual pods, or 9 with the largest annotations."""


SMALL_PAGE_BYTES: Final = 1024 * 1024
"""The limit of a page where several are read at the same time, or much is kept of each object."""


class Part(msgspec.Struct, omit_defaults=True, rename="camel"):
    """A part of an object. Absent fields stay absent."""


class Meta(Part):
    """metadata."""

    name: str
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Taint(Part):
    """A taint of a Node."""

    key: str = ""
    effect: str = ""


class NodeSpecFields(Part):
    """spec of a Node."""

    provider_id: str = msgspec.field(default="", name="providerID")
    unschedulable: bool = False
    taints: list[Taint] | None = None


class NodeCondition(Part):
    """A condition of a Node."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class Address(Part):
    """An address of a Node."""

    type: str = ""
    address: str = ""


class NodeStatus(Part):
    """status of a Node."""

    conditions: list[NodeCondition] | None = None
    addresses: list[Address] | None = None


class NodeFields(Part):
    """A Node. Each kubelet writes its own every five minutes, with a long list of images."""

    metadata: Meta
    spec: NodeSpecFields | None = None
    status: NodeStatus | None = None


class Value(Part):
    """The value of an attribute."""

    string: str | None = None
    number: int | None = msgspec.field(default=None, name="int")
    boolean: bool | None = msgspec.field(default=None, name="bool")


Attributes = msgspec.defstruct(
    "Attributes",
    [
        (f"of_{number}", Value | None, msgspec.field(default=None, name=name))
        for number, name in enumerate([*slices.QUALIFIED, *slices.QUALIFIED.values()])
    ],
    omit_defaults=True,
)
"""The attributes of a device that the controller reads."""


class Basic(Part):
    """A device in v1beta1."""

    attributes: Attributes | None = None  # type: ignore[valid-type]


class SliceDevice(Part):
    """A device of a ResourceSlice."""

    attributes: Attributes | None = None  # type: ignore[valid-type]
    basic: Basic | None = None


class SliceOwner(Part):
    """An owner of a ResourceSlice: its Node."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""


class SliceMeta(Part):
    """metadata of a ResourceSlice."""

    name: str
    uid: str = ""
    resource_version: str = ""
    owner_references: list[SliceOwner] | None = None


class SlicePool(Part):
    """The pool of a ResourceSlice."""

    generation: int = 0
    resource_slice_count: int = 0


class SliceSpec(Part):
    """spec of a ResourceSlice."""

    driver: str = ""
    node_name: str | None = None
    pool: SlicePool | None = None
    devices: list[SliceDevice] | None = None


class Slice(Part):
    """A ResourceSlice. That of a node with connected sets has a hundred devices, which consume counters."""

    metadata: SliceMeta
    spec: SliceSpec | None = None


class PodMeta(Part):
    """metadata of a Pod."""

    namespace: str
    name: str = ""
    uid: str = ""


class PodClaimEntry(Part):
    """A claim of a Pod, in its spec or in its status."""

    resource_claim_name: str | None = None


class SchedulingGroup(Part):
    """The group with which a Pod is scheduled."""

    pod_group_name: str | None = None


class PodSpec(Part):
    """spec of a Pod."""

    resource_claims: list[PodClaimEntry] | None = None
    scheduling_group: SchedulingGroup | None = None


class PodStatus(Part):
    """status of a Pod."""

    phase: str = ""
    resource_claim_statuses: list[PodClaimEntry] | None = None
    extended_resource_claim_status: PodClaimEntry | None = None


class Pod(Part):
    """A Pod and its claims."""

    metadata: PodMeta
    spec: PodSpec | None = None
    status: PodStatus | None = None

    @property
    def claims(self) -> set[str]:
        """Names of its claims, including those made from templates."""
        spec, status = self.spec or PodSpec(), self.status or PodStatus()
        pod_claims = [*(spec.resource_claims or ()), *(status.resource_claim_statuses or ())]
        if status.extended_resource_claim_status is not None:
            pod_claims.append(status.extended_resource_claim_status)
        return {pod_claim.resource_claim_name for pod_claim in pod_claims if pod_claim.resource_claim_name}


class WaitingPodMeta(Part):
    """metadata of a Pod without a node."""

    name: str
    namespace: str
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class TemplateClaim(Part):
    """A claim of a Pod that is made from a template: in its spec, or in its status once it is made."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class WaitingPodSpec(Part):
    """spec of a Pod without a node."""

    resource_claims: list[TemplateClaim] | None = None


class WaitingPodStatus(Part):
    """status of a Pod without a node. Conditions are whole: a merge patch of one of them has to repeat the others."""

    conditions: list[dict[str, Any]] | None = None
    resource_claim_statuses: list[TemplateClaim] | None = None


class WaitingPod(Part):
    """A Pod without a node. Its containers, volumes and managed fields make up nearly all of its size."""

    metadata: WaitingPodMeta
    spec: WaitingPodSpec | None = None
    status: WaitingPodStatus | None = None

    @property
    def templates(self) -> set[str]:
        """Names of the templates of its claims."""
        claims = (self.spec or WaitingPodSpec()).resource_claims or ()
        return {claim.resource_claim_template_name for claim in claims if claim.resource_claim_template_name}


class Resources(Part):
    """What a container requests."""

    requests: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None


class PodContainer(Part):
    """A container of a Pod."""

    resources: Resources | None = None


class Expression(Part):
    """A condition of a node selector term."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeTerm(Part):
    """A term of a node selector."""

    match_expressions: list[Expression] | None = None


class RequiredNodes(Part):
    """The terms of which a node must match one."""

    node_selector_terms: list[NodeTerm] | None = None


class NodeAffinity(Part):
    """The nodes that a Pod requires."""

    required: RequiredNodes | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(Part):
    """affinity of a Pod."""

    node_affinity: NodeAffinity | None = None


class PodWithLimitsSpec(Part):
    """spec of a Pod without a node, for the limits watcher."""

    node_name: str | None = None
    node_selector: dict[str, str] | None = None
    scheduler_name: str | None = None
    scheduling_gates: list[dict[str, Any]] | None = None
    affinity: Affinity | None = None
    init_containers: list[PodContainer] | None = None
    containers: list[PodContainer] | None = None


class PodWithLimitsStatus(Part):
    """status of a Pod without a node."""

    conditions: list[NodeCondition] | None = None


class PodWithLimits(Part):
    """A Pod without a node, as the limits watcher reads it."""

    metadata: WaitingPodMeta
    spec: PodWithLimitsSpec | None = None
    status: PodWithLimitsStatus | None = None


class NodeResourcesStatus(Part):
    """status of a Node, for the limits watcher."""

    allocatable: dict[str, Any] | None = None


class NodeResources(Part):
    """A Node, as the limits watcher reads it."""

    metadata: SliceMeta
    status: NodeResourcesStatus | None = None


def as_wire(pods: Sequence[WaitingPod]) -> list[Wire]:
    """Return pods as the API server has them, with these fields only."""
    as_dicts: list[Wire] = msgspec.to_builtins(pods)
    return as_dicts
