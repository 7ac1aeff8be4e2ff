"""The shapes of what `-o json` and `-o yaml` print: docs/output.schema.json is made of these types. Pure.

A test decodes the output of every command with them, and rejects a field that they do not have. Programs that read the
output have to accept new fields.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Shape(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """An object in an answer."""


class Answer(Shape, frozen=True, kw_only=True, tag_field="kind"):
    """What a command prints."""

    api_version: Literal["cli.neuron.aws.com/v1"]


class NotSeen(Shape, frozen=True, kw_only=True):
    """A kind, or with `name` one object, that could not be read: what it could show is unknown."""

    kind: str
    reason: str
    name: str = ""


class Fact(Shape, frozen=True, kw_only=True):
    """What was seen, with a label; an empty label belongs to the fact before it."""

    name: str
    text: str


class Change(Shape, frozen=True, kw_only=True):
    """A change that helps, what a simulation of it gives, and how to apply it where `kubectl apply` fails."""

    text: str
    outcome: str
    steps: str


class Cause(Shape, frozen=True, kw_only=True):
    """Why something is not as it should be. `neuron-dra explain CODE` has the meaning of a code."""

    code: str
    text: str
    facts: list[Fact]
    changes: list[Change]


class Fault(Shape, frozen=True, kw_only=True):
    """What is wrong with a node or an UltraServer."""

    kind: str
    name: str
    what: str
    detail: str


class FleetType(Shape, frozen=True, kw_only=True):
    """The nodes of an instance type. An unknown number is null, as is that of groups that the type does not have."""

    type: str
    nodes: int
    not_ready: int
    cordoned: int
    silent: int | None
    reserved: int | None
    devices: int | None
    free: int | None
    held: int | None
    unhealthy: int | None
    largest_free: int | None
    free_groups_of_4: int | None = msgspec.field(name="freeGroupsOf4")
    free_groups_of_8: int | None = msgspec.field(name="freeGroupsOf8")
    free_groups_of_16: int | None = msgspec.field(name="freeGroupsOf16")


class Member(Shape, frozen=True, kw_only=True):
    """A node of an UltraServer, and whether its links are up; null is unknown, or none."""

    name: str
    state: str
    vertical: bool | None
    horizontal: bool | None


class TestedNodes(Shape, frozen=True, kw_only=True):
    """What the last test of a qualification found on some nodes. A time is empty for never."""

    qualification: str
    nodes: list[str]
    verdict: str
    tested_at: str
    passed_at: str
    unqualified: bool
    message: str


class UltraServer(Shape, frozen=True, kw_only=True):
    """An UltraServer, by the id that its nodes publish."""

    name: str
    type: str
    nodes: list[Member]
    tests: list[TestedNodes]


class FleetNode(Shape, frozen=True, kw_only=True):
    """A Neuron node. A number that is unknown is null."""

    name: str
    type: str
    state: str
    devices: int | None
    free: int | None
    held: int | None
    unhealthy: int | None


class WaitingPod(Shape, frozen=True, kw_only=True):
    """A pod without a node, as NAMESPACE/NAME, and when it was created."""

    pod: str
    since: str | None


class StuckPod(Shape, frozen=True, kw_only=True):
    """A pod that has a node and does not start there, or does not end, as NAMESPACE/NAME, and why."""

    pod: str
    node: str
    code: str
    text: str


class WaitingWorkload(Shape, frozen=True, kw_only=True):
    """A NeuronUltraServerWorkload that waits or is degraded, as NAMESPACE/NAME."""

    workload: str
    state: str
    reason: str
    message: str


class Status(Answer, frozen=True, kw_only=True, tag="Status"):
    """`neuron-dra status`."""

    not_seen: list[NotSeen]
    wrong: list[Fault]
    types: list[FleetType]
    ultra_servers: list[UltraServer]
    waiting: list[WaitingPod]
    not_started: list[StuckPod]
    workloads: list[WaitingWorkload]
    nodes: list[FleetNode]


class Holder(Shape, frozen=True, kw_only=True):
    """The devices that a claim has of one node, and the pods that use it."""

    namespace: str
    pods: list[str]
    claim: str
    node: str
    devices: list[str]


class HolderList(Answer, frozen=True, kw_only=True, tag="HolderList"):
    """`neuron-dra status holders`."""

    items: list[Holder]
    not_seen: list[NotSeen]


class Report(Shape, frozen=True, kw_only=True):
    """The state of one object, and the causes, the true one first."""

    subject: str
    state: str
    causes: list[Cause]
    notes: list[str]


class WhyReport(Answer, frozen=True, kw_only=True, tag="WhyReport"):
    """`neuron-dra why TYPE/NAME`: the state of one object, and the causes, the true one first."""

    subject: str
    state: str
    causes: list[Cause]
    notes: list[str]


class WhyReportList(Answer, frozen=True, kw_only=True, tag="WhyReportList"):
    """`neuron-dra why` of several objects."""

    items: list[Report]


class ContainerSight(Shape, frozen=True, kw_only=True):
    """What a container sees: devices by the names under which they are published, and variables as NAME=value.

    A value that only the node knows is "?". `sees_all_devices` is why the container sees all devices of the node.
    """

    name: str
    devices: list[str]
    variables: list[str]
    sees_all_devices: str = ""


class PodOutcome(Shape, frozen=True, kw_only=True):
    """What a pod gets: a node and allocations by claim, as in status.allocation, or the cause why it waits.

    `containers` are those of a pod that runs. `rejected` is why the driver, or the kubelet, would reject the pod on its
    node.
    """

    pod: str
    runs: bool
    node: str = ""
    allocations: dict[str, dict[str, Any]] = {}
    containers: list[ContainerSight] = []
    cause: Cause | None = None
    rejected: str = ""


class PodOutcomeList(Answer, frozen=True, kw_only=True, tag="PodOutcomeList"):
    """`neuron-dra simulate`. The notes name what was not counted."""

    items: list[PodOutcome]
    notes: list[str]


class Problem(Shape, frozen=True, kw_only=True):
    """What is wrong with an object of a file."""

    file: str
    object: str
    code: str
    text: str
    severity: Literal["problem", "warning"]


class ProblemList(Answer, frozen=True, kw_only=True, tag="ProblemList"):
    """`neuron-dra validate`."""

    items: list[Problem]


class Explanation(Shape, frozen=True, kw_only=True):
    """The meaning of a name."""

    topic: str
    name: str
    what: str
    text: str
    facts: list[Fact]


class ExplanationList(Answer, frozen=True, kw_only=True, tag="ExplanationList"):
    """`neuron-dra explain`."""

    items: list[Explanation]


class Check(Shape, frozen=True, kw_only=True):
    """The result of a check, and what to do."""

    state: Literal["ok", "wrong", "unknown"]
    area: str
    code: str
    text: str
    to_do: str


class ForecastPod(Shape, frozen=True, kw_only=True):
    """What becomes of a pod that waits; null if the simulation does not decide it."""

    pod: str
    fits_now: bool | None
    fits_then: bool | None
    node: str = ""
    devices: list[str] = []
    why: str = ""


class UpgradeForecast(Shape, frozen=True, kw_only=True):
    """The versions of an upgrade of Kubernetes, and the pods that wait for devices."""

    from_: str = msgspec.field(name="from")
    to: str
    pods: list[ForecastPod]


class DoctorReport(Answer, frozen=True, kw_only=True, tag="DoctorReport"):
    """`neuron-dra doctor`; `upgrade` with --upgrade-to."""

    checks: list[Check]
    upgrade: UpgradeForecast | msgspec.UnsetType = msgspec.UNSET


class UsageOf(Shape, frozen=True, kw_only=True):
    """How busy some cores of a node are. What is unknown is null; `busy` and `power` are 0 to 1."""

    node: str
    namespace: str
    pod: str
    container: str
    claim: str
    workload: str
    devices: list[int]
    core: int | msgspec.UnsetType = msgspec.UNSET
    cores: int
    busy: float | None
    executions_per_second: float | None
    errors_per_second: float | None
    flops_per_second: float | None
    memory_bytes: dict[str, int] | None
    host_memory_bytes: dict[str, int]
    power: float | None
    ecc_errors: int | None


class Usage(Answer, frozen=True, kw_only=True, tag="Usage"):
    """`neuron-dra top`. `unread` says by node why it could not be read."""

    usage: list[UsageOf]
    unread: dict[str, str]


class PluginState(Answer, frozen=True, kw_only=True, tag="PluginState"):
    """`neuron-dra inspect`: the replies of neuron.dra.v1.NodeInspector (proto/) as protobuf writes them in JSON."""

    socket: str
    status: dict[str, Any]
    devices: dict[str, Any]
    claims: dict[str, Any]
    reservation: dict[str, Any]
    configuration: dict[str, Any]


class Consumer(Shape, frozen=True, kw_only=True):
    """A pod, or an object of another resource, that has a claim, with its owner as KIND NAME."""

    resource: str
    name: str
    owner: str = ""
    deleted_at: str = ""


class HeldClaim(Shape, frozen=True, kw_only=True):
    """A claim as NAMESPACE/NAME, with its devices by node."""

    claim: str
    devices: dict[str, list[str]]
    held_by: list[Consumer]


class WorkloadState(Shape, frozen=True, kw_only=True):
    """A NeuronUltraServerWorkload as NAMESPACE/NAME."""

    workload: str
    state: str


class ReservedServer(Shape, frozen=True, kw_only=True):
    """A NeuronUltraServer as NAMESPACE/NAME, with the workloads that reserve nodes of it."""

    ultra_server: str
    workloads: list[str]


class PlacedDevice(Shape, frozen=True, kw_only=True):
    """A Neuron device of a node, with the ids of its groups; `number` is null if the node is published as a whole."""

    name: str
    number: int | None
    held_by: list[str]
    faults: str
    groups: dict[str, str]


class PlacedInterface(Shape, frozen=True, kw_only=True):
    """An EFA interface of a node; `next_to` has the numbers of the Neuron devices in its smallest device group."""

    name: str
    rdma_name: str
    held_by: list[str]
    faults: str
    next_to: list[int]


class NodeTopology(Answer, frozen=True, kw_only=True, tag="NodeTopology"):
    """`neuron-dra topology NODE`; `interfaces_fault` says why claims get none of the interfaces."""

    node: str
    type: str
    ready: bool
    schedulable: bool
    devices: list[PlacedDevice]
    interfaces: list[PlacedInterface]
    interfaces_fault: str
    not_seen: list[NotSeen]


class UninstallCheck(Answer, frozen=True, kw_only=True, tag="UninstallCheck"):
    """`neuron-dra uninstall-check`."""

    claims: list[HeldClaim]
    workloads: list[WorkloadState]
    ultra_servers: list[ReservedServer]
    not_seen: list[NotSeen]


AnyAnswer = (
    Status
    | HolderList
    | WhyReport
    | WhyReportList
    | PodOutcomeList
    | ProblemList
    | ExplanationList
    | DoctorReport
    | Usage
    | PluginState
    | NodeTopology
    | UninstallCheck
)
"""All kinds of answers."""
