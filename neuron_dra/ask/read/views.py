"""Typed views of Kubernetes objects: the fields that answers read, and what stands for an absent one. Pure.

A view says twice what is read: to the code, by its types, and to `snapshot.build`, which sets aside an object with
another type at one of these fields and names both. So the reader of a view guards against nothing.
"""

from __future__ import annotations

import types
import typing
from typing import Any, Self

import msgspec

from neuron_dra.core.wire import Wire


class ObjectView(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """Some fields of an object, with their names in its form as YAML."""

    @classmethod
    def of(cls, raw_object: Wire | None) -> Self:
        """Return the view of an object of a snapshot, or of a part of one; of None, the view of an empty object."""
        if raw_object is None:
            return cls()
        try:
            return msgspec.convert(raw_object, cls)
        except msgspec.ValidationError:
            return msgspec.convert(_without_nulls(raw_object), cls)  # null is absent, as Kubernetes reads it


class OwnerView(ObjectView, frozen=True):
    """An owner of an object."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: Any = None


class MetaView(ObjectView, frozen=True):
    """An object's metadata."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, Any] = {}
    annotations: dict[str, Any] = {}
    owner_references: tuple[OwnerView, ...] = ()
    deletion_timestamp: str = ""
    generation: int = 0
    finalizers: tuple[str, ...] = ()
    creation_timestamp: Any = None  # a template has null here

    def owners(self, kind: str) -> list[OwnerView]:
        """Return the owners of a kind."""
        return [owner for owner in self.owner_references if owner.kind == kind]


class NamespaceView(ObjectView, frozen=True):
    """A namespace."""

    metadata: MetaView = MetaView()


class ConditionView(ObjectView, frozen=True):
    """One condition of a status."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class ExpressionView(ObjectView, frozen=True):
    """One expression of a label selector."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class LabelSelectorView(ObjectView, frozen=True):
    """A label selector."""

    match_labels: dict[str, Any] = {}
    match_expressions: tuple[ExpressionView, ...] = ()


class BudgetSpec(ObjectView, frozen=True):
    """What a PodDisruptionBudget protects."""

    selector: LabelSelectorView | None = None
    unhealthy_pod_eviction_policy: str = ""


class BudgetStatus(ObjectView, frozen=True):
    """What a PodDisruptionBudget allows now."""

    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    observed_generation: int = 0


class BudgetView(ObjectView, frozen=True):
    """A PodDisruptionBudget."""

    metadata: MetaView = MetaView()
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


class QuotaAmounts(ObjectView, frozen=True):
    """Amounts by resource, as quantities."""

    hard: dict[str, Any] = {}
    used: dict[str, Any] = {}


class QuotaView(ObjectView, frozen=True):
    """A ResourceQuota."""

    metadata: MetaView = MetaView()
    spec: QuotaAmounts = QuotaAmounts()
    status: QuotaAmounts = QuotaAmounts()


class TemplateName(ObjectView, frozen=True):
    """The ResourceClaimTemplate that the controller makes for a workload."""

    name: str = ""


class UltraServerWorkloadSpec(ObjectView, frozen=True):
    """What a NeuronUltraServerWorkload requests."""

    instance_type: str = ""
    topology_size: int = 1
    server_count: int = 1
    resource_claim_template: TemplateName = TemplateName()


class ConditionedStatus(ObjectView, frozen=True):
    """The status of a custom resource."""

    state: str = ""
    conditions: tuple[ConditionView, ...] = ()

    def condition(self, kind: str) -> ConditionView | None:
        """Return the condition of a type, or None."""
        return next((condition for condition in self.conditions if condition.type == kind), None)


class ConditionedObject(ObjectView, frozen=True):
    """The conditions of any object."""

    status: ConditionedStatus = ConditionedStatus()


class WorkloadView(ObjectView, frozen=True):
    """A NeuronUltraServerWorkload."""

    metadata: MetaView = MetaView()
    spec: UltraServerWorkloadSpec = UltraServerWorkloadSpec()
    status: ConditionedStatus = ConditionedStatus()

    @property
    def template_name(self) -> str:
        """The ResourceClaimTemplate that the controller creates for it."""
        return self.spec.resource_claim_template.name or self.metadata.name


class UltraServerNode(ObjectView, frozen=True):
    """One node of a NeuronUltraServer."""

    node_name: str = ""
    node_id: int = 0


class UltraServerSpec(ObjectView, frozen=True):
    """The nodes of a NeuronUltraServer, and their type."""

    instance_type: str = ""
    topology: tuple[UltraServerNode, ...] = ()


class ReservationView(ObjectView, frozen=True):
    """A reservation of nodes of a NeuronUltraServer."""

    workload_ref: Any = None


class TestedView(ObjectView, frozen=True):
    """What the last test of a qualification found on some nodes of a NeuronUltraServer."""

    qualification: str = ""
    nodes: tuple[str, ...] = ()
    node_uids: tuple[str, ...] = ()
    verdict: str = ""
    unqualified: bool = False
    message: str = ""
    tested_at: str = ""
    passed_at: str = ""


class UltraServerStatus(ConditionedStatus, frozen=True):
    """The state of a NeuronUltraServer."""

    ultraserver_id: str = ""
    allocations: tuple[ReservationView, ...] = ()
    qualifications: tuple[TestedView, ...] = ()


class UltraServerView(ObjectView, frozen=True):
    """A NeuronUltraServer."""

    metadata: MetaView = MetaView()
    spec: UltraServerSpec = UltraServerSpec()
    status: UltraServerStatus = UltraServerStatus()

    @property
    def nodes(self) -> list[str]:
        """The names of its nodes."""
        return [node.node_name for node in self.spec.topology if node.node_name]

    @property
    def is_spare(self) -> bool:
        """True if the controller keeps its nodes for groups that must move."""
        spare = self.status.condition("Spare")
        return spare is not None and spare.status == "True"


class Involved(ObjectView, frozen=True):
    """The object that an Event is about."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class EventSubject(ObjectView, frozen=True):
    """The field by which the Events about an object are found."""

    involved_object: Involved = Involved()


class SeriesView(ObjectView, frozen=True):
    """The repetitions of an Event."""

    last_observed_time: Any = None


class EventSource(ObjectView, frozen=True):
    """The program that posted an Event, in Events of the older client library."""

    component: str = ""


class EventView(ObjectView, frozen=True):
    """An Event of events/v1 or core/v1; its times are texts, and absent ones are often null."""

    involved_object: Involved = Involved()
    reporting_component: str = ""
    source: EventSource = EventSource()
    reason: str = ""
    message: str = ""
    type: str = ""
    series: SeriesView | None = None
    last_timestamp: Any = None
    event_time: Any = None

    @property
    def reporter(self) -> str:
        """The program that posted it; empty if it does not say."""
        return self.reporting_component or self.source.component

    @property
    def seen_at(self) -> str:
        """When it was last seen; empty if it has no time."""
        last = self.series.last_observed_time if self.series is not None else None
        times = (last, self.last_timestamp, self.event_time)
        return max((str(time) for time in times if time), default="")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        without_nulls = {}
        for key, inner in value.items():
            if inner is not None:
                without_nulls[key] = _without_nulls(inner)
        return without_nulls
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value


def shape(kind: Any) -> Any:
    """Return the shape of a view, for `core.shapes`; None of a field that may have any type."""
    if isinstance(kind, type) and issubclass(kind, ObjectView):
        fields = {}
        for struct_field in msgspec.structs.fields(kind):
            fields[struct_field.encode_name] = shape(struct_field.type)
        return {name: field_shape for name, field_shape in fields.items() if field_shape is not None}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return [shape(arguments[0])]
    if origin is dict:
        return {}
    if origin in (types.UnionType, typing.Union):
        return shape(next(argument for argument in arguments if argument is not type(None)))
    if kind is Any:
        return None
    return kind
