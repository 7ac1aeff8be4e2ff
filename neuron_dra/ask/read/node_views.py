"""Typed views of Nodes, and of the ResourceSlices that they publish. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from neuron_dra.ask.read.views import ConditionView, MetaView, ObjectView
from neuron_dra.core import names, node_conditions
from neuron_dra.core.wire import Wire


class TaintView(ObjectView, frozen=True):
    """A taint of a Node or of a device."""

    key: str = ""
    value: str = ""
    effect: str = ""


class KubeNodeSpec(ObjectView, frozen=True):
    """Which pods a Node takes."""

    taints: tuple[TaintView, ...] = ()
    unschedulable: bool = False


class NodeInfo(ObjectView, frozen=True):
    """The programs on a Node."""

    kubelet_version: str = ""
    container_runtime_version: str = ""


class JudgedStatus(ObjectView, frozen=True):
    """The conditions of a Node."""

    conditions: tuple[ConditionView, ...] = ()

    @property
    def ready(self) -> ConditionView | None:
        """The condition Ready, None if there is none."""
        return next((condition for condition in self.conditions if condition.type == "Ready"), None)

    @property
    def reported(self) -> tuple[tuple[str, str], ...]:
        """The faults that agents report: the type of each condition, and what the agent says."""
        agent_conditions = []
        for condition in self.conditions:
            if condition.type in _OF_AGENTS:
                agent_conditions.append(msgspec.structs.asdict(condition))
        return tuple(node_conditions.faults(agent_conditions, node_conditions.DEFAULT)) if agent_conditions else ()


class KubeNodeStatus(JudgedStatus, frozen=True):
    """How a Node is."""

    allocatable: dict[str, Any] = {}
    node_info: NodeInfo = NodeInfo()


class KubeNodeView(ObjectView, frozen=True):
    """A Node of Kubernetes; `world.fleet.NodeView` is one with its Neuron devices."""

    metadata: MetaView = MetaView()
    spec: KubeNodeSpec = KubeNodeSpec()
    status: KubeNodeStatus = KubeNodeStatus()

    @property
    def instance_type(self) -> str:
        """Its instance type; empty without the label."""
        return str(self.metadata.labels.get(names.INSTANCE_TYPE_LABEL) or "")

    @property
    def unserved(self) -> str:
        """The kind of node, such as EKS Auto Mode, if the driver never runs on such nodes; empty if it may."""
        return _unserved(self.metadata.labels)

    @property
    def ready(self) -> ConditionView | None:
        """Its condition Ready, None if it has none."""
        return self.status.ready

    @property
    def reported(self) -> tuple[tuple[str, str], ...]:
        """The faults that agents report in its conditions: the type of each, and what the agent says."""
        return self.status.reported


class NodeHealthView(ObjectView, frozen=True):
    """The conditions of a Node, which are asked for of each node of a fleet."""

    status: JudgedStatus = JudgedStatus()


class _Versions(ObjectView, frozen=True):
    node_info: NodeInfo = NodeInfo()


class KubeletView(ObjectView, frozen=True):
    """The programs on a Node, which are asked for of each node of a fleet."""

    status: _Versions = _Versions()


class _Labels(ObjectView, frozen=True):
    labels: Any = None  # as they are: a copy of them takes longer than the rest


class NodeTypeView(ObjectView, frozen=True):
    """The label with a Node's instance type, which is asked for of each node of a fleet."""

    metadata: _Labels = _Labels()

    @property
    def instance_type(self) -> str:
        """Its instance type; empty without the label, and for a node on which the driver never runs."""
        labels = self.metadata.labels or {}
        if _unserved(labels):
            return ""
        return str(labels.get(names.INSTANCE_TYPE_LABEL) or "")


def _unserved(labels: Mapping[str, Any]) -> str:
    return names.UNSERVED_COMPUTE.get(str(labels.get(names.COMPUTE_TYPE_LABEL)), "")


_OF_AGENTS: Final = frozenset(condition.kind for condition in node_conditions.DEFAULT)


def allocatable(node: Wire) -> Mapping[str, Any]:
    """Return what a Node offers, by resource, as it is: this is asked for each pod on each node."""
    offered: Mapping[str, Any] | None = (node.get("status") or {}).get("allocatable")
    return offered or {}


def offers(node: Wire, resource: str) -> bool:
    """Return True if pods can get some of a resource; of a device plugin that ended, the kubelet leaves 0."""
    return str(allocatable(node).get(resource) or "0") != "0"


class PoolView(ObjectView, frozen=True):
    """The pool of a slice."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class DeviceFields(ObjectView, frozen=True):
    """Some fields of a published device, as they are."""

    attributes: dict[str, Any] = {}
    taints: tuple[dict[str, Any], ...] = ()


class SliceSpecView(ObjectView, frozen=True):
    """What a slice publishes; `simulate` decodes its devices, of which there are 100,000s."""

    driver: str = ""
    node_name: str = ""
    pool: PoolView = PoolView()
    devices: Any = None
    shared_counters: Any = None

    @property
    def published(self) -> Sequence[Wire]:
        """Its devices as they are published."""
        return self.devices or ()

    def text(self, attribute: str) -> str:
        """Return the value of an attribute that all its devices share, as a text; empty without one."""
        for device in self.published[:1]:
            typed_value = (device.get("attributes") or {}).get(attribute)
            if typed_value:
                return str(typed_value.get("string") or "")
        return ""

    @property
    def is_ours(self) -> bool:
        """True if this driver publishes it."""
        return self.driver == names.DRIVER

    @property
    def has_counters(self) -> bool:
        """True if its devices share counters."""
        return bool(self.shared_counters) or any(device.get("consumesCounters") for device in self.published)


class SliceView(ObjectView, frozen=True):
    """A ResourceSlice."""

    metadata: MetaView = MetaView()
    spec: SliceSpecView = SliceSpecView()


class DeviceSelectorView(ObjectView, frozen=True):
    """The devices that a DeviceTaintRule selects: an empty field selects all."""

    driver: str = ""
    pool: str = ""
    device: str = ""


class TaintRuleSpec(ObjectView, frozen=True):
    """A taint, and the devices that get it; without a selector, none do."""

    device_selector: DeviceSelectorView | None = None
    taint: TaintView = TaintView()


class TaintRuleView(ObjectView, frozen=True):
    """A DeviceTaintRule."""

    metadata: MetaView = MetaView()
    spec: TaintRuleSpec = TaintRuleSpec()
